"""Values of expressions as C: numbers, or vectors where they depend on the vectorized loop; loads and stores.

`x + a * b` is one fused multiply-add where it is one in LLVM IR; differences are not. What is written reads like the loops: an index is
the sum that it is, and the C compiler finds what accesses share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tc.codegen.c.helpers import Helpers
from tc.codegen.c.index_types import LARGEST, fits, largest_term
from tc.codegen.c.names import Names
from tc.codegen.c.packed import packed_load, packed_store
from tc.codegen.c.scalars import AS_BITS, BITWISE, PRODUCT, UNARY, CValue, Scalars, c_type, literal
from tc.codegen.c.vectors import ALIGNED, SIDE_BY_SIDE, LanePlace, Vectors, apart, at, from_
from tc.codegen.fusing import adds_dequantized, makes_whole
from tc.codegen.llvm.addresses import offset_of
from tc.codegen.llvm.packed import is_packed
from tc.codegen.llvm.places import Lane
from tc.errors import CodegenError
from tc.ir.arith import Facts, bounds, prove
from tc.ir.dtype import bool_, f32, f64, i64
from tc.ir.expr import (
    Add,
    And,
    BinaryExpr,
    Buffer,
    Cast,
    Checked,
    CompareExpr,
    Const,
    Div,
    Eq,
    Expr,
    FloorDiv,
    FloorMod,
    Le,
    Load,
    Lt,
    MathCall,
    Max,
    Min,
    Mul,
    Ne,
    Not,
    Or,
    Select,
    Sub,
    Var,
    const,
    logical_and,
)
from tc.ir.loop import Store
from tc.ir.node import walk
from tc.ir.polynomial import Monomial, Polynomial, polynomial
from tc.ir.uses import variables


@dataclass
class Scope:
    """What one function knows: the values of variables, the names of buffers, and the names that are taken."""

    names: Names
    values: dict[Var, CValue] = field(default_factory=dict)
    buffers: dict[Buffer, str] = field(default_factory=dict)


class ExpressionWriter:
    """Expressions at a point of the text. `lines` is the block that is being written."""

    def __init__(self, helpers: Helpers, facts: Facts, strict: bool) -> None:
        self.helpers = helpers
        self.dialect = helpers.dialect
        self.scalars = Scalars(helpers)
        self.vectors = Vectors(helpers, self.scalars)
        self.facts = facts
        self.strict = strict
        self.scope = Scope(Names())
        self.lines: list[str] = []
        self.depth = 1
        self.lane: Lane | None = None
        self.mask: CValue | None = None
        self.in_parallel = False
        self.spare: set[Buffer] = set()
        self.unread: set[Buffer] = set()  # scratch that is only written
        self.single: set[Buffer] = set()  # scratch of one element, which is a variable and no array
        self.wild: set[Var] = set()  # variables that hold data, whose arithmetic wraps
        self.has_short_indices = not self.dialect.is_host
        self.long: set[Expr] = set()  # variables of indices that are i64 in the text

    # -- text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, opening: str, closing: str = "}") -> Iterator[None]:
        """Lines between braces."""
        self.line(opening)
        self.depth += 1
        yield
        self.depth -= 1
        self.line(closing)

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Inside, lines go into a list of their own."""
        outer, self.lines = self.lines, []
        yield self.lines
        self.lines = outer

    def declare(self, hint: str, value: CValue) -> CValue:
        """A new variable that holds a value."""
        name = self.scope.names.new(hint)
        self.line(f"const {self.vectors.type_of(value)} {name} = {value};")
        return value._replace(text=name, strength=15)

    # -- expressions

    def value(self, expr: Expr) -> CValue:
        match expr:
            case Const():
                return literal(self.helpers, expr)
            case Var() if self.lane is not None and expr is self.lane.var:
                return self.vectors.numbers(self.lane.lanes)
            case Var():
                found = self.scope.values.get(expr)
                if found is None:
                    raise CodegenError(f"variable {expr.name} has no value here")
                return found
            case Load():
                return self.load(expr)
            case Cast(operand=operand, dtype=dtype):
                return self._apply(f"to_{dtype}", [self._operand(expr, operand)], lambda x: self.scalars.cast(x, dtype))
            case Select():
                return self._select(expr)
            case Checked():
                raise CodegenError(f"{expr} reached code generation; run check_accesses first")
            case Not(operand=operand):
                return self.vectors.apply("not", [self.value(operand)], self.scalars.opposite, self._native("~a"))
            case And(lhs=lhs, rhs=rhs) | Or(lhs=lhs, rhs=rhs):
                return self._logical(type(expr), lhs, rhs)
            case BinaryExpr(lhs=lhs) | CompareExpr(lhs=lhs) | MathCall(args=(lhs, *_)) if lhs.dtype.is_storage:
                raise CodegenError(f"{expr} computes with {lhs.dtype}, which is only stored, moved and cast")
            case MathCall():
                return self._math(expr)
            case CompareExpr(lhs=lhs, rhs=rhs):
                first = self._first_lanes(expr)
                return self._binary(type(expr), self.value(lhs), self.value(rhs)) if first is None else first
            case BinaryExpr():
                return self._arithmetic(expr)
        raise CodegenError(f"no code for {type(expr).__name__}")

    def _first_lanes(self, expr: CompareExpr) -> CValue | None:
        """Of an upper bound on the lane: a mask whose first lanes are on. None for other comparisons."""
        if self.lane is None or not isinstance(expr, (Lt, Le)) or expr.lhs.dtype != i64 or not self.is_index(expr):
            return None
        distance = polynomial(expr.rhs).minus(polynomial(expr.lhs)).plus_const(isinstance(expr, Le))
        rest = distance.plus(polynomial(self.lane.var))
        if any(self.depends_on_lane(atom) for monomial in rest.terms for atom in monomial):
            return None
        return self.vectors.first(self.lane.lanes, self.index(rest))

    def _apply(self, name: str, args: Sequence[CValue], scalar: object) -> CValue:
        return self.vectors.apply(name, args, scalar)  # type: ignore[arg-type]

    def _native(self, text: str) -> str | None:
        """The text of an operation for vectors of the compiler, where the vectorized loop has such."""
        return text if self.lane is not None and self.vectors.is_gnu(self.lane.lanes) else None

    def _binary(self, operation: type[Expr], a: CValue, b: CValue) -> CValue:
        native = None
        if operation in _NATIVE and not a.dtype.is_bool and a.dtype not in AS_BITS and a.dtype.is_float:
            native = self._native(_NATIVE[operation])
        if native is not None and operation not in (Add, Sub, Mul, Div):
            native = f"(m{a.dtype.bits}x{max(a.lanes, b.lanes)})({native})"
        return self.vectors.apply(_name(operation), [a, b], partial(self.scalars.binary, operation), native)

    def _arithmetic(self, expr: BinaryExpr) -> CValue:
        if expr.dtype.is_float:
            return self._float_arithmetic(expr)
        a, b = self.value(expr.lhs), self.value(expr.rhs)
        if not a.lanes and not b.lanes and expr.dtype == i64 and (found := self._index_arithmetic(expr, a, b)) is not None:
            return found
        if isinstance(expr, (FloorDiv, FloorMod, Div)) and self._is_plain_division(expr):
            plain = FloorMod if isinstance(expr, FloorMod) else FloorDiv
            return self.vectors.apply(f"plain_{_name(plain)}", [a, b], partial(self.scalars.index, plain))
        return self._binary(type(expr), a, b)

    def _index_arithmetic(self, expr: BinaryExpr, a: CValue, b: CValue) -> CValue | None:
        """Of indices, for which C's own operators do; None for data, and where something may be negative."""
        if isinstance(expr, (Add, Sub, Mul)) and self.is_index(expr):
            return self.scalars.index(type(expr), a if not self.has_short_indices or fits(expr, self.facts) else _as_i64(a), b)
        return None

    def _is_plain_division(self, expr: BinaryExpr) -> bool:
        """Whether nothing is negative, and the divisor not zero."""
        low, divisor = bounds(expr.lhs, self.facts).lo, bounds(expr.rhs, self.facts).lo
        unsigned = expr.dtype.kind == "uint"
        return divisor is not None and divisor > 0 and (unsigned or (low is not None and low >= 0))

    def is_index(self, expr: Expr) -> bool:
        """Whether an expression is of loops and dims alone: its numbers are in range."""
        for node in walk(expr):
            if isinstance(node, (Load, Cast, MathCall)) or (isinstance(node, Var) and node in self.wild):
                return False
        return True

    def _float_arithmetic(self, expr: BinaryExpr) -> CValue:
        fused = expr.dtype.bits >= 32 and not self.strict and not adds_dequantized(expr)
        match expr:
            case Add(lhs=Mul(lhs=x, rhs=y), rhs=other) | Add(lhs=other, rhs=Mul(lhs=x, rhs=y)) if fused:
                return self.fused(self.value(x), self.value(y), self.value(other))
        a, b = self.value(expr.lhs), self.value(expr.rhs)
        if isinstance(expr, (Min, Max)) and isinstance(expr.lhs, Const):
            a, b = b, a
        return self._binary(type(expr), a, b)

    def fused(self, a: CValue, b: CValue, c: CValue) -> CValue:
        return self.vectors.apply("fma", [a, b, c], self.scalars.fused)

    def _operand(self, expr: Cast | MathCall, operand: Expr) -> CValue:
        """An operand of an expression that may make whole numbers: of such, operations are rounded one by one."""
        strict = self.strict
        self.strict = strict or makes_whole(expr)
        value = self.value(operand)
        self.strict = strict
        return value

    def _math(self, expr: MathCall) -> CValue:
        if expr.name == "thread_index":
            return CValue("thread" if self.in_parallel else "0", i64)
        args = [self._operand(expr, arg) for arg in expr.args]
        if self.has_short_indices and expr.dtype == i64 and expr.name in BITWISE and not any(arg.lanes for arg in args):
            return self.scalars.bitwise(expr.name, *args)  # of what is shorter, too
        if expr.name == "fma" and expr.dtype.is_float:
            return self.fused(*args)
        return self.vectors.apply(expr.name, args, lambda *each: self.scalars.function(expr.name, each))

    # -- choices

    def _logical(self, operation: type[Expr], lhs: Expr, rhs: Expr) -> CValue:
        a = self.value(lhs)
        if not self.depends_on_lane(lhs) and not self.depends_on_lane(rhs):
            with self.captured() as lines:
                b = self.value(rhs)
            if not lines:
                return self.scalars.binary(operation, a, b)
        if self._reads(rhs, lhs):
            sides = (rhs, Const(False, bool_)) if operation is And else (Const(True, bool_), rhs)
            return self._select(Select(lhs, *sides))
        b = self.value(rhs)
        native = self._native(f"a {_BIT[operation]} b") if a.mask_bits == b.mask_bits else None
        return self.vectors.apply(_name(operation), [a, b], partial(self.scalars.binary, operation), native)

    def _reads(self, expr: Expr, condition: Expr) -> bool:
        """Whether evaluating it reads what may not be there, or is not read anyway."""
        performed = {node for node in walk(condition) if isinstance(node, Load)}
        return any(isinstance(node, Load) and node not in performed and not self.is_there(node) for node in walk(expr))

    def _select(self, expr: Select) -> CValue:
        match expr:
            case Select(condition=Lt(lhs=lhs, rhs=rhs), true_value=c, false_value=d) if rhs is c and lhs is d and lhs.dtype in (f32, f64):
                return self.vectors.apply("larger", [self.value(lhs), self.value(rhs)], self.scalars.larger)
        condition = self.value(expr.condition)
        if not condition.lanes:
            return self._branched(condition, expr)
        if any(self._reads(side, expr.condition) for side in (expr.true_value, expr.false_value)):
            condition = self.declare("mask", condition)
            inverse = self.vectors.apply("not", [condition], self.scalars.opposite, self._native("~a"))
            a = self._under(condition, expr.true_value)
            b = self._under(inverse, expr.false_value)
        else:
            a, b = self.value(expr.true_value), self.value(expr.false_value)
        return self.select(condition, a, b)

    def select(self, condition: CValue, a: CValue, b: CValue) -> CValue:
        """A choice lane by lane."""
        lanes = condition.lanes
        bits = condition.mask_bits
        if a.dtype.is_bool:
            return self.vectors.apply("select", [condition, a, b], self.scalars.choice, mask_bits=a.mask_bits or b.mask_bits or bits)
        a, b = self.vectors.splat(a, lanes), self.vectors.splat(b, lanes)
        native = None
        if max(a.dtype.bits, 8) == bits and self.vectors.is_gnu(lanes):
            kind, mask = self.vectors.type_of(a), self.vectors.type_of(condition)
            native = f"({kind})((({mask})b & a) | (({mask})c & ~a))"
        return self.vectors.apply("select", [condition, a, b], self.scalars.choice, native)

    def _under(self, condition: CValue, expr: Expr) -> CValue:
        """A value whose loads happen where a condition holds."""
        outer, self.mask = self.mask, self.and_mask(condition)
        if any(isinstance(node, Load) for node in walk(expr)):
            self.mask = self.declare("mask", self.mask)
        found = self.value(expr)
        self.mask = outer
        return found

    def and_mask(self, condition: CValue) -> CValue:
        """The mask with one more condition, of lanes or of all."""
        assert self.lane is not None
        if self.mask is None:
            return self.vectors.splat(condition, self.lane.lanes)
        same = not condition.lanes or condition.mask_bits == self.mask.mask_bits
        args = [self.mask, self.vectors.splat(condition, self.lane.lanes, self.mask.mask_bits)]
        return self.vectors.apply("and", args, partial(self.scalars.binary, And), self._native("a & b") if same else None)

    def _branched(self, condition: CValue, expr: Select) -> CValue:
        """One side or the other; in branches where they need statements."""
        with self.captured() as first:
            self.depth += 1
            a = self.value(expr.true_value)
        with self.captured() as second:
            b = self.value(expr.false_value)
            self.depth -= 1
        lanes = max(a.lanes, b.lanes)
        bits = a.mask_bits or b.mask_bits or 32
        a, b = self.vectors.splat(a, lanes, bits), self.vectors.splat(b, lanes, bits)
        if a.mask_bits != b.mask_bits:
            b = self.vectors.apply("widened", [b], lambda x: x, mask_bits=a.mask_bits)
        if not first and not second:
            return self.scalars.choice(condition, a, b)._replace(lanes=lanes, mask_bits=a.mask_bits)
        name = self.scope.names.new("chosen")
        self.line(f"{self.vectors.type_of(a)} {name};")
        self.line(f"if ({condition}) {{")
        self.lines += [*first, "    " * (self.depth + 1) + f"{name} = {a};"]
        self.line("} else {")
        self.lines += [*second, "    " * (self.depth + 1) + f"{name} = {b};"]
        self.line("}")
        return a._replace(text=name, strength=15)

    # -- lanes

    def depends_on_lane(self, expr: Expr) -> bool:
        """Whether the value differs between lanes: by the lane variable, or through a Let that depends on it."""
        if self.lane is None:
            return False
        return any(self._differs(var) for var in ((expr,) if isinstance(expr, Var) else variables(expr)))

    def _differs(self, var: Var) -> bool:
        value = self.scope.values.get(var)
        return value is not None and value.lanes > 0

    def is_there(self, node: Load) -> bool:
        """Whether an element is known to be in its buffer whatever the conditions around say."""
        pairs = zip(node.indices, node.buffer.shape, strict=True)
        return all(prove(logical_and(index >= 0, index < dim), self.facts) is True for index, dim in pairs)

    # -- memory

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Polynomial, LanePlace | None]:
        """Where an access lies: the offset that all lanes share, and how lanes differ (None: not at all)."""
        offset = offset_of(buffer, indices, self.facts)
        if self.lane is None:
            return offset, None
        shared: dict[Monomial, int] = {}
        per_lane: dict[Monomial, int] = {}
        other: dict[Monomial, int] = {}
        constant = 0
        for monomial, factor in offset.terms.items():
            rest = list(monomial)
            count = sum(atom is self.lane.var for atom in monomial)
            rest = [atom for atom in monomial if atom is not self.lane.var]
            if count > 1 or any(self.depends_on_lane(atom) for atom in rest):
                other[monomial] = factor
            elif not count:
                shared[monomial] = factor
            elif rest:
                per_lane[tuple(rest)] = factor
            else:
                constant += factor
        base = Polynomial(shared, offset.constant)
        if other:
            return base, at(self.value(offset.plus(base, -1).to_expr()))
        stride = Polynomial(per_lane, constant)
        if stride.is_constant and stride.constant in (0, 1):
            numbers = (*base.terms.values(), base.constant)
            side_by_side = ALIGNED if all(number % self.lane.lanes == 0 for number in numbers) else SIDE_BY_SIDE
            return base, side_by_side if stride.constant else None
        return base, apart(self.value(stride.to_expr()))

    def pointer(self, buffer: Buffer, offset: Polynomial) -> str:
        """The address so many elements from the start of a buffer."""
        return self.start(buffer) if offset.is_constant and not offset.constant else f"&{self.element(buffer, offset)}"

    def start(self, buffer: Buffer) -> str:
        """The address of a buffer's first element."""
        return f"&{self.buffer_name(buffer)}" if buffer in self.single else self.buffer_name(buffer)

    def element(self, buffer: Buffer, offset: Polynomial) -> str:
        """The element so many elements from the start of a buffer."""
        name = self.buffer_name(buffer)
        return name if buffer in self.single else f"{name}[{self.index(offset)}]"

    def index(self, offset: Polynomial) -> str:
        """An offset, all of whose arithmetic is in range: what is added first, then what is taken off."""
        ordered = offset.ordered().terms.items()
        is_long = self._long_terms(offset) if self.has_short_indices else frozenset()
        terms = [(self._term(monomial, abs(factor), monomial in is_long), factor > 0) for monomial, factor in ordered]
        if offset.constant or not terms:
            terms.append((literal(self.helpers, const(abs(offset.constant))).text, offset.constant >= 0))
        terms.sort(key=lambda term: not term[1])
        text = terms[0][0] if terms[0][1] else f"-({terms[0][0]})"
        return "".join((text, *(f" {'+' if is_added else '-'} {term}" for term, is_added in terms[1:])))

    def _long_terms(self, offset: Polynomial) -> frozenset[Monomial]:
        """The terms that are to be computed in 64 bits: those that need not fit less, and all if their sum need not."""
        largest = {monomial: largest_term(monomial, factor, self.facts) for monomial, factor in offset.terms.items()}
        short = {monomial: size for monomial, size in largest.items() if size is not None and size <= LARGEST}
        return frozenset(largest if sum(short.values()) + abs(offset.constant) > LARGEST else largest.keys() - short.keys())

    def _term(self, monomial: Monomial, factor: int, is_long: bool) -> str:
        """A product of the parts of an index, perhaps in 64 bits."""
        is_alone = factor == 1 and len(monomial) == 1 and not is_long
        parts = [self._atom(atom, PRODUCT if is_alone else PRODUCT + 1) for atom in monomial]
        if is_long and monomial[0] not in self.long and not parts[0].startswith("(i64)"):
            parts[0] = f"(i64){parts[0]}"
        return " * ".join([*parts, str(factor)] if factor != 1 else parts)

    def _atom(self, atom: Expr, strength: int) -> str:
        """A part of an index that is no sum or product, where operators bind so strongly."""
        found = self.value(atom)
        return found.at(strength) if isinstance(atom, Var) or found.dtype == i64 else f"(i64){found.at(UNARY)}"

    def buffer_name(self, buffer: Buffer) -> str:
        found = self.scope.buffers.get(buffer)
        if found is None:
            raise CodegenError(f"buffer {buffer} is used outside its scope")
        return found

    def load(self, node: Load) -> CValue:
        buffer = node.buffer
        offset, place = self.place(buffer, node.indices)
        if is_packed(buffer):
            return self._packed_load(buffer, offset, place)
        if place is None:
            return self._shared_load(node, CValue(self.element(buffer, offset), buffer.dtype))
        assert self.lane is not None
        is_whole = place is not None and place.kind == "" and buffer.scope == "register"  # all of its lanes exist
        if is_whole or self.mask is None:
            return self.vectors.load(buffer.dtype, self.lane.lanes, buffer.scope, self.pointer(buffer, offset), place, None)
        where = self._guarded(offset, place)
        return self.vectors.load(buffer.dtype, self.lane.lanes, buffer.scope, self.start(buffer), where, self.mask)

    def _guarded(self, offset: Polynomial, place: LanePlace) -> LanePlace:
        """The same places from the start of the buffer: under a mask that has no lane on, there may be nothing where they are."""
        return from_(CValue(self.index(offset), i64)) if place.kind == "" else self._offsets(offset, place)

    def _shared_load(self, node: Load, loaded: CValue) -> CValue:
        """An element that all lanes share. Under a mask it is read only if some lane is on."""
        if node.buffer.dtype.is_bool:
            loaded = CValue(f"({loaded} != 0)", bool_)
        if self.mask is None or node.buffer.scope != "global" or self.is_there(node):
            return loaded
        return self.scalars.choice(self.vectors.any_lane(self.mask), loaded, literal(self.helpers, const(0, node.dtype)))

    def _packed_load(self, buffer: Buffer, offset: Polynomial, place: LanePlace | None) -> CValue:
        name = packed_load(self.helpers, buffer.dtype)
        if place is None:
            loaded = CValue(f"{name}({self.buffer_name(buffer)}, {self.index(offset)})", buffer.dtype)
            if self.mask is None:
                return loaded
            return self.scalars.choice(self.vectors.any_lane(self.mask), loaded, literal(self.helpers, const(0, buffer.dtype)))
        assert self.lane is not None
        whole = self._offsets(offset, place)
        return self.vectors.load(buffer.dtype, self.lane.lanes, buffer.scope, self.buffer_name(buffer), whole, self.mask, True)

    def _offsets(self, offset: Polynomial, place: LanePlace) -> LanePlace:
        """The same places as offsets from the start of the buffer."""
        assert self.lane is not None
        base = self.vectors.splat(self.value(offset.to_expr()), self.lane.lanes)
        lanes = self.vectors.numbers(self.lane.lanes)
        if place.kind == "at":
            assert place.operand is not None
            more = place.operand
        elif place.kind == "apart":
            assert place.operand is not None
            more = self._binary(Mul, lanes, self.vectors.splat(place.operand, self.lane.lanes))
        else:
            more = lanes
        return at(self._binary(Add, base, more))

    def store_value(self, stmt: Store, value: CValue) -> None:
        buffer = stmt.buffer
        offset, place = self.place(buffer, stmt.indices)
        if self.lane is None:
            self._store_number(buffer, offset, value)
            return
        value = self.vectors.splat(value, self.lane.lanes)
        if is_packed(buffer):
            packed = packed_store(self.helpers, buffer.dtype, self.may_share_bytes(buffer))
            whole = self._offsets(offset, place or apart(CValue("0", i64)))
            self.line(self.vectors.store(value, buffer.scope, self.buffer_name(buffer), whole, self.mask, packed))
            return
        pointer, mask = self.pointer(buffer, offset), self.mask
        if place is not None and place.kind == "" and buffer.scope == "register" and mask is not None:
            if buffer not in self.spare:  # blend, so that the tile can live in registers
                old = self.vectors.load(buffer.dtype, self.lane.lanes, buffer.scope, pointer, SIDE_BY_SIDE, None)
                value = self.select(mask, value, old)
            mask = None
        where = place or apart(CValue("0", i64))
        if mask is not None:
            pointer, where = self.start(buffer), self._guarded(offset, where)
        self.line(self.vectors.store(value, buffer.scope, pointer, where, mask))

    def _store_number(self, buffer: Buffer, offset: Polynomial, value: CValue) -> None:
        name = self.buffer_name(buffer)
        if is_packed(buffer):
            self.line(f"{packed_store(self.helpers, buffer.dtype, self.may_share_bytes(buffer))}({name}, {self.index(offset)}, {value});")
            return
        self.line(f"{self.element(buffer, offset)} = {value};")

    def may_share_bytes(self, buffer: Buffer) -> bool:
        """Whether another thread may write elements in the bytes of those that this one writes."""
        return self.in_parallel

    def pointer_type(self, buffer: Buffer, is_const: bool) -> str:
        """The type of a pointer to a buffer's elements."""
        return f"{self.dialect.space(buffer.scope)}{'const ' if is_const else ''}{c_type(buffer.dtype)} *"


def _as_i64(value: CValue) -> CValue:
    return value._replace(text=f"(i64){value.at(UNARY)}", strength=UNARY)


_NATIVE: dict[type[Expr], str] = {
    Add: "a + b", Sub: "a - b", Mul: "a * b", Div: "a / b",
    Eq: "a == b", Ne: "a != b", Lt: "a < b", Le: "a <= b",
}
_BIT: dict[type[Expr], str] = {And: "&", Or: "|"}


def _name(operation: type[Expr]) -> str:
    return operation.__name__.lower()

