"""The frame of a running call, seen from Python: its memory, and the nodes of it that run on reference kernels."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tc.codegen.device import DeviceBlock
from tc.errors import LimitError, TcError, located
from tc.ir.arith import evaluate
from tc.ir.dtype import pack, unpack
from tc.ir.expr import Var
from tc.ir.node import walk
from tc.ir.plan import CallOut, Slot
from tc.runtime.callbacks import Callback, runs_users_code
from tc.runtime.frame_layout import NO_MEMORY, FrameLayout
from tc.runtime.memory import ALIGNMENT, Arena, data_address

_LIBC = ctypes.CDLL(None)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", _LIBC))
_ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)(("aligned_alloc", _LIBC))


class ValueMemory(Protocol):
    """Where kernels read and write: the process's own memory, or a device's."""

    def view(self, address: int, size_bytes: int) -> np.ndarray:
        """uint8[size_bytes]: what is there when all work before is done; maybe a copy."""

    def store(self, address: int, array: np.ndarray) -> None:
        """Put the bytes of a C-contiguous array there."""

    def allocate(self, size_bytes: int) -> int:
        """The address of a new block, aligned to ALIGNMENT; 0 where there is no memory for it."""

    def free(self, address: int) -> None:
        """Give such a block back."""


class HostMemory:
    """The memory of the process. See `ValueMemory`."""

    def view(self, address: int, size_bytes: int) -> np.ndarray:
        """The memory itself."""
        raw: np.ndarray = np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
        return raw

    def store(self, address: int, array: np.ndarray) -> None:
        """See `ValueMemory`."""
        ctypes.memmove(address, data_address(array), array.nbytes)

    def allocate(self, size_bytes: int) -> int:
        """See `ValueMemory`."""
        return _ALLOC(ALIGNMENT, -(-max(size_bytes, 1) // ALIGNMENT) * ALIGNMENT) or 0

    def free(self, address: int) -> None:
        """See `ValueMemory`."""
        _FREE(address)


HOST_MEMORY = HostMemory()


class _OwnedBlock:
    """A block of `HostMemory.allocate` as an array, freed when the last one upon it is gone."""

    __slots__ = ("__array_interface__", "_address")

    def __init__(self, address: int, shape: tuple[int, ...], element: str) -> None:
        self.__array_interface__ = {"version": 3, "typestr": element, "shape": shape, "data": (address, False)}
        self._address = address

    def __del__(self, free: Callable[[int], object] = _FREE) -> None:
        free(self._address)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("the memory of a result is no object of its own; copy the array")


def owned_array(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array in a block of `HostMemory.allocate`, which is its own from now on."""
    array: np.ndarray
    if dtype.isbuiltin == 1:
        array = np.asarray(_OwnedBlock(address, shape, dtype.str))
    else:
        array = np.asarray(_OwnedBlock(address, (math.prod(shape) * dtype.itemsize,), "|u1")).view(dtype).reshape(shape)
    return array


@dataclass
class Frame:
    """Machine words for one running call, the arena it uses, and where its values are."""

    words: Any
    address: int
    arena: Arena | DeviceBlock | None = None
    memory: ValueMemory = HOST_MEMORY
    host: np.ndarray | None = None
    """Of values that the host of a device makes."""
    error: BaseException | None = None
    thread: int = 0
    """That of the call, or of the last one."""
    shapes: list[tuple[int, ...]] | None = None
    """Those of the inputs of the last call, if what follows from them is still in `words`."""
    wanted: list[tuple[tuple[int, ...], Any]] = field(default_factory=list)
    """Shapes and dtypes of the results, for these `shapes`; without those whose sizes data decide."""
    apart: tuple[list[int], list[int]] | None = None
    """Addresses of inputs and results that were found to be apart, with these `shapes`."""


def free_block(frame: Frame, word: int) -> None:
    """Free a block of a size that depends on data, if there is one."""
    address, frame.words[word] = frame.words[word], 0
    if address:
        frame.memory.free(address)


def run_reference(frame: Frame, layout: FrameLayout, call: CallOut, callback: Callback, table: int) -> None:
    """Run a node on its reference kernel. `table` has the addresses of its arguments, then of its results.

    A function of the user gets copies: it may keep what it is given, or write to it.
    """
    env = {dim: int(frame.words[layout.dims + k]) for k, dim in enumerate(layout.dim_vars)}
    pointers = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
    lends = not runs_users_code(call.symbol)
    args: list[np.ndarray | None] = []
    place = 0
    for slot in call.args:
        if slot is None:
            args.append(None)
            continue
        array = _view(frame.memory, pointers[place] or 0, slot, env)
        args.append(array if lends else array.copy())
        place += 1
    results = callback(call, args, env)
    with located(call.span):
        if len(results) != len(call.results):
            raise TcError(f"{call.symbol} returned {len(results)} results, expected {len(call.results)}")
        arrays = [_typed(slot, result, call.found_dims) for slot, result in zip(call.results, results, strict=True)]
        arrays = _bind_found(frame, layout, call, arrays, env)
        for slot, array in zip(call.results, arrays, strict=True):
            _store_result(frame, layout, slot, array, pointers[place] or 0, _is_found(slot, call.found_dims))
            place += 1


def _typed(slot: Slot, result: np.ndarray, found: tuple[Var, ...]) -> np.ndarray:
    """A result, contiguous, of the dtype of its slot, and of its rank where sizes are found."""
    result = np.ascontiguousarray(result).reshape(result.shape)
    if result.dtype != slot.type.dtype.numpy:
        raise TcError(f"a reference kernel returned {result.dtype}, expected {slot.type}")
    if result.ndim != slot.type.rank and _is_found(slot, found):
        if not result.size:  # of a loop that ran no time, whose body does not say what it stacks
            return np.zeros((0,) * slot.type.rank, result.dtype)
        raise TcError(f"a reference kernel returned shape {result.shape}, expected {slot.type}")
    return result


def _is_found(slot: Slot, found: tuple[Var, ...]) -> bool:
    """Whether the size of a result is found when it is made."""
    return any(node in found for node in walk(slot.type))


def _bind_found(
    frame: Frame, layout: FrameLayout, call: CallOut, arrays: Sequence[np.ndarray], env: dict[Var, int]
) -> list[np.ndarray]:
    """Give the dims that are found the sizes that results have there, of several results the first; all must have what follows, and have
    it then where they have no elements: a loop that ran no time does not know the sizes of what it stacks."""
    unknown = set(call.found_dims)
    for slot, array in zip(call.results, arrays, strict=True):
        for dim, size in zip(slot.type.shape, array.shape, strict=False):  # other ranks are not what follows
            if isinstance(dim, Var) and dim in unknown:
                unknown.remove(dim)
                env[dim] = frame.words[layout.dims + layout.dim_vars.index(dim)] = size
    sized = []
    for slot, array in zip(call.results, arrays, strict=True):
        expected = tuple(int(evaluate(dim, env)) for dim in slot.type.shape)
        if array.shape != expected and (array.size or 0 not in expected):
            raise TcError(f"a reference kernel returned shape {array.shape}, expected {expected}")
        sized.append(array.reshape(expected))
    return sized


def _store_result(frame: Frame, layout: FrameLayout, slot: Slot, result: np.ndarray, address: int, is_found: bool) -> None:
    """Copy a result to its place, which is made where its size was found."""
    if is_found:
        word = layout.dynamic + 2 * slot.index
        free_block(frame, word)
        address = frame.memory.allocate(result.nbytes)
        if not address:
            raise LimitError(NO_MEMORY.format(value=result.nbytes))
        frame.words[word] = address
    if result.nbytes:
        frame.memory.store(address, pack(result))


def _view(memory: ValueMemory, address: int, slot: Slot, env: dict[Var, int]) -> np.ndarray:
    """The slot's memory as an array."""
    shape = tuple(int(evaluate(dim, env)) for dim in slot.type.shape)
    dtype = slot.type.dtype
    size = dtype.bytes_of(math.prod(shape))
    if size == 0:
        return np.empty(shape, dtype.numpy)
    return unpack(memory.view(address, size), dtype, shape)
