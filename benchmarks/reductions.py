"""Errors and speed of reductions: `python -m benchmarks.reductions`.

For every kind, layout, size and dtype: the error against float64 as a multiple of the stated bound (see "How accurate reductions are" in
README), onnxruntime's beside it, and the speed beside the fastest peer, in turns, as the median of pairwise ratios (above 1 `tc` is
faster). `--kinds`, `--layouts`, `--exponents`, `--dtypes` and `--peers` choose rows; `--exponents 28` needs 6 GiB.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import parser as onnx_parser

from benchmarks.runtimes import LOADERS
from tc.measure.harness import Plan, time_interleaved

U = 2.0**-24

NODES = {
    "sum": "ReduceSum(x, a)",
    "mean": "ReduceMean(x, a)",
    "l1": "ReduceL1(x, a)",
    "l2": "ReduceL2(x, a)",
    "log_sum": "ReduceLogSum(x, a)",
    "log_sum_exp": "ReduceLogSumExp(x, a)",
    "max": "ReduceMax(x, a)",
    "softmax": "Softmax<axis=AXIS>(x)",
    "log_softmax": "LogSoftmax<axis=AXIS>(x)",
    "argmax": "ArgMax<axis=AXIS>(x)",
    "layer_norm": "LayerNormalization<axis=AXIS>(x, s)",
    "mvn": "MeanVarianceNormalization<axes=AXES>(x)",
}
KEEPS_SHAPE = ("softmax", "log_softmax", "layer_norm", "mvn")

LAYOUTS: dict[str, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "all": lambda n: ((1, n), (1,)),
    "inner": lambda n: ((64, n // 64), (1,)),
    "outer": lambda n: ((n // 64, 64), (0,)),
    "middle": lambda n: ((16, n // 1024, 64), (1,)),
    "channels": lambda n: ((4, 16, n // 64), (0, 2)),
}
"""The shape for n elements, and the axes."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    kind: str
    layout: str
    exponent: int
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return LAYOUTS[self.layout](1 << self.exponent)[0]

    @property
    def axes(self) -> tuple[int, ...]:
        return LAYOUTS[self.layout](1 << self.exponent)[1]

    def __str__(self) -> str:
        return f"{self.kind:12s} {self.layout:8s} 2^{self.exponent:<2d} {self.dtype}"


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """What is asked for, as far as the operator takes the axes."""
    for kind in arguments.kinds:
        for layout in arguments.layouts:
            for exponent in arguments.exponents:
                for dtype in arguments.dtypes:
                    case = Case(kind, layout, exponent, dtype)
                    one_axis = len(case.axes) == 1 or "AXIS" not in NODES[kind]
                    last = kind != "layer_norm" or case.axes == (len(case.shape) - 1,)
                    if one_axis and last and min(case.shape) > 0:
                        yield case


def make_model(case: Case) -> onnx.ModelProto:
    """One operator; the axes are a constant."""
    element = {"f32": "float", "f16": "float16"}[case.dtype]
    dims = ", ".join(map(str, case.shape))
    kept = case.kind in KEEPS_SHAPE
    results = ", ".join("1" if k in case.axes and not kept else str(size) for k, size in enumerate(case.shape))
    node = NODES[case.kind].replace("AXIS", str(case.axes[0])).replace("AXES", str(list(case.axes)))
    before = f"a = Constant<value_ints={list(case.axes)}>()" if "(x, a)" in node else ""
    scale = f", {element}[{case.shape[-1]}] s" if "s)" in node else ""
    out = "int64" if case.kind == "argmax" else element
    text = f"g ({element}[{dims}] x{scale}) => ({out}[{results}] y) {{ {before} y = {node} }}"
    return onnx_parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]>\n{text}')


def make_inputs(case: Case, data: str) -> dict[str, np.ndarray]:
    """Numbers of one sign, which lose the most where one accumulator sums them, or of both, which cancel."""
    rng = np.random.default_rng(0)
    x = rng.random(case.shape, np.float32)
    if data == "cancelling":
        x -= np.float32(0.5)
    dtype = {"f32": np.float32, "f16": np.float16}[case.dtype]
    if case.dtype == "f16" and case.kind not in KEEPS_SHAPE:
        x *= np.float32(2.0 ** -max(0, case.exponent - 14))
    inputs = {"x": x.astype(dtype)}
    if case.kind == "layer_norm":
        inputs["s"] = np.ones(case.shape[-1], dtype)
    return inputs


def exact(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The value in float64, and the bound of the error."""
    axes, n = case.axes, math.prod(case.shape[axis] for axis in case.axes)
    steps = 4 + math.log2(n)
    x = x.astype(np.float64)
    size = np.abs(x).sum(axes, keepdims=True)
    match case.kind:
        case "sum":
            return x.sum(axes, keepdims=True), steps * U * size
        case "mean":
            mean = x.mean(axes, keepdims=True)
            return mean, steps * U * size / n + 2 * U * np.abs(mean)
        case "l1":
            return size, steps * U * size
        case "l2":
            length = np.sqrt((x * x).sum(axes, keepdims=True))
            return length, (steps / 2 + 2) * U * length
        case "log_sum":
            total = x.sum(axes, keepdims=True)
            log = np.log(total)
            return log, steps * U * size / np.abs(total) + 4 * U * np.maximum(np.abs(log), 1)
        case "max":
            return x.max(axes, keepdims=True), np.zeros_like(size)
        case "argmax":
            return np.expand_dims(x.argmax(axes[0]), axes[0]), np.zeros_like(size)
        case "layer_norm" | "mvn":
            epsilon = 1e-5 if case.kind == "layer_norm" else 1e-9
            centred = x - x.mean(axes, keepdims=True)
            deviation = np.sqrt((centred * centred).mean(axes, keepdims=True) + epsilon)
            value = centred / deviation
            return value, (steps + 3) * U * size / n / deviation + np.abs(value) * (steps / 2 + 8) * U
    top = x.max(axes, keepdims=True)
    log = np.log(np.exp(x - top).sum(axes, keepdims=True))
    if case.kind == "log_sum_exp":
        return top + log, (steps + 8) * U + 4 * U * np.abs(top + log)
    value = x - top - log
    if case.kind == "log_softmax":
        return value, (steps + 8) * U + 4 * U * (top - x + np.abs(value))
    return np.exp(value), (steps + 8 + top - x) * U * np.exp(value)


def excess(case: Case, inputs: dict[str, np.ndarray], got: np.ndarray) -> float:
    """The largest error over its bound; where the bound is 0, 0 for exact results. The last rounding of f16 is not counted."""
    want, bound = exact(case, inputs["x"])
    error = np.abs(got.astype(np.float64) - want)
    if case.dtype == "f16" and case.kind != "argmax":
        error = np.maximum(error - 2.0**-11 * np.abs(want) - 2.0**-25, 0)
    if not bound.any():
        return math.inf if error.any() else 0.0
    return float((error / np.maximum(bound, 1e-300)).max())


def measure(case: Case, arguments: argparse.Namespace) -> tuple[str, float]:
    """A row of the table, and the ratio of the best peer's seconds to `tc`'s."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(make_model(case), str(path))
        runtimes = {}
        for name in ("tc", *arguments.peers):
            try:
                runtimes[name] = LOADERS[name](path, arguments.threads)
            except Exception as error:
                if name == "tc":
                    raise
                print(f"# {case}: {name} refuses: {str(error).splitlines()[0][:80]}")
        errors = dict.fromkeys(runtimes, 0.0)
        for data in ("one sign", "cancelling") if case.kind != "log_sum" else ("one sign",):
            inputs = make_inputs(case, data)
            for name, runtime in runtimes.items():
                errors[name] = max(errors[name], excess(case, inputs, np.asarray(runtime.run(inputs)[0])))
        inputs = make_inputs(case, "cancelling" if case.kind != "log_sum" else "one sign")
        plan = Plan(slot_seconds=0.02, budget_seconds=arguments.seconds, min_rounds=7, max_rounds=25)
        timings = time_interleaved({name: runtime.bind(inputs) for name, runtime in runtimes.items()}, plan)
    ratios = {name: timings.ratio(name, "tc") for name in runtimes if name != "tc"}
    best = min(ratios, key=lambda name: ratios[name].median)
    others = "  ".join(f"{name} {errors[name]:9.3g}" for name in ratios)
    row = f"{case}  error/bound: tc {errors['tc']:6.3f}  {others}  speed: {ratios[best]} of {best}, {timings.median('tc') * 1e3:.3f} ms"
    return row, ratios[best].median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(NODES), choices=list(NODES))
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--exponents", nargs="+", type=int, default=[12, 16, 20, 24])
    parser.add_argument("--dtypes", nargs="+", default=["f32", "f16"], choices=["f32", "f16"])
    parser.add_argument("--peers", nargs="+", default=["onnxruntime"], choices=[name for name in LOADERS if name != "tc"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring, for each row")
    arguments = parser.parse_args()
    found = []
    for case in cases(arguments):
        row, ratio = measure(case, arguments)
        print(row, flush=True)
        found.append(ratio)
    if found:
        print(f"{len(found)} rows: geometric mean {math.exp(sum(map(math.log, found)) / len(found)):.2f}, worst {min(found):.2f}")


if __name__ == "__main__":
    main()
