"""Five kernels in other element types, and with weights that are inputs, over the same kernel in f32 with literal weights.

`python -m benchmarks.dtypes`: seconds over those of f32, median and quartiles of pairs of turns, one thread. Where f32 runs at the rate
of a stream through memory of the same size, what counts is seconds a byte; elsewhere seconds. `--kernels` and `--targets` choose.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from functools import partial

import ml_dtypes
import numpy as np
import onnx

import tc
from benchmarks.products import Arrays, floats, integers, model, node, runnable, this_machine
from tc.measure.harness import Plan, Timings, time_interleaved
from tc.measure.machine import Limit, stream_limit
from tc.target import Target

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}

AT_STREAM = 0.7
"""Which part of the stream's rate a kernel must reach to count as bound by memory."""

Parts = tuple[list[onnx.NodeProto], Arrays, Arrays]
"""Nodes, inputs, weights."""

ALWAYS_LITERAL = ("root", "one", "half")
"""Numbers that make an operator what it is, rather than weights."""


def conv(rng: np.random.Generator) -> Parts:
    weights = {"w": floats(rng, 128, 128, 3, 3) / np.float32(34), "b": floats(rng, 128)}
    return [node("Conv", ["x", "w", "b"], "y", pads=[1, 1, 1, 1])], {"x": floats(rng, 1, 128, 28, 28)}, weights


def matmul(rng: np.random.Generator) -> Parts:
    return [node("MatMul", ["x", "w"], "y")], {"x": floats(rng, 512, 512)}, {"w": floats(rng, 512, 512) / np.float32(22)}


def softmax(rng: np.random.Generator, rows: int) -> Parts:
    return [node("Softmax", ["x"], "y")], {"x": floats(rng, rows, 1024)}, {}


def layernorm(rng: np.random.Generator, rows: int) -> Parts:
    weights = {"s": rng.uniform(0.8, 1.2, 1024).astype(np.float32), "b": floats(rng, 1024)}
    return [node("LayerNormalization", ["x", "s", "b"], "y")], {"x": floats(rng, rows, 1024)}, weights


def gelu(rng: np.random.Generator, rows: int) -> Parts:
    """gelu(x * a + b) + c, the gelu spelled with Erf."""
    numbers = {"a": 1.5, "b": 0.25, "root": math.sqrt(2), "one": 1.0, "half": 0.5, "c": -0.5}
    steps = ("Mul x a p", "Add p b z", "Div z root q", "Erf q e", "Add e one f", "Mul z f g", "Mul g half h", "Add h c y")
    nodes = [node(op, inputs, output) for op, *inputs, output in map(str.split, steps)]
    return nodes, {"x": floats(rng, rows, 1024)}, {name: np.array(number, np.float32) for name, number in numbers.items()}


FAR_ROWS, NEAR_ROWS = 1 << 14, 1 << 6
"""Rows of 1,024 elements: so many that they come from memory, and so few that the arithmetic is what takes time."""

KERNELS: dict[str, Callable[[np.random.Generator], Parts]] = {
    "conv": conv,
    "matmul": matmul,
    "softmax": partial(softmax, rows=FAR_ROWS),
    "layernorm": partial(layernorm, rows=FAR_ROWS),
    "gelu": partial(gelu, rows=FAR_ROWS),
    "softmax in a cache": partial(softmax, rows=NEAR_ROWS),
    "layernorm in a cache": partial(layernorm, rows=NEAR_ROWS),
    "gelu in a cache": partial(gelu, rows=NEAR_ROWS),
}


def integer_parts(kernel: str, rng: np.random.Generator) -> Parts:
    """The kernel on bytes: exact sums where there are such operators, else between a dequantization and a quantization."""
    if kernel == "conv":
        inputs, weights = {"x": integers(rng, np.uint8, 1, 128, 28, 28)}, {"w": integers(rng, np.int8, 128, 128, 3, 3)}
        return [node("ConvInteger", ["x", "w"], "y", pads=[1, 1, 1, 1])], inputs, weights
    if kernel == "matmul":
        inputs, weights = {"x": integers(rng, np.uint8, 512, 512)}, {"w": integers(rng, np.int8, 512, 512)}
        return [node("MatMulInteger", ["x", "w"], "y")], inputs, weights
    nodes, inputs, weights = KERNELS[kernel](rng)
    for each in nodes:
        each.input[:] = ["wide" if name == "x" else name for name in each.input]
        each.output[:] = ["full" if name == "y" else name for name in each.output]
    scales = {"si": np.array(0.03, np.float32), "so": np.array(1 / 127, np.float32), "zero": np.array(0, np.int8)}
    before, after = node("DequantizeLinear", ["x", "si", "zero"], "wide"), node("QuantizeLinear", ["full", "so", "zero"], "y")
    return [before, *nodes, after], {"x": integers(rng, np.int8, *inputs["x"].shape)}, weights | scales


def cases(kernel: str, rng: np.random.Generator) -> Iterator[tuple[str, onnx.ModelProto, Arrays]]:
    """Name, model and inputs of each case; f32 comes first."""
    nodes, inputs, weights = KERNELS[kernel](rng)
    for name, dtype in FLOATS.items():
        as_inputs, as_weights = ({key: np.asarray(a).astype(dtype) for key, a in arrays.items()} for arrays in (inputs, weights))
        yield name, model(nodes, as_inputs, as_weights), as_inputs
        if name in ("f32", "f16") and weights:
            literals = {key: a for key, a in as_weights.items() if key in ALWAYS_LITERAL}
            everything = as_inputs | {key: a for key, a in as_weights.items() if key not in literals}
            yield f"{name}, weights are inputs", model(nodes, everything, literals), everything
    nodes, inputs, weights = integer_parts(kernel, rng)
    yield "int8", model(nodes, inputs, weights), inputs


def table(kernel: str, target: str, seconds: float) -> None:
    steps: dict[str, Callable[[], object]] = {}
    notes, moved = {}, {}
    for name, proto, inputs in cases(kernel, np.random.default_rng(0)):
        module = tc.compile(proto, target, threads=1)
        arguments = [inputs[each.name] for each in module.inputs]
        output = module(*arguments)
        steps[name] = partial(module, *arguments, out=output)
        moved[name] = output.nbytes + sum(array.nbytes for array in arguments)
        notes[name] = ", ".join(each.rule for each in module.report().kernels)
    stream = stream_limit(Target.parse(target), "update", moved["f32"])
    timings = time_interleaved(steps | {"stream": stream.step}, Plan(budget_seconds=seconds))
    report(kernel, target, timings, stream, moved, notes)


def report(kernel: str, target: str, timings: Timings, stream: Limit, moved: dict[str, int], notes: dict[str, str]) -> None:
    share = float(np.median(timings.of("stream") / stream.size_bytes / (timings.of("f32") / moved["f32"])))
    at_stream = share >= AT_STREAM
    means = "seconds a byte count" if at_stream else "seconds count"
    print(f"\n{kernel}, {target}: f32 {timings.median('f32') * 1e3:.2f} ms, {share:.2f} of the stream's rate: {means}")
    for name in moved:
        seconds = timings.ratio(name, "f32")
        a_byte = seconds.median * moved["f32"] / moved[name]
        counted = f"a byte {a_byte:5.2f}" if at_stream else " " * 12
        print(f"  {name:24} {seconds!s:20} {counted}  {notes[name]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="for each table")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--targets", default="native,x86-64-v3")
    given = parser.parse_args()
    print(f"seconds over those of f32; {this_machine()}")
    for target in runnable(given.targets):
        for kernel in given.kernels.split(","):
            table(kernel, target, given.seconds)


if __name__ == "__main__":
    main()
