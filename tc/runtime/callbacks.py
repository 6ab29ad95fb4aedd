"""Nodes that run in Python: as data in module files, and bound to their code again when a file is read.

A file names an operator or a registered function and its attributes, never code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tc.errors import InputError, Span, UnsupportedError, located
from tc.ir.arith import Facts, evaluate
from tc.ir.dtype import DType, parse_dtype
from tc.ir.expr import Expr, Var
from tc.ir.graph import Attrs, AttrValue
from tc.ir.plan import CallOut, Place, Slot
from tc.ir.types import TensorType
from tc.ops.registry import PYTHON_FUNCTIONS, get_op, inference
from tc.runtime.saved import dim_text, parse_dim

Callback = Callable[[CallOut, "list[np.ndarray | None]", "dict[Var, int]"], "Sequence[np.ndarray]"]


def run_reference(call: CallOut, args: list[np.ndarray | None], env: dict[Var, int]) -> tuple[np.ndarray, ...]:
    """Run a node on its reference kernel: an operator's, or a registered Python function."""
    kind, _, name = call.symbol.partition(":")
    with located(call.span):
        try:
            if kind == "py":
                attrs = Attrs(tuple((key, _literal(value, env)) for key, value in call.attrs))
                return tuple(PYTHON_FUNCTIONS[name](args, attrs))
            op = get_op(name)
            attrs = Attrs(tuple((key, _literal(value, env)) for key, value in op.attrs(call.attrs).items()))
            with inference(Facts()), np.errstate(all="ignore"):
                return op.run_reference(args, attrs)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # numpy's words for values that do not fit
            raise InputError(f"{type(error).__name__}: {error}") from error


def check_reference(symbol: str) -> None:
    """UnsupportedError for the symbol of a call out that nothing here is registered for."""
    kind, _, name = symbol.partition(":")
    if kind == "op":
        get_op(name)
    elif kind != "py" or name not in PYTHON_FUNCTIONS:
        raise UnsupportedError(f"the module calls {symbol!r}, which is not registered in this process")


def _literal(value: AttrValue, env: Mapping[Var, int]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_literal(item, env) for item in value)
    return int(evaluate(value, env)) if isinstance(value, Expr) else value


def callback_for(calls: Sequence[CallOut]) -> Callback | None:
    """What runs these calls; None when there are none. UnsupportedError when nobody can."""
    for call in calls:
        check_reference(call.symbol)
    return run_reference if calls else None


def call_to_json(call: CallOut, names: Mapping[Var, str]) -> list[Any]:
    """One call as plain data; dims under the given names."""
    slots = [[None if slot is None else _slot_to_json(slot, names) for slot in part] for part in (call.args, call.results)]
    attrs = [[name, _attr_to_json(value, names)] for name, value in call.attrs]
    found = [names[dim] for dim in call.found_dims]
    return [call.symbol, *slots, attrs, found, str(call.span) if call.span is not None else None]


def call_from_json(item: list[Any], variables: Mapping[str, Var]) -> CallOut:
    """The inverse. Any of several exceptions when the data has another form."""
    symbol, args, results, attrs, found, span = item
    return CallOut(
        symbol,
        tuple(None if slot is None else _slot_from_json(slot, variables) for slot in args),
        tuple(_slot_from_json(slot, variables) for slot in results),
        attrs=tuple((name, _attr_from_json(value, variables)) for name, value in attrs),
        found_dims=tuple(variables[name] for name in found),
        span=None if span is None else Span(span),
    )


def _slot_to_json(slot: Slot, names: Mapping[Var, str]) -> list[Any]:
    return [slot.place.value, slot.index, slot.type.dtype.name, [dim_text(dim, names) for dim in slot.type.shape]]


def _slot_from_json(item: list[Any], variables: Mapping[str, Var]) -> Slot:
    place, index, dtype, shape = item
    return Slot(Place(place), index, TensorType(tuple(parse_dim(dim, variables) for dim in shape), parse_dtype(dtype)))


def _attr_to_json(value: AttrValue, names: Mapping[Var, str]) -> Any:
    match value:
        case tuple():
            return [_attr_to_json(item, names) for item in value]
        case DType():
            return {"dtype": value.name}
        case Expr():
            return {"dim": dim_text(value, names)}
    return value


def _attr_from_json(value: Any, variables: Mapping[str, Var]) -> AttrValue:
    match value:
        case list():
            return tuple(_attr_from_json(item, variables) for item in value)
        case {"dtype": str(name)}:
            return parse_dtype(name)
        case {"dim": str(text)}:
            return parse_dim(text, variables)
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"no attribute of a call: {value!r}")
