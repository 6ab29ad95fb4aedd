"""Calibration inputs: whatever they are given as, to a list of checked arrays by name.

    calls = read_calls(calibration)         # the forms, files and iterators: before a model is read
    feeds = bind_calls(calls, inputs)       # names, dtypes and shapes: as the model has them
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tc.errors import CalibrationError
from tc.files import why_no_arrays
from tc.ir.expr import Const
from tc.ir.graph import TensorVar
from tc.ir.types import TensorType
from tc.runtime.digest import digest_of_calls

Feed = dict[str, np.ndarray]
"""Inputs of one call by name."""

CALLS_LIMIT = 100_000
"""An iterator that does not end, or a folder that is no folder of inputs."""

FORMS = "arrays by the names of inputs, one array, a list or iterator of either, or a folder of .npz or .npy files"


@dataclass(frozen=True)
class InputType:
    """What a model takes: `shape` has names where sizes may be any, and is None where nothing is known."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class GivenCall:
    """The arrays of a call as they were given: by name, in the order of the inputs, or one. `place`: where they are from, in words.
    `is_only`: they are all there are, so that one array may hold many examples."""

    place: str
    arrays: Mapping[str, np.ndarray] | tuple[np.ndarray, ...]
    is_only: bool = False


def read_calls(calibration: Any) -> tuple[GivenCall, ...]:
    """The calls that are given: `FORMS`. UserError for anything else, none at all, and files that cannot be read."""
    found: list[GivenCall] = []
    for call in _calls(calibration):
        if len(found) == CALLS_LIMIT:
            raise CalibrationError(f"calibration: there are more than {CALLS_LIMIT} inputs; a few hundred are enough")
        found.append(call)
    if not found:
        raise CalibrationError(f"calibration: there are no inputs; give {FORMS}")
    return tuple(found)


def digest_of(calls: Sequence[GivenCall]) -> str:
    """What a module depends on that was made with them."""
    return digest_of_calls(by_name(call) for call in calls)


def by_name(call: GivenCall) -> Mapping[str, np.ndarray]:
    """The arrays of a call, those without names by place."""
    return call.arrays if isinstance(call.arrays, Mapping) else {str(place): array for place, array in enumerate(call.arrays)}


def _calls(given: Any) -> Iterator[GivenCall]:
    if isinstance(given, (str, os.PathLike)):
        yield from _files(Path(given))
    elif isinstance(given, Mapping) or _is_array(given):
        yield GivenCall("calibration", _arrays_of(given, "calibration"), is_only=True)
    elif isinstance(given, Iterable) and not isinstance(given, (bytes, bytearray)):
        for index, item in enumerate(_items(given)):
            if isinstance(item, (str, os.PathLike)):
                yield from _files(Path(item))
            else:
                place = f"calibration input {index}"
                yield GivenCall(place, _arrays_of(item, place))
    else:
        raise CalibrationError(f"calibration is a {type(given).__name__}, must be {FORMS}")


def _items(given: Iterable[Any]) -> Iterator[Any]:
    """The same; UserError for an iterator of a user that raises."""
    found = iter(given)
    for index in range(CALLS_LIMIT + 1):
        try:
            item = next(found)
        except StopIteration:
            return
        except Exception as error:  # whatever reading somebody's data raises
            raise CalibrationError(f"calibration: the iterator raised {type(error).__name__} for input {index}: {error}") from error
        yield item


def _is_array(given: Any) -> bool:
    return isinstance(given, np.ndarray) or hasattr(given, "__dlpack__")


def _arrays_of(given: Any, place: str) -> Mapping[str, np.ndarray] | tuple[np.ndarray, ...]:
    if isinstance(given, Mapping):
        for name in given:
            if not isinstance(name, str):
                raise CalibrationError(f"{place}: {name!r} is a {type(name).__name__}, must be the name of an input")
        return {name: _array(value, f"{place}: {name}") for name, value in given.items()}
    if isinstance(given, (tuple, list)) and given and all(map(_is_array, given)):
        return tuple(_array(item, place) for item in given)
    if _is_array(given) or hasattr(given, "__array__"):
        return (_array(given, place),)
    raise CalibrationError(f"{place} is a {type(given).__name__}, must be arrays by the names of inputs")


def _array(value: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise CalibrationError(f"{what} is no array: {error}") from error
    if array.dtype.kind not in "biufcV":
        raise CalibrationError(f"{what} is no array of numbers, but of {array.dtype}")
    if not array.dtype.isnative:  # of a machine with another byte order, as arrays given to modules may be
        return array.astype(array.dtype.newbyteorder("="))
    return np.array(array, order="C") if array.base is not None or not array.flags.c_contiguous else array


def _files(path: Path) -> Iterator[GivenCall]:
    if not path.exists():
        raise CalibrationError(f"calibration {path}: there is no such file or folder")
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix.lower() in (".npz", ".npy"))
    if not files:
        raise CalibrationError(f"calibration {path}: the folder holds no .npz or .npy file")
    for file in files:
        try:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.ndarray):
                with loaded:
                    loaded = dict(loaded)
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise CalibrationError(f"calibration {file}: cannot be read as a .npz or .npy file: {why_no_arrays(error)}") from error
        yield GivenCall(f"calibration {file}", _arrays_of(loaded, f"calibration {file}"))


# -- as a model takes them


def inputs_of(params: Sequence[TensorVar]) -> tuple[InputType, ...]:
    """The inputs of a function of the graph."""
    found = []
    for param in params:
        type_ = param.type
        is_tensor = isinstance(type_, TensorType)
        shape = tuple(int(dim.value) if isinstance(dim, Const) else str(dim) for dim in type_.shape) if is_tensor else None
        found.append(InputType(param.name, type_.dtype.numpy if is_tensor else np.dtype(object), shape))
    return tuple(found)


def bind_calls(calls: Sequence[GivenCall], inputs: Sequence[InputType]) -> list[Feed]:
    """The inputs of each call by name. One array that is all there is, for a model of one input whose first size is fixed, is cut into
    pieces of that size. UserError for wrong names, dtypes or shapes, naming the call and the input; for calls of nothing, and floats that
    are not finite: nothing is learnt of such inputs."""
    feeds = []
    for call in calls:
        for arrays in _pieces(call, inputs):
            feed = _named(arrays, inputs, call.place)
            for each in inputs:
                _check(feed[each.name], each, call.place)
            if feed and not any(array.size for array in feed.values()):
                name, array = next(iter(feed.items()))
                raise CalibrationError(f"{call.place}: {name} is empty, of shape {list(array.shape)}: nothing can be learned from it")
            feeds.append(feed)
    return feeds


def _pieces(call: GivenCall, inputs: Sequence[InputType]) -> list[Mapping[str, np.ndarray] | tuple[np.ndarray, ...]]:
    shape = inputs[0].shape if len(inputs) == 1 else None
    if isinstance(call.arrays, Mapping) or not call.is_only or not shape or not isinstance(shape[0], int):
        return [call.arrays]
    (array,), size = call.arrays, shape[0]
    if array.ndim != len(shape) or size < 1 or array.shape[0] <= size or array.shape[0] % size:
        return [call.arrays]
    return [(array[start : start + size],) for start in range(0, array.shape[0], size)]


def _named(arrays: Mapping[str, np.ndarray] | tuple[np.ndarray, ...], inputs: Sequence[InputType], place: str) -> Feed:
    names = [each.name for each in inputs]
    if not isinstance(arrays, Mapping):
        if len(arrays) != len(names):
            raise CalibrationError(f"{place}: has {len(arrays)} arrays, must be arrays by name: {', '.join(names)}")
        arrays = dict(zip(names, arrays, strict=True))
    unknown = [name for name in arrays if name not in names]
    missing = [name for name in names if name not in arrays]
    if unknown or missing:
        what = f"has no input {unknown[0]!r}" if unknown else f"needs the input {missing[0]!r}"
        raise CalibrationError(f"{place}: the model {what}; its inputs are {', '.join(names)}")
    return {name: np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape) for name in names}


def _check(array: np.ndarray, wanted: InputType, place: str) -> None:
    """UserError for an array that is no input of the model."""
    if wanted.shape is None:
        return
    what = f"{place}: {wanted.name}"
    if array.dtype != wanted.dtype:
        raise CalibrationError(f"{what} is of {array.dtype}, but the model takes {wanted.dtype}")
    sizes_fit = all(not isinstance(size, int) or size == found for size, found in zip(wanted.shape, array.shape, strict=False))
    if len(wanted.shape) != array.ndim or not sizes_fit:
        raise CalibrationError(f"{what} has shape {list(array.shape)}, but the model takes [{', '.join(map(str, wanted.shape))}]")
    if array.dtype.kind in "fcV":
        wide = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16 and others that numpy does not know
        finite = np.isfinite(wide)
        if not finite.all():
            index = [int(i) for i in np.argwhere(~finite)[0]]
            raise CalibrationError(f"{what} holds {wide[tuple(index)]} at {index}; calibration data must be finite")
