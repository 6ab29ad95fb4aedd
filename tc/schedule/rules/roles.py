"""Which loops of a contraction's result do what: choose rows, count vectors of columns, run through one, or choose among products."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.expr import Const, Expr, FloorDiv, Var
from tc.ir.node import children, walk
from tc.schedule.analysis import Contraction
from tc.schedule.rules.common import buffer_bytes, extent_value, loops_inside
from tc.schedule.rules.epilogue import block_info, driven_spatial, driving_loops, is_single
from tc.schedule.rules.operands import Dot
from tc.schedule.rules.tiling import Tile
from tc.schedule.step import Schedule
from tc.target import Target


@dataclass(frozen=True)
class Roles:
    """The loops of the block that stores the result, by what they do; all but `lane` may be absent.

    rows: choose elements of the lhs only, outermost first. blocks: counts vectors of columns, where the layout has such an
    axis (`vectors_divide`: how many of them share a group). lane: the last axis. others: the rest (batch, groups), of which
    those of `batch` choose elements of both operands, those of `columns` of the rhs only; `samples` chooses the lhs's first index, be it
    one of them or of the rows.
    `is_part`: the innermost loop over rows and others make one axis of the result, so tiles must not run over the end of the loop.
    `images`: rows of an image that is the rhs, none of the others where it is padded in bands.
    """

    rows: list[str]
    blocks: str | None
    vectors_divide: int
    lane: str
    others: list[str]
    batch: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    samples: str | None = None
    is_part: bool = False
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class TiledProduct:
    """A contraction, and how its result is tiled by the loops of the block that stores it.

    `longest_sum`: where it is given, no more terms are summed at once. `around`: all is inside this loop.
    `dot`: the instruction that sums. `overlaps`: there are no fewer columns than a tile's, of which the last may begin early.
    """

    contraction: Contraction
    roles: Roles
    tile: Tile
    target: Target
    longest_sum: int | None = None
    around: str | None = None
    dot: Dot | None = None
    overlaps: bool = False

    @property
    def name(self) -> str:
        return self.contraction.info.name

    @property
    def lhs_bytes(self) -> int:
        return buffer_bytes(self.contraction.lhs.buffer)

    @property
    def rhs_bytes(self) -> int:
        return buffer_bytes(self.contraction.rhs.buffer)

    @property
    def rhs_is_larger(self) -> bool:
        """Whether the rhs takes more than the lhs, and does not stay near anyway."""
        is_far = self.roles.blocks is not None or self.rhs_bytes > self.target.l2_bytes // 8
        return self.rhs_bytes > self.lhs_bytes and is_far


@dataclass(frozen=True)
class Operands:
    """The blocks that make the lhs, those that make the rhs for all rows, and how.

    `is_copied`: those of the lhs make no element twice, as padding for windows does. `rhs_is_apart`: all of the rhs is made before.
    """

    lhs: list[str]
    rhs: list[str]
    is_copied: bool
    rhs_is_apart: bool = False

    @property
    def rhs_is_in_tiles(self) -> bool:
        return bool(self.rhs) and not self.rhs_is_apart


NO_OPERANDS = Operands([], [], False)


@dataclass(frozen=True)
class Tiles:
    """The loops of the result: over rows of images, or bands of rows, and inside of these; over tiles of rows; and of columns.

    `inner`: rows of the tile, then vectors, then lanes. `is_banded`: something is made of the lhs for each band.
    """

    bands: list[str]
    band_rows: list[str]
    rows: list[str]
    columns: str
    inner: list[str]
    is_banded: bool = False


def roles_of(schedule: Schedule, contraction: Contraction, final: str, lanes: int, around: str | None = None) -> Roles:
    """The roles of the loops of the block `final`, which stores a contraction's result, inside the loop `around`."""
    loops = loops_inside(schedule, final, around) or list(schedule.loops_of(final))
    lane = loops[-1]
    loop_of = _loop_of_axis(schedule, contraction, final, around)
    if not loop_of:
        return Roles([], None, 0, lane, loops[:-1])
    axes = list(loop_of)
    rows = [loop_of[axis] for axis in axes if axis in contraction.rows and loop_of[axis] != lane]
    blocks, divide = None, 0
    if extent_value(schedule, lane) == lanes:
        for axis in reversed(axes[:-1]):
            shared = _group_size(contraction, axis)
            if axis in contraction.columns or shared:
                blocks, divide = loop_of[axis], shared or 0
                break
    others = [loop for loop in loops if loop not in (*rows, blocks, lane)]
    lead = contraction.lhs.indices
    samples = loop_of.get(lead[0]) if len(lead) > 2 and isinstance(lead[0], Var) else None
    batch = frozenset(loop for axis, loop in loop_of.items() if axis in contraction.batch)
    columns = frozenset(loop for axis, loop in loop_of.items() if axis in contraction.columns and loop in others)
    return Roles(rows, blocks, divide, lane, others, batch, columns, samples, bool(rows) and _is_part(schedule, final, rows[-1]))


def _is_part(schedule: Schedule, final: str, loop: str) -> bool:
    """Whether an axis of the block is made of the loop and others."""
    loops = schedule.loops_of(final)
    for axis in block_info(schedule, final).block.axes:
        names = {node.name for node in walk(axis.value) if isinstance(node, Var) and node.name in loops}
        if loop in names and len(names) > 1:
            return True
    return False


def _loop_of_axis(schedule: Schedule, contraction: Contraction, final: str, around: str | None) -> dict[Var, str]:
    """The loop of the block `final` inside `around` over each spatial axis of the sum; empty where they do not run alike."""
    loops = loops_inside(schedule, final, around)
    driven = [axis for axis in driven_spatial(contraction.info) if axis not in contraction.parts]
    axes = [axis for axis in driven if not is_single(contraction.info, axis)]
    if around is not None:  # `final` is a copy of the sum's result: axes that no loop inside drives have one index there
        info = block_info(schedule, final)
        are_driven = [bool(driving_loops(info, loops, (axis.var,))) for axis in info.block.axes]
        own = {axis for axis, is_driven in zip(contraction.info.spatial_axes, are_driven, strict=True) if is_driven}
        axes = [axis for axis in axes if axis in own]
    return dict(zip(axes, loops, strict=True)) if len(axes) == len(loops) else {}


def _group_size(contraction: Contraction, axis: Var) -> int | None:
    """How many neighbours along `axis` read the same part of the lhs: q, if the lhs depends on it through axis // q alone."""
    if axis not in contraction.batch:
        return None
    sizes = {size for index in contraction.lhs.indices for size in shared_by(index, axis)}
    return sizes.pop() if len(sizes) == 1 and sizes != {0} else None


def shared_by(index: Expr, axis: Var) -> set[int]:
    """The numbers q of all axis // q in an index; 0 where it depends on the axis otherwise."""
    match index:
        case FloorDiv(lhs=lhs, rhs=Const(value=value)) if lhs is axis:
            return {int(value)}
        case _ if index is axis:
            return {0}
    return {size for child in children(index) if isinstance(child, Expr) for size in shared_by(child, axis)}
