"""The values of a model's tensors, as numpy arrays that share memory with the file wherever possible."""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from tc.errors import LimitError, ModelError, UnsupportedError
from tc.frontend.formats import is_lfs_pointer
from tc.ir import dtype as dtypes
from tc.ir.dtype import DType, unpack
from tc.ir.node import Span

if TYPE_CHECKING:
    from onnx import SparseTensorProto, TensorProto

MAX_TENSOR_BYTES = 1 << 37
MAX_SPANNED_BYTES = (1 << 63) - 1  # by an array of numpy, dims of 0 counting as 1
# A sparse tensor becomes a dense one, which may be so large, or so many times as large as what the file holds.
_SPARSE_FLOOR_BYTES = 256 << 20
_SPARSE_GROWTH = 64
_MOST_DIMS = 64  # of arrays of numpy

# onnx.TensorProto.DataType -> our dtype
DTYPES: Mapping[int, DType] = {
    1: dtypes.f32,
    2: dtypes.u8,
    3: dtypes.i8,
    4: dtypes.u16,
    5: dtypes.i16,
    6: dtypes.i32,
    7: dtypes.i64,
    9: dtypes.bool_,
    10: dtypes.f16,
    11: dtypes.f64,
    12: dtypes.u32,
    13: dtypes.u64,
    16: dtypes.bf16,
    17: dtypes.f8e4m3fn,
    18: dtypes.f8e4m3fnuz,
    19: dtypes.f8e5m2,
    20: dtypes.f8e5m2fnuz,
    21: dtypes.u4,
    22: dtypes.i4,
    23: dtypes.f4e2m1,
    24: dtypes.f8e8m0,
    25: dtypes.u2,
    26: dtypes.i2,
}
STRING_CODE = 8
CODES: Mapping[DType, int] = {dtype: code for code, dtype in DTYPES.items()}
_OTHER_NAMES = {
    0: "undefined",
    8: "string",
    14: "complex64",
    15: "complex128",
    27: "float6e2m3",
    28: "float6e3m2",
}
# Fields that hold values when raw_data does not: dtype name -> (field, numpy dtype of the stored bits)
_VALUE_FIELDS = {
    "f32": "float_data",
    "f64": "double_data",
    "i64": "int64_data",
    "u64": "uint64_data",
    "u32": "uint64_data",
}


def dtype_of(code: int, what: str) -> DType:
    """Our dtype for an ONNX element type; `what` names the tensor in the error."""
    found = DTYPES.get(code)
    if found is not None:
        return found
    name = _OTHER_NAMES.get(code, f"number {code}")
    if code == 0 or code not in _OTHER_NAMES:
        raise ModelError(f"{what} has the element type {name}, which ONNX does not define", code="TC1033")
    raise UnsupportedError(
        f"{what} has the element type {name}, which tc does not have",
        code="TC1012",
        supported=", ".join(d.numpy.name for d in DTYPES.values()),
        hint="convert the model to one of them",
    )


def read_strings(tensor: TensorProto) -> np.ndarray:
    """The strings of a tensor of them. ModelError when it is damaged."""
    what, count = f"tensor {tensor.name!r}", math.prod(tensor.dims)
    if len(tensor.dims) > _MOST_DIMS:
        raise UnsupportedError(f"{what} has {len(tensor.dims)} dims", code="TC1014", supported=f"up to {_MOST_DIMS}")
    if any(dim < 0 for dim in tensor.dims) or len(tensor.string_data) != count or tensor.HasField("raw_data"):
        raise ModelError(f"{what} of strings and shape {list(tensor.dims)} has {len(tensor.string_data)} of them", code="TC1006")
    try:
        texts = [text.decode() for text in tensor.string_data]
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} has a string that is not UTF-8: {error}", code="TC1006") from error
    found = np.empty(count, object)
    found[:] = texts
    return found.reshape(tuple(tensor.dims))


class TensorReader:
    """Reads tensors of one model. `folder` holds its external data, or links to files in the folder `linked`, where the model is one;
    `own` is (location, bytes) of data in the model."""

    def __init__(self, folder: Path | None, own: tuple[str, memoryview] | None = None, linked: Path | None = None) -> None:
        self.folder, self.linked = folder, linked
        self.own = own
        self._files: dict[str, memoryview] = {}

    @property
    def files(self) -> tuple[str, ...]:
        """The files besides the model itself that were read, as the model names them."""
        return tuple(self._files)

    def read(self, tensor: TensorProto) -> np.ndarray:
        """The array of a tensor, read-only where it shares memory. Raises ModelError, LimitError, UnsupportedError."""
        what = f"tensor {tensor.name!r}"
        dtype = dtype_of(tensor.data_type, what)
        shape = tuple(tensor.dims)
        count = _num_elements(shape, dtype, what)
        if tensor.data_location == 1:
            raw: bytes | memoryview = self._external(tensor, dtype.bytes_of(count), what)
        elif tensor.HasField("raw_data"):
            raw = tensor.raw_data
        else:
            return _from_fields(tensor, dtype, count, what).reshape(shape)
        if len(raw) != dtype.bytes_of(count):
            raise ModelError(
                f"{what} of type {dtype} and shape {list(shape)} needs {dtype.bytes_of(count)} bytes, not {len(raw)}",
                code="TC1006",
            )
        return unpack(np.frombuffer(raw, np.uint8), dtype, shape)

    def read_sparse(self, sparse: SparseTensorProto) -> np.ndarray:
        """The dense array of a sparse tensor."""
        values = self.read(sparse.values)
        indices = self.read(sparse.indices)
        what = f"sparse tensor {sparse.values.name!r}"
        dtype = dtypes.from_numpy(values.dtype)
        shape = tuple(sparse.dims)
        count = _num_elements(shape, dtype, what)
        if dtype.bytes_of(count) > max(_SPARSE_FLOOR_BYTES, _SPARSE_GROWTH * (values.nbytes + indices.nbytes)):
            raise LimitError(
                f"{what} of shape {list(shape)} would take {dtype.bytes_of(count)} bytes, more than {_SPARSE_GROWTH} times what it holds",
                code="TC1060",
            )
        if indices.dtype.kind not in "iu":
            raise ModelError(f"{what}: its indices are {indices.dtype}, must be integers", code="TC1006")
        if values.ndim != 1 or indices.ndim not in (1, 2) or len(indices) != len(values):
            raise ModelError(f"{what}: {values.shape} values do not fit {indices.shape} indices", code="TC1006")
        if indices.ndim == 2 and indices.shape[1] != len(shape):
            raise ModelError(f"{what}: indices of {indices.shape[1]} coordinates in a tensor of rank {len(shape)}", code="TC1006")
        dense = np.zeros(shape, values.dtype)
        limits = np.asarray(shape if indices.ndim == 2 else [dense.size])
        if len(indices) and ((indices < 0).any() or (indices >= limits).any()):
            raise ModelError(f"{what}: an index lies outside of shape {list(shape)}", code="TC1006")
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        return dense

    def _external(self, tensor: TensorProto, size: int, what: str) -> memoryview:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise ModelError(f"{what}: what is said of its external data is not UTF-8", code="TC1003")
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries["length"]) if "length" in entries else size
        except ValueError as error:
            raise ModelError(f"{what}: offset and length of its external data must be integers", code="TC1005") from error
        if self.own is not None and location == self.own[0]:
            data = self.own[1]
        else:
            data = self._map_file(location, what)
        if length != size:
            raise ModelError(f"{what} needs {size} bytes, but its external data in {location!r} says length {length}", code="TC1005")
        if offset < 0 or offset + length > len(data):
            raise ModelError(
                f"{what}: bytes {offset}..{offset + length} of {location!r} are wanted, but the file has {len(data)}",
                code="TC1005",
            )
        return data[offset : offset + length]

    def _map_file(self, location: str, what: str) -> memoryview:
        """The bytes of an external file, memory-mapped; it must lie in the model's folder, or beside the file that this links to."""
        found = self._files.get(location)
        if found is None:
            found = map_file(self._contained(location, what))
            if is_lfs_pointer(found):
                raise ModelError(f"{what}: external data {location!r} is a Git LFS pointer; 'git lfs pull' fetches the data", code="TC1005")
            self._files[location] = found
        return found

    def _contained(self, location: str, what: str) -> Path:
        if self.folder is None:
            raise ModelError(f"{what} lies in the file {location!r}; give the model's path, so that it can be found", code="TC1005")
        inside = path_inside(location)
        if inside is None:
            raise ModelError(f"{what}: external data {location!r} must be a relative path that stays in the model's folder", code="TC1004")
        path = self.folder / inside
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ModelError(f"{what}: there is no external data file {location!r} beside the model", code="TC1005") from error
        if not any(folder and real.is_relative_to(folder.resolve()) for folder in (self.folder, self.linked)):
            raise ModelError(f"{what}: external data {location!r} is a link that leaves the model's folder", code="TC1004")
        if not real.is_file():
            raise ModelError(f"{what}: external data {location!r} is not a file", code="TC1005")
        return real


def path_inside(location: str) -> PurePosixPath | None:
    """Where external data lie, seen from the model's folder; None if that is outside, or no name of a file.

    As onnx's checker has it, each `..` takes back the part before it, which need not be there, and may not take back more than there is.
    """
    parts: list[str] = []
    path = PurePosixPath(location.replace("\\", "/"))
    if path.is_absolute() or ":" in location or "\0" in location:
        return None
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            return None
    return PurePosixPath(*parts) if parts else None


def map_file(path: Path) -> memoryview:
    """The bytes of a file, memory-mapped and read-only. Raises ModelError when it cannot be read."""
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # asked first: to open a pipe waits for who writes to it
            raise ModelError(f"{str(path)!r} is a pipe or a device; write what comes from it to a file", code="TC1002")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise ModelError(f"there is no file {str(path)!r}", code="TC1002") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}", code="TC1002") from error


def _num_elements(shape: tuple[int, ...], dtype: DType, what: str) -> int:
    if len(shape) > _MOST_DIMS:
        raise UnsupportedError(f"{what} has {len(shape)} dims", code="TC1014", supported=f"up to {_MOST_DIMS}")
    count = 1
    for dim in shape:
        if dim < 0:
            raise ModelError(f"{what} has the shape {list(shape)}: a dim is negative", code="TC1006")
        count *= dim
    check_bytes(shape, dtype, lambda: f"{what} of type {dtype} and shape {list(shape)}")
    return count


def check_bytes(shape: Sequence[int], dtype: DType, what: Callable[[], str], span: Span | None = None) -> None:
    """LimitError for a tensor that no machine holds, and for one of no elements whose other dims are more than an array may have: they
    are measured as if those of 0 were 1."""
    size = dtype.bytes_of(math.prod(shape))
    if size > MAX_TENSOR_BYTES:
        raise LimitError(f"{what()} would take {size} bytes; the limit is {MAX_TENSOR_BYTES}", span, code="TC1060")
    if math.prod(max(dim, 1) for dim in shape) * dtype.numpy.itemsize > MAX_SPANNED_BYTES:
        raise LimitError(f"{what()} holds nothing, but there are no arrays of dims so large", span, code="TC1060")


def _from_fields(tensor: TensorProto, dtype: DType, count: int, what: str) -> np.ndarray:
    """Values stored in the typed fields: narrow floats as their bits, small integers as int32, those that share bytes as bytes."""
    stored = getattr(tensor, _VALUE_FIELDS.get(dtype.name, "int32_data"))
    needed = dtype.bytes_of(count) if dtype.per_byte > 1 else count
    if len(stored) != needed:
        raise ModelError(f"{what} of shape {list(tensor.dims)} needs {needed} elements, but has {len(stored)}", code="TC1006")
    if dtype.is_storage:
        return unpack(np.array(stored, np.int64).astype(np.uint8), dtype, (count,))
    if dtype.name in ("f16", "bf16"):
        bits = np.array(stored, np.int64).astype(np.uint16)
        return bits.view(np.float16 if dtype.name == "f16" else ml_dtypes.bfloat16)
    return np.array(stored, np.float64 if dtype.name == "f64" else None).astype(dtype.numpy)
