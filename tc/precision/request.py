"""What a caller asks for by `precision=` and `calibration=`, checked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from tc.errors import CalibrationError
from tc.ir.dtype import DType, bf16, f16
from tc.precision.inputs import FORMS as INPUT_FORMS
from tc.precision.inputs import GivenCall, digest_of, read_calls

DTYPES: Mapping[str, DType] = {"bf16": bf16, "f16": f16}
MIXED = "mixed"
SPLIT = "bf16x3"
FORMS = '"f32", "bf16", "bf16x3", "f16", or "mixed:" and the relative error that results may have, such as "mixed:1e-2"'

Batch = Mapping[str, np.ndarray]
Calibration = Union[Batch, np.ndarray, Iterable[Any], str, os.PathLike[str]]


@dataclass(frozen=True, eq=False)
class PrecisionRequest:
    """`word`: as it was asked for. `dtype`: what floats are narrowed to, None for f32; for "bf16x3", the terms of products. `tolerance`:
    the relative L2 error that results may have, or None. `calls`: calibration inputs as they were given."""

    word: str = "f32"
    dtype: DType | None = None
    tolerance: float | None = None
    calls: tuple[GivenCall, ...] = ()

    @property
    def is_searched(self) -> bool:
        """Whether calibration inputs decide what stays f32."""
        return self.tolerance is not None or self.dtype is f16

    @property
    def is_split(self) -> bool:
        """Whether products are of sums of two terms, and everything else is f32."""
        return self.word == SPLIT

    @property
    def facts(self) -> tuple[object, ...]:
        """All that a compiled module depends on; nothing for f32."""
        if self.dtype is None:
            return ()
        return (SPLIT if self.is_split else self.dtype.name, self.tolerance, digest_of(self.calls) if self.is_searched else "")


USUAL_PRECISION = PrecisionRequest()


def checked_precision(precision: object, calibration: object = None) -> PrecisionRequest:
    """What is asked for. UserError in words for a precision that there is not, and for calibration data that cannot be used."""
    if isinstance(precision, PrecisionRequest):
        return precision
    if not isinstance(precision, str):
        raise CalibrationError(f"precision is a {type(precision).__name__}, must be {FORMS}")
    word = precision.strip()
    kind, colon, number = word.partition(":")
    tolerance = _tolerance(number, colon, word) if kind == MIXED else None
    if tolerance is None and (colon or word not in (*DTYPES, SPLIT, "f32")):
        raise CalibrationError(f'precision "{precision}" is not known, must be {FORMS}')
    calls = () if calibration is None else read_calls(calibration)
    if tolerance is not None:
        if not calls:
            raise CalibrationError(f'precision "{word}" needs calibration inputs: {CALIBRATION_HINT}')
        return PrecisionRequest(word, bf16, tolerance, calls)
    if word == SPLIT:
        return PrecisionRequest(word, bf16, None, calls)
    if word == "f16" and not calls:
        raise CalibrationError(
            'precision "f16" needs calibration inputs, as numbers above 65,504 become infinite in f16 and must stay f32: '
            f'{CALIBRATION_HINT}; "bf16" has the range of f32 and needs none'
        )
    return PrecisionRequest(word, DTYPES.get(word), None, calls)


def _tolerance(number: str, colon: str, word: str) -> float:
    try:
        tolerance = float(number)
    except ValueError:
        said = f"'{number}' is no number" if colon else "it has no tolerance"
        raise CalibrationError(f'precision "{word}": {said}, must be {FORMS}') from None
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise CalibrationError(f'precision "{word}": the tolerance is {number}, must be a finite number above 0')
    return tolerance


CALIBRATION_HINT = (
    f"calibration={{name: array, ...}} ({INPUT_FORMS}), on the command line --calibration PATH, holds inputs such as the model will get"
)
