"""Arrays of callers that lie in a CUDA device's memory: torch's, cupy's and any with DLPack or `__cuda_array_interface__`, used in place.

Work of a call goes to the stream on which the caller's library works now; where a library does not say, DLPack's protocol orders the two.
torch's own tensors, on the stream that torch works on, are asked for what they are without DLPack: its capsules take longer than a launch.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tc.errors import InputError
from tc.ir.dtype import bf16, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0, from_numpy

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""Kinds of devices. Source: dlpack.h, as all numbers of DLPack here."""

LEGACY_STREAM, THREAD_STREAM = 1, 2
"""How DLPack and `__cuda_array_interface__` call the driver's streams that are always there."""

_KINDS = {0: "i", 1: "u", 2: "f", 5: "c"}
_SPECIAL = {(4, 16): bf16, (10, 8): f8e4m3fn, (11, 8): f8e4m3fnuz, (12, 8): f8e5m2, (13, 8): f8e5m2fnuz, (14, 8): f8e8m0}
_CODES = {dtype: code for code, dtype in _SPECIAL.items()}
_BOOL = (6, 8)


@dataclass(slots=True)
class DeviceArrayView:
    """A C-contiguous array in the memory of CUDA device `device`. `owner` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype
    device: int
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def is_on_device(value: Any) -> bool:
    """Whether an array of a caller lies in the memory of a CUDA device."""
    if isinstance(value, np.ndarray):
        return False
    if is_tensor(value):
        return bool(value.is_cuda)
    find = getattr(value, "__dlpack_device__", None)
    if find is not None:
        return int(find()[0]) in (CUDA, CUDA_MANAGED)
    return hasattr(value, "__cuda_array_interface__")


def library_of(value: Any) -> str:
    """The name of the package that an array's type is from."""
    return type(value).__module__.partition(".")[0]


# -- streams


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of torch, of cupy, of cuda.core, or given as a number. InputError for what is none."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    raise InputError(f"stream is a {type(stream).__name__}, must be a CUDA stream of torch or cupy, or the driver's handle", code="TC2007")


def current_stream(value: Any, device: int) -> int | None:
    """The handle of the stream on which the library of an array works now; None where it does not say."""
    if is_tensor(value):
        return _torch_stream()(device)
    name = library_of(value)
    library, find = sys.modules.get(name), _CURRENT.get(name)
    return None if library is None or find is None else stream_handle(find(library, device))


@cache
def _torch_stream() -> Callable[[int], int]:
    """What says the handle of torch's current stream of a device: what torch's own compiler asks, which makes no object."""
    torch = sys.modules["torch"]
    find = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    return find or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


_CURRENT: dict[str, Callable[[Any, int], Any]] = {
    "torch": lambda torch, device: torch.cuda.current_stream(device),
    "cupy": lambda cupy, device: cupy.cuda.get_current_stream(),
}


# -- reading


def read_device_array(value: Any, device: int, stream: int, name: str) -> DeviceArrayView:
    """The memory of a caller's array, ready for work on a stream. InputError for one on another device."""
    if is_tensor(value):
        found = _of_torch(value, device, stream)
        if found is not None:
            return found
    if hasattr(value, "__dlpack__"):
        view, is_dense = _through_dlpack(value, stream, name)
    else:
        view, is_dense = _through_interface(value, device)
    if view.device != device:
        raise InputError(f"{name} lies on CUDA device {view.device}, but the model runs on CUDA device {device}", code="TC2007")
    if is_dense:
        return view
    dense = _dense(value)
    if dense is None or dense is value:
        raise InputError(f"{name} is not C-contiguous; make it so", code="TC2007")
    return read_device_array(dense, device, stream, name)


def is_tensor(value: Any) -> bool:
    """Whether an array is torch's own, and of no type that behaves in another way."""
    return type(value) is getattr(sys.modules.get("torch"), "Tensor", None)


def _of_torch(value: Any, device: int, stream: int) -> DeviceArrayView | None:
    """The memory of a tensor of torch, None where DLPack has to say more: of another device, sparse, with gaps, with a gradient, with
    elements that stand for others, or made on another stream."""
    dtype = _torch_dtypes().get(value.dtype)
    if dtype is None or value.layout is not sys.modules["torch"].strided or not value.is_cuda:
        return None
    if value.requires_grad or value.is_neg() or not value.is_contiguous():
        return None
    if value.get_device() != device or _torch_stream()(device) != stream:
        return None
    return DeviceArrayView(value.data_ptr(), tuple(value.shape), dtype, device, value)


@cache
def _torch_dtypes() -> dict[Any, np.dtype]:
    """The dtypes of torch whose elements are those of numpy's; complex ones may be conjugates."""
    torch, names = sys.modules["torch"], ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    plain = {getattr(torch, name): np.dtype(name) for name in (*names, "float16", "float32", "float64") if hasattr(torch, name)}
    return plain | {getattr(torch, each.numpy.name): each.numpy for each in _CODES if hasattr(torch, each.numpy.name)}


def _dense(value: Any) -> Any:
    """A C-contiguous copy by the array's own library; None where it has no name for that."""
    if hasattr(value, "contiguous"):
        return value.contiguous()
    copy = getattr(sys.modules.get(library_of(value)), "ascontiguousarray", None)
    return None if copy is None else copy(value)


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("device", ctypes.c_int32), ("rank", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_API = ctypes.pythonapi
_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _API))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _API))
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", _API))


def _through_dlpack(value: Any, stream: int, name: str) -> tuple[DeviceArrayView, bool]:
    try:
        capsule = value.__dlpack__(stream=stream or LEGACY_STREAM)
    except (RuntimeError, TypeError, BufferError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: cannot be read through DLPack: {error}", code="TC2007") from None
    # The capsule is not taken over: it frees what it has when it goes, and stays with the view.
    tensor = _Managed.from_address(_pointer_of(capsule, b"dltensor")).tensor
    if _name_of(capsule) != b"dltensor":
        raise InputError(f"{name}: a DLPack capsule of an unknown kind", code="TC2007")
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else None
    dtype = _numpy_dtype((tensor.code, tensor.bits), tensor.lanes, name)
    view = DeviceArrayView((tensor.data or 0) + tensor.offset, shape, dtype, tensor.device, (capsule, value))
    return view, strides is None or _is_dense(shape, strides)


def _numpy_dtype(code: tuple[int, int], lanes: int, name: str) -> np.dtype:
    if code in _SPECIAL and lanes == 1:
        return _SPECIAL[code].numpy
    if code == _BOOL and lanes == 1:
        return np.dtype(np.bool_)
    if lanes != 1 or code[0] not in _KINDS or code[1] % 8:
        raise InputError(f"{name} has elements of an unknown kind (DLPack's code {code[0]}, {code[1]} bits, {lanes} lanes)", code="TC2007")
    return np.dtype(f"{_KINDS[code[0]]}{code[1] // 8}")


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides, in elements, are those of a C-contiguous array."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected and 0 not in shape:
            return False
        expected *= size
    return True


def _through_interface(value: Any, device: int) -> tuple[DeviceArrayView, bool]:
    facts = value.__cuda_array_interface__
    dtype, shape = np.dtype(facts["typestr"]), tuple(facts["shape"])
    strides = facts.get("strides")
    view = DeviceArrayView(int(facts["data"][0] or 0), shape, dtype, device, value)
    return view, strides is None or _is_dense(shape, tuple(each // dtype.itemsize for each in strides))


def waiting_stream(value: Any) -> int | None:
    """The stream whose work an array without DLPack is made by, of which whoever reads it waits for; None where there is none."""
    if hasattr(value, "__dlpack__"):
        return None
    found = value.__cuda_array_interface__.get("stream")
    return None if found is None else int(found)


# -- results


def new_like(first: Any, shape: tuple[int, ...], dtype: np.dtype, device: int) -> Any | None:
    """A new array for a result, of the library that `first` is from and by its allocator, which knows when others are done with it.
    None for libraries without a known way."""
    library = sys.modules.get(library_of(first))
    make = _EMPTY.get(library_of(first))
    return None if library is None or make is None else make(library, shape, dtype, device)


def _empty_of_torch(torch: Any, shape: tuple[int, ...], dtype: np.dtype, device: int) -> Any | None:
    kind = getattr(torch, dtype.name, None)
    return None if kind is None else torch.empty(shape, dtype=kind, device=f"cuda:{device}")


def _empty_of_cupy(cupy: Any, shape: tuple[int, ...], dtype: np.dtype, device: int) -> Any | None:
    if dtype.kind not in "biuf":
        return None
    with cupy.cuda.Device(device):
        return cupy.empty(shape, dtype)


_EMPTY: dict[str, Callable[[Any, tuple[int, ...], np.dtype, int], Any]] = {"torch": _empty_of_torch, "cupy": _empty_of_cupy}


class DeviceArray:
    """A result on a CUDA device, for libraries to take through DLPack or `__cuda_array_interface__`.

    `block` is its memory (None when empty); `wait(stream)` makes a stream wait for what computes it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, device: int, block: Any, wait: Callable[[int], None]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._block = block
        self._wait = wait

    @property
    def address(self) -> int:
        """Where its first element lies on the device."""
        return 0 if self._block is None else int(self._block.address)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        if stream != -1:  # -1: the taker does not want to wait
            self._wait(LEGACY_STREAM if stream is None else stream)
        return _new_capsule(ctypes.addressof(_export(self)), b"dltensor", _DESTROY)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._wait(LEGACY_STREAM)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 3, "stream": LEGACY_STREAM}


_lent: dict[int, tuple[Any, ...]] = {}
"""What is behind the capsules that others have, by the address of the structure."""


def _returned(managed: int) -> None:
    _lent.pop(managed, None)


def _destroyed(capsule: int) -> None:
    """A capsule goes; one that nobody took over is used up."""
    found = _name_at(capsule)
    if found == b"dltensor":
        _lent.pop(_pointer_at(capsule, found), None)


_name_at = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", _API))
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _API))
_DESTROY_CALLBACK = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroyed)
_DESTROY = ctypes.cast(_DESTROY_CALLBACK, ctypes.c_void_p)
_RETURN_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_returned)


def _export(array: DeviceArray) -> _Managed:
    """An array as DLPack's structure, which stays until its deleter is called."""
    rank = len(array.shape)
    sizes = (ctypes.c_int64 * max(rank, 1))(*array.shape)
    steps = (ctypes.c_int64 * max(rank, 1))(*(math.prod(array.shape[k + 1 :]) for k in range(rank)))
    code, bits = _CODES.get(from_numpy(array.dtype), _plain_code(array.dtype))
    tensor = _Tensor(array.address, CUDA, array.device, rank, code, bits, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, ctypes.cast(_RETURN_CALLBACK, ctypes.c_void_p))
    _lent[ctypes.addressof(managed)] = (managed, sizes, steps, array)
    return managed


def _plain_code(dtype: np.dtype) -> tuple[int, int]:
    if dtype.kind == "b":
        return _BOOL
    codes = {kind: code for code, kind in _KINDS.items()}
    return codes.get(dtype.kind, 2), dtype.itemsize * 8
