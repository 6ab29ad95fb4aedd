"""Calibration data: whatever it is given as, to a list of checked inputs by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tc.errors import UserError

Feed = dict[str, np.ndarray]
"""Inputs of one call by name."""

FILES_LIMIT = 100_000


def read_feeds(calibration: Any, proto: onnx.ModelProto) -> list[Feed]:
    """The calibration inputs of a model.

    calibration: arrays by name; one array, for a model of one input, which is cut into pieces where the input's first size is fixed; a
        list or iterator of either; or a folder of `.npz` files (a call each, arrays by name) or `.npy` files (a call each, one input).

    UserError for no data at all, wrong names, shapes or dtypes, NaN and infinities, naming the call and the input.
    """
    inputs = [value for value in proto.graph.input if value.name not in {t.name for t in proto.graph.initializer}]
    feeds: list[Feed] = []
    for place, given in _calls(calibration, inputs):
        feed = _by_name(given, inputs, place)
        for value in inputs:
            _check(feed[value.name], value, place)
        feeds.append(feed)
    if not feeds:
        raise UserError("calibration: there are no inputs; give arrays by name, a list of them, or a folder of .npz or .npy files")
    return feeds


def _calls(calibration: Any, inputs: Sequence[onnx.ValueInfoProto]) -> Iterable[tuple[str, Any]]:
    """Where each call is from, in words, and what was given for it."""
    if isinstance(calibration, (str, os.PathLike)):
        yield from _files(Path(calibration))
    elif isinstance(calibration, Mapping):
        yield "calibration", calibration
    elif isinstance(calibration, np.ndarray) or hasattr(calibration, "__dlpack__"):
        for piece in _pieces(np.asarray(calibration), inputs):
            yield "calibration", piece
    elif isinstance(calibration, Iterable):
        for index, given in enumerate(calibration):
            yield f"calibration input {index}", given
    else:
        raise UserError(f"calibration is a {type(calibration).__name__}, must be arrays by name, a list of them, or a folder")


def _files(path: Path) -> Iterable[tuple[str, Any]]:
    if not path.exists():
        raise UserError(f"calibration {path}: there is no such file or folder")
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy"))
    if not files:
        raise UserError(f"calibration {path}: the folder holds no .npz or .npy file")
    if len(files) > FILES_LIMIT:
        raise UserError(f"calibration {path}: the folder holds {len(files)} files; the limit is {FILES_LIMIT}")
    for file in files:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                yield str(file), loaded
            else:
                with loaded:
                    yield str(file), dict(loaded)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"calibration {file}: cannot be read as a .npz or .npy file: {error}") from error


def _pieces(array: np.ndarray, inputs: Sequence[onnx.ValueInfoProto]) -> list[np.ndarray]:
    """An array of many examples, cut where the model takes a fixed number at a time."""
    dims = inputs[0].type.tensor_type.shape.dim if len(inputs) == 1 else ()
    if not dims or array.ndim != len(dims) or not dims[0].HasField("dim_value"):
        return [array]
    size = dims[0].dim_value
    if size < 1 or array.shape[0] <= size or array.shape[0] % size:
        return [array]
    return [array[start : start + size] for start in range(0, array.shape[0], size)]


def _by_name(given: Any, inputs: Sequence[onnx.ValueInfoProto], place: str) -> Feed:
    names = [value.name for value in inputs]
    if isinstance(given, (tuple, list)) and len(given) == len(names) and all(hasattr(item, "__array__") for item in given):
        given = dict(zip(names, given, strict=True))
    elif not isinstance(given, Mapping):
        if len(names) != 1 or not (hasattr(given, "__array__") or hasattr(given, "__dlpack__")):
            raise UserError(f"{place}: is a {type(given).__name__}, must be arrays by name: {', '.join(names)}")
        given = {names[0]: given}
    unknown = [str(name) for name in given if name not in names]
    missing = [name for name in names if name not in given]
    if unknown or missing:
        what = f"has no input {unknown[0]!r}" if unknown else f"needs the input {missing[0]!r}"
        raise UserError(f"{place}: the model {what}; its inputs are {', '.join(names)}")
    return {name: np.ascontiguousarray(given[name]) for name in names}


def _check(array: np.ndarray, value: onnx.ValueInfoProto, place: str) -> None:
    """UserError for an array that is no input of the model."""
    tensor, what = value.type.tensor_type, f"{place}: {value.name}"
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if array.dtype != dtype:
        raise UserError(f"{what} is of {array.dtype}, but the model takes {dtype}")
    dims = tensor.shape.dim
    wanted = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?" for d in dims]
    sizes_fit = all(not isinstance(size, int) or size == found for size, found in zip(wanted, array.shape))
    if tensor.HasField("shape") and (len(wanted) != array.ndim or not sizes_fit):
        raise UserError(f"{what} has shape {list(array.shape)}, but the model takes [{', '.join(map(str, wanted))}]")
    if array.size == 0:
        raise UserError(f"{what} is empty, of shape {list(array.shape)}: nothing can be learned from it")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise UserError(f"{what} holds {array[tuple(index)]} at {index}; calibration data must be finite")


def constant_inputs(feeds: Sequence[Feed]) -> tuple[str, ...]:
    """What is said of floats that are one and the same number everywhere: ranges of one number say little of others."""
    notes = []
    for name, array in feeds[0].items():
        is_tensor = array.dtype.kind == "f" and array.size > 1
        if is_tensor and all((feed[name] == array.flat[0]).all() for feed in feeds):
            notes.append(f"{name!r} holds nothing but {array.flat[0]} in the calibration inputs: the scales may not suit others")
    return tuple(notes)
