"""Arrays of callers: numpy's, and those of other libraries through DLPack.

numpy has no bfloat16 of its own and refuses to exchange any; such arrays change hands under the label of a 16-bit integer.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tc.errors import InputError
from tc.ir.dtype import bf16
from tc.runtime.memory import data_address

_UNREADABLE = (RuntimeError, TypeError, BufferError, AttributeError, ValueError)


def input_array(value: Any, name: str) -> np.ndarray:
    """An input as an array of numpy's, in the machine's byte order, on the same memory where it can be."""
    if isinstance(value, np.ndarray):
        if np.ma.is_masked(value):
            raise InputError(f'input "{name}" has masked elements, which would be taken for numbers; fill them', code="TC2007")
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        try:
            array = from_dlpack(value.resolve_neg() if _is_negated(value) else value)
        except _UNREADABLE as error:
            raise InputError(f'input "{name}": cannot be read through DLPack: {error}', code="TC2007") from None
    elif isinstance(value, (int, float, bool, np.generic)):
        array = np.asarray(value)
    else:
        raise InputError(f'input "{name}" is a {type(value).__name__}, but must be a numpy array or support DLPack', code="TC2007")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def with_arrays(value: Any, name: str) -> Any:
    """An input that may be a list of arrays, or no array at all, with arrays of numpy's."""
    if isinstance(value, (list, tuple)):
        return [with_arrays(item, f"{name}[{k}]") for k, item in enumerate(value)]
    return input_array(value, name) if hasattr(value, "__dlpack__") else value


def _is_negated(value: Any) -> bool:
    """Whether an array is torch's, of numbers that stand for their negatives: DLPack does not say so."""
    return hasattr(value, "is_neg") and bool(value.is_neg())


def output_array(value: Any, shape: tuple[int, ...], dtype: np.dtype, name: str) -> np.ndarray:
    """The memory of a caller's array for a result. InputError when the result cannot be written there just so."""
    array: np.ndarray
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f'out: the buffer for "{name}" is a masked array, whose mask would stay as it is; give its .data', code="TC2006")
    if isinstance(value, np.ndarray):
        array = value
    else:
        if not hasattr(value, "__dlpack__"):
            raise InputError(
                f'out: the buffer for "{name}" is a {type(value).__name__}, but must be a numpy array or support DLPack',
                code="TC2006",
            )
        if _is_negated(value):
            raise InputError(f'out: the buffer for "{name}" is a view of other numbers with their signs turned', code="TC2006")
        try:
            array = from_dlpack(value)
        except _UNREADABLE as error:
            raise InputError(f'out: the buffer for "{name}" cannot be written through DLPack: {error}', code="TC2006") from None
    if array.shape != shape or array.dtype != dtype:
        raise InputError(
            f'out: the buffer for "{name}" is {dtype_name(array.dtype)}{list(array.shape)}, but must be {dtype_name(dtype)}{list(shape)}',
            code="TC2006",
        )
    if not array.flags.writeable:
        raise InputError(f'out: the buffer for "{name}" is read-only, must be writeable', code="TC2006")
    if not array.flags.c_contiguous:
        raise InputError(f'out: the buffer for "{name}" has strides {array.strides}, must be C-contiguous', code="TC2006")
    return array


def like(first: Any, result: Any) -> Any:
    """`result`, or the arrays of a list, as the kind of array that `first` is, through that kind's own `from_dlpack`; as it is where DLPack
    has no such dtype, and what is no array."""
    module = type(first).__module__.partition(".")[0]
    reader = getattr(sys.modules.get(module), "from_dlpack", None)
    if isinstance(first, np.ndarray) or reader is None or not hasattr(first, "__dlpack__"):
        return result
    if isinstance(result, list):
        return [like(first, item) for item in result]
    if not isinstance(result, np.ndarray):
        return result
    if result.dtype == bf16.numpy:
        return reader(_AsBfloat16(result.view(np.uint16)))
    return reader(result) if result.dtype.isbuiltin == 1 and not result.dtype.hasobject else result


def from_dlpack(value: Any) -> np.ndarray:
    """The memory behind an object with `__dlpack__`, bfloat16 included. Whatever its library or numpy raises when that fails."""
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError):
        bits = _AsBits(value)
        array = np.from_dlpack(bits)  # raises as before unless it is bfloat16
        return array.view(bf16.numpy) if bits.was_bfloat16 else array


Overlaps = tuple[set[int], "tuple[int, int] | None"]
NO_OVERLAP: Overlaps = (set(), None)


def overlapping(inputs: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> Overlaps:
    """Which results lie where an input lies too, and two results that lie upon each other, if there are any. All are C-contiguous."""
    ranges = [(data_address(array), array.nbytes, -1) for array in inputs if array.nbytes]
    ranges += [(data_address(array), array.nbytes, k) for k, array in enumerate(results) if array.nbytes]
    over_input: set[int] = set()
    input_end = result_end = last = -1
    for start, size, k in sorted(ranges):
        if k < 0:
            if start < result_end:
                over_input.add(last)
            input_end = max(input_end, start + size)
            continue
        if start < result_end:
            return over_input, (min(last, k), max(last, k))
        if start < input_end:
            over_input.add(k)
        result_end, last = start + size, k
    return over_input, None


def dtype_name(dtype: np.dtype) -> str:
    """What messages call a dtype of numpy's."""
    if dtype.kind not in "fiu":
        return str(dtype)
    name = f"{dtype.kind}{dtype.itemsize * 8}"
    return name if dtype.isnative else f"{name} in the byte order of another machine (big-endian)"


def listed(out: Any) -> list[Any]:
    """The arrays for results, of which one may be given as it is."""
    return list(out) if isinstance(out, (list, tuple)) else [out]


# -- bfloat16 under another label

_UNSIGNED, _BFLOAT = 1, 4
_LABEL = {b"dltensor": 20, b"dltensor_versioned": 52}
"""By the name of a capsule, where the label of its elements lies: code, bits (uint8 each), lanes (uint16). Source: dlpack.h."""

_API = ctypes.pythonapi
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _API))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _API))


class _Relabelled:
    """Gives `source` through DLPack, 16-bit elements of one kind called another. The capsule is its taker's to change."""

    before = after = 0

    def __init__(self, source: Any) -> None:
        self._source = source
        self.was_bfloat16 = False

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._source.__dlpack__(**options)
        name = _name_of(capsule)
        label = (ctypes.c_uint8 * 4).from_address(_pointer_of(capsule, name) + _LABEL[name])
        if tuple(label) == (self.before, 16, 1, 0):
            label[0] = self.after
            self.was_bfloat16 = self.before == _BFLOAT
        return capsule


class _AsBits(_Relabelled):
    before, after = _BFLOAT, _UNSIGNED


class _AsBfloat16(_Relabelled):
    before, after = _UNSIGNED, _BFLOAT
