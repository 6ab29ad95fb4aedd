"""Products with weights of 8 and 4 bits beside the same product in f32, and beside onnxruntime's MatMulNBits, in turns.

    python -m benchmarks.weight_only                    all of it: WEIGHT_ONLY.json and WEIGHT_ONLY.md beside this file
    python -m benchmarks.weight_only --shapes 4096x4096 --rows 1,16 --output FOLDER

Calls go round as many copies of the weights as are 2 GiB in f32, so that each reads its weights from memory. The first result of each is
compared with float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tc
from benchmarks import report
from tc.measure.harness import Plan, Timings, time_interleaved
from tc.measure.runtimes import RuntimeMissingError

COPIED_BYTES = 2 << 30
"""What all copies of the weights take in f32."""

TOGETHER = 4
"""Products of narrow weights in a program."""

SHAPES = ((4096, 4096), (4096, 11008))
ROWS = (1, 2, 4, 8, 16, 128)
MOST_ERROR = {"f32": 1e-5, "bf16": 4e-3, "bytes": 2e-2}
"""Of a result, relative in L2, by the type of the activations."""


@dataclass(frozen=True)
class Form:
    """How weights are stored: `bits` (32: floats), and how many terms of a column share a scale (0: all). `level` 4: bytes times bytes.
    `precision`: what tc is asked for."""

    name: str
    bits: int
    block: int = 0
    level: int = 0
    precision: str = "f32"

    @property
    def activations(self) -> str:
        return "bytes" if self.level == 4 else self.precision

    def runs_on(self, name: str) -> bool:
        """Whether there is something to compare: what onnxruntime has for such weights takes activations of f32, or makes bytes of them."""
        return name == "tc" or (self.bits == 4 and self.precision == "f32")


FLOATS = Form("f32", 32)
FORMS = (
    FLOATS,
    Form("int8, a scale per column", 8),
    Form("int4, blocks of 32", 4, 32),
    Form("int4, blocks of 128", 4, 128),
    Form("int4, blocks of 32, bytes", 4, 32, 4),
    Form("int4, blocks of 128, bytes", 4, 128, 4),
    Form("int8, a scale per column, bf16", 8, precision="bf16"),
    Form("int4, blocks of 32, bf16", 4, 32, precision="bf16"),
    Form("int4, blocks of 128, bf16", 4, 128, precision="bf16"),
)


@dataclass(frozen=True)
class Row:
    """A measured cell: seconds of a product, the median; quartiles of f32's over them; and the least seconds of all calls.

    `least_over_f32`: f32's least over that, which says more on a machine that others use; `per_row`: as many single rows' least over it.
    """

    shape: str
    form: str
    rows: int
    runtime: str
    seconds: float
    over_f32: tuple[float, float, float]
    least_seconds: float
    least_over_f32: float
    per_row: float
    threads: int


def make_model(form: Form, rows: int, depth: int, columns: int, seeds: Sequence[int]) -> tuple[onnx.ModelProto, np.ndarray]:
    """Products with seeded weights, and the first weights in f32, [k, n]."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    nodes = []
    if form.bits == 32:
        base = rng.standard_normal((depth, columns), dtype=np.float32)
        first = np.roll(base, seeds[0], 0)
    elif not form.block:
        base = rng.integers(-128, 128, (depth, columns), dtype=np.int8)
        arrays["s"] = rng.uniform(0.001, 0.02, columns).astype(np.float32)
        first = np.roll(base, seeds[0], 0) * arrays["s"]
    else:
        groups = depth // form.block
        base = rng.integers(0, 256, (columns, groups, form.block // 2), dtype=np.uint8)
        arrays["s"] = rng.uniform(0.001, 0.02, (columns, groups)).astype(np.float32)
        packed = np.roll(base, seeds[0], 0)
        halves = np.stack([packed & 15, packed >> 4], -1).reshape(columns, groups, form.block).astype(np.float32) - 8
        first = (halves * arrays["s"][..., None]).reshape(columns, depth).T
    for seed in seeds:
        name = f"w{seed}"
        arrays[name] = np.roll(base, seed, 0)
        if form.block:
            attrs = {"K": depth, "N": columns, "bits": 4, "block_size": form.block, "accuracy_level": form.level}
            nodes.append(helper.make_node("MatMulNBits", ["x", name, "s"], [f"y{seed}"], domain="com.microsoft", **attrs))
            continue
        if form.bits == 8:
            nodes.append(helper.make_node("DequantizeLinear", [name, "s"], [f"{name}_wide"], axis=1))
            name = f"{name}_wide"
        nodes.append(helper.make_node("MatMul", ["x", name], [f"y{seed}"]))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, depth])
    results = [helper.make_tensor_value_info(f"y{seed}", TensorProto.FLOAT, [rows, columns]) for seed in seeds]
    graph = helper.make_graph(nodes, "products", [x], results, [numpy_helper.from_array(array, name) for name, array in arrays.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), first


Run = Callable[[np.ndarray], Sequence[np.ndarray]]


@dataclass
class Programs:
    """Programs that are called one after the other; each computes `each` products."""

    runs: list[Run]
    each: int
    turn: int = 0

    def __call__(self, x: np.ndarray) -> Sequence[np.ndarray]:
        self.turn = (self.turn + 1) % len(self.runs)
        return self.runs[self.turn](x)


def load_tc(model: onnx.ModelProto, threads: int, precision: str) -> Run:
    compiled = tc.compile(model, threads=threads, precision=precision)
    return lambda x: list(compiled.run({"x": x}).values())


def load_onnxruntime(model: onnx.ModelProto, threads: int, precision: str) -> Run:
    assert precision == "f32", "there is nothing else"
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeMissingError(str(error)) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})  # type: ignore[no-any-return]


LOADERS = {"tc": load_tc, "onnxruntime": load_onnxruntime}


def load(name: str, form: Form, rows: int, depth: int, columns: int, threads: int) -> Programs:
    """As many products as there are copies, a few in a program of narrow weights: their calls then take about as long as those of floats.

    ValueError where the first is not what it is in float64.
    """
    count = -(-COPIED_BYTES // (4 * depth * columns))
    together = 1 if form.bits == 32 else TOGETHER
    seeds = [list(range(first, first + together)) for first in range(0, count, together)]
    runs = []
    for each in seeds:
        model, weights = make_model(form, rows, depth, columns, each)
        runs.append(LOADERS[name](model, threads, form.precision))
        if len(runs) == 1:
            x = np.random.default_rng(1).standard_normal((rows, depth)).astype(np.float32)
            exact = x.astype(np.float64) @ weights.astype(np.float64)
            error = float(np.linalg.norm(runs[0](x)[0] - exact) / np.linalg.norm(exact))
            if not error <= MOST_ERROR[form.activations]:
                raise ValueError(f"{name}, {form.name}: the error is {error:.2g}")
    return Programs(runs, len(seeds[0]))


def measure(depth: int, columns: int, rows: Sequence[int], peers: Sequence[str], threads: int, plan: Plan) -> list[Row]:
    """All forms of one shape."""
    single: dict[tuple[str, str], float] = {}
    return [row for count in rows for row in _measure_rows(depth, columns, count, peers, threads, plan, single)]


def _measure_rows(
    depth: int, columns: int, count: int, peers: Sequence[str], threads: int, plan: Plan, single: dict[tuple[str, str], float],
) -> list[Row]:  # fmt: skip
    """All forms with this number of rows; their weights, some 14 GB, are gone afterwards."""
    programs = {
        (form.name, name): load(name, form, count, depth, columns, threads)
        for form in FORMS
        for name in ("tc", *peers)
        if form.runs_on(name)
    }
    x = np.random.default_rng(count).standard_normal((count, depth)).astype(np.float32)
    steps = {"|".join(key): (lambda each=each: each(x)) for key, each in programs.items()}
    timings = time_interleaved(steps, plan, clock=time.thread_time if threads == 1 else time.perf_counter)
    found = []
    for key, each in programs.items():
        row = _row(timings, f"{depth}x{columns}", key, each.each, count, threads, single)
        print(as_line(row), flush=True)
        found.append(row)
    return found


def _row(
    timings: Timings, shape: str, key: tuple[str, str], products: int, rows: int, threads: int,
    single: dict[tuple[str, str], float],
) -> Row:  # fmt: skip
    seconds = timings.median("|".join(key)) / products
    least = timings.shortest("|".join(key)) / products
    one = single.setdefault(key, least / rows)
    ratio = timings.ratio(f"{FLOATS.name}|tc", "|".join(key))
    over = [each * products for each in (ratio.low, ratio.median, ratio.high)]
    floats = timings.shortest(f"{FLOATS.name}|tc")
    return Row(
        shape, key[0], rows, key[1], seconds, (over[0], over[1], over[2]), least, floats / least, rows * one / least, threads
    )  # fmt: skip


def as_line(row: Row) -> str:
    low, median, high = row.over_f32
    return (
        f"  {row.shape:11} {row.form:26} {row.rows:4} {row.runtime:12} {1e3 * row.least_seconds:8.3f} {row.least_over_f32:6.2f} "
        f"{row.per_row:6.2f}   {1e3 * row.seconds:8.3f}   {median:5.2f} [{low:.2f}, {high:.2f}]"
    )


HEAD = """# Products with weights of 8 and 4 bits

Made by `python -m benchmarks.weight_only`. Machine: {machine}.

Milliseconds of a product, of processor time where there is one thread: the least of all calls; f32's over it (above 1: faster than f32);
those of as many single rows over it (above 1: faster than row by row). Then medians, and f32's over them in the same turns with quartiles,
which others who use the machine blur. Each call reads its weights from memory: calls go round copies of 2 GiB in f32.
"bytes": activations are rounded to 8 bits, a scale for each block of a row (`accuracy_level=4`); "bf16": to bf16, by
`precision="bf16"`; else all but the weights is f32, which bounds 128 rows by what f32 takes.

```
  shape       weights                    rows runtime         least   f32  single     median   f32 over it
"""


def write(rows: Sequence[Row], folder: Path) -> None:
    facts = report.describe_machine()
    data = {"version": 1, **facts, "rows": [asdict(row) for row in rows]}
    report.replace_file(folder / "WEIGHT_ONLY.json", json.dumps(data, indent=1) + "\n")
    machine = ", ".join(f"{value}" for value in facts.values())
    report.replace_file(folder / "WEIGHT_ONLY.md", HEAD.format(machine=machine) + "\n".join(map(as_line, rows)) + "\n```\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_only", description="Measure products with narrow weights.")
    parser.add_argument("--shapes", default=",".join(f"{k}x{n}" for k, n in SHAPES), help="terms x columns")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--vs", default="onnxruntime", help="peers, or nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of rows")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the results")
    options = parser.parse_args(arguments)
    rows = []
    for shape in options.shapes.split(","):
        depth, columns = map(int, shape.split("x"))
        counts = [int(each) for each in options.rows.split(",")]
        peers = tuple(filter(None, options.vs.split(",")))
        rows += measure(depth, columns, counts, peers, options.threads, Plan(budget_seconds=options.seconds))
        write(rows, options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
