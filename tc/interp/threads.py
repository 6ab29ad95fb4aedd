"""The threads of a launch in its finished form, one block after the other: coroutines that stop at barriers, and memory that is watched.

Between two barriers the threads of a block run one after the other, in any order. What each touches of shared and global memory is noted,
so that a pair of threads that touch one element, one of them writing it, is found whatever the order. Two threads that write the
same value are not reported. What a thread copies asynchronously nobody touches before that thread has waited for it; a copy counts as
written when it is waited for. Nothing orders the blocks of a launch: what is global is watched between blocks too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NoReturn

import numpy as np

from tc.errors import VerifyError
from tc.interp.warps import LANES, WarpStop, run_group, run_warp
from tc.ir.expr import Buffer
from tc.ir.intrinsic import INTRINSICS, is_of_group, lanes_of
from tc.ir.phases import Phases, PhaseStop

Coroutine = Generator["tuple[int, ...] | WarpStop | PhaseStop", None, None]

Threads = Callable[..., Coroutine]
"""What the thread of given coordinates does; it yields the number of each barrier that it reaches, and the loops around it."""

_SITE_BITS = 20
_SITE = (1 << _SITE_BITS) - 1
UNWRITTEN = None
"""What memory of a block or a thread holds before anything is stored."""


Copied = tuple["WatchedMemory", int, int]
"""An element of a memory that is on its way, and the statement that copies it."""


@dataclass
class Watch:
    """One run of a function: the interval between barriers (of any block), the thread and the block that are running.

    `sites`: the text of the statements that touch memory, by number; `order`: that in which threads run.
    """

    name: str
    sites: list[Callable[[], str]]
    order: Callable[[Iterable[int]], Iterable[int]]
    interval: int = 0
    launch: int = 0
    block: int = 0
    thread: int = 0
    names: Sequence[str] = ()
    threads: list[tuple[int, ...]] = field(default_factory=list)
    groups: list[list[list[Copied]]] = field(default_factory=list)
    phases: Phases = field(init=False)

    def begin(self, names: Sequence[str]) -> None:
        """A launch, whose threads have coordinates of these names."""
        self.launch += 1
        self.block = 0
        self.names = names

    def run_block(self, run: Threads, extents: Sequence[int]) -> None:
        """All threads of one block, to their end."""
        self.block += 1
        self.threads = list(product(*map(range, extents)))
        self.groups = [[[]] for _ in self.threads]
        self.phases = Phases(self, len(self.threads))
        alive = {k: run(*self.threads[k]) for k in self.order(range(len(self.threads)))}
        while alive:
            self.interval += 1
            reached = self._run_interval(alive)
            self._check_met(reached)
            self.phases.meet()
            alive = {k: coroutine for k, coroutine in alive.items() if reached[k] is not None}
        self.phases.check_over()

    def _run_interval(self, alive: Mapping[int, Coroutine]) -> dict[int, tuple[int, ...] | None]:
        """All threads, up to a barrier or their end: where each is then."""
        reached: dict[int, tuple[int, ...] | None] = {}
        stops: dict[int, WarpStop] = {}
        waiting: dict[int, PhaseStop] = {}
        running = list(alive)
        while True:
            for self.thread in running:
                found = next(alive[self.thread], None)
                if isinstance(found, WarpStop):
                    stops[self.thread] = found
                elif isinstance(found, PhaseStop):
                    waiting[self.thread] = found
                else:
                    reached[self.thread] = found
            released = {*self._run_warps(stops, waiting), *self._pass_phases(waiting)}
            running = [k for k in alive if k in released]
            if running:
                continue
            if not waiting and not stops:
                return reached
            if not self.phases.deliver(waiting.values()):
                self.phases.stuck(waiting)

    def _pass_phases(self, waiting: dict[int, PhaseStop]) -> list[int]:
        """Those who need not wait any more."""
        done = [thread for thread, stop in waiting.items() if self.phases.has_passed(stop)]
        for thread in done:
            self.phases.passed(thread, waiting.pop(thread))
        return done

    def commit(self) -> None:
        """What the running thread copies from here on is in another group."""
        self.groups[self.thread].append([])

    def wait(self, pending: int) -> None:
        """The running thread's groups are done, but for the last ones, and what is in none yet."""
        groups = self.groups[self.thread]
        done = max(len(groups) - 1 - pending, 0)
        for memory, place, site in (copied for group in groups[:done] for copied in group):
            memory.arrive(place, site)
        del groups[:done]

    def _run_warps(self, stops: dict[int, WarpStop], waiting: Mapping[int, PhaseStop]) -> list[int]:
        """What the warps do whose lanes have stopped, or groups of four of them; these go on. VerifyError where some lanes of one are
        elsewhere, but for a phase that they wait for."""
        released: list[int] = []
        for thread in sorted(stops):
            if thread not in stops:
                continue
            first = stops[thread]
            count = lanes_of(INTRINSICS[first.name])
            lanes = range(thread // count * count, (thread // count + 1) * count)
            if any(lane in waiting for lane in lanes):
                continue
            apart = next((lane for lane in lanes if lane not in stops or stops[lane].place != first.place), None)
            if apart is not None:
                who = self.who(apart) if apart < len(self.threads) else f"lane {apart % LANES}, of which there is no thread,"
                raise VerifyError(f"{self.name}: lanes of a warp do not meet at `{self.text(first.place[0])}`: {who} is elsewhere")
            together = {lane: stops.pop(lane) for lane in lanes}
            (run_group if is_of_group(first.name) else run_warp)(self, together)
            released += lanes
        return released

    def _check_met(self, reached: dict[int, tuple[int, ...] | None]) -> None:
        """All threads are at the same barrier, or at the end."""
        first = min(reached)
        other = next((k for k in sorted(reached) if reached[k] != reached[first]), None)
        if other is not None:
            places = [self._place(reached[k]) for k in (first, other)]
            raise VerifyError(
                f"{self.name}: threads of a block do not meet: {self.who(first)} is {places[0]}, but {self.who(other)} is {places[1]}"
            )

    def _place(self, barrier: tuple[int, ...] | None) -> str:
        if barrier is None:
            return "at its end"
        number, *loops = barrier
        return f"at {self.sites[number]()}" + (f" in iteration {', '.join(map(str, loops))}" if loops else "")

    def who(self, thread: int) -> str:
        """A thread in words."""
        return f"thread ({', '.join(f'{name}={k}' for name, k in zip(self.names, self.threads[thread], strict=True))})"

    def text(self, code: int) -> str:
        """The statement that a note is of."""
        return self.sites[code & _SITE]()


class WatchedMemory:
    """A buffer that several threads of a block see: the values, and who touched each element last, and when.

    A note is a number: the interval, the thread, the statement. `readers` are the first and another thread that read in an interval.
    """

    __slots__ = ("buffer", "copies", "data", "other_readers", "readers", "shape", "watch", "writers")

    def __init__(self, watch: Watch, buffer: Buffer, shape: tuple[int, ...], data: list[Any]) -> None:
        self.watch, self.buffer, self.shape, self.data = watch, buffer, shape, data
        self.writers = [0] * len(data)
        self.readers = [0] * len(data)
        self.other_readers = [0] * len(data)
        self.copies: dict[int, tuple[int, int]] = {}  # of elements on their way, by whom and in which statement

    def _now(self) -> tuple[int, int]:
        """The time, and the number of who is running."""
        return self.watch.interval, self.watch.thread

    def load(self, place: int, site: int) -> Any:
        """The value of an element."""
        if place in self.copies:
            self._on_its_way(place, site, "reads")
        interval, thread = self._now()
        me = interval << 24 | thread
        if (writer := self.writers[place] >> _SITE_BITS) != me and writer >> 24 == interval:
            self._race(place, self.writers[place], "writes", site, "reads")
        if (reader := self.readers[place] >> _SITE_BITS) >> 24 != interval:
            self.readers[place] = me << _SITE_BITS | site
        elif reader != me:
            self.other_readers[place] = me << _SITE_BITS | site
        value = self.data[place]
        if value is UNWRITTEN:
            unwritten(self.watch, self.buffer, self.shape, place, site)
        return value

    def store(self, place: int, value: Any, site: int) -> None:
        """Change an element."""
        self.note_store(place, value, site)
        self.data[place] = value

    def note_store(self, place: int, value: Any, site: int) -> None:
        """An element is about to be changed."""
        if place in self.copies:
            self._on_its_way(place, site, "writes")
        interval, thread = self._now()
        me = interval << 24 | thread
        for notes in (self.readers, self.other_readers):
            if (reader := notes[place] >> _SITE_BITS) != me and reader >> 24 == interval:
                self._race(place, notes[place], "reads", site, "writes")
        if (writer := self.writers[place] >> _SITE_BITS) != me and writer >> 24 == interval and not is_same(self.data[place], value):
            self._race(place, self.writers[place], "writes", site, "writes another value")
        self.writers[place] = me << _SITE_BITS | site

    def copy(self, place: int, value: Any, site: int) -> None:
        """Begin to change an element."""
        self.store(place, value, site)
        self.copies[place] = (self.watch.thread, site)
        self.watch.groups[self.watch.thread][-1].append((self, place, site))

    def arrive(self, place: int, site: int) -> None:
        """An element that the running thread copies is there."""
        del self.copies[place]
        interval, thread = self._now()
        self.writers[place] = (interval << 24 | thread) << _SITE_BITS | site

    def _on_its_way(self, place: int, site: int, does: str) -> NoReturn:
        watch, (thread, copying) = self.watch, self.copies[place]
        raise VerifyError(
            f"{watch.name}: {watch.who(watch.thread)} {does} {element(self.buffer, self.shape, place)} in `{watch.text(site)}`, which may "
            f"still be on its way: {watch.who(thread)} copies it in `{watch.text(copying)}` and has not waited for that"
        )

    def _race(self, place: int, note: int, did: str, site: int, does: str) -> NoReturn:
        watch = self.watch
        other = (note >> _SITE_BITS) & 0xFFFFFF
        raise VerifyError(
            f"{watch.name}: a race on {element(self.buffer, self.shape, place)}: {watch.who(other)} {did} it in `{watch.text(note)}`, "
            f"{watch.who(watch.thread)} {does} in `{watch.text(site)}`, and no barrier is between"
        )


class BetweenBlocks(WatchedMemory):
    """Who touched global memory last, by blocks of one launch."""

    __slots__ = ()

    def _now(self) -> tuple[int, int]:
        return self.watch.launch, self.watch.block

    def _race(self, place: int, note: int, did: str, site: int, does: str) -> NoReturn:
        watch = self.watch
        raise VerifyError(
            f"{watch.name}: a race on {element(self.buffer, self.shape, place)}: block {(note >> _SITE_BITS) & 0xFFFFFF} {did} it in "
            f"`{watch.text(note)}`, block {watch.block} of the same launch {does} in `{watch.text(site)}`"
        )


class WatchedGlobal(WatchedMemory):
    """A buffer that all blocks see."""

    __slots__ = ("blocks",)

    def __init__(self, watch: Watch, buffer: Buffer, shape: tuple[int, ...], data: list[Any]) -> None:
        super().__init__(watch, buffer, shape, data)
        self.blocks = BetweenBlocks(watch, buffer, shape, data)

    def load(self, place: int, site: int) -> Any:
        self.blocks.load(place, site)
        return super().load(place, site)

    def note_store(self, place: int, value: Any, site: int) -> None:
        self.blocks.note_store(place, value, site)
        super().note_store(place, value, site)


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are one number; not a number is itself."""
    return a is not UNWRITTEN and b is not UNWRITTEN and bool(a == b or (a != a and b != b))


def unwritten(watch: Watch, buffer: Buffer, shape: tuple[int, ...], place: int, site: int) -> NoReturn:
    """An element of a block's or a thread's memory is read, but nothing was stored in it."""
    who, what = watch.who(watch.thread), element(buffer, shape, place)
    why = "a product adds to it, and has not been awaited" if watch.phases.adds_to(watch.thread) else "nothing has been stored there"
    raise VerifyError(f"{watch.name}: {who} reads {what} in `{watch.text(site)}`, but {why}")


def element(buffer: Buffer, shape: tuple[int, ...], place: int) -> str:
    """An element in words."""
    indices = np.unravel_index(place, shape) if shape else ()
    return f"{buffer.name}[{', '.join(str(int(k)) for k in indices)}]"
