"""What a caller asks for by `precision=` and `calibration=`, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tc.errors import UserError
from tc.ir.dtype import DType, bf16, f16
from tc.runtime.digest import digest_of_calls

DTYPES: Mapping[str, DType] = {"bf16": bf16, "f16": f16}
MIXED = "mixed"
FORMS = '"f32", "bf16", "f16", or "mixed:" and the relative error that results may have, such as "mixed:1e-2"'

Batch = Mapping[str, np.ndarray]
Calibration = Union[Batch, Sequence[Batch]]


@dataclass(frozen=True, eq=False)
class PrecisionRequest:
    """`word`: as it was asked for. `dtype`: what floats are narrowed to, None for f32. `tolerance`: the relative L2 error that results may
    have, or None. `batches`: calibration inputs, each by the names of the model's inputs."""

    word: str = "f32"
    dtype: DType | None = None
    tolerance: float | None = None
    batches: tuple[Batch, ...] = ()

    @property
    def is_searched(self) -> bool:
        """Whether calibration inputs decide what stays f32."""
        return self.tolerance is not None or self.dtype is f16

    @property
    def facts(self) -> tuple[object, ...]:
        """All that a compiled module depends on; nothing for f32."""
        if self.dtype is None:
            return ()
        return (self.dtype.name, self.tolerance, digest_of_calls(self.batches) if self.is_searched else "")


USUAL_PRECISION = PrecisionRequest()


def checked_precision(precision: object, calibration: object = None) -> PrecisionRequest:
    """What is asked for. UserError in words for a precision that there is not, and for calibration data that cannot be used."""
    if isinstance(precision, PrecisionRequest):
        return precision
    if not isinstance(precision, str):
        raise UserError(f"precision is a {type(precision).__name__}, must be {FORMS}")
    word = precision.strip()
    batches = () if calibration is None else checked_calibration(calibration)
    kind, colon, number = word.partition(":")
    if kind == MIXED:
        if not batches:
            raise UserError(f'precision "{word}" needs calibration inputs: {CALIBRATION_HINT}')
        return PrecisionRequest(word, bf16, _tolerance(number, colon, word), batches)
    if colon or (word not in DTYPES and word != "f32"):
        raise UserError(f'precision "{precision}" is not known, must be {FORMS}')
    if word == "f16" and not batches:
        raise UserError(
            'precision "f16" needs calibration inputs, as numbers above 65,504 become infinite in f16 and must stay f32: '
            f'{CALIBRATION_HINT}; "bf16" has the range of f32 and needs none'
        )
    return PrecisionRequest(word, DTYPES.get(word), None, batches)


def _tolerance(number: str, colon: str, word: str) -> float:
    try:
        tolerance = float(number)
    except ValueError:
        said = f"'{number}' is no number" if colon else "it has no tolerance"
        raise UserError(f'precision "{word}": {said}, must be {FORMS}') from None
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise UserError(f'precision "{word}": the tolerance is {number}, must be a finite number above 0')
    return tolerance


CALIBRATION_HINT = (
    "calibration=[{name: array, ...}, ...], on the command line --calibration FILE.npz, holds inputs such as the model will get"
)


def checked_calibration(calibration: object) -> tuple[Batch, ...]:
    """Batches of inputs: one dict of arrays by name, or a sequence of them. UserError for what is none, or holds NaN or infinities."""
    batches: Sequence[Any] = [calibration] if isinstance(calibration, Mapping) else calibration  # type: ignore[assignment]
    if isinstance(batches, (str, bytes)) or not hasattr(batches, "__iter__"):
        raise UserError(f"calibration is a {type(calibration).__name__}, must be a list of dicts of arrays by the names of inputs")
    found = tuple(_checked_batch(batch, place) for place, batch in enumerate(batches))
    if not found:
        raise UserError("calibration is empty, must hold the inputs of one call at least")
    return found


def _checked_batch(batch: object, place: int) -> Batch:
    if not isinstance(batch, Mapping):
        raise UserError(f"calibration[{place}] is a {type(batch).__name__}, must be a dict of arrays by the names of inputs")
    arrays = {}
    for name, value in batch.items():
        if not isinstance(name, str):
            raise UserError(f"calibration[{place}]: {name!r} is a {type(name).__name__}, must be the name of an input")
        array = np.asarray(value)
        if array.dtype == object:
            raise UserError(f"calibration[{place}]: {name} is no array of numbers")
        if array.dtype.kind in "fV" and not np.isfinite(array.astype(np.float64)).all():
            raise UserError(f"calibration[{place}]: {name} holds NaN or infinities; of such inputs nothing is learnt")
        arrays[name] = array
    return arrays


def check_batches(batches: Sequence[Batch], names: Sequence[str]) -> None:
    """UserError for batches whose names are not those of the model's inputs."""
    for place, batch in enumerate(batches):
        for name in batch:
            if name not in names:
                raise UserError(f"calibration[{place}]: the model has no input '{name}'; its inputs are: {', '.join(names)}")
        for name in names:
            if name not in batch:
                raise UserError(f"calibration[{place}]: there is nothing for input '{name}'; the inputs are: {', '.join(names)}")
