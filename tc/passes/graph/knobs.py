"""What graph passes leave open: knobs about calls, and what calls are known by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tc.ir.graph import Call, CallTir, Function, all_bindings
from tc.ops.build import full_attrs, operand_types
from tc.schedule.knobs import Knob, Value


def knob_of_call(call: Call, name: str, options: tuple[Value, ...], default: Value) -> Knob:
    """How the pass `name` shall implement a call."""
    return Knob(name, options, default, ordered=False, node=str(call.span), key=call_key(call))


def knob_of_group(calls: Sequence[Call | CallTir], name: str, options: tuple[Value, ...], default: Value) -> Knob:
    """What shall become of several calls together; its node is the last."""
    key = _digest([call_key(call) for call in calls])
    return Knob(name, options, default, ordered=False, node=str(calls[-1].span), key=key, alone=False)


def knob_of_function(func: Function, name: str, options: tuple[Value, ...], default: Value) -> Knob:
    """About all of a graph function; `name` begins with the name of the pass, and says more when it asks several things."""
    calls = [binding.value for binding in all_bindings(func) if isinstance(binding.value, Call)]
    key = _digest([call_key(call) for call in calls])
    return Knob(name, options, default, ordered=False, node=func.name, key=key, alone=False)


def call_key(call: Call | CallTir) -> str:
    """20 hex digits that tell calls apart by operator, attributes and types of operands; by the name of a PrimFunc."""
    if isinstance(call, CallTir):
        return _digest((call.callee, [str(arg.type) for arg in call.args], [str(type_) for type_ in call.result_types]))
    types = [None if type_ is None else str(type_) for type_ in operand_types(call)]
    attrs = sorted((name, str(value)) for name, value in full_attrs(call).items())
    return _digest((call.op, attrs, types))


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:20]
