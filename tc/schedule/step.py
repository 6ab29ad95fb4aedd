"""Schedules as data: a step is a primitive's name and its arguments, a trace is a sequence of steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tc.errors import ScheduleError
from tc.ir.expr import Expr
from tc.ir.loop import LoopKind, PrimFunc
from tc.schedule import compute_at, inline, loops, reduction
from tc.schedule.tree import rename_loops

LANGUAGE_VERSION = 1

PRIMITIVES: dict[str, Callable[..., PrimFunc]] = {
    "split": lambda f, loop, factor, names: loops.split(f, loop, factor, tuple(names)),
    "fuse": loops.fuse,
    "reorder": lambda f, names: loops.reorder(f, tuple(names)),
    "parallel": lambda f, loop: loops.set_kind(f, loop, LoopKind.PARALLEL),
    "vectorize": lambda f, loop: loops.set_kind(f, loop, LoopKind.VECTORIZED),
    "unroll": lambda f, loop: loops.set_kind(f, loop, LoopKind.UNROLLED),
    "bind": lambda f, loop, thread: loops.set_kind(f, loop, LoopKind.BOUND, thread),
    "annotate_loop": loops.annotate_loop,
    "annotate_block": loops.annotate_block,
    "compute_inline": inline.compute_inline,
    "reverse_compute_inline": inline.reverse_compute_inline,
    "compute_at": compute_at.compute_at,
    "reverse_compute_at": compute_at.reverse_compute_at,
    "decompose_reduction": reduction.decompose_reduction,
    "rfactor": reduction.rfactor,
    "cache_write": reduction.cache_write,
    "set_scope": reduction.set_scope,
}
"""Name -> function from PrimFunc and plain arguments to PrimFunc."""


@dataclass(frozen=True)
class Step:
    """One primitive and its arguments: names, numbers and lists of them."""

    primitive: str
    arguments: tuple[Any, ...]

    def apply(self, func: PrimFunc) -> PrimFunc:
        """The scheduled function; ScheduleError when the step is not legal here."""
        run = PRIMITIVES.get(self.primitive)
        if run is None:
            raise ScheduleError(f"there is no primitive {self.primitive!r}; known: {', '.join(sorted(PRIMITIVES))}")
        try:
            return run(func, *self.arguments)
        except TypeError as error:
            raise ScheduleError(f"{self.primitive}: {error}") from None

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class Trace:
    """A schedule. Replaying it on an equal PrimFunc gives an equal result, whatever the names of variables were."""

    steps: tuple[Step, ...] = ()

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Run all steps on `func`, its loops given unique names first."""
        func = rename_loops(func)
        for step in self.steps:
            func = step.apply(func)
        return func

    def to_json(self) -> str:
        return json.dumps(
            {"version": LANGUAGE_VERSION, "steps": [[s.primitive, *s.arguments] for s in self.steps]},
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Trace:
        """ScheduleError when the text is not a trace of this version."""
        try:
            data = json.loads(text)
            version, items = data["version"], data["steps"]
            steps = tuple(Step(item[0], tuple(_frozen(a) for a in item[1:])) for item in items)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ScheduleError(f"not a schedule trace: {error}") from None
        if version != LANGUAGE_VERSION:
            raise ScheduleError(f"schedule trace of version {version}; this is version {LANGUAGE_VERSION}")
        return Trace(steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


class Schedule:
    """Applies primitives one after the other and records them.

        s = Schedule(func)
        outer, inner = s.split("i", 8)
        s.vectorize(inner)
        s.func, s.trace
    """

    def __init__(self, func: PrimFunc) -> None:
        self.func = rename_loops(func)
        self._steps: list[Step] = []

    @property
    def trace(self) -> Trace:
        return Trace(tuple(self._steps))

    def _do(self, primitive: str, *arguments: Any) -> None:
        step = Step(primitive, arguments)
        self.func = step.apply(self.func)
        self._steps.append(step)

    def loops_of(self, block: str) -> tuple[str, ...]:
        """Names of the loops around a block, outermost first."""
        return loops.loops_of(self.func, block)

    def extent_of(self, loop: str) -> Expr:
        return loops.extent_of(self.func, loop)

    def split(self, loop: str, factor: int) -> tuple[str, str]:
        """Split `loop` into an outer loop and an inner one of `factor` iterations; returns their names."""
        names = (self._fresh(f"{loop}o"), self._fresh(f"{loop}i"))
        self._do("split", loop, factor, names)
        return names

    def _fresh(self, base: str) -> str:
        return loops.fresh_name(self.func, base)

    def fuse(self, *names: str) -> str:
        """Join loops nested directly in each other; returns the name of the result."""
        result = names[0]
        for name in names[1:]:
            fused = self._fresh(f"{result}{name}" if len(result) < 12 else "fused")
            self._do("fuse", result, name, fused)
            result = fused
        return result

    def reorder(self, *names: str) -> None:
        if len(names) > 1:
            self._do("reorder", tuple(names))

    def parallel(self, loop: str) -> None:
        self._do("parallel", loop)

    def vectorize(self, loop: str) -> None:
        self._do("vectorize", loop)

    def unroll(self, loop: str) -> None:
        self._do("unroll", loop)

    def annotate_loop(self, loop: str, key: str, value: Any) -> None:
        self._do("annotate_loop", loop, key, value)

    def compute_inline(self, block: str) -> None:
        self._do("compute_inline", block)

    def reverse_compute_inline(self, block: str) -> None:
        self._do("reverse_compute_inline", block)

    def compute_at(self, block: str, loop: str) -> None:
        self._do("compute_at", block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self._do("reverse_compute_at", block, loop)

    def decompose_reduction(self, block: str, loop: str) -> None:
        self._do("decompose_reduction", block, loop)

    def rfactor(self, block: str, loop: str) -> None:
        self._do("rfactor", block, loop)

    def cache_write(self, block: str, scope: str) -> None:
        self._do("cache_write", block, scope)

    def set_scope(self, buffer: str, scope: str) -> None:
        self._do("set_scope", buffer, scope)
