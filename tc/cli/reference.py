"""Results to compare with: the reference interpreter of `tc`, and ONNX Runtime where it is installed; and who is right when they differ.

Two runtimes add in different orders, so their results differ by roundings, and how much a model magnifies these is its own affair. A
difference beyond the tolerance is therefore no verdict: the model is then run in double precision, and tc is right when it is
within the tolerance of that, or about as near to it as the other runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import tc
from tc.check.relative_error import relative_error
from tc.cli.outcome import format_array
from tc.errors import UsageError

Arrays = dict[str, np.ndarray]


def run_interpreter(model: Path, inputs: Arrays) -> Arrays:
    """The outputs of `model` by the reference kernels, node by node."""
    return tc.interpret(model, inputs)


def run_onnxruntime(model: Path, inputs: Arrays) -> Arrays:
    """The outputs of `model` by ONNX Runtime; UserError when it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError("--check onnxruntime: the package onnxruntime is not installed") from error
    try:
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs)))
    except Exception as error:  # of many classes, all of its own
        raise UsageError(f"--check onnxruntime: it does not run this model: {str(error).splitlines()[0]}") from error


CHECKERS: dict[str, Callable[[Path, Arrays], Arrays]] = {
    "interpreter": run_interpreter,
    "onnxruntime": run_onnxruntime,
}


AS_NEAR = 4.0
"""How many times as far from float64 as the other runtime tc may be, to be as near: both are the largest of many roundings."""


@dataclass(frozen=True)
class OutputCheck:
    """How one output compares with the reference's.

    error: the largest difference over the largest reference value, infinite where shapes, dtypes, NaNs or infinities differ.
    difference, index, found, expected: the largest difference, where it is, and the two values there; None for other shapes.
    own_error, reference_error: how far tc and the reference are from float64 where they differ beyond the tolerance; None when they
    do not, or when float64 cannot tell.
    """

    name: str
    shape: str
    reference_shape: str
    error: float
    scale: float
    is_right: bool
    difference: float | None = None
    index: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    own_error: float | None = None
    reference_error: float | None = None


def check_outputs(
    outputs: Arrays, reference: Arrays, tolerance: float, in_f64: Callable[[], Arrays]
) -> tuple[list[OutputCheck], str | None]:
    """Every output compared, and why float64 could not judge, if it was asked and could not.

    `in_f64` computes the outputs in double precision; it is called when an output differs by more than `tolerance`.
    """
    checks = [_compare(name, outputs[name], expected, tolerance) for name, expected in reference.items()]
    open_ones = [check for check in checks if not check.is_right and check.difference is not None]
    if not open_ones:
        return checks, None
    try:
        truth = in_f64()
    except Exception as error:  # whatever it is: the outputs differ, and that stands
        return checks, f"{type(error).__name__}: {error}".splitlines()[0]
    judged = {
        check.name: _judge(check, outputs[check.name], reference[check.name], truth[check.name], tolerance) for check in open_ones
    }
    return [judged.get(check.name, check) for check in checks], None


def _compare(name: str, found: np.ndarray, expected: np.ndarray, tolerance: float) -> OutputCheck:
    error = relative_error(found, expected)
    scale = _largest(expected)
    check = OutputCheck(name, format_array(found), format_array(expected), error, scale, error <= tolerance)
    if found.shape != expected.shape or found.dtype != expected.dtype or not found.size:
        return check
    apart = distance(found, expected)
    index = tuple(int(k) for k in np.unravel_index(int(apart.argmax()), found.shape))
    f, e = float(found[index]), float(expected[index])
    return replace(check, difference=float(apart[index]), index=index, found=f, expected=e)


def _judge(check: OutputCheck, found: np.ndarray, expected: np.ndarray, truth: np.ndarray, tolerance: float) -> OutputCheck:
    """Who of two that differ is nearer to float64, where they differ by more than the tolerance."""
    if truth.shape != found.shape:
        return check
    scale = _largest(truth)
    apart = ~(distance(found, expected) <= tolerance * _largest(expected))
    own = float(distance(found, truth)[apart].max(initial=0.0))
    other = float(distance(expected, truth)[apart].max(initial=0.0))
    is_near = own <= tolerance * scale or (math.isfinite(other) and own <= AS_NEAR * other)
    return replace(check, is_right=is_near and tolerance >= 0, own_error=own, reference_error=other)


def distance(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """float64, of each element: |found - expected|; 0 for two equal infinities or two NaNs, infinity where only one is finite."""
    f, e = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(f - e)
    same = (f == e) | (np.isnan(f) & np.isnan(e))
    return np.where(same, 0.0, np.where(np.isfinite(f) & np.isfinite(e), apart, np.inf))


def _largest(array: np.ndarray) -> float:
    values = np.abs(array.astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))


def describe_check(check: OutputCheck, against: str, tolerance: float) -> str:
    """What was compared, and what came of it."""
    if check.shape != check.reference_shape:
        return f"it is {check.shape}, but {against} has {check.reference_shape}"
    where = f" at {list(check.index)}, {check.found:.9g} against {check.expected:.9g}" if check.index else ""
    text = (
        f"of {check.shape} the largest difference is {check.difference or 0.0:.3g}{where}, "
        f"{check.error:.3g} of its largest value {check.scale:.3g} (allowed is {tolerance:.3g})"
    )
    if check.own_error is not None and check.reference_error is not None:
        text += f"; where they differ, tc is off by {check.own_error:.3g} from float64, {against} by {check.reference_error:.3g}"
    return text
