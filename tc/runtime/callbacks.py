"""Nodes that run in Python: as data in module files, and bound to their code when a module is made or a file is read.

A file names an operator or a function and its attributes, never code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tc.errors import InputError, Span, UnsupportedError, UserError, located
from tc.ir.arith import Facts, evaluate
from tc.ir.dtype import DType, parse_dtype
from tc.ir.expr import Expr, Var
from tc.ir.graph import Attrs, AttrValue
from tc.ir.plan import CallOut, Slot, SlotPlace
from tc.ir.types import TensorType
from tc.ops.registry import PYTHON_FUNCTIONS, get_op, inference, is_scoped
from tc.runtime.saved import dim_text, parse_dim

Kernel = Callable[["list[np.ndarray | None]", Attrs], "tuple[np.ndarray, ...]"]
Callback = Callable[[CallOut, "list[np.ndarray | None]", "dict[Var, int]"], "Sequence[np.ndarray]"]


def runs_users_code(symbol: str) -> bool:
    """Whether a call out runs a function that is not of `tc`."""
    kind, _, name = symbol.partition(":")
    return kind in ("py", "import") or is_scoped(name)


def _kernel(symbol: str) -> Kernel:
    """What a call out runs, as it is registered now, or can be imported. UnsupportedError when nobody knows it."""
    kind, _, name = symbol.partition(":")
    if kind == "op":
        op = get_op(name)
        return lambda args, attrs: op.run_reference(args, op.attrs(tuple(attrs.items())))
    if kind == "py" and name in PYTHON_FUNCTIONS:
        function = PYTHON_FUNCTIONS[name]
        return lambda args, attrs: tuple(function(args, attrs))
    if kind == "import":
        return _imported(name)
    raise UnsupportedError(f"the module calls {symbol!r}, which is not registered in this process")


def _imported(name: str) -> Kernel:
    """The function that a user calls "module:function"."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(f"the module calls the Python function {name}, which cannot be imported: {error}") from error

    def run(args: list[np.ndarray | None], attrs: Attrs) -> tuple[np.ndarray, ...]:
        made = found(*args, **attrs)
        return tuple(np.asarray(result) for result in (made if isinstance(made, (tuple, list)) else (made,)))

    return run


def _run(
    kernels: Mapping[str, Kernel], call: CallOut, args: list[np.ndarray | None], env: dict[Var, int]
) -> tuple[np.ndarray, ...]:
    """Run a node on its reference kernel: an operator's, or a Python function."""
    with located(call.span):
        try:
            attrs = Attrs(tuple((key, _literal(value, env)) for key, value in call.attrs))
            with inference(Facts()), np.errstate(all="ignore"):
                return kernels[call.symbol](args, attrs)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:  # numpy's words for values that do not fit
            raise InputError(f"{type(error).__name__}: {error}") from error


def _literal(value: AttrValue, env: Mapping[Var, int]) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(_literal(item, env) for item in value)
    return int(evaluate(value, env)) if isinstance(value, Expr) else value


def callback_for(calls: Sequence[CallOut]) -> Callback | None:
    """What runs these calls, with the definitions of now; None when there are none. UnsupportedError when nobody can."""
    kernels = {call.symbol: _kernel(call.symbol) for call in calls}
    return partial(_run, kernels) if kernels else None


def call_to_json(call: CallOut, names: Mapping[Var, str]) -> list[Any]:
    """One call as plain data; dims under the given names. UserError for a function that no other process finds."""
    kind, _, name = call.symbol.partition(":")
    if kind == "op" and is_scoped(name):
        raise UserError(
            f"{name} runs a Python function that a file cannot name: define it at the top of a module that can be imported, not in a "
            "script, in another function or as a lambda",
            call.span,
        )
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
    return Slot(SlotPlace(place), index, TensorType(tuple(parse_dim(dim, variables) for dim in shape), parse_dtype(dtype)))


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
