"""What a graph pass leaves open for a node, so that measurements may decide: as knobs do for the rules of a schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from tc.ir.graph import Call
from tc.ops.build import full_attrs, operand_types

Option = int | str | bool


@dataclass(frozen=True)
class Question:
    """How `pass_name` shall implement `node`. `key` is the same for nodes that compute the same; `default`: the pass's own estimate."""

    pass_name: str
    node: str
    key: str
    options: tuple[Option, ...]
    default: Option


Answer = Callable[[Question], Option]
"""One of the question's options."""


def own_answer(question: Question) -> Option:
    """The pass's own."""
    return question.default


def question_about(call: Call, pass_name: str, options: tuple[Option, ...], default: Option) -> Question:
    """The question how a call shall be implemented."""
    return Question(pass_name, str(call.span), call_key(call), options, default)


def call_key(call: Call) -> str:
    """20 hex digits that tell calls apart by operator, attributes and types of operands."""
    types = [None if type_ is None else str(type_) for type_ in operand_types(call)]
    attrs = sorted((name, str(value)) for name, value in full_attrs(call).items())
    return hashlib.sha256(repr((call.op, attrs, types)).encode()).hexdigest()[:20]
