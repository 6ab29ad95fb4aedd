"""Loop programs that somebody wrote: every index is proved to lie in its buffer, or is checked when the program runs.

What is lowered from operators is in range by construction; what a user writes is believed in nothing.
"""

from __future__ import annotations

from tc.errors import VerifyError
from tc.ir.arith import Facts, prove
from tc.ir.bounds import bounds
from tc.ir.dtype import i64
from tc.ir.expr import (
    And,
    Buffer,
    Checked,
    Const,
    Eq,
    Expr,
    Le,
    Load,
    Lt,
    Not,
    Select,
    Var,
    cast,
    const,
    equal,
    logical_and,
    logical_not,
    mul,
)
from tc.ir.intrinsic import INTRINSICS
from tc.ir.loop import Alloc, Block, BlockAxis, For, If, IntrinsicCall, Let, PrimFunc, Stmt, Store, annotation
from tc.ir.node import Node, NodeT, map_children, replace
from tc.ir.samples import fails_somewhere
from tc.ir.types import DimFact
from tc.ir.uses import buffers_read, reads_memory, variables


def check_indices(func: PrimFunc) -> PrimFunc:
    """`func` with a check at run time for each index, and each value of a block's axis, that is not proved to be in range.

        for i in range(n): y[i] = x[i + k]   =>   for i in range(n): y[i] = x[checked(i + k, 0 <= i + k < m)]

    VerifyError for one that is out of range whatever the dims and the data are, naming buffer, dimension, range and size; for a buffer
    whose elements do not lie one behind the other, as callers give them; and for a function that says it reports its own checks. An
    index that data decide is left to `check_accesses`. The same object when all is proved.
    """
    if annotation(func, "checks") is not None:
        raise VerifyError(f"{func.name}: reports of indices are made by the compiler")
    sizes = dict.fromkeys(dim for buffer in func.buffers for dim in buffer.shape if isinstance(dim, Var))
    for buffer in func.buffers:
        _check_dense(func, buffer)
    known = Facts.of((*func.facts, *(DimFact(dim, 0) for dim in sizes if dim not in {fact.var for fact in func.facts})))
    return replace(func, body=_Guard(func).statement(func.body, known, True))


class _Guard:
    """One `check_indices`."""

    def __init__(self, func: PrimFunc) -> None:
        self.func = func

    def statement(self, stmt: Stmt, facts: Facts, happens: bool) -> Stmt:
        """`happens`: whether the statement runs for all values that `facts` allow, as far as no dim is concerned."""

        def visit(node: Node) -> Node:
            if isinstance(node, Stmt):
                return self.statement(node, facts, happens)
            return self.expression(node, facts, happens) if isinstance(node, Expr) else node

        match stmt:
            case For(var=var, extent=extent, body=body):
                inner = self.statement(body, facts.with_range(var, extent), happens and not reads_memory(extent))
                return replace(stmt, extent=visit(extent), body=inner)
            case If(condition=condition, then_body=then_body, else_body=else_body):
                body = self.statement(then_body, facts.assume(condition), happens and _is_told(condition))
                against = logical_not(condition)
                other = None if else_body is None else self.statement(else_body, facts.assume(against), happens and _is_told(against))
                return replace(stmt, condition=visit(condition), then_body=body, else_body=other)
            case Let(var=var, value=value, body=body):
                named = facts.assume(equal(var, value)) if value.dtype is i64 and not reads_memory(value) else facts
                return replace(stmt, value=visit(value), body=self.statement(body, named, happens and named is not facts))
            case Block():
                return self.block(stmt, facts, happens)
            case Store(buffer=buffer, indices=indices, value=value):
                return replace(stmt, indices=self.indices(buffer, indices, facts, happens), value=visit(value))
            case IntrinsicCall(name=name, operands=operands):
                loops = INTRINSICS[name].expand(operands)
                if self.statement(loops, facts, happens) is not loops:
                    raise VerifyError(f"{self.func.name}: {name} is not proved to stay inside of its operands")
                return stmt
            case Alloc(buffer=buffer, body=body):
                _check_dense(self.func, buffer)
                return replace(stmt, body=visit(body))
        return map_children(stmt, visit)

    def block(self, block: Block, facts: Facts, happens: bool) -> Block:
        told = happens and _is_told(block.where)
        inside = facts.assume(block.where)
        axes: list[BlockAxis] = []
        known = inside
        for axis in block.axes:
            what = f"axis {axis.var.name} of block {block.name}"
            value = self.checked(self.expression(axis.value, inside, told), axis.extent, what, inside, told)
            axes.append(replace(axis, value=value))
            known = known.with_range(axis.var, axis.extent)
            if value is axis.value and not reads_memory(value):
                known = known.assume(equal(axis.var, value))
        init = None if block.init is None else self.statement(block.init, known, told)
        where = self.expression(block.where, facts, happens)
        return replace(block, axes=_same(tuple(axes), block.axes), body=self.statement(block.body, known, told), init=init, where=where)

    def expression(self, expr: Expr, facts: Facts, happens: bool) -> Expr:
        if not buffers_read(expr):
            return expr
        match expr:
            case Select(condition=condition, true_value=a, false_value=b):
                against = logical_not(condition)
                yes = self.expression(a, facts.assume(condition), happens and _is_told(condition))
                no = self.expression(b, facts.assume(against), happens and _is_told(against))
                return replace(expr, condition=self.expression(condition, facts, happens), true_value=yes, false_value=no)
            case Checked(index=index, extent=extent):
                inner = facts.assume(logical_and(const(0) <= index, index < extent))
                return map_children(expr, lambda node: self.expression(node, inner, False) if isinstance(node, Expr) else node)
            case Load(buffer=buffer, indices=indices):
                return replace(expr, indices=self.indices(buffer, indices, facts, happens))
        return map_children(expr, lambda node: self.expression(node, facts, happens) if isinstance(node, Expr) else node)

    def indices(self, buffer: Buffer, indices: tuple[Expr, ...], facts: Facts, happens: bool) -> tuple[Expr, ...]:
        done = []
        for axis, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            index = self.expression(index, facts, happens)
            done.append(self.checked(index, extent, f"axis {axis} of {buffer.name}", facts, happens))
        return _same(tuple(done), indices)

    def checked(self, index: Expr, extent: Expr, what: str, facts: Facts, happens: bool) -> Expr:
        if isinstance(index, Checked) or reads_memory(index):
            return index
        number = cast(index, i64)
        within = logical_and(const(0) <= number, number < extent)
        found = prove(within, facts)
        if found is True:
            return index
        is_number = not variables(extent) & {*self.func.dims} and not self.depends_on_dims(number, facts)
        if happens and (found is False or is_number) and fails_somewhere(within, facts):  # not where nothing ever runs
            low, high = bounds(number, facts)
            span = f" takes values from {low} to {high}" if low is not None and high is not None else ""
            raise VerifyError(f"{self.func.name}: index {index}{span}, out of range for {what} of size {extent}")
        return Checked(index, number, extent, number, f"index {{index}} is out of range for {what} of size {{size}}")

    def depends_on_dims(self, index: Expr, facts: Facts) -> bool:
        """Whether a dim decides which values an index takes."""
        dims, todo, seen = {*self.func.dims}, [*variables(index)], set[Var]()
        while todo:
            var = todo.pop()
            if var in dims:
                return True
            if var in seen:
                continue
            seen.add(var)
            fact = facts.variables.get(var)
            todo += [] if fact is None or fact.hi is None else [*variables(fact.hi)]
        return bool(facts.nonnegative) and any(
            not atoms.isdisjoint(dims) for atoms in (frozenset(a for m in poly.terms for a in m) for poly in facts.nonnegative)
        )


def _check_dense(func: PrimFunc, buffer: Buffer) -> None:
    """VerifyError unless rows follow each other in memory."""
    inner: Expr = const(1)
    for stride, size in zip(reversed(buffer.strides or ()), reversed(buffer.shape)):
        if prove(equal(stride, inner)) is not True:
            raise VerifyError(f"{func.name}: {buffer.name} is not one row after the other in memory: its strides are {buffer.strides}")
        inner = mul(inner, size)


def _is_told(condition: Expr) -> bool:
    """Whether facts say all that a condition does: it compares integers, and reads nothing."""
    match condition:
        case Const(value=value):
            return value is True
        case And(lhs=a, rhs=b):
            return _is_told(a) and _is_told(b)
        case Not(operand=Lt(lhs=a) | Le(lhs=a)) | Lt(lhs=a) | Le(lhs=a) | Eq(lhs=a):
            return a.dtype is i64 and not reads_memory(condition)
    return False


def _same(new: tuple[NodeT, ...], old: tuple[NodeT, ...]) -> tuple[NodeT, ...]:
    """`old` when nothing differs."""
    return old if all(a is b for a, b in zip(new, old, strict=True)) else new
