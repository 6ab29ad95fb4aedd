"""16-bit floats where the CPU, or the target asked for, has no instruction: such kernels called functions that were not there."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from onnx import parser

import tc
from tc.codegen.llvm import conversions
from tc.codegen.llvm.jit import compile_object, link

_LOOP = """
declare {to} @{name}({source})
define void @run(ptr %x, ptr %y, i64 %n) nounwind {{
entry:
  br label %again
again:
  %i = phi i64 [ 0, %entry ], [ %next, %again ]
  %px = getelementptr {source}, ptr %x, i64 %i
  %py = getelementptr {to}, ptr %y, i64 %i
  %v = load {source}, ptr %px
  %r = call {to} @{name}({source} %v)
  store {to} %r, ptr %py
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %again, label %done
done:
  ret void
}}
"""
_TYPES = {"float": np.float32, "double": np.float64, "half": np.float16, "bfloat": ml_dtypes.bfloat16}
_SIGNATURES = {
    "__truncsfbf2": ("float", "bfloat"),
    "__truncdfbf2": ("double", "bfloat"),
    "__truncsfhf2": ("float", "half"),
    "__truncdfhf2": ("double", "half"),
    "__extendhfsf2": ("half", "float"),
}


def _hard_cases(source: str, to: str) -> np.ndarray:
    """Every number of the narrow type, the middles between neighbours, and what lies a last bit beside those."""
    if source == "half":
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    narrow = np.arange(1 << 16, dtype=np.uint16).view(_TYPES[to]).astype(np.float64)
    with np.errstate(all="ignore"):
        middles = (narrow[:-1] + narrow[1:]) / 2
        numbers = np.concatenate([narrow, middles]).astype(_TYPES[source])
        infinity = _TYPES[source](np.inf)
        return np.concatenate([numbers, np.nextafter(numbers, infinity), np.nextafter(numbers, -infinity)])


@pytest.mark.parametrize("name", conversions.NAMES)
def test_each_conversion_rounds_once_to_the_nearest(name: str) -> None:
    source, to = _SIGNATURES[name]
    x = _hard_cases(source, to)
    library = link([compile_object(_LOOP.format(name=name, source=source, to=to))])
    found = np.empty(x.shape, _TYPES[to])

    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library.address("run"))
    run(x.ctypes.data, found.ctypes.data, x.size)

    with np.errstate(all="ignore"):
        expected = _cast_once(x, _TYPES[to])
    number = ~np.isnan(expected.astype(np.float64))
    bits = np.uint32 if to == "float" else np.uint16
    assert number.sum() > 60_000
    assert np.array_equal(found[number].view(bits), expected[number].view(bits))
    assert np.isnan(found[~number].astype(np.float64)).all()


def _cast_once(x: np.ndarray, to: type) -> np.ndarray:
    """numpy's cast, rounded once: from f64 to bf16 it goes by way of f32, so the nearest of the neighbours is looked for."""
    first = x.astype(to)
    if not (x.dtype == np.float64 and to is ml_dtypes.bfloat16):
        return first
    best, apart = first.copy(), np.abs(first.astype(np.float64) - x)
    for step in (-1, 1):
        other = (first.view(np.int16) + np.int16(step)).view(to)
        distance = np.abs(other.astype(np.float64) - x)
        even = (other.view(np.uint16) & 1) == 0
        closer = (np.abs(x) < 1e300) & ((distance < apart) | ((distance == apart) & even))
        best, apart = np.where(closer, other, best).astype(to), np.where(closer, distance, apart)
    return best


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v2"])
@pytest.mark.parametrize(("source", "code"), [("float", 16), ("double", 16), ("float", 10), ("double", 10), ("int64", 16)])
def test_models_cast_to_16_bits_on_every_target(target: str, source: str, code: int) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    m = parser.parse_model(f"{head} g ({source}[37] x) => (float[37] y) {{ h = Cast<to = {code}>(x) s = Add(h, h) y = Cast<to = 1>(s) }}")
    x = (np.random.default_rng(0).standard_normal(37) * 100).astype({"float": "f4", "double": "f8", "int64": "i8"}[source])
    narrow = ml_dtypes.bfloat16 if code == 16 else np.float16

    y = tc.compile(m, target=target, threads=1)(x)

    assert np.array_equal(y, 2 * x.astype(narrow).astype(np.float32))
