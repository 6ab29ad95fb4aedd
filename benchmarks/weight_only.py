"""Products with weights of 8 and 4 bits beside the same product in f32, and beside onnxruntime's MatMulNBits, in turns.

    python -m benchmarks.weight_only                    all of it: WEIGHT_ONLY.json and WEIGHT_ONLY.md beside this file
    python -m benchmarks.weight_only --shapes 4096x4096 --rows 1,16 --output FOLDER

Calls go round as many copies of the weights as are 2 GiB in f32, so that each reads its weights from memory. The first result of each is
compared with float64 before anything is timed.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
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

SHAPES = ((4096, 4096), (4096, 11008))
ROWS = (1, 2, 4, 8, 16, 128)
MOST_ERROR = {"f32": 1e-5, "bytes": 2e-2}
"""Of a result, relative in L2, by the type of the activations."""


@dataclass(frozen=True)
class Form:
    """How weights are stored: `bits` (32: floats), and how many terms of a column share a scale (0: all). `level` 4: bytes times bytes."""

    name: str
    bits: int
    block: int = 0
    level: int = 0

    @property
    def activations(self) -> str:
        return "bytes" if self.level == 4 else "f32"


FLOATS = Form("f32", 32)
FORMS = (
    FLOATS,
    Form("int8, a scale per column", 8),
    Form("int4, blocks of 32", 4, 32),
    Form("int4, blocks of 128", 4, 128),
    Form("int4, blocks of 32, bytes", 4, 32, 4),
    Form("int4, blocks of 128, bytes", 4, 128, 4),
)


@dataclass(frozen=True)
class Row:
    """A measured cell: seconds of a call, the median, and quartiles of f32's over them. `per_row`: as many single rows' over them."""

    shape: str
    form: str
    rows: int
    runtime: str
    seconds: float
    over_f32: tuple[float, float, float]
    per_row: float
    threads: int


def make_model(form: Form, depth: int, columns: int, seed: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """A product of any number of rows with seeded weights, and these in f32, [k, n]."""
    rng = np.random.default_rng(0)
    domain = ""
    if form.bits == 32:
        weights = np.roll(rng.standard_normal((depth, columns), dtype=np.float32), seed, 0)
        arrays = {"w": weights}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    elif not form.block:
        q = np.roll(rng.integers(-128, 128, (depth, columns), dtype=np.int8), seed, 0)
        scale = rng.uniform(0.001, 0.02, columns).astype(np.float32)
        arrays, weights = {"q": q, "s": scale}, q * scale
        nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1), helper.make_node("MatMul", ["x", "w"], ["y"])]
    else:
        groups = depth // form.block
        packed = np.roll(rng.integers(0, 256, (columns, groups, form.block // 2), dtype=np.uint8), seed, 0)
        scale = rng.uniform(0.001, 0.02, (columns, groups)).astype(np.float32)
        halves = np.stack([packed & 15, packed >> 4], -1).reshape(columns, groups, form.block).astype(np.float32) - 8
        arrays, weights = {"q": packed, "s": scale}, (halves * scale[..., None]).reshape(columns, depth).T
        domain = "com.microsoft"
        attrs = {"K": depth, "N": columns, "bits": 4, "block_size": form.block, "accuracy_level": form.level}
        nodes = [helper.make_node("MatMulNBits", ["x", "q", "s"], ["y"], domain=domain, **attrs)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", size]) for n, size in (("x", depth), ("y", columns)))
    graph = helper.make_graph(nodes, "product", [x], [y], [numpy_helper.from_array(array, name) for name, array in arrays.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), weights


Run = Callable[[np.ndarray], np.ndarray]


def load_tc(model: onnx.ModelProto, threads: int) -> Run:
    return tc.compile(model, threads=threads)  # type: ignore[return-value]


def load_onnxruntime(model: onnx.ModelProto, threads: int) -> Run:
    try:
        import onnxruntime
    except ImportError as error:
        raise RuntimeMissingError(str(error)) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


LOADERS = {"tc": load_tc, "onnxruntime": load_onnxruntime}


def load_copies(name: str, form: Form, depth: int, columns: int, threads: int) -> list[Run]:
    """As many programs as there are copies; ValueError where the first does not compute the product."""
    count = -(-COPIED_BYTES // (4 * depth * columns))
    found = []
    for seed in range(count):
        model, weights = make_model(form, depth, columns, seed)
        found.append(LOADERS[name](model, threads))
        if not seed:
            x = np.random.default_rng(1).standard_normal((3, depth)).astype(np.float32)
            exact = x.astype(np.float64) @ weights.astype(np.float64)
            error = float(np.linalg.norm(found[0](x) - exact) / np.linalg.norm(exact))
            if not error <= MOST_ERROR[form.activations]:
                raise ValueError(f"{name}, {form.name}: the error is {error:.2g}")
    return found


def measure(depth: int, columns: int, rows: Sequence[int], peers: Sequence[str], threads: int, plan: Plan) -> list[Row]:
    """All forms of one shape."""
    programs: dict[tuple[str, str], Iterator[Run]] = {}
    for form in FORMS:
        for name in ("tc", *peers):
            if name == "tc" or form.bits == 4:
                programs[form.name, name] = itertools.cycle(load_copies(name, form, depth, columns, threads))
    found, single = [], {}
    for count in rows:
        x = np.random.default_rng(count).standard_normal((count, depth)).astype(np.float32)
        steps = {"|".join(key): (lambda copies=copies, x=x: next(copies)(x)) for key, copies in programs.items()}
        timings = time_interleaved(steps, plan)
        for (form_name, name) in programs:
            row = _row(timings, f"{depth}x{columns}", form_name, name, count, threads, single)
            print(as_line(row), flush=True)
            found.append(row)
    return found


def _row(
    timings: Timings, shape: str, form: str, runtime: str, rows: int, threads: int, single: dict[tuple[str, str], float]
) -> Row:
    key = f"{form}|{runtime}"
    seconds = timings.median(key)
    one = single.setdefault((form, runtime), seconds / rows)
    ratio = timings.ratio(f"{FLOATS.name}|tc", key)
    return Row(shape, form, rows, runtime, seconds, (ratio.low, ratio.median, ratio.high), rows * one / seconds, threads)


def as_line(row: Row) -> str:
    low, median, high = row.over_f32
    return (
        f"  {row.shape:11} {row.form:28} {row.rows:4} {row.runtime:12} {1e3 * row.seconds:8.3f}   "
        f"{median:5.2f} [{low:.2f}, {high:.2f}]   {row.per_row:5.2f}"
    )


HEAD = """# Products with weights of 8 and 4 bits

Made by `python -m benchmarks.weight_only`. Machine: {machine}.

Milliseconds of a call, the median; f32's over it in the same turns, median and quartiles (above 1: faster than f32); and the seconds of as
many single rows over it (above 1: faster than row by row). Each call reads its weights from memory: calls go round copies of 2 GiB in f32.
"bytes": activations are rounded to 8 bits, a scale for each block of a row (`accuracy_level=4`); else all but the weights is f32, which
bounds 128 rows by what f32 takes.

```
  shape       weights                      rows runtime            ms   over f32             single rows
"""


def write(rows: Sequence[Row], folder: Path) -> None:
    facts = report.describe_machine()
    data = {"version": 1, **facts, "rows": [asdict(row) for row in rows]}
    (folder / "WEIGHT_ONLY.json").write_text(json.dumps(data, indent=1) + "\n")
    machine = ", ".join(f"{value}" for value in facts.values())
    (folder / "WEIGHT_ONLY.md").write_text(HEAD.format(machine=machine) + "\n".join(map(as_line, rows)) + "\n```\n")


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
