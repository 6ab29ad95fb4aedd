"""A small writer of LLVM IR text.

llvmlite's own builder makes an object of every instruction; text is several times faster to produce, and compiling a model means
writing some hundred thousand instructions. llvmlite then parses and verifies what is written here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from tc.ir.dtype import NARROW_FLOATS, SUB_BYTE, DType

LLVM_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "half",
    "bf16": "i16",
    "i64": "i64",
    "u64": "i64",
    "i32": "i32",
    "u32": "i32",
    "i16": "i16",
    "u16": "i16",
    "i8": "i8",
    "u8": "i8",
    "bool": "i1",
    **{dtype.name: "i8" for dtype in (*NARROW_FLOATS, *SUB_BYTE)},
}


def llvm_type(dtype: DType) -> str:
    """The LLVM type of a value in registers; a bool is an i1 there, and an i8 in memory. bf16 and narrower floats are their bits,
    integers narrower than a byte extended to one."""
    return LLVM_TYPES[dtype.name]


class Value(NamedTuple):
    """An LLVM value: its text, its element type, its number of lanes (0: a scalar), and its number when it is a known integer."""

    text: str
    element: str
    lanes: int = 0
    known: int | None = None

    @property
    def type(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}> {self.text}" if self.lanes else f"{self.element} {self.text}"


_new_value: Callable[..., Value] = tuple.__new__  # a third of the time of a call of the class


@lru_cache(4096, typed=True)
def int_value(value: int, element: str = "i64") -> Value:
    return Value(str(value), element, 0, value)


def float_text(value: float, element: str) -> str:
    """A float literal, exact: LLVM writes float as the double of the same value."""
    code = {"half": "<e", "float": "<f"}.get(element)
    if code is not None and value == value:
        try:
            value = struct.unpack(code, struct.pack(code, value))[0]
        except OverflowError:
            value = math.copysign(math.inf, value)
    if element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


POWER_OF_TWO = "ex2.approx.ftz.f32"
"""An instruction of PTX, and the feature of a module whose target has it."""


class Module:
    """The text of one LLVM module: function definitions, declarations and constants on demand, metadata.

    `features` are those of the target (LLVM's names) that its code may rely on. `f32_libm`: functions of libm that it has in f32.
    """

    def __init__(self, features: Iterable[str] = (), f32_libm: Iterable[str] = ()) -> None:
        self.features = frozenset(features)
        self.f32_libm = frozenset(f32_libm)
        self.definitions: list[str] = []
        self.declarations: dict[str, str] = {}
        self.metadata: list[str] = []

    def has(self, feature: str) -> bool:
        return feature in self.features

    def declare(self, name: str, result: str, params: Sequence[str], attributes: str = "") -> None:
        """Declare an external function once."""
        self.declarations.setdefault(name, f"declare {result} @{name}({', '.join(params)}) {attributes}".rstrip())

    def constant(self, name: str, content: bytes) -> str:
        """Memory that is only read, from the start of a line of the cache, defined once for each content; returns its address."""
        text = "".join(f"\\{byte:02X}" for byte in content)
        defined = f'private unnamed_addr constant [{len(content)} x i8] c"{text}", align 64'
        for own in (name, *(f"{name}.{number}" for number in range(1, len(self.declarations) + 1))):
            line = f"@{own} = {defined}"
            if self.declarations.setdefault(own, line) == line:
                return f"@{own}"
        raise AssertionError("one of more names than there are declarations is free")

    def add_metadata(self, text: str) -> str:
        """A new metadata node; returns its reference."""
        self.metadata.append(text)
        return f"!{len(self.metadata) - 1}"

    def __str__(self) -> str:
        nodes = [f"!{k} = {text}" for k, text in enumerate(self.metadata)]
        return "\n".join([*self.definitions, *self.declarations.values(), *nodes, ""])


class FunctionBuilder:
    """Writes the instructions of one function. `entry` collects the allocas, which come first.

    shares: whether integers are computed once where that dominates; for code whose every branch and loop body is a `scope`.
    """

    saturates = True  # there is an instruction that cuts a float to an integer of any size

    def __init__(self, module: Module, *, shares: bool = False) -> None:
        self.module = module
        self.shares = shares
        self.lines: list[str] = []
        self.entry: list[str] = []
        self.block = "entry"
        self._count = 0
        self._known: dict[Hashable, Value] = {}
        self._known_in_scope: list[list[Hashable]] = [[]]
        self._places: dict[str, Value] = {}
        self._allocas: set[str] = set()
        self._overflows: list[Value] | None = None

    # -- plumbing

    def name(self, hint: str = "") -> str:
        self._count += 1
        return f"%{hint}{self._count}"

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def emit(self, text: str, element: str, lanes: int = 0) -> Value:
        self._count += 1
        result = f"%v{self._count}"
        self.lines.append(f"  {result} = {text}")
        return _new_value(Value, (result, element, lanes, None))

    def emit_void(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        self.emit_void(f"br label %{label}")

    def branch_if(self, condition: Value, then_label: str, else_label: str) -> None:
        self.emit_void(f"br i1 {condition.text}, label %{then_label}, label %{else_label}")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Values remembered inside do not dominate what follows; forget them at the end."""
        self._known_in_scope.append([])
        try:
            yield
        finally:
            for key in self._known_in_scope.pop():
                del self._known[key]

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` emits, or what it emitted for an equal key where that dominates this place.

        For what depends on values alone. Only for code whose every branch and loop body is a `scope`.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = make()
            self._known_in_scope[-1].append(key)
        return found

    def alloca(self, type_: str, count: int, align: int, hint: str, space: int = 0) -> Value:
        """Memory of the function, by a generic pointer; `space`: the address space in which the target has it."""
        result = self.name(f"{hint}.")
        if space:
            own = self.name(f"{hint}.")
            self.entry.append(f"  {own} = alloca [{count} x {type_}], align {align}, addrspace({space})")
            self.entry.append(f"  {result} = addrspacecast ptr addrspace({space}) {own} to ptr")
        else:
            self.entry.append(f"  {result} = alloca [{count} x {type_}], align {align}")
        self._allocas.add(result)
        return Value(result, "ptr")

    def place(self, base: Value, element: str, count: str) -> Value:
        """The address `count` elements behind `base`, once where that dominates. Fixed places of the function's own memory are
        computed where the function begins, and dominate everything."""
        text = f"getelementptr inbounds {element}, ptr {base.text}, i64 {count}"
        if base.text not in self._allocas or count[0] == "%":
            known = self._known.get(text)
            return self.once(text, lambda: self.emit(text, "ptr")) if known is None else known
        found = self._places.get(text)
        if found is None:
            found = self._places[text] = Value(self.name("v"), "ptr")
            self.entry.append(f"  {found.text} = {text}")
        return found

    # -- arithmetic

    def splat(self, value: Value, lanes: int) -> Value:
        """`value` in every lane; itself when it is a vector already, or when `lanes` is 0."""
        if value.lanes or not lanes:
            return value
        element, text = value.element, value.text
        if text[0] != "%":
            return Value(f"splat ({element} {text})", element, lanes)
        key = ("splat", text, lanes)
        found = self._known.get(key)
        if found is None:
            one = self.emit(f"insertelement <{lanes} x {element}> poison, {element} {text}, i64 0", element, lanes)
            all_lanes = f"shufflevector {one}, <{lanes} x {element}> poison, <{lanes} x i32> zeroinitializer"
            found = self._known[key] = self.emit(all_lanes, element, lanes)
            self._known_in_scope[-1].append(key)
        return found

    def unify(self, *values: Value) -> tuple[Value, ...]:
        """All values with the same number of lanes."""
        lanes = values[0].lanes
        for value in values:
            if value.lanes != lanes:
                lanes = max([value.lanes for value in values])
                return tuple([value if value.lanes == lanes else self.splat(value, lanes) for value in values])
        return values

    def binary(self, op: str, a: Value, b: Value) -> Value:
        if a.lanes != b.lanes:
            a, b = self.unify(a, b)
        text = f"{op} {a}, {b.text}"
        return self._shared(text, a.element, a.lanes) if a.element[0] == "i" else self.emit(text, a.element, a.lanes)

    def _shared(self, text: str, element: str, lanes: int) -> Value:
        if not self.shares:
            return self.emit(text, element, lanes)
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self.emit(text, element, lanes)
            self._known_in_scope[-1].append(text)
        return found

    def low_bits(self, value: Value, element: str) -> Value:
        """A number as one of fewer bits."""
        return self._shared(f"trunc {value} to {element}", element, 0)

    def add(self, a: Value, b: Value) -> Value:
        """Integer a + b, folding known scalars."""
        if a.known is not None and b.known is not None:
            return int_value(a.known + b.known, a.element)
        if a.known == 0:
            return b
        return a if b.known == 0 else self._watched("add", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        """Integer a * b, folding known scalars."""
        if a.known is not None and b.known is not None:
            return int_value(a.known * b.known, a.element)
        if a.known == 1 or b.known == 0:
            return b
        return a if b.known == 1 or a.known == 0 else self._watched("mul", a, b)

    @property
    def watches_overflow(self) -> bool:
        return self._overflows is not None

    @contextmanager
    def watch_overflow(self) -> Iterator[list[Value]]:
        """Collect, for every sum and product of scalars emitted inside, a flag that says whether it left the range of its type."""
        outer, self._overflows = self._overflows, []
        try:
            yield self._overflows
        finally:
            self._overflows = outer

    def _watched(self, op: str, a: Value, b: Value) -> Value:
        if self._overflows is None or a.lanes or b.lanes:
            return self.binary(op, a, b)
        name, pair = f"llvm.s{op}.with.overflow.{a.element}", f"{{{a.element}, i1}}"
        self.module.declare(name, pair, [a.type, a.type])
        both = self.emit(f"call {pair} @{name}({a}, {b})", pair)
        self._overflows.append(self.emit(f"extractvalue {both}, 1", "i1"))
        return self.emit(f"extractvalue {both}, 0", a.element)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """`op` is an icmp or fcmp with its predicate, such as "icmp slt"."""
        a, b = self.unify(a, b)
        return self._shared(f"{op} {a}, {b.text}", "i1", a.lanes)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        a, b = self.unify(a, b)
        if condition.lanes and not a.lanes:
            a, b = self.splat(a, condition.lanes), self.splat(b, condition.lanes)
        text = f"select {condition}, {a}, {b}"
        return self._shared(text, a.element, a.lanes) if a.element[0] == "i" else self.emit(text, a.element, a.lanes)

    def convert(self, op: str, value: Value, element: str) -> Value:
        target = Value("", element, value.lanes).type
        return self.emit(f"{op} {value} to {target}", element, value.lanes)

    def float(self, value: float, like: Value) -> Value:
        """A float literal of the element type and lanes of `like`."""
        text = float_text(value, like.element)
        if like.lanes:
            return Value(f"splat ({like.element} {text})", like.element, like.lanes)
        return Value(text, like.element)

    def fneg(self, a: Value) -> Value:
        return self.emit(f"fneg {a}", a.element, a.lanes)

    def intrinsic(self, name: str, *args: Value, element: str | None = None) -> Value:
        """A call of llvm.<name> overloaded on the type of its (like-typed) arguments."""
        args = self.unify(*args)
        first = args[0]
        suffix = f"v{first.lanes}{_MANGLED[first.element]}" if first.lanes else _MANGLED[first.element]
        full = f"llvm.{name}.{suffix}"
        if full not in self.module.declarations:
            self.module.declare(full, first.type, [arg.type for arg in args])
        text = f"call {first.type} @{full}({', '.join(map(str, args))})"
        return self._shared(text, first.element, first.lanes) if first.element[0] == "i" else self.emit(text, first.element, first.lanes)

    @property
    def has_extremes(self) -> bool:
        """Whether `extreme` takes three instructions, one less than two comparisons and a choice."""
        return self.module.has("avx")

    def extreme(self, name: str, a: Value, b: Value) -> Value:
        """llvm.minimum or llvm.maximum, NaN if either is; of zeros either.

        Targets ask the first operand of the call whether it is NaN: that is `b`, which nothing waits for where `a` is the extreme of what
        came before, and which windows that overlap ask once.
        """
        a, b = self.unify(a, b)
        suffix = f"v{a.lanes}{_MANGLED[a.element]}" if a.lanes else _MANGLED[a.element]
        self.module.declare(f"llvm.{name}.{suffix}", a.type, [a.type, b.type])
        return self.emit(f"call nsz {a.type} @llvm.{name}.{suffix}({b}, {a})", a.element, a.lanes)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.intrinsic("fma", a, b, c)

    @property
    def has_power_of_two(self) -> bool:
        """Whether the target has an instruction for `power_of_two`."""
        return self.module.has(POWER_OF_TWO)

    def power_of_two(self, x: Value) -> Value:
        """2^x in f32, to about 22 bits; 0 where that is no normal number."""
        return self.emit(f'call float asm "{POWER_OF_TWO} $0, $1;", "=f,f"({x})', "float")

    def bitcast(self, value: Value, element: str) -> Value:
        return self.convert("bitcast", value, element)

    def extract(self, value: Value, lane: int) -> Value:
        return self.emit(f"extractelement {value}, i64 {lane}", value.element)

    def insert(self, vector: Value, scalar: Value, lane: int) -> Value:
        return self.emit(f"insertelement {vector}, {scalar}, i64 {lane}", vector.element, vector.lanes)

    def shuffled(self, a: Value, b: Value, lanes: Iterable[int]) -> Value:
        """The lanes of these numbers of two vectors, those of `b` numbered after those of `a`."""
        order = [f"i32 {lane}" for lane in lanes]
        return self.emit(f"shufflevector {a}, {b}, <{len(order)} x i32> <{', '.join(order)}>", a.element, len(order))

    def halves(self, vector: Value) -> tuple[Value, Value]:
        """The lower and the upper lanes of a vector."""
        middle = vector.lanes // 2
        return self.shuffled(vector, vector, range(middle)), self.shuffled(vector, vector, range(middle, vector.lanes))

    def joined(self, low: Value, high: Value) -> Value:
        """The lanes of two vectors, one after the other."""
        return self.shuffled(low, high, range(low.lanes + high.lanes))

    def per_lane(self, fn: Callable[..., Value], *args: Value) -> Value:
        """Apply the scalar function `fn` of values to every lane."""
        args = self.unify(*args)
        if not args[0].lanes:
            return fn(*args)
        result: Value | None = None
        for lane in range(args[0].lanes):
            scalar = fn(*(self.extract(arg, lane) for arg in args))
            if result is None:
                result = Value("poison", scalar.element, args[0].lanes)
            result = self.insert(result, scalar, lane)
        assert result is not None
        return result

    def libm(self, name: str, *args: Value) -> Value:
        """A scalar call of libm in double; for f32 the result is then rounded once, which makes it correct to half an ulp or so, unless the
        module has the function in f32."""
        narrow = args[0].element == "float"
        if narrow and name in self.module.f32_libm:
            self.module.declare(f"{name}f", "float", ["float"] * len(args), "nounwind willreturn memory(none)")
            return self.emit(f"call float @{name}f({', '.join(map(str, args))})", "float")
        wide = [self.convert("fpext", arg, "double") if narrow else arg for arg in args]
        self.module.declare(name, "double", ["double"] * len(wide), "nounwind willreturn memory(none)")
        result = self.emit(f"call double @{name}({', '.join(map(str, wide))})", "double")
        return self.convert("fptrunc", result, "float") if narrow else result

    def int(self, value: int, like: Value, element: str | None = None) -> Value:
        """An integer literal with the lanes of `like`, of its element type or of `element`."""
        kind = element or like.element
        if like.lanes:
            return Value(f"splat ({kind} {value})", kind, like.lanes)
        return int_value(value, kind)


_MANGLED = {
    "double": "f64",
    "float": "f32",
    "half": "f16",
    "i64": "i64",
    "i32": "i32",
    "i16": "i16",
    "i8": "i8",
    "i1": "i1",
}


def mangled(value: Value) -> str:
    """The suffix by which LLVM tells overloads apart: "v16f32", "i64"."""
    return f"v{value.lanes}{_MANGLED[value.element]}" if value.lanes else _MANGLED[value.element]
