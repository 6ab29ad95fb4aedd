"""Instructions on tiles of buffers: what each means, as loops, and which features of a machine it needs.

A program names an instruction by an `IntrinsicCall`; its meaning is the loops of the pattern, which is what the interpreter runs and
what a machine without the instruction executes. Backends know how to emit an instruction by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tc.errors import ScheduleError
from tc.ir.arith import Facts, linear_coefficients, prove, simplify
from tc.ir.bit_layout import BitLayout
from tc.ir.dtype import DType, f32, i64
from tc.ir.expr import (
    Add,
    BinaryExpr,
    Buffer,
    Cast,
    CompareExpr,
    Const,
    Expr,
    Load,
    MathCall,
    Mul,
    Select,
    Var,
    add,
    cast,
    const,
    equal,
    floordiv,
    floormod,
)
from tc.ir.loop import AxisKind, Block, BlockAxis, For, PrimFunc, Seq, Stmt, Store
from tc.ir.node import Node, binders, replace, substitute, transform, walk


@dataclass(frozen=True)
class Intrinsic:
    """An instruction on tiles of buffers, and the loops it stands for.

    `pattern` is a PrimFunc without blocks other than one whose loops have constant extents and drive one axis each; its
    parameters, buffers of constant shape, are the operands in order. A machine has the instruction if it has all features of one of
    the tuples in `features`; with none, every machine of the backends that emit it has. Rows of the operands whose numbers are in
    `apart` may lie at any distance in memory; those of the others follow each other. Rows of those in `runs_on` go on from one index of the
    dims before to the next, as pixels do across the ends of the rows of an image. Operands that the pattern has in scope `tile` are
    tile registers; those in scope `shared` are in a block's memory.

    Operands in scope `fragment` are matrices that the lanes of a warp hold together; of each, `layouts` has the layout that maps the
    numbers of registers and lanes to its indices, at the operand's place (None at those of the others, nothing where there are none). A
    part of a larger fragment is an operand where it starts at multiples of the operand's extents.
    """

    name: str
    pattern: PrimFunc
    features: tuple[tuple[str, ...], ...] = ()
    apart: frozenset[int] = frozenset()
    layouts: tuple[BitLayout | None, ...] = ()
    runs_on: frozenset[int] = frozenset()

    def is_there(self, features: Iterable[str]) -> bool:
        """Whether a machine with these features has the instruction."""
        return has_all_of_one(features, self.features)

    @property
    def does_nothing(self) -> bool:
        """Whether the pattern stores nothing: the instruction only concerns how fast others are."""
        return not any(isinstance(node, (Store, For)) for node in walk(self.pattern.body))

    def expand(self, operands: Sequence[Expr]) -> Stmt:
        """The loops of a call, over the buffers that its operands point into."""
        tiles = dict(zip(self.pattern.buffers, operands, strict=True))

        def redirect(node: Node) -> Node | None:
            if isinstance(node, (Load, Store)) and node.buffer in tiles:
                first = tiles[node.buffer]
                assert isinstance(first, Load)
                lead = len(first.indices) - len(node.indices)
                moved = [add(a, b) for a, b in zip(first.indices[lead:], node.indices, strict=True)]
                indices = [*first.indices[:lead], *moved]
                if self.pattern.buffers.index(node.buffer) in self.runs_on:
                    indices[: lead + 1] = _carried(indices[: lead + 1], first.buffer.shape)
                return replace(node, buffer=first.buffer, indices=tuple(indices))
            return None

        loops, block = self.nest
        body = _plain(block)
        fresh: dict[Node, Node] = {loop.var: Var(loop.var.name, loop.var.dtype) for loop in loops}
        for loop in reversed(loops):
            body = replace(loop, body=body)
        return transform(substitute(body, fresh), redirect)

    @property
    def nest(self) -> tuple[list[For], Block]:
        """The loops of the pattern, outermost first, and the block inside."""
        loops, block = perfect_nest(self.pattern.body)
        assert isinstance(block, Block), f"the pattern of {self.name} is a nest around one block"
        return loops, block

    def match(self, loops: Sequence[For], body: Stmt, facts: Facts) -> tuple[Load, ...] | str:
        """The operands with which the instruction does what a perfect nest of `loops` around `body` does, or what differs.

        The nest has the pattern's extents in its order, and computes the same expression; each operand's last indices move with the
        loops as the pattern's do.
        """
        pattern_loops, pattern_block = self.nest
        extents, wanted = [loop.extent for loop in loops], [loop.extent for loop in pattern_loops]
        if len(extents) != len(wanted) or any(a is not b for a, b in zip(extents, wanted, strict=True)):
            return f"its loops are {_sizes(wanted)}, the block's {_sizes(extents)}"
        for loop in loops:
            facts = facts.with_range(loop.var, loop.extent)
        renamed: dict[Node, Node] = {a.var: b.var for a, b in zip(pattern_loops, loops, strict=True)}
        pattern = substitute(_plain(pattern_block), renamed)
        found = _same(pattern, body, {}, _Accesses(self, [loop.var for loop in loops], facts))
        if found is None:
            return "the computation or the way operands move with the loops differs"
        return tuple(found[buffer] for buffer in self.pattern.buffers)


Family = Callable[[str], Intrinsic | None]
"""Makes the member of a family of intrinsics that has this name; None where there is none."""


class IntrinsicTable(dict[str, Intrinsic]):
    """Name -> intrinsic. Members of families, which are many, come into being when they are first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.families: list[Family] = []

    def __missing__(self, name: str) -> Intrinsic:
        for family in self.families:
            made = family(name)
            if made is not None:
                return register_intrinsic(made)
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


INTRINSICS = IntrinsicTable()
"""Name -> intrinsic."""

GROUP_THREADS = 128
"""Threads of the four warps that carry out one instruction of a group."""


def lanes_of(intrinsic: Intrinsic) -> int:
    """How many threads hold the fragments of an instruction."""
    return next(dict(found.inputs)["lane"] for found in intrinsic.layouts if found is not None)


def is_of_group(name: str) -> bool:
    """Whether an instruction is one of four warps together, done while they do something else, and reads shared memory by itself."""
    return name.startswith("wgmma.")


def has_all_of_one(features: Iterable[str], groups: tuple[tuple[str, ...], ...]) -> bool:
    """Whether there are all features of one of the groups, or there are no groups."""
    present = set(features)
    return not groups or any(present.issuperset(needed) for needed in groups)


def register_intrinsic(intrinsic: Intrinsic) -> Intrinsic:
    """Add an intrinsic to the table; its name must be new, its pattern one nest of constant extents, and each element of a fragment is
    held once."""
    if intrinsic.name in INTRINSICS.keys():  # of families those that have come into being
        raise ScheduleError(f"intrinsic {intrinsic.name} is registered twice")
    if not all(isinstance(loop.extent, Const) for loop in intrinsic.nest[0]):
        raise ScheduleError(f"intrinsic {intrinsic.name}: the loops of its pattern must have constant extents")
    _check_layouts(intrinsic)
    INTRINSICS[intrinsic.name] = intrinsic
    return intrinsic


def _check_layouts(intrinsic: Intrinsic) -> None:
    buffers = intrinsic.pattern.buffers
    for buffer, layout in zip(buffers, intrinsic.layouts or (None,) * len(buffers), strict=True):
        if (layout is not None) != (buffer.scope == "fragment"):
            raise ScheduleError(f"intrinsic {intrinsic.name}: {buffer.name} must have a layout if it is a fragment, and only then")
        if layout is None:
            continue
        if not layout.is_invertible or tuple(const(size) for _, size in layout.outputs) != buffer.shape:
            raise ScheduleError(f"intrinsic {intrinsic.name}: {buffer} is not what {layout} holds once")


def perfect_nest(stmt: Stmt) -> tuple[list[For], Stmt]:
    """The loops nested directly in each other from `stmt` on, and what is inside."""
    loops = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    return loops, stmt


def _plain(block: Block) -> Stmt:
    """The body of a block in terms of the loops around it."""
    return substitute(block.body, {axis.var: axis.value for axis in block.axes})


def number_of_row(indices: Sequence[Expr], shape: Sequence[Expr], facts: Facts) -> tuple[Expr, Facts]:
    """Leading indices of an element as one number, and the facts with what there being that element says: that no dim is 0."""
    number: Expr = const(0)
    for index, dim in zip(indices, shape, strict=False):
        number, facts = number * dim + index, facts.assume(dim >= 1)
    return number, facts


def _carried(indices: Sequence[Expr], shape: Sequence[Expr]) -> list[Expr]:
    """Indices of which the last may be past the end of its dim: what is too much goes to the one before, and so on."""
    *outer, row = indices
    found: list[Expr] = []
    for index, dim in zip(reversed(outer), reversed(shape[1 : len(indices)]), strict=True):
        found.insert(0, floormod(row, dim))
        row = add(index, floordiv(row, dim))
    return [row, *found]


def _sizes(extents: Sequence[Expr]) -> str:
    return " x ".join(map(str, extents)) or "none"


# -- matching

_PLACES = frozenset(("tile", "fragment", "shared"))
"""Scopes that what stands for an operand must be in, too. Operands in others may be anywhere, but no fragments."""

Found = dict[Buffer, Load]
"""Operands of the pattern -> first elements of what stands for them."""


@dataclass(frozen=True)
class _Accesses:
    """How operands move with the loops."""

    intrinsic: Intrinsic
    variables: list[Var]
    facts: Facts

    def same(self, p: Load | Store, b: Load | Store, found: Found) -> Found | None:
        """`found` with the operand of `p`, if `b` moves as that does, and follows in memory as it must."""
        lead = len(b.indices) - len(p.indices)
        if lead < 0 or p.buffer.dtype != b.buffer.dtype or not self._follows(p.buffer, b.buffer):
            return None
        first: list[Expr] = []
        if self.intrinsic.pattern.buffers.index(p.buffer) in self.intrinsic.runs_on:
            start = self._start_of_rows(p.indices[0], b, lead)
            if start is None:
                return None
            first = start
        for d, index in enumerate(b.indices[len(first) :], len(first)):
            form = self._form(index)
            moving = linear_coefficients(p.indices[d - lead], self.variables) if d >= lead else ({}, None)
            if form is None or moving is None or form[0] != moving[0]:
                return None
            if p.buffer.scope == "fragment" and not self._starts_whole(form[1], p, d - lead):
                return None
            first.append(form[1])
        operand = Load(b.buffer, tuple(first))
        return {**found, p.buffer: operand} if found.get(p.buffer, operand) is operand else None

    def _form(self, index: Expr) -> tuple[dict[Var, Expr], Expr] | None:
        """An index in terms of the loops; one that does not depend on them stays as it is."""
        if binders(index).isdisjoint(self.variables):
            return {}, index
        return linear_coefficients(simplify(index, self.facts), self.variables)

    def _start_of_rows(self, row: Expr, b: Load | Store, lead: int) -> list[Expr] | None:
        """The first indices up to that of rows, if these, counted through all dims before, move with the loops as `row` does."""
        number, facts = number_of_row(b.indices[: lead + 1], b.buffer.shape, self.facts)
        form = linear_coefficients(simplify(number, facts), self.variables)
        moving = linear_coefficients(row, self.variables)
        if form is None or moving is None or form[0] != moving[0]:
            return None
        start: dict[Node, Node] = {var: const(0) for var in self.variables}
        return [simplify(substitute(index, start), self.facts) for index in b.indices[: lead + 1]]

    def _starts_whole(self, first: Expr, p: Load | Store, d: int) -> bool:
        """Whether a part of a fragment starts, along dim d of the operand or one before, where registers do."""
        return d < 0 or prove(equal(floormod(first, p.buffer.shape[d]), const(0)), self.facts) is True

    def _follows(self, pattern: Buffer, buffer: Buffer) -> bool:
        if pattern.scope != buffer.scope and (pattern.scope in _PLACES or buffer.scope == "fragment"):
            return False
        inner = pattern.shape[1:]
        if self.intrinsic.pattern.buffers.index(pattern) in self.intrinsic.apart:
            return buffer.strides is None and (len(inner) < 2 or buffer.shape[-len(inner) + 1 :] == inner[1:])
        return buffer.strides is None and (not inner or buffer.shape[-len(inner) :] == inner)


def _same(p: Node, b: Node, found: Found, accesses: _Accesses) -> Found | None:
    """The operands found so far and those below `b`, if it computes what the pattern's `p` does; sums and products commute."""
    match p, b:
        case (Load(), Load()):
            return accesses.same(p, b, found)
        case (Store(), Store()):
            inside = accesses.same(p, b, found)
            return None if inside is None else _same(p.value, b.value, inside, accesses)
        case (Const(), Const()):
            return found if p is b else None
        case (BinaryExpr(), BinaryExpr()) if type(p) is type(b):
            orders = [(b.lhs, b.rhs), (b.rhs, b.lhs)] if isinstance(p, (Add, Mul)) else [(b.lhs, b.rhs)]
            return next((each for order in orders if (each := _all_same((p.lhs, p.rhs), order, found, accesses)) is not None), None)
        case (Cast(), Cast()):
            return _same(p.operand, b.operand, found, accesses) if p.dtype == b.dtype else None
        case (MathCall(), MathCall()) if p.name == b.name:
            return _all_same(p.args, b.args, found, accesses)
        case (CompareExpr(), CompareExpr()) if type(p) is type(b):
            return _all_same((p.lhs, p.rhs), (b.lhs, b.rhs), found, accesses)
        case (Select(), Select()):
            wanted = (p.condition, p.true_value, p.false_value)
            return _all_same(wanted, (b.condition, b.true_value, b.false_value), found, accesses)
    return None


def _all_same(p: Sequence[Node], b: Sequence[Node], found: Found, accesses: _Accesses) -> Found | None:
    known: Found | None = found
    for x, y in zip(p, b, strict=True):
        known = None if known is None else _same(x, y, known, accesses)
    return known


# -- patterns


def make_pattern(
    name: str, extents: Sequence[int], buffers: Sequence[Buffer], body: Callable[..., Stmt], num_reduced: int = 0
) -> PrimFunc:
    """A nest of these extents around one block of `body(*axes)`, whose last `num_reduced` axes are reduced; the last buffer is written."""
    loops = [Var(f"l{k}", i64) for k in range(len(extents))]
    axes = [Var(f"v{k}", i64) for k in range(len(extents))]
    first_reduced = len(extents) - num_reduced
    kinds = [AxisKind.SPATIAL if k < first_reduced else AxisKind.REDUCTION for k in range(len(extents))]
    sizes = [const(extent) for extent in extents]
    stmt: Stmt = Block(name, tuple(map(BlockAxis, axes, sizes, kinds, loops)), body(*axes))
    for loop, size in zip(reversed(loops), reversed(sizes), strict=True):
        stmt = For(loop, size, stmt)
    return PrimFunc(name, tuple(buffers), stmt)


def dot_pattern(name: str, lanes: int, depth: int, lhs: DType, rhs: DType, total: DType) -> PrimFunc:
    """c[j] += total(a[k]) * total(b[j, k]) for `lanes` lanes j and `depth` terms k."""
    a, b = Buffer("a", (const(depth),), lhs), Buffer("b", (const(lanes), const(depth)), rhs)
    c = Buffer("c", (const(lanes),), total)

    def body(j: Var, k: Var) -> Stmt:
        return Store(c, (j,), Load(c, (j,)) + cast(Load(a, (k,)), total) * cast(Load(b, (j, k)), total))

    return make_pattern(name, (lanes, depth), (a, b, c), body, num_reduced=1)


def half_bytes_dot_pattern(name: str, lanes: int, depth: int, lhs: DType, rhs: DType, total: DType) -> PrimFunc:
    """c[j] += total(a[4 p + k]) * total(b[j, k, p]) for `lanes` lanes j and `depth` terms 4 p + k: those of one p at one place of bytes."""
    a, b = Buffer("a", (const(depth),), lhs), Buffer("b", sizes(lanes, 4, depth // 4), rhs)
    c = Buffer("c", (const(lanes),), total)

    def body(j: Var, p: Var, k: Var) -> Stmt:
        return Store(c, (j,), Load(c, (j,)) + cast(Load(a, (4 * p + k,)), total) * cast(Load(b, (j, k, p)), total))

    return make_pattern(name, (lanes, depth // 4, 4), (a, b, c), body, num_reduced=2)


def interleave_pattern(name: str, lanes: int, depth: int, dtype: DType) -> PrimFunc:
    """t[j, k] = x[k, j] for `lanes` lanes j of `depth` rows k."""
    x, t = Buffer("x", (const(depth), const(lanes)), dtype), Buffer("t", (const(lanes), const(depth)), dtype)
    return make_pattern(name, (lanes, depth), (x, t), lambda j, k: Store(t, (j, k), Load(x, (k, j))))


def spread_pattern(name: str, lanes: int, narrow: DType, dtype: DType) -> PrimFunc:
    """t[2 p + h, j, r] = dtype(x[j, 2 h + r, p]): words of `lanes` columns j as rows of pairs of their terms 4 p + 2 h + r; of bytes, which
    have no p, t[h, j, r] = dtype(x[j, 2 h + r])."""
    t = Buffer("t", sizes(2 * narrow.per_byte, lanes, 2), dtype)
    if narrow.per_byte == 1:
        whole = Buffer("x", sizes(lanes, 4), narrow)
        return make_pattern(name, (2, lanes, 2), (whole, t), lambda h, j, r: Store(t, (h, j, r), cast(Load(whole, (j, h * 2 + r)), dtype)))
    x = Buffer("x", sizes(lanes, 4, narrow.per_byte), narrow)

    def body(p: Var, h: Var, j: Var, r: Var) -> Stmt:
        return Store(t, (p * 2 + h, j, r), cast(Load(x, (j, h * 2 + r, p)), dtype))

    return make_pattern(name, (narrow.per_byte, 2, lanes, 2), (x, t), body)


def tile_dot_pattern(name: str, lhs: DType, rhs: DType, total: DType, rows: int = 16, groups: int = 16, step: int = 1) -> PrimFunc:
    """c[i, j] += total(a[step * i, d * p + q]) * total(b[p, j, q]) for `rows` i, 16 columns j, and `groups` p of d terms q of 4 bytes."""
    depth = 32 // lhs.bits
    a, b = Buffer("a", sizes(step * (rows - 1) + 1, groups * depth), lhs), Buffer("b", sizes(groups, 16, depth), rhs)
    c = Buffer("c", sizes(rows, 16), total)

    def body(i: Var, j: Var, p: Var, q: Var) -> Stmt:
        product = cast(Load(a, (i * step, p * depth + q)), total) * cast(Load(b, (p, j, q)), total)
        return Store(c, (i, j), Load(c, (i, j)) + product)

    return make_pattern(name, (rows, 16, groups, depth), (a, b, c), body, num_reduced=2)


def fill_pattern(name: str, shape: Sequence[int], value: Const, scope: str = "global") -> PrimFunc:
    """t[i, ...] = value."""
    t = Buffer("t", sizes(*shape), value.dtype, scope)
    return make_pattern(name, shape, (t,), lambda *indices: Store(t, indices, value))


def copy_pattern(name: str, shape: Sequence[int], dtype: DType, scopes: tuple[str, str], step: int = 1) -> PrimFunc:
    """t[i, ...] = x[step * i, ...], where x and t are in these scopes."""
    rows, *rest = shape
    x, t = Buffer("x", sizes(step * (rows - 1) + 1, *rest), dtype, scopes[0]), Buffer("t", sizes(*shape), dtype, scopes[1])
    return make_pattern(name, shape, (x, t), lambda i, *others: Store(t, (i, *others), Load(x, (i * step, *others))))


def sizes(*extents: int) -> tuple[Const, ...]:
    """Constant dims."""
    return tuple(map(const, extents))


register_intrinsic(Intrinsic("prefetch", make_pattern("prefetch", (), (Buffer("x", (const(1),), f32),), lambda: Seq(()))))
