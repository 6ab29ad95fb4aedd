"""Graphs of the driver: what a program gives to a stream, built from a log of it (see `calls`) and launched at once.

A graph is built of nodes, each after the one before, and not captured from a stream: the stream is the caller's, may be one that cannot be
captured or is being captured by its owner, and other threads may do meanwhile what a capture forbids. The nodes are known by that, so a
graph whose work is the same at other addresses gets these as parameters of its nodes.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from tc.codegen.box_assembly import MAP_BYTES
from tc.codegen.cuda.calls import COPY, STORE
from tc.codegen.cuda.device import CudaDevice, CudaQueue

HEADER_WORDS = 3
"""Of a log."""

_DEVICE_MEMORY, _HOST_MEMORY = 2, 1


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2. Source: cuda.h, as all structures and numbers here."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("sizes", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    )  # fmt: skip


class _End(ctypes.Structure):
    """Half of CUDA_MEMCPY3D: where it reads, or writes."""

    _fields_ = (
        ("x", ctypes.c_size_t), ("y", ctypes.c_size_t), ("z", ctypes.c_size_t), ("level", ctypes.c_size_t), ("kind", ctypes.c_int),
        ("host", ctypes.c_void_p), ("device", ctypes.c_uint64), ("array", ctypes.c_void_p), ("reserved", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t), ("height", ctypes.c_size_t),
    )  # fmt: skip


class _CopyNode(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = (("start", _End), ("to", _End), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("depth", ctypes.c_size_t))


class CudaGraph:
    """The parts of a log, in their order, as one executable graph. Used by one thread at a time, in the device's context.

    DeviceError when the driver refuses it.
    """

    def __init__(self, device: CudaDevice, parts: np.ndarray) -> None:
        """`parts`: int64[...], of which a copy is kept."""
        self._device = device
        self._parts = parts.copy()
        self._starts = _starts_of(self._parts)
        stores = [at for at in self._starts.tolist() if self._parts[at + 1] == STORE]
        self._words = device.pinned_words(max(len(stores), 1))  # what nodes read when the graph runs
        self._words[: len(stores)] = self._parts[[at + 3 for at in stores]]
        self._word_of = {at: self._words.ctypes.data + 8 * k for k, at in enumerate(stores)}
        self._graph = ctypes.c_void_p()
        self._executable = ctypes.c_void_p()
        self._call("cuGraphCreate", ctypes.byref(self._graph), 0)
        weakref.finalize(self, device.drop_graph, "cuGraphDestroy", self._graph).atexit = False
        self._nodes = self._add_nodes()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), self._graph, ctypes.c_uint64(0))
        weakref.finalize(self, device.drop_graph, "cuGraphExecDestroy", self._executable).atexit = False

    @property
    def nodes(self) -> int:
        """How many there are."""
        return len(self._nodes)

    def update(self, parts: np.ndarray) -> bool:
        """Let it do the work of another log from now on. False when it cannot: the work has another form, or the driver refuses."""
        if parts.shape != self._parts.shape:
            return False
        different = np.flatnonzero(parts != self._parts)
        if not different.size:
            return True
        places = np.unique(np.searchsorted(self._starts, different, side="right") - 1)
        for k in places.tolist():
            at = int(self._starts[k])
            end = at + int(self._parts[at])
            if _form(parts, at) != _form(self._parts, at) or not self._set(k, parts, at):
                return False
            self._parts[at:end] = parts[at:end]
        return True

    def launch(self, queue: CudaQueue) -> None:
        """Give it to the stream of a queue."""
        self._call("cuGraphLaunch", self._executable, ctypes.c_void_p(queue.stream))

    def _add_nodes(self) -> list[ctypes.c_void_p]:
        nodes: list[ctypes.c_void_p] = []
        for at in self._starts.tolist():
            node, before = ctypes.c_void_p(), (ctypes.c_void_p * 1)(nodes[-1] if nodes else None)
            first = ctypes.byref(node), self._graph, before if nodes else None, ctypes.c_size_t(len(nodes[-1:]))
            if self._parts[at + 1] in (COPY, STORE):
                self._call("cuGraphAddMemcpyNode", *first, ctypes.byref(self._copy(self._parts, at)), ctypes.c_void_p(self._device.context))
            else:
                launch, _kept = _kernel(self._parts, at)
                self._call("cuGraphAddKernelNode_v2", *first, ctypes.byref(launch))
            nodes.append(node)
        return nodes

    def _set(self, k: int, parts: np.ndarray, at: int) -> bool:
        """Change a node; False when the driver refuses."""
        node = self._executable, self._nodes[k]
        if parts[at + 1] in (COPY, STORE):
            new = ctypes.byref(self._copy(parts, at)), ctypes.c_void_p(self._device.context)
            return self._device.graph_call("cuGraphExecMemcpyNodeSetParams", *node, *new) == 0
        launch, _kept = _kernel(parts, at)
        return self._device.graph_call("cuGraphExecKernelNodeSetParams_v2", *node, ctypes.byref(launch)) == 0

    def _copy(self, parts: np.ndarray, at: int) -> _CopyNode:
        to = _End(kind=_DEVICE_MEMORY, device=int(parts[at + 2]), height=1)
        if parts[at + 1] == COPY:
            start, size = _End(kind=_DEVICE_MEMORY, device=int(parts[at + 3]), height=1), int(parts[at + 4])
        else:
            start, size = _End(kind=_HOST_MEMORY, host=self._word_of[at], height=1), 8
        to.pitch = start.pitch = size
        return _CopyNode(start, to, size, 1, 1)

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._device.graph_call(name, *arguments)
        if status:
            raise self._device.error(f"a graph ({name})", status)


def launch_parts(device: CudaDevice, queue: CudaQueue, parts: np.ndarray) -> None:
    """Give the parts of a log to the stream of a queue one by one. What goes wrong is raised."""
    for at in _starts_of(parts).tolist():
        kind, *values = parts[at + 1 : at + int(parts[at])].tolist()
        if kind == COPY:
            queue.copy(*values)
        elif kind == STORE:
            queue.upload(values[0], parts[at + 3 : at + 4])
        else:
            node, _kept = _kernel(parts, at)
            status = device.graph_call(
                "cuLaunchKernel", ctypes.c_void_p(kind), *(ctypes.c_uint(size) for size in (*node.sizes, node.shared)),
                ctypes.c_void_p(queue.stream), ctypes.c_void_p(node.parameters), None,
            )  # fmt: skip
            if status:
                raise device.error("a launch", status)


def _starts_of(parts: np.ndarray) -> np.ndarray:
    """Where each part of a log begins."""
    starts, at = [], 0
    while at < len(parts):
        starts.append(at)
        at += int(parts[at])
    return np.array(starts, np.int64)


def _form(parts: np.ndarray, at: int) -> tuple[int, ...]:
    """What a node cannot change: its function and how many parameters it has, or that it copies so many bytes; a stored value."""
    kind = int(parts[at + 1])
    same = {COPY: (4,), STORE: (3,)}.get(kind, ())
    return int(parts[at]), kind, *(int(parts[at + k]) for k in same)


def _kernel(parts: np.ndarray, at: int) -> tuple[_KernelNode, tuple[Any, ...]]:
    """A launch as the driver takes it, and what it points to: its parameters, and where each of them is."""
    function, shared, *sizes, maps = parts[at + 1 : at + 10].tolist()
    words = parts[at + 10 : at + int(parts[at])].copy()
    first = maps * MAP_BYTES // 8
    starts = [*range(0, first, MAP_BYTES // 8), *range(first, len(words))]
    places = (ctypes.c_void_p * max(len(starts), 1))(*(words.ctypes.data + 8 * start for start in starts))
    node = _KernelNode(function, (ctypes.c_uint * 6)(*sizes), shared, ctypes.addressof(places), None, None, None)
    return node, (words, places)
