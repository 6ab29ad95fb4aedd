"""How the instructions of `tc.ir.loop_intrinsics` are emitted: trees, squares that are exchanged, what is fetched ahead.

Selection has kept a hint only where the loop is of the form that it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tc.codegen.llvm.builder import FunctionBuilder, Value, int_value
from tc.codegen.llvm.places import Lane, State
from tc.codegen.llvm.scalars import emit_float_operation, emit_integer_extreme
from tc.ir.arith import linear_coefficients
from tc.ir.dtype import DType
from tc.ir.expr import Buffer, Expr, Load, Var, const, is_const
from tc.ir.hints import NO_HINTS
from tc.ir.loop import For, PrimFunc, Stmt, Store
from tc.ir.node import walk
from tc.ir.tree_loop import TreeLoop, as_square, as_tree_loop, combine_tree


class StatementEmitter(Protocol):
    """What emits the statements of a function, at one point of it."""

    func: PrimFunc
    state: State
    lane: Lane | None
    tree: TreeLoop | None
    prefetched: dict[Buffer, int]
    prefetch_places: set[object]

    @property
    def b(self) -> FunctionBuilder: ...

    def statement(self, stmt: Stmt) -> None: ...

    def value(self, expr: Expr) -> Value: ...

    def lanes(self, loop: For, count: int) -> AbstractContextManager[None]: ...

    def counted(self, loop: For, first: Value, end: Value) -> None: ...

    def to_memory(self, value: Value, dtype: DType) -> Value: ...

    def store_scalar(self, store: Store, value: Value) -> Any: ...

    def store_value(self, store: Store, value: Value) -> Any: ...

    def store_vector(self, operand: Load, value: Value) -> Any: ...


def emit_loop_intrinsic(emitter: StatementEmitter, loop: For) -> bool:
    """Emit what a hint asks for in place of the loop; False where none does, or where it cannot be had at this point."""
    if loop.hints is NO_HINTS:
        return False
    emit = next((_EMITTERS[key] for key, _ in loop.hints.items() if key in _EMITTERS), None)
    return emit is not None and emit(emitter, loop)


# -- trees


def _emit_tree(emitter: StatementEmitter, loop: For) -> bool:
    """A loop that combines numbers as a tree. Where they follow each other in memory, halves of one vector are combined."""
    tree = as_tree_loop(loop)
    assert tree is not None, "selected"
    follows = isinstance(tree.value, Load) and any(n is loop.var for i in tree.value.indices for n in walk(i))
    if tree.store is not tree.body or not follows or emitter.lane is not None or tree.count & (tree.count - 1):
        outer, emitter.tree = emitter.tree, tree
        emitter.statement(tree.body)
        emitter.tree = outer
        return True
    with emitter.lanes(loop, tree.count):
        vector = emitter.value(tree.value)
    while vector.lanes:
        vector = _half(emitter.b, tree, vector)
    total = _combined(emitter.b, tree, emitter.value(tree.old), vector)
    emitter.store_scalar(tree.store, total)
    return True


def tree_value(emitter: StatementEmitter, tree: TreeLoop) -> Value:
    """What the store of a tree stores, at this point of the loops inside of it."""

    def leaf(number: int) -> Value:
        emitter.state.values[tree.var] = int_value(number)
        return emitter.value(tree.value)

    def combine(a: Value, b: Value) -> Value:
        lhs, rhs = emitter.b.unify(a, b)
        return _combined(emitter.b, tree, lhs, rhs)

    return combine(emitter.value(tree.old), combine_tree(tree.count, leaf, combine))


def _combined(b: FunctionBuilder, tree: TreeLoop, lhs: Value, rhs: Value) -> Value:
    dtype = tree.value.dtype
    if dtype.is_float:
        return emit_float_operation(b, tree.operation, lhs, rhs)
    return emit_integer_extreme(b, tree.operation, dtype, lhs, rhs)


def _half(b: FunctionBuilder, tree: TreeLoop, vector: Value) -> Value:
    """The lower half of a vector combined with its upper half; a number when there are two."""
    half = vector.lanes // 2
    if half == 1:
        return _combined(b, tree, b.extract(vector, 0), b.extract(vector, 1))
    nothing = Value("poison", vector.element, vector.lanes)
    lower, upper = (b.shuffled(vector, nothing, range(start, start + half)) for start in (0, half))
    return _combined(b, tree, lower, upper)


# -- squares


def _emit_square(emitter: StatementEmitter, loop: For) -> bool:
    """A square copied with its axes exchanged: rows are read as vectors, transposed in registers, and stored as vectors. Of rows that are
    shorter than there are rows, several are one vector."""
    square = as_square(loop)
    assert square is not None, "selected"
    if emitter.lane is not None:
        return False
    inner, store = square
    count, size = (int(each.extent.value) for each in (loop, inner))  # type: ignore[attr-defined]
    rows = []
    for k in range(size):
        emitter.state.values[inner.var] = int_value(k)
        with emitter.lanes(loop, count):
            rows.append(emitter.b.splat(emitter.to_memory(emitter.value(store.value), store.buffer.dtype), count))
    if size < count:
        together = _interleaved(emitter.b, rows)
        if _is_dense(store, loop.var, inner.var, size):
            emitter.state.values[loop.var] = emitter.state.values[inner.var] = int_value(0)
            emitter.store_vector(Load(store.buffer, store.indices), together)
            return True
        columns = [emitter.b.shuffled(together, together, range(k * size, (k + 1) * size)) for k in range(count)]
    else:
        columns = _exchanged(emitter.b, rows)
    for k, column in enumerate(columns):
        emitter.state.values[loop.var] = int_value(k)
        with emitter.lanes(inner, size):
            emitter.store_value(store, column)
    return True


def _is_dense(store: Store, row: Var, place: Var, size: int) -> bool:
    """Whether rows of `size` elements are stored one behind the other."""
    if store.buffer.dtype.bits < 8:
        return False
    *before, last = store.indices
    if last is place and before and is_const(store.buffer.shape[-1], size):
        *before, last = before
        steps = {row: 1}
    else:
        steps = {row: size, place: 1}
    along = linear_coefficients(last, (row, place))
    is_row = along is not None and all(is_const(along[0].get(var, const(0)), steps.get(var, 0)) for var in (row, place))
    return is_row and not any(node in (row, place) for index in before for node in walk(index))


def _interleaved(b: FunctionBuilder, rows: list[Value]) -> Value:
    """The first element of each row, the second of each, and so on."""
    if len(rows) == 1:
        return rows[0]
    count, size = rows[0].lanes, len(rows)
    if size % 2 == 0:
        low, high = _interleaved(b, rows[::2]), _interleaved(b, rows[1::2])
        return b.shuffled(low, high, [lane // 2 + lane % 2 * low.lanes for lane in range(2 * low.lanes)])
    most, last = _interleaved(b, rows[:-1]), rows[-1]
    wide = b.shuffled(last, last, [min(lane, count - 1) for lane in range(most.lanes)])
    order = [most.lanes + row if k == size - 1 else row * (size - 1) + k for row in range(count) for k in range(size)]
    return b.shuffled(most, wide, order)


def _exchanged(b: FunctionBuilder, rows: list[Value]) -> list[Value]:
    """The columns of a square of rows: blocks off the diagonal change places, half as large in each round."""
    count = len(rows)
    step = count // 2
    while step:
        for k in (k for k in range(count) if not k & step):
            low = [lane if not lane & step else count + lane - step for lane in range(count)]
            high = [lane + step if not lane & step else count + lane for lane in range(count)]
            rows[k], rows[k + step] = (b.shuffled(rows[k], rows[k + step], lanes) for lanes in (low, high))
        step //= 2
    return rows


# -- what is fetched ahead


def _emit_fetching(emitter: StatementEmitter, loop: For) -> bool:
    """A loop whose loads of a parameter each fetch what will be loaded some iterations later."""
    ahead = loop.hints.prefetch
    assert ahead is not None, "selected"
    extent = emitter.value(loop.extent)
    outer, places = emitter.prefetched, emitter.prefetch_places
    emitter.prefetched, emitter.prefetch_places = {**outer, emitter.func.buffers[ahead.parameter]: ahead.ahead_bytes}, set()
    emitter.counted(loop, int_value(0), extent)
    emitter.prefetched, emitter.prefetch_places = outer, places
    return True


_EMITTERS: Mapping[str, Callable[[StatementEmitter, For], bool]] = {
    "tree": _emit_tree,
    "transpose": _emit_square,
    "prefetch": _emit_fetching,
}
