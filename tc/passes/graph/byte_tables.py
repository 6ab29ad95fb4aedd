"""What is computed of one tensor of bytes, element by element, and ends in bytes again has 256 answers: they are computed once.

A chain between dequantize_linear and quantize_linear, and whatever part of a quantized graph depends on one such tensor alone
(a gate times what it was made of, with all quantizations in between), becomes one `lookup`. The entries are those of the references.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tc.ir.byte_table import ENTRIES
from tc.ir.graph import Atom, Call, TensorConst, TensorVar, tensor_type_of
from tc.ir.module import IRModule
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import GraphBuilder, full_attrs
from tc.ops.registry import get_op
from tc.passes.graph.elementwise import computes_elements
from tc.passes.graph.quantized import BYTES
from tc.passes.graph.rewrite import GraphRule, Match, any_, const_, op, rewrite_module
from tc.passes.manager import graph_pass

MOST_CALLS = 64
"""Of operators behind one table: whoever has more is no function that somebody wrote down."""


@graph_pass
def byte_tables(module: IRModule) -> IRModule:
    """Look up what is computed of single bytes; see TABLE_RULES."""
    return rewrite_module(module, TABLE_RULES)


@dataclass
class _Function:
    """Of which bytes values are computed, and which: `values` has each value for the 256 numbers that an element of `root` can be.

    `root` None: no bytes have been met so far. `calls`: how many operators have been looked at.
    """

    m: Match
    root: TensorVar | None = None
    values: dict[Atom, np.ndarray | None] = field(default_factory=dict)
    calls: int = 0

    def of(self, atom: Atom) -> np.ndarray | None:
        """The values of a tensor, 256 or one; None where it is computed of anything else, or not element by element."""
        if atom not in self.values:
            self.values[atom] = self._of_variable(atom) if isinstance(atom, TensorVar) else self._of_literal(atom)
        return self.values[atom]

    def _of_literal(self, atom: Atom) -> np.ndarray | None:
        return atom.value.reshape(()) if isinstance(atom, TensorConst) and atom.value.size == 1 else None

    def _of_variable(self, variable: TensorVar) -> np.ndarray | None:
        assert isinstance(variable.type, TensorType)
        call = self.m.call_of(variable)
        if variable.type.dtype not in BYTES or (call is not None and call.op == "lookup"):
            return None if call is None else self.of_call(call, variable.type)
        if self.root not in (None, variable):
            return None
        self.root = variable
        return np.arange(ENTRIES, dtype=np.uint8).view(variable.type.dtype.numpy)

    def of_call(self, call: Call, result: TensorType) -> np.ndarray | None:
        """What an operator makes of the values of its operands, where each element is computed of those at its place."""
        given = [arg for arg in call.args if arg is not None]
        variables = [arg for arg in given if isinstance(arg, TensorVar)]
        self.calls += 1
        if self.calls > MOST_CALLS or not all(
            isinstance(arg.type, TensorType) and arg.type.shape == result.shape for arg in variables
        ):
            return None
        if call.op == "lookup" and isinstance(call.args[1], TensorConst) and call.args[0] is not None:
            places = self.of(call.args[0])
            return None if places is None else np.asarray(call.args[1].value[places.view(np.uint8)])
        if call.op in SCALED and any(arg in variables for arg in call.args[1:]):
            return None
        arrays = [None if arg is None else self.of(arg) for arg in call.args]
        if sum(array is not None for array in arrays) < len(given) or not _is_elementwise(call, result):
            return None
        with np.errstate(all="ignore"):
            (found,) = get_op(call.op).run_reference(arrays, full_attrs(call))
        return found


SCALED = frozenset(("quantize_linear", "dequantize_linear"))
"""Whose operands after the first are numbers, or one for each channel: their references have no room for one for each element."""

def _is_elementwise(call: Call, result: TensorType) -> bool:
    """Whether an operator computes each element of those at its place, literal operands being one number each."""
    operands = [None if arg is None else (tensor_type_of(arg).dtype, _lengths(arg, result.rank)) for arg in call.args]
    return computes_elements(call, tuple(operands), result.dtype, result.rank)


def _lengths(atom: Atom, rank: int) -> tuple[int | None, ...]:
    """A variable has the axes of the result, and a literal ones: as many as it has, as operators of channels take no scalars."""
    return (None,) * rank if isinstance(atom, TensorVar) else (1,) * tensor_type_of(atom).rank


def _table(b: GraphBuilder, m: Match) -> Atom | None:
    """quantize(f(x)) as lookup(x, table)."""
    call, result, function = m.call("quantize"), m.roots["quantize"].type, _Function(m)
    assert isinstance(result, TensorType)
    found = function.of_call(call, result) if result.dtype in BYTES else None
    if found is None or function.root is None:
        return None
    return b.call("lookup", function.root, b.const(np.broadcast_to(found, ENTRIES).copy()), span=call.span)


def _example(b: GraphBuilder) -> Atom:
    """A gate times what it is made of, and the gate quantized."""
    x = b.param("x", tensor_type((2, 5), BYTES[1]))
    parameters = b.const(np.float32(0.1)), b.const(np.int8(-7))
    wide = b.call("dequantize_linear", x, *parameters)
    gate = b.call("sigmoid", wide)
    gates = b.const(np.float32(1 / 255)), b.const(np.uint8(0))
    narrow = b.call("quantize_linear", gate, *gates, dtype=BYTES[0])
    product = b.call("mul", wide, b.call("dequantize_linear", narrow, *gates))
    return b.call("quantize_linear", product, *parameters, dtype=BYTES[1])


def _look_up_first(b: GraphBuilder, m: Match) -> Atom:
    """lookup(view(x), table) as view(lookup(x, table)): in the kernel that makes x."""
    call = m.call("view")
    return b.call_with(
        call.op, [b.call("lookup", m.x, m.table, span=m.call("lookup").span), *call.args[1:]], call.attrs, call.span
    )


def _view_example(b: GraphBuilder) -> Atom:
    table = b.const(np.arange(ENTRIES, dtype=np.uint8)[::-1].copy())
    return b.call("lookup", b.call("reshape", b.param("x", tensor_type((2, 5), BYTES[0])), shape=(5, 2)), table)


TABLE_RULES = (
    GraphRule(
        "what has another shape is looked up before",
        op(
            "lookup",
            op("reshape|squeeze|unsqueeze|flatten", any_("x"), name="view"),
            const_("table"),
        ),
        _look_up_first,
        example=_view_example,
    ),
    GraphRule(
        "what is computed of single bytes is looked up",
        op("quantize_linear", any_("wide"), name="quantize", rest=True),
        _table,
        example=_example,
        inexact=True,
    ),
)
