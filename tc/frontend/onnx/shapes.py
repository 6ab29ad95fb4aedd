"""Arithmetic on small tensors that describe shapes: their elements are expressions over the symbolic dims.

Exporters compute shapes with ordinary nodes (Shape, Gather, Mul, Concat ...). The importer runs such nodes here, on
arrays of expressions, so that a Reshape gets its target as dims and not as data. A rule answers None when it cannot
say: the node then becomes an operator on data like any other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tc.frontend.onnx.size_elements import (
    MAX_ELEMENTS,
    Element,
    Elements,
    SizeRatio,
    add,
    ceil,
    compare_with,
    decide,
    div,
    elements_of_array,
    floor,
    is_rounded,
    make_elements,
    mod,
    mul,
    negative,
    of_integers,
    select_element,
    simplified,
    sub,
    truncate,
)
from tc.ir.arith import Facts
from tc.ir.dtype import DType, bool_, f32, from_numpy, i64
from tc.ir.expr import Const, Expr, const, equal, logical_and, logical_not, logical_or, maximum, minimum, select

FIRST_WITH_NUMPYS_BROADCASTING = 7
"""The opset."""


class NodeAttributes(Protocol):
    """What a rule may ask of a node."""

    opset: int
    num_outputs: int

    def attr(self, name: str, default: Any = None) -> Any: ...


@dataclass(frozen=True)
class ShapeOperand:
    """An input of a node, as a rule sees it: its shape always, its elements when they are known."""

    shape: tuple[Expr, ...]
    dtype: DType
    elements: Elements | None


Rule = Callable[[NodeAttributes, Sequence["ShapeOperand | None"], Facts], "list[Elements] | None"]
RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register how ONNX operators act on known elements."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def evaluate(
    op_type: str, node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts
) -> list[tuple[Elements, DType]] | None:
    """The elements of a node's results, and their dtypes; None when they are not known."""
    results = RULES[op_type](node, operands, facts)
    if results is not None:  # numpy gives a bare element where it could give an array of no axes
        results = [r if isinstance(r, np.ndarray) else make_elements([r], ()) for r in results]
    if results is None or any(r.size > MAX_ELEMENTS for r in results):
        return None
    dtype = _result_dtype(op_type, node, operands)
    return [(_map(lambda e: simplified(e, facts), r), dtype) for r in results]


ALWAYS_KNOWN = ("Shape", "Size")
_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not")


def _result_dtype(op_type: str, node: NodeAttributes, operands: Sequence[ShapeOperand | None]) -> DType:
    if op_type in ALWAYS_KNOWN:
        return i64
    if op_type in _COMPARISONS:
        return bool_
    if op_type == "Cast":
        target: DType = node.attr("to_dtype")
        return target
    if op_type == "ConstantOfShape":
        value = node.attr("value")
        return f32 if value is None else from_numpy(value.dtype)
    source = operands[1 if op_type == "Where" else 0]
    assert source is not None
    return source.dtype


def _map(function: Callable[..., Any], *arrays: Elements) -> Elements:
    """Apply `function` elementwise, with numpy broadcasting."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    columns = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    return make_elements([function(*row) for row in zip(*columns, strict=True)], shape)


class _Unknown(Exception):
    """An elementwise rule met an element that it cannot say."""


def _known(operands: Sequence[ShapeOperand | None], count: int | None = None) -> list[Elements] | None:
    """The elements of the first `count` operands, or None if one is absent or unknown."""
    wanted = list(operands)[:count]
    if any(o is None or o.elements is None for o in wanted):
        return None
    return [o.elements for o in wanted]  # type: ignore[union-attr,misc]


def _ints(operand: ShapeOperand | None) -> list[int] | None:
    """The integers of a constant operand."""
    if operand is None or operand.elements is None:
        return None
    if not all(isinstance(e, Const) for e in operand.elements.reshape(-1)):
        return None
    return [int(e) for e in operand.elements.reshape(-1)]


def _elementwise(function: Callable[..., Element | None], count: int | None = None) -> Rule:
    """A rule that applies `function(*elements, facts)` elementwise; None from it means unknown."""

    def apply(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
        known = _known(operands, count)
        if known is None:
            return None

        def element(*values: Element) -> Element:
            result = function(*values, facts)
            if result is None:
                raise _Unknown
            return result

        try:
            return [_map(element, *known)]
        except _Unknown:
            return None

    return apply


# -- arithmetic of elements


@rule("Mod")
def _remainder(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    """That of a quotient rounded down; the one of C, rounded toward zero, is left to the operator."""
    return None if node.attr("fmod", 0) else _elementwise(mod)(node, operands, facts)


_ELEMENTWISE: dict[str, Callable[..., Element | None]] = {
    "Add": add,
    "Sub": sub,
    "Mul": mul,
    "Div": div,
    "Neg": negative,
    "Floor": floor,
    "Ceil": ceil,
    "Equal": compare_with(equal),
    "Less": compare_with(lambda a, b: a < b),
    "LessOrEqual": compare_with(lambda a, b: a <= b),
    "Greater": compare_with(lambda a, b: a > b),
    "GreaterOrEqual": compare_with(lambda a, b: a >= b),
    "And": lambda a, b, facts: logical_and(a, b),
    "Or": lambda a, b, facts: logical_or(a, b),
    "Not": lambda a, facts: logical_not(a),
    "Where": select_element,
    "Abs": lambda a, facts: None if isinstance(a, SizeRatio) else maximum(a, 0 - a),
    "Identity": lambda a, facts: a,
}
for _name, _function in _ELEMENTWISE.items():
    RULES[_name] = _elementwise(_function)

ARITHMETIC = frozenset(_ELEMENTWISE) - {"Where", "Identity"} | {"Mod", "Max", "Min", "Sum", "Cast", "ReduceProd", "ReduceSum"}
"""Operators that give the numbers that elements stand for only as far as their dtype holds these."""


def _fold(function: Callable[[Element, Element, Facts], Element | None]) -> Rule:
    """A rule for operators with any number of operands, such as Max."""
    pair = _elementwise(function)

    def apply(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
        known = _known(operands)
        if not known:
            return None
        result = known[0]
        for other in known[1:]:
            step = pair(node, [ShapeOperand((), i64, result), ShapeOperand((), i64, other)], facts)
            if step is None:
                return None
            result = step[0]
        return [result]

    return apply


RULES["Max"] = _fold(of_integers(maximum))
RULES["Min"] = _fold(of_integers(minimum))
RULES["Sum"] = _fold(add)


@rule("Cast")
def _cast(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands)
    target = node.attr("to_dtype")
    if known is None or not isinstance(target, DType):
        return None

    def element(e: Element) -> Element:
        if target.is_bool:
            value = e.num if isinstance(e, SizeRatio) else e
            return value if value.dtype is bool_ else decide(logical_not(equal(value, 0)), facts)
        whole = select(e, 1, 0) if isinstance(e, Expr) and e.dtype is bool_ else e
        if target.is_float:
            if isinstance(whole, SizeRatio) and is_rounded(whole):
                raise _Unknown  # to the dtype that it has
            return whole if isinstance(whole, SizeRatio) else SizeRatio(whole)
        result = truncate(whole, facts) if isinstance(whole, SizeRatio) else whole
        if result is None or target.bits < 32:
            raise _Unknown
        return result

    if target.is_float and target.bits < 32:
        return None
    try:
        return [_map(element, known[0])]
    except _Unknown:
        return None


# -- shapes of tensors


@rule("Shape")
def _shape(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    assert operands[0] is not None
    dims = operands[0].shape[slice(node.attr("start", 0), node.attr("end"))]
    return [make_elements(dims, (len(dims),))]


def _may_be_listed(shape: Sequence[int]) -> bool:
    """Whether elements of a tensor are few enough to be listed; one of none may still have dims that no array has."""
    return math.prod(max(dim, 1) for dim in shape) <= MAX_ELEMENTS


@rule("Size")
def _size(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    assert operands[0] is not None
    total: Expr = const(1)
    for dim in operands[0].shape:
        total = total * dim
    return [make_elements([total], ())]


@rule("ConstantOfShape")
def _constant_of_shape(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    shape = _ints(operands[0])
    value = node.attr("value")
    fill = elements_of_array(np.zeros(1, np.float32) if value is None else value)
    if shape is None or fill is None or any(n < 0 for n in shape) or not _may_be_listed(shape):
        return None
    return [np.broadcast_to(fill.reshape(()), shape).copy()]


@rule("Range")
def _range(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    bounds = [_ints(o) if o is not None and o.dtype.is_int else None for o in operands]
    if any(b is None for b in bounds):
        return None
    (start,), (limit,), (step,) = bounds  # type: ignore[misc]
    if step == 0 or len(range(start, limit, step)) > MAX_ELEMENTS:
        return None
    values = [const(v) for v in range(start, limit, step)]
    return [make_elements(values, (len(values),))]


# -- moving elements


@rule("Gather")
def _gather(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    assert operands[1] is not None
    indices = _ints(operands[1])
    if known is None or indices is None:
        return None
    axis, (data,) = node.attr("axis", 0), known
    if data.ndim == 0 or any(not -data.shape[axis] <= i < data.shape[axis] for i in indices):
        return None
    return [np.take(data, np.array(indices, np.int64).reshape(operands[1].elements.shape), axis)]  # type: ignore[union-attr]


@rule("Slice")
def _slice(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    if known is None:
        return None
    if node.opset < 10:
        starts, ends, axes, steps = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    else:
        given = [None if o is None else _ints(o) for o in operands]
        if any(o is not None and ints is None for o, ints in zip(operands[1:], given[1:], strict=True)):
            return None
        starts, ends, axes, steps = (*given[1:], None, None)[:4]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    data = known[0]
    are_axes = all(-data.ndim <= axis < data.ndim for axis in axes) and len({axis % data.ndim for axis in axes}) == len(axes)
    if not len(starts) == len(ends) == len(axes) == len(steps) or not are_axes or 0 in steps:
        return None  # which the operator refuses
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = _python_slice(start, end, step, data.shape[axis])
    return [data[tuple(index)]]


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's slice bounds are clamped to the axis; a negative step that ends below 0 runs to the first element, and one that starts there
    takes that."""
    if step < 0 and size:
        start = max(min(start + size if start < 0 else start, size - 1), 0)
        end = end + size if end < 0 else end
        return slice(start, None if end < 0 else end, step)
    return slice(start, end, step)


@rule("Concat")
def _concat(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands)
    return None if known is None else [np.concatenate(known, node.attr("axis", 1))]


@rule("Split")
def _split(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    if known is None:
        return None
    axis, data = node.attr("axis", 0), known[0]
    sizes = node.attr("split") or (_ints(operands[1]) if len(operands) > 1 else None)
    if len(operands) > 1 and operands[1] is not None and sizes is None:
        return None
    if sizes is None:
        whole = -(-data.shape[axis] // node.num_outputs)
        cuts = [whole * k for k in range(1, node.num_outputs)]
    else:
        cuts = list(itertools.accumulate(sizes))[:-1]
    return list(np.split(data, cuts, axis))


@rule("Squeeze")
def _squeeze(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    axes = _axes(node, operands)
    if known is None or axes is _UNKNOWN_AXES:
        return None
    return [np.squeeze(known[0], None if axes is None else tuple(axes))]


@rule("Unsqueeze")
def _unsqueeze(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    axes = _axes(node, operands)
    if known is None or axes is _UNKNOWN_AXES or axes is None:
        return None
    return [np.expand_dims(known[0], tuple(axes))]


_UNKNOWN_AXES: list[int] = []


def _axes(node: NodeAttributes, operands: Sequence[ShapeOperand | None]) -> list[int] | None:
    """The axes of a node, an attribute or the second input; None when absent, `_UNKNOWN_AXES` when not constant."""
    if len(operands) > 1 and operands[1] is not None:
        found = _ints(operands[1])
        return _UNKNOWN_AXES if found is None else found
    axes: list[int] | None = node.attr("axes")
    return axes


@rule("Reshape")
def _reshape(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands, 1)
    shape = node.attr("shape") if node.opset < 5 else _ints(operands[1])
    if known is None or shape is None:
        return None
    data = known[0]
    if not node.attr("allowzero", 0):
        shape = [data.shape[d] if n == 0 and d < data.ndim else n for d, n in enumerate(shape)]
    try:
        return [data.reshape(shape)]
    except ValueError:
        return None  # the operator's type rule explains


@rule("Flatten")
def _flatten(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands)
    if known is None:
        return None
    data, axis = known[0], node.attr("axis", 1)
    rows = int(np.prod(data.shape[: axis if axis >= 0 else data.ndim + axis]))
    return [data.reshape(rows, int(np.prod(data.shape)) // rows if rows else int(np.prod(data.shape[axis:])))]


@rule("Transpose")
def _transpose(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands)
    return None if known is None else [np.transpose(known[0], node.attr("perm"))]


@rule("Expand")
def _expand(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known, shape = _known(operands, 1), _ints(operands[1])
    if known is None or shape is None or not _may_be_listed(shape):
        return None
    try:
        return [np.broadcast_to(known[0], np.broadcast_shapes(known[0].shape, tuple(shape))).copy()]
    except ValueError:
        return None


@rule("Tile")
def _tile(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known, repeats = _known(operands, 1), _ints(operands[1])
    if known is None or repeats is None or len(repeats) != known[0].ndim:
        return None
    shape = [dim * repeat for dim, repeat in zip(known[0].shape, repeats, strict=True)]
    if not _may_be_listed(shape):
        return None
    if min(shape, default=1) == 0:  # numpy repeats axis by axis, whatever becomes of the result
        return [np.empty(shape, object)]
    return [np.tile(known[0], repeats)]


@rule("ScatterND")
def _scatter_nd(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known((operands[0], operands[2]))
    assert operands[1] is not None
    places = _ints(operands[1])
    if known is None or places is None or node.attr("reduction", "none") != "none":
        return None
    data, updates = known
    indices = np.array(places, np.int64).reshape(operands[1].elements.shape)  # type: ignore[union-attr]
    if data.ndim != 1 or indices.shape[-1] != 1 or any(not -len(data) <= p < len(data) for p in places):
        return None
    result = data.copy()
    result[indices.reshape(-1)] = updates.reshape(-1)
    return [result]


def _reduction(function: Callable[[Element, Element, Facts], Element | None], start: int) -> Rule:
    def apply(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
        known, axes = _known(operands, 1), _axes(node, operands)
        if known is None or axes is _UNKNOWN_AXES or known[0].ndim != 1:
            return None
        if not axes and node.attr("noop_with_empty_axes", 0):
            return None
        values = list(known[0])
        if any(isinstance(v, SizeRatio) for v in values) or not values:
            return None
        result: Element | None = values[0]
        for value in values[1:]:
            result = None if result is None else function(result, value, facts)
        keep = node.attr("keepdims", 1)
        return None if result is None else [make_elements([result], (1,) if keep else ())]

    return apply


RULES["ReduceProd"] = _reduction(mul, 1)
RULES["ReduceSum"] = _reduction(add, 0)
RULES["ReduceMax"] = _reduction(of_integers(maximum), 0)
RULES["ReduceMin"] = _reduction(of_integers(minimum), 0)
