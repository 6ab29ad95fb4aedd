"""Tensor expressions: say what each element of a result is, get an unscheduled PrimFunc.

A `Stage` computes one or more buffers over one space of axes. Expressions read other stages through plain loads
(`x[i, j]`), so composing operators is composing Python functions, and fusing two operators needs no code here.

    y = compute((n, m), lambda i, j: x[i, j] * 2.0, "double")
    z = reduce("sum", (n,), (m,), lambda i, k: y[i, k], "row_sum")
    func = create_prim_func("f", inputs=(x,), outputs=(z,), dims=(n,))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tc.ir.arith import bounds
from tc.ir.dtype import DType, i64, int_range
from tc.ir.expr import (
    Buffer,
    Cast,
    Checked,
    Const,
    Expr,
    ExprLike,
    Load,
    Narrow,
    Var,
    add,
    as_expr,
    call,
    const,
    equal,
    is_const,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mul,
    select,
)
from tc.ir.loop import Alloc, AxisKind, Block, BlockAxis, For, Let, PrimFunc, Stmt, Store, seq
from tc.ir.node import Node, cached_on_node, children, replace, substitute
from tc.ir.types import DimFact


@dataclass(frozen=True, eq=False)
class Stage(Node):
    """What computes `buffers`, all of one shape, over `axes` (one per dim).

    Without reduction axes, `values[k]` is the element of `buffers[k]`. With them, `init[k]` is the start and `values[k]` the
    next state, in terms of loads of the buffers at the axes; all states advance together. `in_order`: the reduction axes are gone through
    in order, as is needed where no monoid says how parts combine. `scanned`: the axis that is gone through in order, and whose earlier
    elements values may load, `backwards` the later ones; -1 for none. A stage with `raw` set is opaque: `raw` writes the buffers by itself.
    """

    name: str
    buffers: tuple[Buffer, ...]
    axes: tuple[Var, ...] = ()
    reduce_axes: tuple[Var, ...] = ()
    reduce_extents: tuple[Expr, ...] = ()
    init: tuple[Expr, ...] = ()
    values: tuple[Expr, ...] = ()
    in_order: bool = False
    scanned: int = -1
    backwards: bool = False
    raw: Stmt | None = None
    annotations: tuple[tuple[str, int | float | str | bool], ...] = ()

    @property
    def is_independent(self) -> bool:
        """Whether every element is computed by itself, so that others may compute it where they read it."""
        return self.raw is None and self.scanned < 0


@dataclass(frozen=True, eq=False, repr=False)
class Read(Expr):
    """An element of a `Tensor`, while tensor expressions are put together; `create_prim_func` makes it a `Load`."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.tensor.dtype)

    def __repr__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(repr, self.indices))}]"


@dataclass(frozen=True, eq=False)
class Tensor:
    """One buffer and the stage that computes it; None for an input."""

    buffer: Buffer
    stage: Stage | None = None

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> Read:
        items = tuple(map(as_expr, indices if isinstance(indices, tuple) else (indices,)))
        if len(items) != len(self.shape):
            raise IndexError(f"{self.buffer} indexed with {len(items)} indices")
        return Read(self, items)

    @property
    def shape(self) -> tuple[Expr, ...]:
        return self.buffer.shape

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def name(self) -> str:
        return self.buffer.name


_ORIGIN: ContextVar[int] = ContextVar("origin", default=0)


@contextmanager
def origin(number: int) -> Iterator[None]:
    """What `checked` makes inside is asked for by operation `number` of the kernel."""
    token = _ORIGIN.set(number)
    try:
        yield
    finally:
        _ORIGIN.reset(token)


def checked(value: Expr, index: Expr, extent: Expr, message: str, given: Expr | None = None) -> Expr:
    """`value`, if 0 <= `index` < `extent`; else the call fails with `message`, in which {index} stands for `given` (by default `index`)
    and {size} for `extent`. Nothing is checked where the dtype of what is loaded says it all."""
    known = bounds(index)
    if known.lo is not None and known.lo >= 0 and known.hi is not None and isinstance(extent, Const) and known.hi < extent.value:
        return value
    return Checked(value, index, extent, index if given is None else given, message, _ORIGIN.get())


def placeholder(shape: Sequence[ExprLike], dtype: DType, name: str) -> Tensor:
    """An input tensor."""
    return Tensor(Buffer(name, _shape(shape), dtype))


def _shape(dims: Sequence[ExprLike]) -> tuple[Expr, ...]:
    shape = tuple(map(as_expr, dims))
    for dim in shape:
        if not dim.dtype.is_int or dim.dtype.is_bool:
            raise TypeError(f"a dim is {dim}, of {dim.dtype}, must be an integer")
    return shape


_AXIS_NAMES = "ijklmnpq"


def _axes(count: int, prefix: str) -> tuple[Var, ...]:
    names = [f"{prefix}{_AXIS_NAMES[d]}" if count <= len(_AXIS_NAMES) else f"{prefix}{d}" for d in range(count)]
    return tuple(Var(name, i64) for name in names)


def compute(shape: Sequence[ExprLike], body: Callable[..., Expr], name: str) -> Tensor:
    """The tensor whose element at (i, j, ...) is `body(i, j, ...)`."""
    dims = _shape(shape)
    axes = _axes(len(dims), "")
    value = body(*axes)
    if not isinstance(value, Expr):
        raise TypeError(f"{name}: an element is a {type(value).__name__}, must be an expression, such as const({value!r}, f32)")
    buffer = Buffer(name, dims, value.dtype)
    return Tensor(buffer, Stage(name, (buffer,), axes, values=(value,)))


def narrowed_result(tensor: Tensor) -> Tensor:
    """The tensor, whose elements need not be rounded where they are computed with further: see `Narrow`."""
    stage = tensor.stage
    if stage is None or len(stage.values) != 1:
        return tensor
    (value,) = stage.values
    if not isinstance(value, Cast) or isinstance(value, Narrow):
        return tensor
    if not (value.dtype.is_float and value.operand.dtype.is_float and value.dtype.bits < value.operand.dtype.bits):
        return tensor
    return Tensor(tensor.buffer, replace(stage, values=(Narrow(value.operand, value.dtype),)))


@dataclass(frozen=True)
class Monoid:
    """An associative, commutative combination with an identity; what reductions are made of.

    The state is a tuple of scalars. Splitting a reduction, running it in parallel and joining partial results all derive from
    `identity` and `combine`. A `commutative` monoid may take its elements in any order.
    """

    name: str
    identity: Callable[[tuple[DType, ...]], tuple[Expr, ...]]
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]


def lowest(dtype: DType) -> Const:
    """The identity of max."""
    return const(float("-inf"), dtype) if dtype.is_float else const(int_range(dtype)[0], dtype)


def highest(dtype: DType) -> Const:
    """The identity of min."""
    return const(float("inf"), dtype) if dtype.is_float else const(int_range(dtype)[1], dtype)


def _is_nan(value: Expr) -> Expr:
    return call("isnan", value) if value.dtype.is_float else as_expr(False)


def _arg_combine(better: Callable[[Expr, Expr], Expr]) -> Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Expr, ...]]:
    """(value, index) pairs: the better value, the lower index among equals; NaN wins over all, as in numpy."""

    def combine(old: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
        (old_value, old_index), (value, index) = old, new
        nan, old_nan = _is_nan(value), _is_nan(old_value)
        tie = logical_and(logical_or(equal(value, old_value), logical_and(nan, old_nan)), index < old_index)
        wins = logical_or(tie, logical_and(_not(old_nan), logical_or(nan, better(value, old_value))))
        return select(wins, value, old_value), select(wins, index, old_index)

    return combine


def _not(condition: Expr) -> Expr:
    return select(condition, as_expr(False), as_expr(True)) if not isinstance(condition, Const) else as_expr(not condition.value)


def _log_sum_exp_combine(old: tuple[Expr, ...], new: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """(m, s) stands for exp(m) * s."""
    (m0, s0), (m1, s1) = old, new
    m = maximum(m0, m1)

    def scaled(s: Expr, own: Expr) -> Expr:  # -inf - -inf is NaN, and means nothing was summed yet
        return select(equal(own, m), s, s * call("exp", own - m))

    return m, scaled(s0, m0) + scaled(s1, m1)


# `max_number` passes over NaN, which is one instruction instead of three; for those who meet every NaN again anyway.
MONOIDS: dict[str, Monoid] = {
    monoid.name: monoid
    for monoid in (
        Monoid("sum", lambda t: (const(0, t[0]),), lambda a, b: (add(a[0], b[0]),)),
        Monoid("prod", lambda t: (const(1, t[0]),), lambda a, b: (mul(a[0], b[0]),)),
        Monoid("max", lambda t: (lowest(t[0]),), lambda a, b: (maximum(a[0], b[0]),)),
        Monoid("max_number", lambda t: (lowest(t[0]),), lambda a, b: (select(b[0] > a[0], b[0], a[0]),)),
        Monoid("min", lambda t: (highest(t[0]),), lambda a, b: (minimum(a[0], b[0]),)),
        Monoid("all", lambda t: (const(1, t[0]),), lambda a, b: (logical_and(a[0], b[0]),)),
        Monoid("any", lambda t: (const(0, t[0]),), lambda a, b: (logical_or(a[0], b[0]),)),
        Monoid("argmax", lambda t: (lowest(t[0]), const(int_range(t[1])[1], t[1])), _arg_combine(lambda a, b: b < a)),
        Monoid("argmin", lambda t: (highest(t[0]), const(int_range(t[1])[1], t[1])), _arg_combine(lambda a, b: a < b)),
        Monoid("log_sum_exp", lambda t: (lowest(t[0]), const(0, t[1])), _log_sum_exp_combine),
    )
}


def reduce(
    monoid: str,
    shape: Sequence[ExprLike],
    reduce_shape: Sequence[ExprLike | Callable[..., Expr]],
    body: Callable[..., Expr | tuple[Expr, ...]],
    name: str,
) -> Tensor:
    """Combine `body(*axes, *reduce_axes)` over the reduction axes. For a monoid of several states, the first one is returned.

    An extent that is a function is one of the axes, and may be read from memory."""
    return reduce_many(monoid, shape, reduce_shape, body, (name,))[0]


def reduce_many(
    monoid: str,
    shape: Sequence[ExprLike],
    reduce_shape: Sequence[ExprLike | Callable[..., Expr]],
    body: Callable[..., Expr | tuple[Expr, ...]],
    names: Sequence[str],
) -> tuple[Tensor, ...]:
    """As `reduce`; returns every state of the monoid."""
    dims = _shape(shape)
    axes, reduce_axes = _axes(len(dims), ""), _axes(len(reduce_shape), "r")
    extents = _shape([extent(*axes) if callable(extent) else extent for extent in reduce_shape])
    made = body(*axes, *reduce_axes)
    values = made if isinstance(made, tuple) else (made,)
    labels = [*names, *(f"{names[0]}_state{k}" for k in range(len(names), len(values)))]
    buffers = tuple(Buffer(label, dims, value.dtype) for label, value in zip(labels, values, strict=True))
    rule = MONOIDS.get(monoid)
    if rule is None:
        raise ValueError(f"{names[0]}: no reduction {monoid!r}; there are: {', '.join(MONOIDS)}")
    if monoid in ("all", "any") and any(not value.dtype.is_bool for value in values):
        raise TypeError(f"{names[0]}: {monoid} is of bools, not of {', '.join(str(value.dtype) for value in values)}")
    state = tuple(Load(buffer, axes) for buffer in buffers)
    stage = Stage(
        names[0],
        buffers,
        axes,
        reduce_axes,
        extents,
        init=rule.identity(tuple(value.dtype for value in values)),
        values=rule.combine(state, values),
        annotations=(("monoid", monoid),),
    )
    return tuple(Tensor(buffer, stage) for buffer in buffers)


def fold(
    shape: Sequence[ExprLike], steps: Callable[..., Expr], init: Callable[..., Expr], step: Callable[..., Expr], name: str
) -> Tensor:
    """What `step(total, *axes, k)` makes of `init(*axes)` for k = 0, 1, ..., `steps(*axes)` - 1, one after the other; the number of steps
    may be read from memory. Of no steps: `init`."""
    dims = _shape(shape)
    axes = _axes(len(dims), "")
    (own,) = _axes(1, "r")
    start = init(*axes)
    buffer = Buffer(name, dims, start.dtype)
    value = step(Load(buffer, axes), *axes, own)
    stage = Stage(name, (buffer,), axes, (own,), (steps(*axes),), init=(start,), values=(value,), in_order=True)
    return Tensor(buffer, stage)


def scan(shape: Sequence[ExprLike], dtype: DType, axis: int, body: Callable[..., Expr], name: str, *, backwards: bool = False) -> Tensor:
    """Elements `body(own, *axes)`, computed in the order of `axis`, or from its end: they may load what the result, `own`, has so far."""
    dims = _shape(shape)
    axes = _axes(len(dims), "")
    buffer = Buffer(name, dims, dtype)
    return Tensor(buffer, Stage(name, (buffer,), axes, values=(body(buffer, *axes),), scanned=axis, backwards=backwards))


def raw(
    outputs: Sequence[tuple[str, Sequence[ExprLike], DType]], body: Callable[..., Stmt], name: str
) -> tuple[Tensor, ...]:
    """An opaque stage: `body(*output_buffers)` is a statement that writes every element of the outputs."""
    buffers = tuple(Buffer(label, _shape(shape), dtype) for label, shape, dtype in outputs)
    stage = Stage(name, buffers, raw=body(*buffers))
    return tuple(Tensor(buffer, stage) for buffer in buffers)


def stages_of(outputs: Iterable[Tensor]) -> list[Stage]:
    """Every stage that the outputs need, producers first."""
    order: dict[Stage, None] = {}
    stack = [(tensor.stage, False) for tensor in outputs if tensor.stage is not None][::-1]
    while stack:
        stage, ready = stack.pop()
        if stage in order:
            continue
        if ready:
            order[stage] = None
            continue
        stack.append((stage, True))
        stack.extend((tensor.stage, False) for tensor in reversed(tensors_read(stage)) if tensor.stage is not None)
    return list(order)


def tensors_read(stage: Stage) -> list[Tensor]:
    """The tensors a stage reads, in order of appearance."""
    return list(dict.fromkeys(read.tensor for read in reads(stage)))


def reads(node: Node) -> tuple[Read, ...]:
    """The different reads of tensors at or below a node, in order of appearance."""
    below = _reads_below(node)
    return tuple(dict.fromkeys((node, *below))) if isinstance(node, Read) else below


@cached_on_node
def _reads_below(node: Node) -> tuple[Read, ...]:
    below = children(node)
    if len(below) < 2:
        return reads(below[0]) if below else ()
    return tuple(dict.fromkeys(itertools.chain.from_iterable(map(reads, below))))


def create_prim_func(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    dims: Sequence[Var] = (),
    facts: tuple[DimFact, ...] = (),
    attrs: tuple[tuple[str, int | float | str | bool], ...] = (),
    *,
    compose: bool = False,
) -> PrimFunc:
    """The unscheduled PrimFunc: one loop nest around one block per stage, producers first, intermediates allocated.

    Block names are made unique by a suffix. An output that is an input, or is listed twice, gets a copying stage. `compose`: stages that
    every schedule would inline by a step stand where they are read (`_Loads`).
    """
    finals = _distinct_outputs(inputs, outputs)
    stages = stages_of(finals)
    loads = _Loads(stages, {tensor.buffer for tensor in finals} if compose else None)
    stages = [stage for stage in stages if stage not in loads.inlined]
    produced = {buffer for stage in stages for buffer in stage.buffers}
    results = [tensor.buffer for tensor in finals]
    names = _unique_names([stage.name for stage in stages])
    body: Stmt = seq(*(_stage_nest(stage, label, loads) for stage, label in zip(stages, names, strict=True)))
    for buffer in reversed([b for stage in stages for b in stage.buffers]):
        if buffer in produced and buffer not in results:
            body = Alloc(buffer, body)
    return PrimFunc(name, (*(t.buffer for t in inputs), *results, *dims), body, len(results), facts, attrs)


def _distinct_outputs(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    seen = {tensor.buffer for tensor in inputs}
    finals = []
    for tensor in outputs:
        if tensor.buffer in seen:
            tensor = compute(tensor.shape, lambda *axes, source=tensor: source[axes], f"{tensor.name}_copy")
        seen.add(tensor.buffer)
        finals.append(tensor)
    return finals


def _unique_names(names: Iterable[str]) -> list[str]:
    used: set[str] = set()
    result = []
    for name in names:
        label, count = name, 0
        while label in used:
            count += 1
            label = f"{name}_{count}"
        used.add(label)
        result.append(label)
    return result


class _Loads:
    """Makes the reads of stages loads of memory.

    inlined: stages that are computed where they are read instead, unless nothing is `kept`. Literals, and what one elementwise stage alone
    reads, once, at its own place.
    """

    def __init__(self, stages: Sequence[Stage], kept: set[Buffer] | None) -> None:
        self.inlined: set[Stage] = set()
        readers: dict[Buffer, list[tuple[Read, Stage]]] = {}
        for stage in stages if kept is not None else ():
            for read in reads(stage):
                readers.setdefault(read.tensor.buffer, []).append((read, stage))
        for stage in stages:
            if kept is not None and _is_elementwise(stage) and stage.buffers[0] not in kept:
                users = readers[stage.buffers[0]]
                if isinstance(stage.values[0], Const):
                    is_inlined = all(user.raw is None for _, user in users)
                else:
                    is_inlined = len(users) == 1 and _is_elementwise(users[0][1]) and _is_own_place(*users[0])
                if is_inlined:
                    self.inlined.add(stage)

    def of(self, node: Node, axes: Mapping[Any, Node], made: dict[Read, Node] | None = None) -> Node:
        """`node` with loads for its reads, and other variables for `axes`. `made`: what reads have become with the same axes."""
        made = {} if made is None else made
        for read in reads(node):
            if read not in made:
                made[read] = self._at(read, axes, made)
        return substitute(node, {**axes, **made})

    def _at(self, read: Read, axes: Mapping[Any, Node], made: dict[Read, Node]) -> Node:
        stage, indices = read.tensor.stage, tuple([self.of(index, axes, made) for index in read.indices])
        if stage in self.inlined:
            return self.of(stage.values[0], dict(zip(stage.axes, indices, strict=True)))
        return Load(read.tensor.buffer, indices)  # type: ignore[arg-type]


def _is_elementwise(stage: Stage) -> bool:
    return stage.is_independent and not stage.reduce_axes and len(stage.values) == 1 and not stage.init and not stage.annotations


def _is_own_place(read: Read, stage: Stage) -> bool:
    """Whether a stage reads the element at which it is."""
    (result,), shape = stage.buffers, read.tensor.shape
    places = zip(read.indices, stage.axes, shape)
    return shape == result.shape and all(i is axis or (is_const(i, 0) and is_const(n, 1)) for i, axis, n in places)


def _stage_nest(stage: Stage, label: str, loads: _Loads) -> Stmt:
    if stage.raw is not None:
        return Block(label, (), loads.of(stage.raw, {}), annotations=stage.annotations)  # type: ignore[arg-type]
    dims = stage.buffers[0].shape
    loops = [
        (axis, extent, AxisKind.ORDERED if k == stage.scanned else AxisKind.SPATIAL)
        for k, (axis, extent) in enumerate(zip(stage.axes, dims, strict=True))
    ]
    kind = AxisKind.ORDERED if stage.in_order else AxisKind.REDUCTION
    loops += [(axis, n, kind) for axis, n in zip(stage.reduce_axes, stage.reduce_extents, strict=True)]
    loop_vars = [Var(f"{axis.name}", i64) for axis, _, _ in loops]
    around = dict(zip(stage.axes, loop_vars, strict=False))  # an extent may depend on the axes of the result
    loops = [(axis, loads.of(extent, around), kind) for axis, extent, kind in loops]  # type: ignore[misc]
    axes = [Var(f"v{axis.name}", i64) for axis, _, _ in loops]
    renamed = dict(zip((axis for axis, _, _ in loops), axes, strict=True))
    values = [loads.of(value, renamed) for value in stage.values]
    starts = [loads.of(value, renamed) for value in stage.init]
    target = tuple(axes[: len(dims)])
    places: list[Expr] = list(loop_vars)
    if stage.backwards:
        places[stage.scanned] = loops[stage.scanned][1] - 1 - loop_vars[stage.scanned]
    block = Block(
        label,
        tuple(
            BlockAxis(axis, extent, kind, place) for axis, (_, extent, kind), place in zip(axes, loops, places, strict=True)
        ),
        _store_all(stage.buffers, target, values),
        init=seq(*(Store(b, target, v) for b, v in zip(stage.buffers, starts, strict=True))) if starts else None,  # type: ignore[arg-type]
        annotations=stage.annotations,
    )
    if any(isinstance(extent, Const) and extent.value == 0 for extent in stage.reduce_extents):
        block = _init_only(block)  # nothing to combine: the result is the start value
        loops, loop_vars = loops[: len(dims)], loop_vars[: len(dims)]
    body: Stmt = block
    for loop_var, (_, extent, _) in reversed(list(zip(loop_vars, loops, strict=True))):
        body = For(loop_var, extent, body)
    return body


def _init_only(block: Block) -> Block:
    assert block.init is not None
    spatial = tuple(axis for axis in block.axes if axis.kind is AxisKind.SPATIAL)
    return replace(block, axes=spatial, body=block.init, init=None, annotations=())


def _store_all(buffers: Sequence[Buffer], target: tuple[Expr, ...], values: Sequence[Node]) -> Stmt:
    """Store all values at once: with several, each is named first, since later ones may read what earlier ones overwrite."""
    if len(buffers) == 1:
        return Store(buffers[0], target, values[0])  # type: ignore[arg-type]
    names = [Var(f"new{k}", buffer.dtype) for k, buffer in enumerate(buffers)]
    body = seq(*(Store(buffer, target, name) for buffer, name in zip(buffers, names, strict=True)))
    for name, value in reversed(list(zip(names, values, strict=True))):
        body = Let(name, value, body)  # type: ignore[arg-type]
    return body
