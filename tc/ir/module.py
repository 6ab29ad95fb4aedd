"""IRModule: everything of one program, graph functions and loop-level functions side by side."""

from __future__ import annotations

from dataclasses import dataclass

from tc.ir.graph import Function
from tc.ir.loop import PrimFunc
from tc.ir.node import Node


@dataclass(frozen=True, eq=False)
class IRModule(Node):
    """Functions by name, in order. `entry` is the graph function that a compiled module runs; constants live in the functions."""

    functions: tuple[Function | PrimFunc, ...]
    entry: str = "main"

    def __getitem__(self, name: str) -> Function | PrimFunc:
        for func in self.functions:
            if func.name == name:
                return func
        raise KeyError(f"no function {name!r}; there are: {', '.join(f.name for f in self.functions)}")

    def __contains__(self, name: str) -> bool:
        return any(func.name == name for func in self.functions)

    @property
    def main(self) -> Function:
        func = self[self.entry]
        assert isinstance(func, Function), f"the entry {self.entry} is not a graph function"
        return func

    @property
    def graph_functions(self) -> tuple[Function, ...]:
        return tuple(func for func in self.functions if isinstance(func, Function))

    @property
    def prim_funcs(self) -> tuple[PrimFunc, ...]:
        return tuple(func for func in self.functions if isinstance(func, PrimFunc))
