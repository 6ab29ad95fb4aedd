"""Measures single kernels beside libraries, peers and the limits of the machine, and keeps the tables.

    python -m benchmarks.kernel_tables                      every table, about five minutes
    python -m benchmarks.kernel_tables sgemm conv --seconds 2
    python -m benchmarks.kernel_tables native --seed 7      other operators, at sizes drawn around those of the table

writes KERNELS.json, KERNELS.md and kernels.svg beside this file; tables that are not measured again stay. Programs and limits take
turns within each round, so every ratio and every fraction of a limit compares what ran within the same fraction of a second.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

import tc
from benchmarks import kernel_report, kernels, native_kernels, zoo
from benchmarks.kernel_report import KernelRow
from benchmarks.processes import each_apart
from benchmarks.report import describe_machine
from benchmarks.run import fix_input_dims
from tc.measure.harness import Plan, Ratio, Step, time_interleaved
from tc.measure.machine import FORK_JOIN_JOBS, Limit, fma_limit, fork_join_programs, stream_limit
from tc.measure.runtimes import PEERS, as_runtime, reference_outputs, relative_error
from tc.target import native_target

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One kernel: a model of one or few operators, what it computes and moves at least, and the limit it is held against."""

    table: str
    name: str
    make: Callable[[np.random.Generator], onnx.ModelProto]
    flops: int = 0
    size_bytes: int = 0
    limit: str = "fma"


def matmul_case(m: int, k: int, n: int) -> Case:
    make = functools.partial(kernels.make_matmul, m=m, k=k, n=n, constant=False)
    return Case("sgemm", f"{m}x{k}x{n}", make, 2 * m * k * n, 4 * (m * k + k * n + m * n))


def conv_case(channels: int, size: int, filters: int, kernel: int, stride: int = 1) -> Case:
    out = -(-size // stride)
    make = functools.partial(kernels.make_conv, channels=channels, size=size, filters=filters, kernel=kernel, stride=stride)
    step = f" /{stride}" if stride > 1 else ""
    flops = 2 * kernel**2 * channels * filters * out**2
    moved = 4 * (channels * size**2 + kernel**2 * channels * filters + filters * out**2)
    return Case("conv", f"{kernel}x{kernel} {channels}-{filters} {size}²{step}", make, flops, moved)


def zoo_case(table: str, model: str, flops: int, elements: int, limit: str) -> Case:
    """A kernel of the zoo that touches `elements` floats."""
    return Case(table, model, lambda rng: onnx.load(zoo.path(model)), flops, 4 * elements, limit)


def stream_case(name: str, make: Callable[..., onnx.ModelProto], elements: int, flops: int, limit: str = "stream update") -> Case:
    return Case("stream", name, make, flops, 4 * elements, limit)


M16 = 1 << 24
SQUARES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048))
RAGGED = (
    *((127, 255, 511), (333, 777, 555), (1023, 1025, 1021), (100, 100, 100), (1000, 17, 1000), (17, 1000, 1000)),
    *((1000, 1000, 17), (197, 192, 768), (128, 384, 1536), (5, 512, 1376)),
)
RESNET = (
    *((64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3)),
    *((64, 56, 64, 1), (64, 56, 256, 1), (256, 56, 64, 1), (256, 56, 128, 1), (128, 28, 512, 1), (512, 28, 128, 1)),
    *((512, 28, 256, 1), (256, 14, 1024, 1), (1024, 14, 256, 1), (1024, 14, 512, 1), (512, 7, 2048, 1), (2048, 7, 512, 1)),
    *((128, 56, 128, 3, 2), (256, 28, 256, 3, 2), (512, 14, 512, 3, 2), (256, 56, 512, 1, 2), (512, 28, 1024, 1, 2)),
    *((1024, 14, 2048, 1, 2), (3, 224, 64, 7, 2)),
)
CASES: tuple[Case, ...] = (
    *(matmul_case(*shape) for shape in (*SQUARES, *RAGGED)),
    *(conv_case(*shape) for shape in RESNET),
    zoo_case("peers", "depthwise3x3_64_112", 2 * 9 * 64 * 112**2, 2 * 64 * 112**2, "stream update"),
    zoo_case("peers", "softmax_12x128x128", 0, 2 * 12 * 128**2, "stream update"),
    zoo_case("peers", "layernorm_128x768", 0, 2 * 128 * 768, "stream update"),
    zoo_case("peers", "attention_12x512x64", 4 * 12 * 512**2 * 64, 4 * 12 * 512 * 64, "fma"),
    zoo_case("peers", "gelu_16m", 0, 2 * M16, "stream update"),
    zoo_case("peers", "gemv_4096", 2 * 4096**2, 4096**2 + 2 * 4096, "stream read"),
    stream_case("relu, 16 M", lambda rng: kernels.make_elementwise("Relu", 1, M16), 2 * M16, M16),
    stream_case("add, 16 M", lambda rng: kernels.make_elementwise("Add", 2, M16), 3 * M16, M16),
    stream_case("sigmoid, 16 M", lambda rng: kernels.make_elementwise("Sigmoid", 1, M16), 2 * M16, 0),
    stream_case("gelu(x a + b) + c, 16 M", lambda rng: kernels.make_gelu_chain(M16), 2 * M16, 0),
    *(
        stream_case(
            f"gemv {k}x{n}", functools.partial(kernels.make_matmul, m=1, k=k, n=n), k * n + k + n, 2 * k * n, "stream read"
        )
        for k, n in ((4096, 4096), (2048, 8192), (8192, 2048))
    ),
)
SHAPES: Mapping[str, Sequence[Mapping[str, int]]] = {
    "minilm_dyn": [
        {"batch": batch, "seq": seq}
        for batch, seq in (
            *((1, 8), (1, 32), (1, 77), (1, 128), (1, 256), (1, 511), (2, 64), (4, 128), (8, 33), (16, 16)),
        )
    ],
    "ppocr_rec": [
        {"p2o.DynamicDimension.0": batch, "x.2": 48, "p2o.DynamicDimension.1": width}
        for batch, width in (
            *((1, 64), (1, 100), (1, 160), (1, 240), (1, 320), (1, 333), (1, 480), (1, 640), (2, 320), (4, 200)),
        )
    ],
}
TABLES = ("sgemm", "conv", "peers", "stream", "native", "dynamic", "overhead")
SAME = 1e-3
"""Programs whose results differ by more, relative to the largest, compute something else: they are not compared."""


@dataclass(frozen=True)
class Contender:
    """A program in turn with the others. One without `outputs` is a limit; its time counts `scale` times."""

    step: Step
    outputs: Callable[[], Sequence[np.ndarray]] | None = None
    scale: float = 1.0
    note: str = ""


def measure_case(case: Case, threads: int, plan: Plan) -> list[KernelRow]:
    """Compile, check and time one case: one row, for a matmul two (the right operand an input; a constant)."""
    rng = np.random.default_rng(0)
    model = case.make(rng)
    arrays = {
        value.name: rng.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    with tempfile.TemporaryDirectory() as folder, limited_threads(threads):
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        expected = reference_outputs(path, arrays)
        contenders = {"tc": tc_contender(model, arrays, threads)}
        if case.table == "sgemm":
            contenders["tc constant"] = tc_contender(with_constant(model, "w", arrays), {"x": arrays["x"]}, threads)
            contenders |= gemm_libraries(arrays["x"], arrays["w"], threads)
        else:
            contenders |= peer_contenders(path, arrays, threads)
        contenders |= limit_contender(case, threads)
        row = measure_contenders(case.table, case.name, threads, contenders, expected, plan)
    row = replace(row, flops=case.flops, size_bytes=case.size_bytes, limit=case.limit)
    return split_subjects(row) if case.table == "sgemm" else [row]


def measure_contenders(
    table: str, name: str, threads: int, contenders: Mapping[str, Contender], expected: Sequence[np.ndarray], plan: Plan
) -> KernelRow:
    """A row with the time of every contender and its ratio to each `tc` one; errors are against `expected`."""
    errors = {
        key: relative_error(contender.outputs(), expected) for key, contender in contenders.items() if contender.outputs
    }
    timings = time_interleaved({key: contender.step for key, contender in contenders.items()}, plan)
    ratios = {}
    for key in contenders:
        scale = contenders[key].scale
        ratio = timings.ratio(key, "tc")
        ratios[key] = Ratio(scale * ratio.median, scale * ratio.low, scale * ratio.high)
        if "tc constant" in contenders:
            ratio = timings.ratio(key, "tc constant")
            ratios[f"{key}/constant"] = Ratio(scale * ratio.median, scale * ratio.low, scale * ratio.high)
    seconds = {key: contenders[key].scale * timings.median(key) for key in contenders}
    shortest = {key: contenders[key].scale * timings.shortest(key) for key in contenders}
    rule = "; ".join(contender.note for contender in contenders.values() if contender.note)
    facts = describe_machine()
    return KernelRow(table, name, threads, seconds, shortest, ratios, errors, rule=rule, rounds=len(timings.seconds), **facts)


def split_subjects(row: KernelRow) -> list[KernelRow]:
    """The row of a matmul as two rows, one for each program of `tc`, the other program left out."""
    rules = row.rule.split("; ")
    found = []
    for subject, other, suffix in (("tc", "tc constant", ""), ("tc constant", "tc", "/constant")):
        keys = [key for key in row.seconds if key not in (subject, other)]
        found.append(
            replace(
                row,
                table="sgemm" if subject == "tc" else "sgemm_constant",
                seconds={"tc": row.seconds[subject], **{key: row.seconds[key] for key in keys}},
                shortest={"tc": row.shortest[subject], **{key: row.shortest[key] for key in keys}},
                ratios={key: row.ratios[key + suffix] for key in keys},
                errors={"tc": row.errors[subject], **{key: row.errors[key] for key in keys if key in row.errors}},
                rule=rules[0] if subject == "tc" else rules[-1],
            )
        )
    return found


def tc_contender(model: onnx.ModelProto | Path, arrays: Arrays, threads: int) -> Contender:
    compiled = tc.compile(model, threads=threads)
    runtime = as_runtime(compiled, 0.0)
    rules = ", ".join(kernel.rule for kernel in compiled.report().kernels)
    return Contender(runtime.bind(arrays), lambda: runtime.run(arrays), note=rules)


def peer_contenders(path: Path, arrays: Arrays, threads: int) -> dict[str, Contender]:
    loaded = {name: load(path, threads) for name, load in PEERS.items()}
    return {
        name: Contender(runtime.bind(arrays), functools.partial(runtime.run, arrays)) for name, runtime in loaded.items()
    }


def gemm_libraries(x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Contender]:
    """numpy's matrix product (OpenBLAS) and torch's (MKL), writing to arrays allocated once."""
    import torch

    torch.set_num_threads(threads)
    mine = np.empty((x.shape[0], w.shape[1]), np.float32)
    left, right, out = torch.from_numpy(x), torch.from_numpy(w), torch.empty(mine.shape)

    def multiply() -> object:
        return torch.mm(left, right, out=out)

    return {
        "numpy": Contender(lambda: np.matmul(x, w, out=mine), lambda: [np.matmul(x, w)]),
        "torch": Contender(multiply, lambda: [torch.mm(left, right).numpy()]),
    }


def limit_contender(case: Case, threads: int) -> dict[str, Contender]:
    """The loop of the limit, its time scaled to the work of the case. A stream is as long as what the kernel touches."""
    limit = limit_of(case.limit, threads, case.size_bytes)
    scale = case.flops / limit.flops if limit.flops else case.size_bytes / limit.size_bytes
    return {case.limit: Contender(limit.step, scale=scale)}


def limit_of(name: str, threads: int, size_bytes: int) -> Limit:
    target = native_target()
    return fma_limit(target, threads) if name == "fma" else stream_limit(target, name.split()[1], size_bytes, threads)


def with_constant(model: onnx.ModelProto, name: str, arrays: Arrays) -> onnx.ModelProto:
    """`model` with the input `name` made an initializer."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = [value for value in changed.graph.input if value.name != name]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    changed.graph.initializer.append(onnx.numpy_helper.from_array(arrays[name], name))
    return changed


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """No library uses more threads than `threads`."""
    import threadpoolctl

    with threadpoolctl.threadpool_limits(threads):
        yield


def measure_dynamic(model: str, dims: Mapping[str, int], threads: int, plan: Plan) -> list[KernelRow]:
    """One build for any shape beside the build for just this shape."""
    arrays = zoo.random_inputs(model, np.random.default_rng(0), {**zoo.default_dims(model), **dims})
    compiled = dynamic_build(model, threads)
    runtime = as_runtime(compiled, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        fixed = fix_input_dims(zoo.path(model), arrays, Path(folder))
        expected = reference_outputs(fixed, arrays)
        contenders = {
            "tc": Contender(runtime.bind(arrays), lambda: runtime.run(arrays)),
            "static build": replace(tc_contender(fixed, arrays, threads), note=""),
        }
    name = f"{model} {'x'.join(map(str, dims.values()))}"
    return [measure_contenders("dynamic", name, threads, contenders, expected, plan)]


@functools.cache
def dynamic_build(model: str, threads: int) -> tc.CompiledModule:
    return tc.compile(zoo.path(model), threads=threads)


def measure_native(table: str, name: str, threads: int, plan: Plan) -> list[KernelRow]:
    """One of `native_kernels` beside every program that runs it and gives the same, and a stream of its bytes where that is the limit."""
    model, arrays, kernel, graph = native_kernels.make(name)
    with tempfile.TemporaryDirectory() as folder, limited_threads(threads):
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        expected = kernel.exact(graph) if kernel.exact else reference_outputs(path, arrays)
        contenders = {"tc": tc_contender(model, arrays, threads)}
        contenders |= library_contenders(kernel.library(arrays) if kernel.library else {}, threads)
        refused = []
        for peer, load in PEERS.items():
            try:
                runtime = load(path, threads)
                error = relative_error(runtime.run(arrays), expected)
            except RuntimeError:  # it has no such operator
                refused.append(f"{peer} does not run it")
                continue
            if error <= SAME:
                contenders[peer] = Contender(runtime.bind(arrays), functools.partial(runtime.run, arrays))
            else:
                refused.append(f"{peer} gives something else")
        case = Case(table, name, lambda rng: model, size_bytes=graph.touched, limit="stream update" if graph.touched else "")
        contenders |= limit_contender(case, threads) if graph.touched else {}
        row = measure_contenders(table, name, threads, contenders, expected, plan)
    return [replace(row, size_bytes=case.size_bytes, limit=case.limit, left_out=tuple(refused))]


def library_contenders(found: Mapping[str, Callable[[], Sequence[np.ndarray]]], threads: int) -> dict[str, Contender]:
    """Calls of numpy and torch."""
    if "torch" in found:
        import torch

        torch.set_num_threads(threads)
    return {name: Contender(call, call) for name, call in found.items()}


def measure_overheads(threads: int, plan: Plan) -> list[KernelRow]:
    """A call of relu on 32 floats from Python, outputs allocated by the callee; a parallel loop with nothing to do, on two threads."""
    model = kernels.make_elementwise("Relu", 1, 4, 8)
    arrays = {"x0": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        expected = reference_outputs(path, arrays)
        compiled = tc.compile(model, threads=threads)
        peers = {name: load(path, threads) for name, load in PEERS.items()}
    x = arrays["x0"]
    contenders = {"tc": Contender(lambda: compiled(x), lambda: [compiled(x)])}
    for name, runtime in peers.items():
        run = functools.partial(runtime.run, arrays)
        contenders[name] = Contender(run, run)
    call = measure_contenders("overhead", "call of one node", threads, contenders, expected, plan)
    return [call, measure_fork_join(plan)]


def measure_fork_join(plan: Plan) -> KernelRow:
    """What a parallel loop on two threads takes beyond the share of each: the least time with both, less the least with one.

    The least, as any other program on the machine that takes a core for a while makes one thread wait for the other.
    """
    alone, together = fork_join_programs(2)
    timings = time_interleaved({"alone": alone.step, "together": together.step}, plan)
    least = {"tc": (timings.shortest("together") - timings.shortest("alone")) / FORK_JOIN_JOBS}
    return KernelRow("overhead", "fork and join", 2, least, least, {}, {}, rounds=len(timings.seconds), **describe_machine())


def measure_job(table: str, name: str, threads: int, plan: Plan) -> list[KernelRow]:
    """The rows of one job of `jobs_of`; runs in the measuring process."""
    match table:
        case "dynamic":
            model, index = name.split()
            return measure_dynamic(model, SHAPES[model][int(index)], threads, plan)
        case "overhead":
            return measure_overheads(threads, plan)
        case "native" | "drawn":
            return measure_native(table, name, threads, plan)
    case = next(case for case in CASES if (case.table, case.name) == (table, name))
    return measure_case(case, threads, plan)


def jobs_of(table: str, seed: int | None = None) -> list[str]:
    """Names of what is measured one by one; the seed is that of the table of drawn sizes."""
    match table:
        case "dynamic":
            return [f"{model} {index}" for model, shapes in SHAPES.items() for index in range(len(shapes))]
        case "overhead":
            return ["all"]
        case "native" | "drawn":
            return native_kernels.names(seed)
    return [case.name for case in CASES if case.table == table]


def measure_table(table: str, names: Sequence[str], threads: int, plan: Plan) -> Iterator[list[KernelRow]]:
    """The rows of each job, measured in a process apart."""
    measure = functools.partial(measure_job, table, threads=threads, plan=plan)
    return each_apart(measure, names, lambda name, problem: [_failed(table, name, threads, problem)])


def _failed(table: str, name: str, threads: int, problem: str) -> KernelRow:
    return KernelRow(table, name, threads, {}, {}, {}, {}, problem=problem, **describe_machine())


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_tables", description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name contains this")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of every program (default: 1)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row (default: 2)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--seed", type=int, help="sizes of the table native are drawn around its own, and kept apart")
    parser.add_argument("--render", action="store_true", help="measure nothing, write page and picture from the rows there are")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    unknown = set(options.tables).difference(TABLES)
    if unknown:
        print(f"kernel_tables: no table {min(unknown)!r}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 1
    start = time.perf_counter()
    plan = Plan(slot_seconds=0.015, budget_seconds=options.seconds, min_rounds=7, max_rounds=60)
    for table in () if options.render else options.tables or TABLES:
        if table == "native" and options.seed is not None:
            table = "drawn"
            kernel_report.drop(options.output, table, options.threads)
        names = [name for name in jobs_of(table, options.seed) if options.only in name]
        for rows in measure_table(table, names, options.threads, plan):
            kernel_report.update(options.output, rows)
            for row in rows:
                print(kernel_report.as_line(row), flush=True)
    kernel_report.update(options.output, ())
    minutes = (time.perf_counter() - start) / 60
    print(f"written in {minutes:.1f} minutes: {options.output / 'KERNELS.md'}")
    return 0




if __name__ == "__main__":
    sys.exit(main())
