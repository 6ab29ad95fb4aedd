"""Random legal schedules of small programs of every class of block, with ragged sizes.

A trace is made by proposing steps at random and keeping those that the primitives accept. What is proposed leans towards
schedules that people write: tiles, fused stages, packed operands, partial results.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tc.errors import ScheduleError
from tc.ir.expr import Buffer, Const
from tc.ir.loop import Alloc, AxisKind, For, PrimFunc
from tc.ir.uses import buffers_read, buffers_written
from tc.schedule.step import Schedule
from tc.schedule.tree import Place, block_places, statements
from tests.schedule.random_problems import CLASSES
from tests.schedule.uneven import TEXTS

AIMED = {*TEXTS, "argmax"}
"""Problems of loops of different lengths, and of blocks that few steps take as they have two results."""


@dataclass
class Proposer:
    """Proposes random steps for a schedule. One that is aimed mostly takes blocks of the kind that a step is for: where loops are of
    different lengths and stages are few, others are hardly ever legal."""

    schedule: Schedule
    rng: np.random.Generator
    is_aimed: bool = False

    def propose(self) -> None:
        """One random step; ScheduleError when it is refused."""
        moves = (
            (self.split, 5),
            (self.fuse, 2),
            (self.reorder, 4),
            (self.mark, 4),
            (self.inline, 1),
            (self.reverse_inline, 1),
            (self.move, 5),
            (self.reverse_move, 3),
            (self.decompose, 2),
            (self.init, float(self.schedule.func.name == "int8")),
            (self.rfactor, 3),
            (self.cache, 3),
            (self.layout, 1),
            (self.pad, 0.1 if self.is_aimed else 1),
            (self.blockize, 0.3),
            (self.skip, 4.0 * (self.schedule.func.name == "padded")),
        )
        weights = np.array([weight for _, weight in moves])
        chosen = self.rng.choice(len(moves), p=weights / weights.sum())
        moves[chosen][0]()

    def one(self, items: list) -> object:  # type: ignore[type-arg]
        if not items:
            raise ScheduleError("nothing to choose from")
        return items[int(self.rng.integers(len(items)))]

    def loop(self) -> str:
        return self.one([p.loop.var.name for p in statements(self.schedule.func.body) if isinstance(p.stmt, For)])  # type: ignore[return-value]

    def block(self) -> str:
        return self.one([place.block.name for place in block_places(self.schedule.func)])  # type: ignore[return-value]

    def stage(self, is_meant: Callable[[Place], bool]) -> str:
        """Mostly a block of a kind, where there is one."""
        names = [place.block.name for place in block_places(self.schedule.func) if is_meant(place)]
        if not self.is_aimed:
            return self.block()
        return self.one(names) if names and self.rng.random() < 0.9 else self.block()  # type: ignore[return-value]

    def reduction(self) -> str:
        return self.stage(lambda place: place.block.init is not None)

    def loop_apart(self, block: str) -> str:
        """Mostly a loop that is not around a block, where there is one."""
        if not self.is_aimed:
            return self.loop()
        names = [p.loop.var.name for p in statements(self.schedule.func.body) if isinstance(p.stmt, For)]
        apart = [name for name in names if name not in self.schedule.loops_of(block)]
        return self.one(apart if apart and self.rng.random() < 0.9 else names)  # type: ignore[return-value]

    def split(self) -> None:
        factors = self.one([2, 3, 4, 5, 8, (None, 2, 3), (2, None), (4, None, 2), (None, 16)])
        self.schedule.split(self.loop(), factors)  # type: ignore[arg-type]

    def fuse(self) -> None:
        loops = list(self.schedule.loops_of(self.block()))
        start = int(self.rng.integers(max(1, len(loops) - 1)))
        self.schedule.fuse(*loops[start : start + 2])

    def reorder(self) -> None:
        loops = list(self.schedule.loops_of(self.block()))
        count = int(self.rng.integers(2, 5))
        start = int(self.rng.integers(max(1, len(loops) - 1)))
        self.schedule.reorder(*map(str, self.rng.permutation(loops[start : start + count])))

    def mark(self) -> None:
        kind, loop = self.one(["parallel", "vectorize", "unroll", "loop_partition"]), self.loop()
        if self.is_aimed and not isinstance(self.schedule.extent_of(loop), Const):
            kind = self.one(["parallel", "loop_partition"])
        getattr(self.schedule, str(kind))(loop)

    def inline(self) -> None:
        self.schedule.compute_inline(self.block())

    def reverse_inline(self) -> None:
        self.schedule.reverse_compute_inline(self.block())

    def move(self) -> None:
        block = self.stage(lambda place: not buffers_written(place.block) & set(self.schedule.func.buffers))
        self.schedule.compute_at(block, self.loop_apart(block))

    def reverse_move(self) -> None:
        block = self.stage(lambda place: all(axis.kind is AxisKind.SPATIAL for axis in place.block.axes))
        self.schedule.reverse_compute_at(block, self.loop_apart(block))

    def decompose(self) -> None:
        block = self.reduction()
        self.schedule.decompose_reduction(block, self.one(list(self.schedule.loops_of(block))))  # type: ignore[arg-type]

    def init(self) -> None:
        names = [place.block.name for place in block_places(self.schedule.func)]
        self.schedule.init_with_addend(self.one([name for name in names if name.endswith("_init")]))  # type: ignore[arg-type]

    def rfactor(self) -> None:
        block = self.reduction()
        loops = list(self.schedule.loops_of(block))
        self.schedule.rfactor(block, self.one(loops[-2:]))  # type: ignore[arg-type]

    def cache(self) -> None:
        block = self.block()
        scope = self.one(["global", "local"])
        if self.rng.random() < 0.4:
            self.schedule.cache_write(block, str(scope))
            return
        node = next(p.block for p in block_places(self.schedule.func) if p.block.name == block)
        buffer = self.one(sorted(buffers_read(node), key=lambda b: b.name))
        assert isinstance(buffer, Buffer)
        self.schedule.cache_read(
            block, buffer.name, str(scope), self.layout_of(buffer) if self.rng.random() < 0.5 else ""
        )

    def layout_of(self, buffer: Buffer) -> str:
        """A random layout: one axis cut in two, the block moved to the end."""
        names = [f"x{d}" for d in range(len(buffer.shape))]
        if not names:
            return ""
        axis = int(self.rng.integers(len(names)))
        factor = int(self.rng.integers(2, 6))
        parts = [f"{name} // {factor}" if d == axis else name for d, name in enumerate(names)]
        return f"{', '.join(names)} -> {', '.join(parts)}, {names[axis]} % {factor}"

    def layout(self) -> None:
        allocated = [p.stmt.buffer for p in statements(self.schedule.func.body) if isinstance(p.stmt, Alloc)]
        buffer = self.one([b for b in allocated if b.shape])
        assert isinstance(buffer, Buffer)
        self.schedule.transform_layout(buffer.name, self.layout_of(buffer))

    def pad(self) -> None:
        block = self.block()
        axes = len(self.schedule.block(block).axes)
        self.schedule.pad_einsum(block, tuple(int(v) for v in self.rng.choice([1, 2, 4], axes)))

    def skip(self) -> None:
        if self.schedule.block("conv").init is not None:
            loops = [loop for loop in self.schedule.loops_of("conv") if loop.startswith("r")]
            self.schedule.decompose_reduction("conv", str(self.one(loops[:1])))
        self.schedule.skip_padding("conv")

    def blockize(self) -> None:
        self.schedule.blockize(self.loop())


def random_schedule(
    func: PrimFunc, rng: np.random.Generator, proposals: int = 40, after_step: Callable[[PrimFunc], None] = lambda func: None
) -> Schedule:
    """A random legal schedule: what is left of some proposals when the illegal ones are refused."""
    schedule = Schedule(func)
    proposer = Proposer(schedule, rng, func.name in AIMED)
    for _ in range(int(rng.integers(proposals // 4, proposals + 1))):
        try:
            proposer.propose()
        except ScheduleError:
            continue
        after_step(schedule.func)
    return schedule


def acceptance(name: str, seeds: range) -> tuple[int, int]:
    """How many steps were drawn for problems of a class, and how many of these were legal."""
    drawn = 0
    accepted = 0
    for seed in seeds:
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        func = CLASSES[name](rng)[0]
        schedule = Schedule(func)
        proposer = Proposer(schedule, rng, func.name in AIMED)
        count = int(rng.integers(10, 41))
        drawn += count
        for _ in range(count):
            try:
                proposer.propose()
                accepted += 1
            except ScheduleError:
                continue
    return drawn, accepted
