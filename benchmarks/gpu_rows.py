"""The rows of `benchmarks.gpu`: what each measures. Runs in a process that may die; what is missing is said, no number takes its place."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tc
from benchmarks import half, targets, zoo
from benchmarks.torch_graph import torch_module
from tc.check.compare import difference
from tc.codegen.backends import backend_of
from tc.codegen.cuda.compile import keep_binaries
from tc.compiler import run_stages
from tc.errors import TcError
from tc.interp.graph import run_function
from tc.ir.dtype import from_numpy
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.measure.harness import Plan, time_interleaved
from tc.ops.build import GraphBuilder
from tc.ops.registry import OPS
from tc.target import Target
from tc.target.detect import cuda_driver_name

HALF_ERROR = 0.02
"""Of results in f16, relative to the largest: dozens of layers round to 11 bits, each in another order. Or twice torch's own error."""

BATCH_SECONDS = 0.004
"""Of calls that are timed together, with one wait for the device behind them."""

OPERATORS_A_ROW = 12

WORDS = ("eager", "compile", "graphs", "max")
"""The ways of torch to run a model."""


@dataclass(frozen=True)
class Settings:
    """What all rows share. `target`: text; `tune_seconds`: for rows that tune, 0 for none; `prebuilt`: a folder of binaries, or ""."""

    target: str
    tune_seconds: float
    prebuilt: str
    folder: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        return Settings(**json.loads(text))


@dataclass(frozen=True)
class Row:
    """One row. `seconds` it is expected to take, without tuning; `measure` gives what was found."""

    measure: Callable[[Settings], dict[str, Any]]
    seconds: float = 20.0
    is_tuned: bool = False


class MissingError(Exception):
    """Why something cannot be measured here."""


def measure_row(name: str, settings: Settings) -> dict[str, Any]:
    """A row's result with when and on what it was measured, or with the problem that left it without one."""
    start, when = time.monotonic(), datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found: dict[str, Any] = {"row": name, "when": when, "target": settings.target}
    if settings.prebuilt:
        keep_binaries(Path(settings.prebuilt))
    try:
        found |= ROWS[name].measure(settings)
        found["facts"] = facts(settings.target)
    except Exception as error:  # whatever a row brings about is its result
        found["problem"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
    return found | {"took": round(time.monotonic() - start, 1)}


@cache
def facts(target: str) -> dict[str, str]:
    """The device, its driver, and the versions of everything that takes part."""
    device = Target.parse(target).device
    found = {"device": device.product if device is not None else "", "arch": device.arch if device is not None else ""}
    found |= {"python": platform.python_version(), "host": platform.processor() or platform.machine()}
    for package in ("tc", "torch", "triton", "cupy-cuda13x", "cuda-bindings", "nvidia-cuda-nvrtc", "onnxruntime", "numpy", "llvmlite"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    if device is not None and device.kind == "cuda":
        with contextlib.suppress(TcError):
            found["driver"] = cuda_driver_name()
    return found


@cache
def cuda_torch() -> Any:
    """torch with a CUDA device; MissingError without."""
    try:
        import torch
    except ImportError:
        raise MissingError("torch is not installed") from None
    if not torch.cuda.is_available():
        raise MissingError("torch has no CUDA device")
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False  # sums in f32, as tc's
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def is_cuda(settings: Settings) -> bool:
    return Target.parse(settings.target).kind == "cuda"


# -- programs


@dataclass
class Bench:
    """Programs to be timed in turns: functions that begin a call, and one that waits. `missing`: why others are not there."""

    steps: dict[str, Callable[[], object]]
    wait: Callable[[], object]
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Callable[[], object]]) -> None:
        """A program, if it can be made and run."""
        try:
            step = make()
            step()
            self.wait()
            self.steps[name] = step
        except Exception as error:
            self.missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200] if str(error) else type(error).__name__


def timed(bench: Bench, seconds: float = 6.0) -> dict[str, Any]:
    """Seconds of a call of each program, and the ratios of each to tc's with their quartiles: above 1 tc is faster."""
    counts = {name: _calls(step, bench.wait) for name, step in bench.steps.items()}

    def batch(name: str) -> None:
        for _ in range(counts[name]):
            bench.steps[name]()
        bench.wait()

    plan = Plan(slot_seconds=BATCH_SECONDS, settle_seconds=BATCH_SECONDS / 2, budget_seconds=seconds, min_rounds=7, max_rounds=60)
    timings = time_interleaved({name: partial(batch, name) for name in bench.steps}, plan, wait=lambda: None)
    each = {name: timings.of(name) / counts[name] for name in bench.steps}
    ratios = {name: np.percentile(each[name] / each["tc"], (50, 25, 75)).tolist() for name in each if name != "tc"}
    return {"seconds": {name: float(np.median(of)) for name, of in each.items()}, "ratios": ratios, "missing": bench.missing}


def _calls(step: Callable[[], object], wait: Callable[[], object]) -> int:
    """How many calls fill a batch."""
    step()
    wait()
    start = time.perf_counter()
    for _ in range(3):
        step()
    wait()
    return max(1, min(2000, round(3 * BATCH_SECONDS / max(time.perf_counter() - start, 1e-7))))


def compiled(model: onnx.ModelProto, settings: Settings, tune: str | None = None) -> Any:
    return tc.compile(model, settings.target, tune=tune)


def on_device(arrays: Mapping[str, np.ndarray], settings: Settings) -> tuple[list[Any], Callable[[], object]]:
    """The inputs of tc and its peers, on the device where torch can put them there, and what waits for the device."""
    if is_cuda(settings):
        with contextlib.suppress(MissingError):
            torch = cuda_torch()
            return [torch.from_numpy(array).cuda() for array in arrays.values()], torch.cuda.synchronize
    return list(arrays.values()), lambda: None


# -- right or wrong


def reference(model: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], float, str]:
    """Expected results, what they may be off by relative to the largest, and whose they are: torch's in float64 on a CUDA device."""
    with contextlib.suppress(MissingError):
        torch = cuda_torch()
        given = [torch.from_numpy(array).cuda() for array in arrays.values()]
        with torch.inference_mode():
            expected = [each.cpu().numpy() for each in torch_module(model, "cuda", precise=True)(*given)]
            eager = [each.float().cpu().numpy() for each in torch_module(model, "cuda")(*given)]
        return expected, max(HALF_ERROR, 2 * relative_error(eager, expected)), "torch in float64"
    try:
        import onnxruntime
    except ImportError:
        raise MissingError("onnxruntime is not installed") from None
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(each) for each in session.run(None, dict(arrays))], HALF_ERROR, "onnxruntime"


def relative_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest expected number, of the worst result; infinite where something is not finite."""
    worst = 0.0
    for got, want in zip(found, expected, strict=True):
        one, other = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
        if one.shape != other.shape or not np.isfinite(one).all():
            return math.inf
        worst = max(worst, float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-30)))
    return worst


def check(name: str, settings: Settings) -> dict[str, Any]:
    """tc's results beside the reference's, and whether a second run gives the same bits."""
    what = half.entry(name)
    model = what.make()
    arrays = half.random_inputs(model, what.fill)
    expected, bound, whose = reference(model, arrays)
    module = compiled(model, settings)
    found, again = (list(module.run(arrays).values()) for _ in range(2))
    error = relative_error(found, expected)
    same = all(one.tobytes() == other.tobytes() for one, other in zip(found, again, strict=True))
    right = error <= bound and same
    return {"right": right, "error": min(error, 1e30), "bound": bound, "reference": whose, "same_bits": same}


def check_zoo(name: str, settings: Settings) -> dict[str, Any]:
    """A model of the zoo, in f32."""
    said = targets.check(name, settings.target)
    return {"right": said.startswith("right"), "said": said}


def check_operators(number: int, settings: Settings) -> dict[str, Any]:
    """The first sample of some operators beside the interpreter's results."""
    names = sorted(name for name in OPS if OPS[name].compute is not None)[number * OPERATORS_A_ROW : (number + 1) * OPERATORS_A_ROW]
    problems = {}
    for name in names:
        problem = _operator_problem(name, settings)
        if problem is not None:
            problems[name] = problem
    return {"right": not problems, "said": f"{len(names) - len(problems)} of {len(names)}", "problems": problems}


def _operator_problem(name: str, settings: Settings) -> str | None:
    arrays, attrs = next(iter(OPS[name].samples(np.random.default_rng(7))))
    builder = GraphBuilder()
    types = [None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in arrays]
    args = [None if type_ is None else builder.param(f"x{k}", type_) for k, type_ in enumerate(types)]
    module = IRModule((builder.function("main", builder.call_many(name, *args, **attrs)),))
    given = [array for array in arrays if array is not None]
    try:
        expected = run_function(module, "main", given)
        found = tc.compile(module, settings.target).run({f"x{k}": a for k, a in enumerate(arrays) if a is not None})
    except TcError as error:
        return f"{type(error).__name__}: {error}"[:200]
    reads_floats = any(from_numpy(a.dtype).is_float for a in given)
    for want, got in zip(expected, found.values(), strict=True):
        problem = difference(np.asarray(want), np.asarray(got), from_numpy(np.asarray(want).dtype), reads_floats)
        if problem is not None:
            return problem
    return None


# -- how fast


def measure_model(name: str, peers: Sequence[str], settings: Settings, tune: str | None = None) -> dict[str, Any]:
    """A model or kernel beside some of its peers. `tune`: a database; then the untuned program is a peer, too."""
    what = half.entry(name)
    model = what.make()
    arrays = half.random_inputs(model, what.fill)
    values, wait = on_device(arrays, settings)
    module = compiled(model, settings, tune)
    if not set(WORDS).isdisjoint(peers):  # else what differs between models is dynamic to torch, and at the ninth it gives up compiling
        cuda_torch().compiler.reset()
    bench = Bench({"tc": lambda: module(*values)}, wait)
    if tune is not None:
        untuned = compiled(model, settings)
        bench.add("untuned", lambda: lambda: untuned(*values))
    for peer in peers:
        bench.add(peer, partial(_PEERS[peer], name, model, values))
    return timed(bench) | {"flops": what.flops, "bytes": what.bytes}


_TORCH_MODES = {"max": "max-autotune", "graphs": "reduce-overhead", "compile": None}


def _torch_model(mode: str, name: str, model: onnx.ModelProto, values: list[Any]) -> Callable[[], object]:
    torch = cuda_torch()
    module, inputs = torch_module(model, "cuda"), list(values)
    if mode == "max":
        module = module.to(memory_format=torch.channels_last)
        inputs = [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in inputs]
    if mode != "eager":
        module = torch.compile(module, mode=_TORCH_MODES[mode], fullgraph=True, dynamic=False)

    def call() -> object:
        with torch.inference_mode():
            return module(*inputs)

    return call


def _sdpa(backend: str, name: str, model: onnx.ModelProto, values: list[Any]) -> Callable[[], object]:
    torch = cuda_torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen, causal = getattr(SDPBackend, backend), name.endswith("causal")
    query, key, value = values

    def call() -> object:
        with torch.inference_mode(), sdpa_kernel([chosen]):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return call


def _cublas(name: str, model: onnx.ModelProto, values: list[Any]) -> Callable[[], object]:
    torch = cuda_torch()
    out = torch.matmul(*values)
    return lambda: torch.matmul(*values, out=out)


def _copy(name: str, model: onnx.ModelProto, values: list[Any]) -> Callable[[], object]:
    """A copy on the device that reads and writes as many bytes as the program has to."""
    torch = cuda_torch()
    source = torch.randint(0, 255, (int(half.entry(name).bytes) // 2,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


_PEERS: dict[str, Callable[[str, onnx.ModelProto, list[Any]], Callable[[], object]]] = {
    **{mode: partial(_torch_model, mode) for mode in WORDS},
    "flash": partial(_sdpa, "FLASH_ATTENTION"),
    "cudnn": partial(_sdpa, "CUDNN_ATTENTION"),
    "cublas": _cublas,
    "copy": _copy,
}


def tuned(name: str, peers: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Tune within the budget, then measure beside peers and the untuned program."""
    database = Path(settings.folder) / "tuned.jsonl"
    found = tc.tune(half.entry(name).make(), settings.tune_seconds, target=settings.target, database=database)
    trials = sum(task.trials for task in found.result.tasks)
    return measure_model(name, peers, settings, str(database)) | {"trials": trials, "tune_seconds": settings.tune_seconds}


# -- the device itself


def peak_matmul(settings: Settings) -> dict[str, Any]:
    """What cuBLAS reaches on random 16-bit floats with sums in f32: the peak that products are set in relation to."""
    torch = cuda_torch()
    n = 8192
    a, b = (torch.randn((n, n), dtype=torch.float16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    found = timed(Bench({"tc": lambda: torch.matmul(a, b, out=out)}, torch.cuda.synchronize))
    return {"flops_per_second": 2.0 * n**3 / found["seconds"]["tc"], "seconds": {"cublas": found["seconds"]["tc"]}}


def peak_copy(settings: Settings) -> dict[str, Any]:
    """What a copy of a gigabyte on the device moves, bytes read and bytes written."""
    torch = cuda_torch()
    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    found = timed(Bench({"tc": lambda: target.copy_(source)}, torch.cuda.synchronize))
    return {"bytes_per_second": 2.0 * source.numel() / found["seconds"]["tc"], "seconds": {"copy": found["seconds"]["tc"]}}


# -- launching


def _host_times(steps: Mapping[str, Callable[[], object]], wait: Callable[[], object]) -> dict[str, Any]:
    """Seconds of the host for a call, the device's work not waited for while the clock runs."""
    count = 20

    def batch(name: str) -> None:
        for _ in range(count):
            steps[name]()

    plan = Plan(slot_seconds=0.0, settle_seconds=0.0, budget_seconds=4.0, min_rounds=60, max_rounds=400)
    timings = time_interleaved({name: partial(batch, name) for name in steps}, plan, wait=wait)
    each = {name: timings.of(name) / count for name in steps}
    ratios = {name: np.percentile(each[name] / each["tc"], (50, 25, 75)).tolist() for name in each if name != "tc"}
    return {"seconds": {name: float(np.median(of)) for name, of in each.items()}, "ratios": ratios, "missing": {}}


_CUPY_KERNEL = 'extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x] * 2.0f; }'


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        raise MissingError("cupy is not installed") from None
    return cupy


def _chain_of(length: int) -> onnx.ModelProto:
    """Products that depend on each other, so that each is a launch."""
    from benchmarks.onnx_builder import F32, OnnxBuilder

    g = OnnxBuilder(f"chain_{length}")
    value = g.input("x", F32, (32, 32))
    for _ in range(length):
        value = g.op("MatMul", value, g.const(np.eye(32, dtype=np.float32)))
    g.output(value, "y", F32, (32, 32))
    return g.model()


def launch_graph(settings: Settings) -> dict[str, Any]:
    """The host's time for a call of a module of 24 launches that the driver has as a graph, beside cupy's launch of a graph as long."""
    torch, cupy = cuda_torch(), _cupy()
    module, x = compiled(_chain_of(24), settings), torch.eye(32, device="cuda")
    out = torch.empty_like(x)
    kernel, a, b = cupy.RawKernel(_CUPY_KERNEL, "twice"), cupy.zeros(32, cupy.float32), cupy.zeros(32, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        kernel((1,), (32,), (a, b))  # compiled before anything is captured
        stream.synchronize()
        stream.begin_capture()
        for _ in range(24):
            kernel((1,), (32,), (a, b))
        graph = stream.end_capture()
    steps = {"tc": lambda: module(x, out=out), "cupy": lambda: graph.launch(stream)}
    for _ in range(4):
        steps["tc"]()
    return _host_times(steps, torch.cuda.synchronize)


def launch_kernel(settings: Settings) -> dict[str, Any]:
    """The host's time for a call of a module of one kernel, beside cupy's RawKernel."""
    torch, cupy = cuda_torch(), _cupy()
    module, x = compiled(half.make_elementwise("Relu", 1, 32), settings), torch.ones(32, device="cuda")
    out = torch.empty_like(x)
    kernel, a, b = cupy.RawKernel(_CUPY_KERNEL, "twice"), cupy.zeros(32, cupy.float32), cupy.zeros(32, cupy.float32)
    return _host_times({"tc": lambda: module(x, out=out), "cupy": lambda: kernel((1,), (32,), (a, b))}, torch.cuda.synchronize)


# -- all rows


def _peers_of(name: str) -> tuple[str, ...]:
    if "matmul" in name:
        return ("cublas",)
    if "attention" in name:
        return ("flash", "cudnn")
    return ("copy", "compile")


_ZOO = ("resnet50", "densenet121", "squeezenet", "shufflenet", "mobilenet_v2", "vit_tiny", "llama_prefill", "llama_decode")
"""Models in f32 that need no network."""


def _rows() -> Iterator[tuple[str, Row]]:
    yield "peak/matmul", Row(peak_matmul)
    yield "peak/copy", Row(peak_copy)
    for name in (*half.SMALL, *half.KERNELS):
        yield f"check/{name}", Row(partial(check, name), 15)
    for name in half.KERNELS:
        yield f"kernel/{name}", Row(partial(measure_model, name, _peers_of(name)), 40)
    for name in half.SMALL:
        yield f"kernel/{name}", Row(partial(measure_model, name, ("eager",)), 15)
    yield "launch/graph", Row(launch_graph, 20)
    yield "launch/kernel", Row(launch_kernel, 15)
    for name in half.MODELS:
        yield f"check/{name}", Row(partial(check, name), 30)
    for name in half.MODELS:
        yield f"model/{name}", Row(partial(measure_model, name, ("eager", "compile", "graphs")), 90)
    for name in (*half.KERNELS, *half.MODELS):
        yield f"tuned/{name}", Row(partial(tuned, name, _peers_of(name) if name in half.KERNELS else ("compile",)), 100, is_tuned=True)
    yield "tuned/small_matmul", Row(partial(tuned, "small_matmul", ()), 30, is_tuned=True)
    for name in half.MODELS:
        yield f"model_max/{name}", Row(partial(measure_model, name, ("max",)), 200)
    for name in _ZOO:
        yield f"check/f32_{name}", Row(partial(check_zoo, name), 30)
    count = sum(OPS[name].compute is not None for name in OPS)
    for number in range(-(-count // OPERATORS_A_ROW)):
        yield f"check/operators_{number}", Row(partial(check_operators, number), 60)


ROWS: Mapping[str, Row] = dict(_rows())
"""By name, in the order in which they are worth measuring."""


def prebuild(target: Target, folder: Path, patterns: Sequence[str]) -> int:
    """Compile the kernels of all models and kernels for a target into a folder; prints a line for each. Returns the exit code."""
    import fnmatch

    keep_binaries(folder)
    backend, bad = backend_of(target), 0
    models: dict[str, Callable[[], Any]] = {name: half.entry(name).make for name in (*half.KERNELS, *half.MODELS, *half.SMALL)}
    models |= {f"f32_{name}": partial(zoo.path, name) for name in _ZOO}
    for name, make in models.items():
        if patterns and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        start = time.monotonic()
        stages = run_stages(make(), target)
        for kernel in {kernel.symbol: kernel for kernel in stages.kernels.values()}.values():
            try:
                backend.make([backend.emit(kernel.final, kernel.symbol, target)], True, target)
            except TcError as error:
                bad += 1
                print(f"{name}: {kernel.name}: {error}")
        count, size = len(list(folder.glob("*.cubin"))), sum(path.stat().st_size for path in folder.glob("*.cubin"))
        took = f"{len(stages.kernels)} kernels in {time.monotonic() - start:.0f} s"
        print(f"{name:24} {took}; {count} binaries, {size / 2**20:.1f} MiB", flush=True)
    return 1 if bad else 0
