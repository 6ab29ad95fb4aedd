"""Functions of libm in f32 for all lanes of a vector at once: a call for each lane takes ten times as long."""

from __future__ import annotations

from tc.codegen.llvm.builder import FunctionBuilder, Value, mangled
from tc.codegen.llvm.libm_f32 import F32_FUNCTIONS, near_sin_cos
from tc.codegen.llvm.number import Number
from tc.codegen.llvm.vecmath import emit_math

FAR_ANGLE = 2.0**17
"""From here on sines and cosines are those of libm."""


def emit_function(b: FunctionBuilder, name: str, *args: Value) -> Value:
    """`emit_math`, of f16 and f32 without libm where that can be: scalars have the bits that lanes have."""
    element = args[0].element
    if element == "half":
        wide = emit_function(b, name, *(b.convert("fpext", arg, "float") for arg in args))
        return wide if wide.element == "i1" else b.convert("fptrunc", wide, element)
    if element != "float" or name not in F32_FUNCTIONS or name in b.module.f32_libm:
        return emit_math(b, name, *args)
    if name in ("sin", "cos"):
        return _angle_function(b, name, *args)
    return F32_FUNCTIONS[name](*(Number(b, arg) for arg in b.unify(*args))).v


def _angle_function(b: FunctionBuilder, name: str, x: Value) -> Value:
    """A sine or cosine; where a lane is far from 0 a function is called, which few vectors are."""
    number = Number(b, x)
    sine, cosine = near_sin_cos(number)
    near = sine.where(number.test("oeq", 0.0), number).v if name == "sin" else cosine.v
    is_far = number.math("abs").test("uge", FAR_ANGLE)
    any_far = is_far
    if x.lanes:
        reduction = f"llvm.vector.reduce.or.{mangled(is_far)}"
        b.module.declare(reduction, "i1", [is_far.type])
        any_far = b.emit(f"call i1 @{reduction}({is_far})", "i1")
    before, far, done = b.block, b.label("far"), b.label("near")
    b.branch_if(any_far, far, done)
    b.start_block(far)
    called = b.emit(f"call {x.type} @{_far_function(b, name, x)}({x})", x.element, x.lanes)
    with b.scope():
        chosen = b.select(is_far, called, near)
    b.branch(done)
    b.start_block(done)
    return b.emit(f"phi {x.type} [ {near.text}, %{before} ], [ {chosen.text}, %{far} ]", x.element, x.lanes)


def _far_function(b: FunctionBuilder, name: str, x: Value) -> str:
    """A function of the module that calls libm for each lane."""
    own = f"tc_{name}_{mangled(x)}"
    header = f"define internal {x.type} @{own}({x.type} %x) noinline cold nounwind {{"
    if not any(text.startswith(header) for text in b.module.definitions):
        inner = FunctionBuilder(b.module)
        result = emit_math(inner, name, Value("%x", x.element, x.lanes))
        inner.emit_void(f"ret {result}")
        b.module.definitions.append("\n".join([header, "entry:", *inner.entry, *inner.lines, "}"]))
    return own
