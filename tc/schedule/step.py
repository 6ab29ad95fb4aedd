"""Schedules as data: a step is a primitive's name and its arguments, a trace is a sequence of steps."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tc.errors import ScheduleError
from tc.ir.coverage import check_covered
from tc.ir.expr import Expr
from tc.ir.loop import Block, LoopKind, PrimFunc
from tc.ir.uses import unbound
from tc.schedule import (
    cache,
    compute_at,
    dense,
    inline,
    layout,
    loops,
    merge,
    online,
    pad,
    padding,
    parts,
    reduction,
    specialize,
    spread,
    tensorize,
)
from tc.schedule.knobs import Decide, Decision, Knob, Value, take_default
from tc.schedule.tree import block_names, find_block, fresh_names, nesting, rename_loops

LANGUAGE_VERSION = 1


ValueT = TypeVar("ValueT", bound=Value)


def _kind(kind: LoopKind) -> Callable[..., PrimFunc]:
    def set_kind(func: PrimFunc, loop: str) -> PrimFunc:
        return loops.set_kind(func, loop, kind)

    return set_kind


def _bind(func: PrimFunc, loop: str, thread: str) -> PrimFunc:
    return loops.set_kind(func, loop, LoopKind.BOUND, thread)


PRIMITIVES: dict[str, Callable[..., PrimFunc]] = {
    "split": loops.split,
    "split_overlapped": loops.split_overlapped,
    "specialize": specialize.specialize,
    "specialize_tiles": specialize.specialize_tiles,
    "fuse": loops.fuse,
    "reorder": loops.reorder,
    "add_unit_loop": loops.add_unit_loop,
    "drop_unit_loop": loops.drop_unit_loop,
    "parallel": _kind(LoopKind.PARALLEL),
    "vectorize": _kind(LoopKind.VECTORIZED),
    "unroll": _kind(LoopKind.UNROLLED),
    "bind": _bind,
    "loop_partition": loops.loop_partition,
    "annotate_loop": loops.annotate_loop,
    "pipeline": loops.pipeline,
    "compute_inline": inline.compute_inline,
    "reverse_compute_inline": inline.reverse_compute_inline,
    "compute_at": compute_at.compute_at,
    "reverse_compute_at": compute_at.reverse_compute_at,
    "decompose_reduction": reduction.decompose_reduction,
    "init_with_addend": reduction.init_with_addend,
    "rfactor": reduction.rfactor,
    "merge_online": online.merge_online,
    "merge_loops": online.merge_loops,
    "rebase_parts": online.rebase_parts,
    "cache_read": cache.cache_read,
    "cache_operand": cache.cache_operand,
    "cache_write": cache.cache_write,
    "pad_einsum": pad.pad_einsum,
    "skip_padding": padding.skip_padding,
    "widen": spread.widen,
    "read_on": spread.read_on,
    "pad_softmax": spread.pad_softmax,
    "spread": spread.spread,
    "read_copy": spread.read_copy,
    "fuse_axes": merge.fuse_axes,
    "tile_axes": merge.tile_axes,
    "cut_choices": parts.cut_choices,
    "merge_dims": merge.merge_dims,
    "merge_dense": dense.merge_dense,
    "run_on": merge.run_on,
    "set_scope": layout.set_scope,
    "pad_rows": layout.pad_rows,
    "transform_layout": layout.transform_layout,
    "blockize": tensorize.blockize,
    "tensorize": tensorize.tensorize,
}
"""Name -> function from PrimFunc and plain arguments to PrimFunc."""

_SIGNATURES = {name: inspect.signature(run) for name, run in PRIMITIVES.items()}

LARGEST_NUMBER = (1 << 31) - 1
"""What a number in a step may be at most: indices made of several stay far below 2**63."""

LONGEST_TEXT = 512
"""Characters of a name or a layout at most."""

DEEPEST_NEST = 96
"""Loops and other statements around each other at most."""

MOST_BLOCKS = 4096
"""Blocks of a program at most."""


APPLIED_STEPS = 2048
"""How many applied steps are remembered."""

_APPLIED: dict[tuple[int, Step], tuple[PrimFunc, PrimFunc]] = {}
"""The last used last. Threads share it without a lock: each access is one operation of a plain dictionary, which is atomic, and
to compute a step twice is no harm."""


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= LONGEST_TEXT and value.isprintable()


def _is_number(value: Any) -> bool:
    return type(value) is int and abs(value) <= LARGEST_NUMBER


def _is_open_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_hint(value: Any) -> bool:
    return _is_text(value) or _is_number(value) or _all(_is_number)(value)


def _all(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and len(value) <= DEEPEST_NEST and all(map(is_one, value))


_TEXTS = "loop outer inner name block buffer thread dim second intrinsic scope layout key side dtype".split()
_COSTS = "tile tile_cost other other_cost".split()
_NUMBERS = [*_COSTS, *"axis copies length divisor multiple factor stages elements at_least second_at_least pitch extent known".split()]

_ARGUMENTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_TEXTS, _is_text),
    **dict.fromkeys(_NUMBERS, _is_number),
    "factors": _all(_is_open_number),
    "multiples": _all(_is_number),
    "axes": _all(_is_number),
    "names": _all(_is_text),
    "loops": _all(_is_text),
    "value": _is_hint,
}
"""What an argument of a primitive may be, by its name."""


@dataclass(frozen=True)
class Step:
    """One primitive and its arguments: names, numbers and tuples of them."""

    primitive: str
    arguments: tuple[Any, ...]

    def apply(self, func: PrimFunc) -> PrimFunc:
        """The scheduled function; ScheduleError when the step is not legal here.

        What the last steps made of which function is remembered: schedules of one search begin alike.
        """
        run = self.check()
        key = (id(func), self)  # of what is of one type: that 1 == 1.0 == True matters not
        known = _APPLIED.pop(key, None)
        if known is not None:
            _APPLIED[key] = known  # the last to be forgotten
            return known[1]
        result = run(func, *self.arguments)
        self._check_result(result)
        _APPLIED[key] = (func, result)  # holds the function too: its id is its own as long as it lives
        if len(_APPLIED) > APPLIED_STEPS:
            for old in list(_APPLIED)[: APPLIED_STEPS // 8]:
                _APPLIED.pop(old, None)
        return result

    def check(self) -> Callable[..., PrimFunc]:
        """The primitive; ScheduleError when there is none, or an argument is not of its type."""
        run = PRIMITIVES.get(self.primitive)
        if run is None:
            raise ScheduleError(f"there is no primitive {self.primitive!r}; known: {', '.join(sorted(PRIMITIVES))}")
        try:
            given = _SIGNATURES[self.primitive].bind(None, *self.arguments).arguments
        except TypeError as error:
            raise ScheduleError(f"{self.primitive}: {error}") from None
        for name, value in given.items():
            if name != "func" and not _ARGUMENTS[name](value):
                raise ScheduleError(f"{self.primitive}: {value!r:.100} is no {name}")
        return run

    def _check_result(self, func: PrimFunc) -> None:
        """ScheduleError for a program that is not well formed: all that it uses is in scope, and it is no deeper than can be walked."""
        missing = unbound(func.body) - {*func.params}
        if missing:
            names = ", ".join(sorted(node.name for node in missing))  # type: ignore[attr-defined]
            raise ScheduleError(f"{self}: {names} would be used where it means nothing")
        if nesting(func.body) > DEEPEST_NEST:
            raise ScheduleError(f"{self}: more than {DEEPEST_NEST} loops around each other")
        loops.check_launches(func, str(self))
        if len(block_names(func.body)) > MOST_BLOCKS:
            raise ScheduleError(f"{self}: more than {MOST_BLOCKS} blocks")

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class Trace:
    """A schedule. Replaying it on an equal PrimFunc gives an equal result, as long as names of loops and blocks are the same."""

    steps: tuple[Step, ...] = ()

    def apply(self, func: PrimFunc) -> PrimFunc:
        """Run all steps on `func`, its loops given unique names first."""
        func = rename_loops(func)
        for step in self.steps:
            func = step.apply(func)
        return func

    def to_json(self) -> str:
        """One line of JSON: the version of the schedule language, and the steps."""
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
            if not isinstance(items, list):
                raise ValueError("the steps are no list")
            steps = tuple(_step(item) for item in items)
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise ScheduleError(f"not a schedule trace: {error}") from None
        if type(version) is not int or version != LANGUAGE_VERSION:
            raise ScheduleError(f"schedule trace of version {version}; this is version {LANGUAGE_VERSION}")
        return Trace(steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def _step(item: Any) -> Step:
    if not isinstance(item, list) or not isinstance(item[0], str):
        raise ValueError(f"{item!r} is not a step")
    return Step(item[0], tuple(_frozen(argument) for argument in item[1:]))


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise ValueError(f"{value!r} is not an argument of a step")


class Schedule:
    """Applies primitives one after the other and records them.

        s = Schedule(func)
        outer, inner = s.split("i", 8)
        s.vectorize(inner)
        s.func, s.trace

    VerifyError for a program whose loops leave points of a block out. A step that raises ScheduleError changes nothing and is not
    recorded. Names of new loops are made from the old ones, so equal functions get equal traces. `decide` answers what rules leave
    open, for at most `cores` threads.
    """

    def __init__(self, func: PrimFunc, decide: Decide = take_default, cores: int = 1) -> None:
        check_covered(func)
        self.func = rename_loops(func)
        self._steps: list[Step] = []
        self.cores = cores
        self.unfit: list[str] = []  # rules that began and met an illegal step, and which
        self._decide = decide
        self._choices: dict[str, Decision] = {}

    @property
    def trace(self) -> Trace:
        return Trace(tuple(self._steps))

    @property
    def choices(self) -> tuple[Decision, ...]:
        """What rules asked, in order, and the answers."""
        return tuple(self._choices.values())

    def choose(self, block: str, name: str, options: Iterable[ValueT], default: ValueT, *, ordered: bool = True) -> ValueT:
        """Leave a decision about a block open: one of `options`, `default` being the caller's own. The knob is called `block/name`.

        `default` need not be among the options: then it is one more, in its place if ordered numbers, else the first. Who asks again for
        the same knob gets the same answer, if it is an option there; the caller's own where it was the caller's own before.
        """
        values = tuple(dict.fromkeys(options))
        if default not in values:
            values = (default, *values)
            if ordered and all(isinstance(value, int) for value in values):
                values = tuple(sorted(values))
        if len(values) == 1:
            return default
        knob = Knob(f"{block}/{name}", values, default, ordered)
        known = self._choices.get(knob.name)
        if known is not None:
            again = known.value != known.knob.default and known.value in values
            return cast(ValueT, known.value) if again else default
        value = self._decide(knob)
        assert value in values, f"{knob.name}: {value!r} is not an option"
        self._choices[knob.name] = Decision(knob, value)
        return cast(ValueT, value)

    def attempt(self, rule: Callable[[], str | None], name: str = "") -> str | None:
        """What `rule` returns. None, with nothing changed, when a step of it is not legal though all answers are its own.

        An answer from outside that alone leads to an illegal step stays an error: the point is not of the space. `name`: of a rule that
        should have known that it does not apply; `unfit` tells of it.
        """
        func, count, choices = self.func, len(self._steps), dict(self._choices)

        def undo() -> None:
            self.func, self._choices = func, dict(choices)
            del self._steps[count:]

        try:
            return rule()
        except ScheduleError as error:
            is_own = all(choice.value == choice.knob.default for name, choice in self._choices.items() if name not in choices)
            undo()
            if not is_own and self._is_legal_by_itself(rule):
                raise
            if name:
                self.unfit.append(f"{name}: {error.text}")
        undo()
        return None

    def _is_legal_by_itself(self, rule: Callable[[], str | None]) -> bool:
        """Whether the steps of a rule are legal when all answers are its own."""
        decide, self._decide = self._decide, take_default
        try:
            rule()
        except ScheduleError:
            return False
        finally:
            self._decide = decide
        return True

    def apply(self, step: Step) -> None:
        """Run and record a step."""
        self.func = step.apply(self.func)
        self._steps.append(step)

    def _do(self, primitive: str, *arguments: Any) -> None:
        self.apply(Step(primitive, arguments))

    def loops_of(self, block: str) -> tuple[str, ...]:
        """Names of the loops around a block, outermost first."""
        return loops.loops_of(self.func, block)

    def block(self, name: str) -> Block:
        """The block called `name`."""
        return find_block(self.func, name).block

    def extent_of(self, loop: str) -> Expr:
        """The number of iterations of a loop."""
        return loops.extent_of(self.func, loop)

    def split(self, loop: str, factors: int | Sequence[int | None]) -> tuple[str, ...]:
        """Split `loop` into nested loops of these extents (None: as many as needed); returns their names, outermost first.

        A single number is the extent of the inner of two loops.
        """
        parts = (None, factors) if isinstance(factors, int) else tuple(factors)
        marks = "oi" if len(parts) == 2 else [f"_{k}" for k in range(len(parts))]
        names = tuple(fresh_names(self.func, [f"{loop}{mark}" for mark in marks]))
        self._do("split", loop, parts, names)
        return names

    def split_overlapped(self, loop: str, factor: int) -> tuple[str, str]:
        """As `split(loop, factor)`, the last tile shifted to end where the loop ends; returns the names of both loops."""
        outer, inner = fresh_names(self.func, [f"{loop}o", f"{loop}i"])
        self._do("split_overlapped", loop, factor, (outer, inner))
        return outer, inner

    def specialize(self, dim: str, at_least: int, second: str = "", second_at_least: int = 0) -> None:
        self._do("specialize", dim, at_least, *((second, second_at_least) if second else ()))

    def specialize_tiles(self, dim: str, tile: int, tile_cost: int, other: int, other_cost: int) -> None:
        self._do("specialize_tiles", dim, tile, tile_cost, other, other_cost)

    def fuse(self, *names: str) -> str:
        """Join loops nested directly in each other; returns the name of the result."""
        if not names:
            raise ScheduleError("fuse: no loops are named")
        result = names[0]
        for name in names[1:]:
            (fused,) = fresh_names(self.func, [f"{result}{name}" if len(result) < 12 else "fused"])
            self._do("fuse", result, name, fused)
            result = fused
        return result

    def reorder(self, *names: str) -> None:
        if len(names) > 1:
            self._do("reorder", tuple(names))

    def add_unit_loop(self, name: str) -> str:
        """Returns the name of the new loop."""
        (loop,) = fresh_names(self.func, (f"{name}u",))
        self._do("add_unit_loop", name, loop)
        return loop

    def drop_unit_loop(self, loop: str) -> None:
        self._do("drop_unit_loop", loop)

    def parallel(self, loop: str) -> None:
        self._do("parallel", loop)

    def vectorize(self, loop: str) -> None:
        self._do("vectorize", loop)

    def unroll(self, loop: str) -> None:
        self._do("unroll", loop)

    def bind(self, loop: str, thread: str) -> None:
        self._do("bind", loop, thread)

    def loop_partition(self, loop: str) -> None:
        self._do("loop_partition", loop)

    def annotate_loop(self, loop: str, key: str, value: Any) -> None:
        self._do("annotate_loop", loop, key, value)

    def pipeline(self, loop: str, stages: int) -> None:
        self._do("pipeline", loop, stages)

    def compute_inline(self, block: str) -> None:
        self._do("compute_inline", block)

    def reverse_compute_inline(self, block: str) -> None:
        self._do("reverse_compute_inline", block)

    def compute_at(self, block: str, loop: str) -> None:
        self._do("compute_at", block, loop)

    def reverse_compute_at(self, block: str, loop: str) -> None:
        self._do("reverse_compute_at", block, loop)

    def decompose_reduction(self, block: str, loop: str) -> str:
        """Returns the name of the initialising block."""
        return self._new_block("decompose_reduction", block, loop)

    def init_with_addend(self, block: str) -> None:
        self._do("init_with_addend", block)

    def rfactor(self, block: str, loop: str) -> str:
        """Returns the name of the block of partial results."""
        return self._new_block("rfactor", block, loop)

    def merge_online(self, block: str, *names: str) -> list[str]:
        """Returns the names of the new blocks, in order."""
        before = set(block_names(self.func.body))
        self._do("merge_online", block, tuple(names))
        return [name for name in block_names(self.func.body) if name not in before]

    def merge_loops(self, *names: str) -> None:
        self._do("merge_loops", tuple(names))

    def rebase_parts(self, block: str, length: int) -> None:
        self._do("rebase_parts", block, length)

    def cache_read(self, block: str, buffer: str, scope: str = "global", layout: str = "") -> str:
        """Returns the name of the block that fills the copy, which is also the copy's name when that is free."""
        return self._new_block("cache_read", block, buffer, scope, layout)

    def cache_operand(self, block: str, side: str, dtype: str, scope: str = "global") -> str:
        """Returns the name of the block that fills the copy."""
        return self._new_block("cache_operand", block, side, dtype, scope)

    def cache_write(self, block: str, scope: str, layout: str = "") -> str:
        """Returns the name of the block that copies the result."""
        return self._new_block("cache_write", block, scope, layout)

    def fuse_axes(self, block: str, axes: Sequence[int]) -> None:
        self._do("fuse_axes", block, tuple(axes))

    def tile_axes(self, block: str, axes: Sequence[int], multiples: Sequence[int]) -> None:
        self._do("tile_axes", block, tuple(axes), tuple(multiples))

    def cut_choices(self, block: str, axis: int) -> list[str]:
        """Returns the names of the parts, in order."""
        before = set(block_names(self.func.body))
        self._do("cut_choices", block, axis)
        return [name for name in block_names(self.func.body) if name not in before]

    def merge_dims(self, buffer: str, axes: Sequence[int]) -> None:
        self._do("merge_dims", buffer, tuple(axes))

    def merge_dense(self, known: bool = False) -> None:
        """Recorded where it changes something."""
        step = Step("merge_dense", (1,) if known else ())
        if step.apply(self.func) is not self.func:
            self.apply(step)

    def run_on(self, block: str, axes: Sequence[int], pitch: int, extent: int) -> None:
        self._do("run_on", block, tuple(axes), pitch, extent)

    def pad_einsum(self, block: str, multiples: Sequence[int]) -> None:
        self._do("pad_einsum", block, tuple(multiples))

    def skip_padding(self, block: str) -> None:
        self._do("skip_padding", block)

    def widen(self, names: Sequence[str], axis: int, multiple: int) -> None:
        self._do("widen", tuple(names), axis, multiple)

    def read_on(self, block: str, axis: int, multiple: int) -> None:
        self._do("read_on", block, axis, multiple)

    def pad_softmax(self, block: str, multiple: int) -> None:
        self._do("pad_softmax", block, multiple)

    def spread(self, names: Sequence[str], copies: int) -> None:
        self._do("spread", tuple(names), copies)

    def read_copy(self, block: str, buffer: str, axis: int, divisor: int) -> None:
        self._do("read_copy", block, buffer, axis, divisor)

    def set_scope(self, buffer: str, scope: str) -> None:
        self._do("set_scope", buffer, scope)

    def pad_rows(self, buffer: str, elements: int) -> None:
        self._do("pad_rows", buffer, elements)

    def transform_layout(self, buffer: str, layout: str) -> None:
        self._do("transform_layout", buffer, layout)

    def blockize(self, loop: str) -> str:
        """Returns the name of the outer block."""
        return self._new_block("blockize", loop)

    def tensorize(self, loop: str, intrinsic: str) -> str:
        """Returns the name of the block that is the intrinsic."""
        return self._new_block("tensorize", loop, intrinsic)

    def _new_block(self, primitive: str, *arguments: Any) -> str:
        before = set(block_names(self.func.body))
        self._do(primitive, *arguments)
        return next(name for name in block_names(self.func.body) if name not in before)
