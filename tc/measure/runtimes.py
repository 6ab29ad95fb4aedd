"""The programs that are compared: what `tc` compiled and its peers, each at its best settings for one request at a time.

All take the same ONNX file and the same arrays, use the number of threads that they are told, leave the affinity of
threads alone, compute in float32, and get their outputs without a copy where they can. Each can be called in two ways: with results
in arrays allocated once, and as people call it.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from tc.errors import InputError
from tc.measure.harness import Step
from tc.runtime.module import CompiledModule
from tc.version import __version__

Arrays = Mapping[str, np.ndarray]

BOUND, ORDINARY = "bound", "ordinary"
CALLS = (BOUND, ORDINARY)
"""Kinds of calls: with results in arrays allocated once, and as people write them."""


class RuntimeMissingError(Exception):
    """A runtime that is not installed."""


@dataclass(frozen=True)
class Runtime:
    """A model loaded into one runtime.

    `run` gives the outputs in the order of the model. `bind` puts inputs and outputs in place, where they stay, and returns the
    call to be timed. `call` returns the one that people write: inputs go in, results that nobody made room for come out, in the
    runtime's fastest way; where it is None, `bind` has no other. `precision`: what floats are computed in.
    """

    name: str
    version: str
    load_seconds: float
    run: Callable[[Arrays], Sequence[np.ndarray]]
    bind: Callable[[Arrays], Step]
    call: Callable[[Arrays], Step] | None = None
    precision: str = "f32"

    def step(self, arrays: Arrays, calls: str) -> Step:
        """The call to be timed, of one of the kinds `CALLS`."""
        return self.call(arrays) if calls == ORDINARY and self.call is not None else self.bind(arrays)


def as_runtime(compiled: CompiledModule, load_seconds: float) -> Runtime:
    """A module of `tc`. Like its peers it writes to arrays allocated once, unless data decide the shapes of outputs."""

    def run(arrays: Arrays) -> list[np.ndarray]:
        return list(compiled.run(dict(arrays)).values())

    def bind(arrays: Arrays) -> Step:
        held = [arrays[info.name] for info in compiled.inputs]
        out = tuple(run(arrays))
        try:
            compiled(*held, out=out)
        except InputError:
            return lambda: compiled(*held)
        return lambda: compiled(*held, out=out)

    def call(arrays: Arrays) -> Step:
        held = [arrays[info.name] for info in compiled.inputs]
        return lambda: compiled(*held)

    return Runtime("tc", __version__, load_seconds, run, bind, call)


def load_onnxruntime(model: Path, threads: int) -> Runtime:
    ort = import_peer("onnxruntime")
    start = time.perf_counter()
    session = ort_session(model, threads, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    seconds = time.perf_counter() - start

    def bind(arrays: Arrays) -> Step:
        """Inputs stay where they are; outputs go to arrays allocated once, of the shapes of a first run."""
        binding = session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
        results = session.run(None, dict(arrays))
        for output, result in zip(session.get_outputs(), results):
            binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(result))
        return lambda: session.run_with_iobinding(binding)

    def call(arrays: Arrays) -> Step:
        """Results stay onnxruntime's own values: arrays of numpy's would be copies."""
        names = [output.name for output in session.get_outputs()]
        values = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
        return lambda: session.run_with_ort_values(names, values)

    return Runtime("onnxruntime", ort.__version__, seconds, lambda arrays: session.run(None, dict(arrays)), bind, call)


def ort_session(model: Path, threads: int, level: object) -> Any:
    """An onnxruntime session on the CPU with `threads` threads; its threads spin between operators, as by default."""
    ort = import_peer("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = level
    options.log_severity_level = 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def load_openvino(model: Path, threads: int, precision: str = "f32") -> Runtime:
    """`precision`: what floats are computed in, "f32" or "bf16"; the runtime says what it made of it."""
    openvino = import_peer("openvino")
    start = time.perf_counter()
    compiled = openvino.Core().compile_model(
        str(model),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        },
    )
    request = compiled.create_infer_request()
    seconds = time.perf_counter() - start

    def bind(arrays: Arrays) -> Step:
        for name, array in arrays.items():
            request.set_tensor(name, openvino.Tensor(np.ascontiguousarray(array), shared_memory=True))
        return lambda: request.infer(share_outputs=True)

    def call(arrays: Arrays) -> Step:
        """Inputs are read where they lie, and results are the request's own memory, which the next call writes over."""
        held = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return lambda: request.infer(held, share_inputs=True, share_outputs=True)

    def run(arrays: Arrays) -> list[np.ndarray]:
        results = request.infer(dict(arrays))
        return [np.array(results[index]) for index in range(len(compiled.outputs))]

    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return Runtime("openvino", metadata.version("openvino"), seconds, run, bind, call, used)


PEERS: dict[str, Callable[[Path, int], Runtime]] = {
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
}


def reference_outputs(model: Path, arrays: Arrays) -> Sequence[np.ndarray]:
    """What the model should give: onnxruntime on the graph as it is, without any rewriting."""
    ort = import_peer("onnxruntime")
    session = ort_session(model, 1, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    results: Sequence[np.ndarray] = session.run(None, dict(arrays))
    return results


def relative_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over the largest expected magnitude, of the worst output; inf where shapes differ."""
    errors = [0.0]
    for mine, reference in zip(found, expected, strict=True):
        if mine.shape != reference.shape:
            return float("inf")
        if reference.size:
            difference = np.abs(np.asarray(mine, np.float64) - reference).max()
            errors.append(float(difference / max(np.abs(reference).max(), 1e-30)))
    return max(errors)


def import_peer(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise RuntimeMissingError(f"{package} cannot be imported ({error}); try: pip install {package}") from error
