"""What is quantized and dequantized at once stays a float: "fake" quantization, as training for quantization calls it."""

from __future__ import annotations

from tc.ir.clipped_round import ClippedRound, as_clipped_round
from tc.ir.dtype import f32, i32
from tc.ir.expr import Add, Cast, Const, Expr, Load, MathCall, Max, Min, Sub, call, cast, const, maximum, minimum
from tc.ir.loop import PrimFunc
from tc.ir.node import Node, cached_on_node, children, transform
from tc.passes.manager import loop_pass


@loop_pass
def fake_quantize(func: PrimFunc) -> PrimFunc:
    """Round and clip in f32 what would be an integer of 8 or 16 bits between two operations on f32, and clip before a number is rounded.

        f32(u8(clip(round(x / 0.5) + 7, 0, 255))) - 7    =>    f32(i32(round(bounded_quotient(x, 0.5, 2, -3.5, 124))))
        u8(clip(round(x) + 7, 0, 255))                   =>    u8(clip(round(bounded_quotient(x, 1, 1, -7, 248)) + 7, 0, 255))

    Every bit stays: zero points and steps are whole numbers that f32 holds, NaN is the least number before and after, and no zero is
    negative, which a conversion to i32 sees to. Bounds are literals, or data, of a kernel (`share_kernels`).
    """

    def rewrite(node: Node) -> Node | None:
        match node:
            case Cast(operand=Max() | Min()):
                return _by_bounds(node)
            case Cast(operand=Cast(operand=Max() | Min()) as inner, dtype=dtype) if dtype is f32:
                return _in_steps(inner)
            case Sub(lhs=lhs, rhs=less) if _is_steps(lhs):
                return _without(const(0.0, f32), lhs, less)
            case Sub(lhs=Add(lhs=steps, rhs=shift), rhs=less) if _is_steps(steps):
                return _without(shift, steps, less)
        return None

    return transform(func, rewrite, _rounds)


@cached_on_node
def _rounds(node: Node) -> bool:
    """Whether something is rounded at or below a node."""
    return (isinstance(node, MathCall) and node.name == "round") or any(map(_rounds, children(node)))


def _by_bounds(quantized: Cast) -> Expr | None:
    """The same number by what it is clipped to before it is rounded, and its zero point: all are literals."""
    found = as_clipped_round(quantized)
    if found is None or found.low or found.is_bounded or found.is_whole or isinstance(found.shift, Expr) or not _is_shifted(quantized):
        return None
    zero = const(float(found.shift), f32)
    value = call("round", _bounded_quotient(found)) + zero
    return cast(maximum(minimum(value, const(float(found.high), f32)), const(0.0, f32)), found.dtype)


def _is_shifted(quantized: Cast) -> bool:
    """Whether a zero point is added, which may be 0: other layers have another there."""
    match quantized.operand:
        case Max(lhs=Min(lhs=Add())) | Min(lhs=Max(lhs=Add())):
            return True
    return False


def _in_steps(quantized: Cast) -> Expr | None:
    """The number as f32: whole steps from the zero point, and that."""
    found = as_clipped_round(quantized)
    if found is None or found.low:  # NaN is another number
        return None
    steps = cast(cast(call("round", found.value if found.is_bounded else _bounded_quotient(found)), i32), f32)
    if isinstance(found.shift, Expr):
        return steps + found.shift
    return steps + const(float(found.shift), f32) if _is_shifted(quantized) else steps


def _bounded_quotient(found: ClippedRound) -> Expr:
    divisor = 1.0 if found.divisor is None else found.divisor
    shift, ends = found.shift, (found.low, found.high)
    if isinstance(shift, Expr):
        low, high = ((const(float(end), f32) - shift) * const(divisor, f32) for end in ends)
    else:
        low, high = (const((end - shift) * divisor, f32) for end in ends)
    return call("bounded_quotient", found.value, const(divisor, f32), const(1.0 / divisor, f32), low, high)


def _is_steps(expr: Expr) -> bool:
    match expr:
        case Cast(operand=Cast(operand=MathCall(name="round", args=(MathCall(name="bounded_quotient"),)), dtype=inner), dtype=outer):
            return inner is i32 and outer is f32
    return False


def _without(shift: Expr, steps: Expr, less: Expr) -> Expr | None:
    """`steps + shift - less`, where what is left of both is known."""
    if isinstance(shift, Const) and isinstance(less, Const):
        rest = shift.value - less.value
        return steps + const(rest, f32) if rest else steps
    return steps if _is_same(shift, less) else None


def _is_same(a: Expr, b: Expr) -> bool:
    """Whether two expressions are one number of one place."""
    if isinstance(a, Cast) and isinstance(b, Cast):
        return a.dtype is b.dtype and a.operand.dtype is b.operand.dtype and _is_same(a.operand, b.operand)
    if isinstance(a, Load) and isinstance(b, Load) and a.buffer is b.buffer:
        return all(isinstance(i, Const) and isinstance(j, Const) and i.value == j.value for i, j in zip(a.indices, b.indices, strict=True))
    return a is b
