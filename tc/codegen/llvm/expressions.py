"""Values of expressions: scalars, or vectors where they depend on the vectorized loop.

`x + a * b` is one fused multiply-add, unless numerics are strict, dequantized numbers are added, or a whole number is made of it.
Differences are not: what is taken from a product may have been rounded from that product (the maximum of a softmax, a floor), and what
is left of equal numbers is zero. No other float operation is reassociated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tc.codegen.fusing import adds_dequantized, makes_whole
from tc.codegen.llvm.bfloat import emit_from_bf16, emit_to_bf16
from tc.codegen.llvm.builder import FunctionBuilder, Module, Value, int_value
from tc.codegen.llvm.clipped_round import emit_clipped_round, emit_rounded_quotient, rounded_quotient
from tc.codegen.llvm.memory import MemoryEmitter
from tc.codegen.llvm.places import State
from tc.codegen.llvm.scalars import (
    BIT_OPS,
    PYTHON_COMPARE,
    boolean,
    emit_bit_operation,
    emit_cast,
    emit_compare,
    emit_division,
    emit_float_operation,
    emit_integer_extreme,
    emit_integer_math,
    fold,
    literal,
)
from tc.codegen.llvm.vector_libm import emit_function, emit_whole_of_half
from tc.codegen.llvm.words import float_in
from tc.errors import CodegenError
from tc.ir.arith import Facts, bounds, linear_coefficients, polynomial
from tc.ir.clipped_round import as_clipped_round
from tc.ir.dtype import bf16, f16, f32, i32
from tc.ir.expr import (
    FALSE,
    TRUE,
    Add,
    And,
    BinaryExpr,
    Buffer,
    Cast,
    Checked,
    CompareExpr,
    Const,
    Expr,
    Load,
    MathCall,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Sub,
    Var,
    conjuncts,
    const,
)
from tc.ir.node import walk
from tc.ir.uses import reads_memory, variables

_FAR = 1 << 30
"""Further than lanes are apart, and a number of 32 bits."""

_FARTHEST = 1 << 62


class ExpressionEmitter(MemoryEmitter):
    """Expressions at a point of the emitted code."""

    def __init__(self, module: Module, facts: Facts, aliasing: Mapping[Buffer, str], strict: bool = False) -> None:
        super().__init__(module, facts, aliasing)
        self.strict = strict

    def value(self, expr: Expr) -> Value:
        match expr:
            case Const():
                return literal(expr)
            case Var():
                known = self.state.values.get(expr)
                if known is None:
                    raise CodegenError(f"variable {expr.name} has no value here")
                return known
            case Load():
                return self.load(expr)
            case Add() | Mul() | Sub() if not expr.dtype.is_storage:
                return self._binary(expr)
            case Cast(operand=Load() as load, dtype=dtype) if dtype is f32 and (place := self.in_words(load)) is not None:
                return float_in(self.b, place)
            case Cast(operand=Min() | Max()) if (found := as_clipped_round(expr)) is not None:
                return emit_clipped_round(self.b, found, self._unfused)
            case Cast(operand=MathCall()) if (quotient := rounded_quotient(expr)) is not None:
                return emit_rounded_quotient(self.b, quotient, self._unfused)
            case Cast(operand=operand, dtype=dtype):
                return emit_cast(self.b, self._operand(expr, operand), operand.dtype, dtype)
            case Select():
                return self._select(expr)
            case Checked():
                raise CodegenError(f"{expr} reached code generation; run check_accesses first")
            case Not(operand=operand):
                value = self.value(operand)
                if value.known is not None:
                    return boolean(not value.known)
                return self.b.binary("xor", value, self.b.int(1, value))
            case And(lhs=lhs, rhs=rhs):
                return self._logical("and", lhs, rhs)
            case Or(lhs=lhs, rhs=rhs):
                return self._logical("or", lhs, rhs)
            case BinaryExpr(lhs=lhs) | CompareExpr(lhs=lhs) | MathCall(args=(lhs, *_)) if lhs.dtype.is_storage:
                raise CodegenError(f"{expr} computes with {lhs.dtype}, which is only stored, moved and cast")
            case MathCall():
                return self._math(expr)
            case CompareExpr(lhs=lhs, rhs=rhs):
                if (in_lanes := self._lane_compare(expr)) is not None:
                    return in_lanes
                if (narrow := self._narrow_compare(expr)) is not None:
                    return narrow
                return emit_compare(self.b, type(expr), self.value(lhs), self.value(rhs), lhs.dtype)
            case BinaryExpr():
                return self._binary(expr)
        raise CodegenError(f"no code for {type(expr).__name__}")

    def _operand(self, expr: Cast | MathCall, operand: Expr) -> Value:
        """An operand of an expression that may make whole numbers."""
        return self._unfused(operand) if makes_whole(expr) else self.value(operand)

    def _unfused(self, expr: Expr) -> Value:
        """The value of an expression whose operations are rounded one by one."""
        strict, self.strict = self.strict, True
        value = self.value(expr)
        self.strict = strict
        return value

    def _logical(self, op: str, lhs: Expr, rhs: Expr) -> Value:
        a = self.value(lhs)
        if a.known is not None:
            keep_other = bool(a.known) == (op == "and")
            return self.value(rhs) if keep_other else a
        if reads_memory(rhs) and not self._may_be_read(lhs, rhs):
            return self._select(Select(lhs, rhs, FALSE) if op == "and" else Select(lhs, TRUE, rhs))
        b = self.value(rhs)
        if b.known is not None:
            return a if bool(b.known) == (op == "and") else b
        return self.b.binary(op, a, b)

    def _may_be_read(self, first: Expr, then: Expr) -> bool:
        """Whether what a condition reads exists, also where one that is asked before it says otherwise."""
        performed = {node for node in walk(first) if isinstance(node, Load)}
        return all(node in performed or self.is_there(node) for node in walk(then) if isinstance(node, Load))

    def _lane_compare(self, expr: CompareExpr) -> Value | None:
        """A comparison of known numbers in every lane: known itself, or a literal mask. None when it is not of that kind."""
        if self.lane is None or expr.lhs.dtype.name != "i64":
            return None
        poly = polynomial(expr.lhs).minus(polynomial(expr.rhs))
        base, slope = poly.constant, 0
        for monomial, coefficient in poly.terms.items():
            factor, in_lane = coefficient, 0
            for atom in monomial:
                if atom is self.lane.var:
                    in_lane += 1
                    continue
                known = self.state.values.get(atom) if isinstance(atom, Var) else None
                if known is None or known.known is None:
                    return None
                factor *= known.known
            if in_lane > 1:
                return None
            base, slope = (base, slope + factor) if in_lane else (base + factor, slope)
        holds = [PYTHON_COMPARE[type(expr)](base + slope * lane, 0) for lane in range(self.lane.lanes)]
        if all(holds) or not any(holds):
            return boolean(holds[0])
        text = ", ".join(f"i1 {'true' if bit else 'false'}" for bit in holds)
        return Value(f"<{text}>", "i1", self.lane.lanes)

    def _narrow_compare(self, expr: CompareExpr) -> Value | None:
        """Steps from lane to lane compared with one number for all, in 32 bits: twice the lanes for an instruction, and no vectors of what
        is compared. None where it is not of that form, or its parts are not known to be far from the ends of 64 bits."""
        if self.lane is None or expr.lhs.dtype.name != "i64":
            return None
        form = linear_coefficients(expr.lhs - expr.rhs, [self.lane.var])
        step = None if form is None else form[0].get(self.lane.var)
        if form is None or not isinstance(step, Const) or abs(step.value) * self.lane.lanes >= _FAR or reads_memory(form[1]):
            return None
        found = bounds(form[1], self.facts)
        least, most = found.lo, found.hi
        if least is None or most is None or not -_FARTHEST < least <= most < _FARTHEST:
            return None
        b, number = self.b, self.value(const(0) - form[1])
        if number.lanes or number.known is not None:
            return None
        if not -_FAR <= -most <= -least <= _FAR:
            number = b.intrinsic("smax", b.intrinsic("smin", number, int_value(_FAR)), int_value(-_FAR))
        narrow = b.splat(b.low_bits(number, "i32"), self.lane.lanes)
        steps = ", ".join(f"i32 {int(step.value) * lane}" for lane in range(self.lane.lanes))
        return emit_compare(b, type(expr), Value(f"<{steps}>", "i32", self.lane.lanes), narrow, i32)

    def _binary(self, expr: BinaryExpr) -> Value:
        if expr.dtype.is_float:
            return self._float_binary(expr)
        a, b = self.value(expr.lhs), self.value(expr.rhs)
        if a.known is not None and b.known is not None:
            return fold(expr, a, b)
        match expr:
            case Add():
                return self.b.add(a, b)
            case Sub():
                return a if b.known == 0 else self.b.binary("sub", a, b)
            case Mul():
                return self.b.mul(a, b)
            case Min() | Max():
                if expr.dtype.is_bool:
                    return self.b.binary("and" if isinstance(expr, Min) else "or", a, b)
                return emit_integer_extreme(self.b, type(expr), expr.dtype, a, b)
        return emit_division(self.b, expr, a, b, self.facts)

    def _float_binary(self, expr: BinaryExpr) -> Value:
        builder = self.b
        fused = expr.dtype.bits >= 32 and not self.strict and not adds_dequantized(expr)
        match expr:
            case Add(lhs=Mul(lhs=x, rhs=y), rhs=other) if fused:
                return builder.fma(*builder.unify(self.value(x), self.value(y), self.value(other)))
            case Add(lhs=other, rhs=Mul(lhs=x, rhs=y)) if fused:
                accumulator = self.value(other)
                return builder.fma(*builder.unify(self.value(x), self.value(y), accumulator))
        a, b = builder.unify(self.value(expr.lhs), self.value(expr.rhs))
        if isinstance(expr, (Min, Max)) and isinstance(expr.lhs, Const):
            return emit_float_operation(builder, type(expr), b, a, second=expr.lhs)
        return emit_float_operation(builder, type(expr), a, b, second=expr.rhs)

    def _select(self, expr: Select) -> Value:
        condition = self.value(expr.condition)
        if condition.known is not None:
            return self.value(expr.true_value if condition.known else expr.false_value)
        performed = {node for node in walk(expr.condition) if isinstance(node, Load)}  # loads that happen anyway
        loads = [node for side in (expr.true_value, expr.false_value) for node in walk(side) if isinstance(node, Load)]
        if all(node in performed or self._is_gathered(node) for node in loads):
            return self.b.select(condition, self.value(expr.true_value), self.value(expr.false_value))
        if self.lane is not None and self.depends_on_lane(expr):
            return self._masked_select(expr, condition, self.lane.lanes)
        return self._branched_select(condition, expr)

    def _is_gathered(self, node: Load) -> bool:
        """Whether an element at a place that is data is there in any case: without a mask, gathers are loads and no branches."""
        return any(map(reads_memory, node.indices)) and self.is_there(node)

    def _masked_select(self, expr: Select, condition: Value, lanes: int) -> Value:
        """Both sides in the lanes that take them."""
        mask, guard = self.mask, self.guard
        uniform = [value for part in conjuncts(expr.condition) if not (value := self.value(part)).lanes and value.known is None]
        inverse = self.b.binary("xor", condition, self.b.int(1, condition))
        self.mask = self.and_mask(mask, self.b.splat(condition, lanes))
        for value in uniform:
            self.guard = self.and_mask(self.guard, value)
        with self.region():
            a = self.value(expr.true_value)
        self.mask = self.and_mask(mask, self.b.splat(inverse, lanes))
        self.guard = guard if inverse.lanes else self.and_mask(guard, inverse)
        with self.region():
            b = self.value(expr.false_value)
        self.mask, self.guard = mask, guard
        condition = self.b.splat(condition, lanes)
        return self.b.select(condition, self.b.splat(a, lanes), self.b.splat(b, lanes))

    def _branched_select(self, condition: Value, expr: Select) -> Value:
        b = self.b
        yes, no, done = b.label("yes"), b.label("no"), b.label("join")
        b.branch_if(condition, yes, no)
        b.start_block(yes)
        with self.region():
            first = self.value(expr.true_value)
        yes_end = b.block
        b.branch(done)
        b.start_block(no)
        with self.region():
            second = self.value(expr.false_value)
        no_end = b.block
        b.branch(done)
        b.start_block(done)
        return b.emit(
            f"phi {first.type} [ {first.text}, %{yes_end} ], [ {second.text}, %{no_end} ]", first.element, first.lanes
        )

    def and_mask(self, a: Value | None, b: Value) -> Value:
        return b if a is None else self.b.binary("and", a, b)

    def _math(self, expr: MathCall) -> Value:
        if expr.name == "thread_index":
            return Value("%thread", "i64") if self.in_parallel else int_value(0)
        match expr.args:
            case (Cast(operand=half),) if half.dtype is f16 and expr.dtype is f32 and makes_whole(expr):
                return emit_whole_of_half(self.b, expr.name, self._unfused(half))
        args = self.b.unify(*(self._operand(expr, arg) for arg in expr.args))
        name = expr.name
        dtype = expr.args[0].dtype
        if dtype == bf16:
            numbers = [emit_from_bf16(self.b, arg) for arg in args]
            wide = self.b.fma(*numbers) if name == "fma" else emit_function(self.b, name, *numbers)
            return wide if wide.element == "i1" else emit_to_bf16(self.b, wide)
        if name == "fma" and dtype.is_float:
            return self.b.fma(*args)
        if name in BIT_OPS:
            return emit_bit_operation(self.b, name, args, dtype)
        if name == "bit_not":
            return self.b.binary("xor", args[0], self.b.int(-1, args[0]))
        if dtype.is_float:
            return emit_function(self.b, name, *args)
        return emit_integer_math(self.b, name, args, dtype)


class _ScalarExpressions(ExpressionEmitter):
    """Computes an expression once where that dominates; not what is asked whether it overflows by what is not."""

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, (Const, Var)):
            return super().value(expr)
        values = tuple(known.text for var in variables(expr) if (known := self.state.values.get(var)) is not None)  # which may change
        return self.b.once((expr, values, self.b.watches_overflow), partial(super().value, expr))


class ScalarEmitter:
    """Emits scalar expressions over dims, for code that is not a kernel: every branch and loop body of which is a `scope`.

    `values` holds the dims known so far.
    """

    def __init__(self, builder: FunctionBuilder, facts: Facts) -> None:
        self._emitter = _ScalarExpressions(builder.module, facts, {})
        self._emitter.state = State(builder)

    @property
    def values(self) -> dict[Var, Value]:
        return self._emitter.state.values

    @values.setter
    def values(self, values: dict[Var, Value]) -> None:
        self._emitter.state.values = values

    def value(self, expr: Expr) -> Value:
        return self._emitter.value(expr)
