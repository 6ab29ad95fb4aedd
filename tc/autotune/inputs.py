"""Numbers to run a kernel on: any will do for its speed, except that indices which are data must stay within their buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tc.ir.arith import Facts, bounds, evaluate, simplify
from tc.ir.dtype import DType, i64, parse_dtype
from tc.ir.expr import Buffer, Cast, Const, Expr, Load, Var
from tc.ir.loop import Block, For, IntrinsicCall, Let, PrimFunc, Store, While
from tc.ir.node import Node, children, map_children, substitute, walk

Range = tuple[int, int]
"""Integers from the first to the last, both included."""

_PLAIN: Range = (1, 100)
_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class ArraySpec:
    """An array of a kernel's signature. `values` are what it may hold; None: any number, so normally distributed ones.

    The dtype is a name, for a `DType` that went from process to process would be another object.
    """

    shape: tuple[int, ...]
    dtype_name: str
    values: Range | None = None

    @property
    def dtype(self) -> DType:
        return parse_dtype(self.dtype_name)

    @property
    def size_bytes(self) -> int:
        return self.dtype.bytes_of(int(np.prod(self.shape, dtype=np.int64)))


def signature(
    func: PrimFunc, dims: Mapping[str, int], *, with_values: bool = True
) -> tuple[tuple[ArraySpec, ...], tuple[ArraySpec, ...]]:
    """Inputs and outputs of `func` at these sizes of its symbolic dims; what the inputs may hold takes an unscheduled `func`."""
    env = {var: dims[var.name] for var in func.dims}

    def spec(buffer: Buffer, values: Range | None = None) -> ArraySpec:
        return ArraySpec(tuple(int(evaluate(dim, env)) for dim in buffer.shape), buffer.dtype.name, values)

    ranges = input_ranges(func, dims) if with_values else (None,) * len(func.inputs)
    return tuple(map(spec, func.inputs, ranges)), tuple(map(spec, func.outputs))


def input_ranges(func: PrimFunc, dims: Mapping[str, int]) -> tuple[Range | None, ...]:
    """For each input of an unscheduled PrimFunc what it may hold, so that no access leaves its buffer.

    Numbers that only enter values may be any float, and small positive integers. An integer that stands in an index may be
    anything below the extent of that dimension, as far as the index is then proven to be in range. What decides a loop's extent,
    becomes an index by way of another buffer, or cannot be proven, is 0.
    """
    use = _Addresses(func, dims)
    use.visit(func.body, Facts())
    use.follow_scratch(func)
    found: list[Range | None] = []
    for buffer in func.inputs:
        last = use.last.get(buffer)
        if last is not None:
            found.append((0, last))
        elif buffer.dtype.is_float:
            found.append(None)
        else:
            found.append((0, 1) if buffer.dtype.is_bool else _PLAIN)
    return tuple(found)


class _Addresses:
    """Finds the buffers whose contents decide where a kernel reads and writes. `last`: the largest number each may hold."""

    def __init__(self, func: PrimFunc, dims: Mapping[str, int]) -> None:
        self.sizes: dict[Node, Node] = {var: Const(dims[var.name], i64) for var in func.dims}
        self.inputs = set(func.inputs)
        self.last: dict[Buffer, int] = {}

    def visit(self, node: Node, facts: Facts) -> None:
        match node:
            case For(var=var, extent=extent, body=body):
                self._forbid(extent)
                self.visit(extent, facts)
                self.visit(body, facts.with_range(var, self._sized(extent)))
                return
            case Block(axes=axes):
                for axis in axes:
                    self._forbid(axis.value)
                    facts = facts.with_range(axis.var, self._sized(axis.extent))
            case Let(var=var, value=value, body=body):
                self.visit(value, facts)
                self.visit(substitute(body, {var: value}), facts)
                return
            case While(condition=condition):
                self._forbid(condition)
            case Store(buffer=buffer, indices=indices) | Load(buffer=buffer, indices=indices):
                for dim, index in zip(buffer.shape, indices, strict=True):
                    self._index(index, dim, facts)
            case IntrinsicCall():
                self._forbid(node)
        for child in children(node):
            self.visit(child, facts)

    def _sized(self, expr: Expr) -> Expr:
        return simplify(substitute(expr, self.sizes))

    def _forbid(self, node: Node) -> None:
        for load in walk(node):
            if isinstance(load, Load):
                self._allow(load.buffer, 0)

    def _allow(self, buffer: Buffer, last: int) -> None:
        self.last[buffer] = max(min(last, self.last.get(buffer, last)), 0)

    def _index(self, index: Expr, dim: Expr, facts: Facts) -> None:
        known, variables = _loads_as_variables(index)
        if not variables:
            return
        extent = self._sized(dim)
        last = int(extent.value) - 1 if isinstance(extent, Const) else 0
        for var in variables.values():
            facts = facts.with_bounds(var, 0, last)
        within = bounds(simplify(substitute(known, self.sizes), facts), facts)
        is_safe = within.lo is not None and within.hi is not None and 0 <= within.lo and within.hi <= last
        is_safe = is_safe and all(load.buffer in self.inputs and load.buffer.dtype.is_int for load in variables)
        for load in variables:
            self._allow(load.buffer, min(last, int(np.iinfo(load.buffer.dtype.numpy).max)) if is_safe else 0)

    def follow_scratch(self, func: PrimFunc) -> None:
        """What flows into a buffer that decides addresses decides them too."""
        stores = [node for node in walk(func.body) if isinstance(node, Store)]
        pending = [buffer for buffer in self.last if buffer not in self.inputs]
        seen = set(pending)
        while pending:
            target = pending.pop()
            for store in stores:
                if store.buffer is not target:
                    continue
                sources = {node.buffer for node in walk(store.value) if isinstance(node, Load)}
                for source in sources:
                    self._allow(source, 0)
                fresh = sources - self.inputs - seen
                seen |= fresh
                pending.extend(fresh)


def _loads_as_variables(index: Expr) -> tuple[Expr, dict[Load, Var]]:
    """`index` with i64 variables for the numbers that it loads. A load of another type that is not widened first stays, as what may
    hold any number of its type."""
    variables: dict[Load, Var] = {}

    def visit(node: Node) -> Node:
        match node:
            case Cast(operand=Load() as load) if node.dtype == i64 and load.dtype.is_int:
                return variables.setdefault(load, Var("loaded", i64))
            case Load():
                var = variables.setdefault(node, Var("loaded", i64))
                return var if node.dtype == i64 else node
        return map_children(node, visit)

    return visit(index), variables  # type: ignore[return-value]


def fill(array: np.ndarray, spec: ArraySpec, seed: int) -> None:
    """Put random numbers into `array`. Large arrays repeat a block of them."""
    flat = array.reshape(-1)
    rng = np.random.default_rng(seed)
    count = min(flat.size, _BLOCK_ELEMENTS)
    block: np.ndarray
    if spec.values is None:
        block = rng.standard_normal(count, np.float32).astype(flat.dtype)
    else:
        low, high = spec.values
        block = rng.integers(low, high + 1, count).astype(flat.dtype)
    for start in range(0, flat.size, max(count, 1)):
        part = flat[start : start + count]
        part[...] = block[: part.size]
