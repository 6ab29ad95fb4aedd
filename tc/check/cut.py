"""A part of a graph in which a step of the compiler still fails: what is kept of a model to show an error."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tc.ir.graph import (
    Binding,
    CallFunction,
    Function,
    GlobalRef,
    TensorVar,
    all_bindings,
    atoms_of,
    bodies_of,
    free_vars,
    tir_calls,
)
from tc.ir.module import IRModule
from tc.ir.node import replace

BUDGET_SECONDS = 10.0
"""A cut is left as it is after so long: errors are not to be waited for."""


def smallest_part(module: IRModule, fails: Callable[[IRModule], bool], budget_seconds: float = BUDGET_SECONDS) -> IRModule:
    """The module with as few consecutive bindings of its entry as can be found soon for which `fails` holds; the module itself if that
    holds for no part of it. By bisection from the end, then from the start: about 2 log2(n) tries."""
    end = time.monotonic() + budget_seconds

    def still(start: int, stop: int) -> bool:
        return time.monotonic() < end and fails(part_of(module, start, stop))

    start, stop = 0, len(module.main.bindings)
    if not stop or not still(start, stop):
        return module
    low = 0  # [0, low) does not fail, or is empty
    while low + 1 < stop:
        middle = (low + stop) // 2
        low, stop = (low, middle) if still(start, middle) else (middle, stop)
    high = stop  # [high, stop) does not fail, or is empty
    while start + 1 < high:
        middle = (start + high) // 2
        start, high = (middle, high) if still(middle, stop) else (start, middle)
    return part_of(module, start, stop)


@dataclass(frozen=True)
class _Ends:
    params: tuple[TensorVar, ...]
    results: tuple[TensorVar, ...]


def part_of(module: IRModule, start: int, stop: int) -> IRModule:
    """A module whose entry has these bindings: what they need from before are its parameters, what is needed after them its results.
    Functions that are not called any more are left out."""
    main = module.main
    bindings = main.bindings[start:stop]
    ends = _ends(main, bindings, stop)
    entry = Function(main.name, ends.params, bindings, ends.results, main.facts)
    functions = tuple(entry if func is main else func for func in module.functions)
    called = _called(IRModule(functions, module.entry), main.name)
    return replace(module, functions=tuple(func for func in functions if func.name in called))


def _ends(main: Function, bindings: tuple[Binding, ...], stop: int) -> _Ends:
    needed = free_vars(Function("part", (), bindings, ()))
    made = {target for binding in bindings for target in binding.targets}
    after = set(free_vars(Function("rest", (), main.bindings[stop:], main.results)))
    results = tuple(target for binding in bindings for target in binding.targets if target in after)
    if not results and bindings:
        results = tuple(bindings[-1].targets)
    return _Ends(tuple(var for var in needed if var not in made), results)


def _called(module: IRModule, entry: str) -> set[str]:
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in found or name not in module:
            continue
        found.add(name)
        func = module[name]
        if isinstance(func, Function):
            waiting.extend(call.callee for _, call in tir_calls(func))
            waiting.extend(_functions_of(func))
    return found


def _functions_of(func: Function) -> list[str]:
    found = []
    for binding in all_bindings(func):
        atoms = [*atoms_of(binding.value), *(r for body in bodies_of(binding.value) for r in body.results)]
        if isinstance(binding.value, CallFunction):
            atoms.append(binding.value.callee)
        found.extend(atom.name for atom in atoms if isinstance(atom, GlobalRef))
    return found
