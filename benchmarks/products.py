"""Matrix products of other operands than two matrices of floats, over the plain product of the same sizes and target.

`python -m benchmarks.products`: the rate (operations a second) of each over that of f32, median and quartiles of pairs of turns, one
thread. `--seed N` draws the sizes instead of those of the tables; `--targets` names targets that the machine can run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

import tc
from tc.measure.harness import Plan, time_interleaved
from tc.target import Target, native_target

Arrays = dict[str, np.ndarray]
Case = Callable[[np.random.Generator, int, int, int], tuple[list[onnx.NodeProto], Arrays, Arrays]]
"""Nodes, inputs, initializers of a product of m x k and k x n."""

BF16 = ml_dtypes.bfloat16


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def integers(rng: np.random.Generator, dtype: type, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def node(op: str, inputs: list[str], output: str, **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attrs)


MATMUL = node("MatMul", ["a", "b"], "y")
INTEGER = node("MatMulInteger", ["a", "b"], "y")
FLOAT = onnx.TensorProto.FLOAT


def bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return floats(rng, *shape).astype(BF16)


def widened(*names: str) -> list[onnx.NodeProto]:
    """The product with some operands cast to f32 first."""
    casts = [node("Cast", [name], f"{name}_wide", to=FLOAT) for name in names]
    return [*casts, node("MatMul", [f"{name}_wide" if name in names else name for name in "ab"], "y")]


def gathered(name: str, axis: int) -> list[onnx.NodeProto]:
    """The product with one operand gathered along an axis."""
    return [node("Gather", [name, "i"], "taken", axis=axis), node("MatMul", ["taken" if each == name else each for each in "ab"], "y")]


def dequantized(rng: np.random.Generator, k: int, n: int) -> Arrays:
    return {"q": integers(rng, np.int8, k, n), "s": rng.uniform(0.01, 0.02, n).astype(np.float32)}


DEQUANTIZED = [node("DequantizeLinear", ["q", "s"], "b", axis=1), MATMUL]

PLAIN: Case = lambda r, m, n, k: ([MATMUL], {"a": floats(r, m, k)}, {"b": floats(r, k, n)})  # noqa: E731

OPERANDS: Mapping[str, Case] = {
    "weights are inputs": lambda r, m, n, k: ([MATMUL], {"a": floats(r, m, k), "b": floats(r, k, n)}, {}),
    "rows gathered": lambda r, m, n, k: (
        gathered("a", 0),
        {"a": floats(r, 2 * m, k), "i": r.integers(-2 * m, 2 * m, m)},
        {"b": floats(r, k, n)},
    ),
    "depth gathered": lambda r, m, n, k: (
        gathered("a", 1),
        {"a": floats(r, m, 2 * k), "i": r.integers(-2 * k, 2 * k, k)},
        {"b": floats(r, k, n)},
    ),
    "depth of weights gathered": lambda r, m, n, k: (
        gathered("b", 0),
        {"a": floats(r, m, k), "i": r.integers(-2 * k, 2 * k, k), "b": floats(r, 2 * k, n)},
        {},
    ),
    "int8 weights": lambda r, m, n, k: (DEQUANTIZED, {"a": floats(r, m, k)}, dequantized(r, k, n)),
    "int8 weights are inputs": lambda r, m, n, k: (DEQUANTIZED, {"a": floats(r, m, k)} | dequantized(r, k, n), {}),
    "bf16 weights": lambda r, m, n, k: (widened("b"), {"a": floats(r, m, k)}, {"b": bf16(r, k, n)}),
    "bf16 weights are inputs": lambda r, m, n, k: (widened("b"), {"a": floats(r, m, k), "b": bf16(r, k, n)}, {}),
}

NARROW: Mapping[str, Case] = {
    "u8 x s8": lambda r, m, n, k: ([INTEGER], {"a": integers(r, np.uint8, m, k)}, {"b": integers(r, np.int8, k, n)}),
    "s8 x s8": lambda r, m, n, k: ([INTEGER], {"a": integers(r, np.int8, m, k)}, {"b": integers(r, np.int8, k, n)}),
    "u8 x s8, both inputs": lambda r, m, n, k: ([INTEGER], {"a": integers(r, np.uint8, m, k), "b": integers(r, np.int8, k, n)}, {}),
    "bf16 x bf16": lambda r, m, n, k: (widened("a", "b"), {"a": bf16(r, m, k)}, {"b": bf16(r, k, n)}),
    "f16 x f16": lambda r, m, n, k: (
        [MATMUL],
        {"a": floats(r, m, k).astype(np.float16)},
        {"b": floats(r, k, n).astype(np.float16)},
    ),
}


def model(nodes: list[onnx.NodeProto], inputs: Arrays, literals: Arrays) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]
    constants = [numpy_helper.from_array(array, name) for name, array in literals.items()]
    graph = helper.make_graph(nodes, "product", infos, [helper.make_empty_tensor_value_info("y")], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def table(title: str, cases: Mapping[str, Case], target: str, sizes: tuple[int, int, int], seconds: float) -> None:
    rng = np.random.default_rng(0)
    print(f"\n{title}: {' x '.join(map(str, sizes))}, {target}")
    steps, notes = {}, {}
    for name, case in {"f32": PLAIN, **cases}.items():
        nodes, inputs, literals = case(rng, *sizes)
        module = tc.compile(model(nodes, inputs, literals), target, threads=1)
        steps[name] = partial(module.run, inputs)
        report = module.report()
        rules = ", ".join(kernel.rule for kernel in report.kernels)
        notes[name] = f"{rules}; arena {report.arena}, constants {report.constant_bytes} bytes"
    timings = time_interleaved(steps, Plan(budget_seconds=seconds))
    for name in steps:
        print(f"  {name:26} {timings.ratio('f32', name)!s:20} {notes[name]}", flush=True)


def this_machine() -> str:
    return f"{native_target().cpu}, {native_target().vector_bits} bits"


def runnable(names: str) -> Iterator[str]:
    """Of targets named with commas between them, those whose instructions this machine has; it says so of the others."""
    for name in names.split(","):
        if set(Target.parse(name).features) <= set(native_target().features):
            yield name
        else:
            print(f"\n{name}: this machine lacks some of its instructions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="for each table")
    parser.add_argument("--seed", type=int, help="draw the sizes")
    parser.add_argument("--targets", default="native,x86-64-v4,x86-64-v3")
    given = parser.parse_args()
    drawn = None if given.seed is None else np.random.default_rng(given.seed).integers(100, 1500, 3)
    sizes = (512, 1024, 1024) if drawn is None else tuple(map(int, drawn))
    cube = (1024, 1024, 1024) if drawn is None else sizes
    print(f"rate over that of f32; {this_machine()}")
    for name in runnable(given.targets):
        table("operands made on the way", OPERANDS, name, sizes, given.seconds)
        table("narrow types", NARROW, name, cube, given.seconds)


if __name__ == "__main__":
    main()
