"""What a scheduled PrimFunc touches, found by running its loops one iteration at a time: nothing is shared with the features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tc.ir.arith import evaluate
from tc.ir.expr import Buffer, Expr, Load, Select, Var
from tc.ir.loop import Alloc, Block, For, If, Let, PrimFunc, Seq, Stmt, Store
from tc.ir.node import Node, children

LINE_BYTES = 64


@dataclass
class Touched:
    """elements[k]: the addresses (in elements) of one access while the loops outside of loop k stand at their first iteration."""

    buffer: Buffer
    is_store: bool
    elements: list[set[int]]
    strides: tuple[int, ...]

    def counts(self) -> list[int]:
        return [len(places) for places in self.elements]

    def lines(self) -> list[int]:
        size = self.buffer.dtype.size_bytes
        return [len({place * size // LINE_BYTES for place in places}) for places in self.elements]


@dataclass
class Ran:
    """One store: how often it ran, and what it touched."""

    times: int = 0
    accesses: dict[object, Touched] = field(default_factory=dict)


class Enumeration:
    """Every store of a program without loads in its bounds, in program order. Loops of one iteration do not count as loops."""

    def __init__(self, func: PrimFunc, dims: Mapping[str, int]) -> None:
        self.env: dict[Var, int] = {var: dims[var.name] for var in func.dims}
        self.stores: dict[Store, Ran] = {}
        self.visit(func.body, [])

    def visit(self, stmt: Stmt, path: list[int]) -> None:
        match stmt:
            case Seq(stmts=stmts):
                for inner in stmts:
                    self.visit(inner, path)
            case For(var=var, extent=extent, body=body):
                count = self.number(extent)
                for value in range(count):
                    self.env[var] = value
                    self.visit(body, path if count == 1 else [*path, value])
            case Block(axes=axes, where=where, body=body):
                self.env.update({axis.var: self.number(axis.value) for axis in axes})
                if evaluate(where, self.env):
                    self.visit(body, path)
            case If(condition=condition, then_body=yes, else_body=no):
                branch = yes if evaluate(condition, self.env) else no
                if branch is not None:
                    self.visit(branch, path)
            case Alloc(body=body):
                self.visit(body, path)
            case Let(var=var, value=value, body=body):
                self.env[var] = self.number(value)
                self.visit(body, path)
            case Store():
                self.store(stmt, path)
            case _:
                raise AssertionError(f"not enumerated: {type(stmt).__name__}")

    def store(self, stmt: Store, path: list[int]) -> None:
        ran = self.stores.setdefault(stmt, Ran())
        ran.times += 1
        self.touch(ran, "store", stmt.buffer, stmt.indices, path)
        for load in dict.fromkeys(self.loads(stmt.value)):
            self.touch(ran, load, load.buffer, load.indices, path)

    def loads(self, value: Node) -> Iterator[Load]:
        """The loads that evaluating a value performs: those of a branch that is not chosen are not."""
        match value:
            case Load():
                yield value
            case Select(condition=condition, true_value=yes, false_value=no):
                yield from self.loads(yes if evaluate(condition, self.env) else no)
            case _:
                for child in children(value):
                    yield from self.loads(child)

    def touch(self, ran: Ran, key: object, buffer: Buffer, indices: tuple[Expr, ...], path: list[int]) -> None:
        found = ran.accesses.get(key)
        if found is None:
            empty: list[set[int]] = [set() for _ in range(len(path) + 1)]
            found = ran.accesses[key] = Touched(buffer, key == "store", empty, self.strides(buffer))
        place = sum(self.number(index) * stride for index, stride in zip(indices, found.strides, strict=True))
        leading = next((k for k, value in enumerate(path) if value), len(path))
        for level in range(leading + 1):
            found.elements[level].add(place)

    def strides(self, buffer: Buffer) -> tuple[int, ...]:
        strides, total = [], 1
        for dim in reversed(buffer.shape):
            strides.append(total)
            total *= self.number(dim)
        return tuple(reversed(strides))

    def number(self, expr: Expr) -> int:
        return int(evaluate(expr, self.env))
