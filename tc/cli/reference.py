"""Results to compare with: the reference interpreter of `tc`, and ONNX Runtime where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import tc
from tc.errors import UserError

Arrays = dict[str, np.ndarray]


def run_interpreter(model: Path, inputs: Arrays) -> Arrays:
    """The outputs of `model` by the reference kernels, node by node."""
    return tc.interpret(model, inputs)


def run_onnxruntime(model: Path, inputs: Arrays) -> Arrays:
    """The outputs of `model` by ONNX Runtime; UserError when it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UserError("--check onnxruntime: the package onnxruntime is not installed") from error
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs)))


CHECKERS: dict[str, Callable[[Path, Arrays], Arrays]] = {
    "interpreter": run_interpreter,
    "onnxruntime": run_onnxruntime,
}


def compare(outputs: Arrays, reference: Arrays) -> dict[str, float]:
    """For each output, the largest absolute error over the largest absolute reference value, as `relative_error`."""
    return {name: relative_error(outputs[name], expected) for name, expected in reference.items()}


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """max |found - expected| / max |expected|. Infinity for other shapes, dtypes, or NaNs and infinities elsewhere."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    f, e = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    if not np.array_equal(f[~finite], e[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return float("inf")
    error = np.abs(f[finite] - e[finite]).max(initial=0.0)
    scale = np.abs(e[finite]).max(initial=0.0)
    return float(error / scale) if scale else float(error)
