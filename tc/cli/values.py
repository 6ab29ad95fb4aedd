"""Numbers typed on the command line as an input of a model: `16000`, `1e-5`, `true`, `nan`, `[[1,2],[3,4]]`."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

import numpy as np

from tc.errors import UsageError
from tc.ir.dtype import DType, int_range

Number = bool | int | float
_NUMBER = re.compile(r"([+-]?\d+)|[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Values:
    """The numbers in order. `shape` is that of the lists they stand in; None for one number, which fills an input of any shape."""

    text: str
    numbers: tuple[Number, ...]
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.text


def parse_values(text: str) -> Values | None:
    """The values that `text` spells; None when it is neither a number nor the beginning of a list."""
    bare = text.strip()
    if bare.startswith("["):
        return _parse_list(text, bare)
    if bare.lower() in _WORDS:
        return Values(text, (_WORDS[bare.lower()],), None)
    matched = _NUMBER.fullmatch(bare)
    if matched is None:
        return None
    return Values(text, (int(bare) if matched[1] else float(bare),), None)


def _parse_list(text: str, bare: str) -> Values:
    wrong = f"--input: '{text}' is not a list of numbers with rows of one length, such as [[1,2],[3,4]]"
    try:
        array = np.array(json.loads(bare), object)
    except (ValueError, RecursionError):
        raise UsageError(wrong) from None
    numbers = tuple(array.reshape(-1).tolist())
    if not all(isinstance(number, (bool, int, float)) for number in numbers):
        raise UsageError(wrong)
    return Values(text, numbers, array.shape)


def array_of(values: Values, name: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """The values as an array of `dtype`; a single number fills `shape`. UserError for what the dtype cannot hold."""
    convert = _as_float if dtype.is_float else _as_integer
    array = np.array([convert(number, name, dtype) for number in values.numbers], dtype.numpy)
    return np.full(shape, array[0]) if values.shape is None else array.reshape(values.shape)


def _as_integer(number: Number, name: str, dtype: DType) -> int:
    if not math.isfinite(number) or number != int(number):
        raise UsageError(f"--input {name}: {number} is not a whole number, but the input is {dtype}")
    low, high = int_range(dtype)
    if not low <= number <= high:
        raise UsageError(f"--input {name}: {number} does not fit into {dtype}, which holds {low} to {high}")
    return int(number)


def _as_float(number: Number, name: str, dtype: DType) -> float:
    try:
        exact = float(number)
    except OverflowError:
        exact = math.inf
    with np.errstate(over="ignore"):
        kept = float(np.asarray(exact).astype(dtype.numpy))
    if math.isinf(kept) and number not in (math.inf, -math.inf):
        raise UsageError(f"--input {name}: {number} is too large for {dtype}")
    return exact
