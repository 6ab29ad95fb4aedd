"""Vectors: a type for each element and number of lanes, and a helper for each operation on them.

With vectors of the compiler (GNU C) a helper is one operator where there is one, and else a loop over lanes, which compilers make
instructions of. Elsewhere, with TC_SCALAR defined, and for numbers of lanes that no vector has, a vector is a struct and every helper is
the loop. What a lane gets is the same text as outside of vectors, so all of these give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.codegen.c.helpers import Helpers, function_text
from tc.codegen.c.scalars import UNARY, CValue, Scalars, c_type
from tc.ir.dtype import DType, bool_, i64, u8

LANE_MACRO = "\n".join(
    ("#ifdef TC_SCALAR", "#define TC_LANE(x, l) ((x).v[l])", "#else", "#define TC_LANE(x, l) ((x)[l])", "#endif")
)


class Vectors:
    """Operations on vectors, for one text."""

    def __init__(self, helpers: Helpers, scalars: Scalars) -> None:
        self.helpers = helpers
        self.scalars = scalars

    # -- types

    def type_of(self, value: CValue) -> str:
        """The C type of a value."""
        if not value.lanes:
            return c_type(value.dtype)
        return self.mask_type(value.mask_bits, value.lanes) if value.mask_bits else self.vector_type(value.dtype, value.lanes)

    def vector_type(self, dtype: DType, lanes: int) -> str:
        element = c_type(dtype)
        return self._type(f"{element}x{lanes}", element, dtype.size_bytes, lanes)

    def mask_type(self, bits: int, lanes: int) -> str:
        """Lanes of 0 or -1."""
        return self._type(f"m{bits}x{lanes}", f"i{bits}", bits // 8, lanes)

    def _type(self, name: str, element: str, size_bytes: int, lanes: int) -> str:
        total = size_bytes * lanes
        struct = f"typedef struct {{ {element} v[{lanes}]; }} {name};"
        if not self.is_gnu(lanes):
            if not self.helpers.dialect.is_host and lanes & (lanes - 1) == 0 and total <= 16:
                struct = f"typedef struct {self.helpers.dialect.alignment.format(total)} {{ {element} v[{lanes}]; }} {name};"
            return self.helpers.need(name, lambda: struct)
        gnu = f"typedef {element} {name} __attribute__((vector_size({total})));"
        return self.helpers.need(name, lambda: "\n".join(("#ifdef TC_SCALAR", struct, "#else", gnu, "#endif")))

    def is_gnu(self, lanes: int) -> bool:
        """Whether the compiler may have a vector of so many lanes."""
        return self.helpers.dialect.gnu_vectors and lanes & (lanes - 1) == 0

    def is_one_access(self, dtype: DType, lanes: int) -> bool:
        """Whether a device reads so many elements at once where they are aligned."""
        return not self.helpers.dialect.is_host and lanes & (lanes - 1) == 0 and lanes * dtype.size_bytes <= 16

    def lane(self, vector: str, number: str, lanes: int) -> str:
        """One lane of a vector that a variable holds."""
        if not self.is_gnu(lanes):
            return f"{vector}.v[{number}]"
        self.helpers.need("TC_LANE", lambda: LANE_MACRO)
        return f"TC_LANE({vector}, {number})"

    def lane_value(self, name: str, like: CValue, number: str = "l") -> CValue:
        """The number that a lane of a variable is."""
        text = self.lane(name, number, like.lanes)
        return CValue(f"({text} != 0)", bool_) if like.mask_bits else CValue(text, like.dtype)

    # -- operations

    def splat(self, value: CValue, lanes: int, mask_bits: int = 32) -> CValue:
        """A number in every lane; itself when it is a vector."""
        if value.lanes or not lanes:
            return value
        if value.dtype.is_bool:
            kind = self.mask_type(mask_bits, lanes)
            result = CValue("", bool_, lanes, mask_bits=mask_bits)
            name = self._looped(f"{kind}_splat", kind, (("i32", "x"),), f"{{r}} = -(i{mask_bits})(x != 0)", lanes)
            return result._replace(text=f"{name}({value})")
        kind, element = self.vector_type(value.dtype, lanes), c_type(value.dtype)
        native = f"x - ({kind}){{0}}" if self.is_gnu(lanes) else None
        name = self._looped(f"{kind}_splat", kind, ((element, "x"),), "{r} = x", lanes, native)
        return CValue(f"{name}({value})", value.dtype, lanes)

    def numbers(self, lanes: int) -> CValue:
        """0, 1, ... in so many lanes."""
        kind = self.vector_type(i64, lanes)
        return CValue(f"{self._looped(f'{kind}_numbers', kind, (), '{r} = l', lanes)}()", i64, lanes)

    def first(self, lanes: int, count: str) -> CValue:
        """A mask whose first lanes are on, so many."""
        kind = self.mask_type(32, lanes)
        name = self._looped(f"{kind}_first", kind, (("i64", "n"),), "{r} = -(i32)(l < n)", lanes)
        return CValue(f"{name}({count})", bool_, lanes, mask_bits=32)

    def apply(
        self, name: str, args: Sequence[CValue], scalar: Callable[..., CValue], native: str | None = None, mask_bits: int = 0
    ) -> CValue:
        """An operation lane by lane; with numbers alone, of numbers. `native`: its text for vectors of the compiler a, b, c."""
        lanes = max(arg.lanes for arg in args)
        if not lanes:
            return scalar(*args)
        bits = mask_bits or next((arg.mask_bits or max(arg.dtype.bits, 8) for arg in args if arg.lanes), 32)
        args = [self.splat(arg, lanes, bits) for arg in args]
        kinds = [self.type_of(arg) for arg in args]
        letters = [chr(ord("a") + k) for k in range(len(args))]
        made = scalar(*(self.lane_value(letter, arg) for letter, arg in zip(letters, args, strict=True)))
        result = CValue("", made.dtype, lanes, mask_bits=bits if made.dtype.is_bool else 0)
        kind = self.type_of(result)
        text = f"-(i{bits})({made})" if made.dtype.is_bool else str(made)
        others = [each for each in dict.fromkeys((*kinds, *map(_disguised, args))) if each not in (kind, "")]
        params = list(zip(kinds, letters, strict=True))
        called = self._looped("_".join((kind, name, *others)), kind, params, f"{{r}} = {text}", lanes, native)
        return result._replace(text=f"{called}({', '.join(map(str, args))})")

    def _looped(self, name: str, kind: str, params: Sequence[tuple[str, str]], body: str, lanes: int, native: str | None = None) -> str:
        """A helper whose result r has lanes, each set by `body`."""

        def make() -> str:
            in_place = bool(params) and params[0] == (kind, "a")
            held = "a" if in_place else "r"
            each = body.format(r=self.lane(held, "l", lanes))
            loop = [*([] if in_place else [f"    {kind} r = {{0}};"]), *_each_lane(lanes, f"{each};"), f"    return {held};"]
            if native is not None:
                loop = ["#ifdef TC_SCALAR", *loop, "#else", f"    return {native};", "#endif"]
            return self._function(name, kind, params, loop)

        return self.helpers.need(name, make)

    def _function(self, name: str, kind: str, params: Sequence[tuple[str, str]], body: Sequence[str]) -> str:
        arguments = ", ".join(_parameter(each, param) for each, param in params) or "void"
        return function_text(f"{self.helpers.dialect.helper} {kind} {name}({arguments})", body)

    def any_lane(self, mask: CValue) -> CValue:
        """Whether a mask has a lane that is on."""
        kind = self.type_of(mask)
        lines = ("    i32 any = 0;", *_each_lane(mask.lanes, f"any |= {self.lane('m', 'l', mask.lanes)} != 0;"), "    return any;")
        name = self.helpers.need(f"{kind}_any", lambda: self._function(f"{kind}_any", "i32", ((kind, "m"),), lines))
        return CValue(f"{name}({mask})", bool_)

    def tree(self, name: str, value: CValue, combine: Callable[[CValue, CValue], CValue]) -> CValue:
        """The lanes combined as a tree: halves of the vector, until one lane is left."""
        kind = self.type_of(value)
        here, there = self.lane_value("x", value), self.lane_value("x", value, "l + n")
        lines = (
            f"    for (i32 n = {value.lanes // 2}; n >= 1; n /= 2) {{",
            f"        for (i32 l = 0; l < n; l++) {here} = {combine(here, there)};",
            "    }",
            f"    return {self.lane('x', '0', value.lanes)};",
        )
        called = f"{kind}_tree_{name}"
        self.helpers.need(called, lambda: self._function(called, c_type(value.dtype), ((kind, "x"),), lines))
        return CValue(f"{called}({value})", value.dtype)

    # -- memory

    def load(
        self, dtype: DType, lanes: int, space: str, pointer: str, place: LanePlace, mask: CValue | None, is_packed: bool = False
    ) -> CValue:
        """Elements from a pointer on; 0 in lanes that a mask leaves out, which are not read."""
        if dtype.is_bool:
            return self.apply("is_set", [self.load(u8, lanes, space, pointer, place, mask)], lambda x: self.scalars.cast(x, bool_))
        kind, element = self.vector_type(dtype, lanes), c_type(dtype)
        if mask is None and place.is_aligned and self.is_one_access(dtype, lanes):
            return CValue(f"*({self.helpers.dialect.space(space)}const {kind} *){pointer}", dtype, lanes, strength=UNARY)
        params, arguments = self._operands(f"{self.helpers.dialect.space(space)}const {element} *", pointer, place, mask)
        from_ = f"tc_load_{dtype}(p, {place.index(self)})" if is_packed else f"p[{place.index(self)}]"
        read = f"{self.lane('r', 'l', lanes)} = {from_};"
        condition = None if mask is None else self.lane("m", "l", lanes)
        body = [f"    {kind} r = {{0}};", *_each_lane(lanes, read, condition), "    return r;"]
        if mask is None and place.kind == "" and self.is_gnu(lanes):
            loose = f"typedef {kind} loose __attribute__((aligned({dtype.size_bytes}), may_alias));"
            body = ["#ifdef TC_SCALAR", *body, "#else", f"    {loose}", "    return *(const loose *)p;", "#endif"]
        marks = (kind, "load", place.kind, self._space(space), str(dtype) if is_packed else "", self._masked(mask))
        name = "_".join(filter(None, marks))
        self.helpers.need(name, lambda: self._function(name, kind, params, body))
        return CValue(f"{name}({', '.join(arguments)})", dtype, lanes)

    def store(self, value: CValue, space: str, pointer: str, place: LanePlace, mask: CValue | None, packed: str = "") -> str:
        """The statement that stores the lanes of a vector, of those that a mask leaves in, from a pointer on. `packed`: the helper that
        stores one element among those that share its byte."""
        dtype, lanes = value.dtype, value.lanes
        if dtype.is_bool:
            return self.store(self.apply("as_byte", [value], lambda x: self.scalars.cast(x, u8)), space, pointer, place, mask)
        kind, element = self.vector_type(dtype, lanes), c_type(dtype)
        if mask is None and place.is_aligned and self.is_one_access(dtype, lanes):
            return f"*({self.helpers.dialect.space(space)}{kind} *){pointer} = {value};"
        params, arguments = self._operands(f"{self.helpers.dialect.space(space)}{element} *", pointer, place, mask)
        write = f"p[{place.index(self)}] = {self.lane('x', 'l', lanes)};"
        if packed:
            write = f"{packed}(p, {place.index(self)}, {self.lane('x', 'l', lanes)});"
        body = _each_lane(lanes, write, None if mask is None else self.lane("m", "l", lanes))
        if place.kind == "" and mask is None and self.is_gnu(lanes):
            loose = f"typedef {kind} loose __attribute__((aligned({dtype.size_bytes}), may_alias));"
            body = ["#ifdef TC_SCALAR", *body, "#else", f"    {loose}", "    *(loose *)p = x;", "#endif"]
        marks = (kind, "store", place.kind, self._space(space), packed.removeprefix("tc_store_"), self._masked(mask))
        name = "_".join(filter(None, marks))
        self.helpers.need(name, lambda: self._function(name, "void", (*params, (kind, "x")), body))
        return f"{name}({', '.join((*arguments, str(value)))});"

    def _operands(self, pointer_type: str, pointer: str, place: LanePlace, mask: CValue | None) -> tuple[list[tuple[str, str]], list[str]]:
        params, arguments = [(pointer_type, "p")], [pointer]
        if place.operand is not None:
            params.append((self.type_of(place.operand), "o"))
            arguments.append(str(place.operand))
        if mask is not None:
            params.append((self.type_of(mask), "m"))
            arguments.append(str(mask))
        return params, arguments

    def _space(self, scope: str) -> str:
        """What tells helpers on different address spaces apart."""
        return scope if self.helpers.dialect.spaces and self.helpers.dialect.space(scope) else ""

    def _masked(self, mask: CValue | None) -> str:
        return "" if mask is None else self.type_of(mask)


def _disguised(value: CValue) -> str:
    """The dtype of a value whose type in C does not say it."""
    return "" if value.mask_bits or c_type(value.dtype) == value.dtype.name else value.dtype.name


def _each_lane(lanes: int, statement: str, condition: str | None = None) -> list[str]:
    """A loop over lanes l, those for which a condition holds."""
    head = f"    for (i32 l = 0; l < {lanes}; l++)"
    return [f"{head} {statement}"] if condition is None else [f"{head} {{", f"        if ({condition}) {statement}", "    }"]


def _parameter(kind: str, name: str) -> str:
    return f"{kind}{name}" if kind.endswith("*") else f"{kind} {name}"


class LanePlace:
    """Where the lanes of a vector lie behind a pointer: side by side (at once or from an offset on), a number of elements apart, or at
    offsets of their own."""

    def __init__(self, kind: str = "", operand: CValue | None = None, is_aligned: bool = False) -> None:
        self.kind = kind
        self.operand = operand
        self.is_aligned = is_aligned  # at multiples of the lanes of the vector

    def index(self, vectors: Vectors) -> str:
        """Of lane l, in elements."""
        match self.kind:
            case "apart":
                return "l * o"
            case "from":
                return "o + l"
            case "at":
                assert self.operand is not None
                return vectors.lane("o", "l", self.operand.lanes)
        return "l"


SIDE_BY_SIDE = LanePlace()
ALIGNED = LanePlace(is_aligned=True)


def apart(stride: CValue) -> LanePlace:
    """So many elements from lane to lane."""
    return LanePlace("apart", stride._replace(dtype=i64))


def from_(offset: CValue) -> LanePlace:
    """Side by side from an offset on, which is not added to a pointer where no lane is on."""
    return LanePlace("from", offset)


def at(offsets: CValue) -> LanePlace:
    """At an offset for each lane."""
    return LanePlace("at", offsets)


