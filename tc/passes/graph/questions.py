"""What a graph pass leaves open, so that measurements may decide: as knobs do for the rules of a schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tc.ir.graph import Call, CallTir, Function, all_bindings
from tc.ops.build import full_attrs, operand_types

Option = int | str | bool


@dataclass(frozen=True)
class Question:
    """How `pass_name` shall implement `node`. `key` is the same for nodes that compute the same; `default`: the pass's own estimate.

    `alone`: whether the kernel that holds the node tells by itself which option is best. Otherwise other kernels change as well, and only
    the whole model tells.
    """

    pass_name: str
    node: str
    key: str
    options: tuple[Option, ...]
    default: Option
    alone: bool = True

    @property
    def place(self) -> tuple[str, str]:
        """What an answer is kept by."""
        return self.pass_name, self.key


Answer = Callable[[Question], Option]
"""One of the question's options."""


def own_answer(question: Question) -> Option:
    """The pass's own."""
    return question.default


def question_about(call: Call, pass_name: str, options: tuple[Option, ...], default: Option) -> Question:
    """The question how a call shall be implemented."""
    return Question(pass_name, str(call.span), call_key(call), options, default)


def question_about_group(calls: Sequence[Call | CallTir], pass_name: str, options: tuple[Option, ...], default: Option) -> Question:
    """The question what shall become of several calls together, named after the last."""
    return Question(pass_name, str(calls[-1].span), _digest([call_key(call) for call in calls]), options, default, alone=False)


def question_about_function(func: Function, name: str, options: tuple[Option, ...], default: Option) -> Question:
    """A question about all of a graph function; `name` begins with the name of the pass, and says more when it has several questions."""
    calls = [binding.value for binding in all_bindings(func) if isinstance(binding.value, Call)]
    return Question(name, func.name, _digest([call_key(call) for call in calls]), options, default, alone=False)


def call_key(call: Call | CallTir) -> str:
    """20 hex digits that tell calls apart by operator, attributes and types of operands; by the name of a PrimFunc."""
    if isinstance(call, CallTir):
        return _digest((call.callee, [str(arg.type) for arg in call.args], [str(type_) for type_ in call.result_types]))
    types = [None if type_ is None else str(type_) for type_ in operand_types(call)]
    attrs = sorted((name, str(value)) for name, value in full_attrs(call).items())
    return _digest((call.op, attrs, types))


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:20]
