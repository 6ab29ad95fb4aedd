"""How elements of a buffer are placed: index maps as text, and the primitives that change a buffer's layout or scope."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from tc.errors import ScheduleError
from tc.ir.arith import Facts, prove, simplify
from tc.ir.expr import Buffer, Expr, Load, ceildiv, const, equal, logical_and
from tc.ir.loop import BlockAxis, IntrinsicCall, PrimFunc, Store, row_padding_of
from tc.ir.node import Node, replace, substitute, transform, walk
from tc.schedule.tree import block_places, find_buffer


@dataclass(frozen=True)
class Part:
    """One dimension of a layout: (axis // divisor) % modulus; modulus None: what is left of the axis."""

    axis: int
    divisor: int = 1
    modulus: int | None = None


@dataclass(frozen=True)
class Layout:
    """A map from the indices of a buffer to the indices of its rearranged form, dimension by dimension.

    Each axis goes into one or more parts that count as the digits of a number: `n, k -> n // 16, k, n % 16`. An axis whose extent
    is not a multiple of its block is padded.
    """

    rank: int
    parts: tuple[Part, ...]

    @staticmethod
    def parse(text: str) -> Layout:
        """From text: names of the axes, an arrow, one expression per new dimension. ScheduleError when it is not a layout."""
        left, arrow, right = text.partition("->")
        names = [name.strip() for name in left.split(",")]
        try:
            nodes = ast.parse(f"({right},)", mode="eval").body.elts  # type: ignore[attr-defined]
            parts = tuple(_parse_part(node, names) for node in nodes)
        except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):  # the last two: nested too deep for `ast`
            raise ScheduleError(
                f"layout {text!r}: write the axes, `->`, and parts such as `n // 16`, `n % 16` or `n // 4 % 4`"
            ) from None
        layout = Layout(len(names), parts)
        if not arrow or len(set(names)) != len(names) or not layout._is_bijective():
            raise ScheduleError(
                f"layout {text!r}: the parts of each axis must be the digits of one number, none left out"
            )
        return layout

    def _is_bijective(self) -> bool:
        for axis in range(self.rank):
            digits = sorted((part for part in self.parts if part.axis == axis), key=lambda part: part.divisor)
            expected = 1
            for k, part in enumerate(digits):
                last = k == len(digits) - 1
                if part.divisor != expected or (part.modulus is None) != last:
                    return False
                expected *= part.modulus or 1
            if not digits:
                return False
        return True

    def block_of(self, axis: int) -> int:
        """What the extent of an axis is rounded up to a multiple of."""
        return max(part.divisor for part in self.parts if part.axis == axis)

    def shape(self, shape: Sequence[Expr]) -> tuple[Expr, ...]:
        """The shape of the rearranged buffer."""
        return tuple(
            const(part.modulus) if part.modulus is not None else simplify(ceildiv(shape[part.axis], part.divisor))
            for part in self.parts
        )

    def forward(self, indices: Sequence[Expr], facts: Facts | None = None) -> tuple[Expr, ...]:
        """Where the element at `indices` goes."""
        found = []
        for part in self.parts:
            index = indices[part.axis] // part.divisor
            found.append(simplify(index if part.modulus is None else index % part.modulus, facts))
        return tuple(found)

    def backward(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Which element is at `indices` of the rearranged buffer; in the padding, one outside the buffer."""
        result: list[Expr] = [const(0)] * self.rank
        for part, index in zip(self.parts, indices, strict=True):
            result[part.axis] = result[part.axis] + index * part.divisor
        return tuple(result)

    def is_exact(self, shape: Sequence[Expr], facts: Facts | None = None) -> bool:
        """Whether nothing is padded, proven."""
        return all(prove(equal(dim % self.block_of(axis), 0), facts) is True for axis, dim in enumerate(shape))


def _parse_part(node: ast.expr, names: list[str]) -> Part:
    """`n`, `n // c`, `n % c` or `n // c % d`."""
    modulus, divisor = None, 1
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        modulus, node = _positive(node.right), node.left
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        divisor, node = _positive(node.right), node.left
    if not isinstance(node, ast.Name):
        raise ValueError("not a part of an axis")
    return Part(names.index(node.id), divisor, modulus)


def _positive(node: ast.expr) -> int:
    if not isinstance(node, ast.Constant) or type(node.value) is not int or not 1 <= node.value < 1 << 31:
        raise ValueError("not a positive number")
    return node.value


def transform_layout(func: PrimFunc, buffer: str, layout: str) -> PrimFunc:
    """Place the elements of a buffer differently, everywhere.

        B[i] = ...                            B[i // 16, i % 16] = ...
        ... = B[j]            =>              ... = B[j // 16, j % 16]          (layout "n -> n // 16, n % 16")

    Padding is never read and stays undefined. A parameter changes too: whoever calls the function passes it in the new layout, which
    the attribute `layout:<buffer>` records. Raises ScheduleError if an intrinsic uses the buffer, or its rank is not the layout's.
    Source: `transform_layout` of TVM.
    """
    old, rule = find_buffer(func, buffer), Layout.parse(layout)
    check_rank(old, rule, layout)
    check_no_intrinsic(func, old, "transform_layout")
    if old.strides is not None:
        raise ScheduleError(f"transform_layout: buffer {buffer} has strides")
    if old in func.buffers and any(name == f"layout:{buffer}" for name, _ in func.attrs):
        raise ScheduleError(f"transform_layout: parameter {buffer} has a layout already")
    new = Buffer(old.name, rule.shape(old.shape), old.dtype, old.scope)
    facts = facts_of_axes(func)

    def rewrite(node: Node) -> Node | None:
        if isinstance(node, (Load, Store)) and node.buffer is old:
            return replace(node, buffer=new, indices=rule.forward(node.indices, facts))
        return None

    rewritten = substitute(replace(func, body=transform(func.body, rewrite)), {old: new})
    if old in func.buffers:
        rewritten = replace(rewritten, attrs=(*func.attrs, (f"layout:{buffer}", layout)))
    return rewritten


def check_rank(buffer: Buffer, layout: Layout, text: str) -> None:
    if len(buffer.shape) != layout.rank:
        raise ScheduleError(f"layout {text!r} is for {layout.rank} axes, buffer {buffer.name} has {len(buffer.shape)}")


def check_no_intrinsic(func: PrimFunc, buffer: Buffer, what: str) -> None:
    """ScheduleError where an intrinsic uses a buffer: it relies on how elements lie."""
    for place in block_places(func):
        for node in walk(place.block.body):
            if isinstance(node, IntrinsicCall) and any(getattr(o, "buffer", None) is buffer for o in node.operands):
                raise ScheduleError(f"{what}: an intrinsic of block {place.block.name} uses buffer {buffer.name}")


def facts_of_axes(func: PrimFunc) -> Facts:
    """The dims' promises and the ranges of all block axes."""
    facts = Facts.of(func.facts)
    for place in block_places(func):
        for node in walk(place.block):
            if isinstance(node, BlockAxis):
                facts = facts.with_range(node.var, node.extent)
    return facts


def in_bounds(indices: Sequence[Expr], shape: Sequence[Expr], facts: Facts) -> Expr:
    """The condition that indices (not negative) lie inside a shape, as far as it is not proven."""
    return logical_and(*(simplify(index < dim, facts) for index, dim in zip(indices, shape, strict=True)))


def is_inside(indices: Sequence[Expr], shape: Sequence[Expr], facts: Facts) -> bool:
    """Whether there is an element at the indices, proven."""
    return all(prove(logical_and(index >= 0, index < dim), facts) is True for index, dim in zip(indices, shape, strict=True))


SCOPES = ("global", "local", "register", "shared", "fragment")


def set_scope(func: PrimFunc, buffer: str, scope: str) -> PrimFunc:
    """Say where a scratch buffer lives: "global", "local", "register", "shared" or "fragment"."""
    if scope not in SCOPES:
        raise ScheduleError(f"set_scope: there is no scope {scope!r}; there are: {', '.join(SCOPES)}")
    old = find_buffer(func, buffer)
    if old in func.buffers:
        raise ScheduleError(f"set_scope: {buffer} is a parameter of {func.name}")
    if old.scope == scope:
        return func
    return substitute(func, {old: replace(old, scope=scope)})


def pad_rows(func: PrimFunc, buffer: str, elements: int) -> PrimFunc:
    """Leave `elements` unused behind each row (the last dimension) of a scratch buffer, when `compact_buffers` has made it small.

    Elements that lie in a column of a tile then fall into different banks of shared memory. The attribute `pad_rows:<buffer>` says so.
    Source: `storage_align` of TVM.
    """
    found = find_buffer(func, buffer)
    if found in func.buffers or not found.shape:
        raise ScheduleError(f"pad_rows: {buffer} is {'a parameter of ' + func.name if found.shape else 'one number'}")
    if elements < 0:
        raise ScheduleError(f"pad_rows: rows of {buffer} cannot have {elements} elements more")
    kept = tuple((name, value) for name, value in func.attrs if name != row_padding_of(found))
    return replace(func, attrs=(*kept, (row_padding_of(found), elements)))
