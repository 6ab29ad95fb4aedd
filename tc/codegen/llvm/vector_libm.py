"""Functions of libm in f32, and remainders in f64, for all lanes of a vector at once: a call for each lane takes ten times as long."""

from __future__ import annotations

from collections.abc import Callable

from tc.codegen.llvm.builder import FunctionBuilder, Value, mangled
from tc.codegen.llvm.libm_f32 import F32_FUNCTIONS, near_fmod, near_sin_cos, near_tan
from tc.codegen.llvm.number import Number
from tc.codegen.llvm.vecmath import emit_math

FAR_ANGLE = 2.0**17
"""From here on sines, cosines and tangents are those of libm."""
FAR_QUOTIENT = {"float": 2.0**22, "double": 2.0**51}
"""From here on remainders are those of libm."""


def emit_function(b: FunctionBuilder, name: str, *args: Value) -> Value:
    """`emit_math`, of f16 and f32 without libm where that can be: scalars have the bits that lanes have."""
    element = args[0].element
    if element == "half":
        wide = emit_function(b, name, *(b.convert("fpext", arg, "float") for arg in args))
        return wide if wide.element == "i1" else b.convert("fptrunc", wide, element)
    if element == "double" and name == "fmod":
        return _near_or_far(b, name, *b.unify(*args))
    if element != "float" or name in b.module.f32_libm:
        return emit_math(b, name, *args)
    if name in _NEAR:
        return _near_or_far(b, name, *b.unify(*args))
    if name in F32_FUNCTIONS:
        return F32_FUNCTIONS[name](*(Number(b, arg) for arg in b.unify(*args))).v
    return emit_math(b, name, *args)


_MAGIC = 2.0**23
"""Added to a number of less than half of it, it leaves whole numbers."""


def emit_whole_of_half(b: FunctionBuilder, name: str, half: Value) -> Value:
    """`floor`, `ceil`, `round` or `trunc`, in f32, of what is an f16, by additions: LLVM makes a rounding of an f16 of one in f32 that is
    narrowed again, and that one by one."""
    x = Number(b, b.convert("fpext", half, "float"))
    size = x.math("abs")
    nearest = (size + _MAGIC) - _MAGIC
    if name == "trunc":
        return nearest.where(nearest.test("ogt", size), nearest - 1.0).with_sign_of(x).v
    signed = nearest.with_sign_of(x)
    if name == "floor":
        return signed.where(signed.test("ogt", x), signed - 1.0).v
    return signed.v if name == "round" else signed.where(signed.test("olt", x), signed + 1.0).with_sign_of(x).v


def _sin(x: Number) -> tuple[Number, Value]:
    return near_sin_cos(x)[0].where(x.test("oeq", 0.0), x), _is_far(x)


def _cos(x: Number) -> tuple[Number, Value]:
    return near_sin_cos(x)[1], _is_far(x)


def _tan(x: Number) -> tuple[Number, Value]:
    return near_tan(x), _is_far(x)


def _is_far(angle: Number) -> Value:
    return angle.math("abs").test("uge", FAR_ANGLE)


def _fmod(x: Number, y: Number) -> tuple[Number, Value]:
    rest, quotient = near_fmod(x, y)
    return rest, quotient.test("uge", FAR_QUOTIENT[x.v.element])


_NEAR: dict[str, Callable[..., tuple[Number, Value]]] = {"sin": _sin, "cos": _cos, "tan": _tan, "fmod": _fmod}
"""What most arguments give, and for which that is some number."""


def _near_or_far(b: FunctionBuilder, name: str, *args: Value) -> Value:
    """Where a lane is far a function is called, which few vectors are."""
    number, is_far = _NEAR[name](*(Number(b, arg) for arg in args))
    near, any_far = number.v, is_far
    if near.lanes:
        reduction = f"llvm.vector.reduce.or.{mangled(is_far)}"
        b.module.declare(reduction, "i1", [is_far.type])
        any_far = b.emit(f"call i1 @{reduction}({is_far})", "i1")
    before, far, done = b.block, b.label("far"), b.label("near")
    b.branch_if(any_far, far, done)
    b.start_block(far)
    given = ", ".join(map(str, args))
    called = b.emit(f"call {near.type} @{_far_function(b, name, args)}({given})", near.element, near.lanes)
    with b.scope():
        chosen = b.select(is_far, called, near)
    b.branch(done)
    b.start_block(done)
    return b.emit(f"phi {near.type} [ {near.text}, %{before} ], [ {chosen.text}, %{far} ]", near.element, near.lanes)


def _far_function(b: FunctionBuilder, name: str, args: tuple[Value, ...]) -> str:
    """A function of the module that calls libm for each lane."""
    own = f"tc_{name}_{mangled(args[0])}"
    params = [Value(f"%{letter}", arg.element, arg.lanes) for letter, arg in zip("xy", args, strict=False)]
    header = f"define internal {args[0].type} @{own}({', '.join(map(str, params))}) noinline cold nounwind {{"
    if not any(text.startswith(header) for text in b.module.definitions):
        inner = FunctionBuilder(b.module)
        result = emit_math(inner, name, *params)
        inner.emit_void(f"ret {result}")
        b.module.definitions.append("\n".join([header, "entry:", *inner.entry, *inner.lines, "}"]))
    return own
