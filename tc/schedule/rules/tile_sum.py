"""The sum inside a register tile: in what order its loops run, how many steps and terms at a time, and what is fetched ahead."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations
from math import isqrt

from tc.ir.expr import Const, Var
from tc.ir.node import walk
from tc.schedule.analysis import BlockInfo, Contraction
from tc.schedule.rules.common import buffer_bytes, depth_block, divisors, extent_value, known_product
from tc.schedule.rules.epilogue import block_info, contraction_of, driving_loops
from tc.schedule.rules.operands import LONGEST_CHAIN, Dot
from tc.schedule.rules.tiling import Tile
from tc.schedule.step import Schedule
from tc.target import Target

DEPTH_UNROLL = 2
"""Steps of the sum per iteration of the innermost loop."""

PREFETCH_BYTES = 2048
"""How far ahead the rhs is prefetched at least: some thirty steps of the sum, each of about a dozen cycles, cover the latency of memory."""

PREFETCH_STEPS = 8
"""How many steps of the sum ahead it is prefetched at least: where a step is a row of a matrix, the bytes after it are no help."""

MOST_ORDERED = 4
"""Reduction loops of which every order may be tried."""

PARTS_OF_SUM = (64, 128, 256, 512)
"""How many terms may be summed at once, where tuning may decide."""


@dataclass
class TileSum:
    """The schedule of one sum inside a tile while it is made.

    The block called `name` runs inside the loop `anchor`, once for each tile. `lhs_name`: the buffer it reads the lhs from.
    `has_blocks`: columns have an axis that counts vectors. `longest_sum`: where it is given, no more terms are summed at once.
    """

    s: Schedule
    contraction: Contraction
    name: str
    anchor: str
    lhs_name: str
    tile: Tile
    target: Target
    has_blocks: bool
    longest_sum: int | None
    dot: Dot | None = None
    unrolled_depth: list[str] = field(default_factory=list, init=False)
    whole: str = field(default="", init=False)  # what knobs are named after, also where `name` becomes a part of it

    def run(self) -> str | None:
        """Inside the tile: reduction loops outermost, then rows, then vectors, so that a broadcast serves all vectors at once.

        Returns the loop over lanes around the terms that an instruction sums, where there is one.
        """
        s, tile = self.s, self.tile
        self.whole = self.name
        if self.dot is None:
            self._sum_in_parts()
        info = block_info(s, self.name)
        loops = list(s.loops_of(self.name))
        inside = loops[loops.index(self.anchor) + 1 :]
        depth = driving_loops(info, inside, info.reduction_axes)
        spatial = [loop for loop in inside if loop not in depth]
        unit = [loop for loop in spatial if extent_value(s, loop) == 1]
        tiled = [loop for loop in spatial if loop not in unit]
        is_static = known_product(s, tiled, 1 << 20) <= 64 * tile.lanes  # larger ones stay in memory
        if is_static:
            s.set_scope(info.writes[0].buffer.name, "register")
        ordered = self._ordered(info, tiled)
        terms: list[str] = []
        if self.dot is not None:
            steps, few = s.split(depth[0], self.dot.depth)
            depth, terms = [steps], [few]
        depth = self._arranged(self._split_depth(depth))
        if depth and spatial:
            s.reorder(*unit, *depth, *ordered, *terms)
        if ordered:
            self._order_tile(self._vectorize_tile(ordered))
        if depth:
            self._prefetch_rhs(depth[0])
            start = s.decompose_reduction(self.name, depth[0])
        if self.dot is None:
            return None
        s.vectorize(s.loops_of(start)[-1])
        return s.loops_of(self.name)[-2]

    def _sum_in_parts(self) -> None:
        """Sum the tile over a part of the depth at a time, and then these sums: rounding errors grow with the terms of one sum.

        The totals wait in the first-level cache while a part is summed in registers.
        """
        s = self.s
        info = block_info(s, self.name)
        loops = list(s.loops_of(self.name))
        depth = driving_loops(info, loops[loops.index(self.anchor) + 1 :], info.reduction_axes)
        part = self._part_of_sum(extent_value(s, depth[0])) if depth else 0
        if not part:
            return
        parts, _ = s.split(depth[0], part)
        total = self.name
        s.set_scope(info.writes[0].buffer.name, "global")
        self.name = s.rfactor(total, parts)
        inside = list(s.loops_of(total))
        *tiled, parts = inside[inside.index(self.anchor) + 1 :]
        tiled = [loop for loop in tiled if extent_value(s, loop) != 1]
        s.reorder(parts, *tiled)
        self._vectorize_tile(self._ordered(block_info(s, total), tiled))
        s.decompose_reduction(total, parts)
        s.compute_at(self.name, parts)
        self.anchor = parts
        self.contraction = contraction_of(s, self.name)

    def _part_of_sum(self, depth: int | None) -> int:
        """How many terms of the outermost depth loop to sum at once; 0: all. Where rounding sets a limit, tuning has no say."""
        longest = self.longest_sum
        if longest is None and depth is not None and depth > LONGEST_CHAIN:
            longest = max(isqrt(depth), self.tile.lanes)  # as many parts as terms of a part
        if longest is not None:
            return part_of_sum(depth, self.tile.lanes, longest) or 0
        parts = [part_of_sum(depth, self.tile.lanes, longest) for longest in PARTS_OF_SUM]
        return self.s.choose(self.whole, "part", sorted({0, *(part for part in parts if part is not None)}), 0)

    def _prefetch_rhs(self, loop: str) -> None:
        """Fetch the rhs ahead where it comes from memory rather than from a cache: an input as large as a part of the second-level one."""
        s, rhs = self.s, self.contraction.rhs.buffer
        if rhs not in s.func.inputs:
            return
        ahead = max(PREFETCH_BYTES, PREFETCH_STEPS * self._step_bytes())
        default = ahead if buffer_bytes(rhs) > self.target.l2_bytes // 8 else 0
        ahead = s.choose(self.whole, "prefetch_bytes", (0, ahead // 4, ahead // 2, ahead, 2 * ahead), default)
        if ahead:
            s.annotate_loop(loop, "prefetch", (s.func.buffers.index(rhs), ahead))

    def _step_bytes(self) -> int:
        """The distance in the rhs of two steps of the sum next to each other; 0 where it is symbolic, or there is none."""
        rhs = self.contraction.rhs
        places = [k for k, index in enumerate(rhs.indices) if any(node in self.contraction.depth for node in walk(index))]
        if not places:
            return 0
        dims = rhs.buffer.shape[places[-1] + 1 :]
        return buffer_bytes(rhs.buffer, dims) if all(isinstance(dim, Const) for dim in dims) else 0

    def _arranged(self, depth: list[str]) -> list[str]:
        """The reduction loops in the order of the knob; loops that are unrolled stay innermost."""
        s = self.s
        fixed = self.unrolled_depth
        free = [loop for loop in depth if loop not in fixed]
        if 1 < len(free) <= MOST_ORDERED:
            orders = [tuple(order) for order in permutations(range(len(free)))]
            order = s.choose(self.whole, "depth_order", orders, orders[0], ordered=False)
            free = [free[place] for place in order]
        return [*free, *fixed]

    def _ordered(self, info: BlockInfo, tiled: list[str]) -> list[str]:
        """Row loops before the loop over vectors."""
        if len(tiled) < 2 or not self.has_blocks:
            return tiled
        column_axes = (*self.contraction.columns, *self.contraction.batch)
        places = [k for k, axis in enumerate(self.contraction.info.block.axes) if axis.var in column_axes]
        driving = [info.block.axes[k].value for k in places]
        columns = {node.name for value in driving for node in walk(value) if isinstance(node, Var)}
        *rest, lane = tiled
        return [*(loop for loop in rest if loop not in columns), *(loop for loop in rest if loop in columns), lane]

    def _split_depth(self, depth: list[str]) -> list[str]:
        """Blocks of channels outermost, then the taps, then the lanes of a block, a few of them at a time."""
        s = self.s
        if not depth:
            return depth
        info = block_info(s, self.name)
        loads = [load for load in info.reads if load.buffer.name == self.lhs_name]
        block = depth_block(loads[0], info.reduction_axes) if loads else None
        first = depth[0]
        extent = extent_value(s, first)
        if block is not None and extent is not None:
            outer, inside = s.split(first, block)
            if extent % block:
                s.annotate_loop(outer, "partition", 1)
            if extent % block == 0 or len(depth) > 1:
                depth = [outer, *depth[1:], inside]
                if extent % block == 0:
                    depth[-1:] = self._unroll_steps(inside, block)
                    depth[:1] = self._unroll_blocks(outer, extent // block)
            else:
                depth = [outer, inside]
        elif len(depth) == 1 and extent is not None:
            depth = self._unroll_steps(first, extent)
        return depth

    def _unroll_blocks(self, loop: str, extent: int) -> list[str]:
        """Cut a few blocks of the depth off their loop, and unroll them around the taps and the steps."""
        s = self.s
        count = s.choose(self.whole, "blocks_unroll", [each for each in (1, 2, 4) if extent % each == 0 and each <= extent], 1)
        if count == 1:
            return [loop]
        blocks, few = s.split(loop, count)
        s.unroll(few)
        return [blocks, few]

    def _unroll_steps(self, loop: str, extent: int) -> list[str]:
        """Cut a few steps of the sum off the innermost loop, and unroll them."""
        s = self.s
        counts = [count for count in (1, 2, 4, 8, 16) if extent % count == 0 and count < max(extent, 2)]
        count = s.choose(self.whole, "depth_unroll", counts, DEPTH_UNROLL if DEPTH_UNROLL in counts else 1)
        if count == 1:
            return [loop]
        steps, few = s.split(loop, count)
        s.unroll(few)
        self.unrolled_depth.append(few)
        return [steps, few]

    def _vectorize_tile(self, tiled: list[str]) -> list[str]:
        """Vectorize the last of the loops and unroll the others; all loops of the tile."""
        s, tile = self.s, self.tile
        *outer, column = tiled
        extent = extent_value(s, column)
        if extent is None or extent > tile.lanes:
            blocks, column = s.split(column, tile.lanes)
            if extent is not None:
                s.unroll(blocks)
            outer.append(blocks)
        if self.dot is None:
            s.vectorize(column)
        for loop in tiled[:-1]:
            if (extent_value(s, loop) or 99) <= max(tile.all_rows, tile.vectors):
                s.unroll(loop)
        return [*outer, column]

    def _order_tile(self, loops: list[str]) -> None:
        """Rows around vectors, so that a broadcast serves all vectors at once, or vectors around rows."""
        s = self.s
        several = [loop for loop in loops if extent_value(s, loop) != 1]
        if len(several) < 3 or any(extent_value(s, loop) is None for loop in several):
            return
        *rows, vectors, lanes = several
        if s.choose(self.whole, "tile_order", ("rows", "vectors"), "rows", ordered=False) == "vectors":
            s.reorder(vectors, *rows, lanes)


def part_of_sum(depth: int | None, block: int, longest: int) -> int | None:
    """How many terms to sum at once: at most `longest`, whole blocks, equally many each time; None where all are, or must be."""
    if depth is None or depth <= longest or depth % block:
        return None
    return max(size * block for size in divisors(depth // block) if size * block <= max(longest, block))
