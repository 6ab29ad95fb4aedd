"""The graphs of a program on a CUDA device: what a call of known shapes gives to its stream, launched at once.

The first call of some shapes runs as it is, and counts; the second keeps what it would launch in a log, of which a graph is made. Calls
after it launch the graph: at the same addresses without running the program at all, at others after it has been run into a log again, and
the nodes have got what is different. A node on a reference kernel divides the program: what comes before it is one graph, what comes behind
another.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tc.codegen.cuda.device import CudaDevice, CudaQueue
from tc.codegen.cuda.graphs import HEADER_WORDS, CudaGraph, launch_parts
from tc.errors import DeviceError, LimitError

MOST_GRAPHS = 16
"""Shapes of which a frame keeps graphs: the last that were used."""

LEAST_LAUNCHES = 3
"""Of a program that is worth a graph: launching one takes about as long as two kernels."""


@dataclass
class _Known:
    """Calls of some shapes: how many words and parts their log has, the graphs, the addresses that these have, and whether the host has
    work between them."""

    words: int
    parts: int
    graphs: list[CudaGraph] = field(default_factory=list)
    addresses: tuple[int, ...] | None = None
    is_divided: bool = False


class ProgramGraphs:
    """The graphs of one frame, whose queue nobody else uses."""

    def __init__(self, device: CudaDevice, queue: CudaQueue) -> None:
        self._device = device
        self._queue = queue
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._log: np.ndarray | None = None
        self._current: _Known | None = None
        self._place = 0
        self.refused = ""
        """Why the driver took no graph, the last time."""

    def run(self, shapes: Hashable, addresses: tuple[int, ...], program: Callable[[], int]) -> int:
        """Do what `program` would do and return what it would return: for equal shapes and addresses it launches the same."""
        known = self._known.get(shapes)
        if known is None:
            return self._count(shapes, program)
        self._known.move_to_end(shapes)
        if known.parts < LEAST_LAUNCHES:
            return program()
        if known.addresses == addresses and not known.is_divided:
            for graph in known.graphs:
                graph.launch(self._queue)
            return 0
        return self._record(known, addresses, program)

    @property
    def nodes(self) -> list[int]:
        """How many nodes each graph has."""
        return [graph.nodes for known in self._known.values() for graph in known.graphs]

    @contextlib.contextmanager
    def divided(self) -> Iterator[None]:
        """Inside, the host does what comes between launches: all before has been given to the device, and the queue takes work."""
        known, log = self._current, self._log
        if known is None:
            yield
            return
        known.is_divided = True
        self._launch(known)
        self._queue.record(None)
        try:
            yield
        finally:
            self._queue.record(log)

    def _count(self, shapes: Hashable, program: Callable[[], int]) -> int:
        log = np.zeros(HEADER_WORDS, np.int64)
        self._queue.record(log)
        try:
            status = program()
        finally:
            self._queue.record(None)
        if status == 0 and not self._queue.has_failed:
            self._known[shapes] = _Known(int(log[1]), int(log[2]))
            while len(self._known) > MOST_GRAPHS:
                self._known.popitem(last=False)
        return status

    def _record(self, known: _Known, addresses: tuple[int, ...], program: Callable[[], int]) -> int:
        log = np.zeros(HEADER_WORDS + known.words, np.int64)
        log[0] = known.words
        self._queue.record(log)
        self._log, self._current, self._place, known.addresses = log, known, 0, None
        try:
            status = program()
            if status == 0:
                self._launch(known)
                known.addresses = addresses
            return status
        finally:
            self._queue.record(None)
            self._log = self._current = None

    def _launch(self, known: _Known) -> None:
        """Make a graph of what is in the log, or change the one that is there, and launch it; the log is empty then."""
        log = self._log
        assert log is not None and log[1] <= log[0], "equal shapes launch the same"
        parts = log[HEADER_WORDS : HEADER_WORDS + log[1]]
        if not len(parts):
            return
        graphs, place = known.graphs, self._place
        try:
            if place == len(graphs) or not graphs[place].update(parts):
                graphs[place : place + 1] = [CudaGraph(self._device, parts)]
            graphs[place].launch(self._queue)
        except (DeviceError, LimitError) as error:
            self.refused, known.parts = error.text, 0
            self._queue.record(None)
            launch_parts(self._device, self._queue, parts)
            self._queue.record(log)
        self._place += 1
        log[1:HEADER_WORDS] = 0
