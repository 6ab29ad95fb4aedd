"""The functions of libm that PTX brings along, run on the CPU, against numpy's and the standard library's."""

import ctypes
import math

import numpy as np
import pytest

from tc.codegen.llvm.builder import Module
from tc.codegen.llvm.jit import Library, compile_object, link
from tc.codegen.llvm.vecmath import MATH_ULPS
from tc.codegen.ptx.emitter import emit_ptx
from tc.codegen.ptx.libm import F32_LIBM, LIBM_NAMES, define_libm
from tc.ir.parser import parse_prim_func
from tc.passes.pipeline import DEVICE_FINISH_CALLS, finish_loops

ULPS = {"pow": 16.0, "erf": 8.0, "erfc": 1024.0}
"""Largest error in units in the last place of an f64; 4 of others. What is computed for f32 may be off by 2^27 of them."""

REFERENCES = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "fmod")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "pow": np.power,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
}
LOOP = """define void @run_{name}(ptr %x, ptr %y, ptr %r, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x_place = getelementptr double, ptr %x, i64 %i
  %y_place = getelementptr double, ptr %y, i64 %i
  %r_place = getelementptr double, ptr %r, i64 %i
  %x_value = load double, ptr %x_place
  %y_value = load double, ptr %y_place
  %value = call double @{name}({arguments})
  store double %value, ptr %r_place
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
ENDS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 5e-324, 1e-310, 1.7e308, -1.7e308, 2.0, -3.0, 0.5, -0.5, 1e22, 1e300, 709.8]
ENDS += [math.pi / 4, math.pi / 2, math.pi, 2.0**19, 2.0**19 - 1e-9, 2.0**53, -745.2, 1024.0, -1075.0]


def takes_two(name: str) -> bool:
    return name in ("pow", "fmod")


@pytest.fixture(scope="module")
def library() -> Library:
    module = Module()
    for name in sorted(LIBM_NAMES):
        module.declare(name, "double", ["double"] * (1 + takes_two(name)))
        arguments = "double %x_value, double %y_value" if takes_two(name) else "double %x_value"
        module.definitions.append(LOOP.format(name=name, arguments=arguments))
    define_libm(module)
    return link([compile_object(str(module))])


def numbers(rng: np.random.Generator) -> np.ndarray:
    scaled = [rng.standard_normal(1000) * scale for scale in (1e-8, 0.1, 1.0, 3.0, 10.0, 100.0, 600.0)]
    wide = np.exp(rng.uniform(-700, 700, 1000)) * rng.choice([-1.0, 1.0], 1000)
    return np.concatenate([*scaled, wide, rng.uniform(-1, 1, 1000), np.repeat(ENDS, len(ENDS))])


@pytest.mark.parametrize("name", sorted(LIBM_NAMES))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_is_right_to_a_few_units_in_the_last_place(name: str, library: Library) -> None:
    rng = np.random.default_rng(0)
    x = numbers(rng)
    y = np.concatenate([rng.permutation(x[: -len(ENDS) ** 2]), np.tile(ENDS, len(ENDS))])
    y[:4000:3] = rng.integers(-20, 20, 1334)
    found = np.empty_like(x)

    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(library.address(f"run_{name}"))
    call(x.ctypes.data, y.ctypes.data, found.ctypes.data, len(x))
    expected = REFERENCES[name](*((x, y) if takes_two(name) else (x,)))

    same = ((found == expected) & (np.signbit(found) == np.signbit(expected))) | (np.isnan(found) & np.isnan(expected))
    ulps = np.where(same, 0.0, np.abs(found - expected) / np.spacing(np.maximum(np.abs(expected), 1e-300)))
    worst = int(np.argmax(np.where(np.isnan(ulps), np.inf, ulps)))
    assert ulps[worst] <= ULPS.get(name, 4.0), (x[worst], y[worst], found[worst], expected[worst])


@pytest.fixture(scope="module")
def f32_library() -> Library:
    module = Module()
    for name in sorted(F32_LIBM):
        module.declare(f"{name}f", "float", ["float"] * (1 + takes_two(name)))
        arguments = "double %x_value, double %y_value" if takes_two(name) else "double %x_value"
        module.definitions.append(LOOP.format(name=f"{name}f", arguments=arguments).replace("double", "float"))
    define_libm(module)
    text = str(module)
    assert ("double" in text) == bool(F32_LIBM & {"sin", "cos"})  # of large angles
    return link([compile_object(text)])


def f32_numbers(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    scaled = [rng.standard_normal(20000) * scale for scale in (1e-8, 0.1, 1.0, 3.0, 50.0)]
    wide = np.exp(rng.uniform(-103, 88.7, 40000)) * rng.choice([-1.0, 1.0], 40000)
    angles = [rng.uniform(-(2.0**17), 2.0**17, 40000), rng.integers(-80000, 80000, 40000) * (math.pi / 2)]
    ends = np.array([*ENDS, 1e-45, -1e-45, 3e38, 88.72, 88.73, -104.0, 128.0, -149.5, 2.0**17, 2.0**24 + 2], np.float64)
    with np.errstate(over="ignore"):
        x = np.concatenate([*scaled, wide, *angles, np.repeat(ends, len(ends))]).astype(np.float32)
        y = np.concatenate([rng.permutation(x[: -len(ends) ** 2]), np.tile(ends, len(ends))]).astype(np.float32)
    if name == "pow":  # results of all sizes
        x[:100000:2] = np.abs(x[:100000:2])
        y[:100000:2] = rng.uniform(-104, 89, 50000) / np.log(np.maximum(x[:100000:2], np.float32(1e-45)).astype(np.float64))
        y[1:100000:2] = rng.integers(-9, 9, 50000)
    return x, y


@pytest.mark.parametrize("name", sorted(F32_LIBM))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_function_in_f32_is_right_to_a_unit_in_the_last_place(name: str, f32_library: Library) -> None:
    x, y = f32_numbers(name, np.random.default_rng(1))
    found = np.empty_like(x)

    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(f32_library.address(f"run_{name}f"))
    call(x.ctypes.data, y.ctypes.data, found.ctypes.data, len(x))
    wide = (x.astype(np.longdouble), y.astype(np.longdouble))
    exact = REFERENCES[name](*(wide if takes_two(name) else wide[:1]))

    rounded = exact.astype(np.float32)
    same = ((found == rounded) & (np.signbit(found) == np.signbit(rounded))) | (np.isnan(found) & np.isnan(rounded))
    spacing = np.maximum(np.spacing(np.abs(rounded)), np.float32(1e-45)).astype(np.longdouble)
    ulps = np.where(same, 0.0, np.abs(found - exact) / spacing)
    worst = int(np.argmax(np.where(np.isnan(ulps), np.inf, ulps)))
    assert ulps[worst] <= MATH_ULPS.get(name, 1.0), (x[worst], y[worst], found[worst], rounded[worst])


def test_kernels_for_f32_have_no_f64_but_for_large_angles() -> None:
    for kind in ("pow", "exp2", "log1p"):
        assert ".f64" not in ptx_of(kind), kind
    assert "cvt.f64.f32" in ptx_of("tan")


def ptx_of(kind: str) -> str:
    """The PTX of a kernel that applies a function to x[i], and to y[i]."""
    arguments = "x[i], y[i]" if takes_two(kind) else "x[i]"
    text = f"""
@loops
def f(x: f32[64], y: f32[64], z: f32[64]):
    outputs(1)
    for i in bound(64, 'thread.x'):
        z[i] = {kind}({arguments})
"""
    func = finish_loops(parse_prim_func(text), calls=DEVICE_FINISH_CALLS)
    return emit_ptx(func, "f", "sm_80")
