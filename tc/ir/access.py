"""What a PrimFunc reports of indices that were out of range: the convention between the pass that checks, code generation and plans.

A function with the attribute "checks" has a last output of i64, a row for each check: whether it failed, the index, the size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from tc.ir.expr import Buffer
from tc.ir.loop import PrimFunc, annotation

WORDS_PER_CHECK = 3


@dataclass(frozen=True)
class AccessCheck:
    """A check inside a kernel: the number of the operation that asks for it, and what to tell when it fails, in which {index} and
    {size} stand for what was found."""

    origin: int
    message: str


def access_checks(func: PrimFunc) -> tuple[AccessCheck, ...]:
    """The checks that a PrimFunc reports, in the order of the rows."""
    text = annotation(func, "checks")
    return tuple(AccessCheck(origin, message) for origin, message in json.loads(str(text))) if text else ()


def checks_attribute(checks: Iterable[AccessCheck]) -> tuple[str, str]:
    """The attribute of a PrimFunc that reports these checks."""
    return "checks", json.dumps([[check.origin, check.message] for check in checks])


def report_buffer(func: PrimFunc) -> Buffer | None:
    """The output in which a PrimFunc reports checks that failed; None for one without checks."""
    return func.outputs[-1] if annotation(func, "checks") else None
