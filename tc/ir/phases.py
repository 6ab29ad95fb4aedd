"""Copies of boxes, the phases that they complete, and products of groups: what is on its way in one block, and who knows that it arrived.

The interpreter runs this with values, the verifier without.

A copy lands as late as it can: when nobody can go on, and somebody waits for its barrier. What a thread knows is a set of *events*: copies
that have landed, and products that are computed. A thread hands all it knows to the phase at which it arrives; who waits for the phase
gets that, and the copies that count for it. A product may read what its threads know to have landed; a copy may replace what its thread
knows to have been read. So what is missing is found, however things happen to be timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, NoReturn, Protocol

import numpy as np

from tc.errors import VerifyError
from tc.ir.expr import Buffer

LANES = 32
"""Of a warp."""

NO_COPY = 0
"""In the place of the event of a copy."""


class Running(Protocol):
    """The run that a block is of: the function's name, the thread that touches memory, threads and statements in words."""

    name: str
    thread: int

    def who(self, thread: int) -> str: ...

    def text(self, code: int) -> str: ...


class BoxMemory:
    """A shared buffer that boxes are copied to; its elements are `data`, nothing where they do not matter. `copies`: the event of the copy
    that each element is of; `landed`: whether it is there."""

    def __init__(self, watch: Any, buffer: Buffer, shape: tuple[int, ...], data: list[Any]) -> None:
        self.watch, self.buffer, self.shape, self.data = watch, buffer, shape, data
        self.copies = np.zeros(prod(shape), np.int64)
        self.landed = np.zeros(prod(shape), bool)

    def load(self, place: int, site: int) -> NoReturn:
        self._refuse("reads", site)

    def store(self, place: int, value: Any, site: int) -> NoReturn:
        self._refuse("writes", site)

    def _refuse(self, does: str, site: int) -> NoReturn:
        watch = self.watch
        raise VerifyError(
            f"{watch.name}: {watch.who(watch.thread)} {does} an element of {self.buffer.name} in `{watch.text(site)}`, to which boxes are "
            f"copied: only products of groups may read it"
        )


@dataclass
class PhaseBarrier:
    """`missing` arrivals and `missing_bytes` of the current phase; what those know who arrived, and what is known of the last phase."""

    arrivals: int
    missing: int
    missing_bytes: int = 0
    phase: int = 0
    gathered: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)

    def settle(self) -> None:
        """Go to the next phase if nothing is missing."""
        if not self.missing and not self.missing_bytes:
            self.phase += 1
            self.missing = self.arrivals
            self.known |= self.gathered
            self.gathered = set()


@dataclass(frozen=True)
class BoxCopy:
    """A copy on its way: which elements of what, their values, and where its bytes count."""

    event: int
    memory: BoxMemory
    places: np.ndarray
    values: list[Any] | None
    size_bytes: int
    barrier: tuple[int, int]
    site: int


Registers = tuple[list[Any], int, list[Any]]
"""Of a thread: its memory, where they begin in it, and values."""


@dataclass(frozen=True)
class GroupProduct:
    """A product on its way: by which threads, the registers of each of them with what they will hold, and those that it reads with what
    they hold."""

    event: int
    threads: tuple[int, ...]
    results: Mapping[int, Registers]
    operands: Mapping[int, Registers]
    site: int


@dataclass(frozen=True, order=True)
class PhaseStop:
    """A thread that waits for the phase of a parity. `site`: its statement."""

    barrier: tuple[int, int]
    parity: int
    site: int


class Phases:
    """All of one block of `threads` threads."""

    def __init__(self, watch: Running, threads: int) -> None:
        self.watch = watch
        self.events = count(1)
        self.barriers: dict[tuple[int, int], PhaseBarrier] = {}
        self.names: dict[tuple[int, int], str] = {}
        self.known: list[set[int]] = [set() for _ in range(threads)]
        self.copies: list[BoxCopy] = []
        self.readers: dict[int, set[int]] = {}
        self.open: list[list[GroupProduct]] = [[] for _ in range(threads)]
        self.groups: list[list[list[GroupProduct]]] = [[] for _ in range(threads)]
        self.begun = [False] * threads
        self.registers: dict[tuple[int, int, int], Any] = {}

    # -- barriers

    def set_up(self, memory: Any, place: int, arrivals: int, site: int) -> None:
        key = (id(memory), place)
        if key in self.barriers:
            self.fail(site, f"sets up {memory.buffer.name}[{place}], which is a phase barrier already")
        memory.store(place, arrivals, site)
        self.barriers[key] = PhaseBarrier(arrivals, arrivals)
        self.names[key] = f"{memory.buffer.name}[{place}]"

    def at(self, memory: Any, place: int, site: int) -> tuple[int, int]:
        """The barrier at a place; whoever set it up has met the others at a block's barrier since, or there is a race."""
        memory.load(place, site)
        return id(memory), place

    def arrive(self, memory: Any, place: int, expected_bytes: int, site: int) -> None:
        key = self.at(memory, place, site)
        barrier = self.barriers[key]
        if not barrier.missing:
            self.fail(site, f"arrives at {self.names[key]}, whose phase {barrier.phase} waits for no more arrivals")
        barrier.missing -= 1
        barrier.missing_bytes += expected_bytes
        barrier.gathered |= self.known[self.watch.thread]
        barrier.settle()

    def has_passed(self, stop: PhaseStop) -> bool:
        return self.barriers[stop.barrier].phase % 2 != stop.parity

    def passed(self, thread: int, stop: PhaseStop) -> None:
        """A thread has waited for a phase."""
        self.known[thread] |= self.barriers[stop.barrier].known

    def stop(self, memory: Any, place: int, parity: int, site: int) -> PhaseStop:
        if parity not in (0, 1):
            self.fail(site, f"waits for parity {parity}")
        return PhaseStop(self.at(memory, place, site), parity, site)

    def meet(self) -> None:
        """All threads have met at a block's barrier."""
        everything = set().union(*self.known)
        self.known = [set(everything) for _ in self.known]

    # -- copies

    def copy(
        self, memory: BoxMemory, place: int, extents: Sequence[int], values: list[Any] | None, barrier: Any, at: int, site: int
    ) -> None:
        """A box begins to be copied, to so much of the last dims; its values, if they matter."""
        key = self.at(barrier, at, site)
        places = place + tile_offsets(memory.shape, extents)
        if places.max(initial=0) >= len(memory.copies):
            self.fail(site, f"copies a box beyond {memory.buffer.name}")
        self._check_replaced(memory, places, site)
        event = next(self.events)
        memory.copies[places], memory.landed[places] = event, False
        size_bytes = len(places) * memory.buffer.dtype.size_bytes
        self.copies.append(BoxCopy(event, memory, places, values, size_bytes, key, site))

    def _check_replaced(self, memory: BoxMemory, places: np.ndarray, site: int) -> None:
        old = np.unique(memory.copies[places])
        for event in old[old != NO_COPY].tolist():
            mine = self.known[self.watch.thread]
            what = f"copies a box to {memory.buffer.name}"
            if not memory.landed[places][memory.copies[places] == event].all():
                self.fail(site, f"{what}, where another copy is on its way")
            if event not in self.readers:
                self.fail(site, f"{what}, where nobody has read what was copied before")
            if not self.readers[event] <= mine:
                self.fail(site, f"{what}, which products may still read: it has not waited for those who computed them")

    def deliver(self, awaited: Iterable[PhaseStop]) -> bool:
        """Let copies land that count for barriers at which threads wait; whether there were any."""
        wanted = {stop.barrier for stop in awaited}
        landing = [copy for copy in self.copies if copy.barrier in wanted]
        self.copies = [copy for copy in self.copies if copy.barrier not in wanted]
        for copy in landing:
            for place, value in zip(copy.places.tolist(), copy.values or (), strict=copy.values is not None):
                copy.memory.data[place] = value
            copy.memory.landed[copy.places] = True
            barrier = self.barriers[copy.barrier]
            barrier.gathered.add(copy.event)
            barrier.missing_bytes -= copy.size_bytes
            if barrier.missing_bytes < 0 and not barrier.missing:
                name = self.names[copy.barrier]
                raise VerifyError(f"{self.watch.name}: more bytes are copied for {name} than its phase waits for: {self._copying(copy)}")
            barrier.settle()
        return bool(landing)

    def _copying(self, copy: BoxCopy) -> str:
        return f"`{self.watch.text(copy.site)}`"

    # -- products

    def begin(self) -> None:
        self.begun[self.watch.thread] = True

    def read(self, memory: BoxMemory, place: int, extents: Sequence[int], threads: Sequence[int], site: int) -> tuple[list[Any], set[int]]:
        """A matrix that a group of threads reads, and the copies that it is of."""
        places = place + tile_offsets(memory.shape, extents)
        events = set(np.unique(memory.copies[places]).tolist())
        name = memory.buffer.name
        if NO_COPY in events:
            self.fail(site, f"reads elements of {name} that nothing has been copied to")
        has_landed = bool(memory.landed[places].all())
        for thread in threads:
            if not has_landed or not events <= self.known[thread]:
                self.watch.thread = thread
                what = "may still be on their way: it has not waited for the phase that they complete"
                self.fail(site, f"reads elements of {name} that {what}")
        return [memory.data[k] for k in places.tolist()] if memory.data else [], events

    def check_begun(self, thread: int, site: int) -> None:
        """A thread's registers have been handed over to products."""
        if not self.begun[thread]:
            self.watch.thread = thread
            self.fail(site, "begins a product, but its registers have not been handed over")

    def sums(self, thread: int, memory: list[Any], place: int, number: int, site: int) -> list[Any]:
        """Registers of a thread that a product adds to: those that are on their way are as the products before leave them."""
        found = [self.registers.get((thread, id(memory), place + k), memory[place + k]) for k in range(number)]
        self.check_begun(thread, site)
        if None in found:
            self.watch.thread = thread
            self.fail(site, "adds a product to registers in which nothing was stored")
        return found

    def issue(
        self, threads: Sequence[int], read: set[int], results: Mapping[int, Registers], operands: Mapping[int, Registers], site: int
    ) -> None:
        """A product begins: of each warp, an event of its own, as each waits for itself. `operands`: registers that it reads."""
        for first in range(0, len(threads), LANES):
            warp = tuple(threads[first : first + LANES])
            event = next(self.events)
            for copied in read:
                self.readers.setdefault(copied, set()).add(event)
            made, held = ({thread: each[thread] for thread in warp if thread in each} for each in (results, operands))
            product = GroupProduct(event, warp, made, held, site)
            for thread in warp:
                self.open[thread].append(product)
                memory, place, values = results[thread]
                for k, value in enumerate(values):
                    self.registers[thread, id(memory), place + k] = value
                    memory[place + k] = None

    def commit(self) -> None:
        thread = self.watch.thread
        self.groups[thread].append(self.open[thread])
        self.open[thread] = []

    def wait(self, pending: int, gives_back: bool, site: int) -> None:
        """The running thread's groups of products are computed, but for the last ones."""
        thread = self.watch.thread
        groups = self.groups[thread]
        done, left = groups[: max(len(groups) - pending, 0)], groups[max(len(groups) - pending, 0) :]
        self.groups[thread] = left
        busy = {self._place(thread, product) for product in (*self.open[thread], *(p for group in left for p in group))}
        for product in (product for group in done for product in group):
            self.known[thread].add(product.event)
            self._check_operands(thread, product, site)
            if self._place(thread, product) not in busy:
                self._store(thread, product, site)
        if gives_back:
            self.begun[thread] = False

    @staticmethod
    def _place(thread: int, product: GroupProduct) -> tuple[int, int]:
        memory, place, _ = product.results[thread]
        return id(memory), place

    def _check_operands(self, thread: int, product: GroupProduct, site: int) -> None:
        """The registers that a product reads are as they were when it began."""
        memory, place, values = product.operands.get(thread, ([], 0, []))
        if any(memory[place + k] is not value for k, value in enumerate(values)):
            self.fail(site, f"has stored in a register that `{self.watch.text(product.site)}` reads")

    def _store(self, thread: int, product: GroupProduct, site: int) -> None:
        memory, place, values = product.results[thread]
        for k in range(len(values)):
            value = self.registers.pop((thread, id(memory), place + k), None)
            if value is None:
                continue
            if memory[place + k] is not None:
                self.fail(site, f"has stored in a register that `{self.watch.text(product.site)}` adds to")
            memory[place + k] = value

    def adds_to(self, thread: int) -> bool:
        """Whether a thread has products on their way."""
        return bool(self.open[thread]) or any(self.groups[thread])

    # -- ends

    def check_over(self) -> None:
        """Nothing is on its way when a block ends."""
        if self.copies:
            raise VerifyError(f"{self.watch.name}: a block ends while a box is on its way: {self._copying(self.copies[0])}")
        for thread, (opened, groups) in enumerate(zip(self.open, self.groups, strict=True)):
            if opened or any(groups):
                product = (opened or next(group for group in groups if group))[0]
                text = self.watch.text(product.site)
                raise VerifyError(f"{self.watch.name}: {self.watch.who(thread)} ends while a product is on its way: `{text}`")

    def stuck(self, stops: Mapping[int, PhaseStop]) -> NoReturn:
        """Nobody can go on."""
        waits = {stop.barrier: (thread, stop) for thread, stop in sorted(stops.items(), reverse=True)}
        said = " and ".join(self._wait(thread, stop) for thread, stop in sorted(waits.values()))
        raise VerifyError(f"{self.watch.name}: nobody can go on: {said}")

    def _wait(self, thread: int, stop: PhaseStop) -> str:
        barrier, name = self.barriers[stop.barrier], self.names[stop.barrier]
        left = f"{barrier.missing} arrivals and {barrier.missing_bytes} bytes"
        return f"{self.watch.who(thread)} waits in `{self.watch.text(stop.site)}` for phase {barrier.phase} of {name}, without {left}"

    def fail(self, site: int, what: str) -> NoReturn:
        watch = self.watch
        raise VerifyError(f"{watch.name}: {watch.who(watch.thread)} {what}, in `{watch.text(site)}`")


def tile_offsets(shape: Sequence[int], extents: Sequence[int]) -> np.ndarray:
    """Where the elements of a tile of the last dims of a buffer are behind its first one, row by row."""
    found, stride = np.zeros(1, np.int64), 1
    for size, extent in zip(reversed(shape), reversed(extents)):
        found = (np.arange(extent)[:, None] * stride + found[None, :]).reshape(-1)
        stride *= size
    return found


def box_values(source: list[Any], shape: Sequence[int], corner: Sequence[int], extents: Sequence[int], zero: Any) -> list[Any]:
    """The elements of a box, row by row; zeros outside."""
    places, inside = np.zeros(1, np.int64), np.ones(1, bool)
    for size, first, extent in zip(shape, corner, extents, strict=True):
        index = first + np.arange(extent)
        places = (places[:, None] * size + index[None, :]).reshape(-1)
        inside = (inside[:, None] & ((index >= 0) & (index < size))[None, :]).reshape(-1)
    return [source[place] if is_there else zero for place, is_there in zip(places.tolist(), inside.tolist(), strict=True)]

