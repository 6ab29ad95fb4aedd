"""Hints on loops: how to carry out their iterations, without a say in what they compute.

The set is closed. In the text of a program, and in a schedule's trace, a hint is a key and a value: `range(8, grain=4, partition=1)`.
`tree`, `transpose` and `intrinsic` change how and in which order work is done; they count where a loop is of the form for which that is
proven not to matter (see `tree_loop` and `intrinsic`), and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

HintValue = int | tuple[int, int] | str

LARGEST = (1 << 31) - 1

LONGEST_NAME = 100

MOST_STAGES = 8


@dataclass(frozen=True)
class Prefetch:
    """Fetch what a parameter will be read at `ahead_bytes` further on; `parameter` counts the buffers of the PrimFunc."""

    parameter: int
    ahead_bytes: int


@dataclass(frozen=True)
class LoopHints:
    """What is said about a loop.

    `grain`: iterations of a parallel loop that a thread takes at once, at least. `partition`: run those in which guards are known to
    hold on their own, without guards. `prefetch`: fetch ahead while the loop runs. `tree`: combine what an unrolled loop adds up as a
    tree. `transpose`: exchange the axes of the square that an unrolled loop over a vectorized one copies in registers. `intrinsic`: the
    name of an instruction, which is taken where the loop still is the one that it stands for. `pipeline`: how many iterations of a loop
    are under way at once: in a launch they have shared memory, the copies of all but one being on their way (see `pipeline_loops`); of
    two around products of tiles, one is multiplied while what follows the sums of the other is done (see `interleave_stores`).
    """

    grain: int = 1
    partition: bool = False
    prefetch: Prefetch | None = None
    tree: bool = False
    transpose: bool = False
    intrinsic: str = ""
    pipeline: int = 1

    def items(self) -> tuple[tuple[str, HintValue], ...]:
        """What differs from saying nothing, as keys and values of the text form."""
        found: list[tuple[str, HintValue]] = [("grain", self.grain)] if self.grain != 1 else []
        if self.partition:
            found.append(("partition", 1))
        if self.prefetch is not None:
            found.append(("prefetch", (self.prefetch.parameter, self.prefetch.ahead_bytes)))
        found += [(name, 1) for name in ("tree", "transpose") if getattr(self, name)]
        if self.pipeline != 1:
            found.append(("pipeline", self.pipeline))
        return (*found, ("intrinsic", self.intrinsic)) if self.intrinsic else tuple(found)

    def having(self, key: str, value: Any) -> LoopHints:
        """These and one more of the text form, which takes the place of one with this key. ValueError for what is no hint."""
        match key, value:
            case "grain", int() if type(value) is int and 1 <= value <= LARGEST:
                return replace(self, grain=value)
            case "partition", int() if _is_flag(value):
                return replace(self, partition=bool(value))
            case "tree", int() if _is_flag(value):
                return replace(self, tree=bool(value))
            case "transpose", int() if _is_flag(value):
                return replace(self, transpose=bool(value))
            case "pipeline", int() if type(value) is int and 1 <= value <= MOST_STAGES:
                return replace(self, pipeline=value)
            case "intrinsic", str() if 0 < len(value) <= LONGEST_NAME:
                return replace(self, intrinsic=value)
            case "prefetch", (int(parameter), int(ahead)) if is_prefetch(parameter, ahead):
                return replace(self, prefetch=Prefetch(parameter, ahead))
            case "prefetch", str() if len(parts := value.split(":")) == 2 and all(map(_is_decimal, parts)):  # traces of old records
                return self.having(key, tuple(map(int, parts)))
        if key not in _EXPECTED:
            raise ValueError(f"there is no hint {key!r:.60}; there are: {', '.join(_EXPECTED)}")
        raise ValueError(f"{key} is {value!r:.60}, must be {_EXPECTED[key]}")

    def without(self, key: str) -> LoopHints:
        """These but the one of this key."""
        return replace(self, **{key: getattr(NO_HINTS, key)})

    def merged(self, inner: LoopHints) -> LoopHints:
        """The hints of a loop made of two; where both say something, the inner one counts."""
        return loop_hints((*self.items(), *inner.items()))

    def complaint(self) -> str | None:
        """What is wrong with the values, if something is."""
        try:
            return None if loop_hints(self.items()) == self else "the hints are not those of their own text"
        except (ValueError, TypeError, AttributeError) as error:
            return str(error)


_EXPECTED = {
    "grain": "a number of iterations, at least 1",
    "partition": "0 or 1",
    "prefetch": "the number of a buffer, and how many bytes ahead",
    "tree": "0 or 1",
    "transpose": "0 or 1",
    "intrinsic": "the name of an instruction",
    "pipeline": f"a number of stages, 1 to {MOST_STAGES}",
}


def _is_flag(value: int) -> bool:
    return type(value) is int and value in (0, 1)


def is_prefetch(parameter: object, ahead: object) -> bool:
    """Whether numbers may be those of a buffer and of bytes."""
    return type(parameter) is int and type(ahead) is int and 0 <= parameter <= LARGEST and 1 <= ahead <= LARGEST


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 11


def loop_hints(items: Iterable[tuple[str, Any]]) -> LoopHints:
    """Hints from keys and values of the text form; ValueError for what is no hint."""
    hints = NO_HINTS
    for key, value in items:
        hints = hints.having(key, value)
    return hints


NO_HINTS = LoopHints()
