"""Arithmetic on small tensors that describe shapes: their elements are expressions over the symbolic dims.

Exporters compute shapes with ordinary nodes (Shape, Gather, Mul, Concat ...). The importer runs such nodes here, on
arrays of expressions, so that a Reshape gets its target as dims and not as data. A rule answers None when it cannot
say: the node then becomes an operator on data like any other.

Elements: an integer is an i64 `Expr`, a bool a bool `Expr`, a float a `SizeRatio` of integers. Floats occur where
exporters scale sizes (`floor(cast(n) * 0.5)`); they are kept while the real number is one that float arithmetic would
get right too: small constant factors and quotients of sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, Union

import numpy as np

from tc.ir.arith import Facts, prove, simplify
from tc.ir.dtype import DType, bool_, f32, from_numpy, i64
from tc.ir.expr import (
    Const,
    Expr,
    const,
    equal,
    floordiv,
    floormod,
    is_const,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
)

MAX_ELEMENTS = 256
_MAX_DENOMINATOR = 1 << 12
_MAX_NUMERATOR = 1 << 20


@dataclass(frozen=True)
class SizeRatio:
    """The real number num / den, den != 0."""

    num: Expr
    den: Expr = const(1)


Element = Union[Expr, SizeRatio]
Elements = np.ndarray  # of objects, each an Element; its shape is the tensor's


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


def elements_of_array(array: np.ndarray) -> Elements | None:
    """A small constant as elements; None for a large one, or for floats that are not simple ratios."""
    if array.size > MAX_ELEMENTS:
        return None
    if array.dtype.kind in "iub":
        dtype = bool_ if array.dtype.kind == "b" else i64
        return make_elements([const(v, dtype) for v in array.reshape(-1).tolist()], array.shape)
    if array.dtype.kind != "f":
        return None
    ratios = [_ratio_of_float(v) for v in array.reshape(-1).tolist()]
    return None if None in ratios else make_elements(ratios, array.shape)  # type: ignore[arg-type]


def _ratio_of_float(value: float) -> SizeRatio | None:
    if value != value or value in (float("inf"), float("-inf")):
        return None
    exact = Fraction(value)
    if exact.denominator > _MAX_DENOMINATOR or abs(exact.numerator) > _MAX_NUMERATOR:
        return None
    return SizeRatio(const(exact.numerator), const(exact.denominator))


def make_elements(values: Sequence[Element], shape: Sequence[int]) -> Elements:
    """An array of these elements, in row-major order."""
    result = np.empty(len(values), object)
    result[:] = values
    return result.reshape(tuple(shape))


def is_constant(elements: Elements) -> bool:
    """Whether no element depends on a dim."""
    return all(
        isinstance(e, Const) or (isinstance(e, SizeRatio) and isinstance(e.num, Const) and isinstance(e.den, Const))
        for e in elements.reshape(-1)
    )


def fits(elements: Elements, dtype: DType) -> bool:
    """Whether the constants among the elements are numbers of this type; a sum or product that wraps around is not."""
    if dtype.is_float or dtype.is_bool:
        return True
    limits = np.iinfo(dtype.numpy)
    return all(limits.min <= e.value <= limits.max for e in elements.reshape(-1) if isinstance(e, Const))


def array_of_elements(elements: Elements, dtype: DType) -> np.ndarray:
    """The numpy array of constant elements."""
    values = [
        int(e.num) / int(e.den) if isinstance(e, SizeRatio) else e.value for e in elements.reshape(-1)  # type: ignore[attr-defined]
    ]
    return np.array(values, dtype.numpy).reshape(elements.shape)


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
    return [(_map(lambda e: _simplified(e, facts), r), dtype) for r in results]


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


def _simplified(element: Element, facts: Facts) -> Element:
    if not isinstance(element, SizeRatio):
        return simplify(element, facts)
    num, den = simplify(element.num, facts), simplify(element.den, facts)
    if isinstance(num, Const) and isinstance(den, Const) and den.value:
        exact = Fraction(int(num), int(den))
        return SizeRatio(const(exact.numerator), const(exact.denominator))
    return SizeRatio(num, den)


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


def _as_ratios(a: Element, b: Element) -> tuple[SizeRatio, SizeRatio] | None:
    """Both as ratios if one is."""
    if isinstance(a, SizeRatio) and isinstance(b, SizeRatio):
        return a, b
    return None


def _add(a: Element, b: Element, facts: Facts) -> Element:
    ratios = _as_ratios(a, b)
    if ratios is None:
        return a + b  # type: ignore[operator]
    x, y = ratios
    if x.den is y.den:
        return SizeRatio(x.num + y.num, x.den)
    return SizeRatio(x.num * y.den + y.num * x.den, x.den * y.den)


def _negative(a: Element, facts: Facts) -> Element:
    return SizeRatio(0 - a.num, a.den) if isinstance(a, SizeRatio) else 0 - a


def _sub(a: Element, b: Element, facts: Facts) -> Element:
    return _add(a, _negative(b, facts), facts)


def _mul(a: Element, b: Element, facts: Facts) -> Element:
    ratios = _as_ratios(a, b)
    if ratios is None:
        return a * b  # type: ignore[operator]
    x, y = ratios
    for one, other in ((x, y), (y, x)):
        if one.num is other.den:
            return SizeRatio(other.num, one.den)
    return SizeRatio(x.num * y.num, x.den * y.den)


def _div(a: Element, b: Element, facts: Facts) -> Element | None:
    ratios = _as_ratios(a, b)
    if ratios is not None:
        x, y = ratios
        if prove(y.num > 0, facts) is not True:
            return None
        return SizeRatio(x.num, y.num) if x.den is y.den else SizeRatio(x.num * y.den, x.den * y.num)
    return divide_toward_zero(a, b, facts)  # type: ignore[arg-type]


def divide_toward_zero(a: Expr, b: Expr, facts: Facts) -> Expr | None:
    """The integer quotient of ONNX's Div; None where nothing is known of the divisor's sign."""
    if isinstance(a, Const) and isinstance(b, Const):
        if int(b) == 0:
            return None
        quotient = abs(int(a)) // abs(int(b))
        return const(quotient if (int(a) < 0) == (int(b) < 0) else -quotient)
    if rounds_down(a, b, facts):
        return floordiv(a, b)
    if prove(b > 0, facts) is not True:
        return None
    if prove(a + b > 0, facts) is True:  # the quotient rounded down is -1 at least, where the other is 0
        return maximum(floordiv(a, b), 0)
    return select(a < 0, 0 - floordiv(0 - a, b), floordiv(a, b))


def rounds_down(a: Expr, b: Expr, facts: Facts) -> bool:
    """Whether the quotient rounded toward zero is known to be the one rounded down."""
    if prove(b > 0, facts) is not True:
        return False
    return prove(a >= 0, facts) is True or prove(equal(floormod(a, b), 0), facts) is True


def _mod(a: Element, b: Element, facts: Facts) -> Element | None:
    if isinstance(a, SizeRatio) or isinstance(b, SizeRatio) or prove(b > 0, facts) is not True:
        return None
    return floormod(a, b)


@rule("Mod")
def _remainder(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    """That of a quotient rounded down; the one of C, rounded toward zero, is left to the operator."""
    return None if node.attr("fmod", 0) else _elementwise(_mod)(node, operands, facts)


def _floor(a: Element, facts: Facts) -> Element | None:
    if not isinstance(a, SizeRatio) or prove(a.den > 0, facts) is not True:
        return None
    return SizeRatio(floordiv(a.num, a.den))


def _ceil(a: Element, facts: Facts) -> Element | None:
    if not isinstance(a, SizeRatio) or prove(a.den > 0, facts) is not True:
        return None
    return SizeRatio(floordiv(a.num + (a.den - 1), a.den))


def _truncate(a: SizeRatio, facts: Facts) -> Expr | None:
    if is_const(a.den, 1):
        return a.num
    if prove(a.den > 0, facts) is not True or prove(a.num >= 0, facts) is not True:
        return None
    return floordiv(a.num, a.den)


def _compare(function: Callable[[Expr, Expr], Expr]) -> Callable[[Element, Element, Facts], Element | None]:
    def compare(a: Element, b: Element, facts: Facts) -> Element | None:
        ratios = _as_ratios(a, b)
        if ratios is not None:
            x, y = ratios
            if prove(x.den > 0, facts) is not True or prove(y.den > 0, facts) is not True:
                return None
            a, b = x.num * y.den, y.num * x.den
        assert isinstance(a, Expr) and isinstance(b, Expr)
        if a.dtype is bool_:
            a, b = select(a, 1, 0), select(b, 1, 0)
        return decide(function(a, b), facts)

    return compare


def decide(condition: Expr, facts: Facts) -> Expr:
    """`condition`, as a constant when it is proven or refuted."""
    known = prove(condition, facts)
    return condition if known is None else const(known, bool_)


def _select(condition: Element, a: Element, b: Element, facts: Facts) -> Element | None:
    assert isinstance(condition, Expr)
    if isinstance(condition, Const):
        return a if condition.value else b
    if isinstance(a, SizeRatio) and isinstance(b, SizeRatio):
        return SizeRatio(select(condition, a.num, b.num), select(condition, a.den, b.den))
    return select(condition, a, b)  # type: ignore[arg-type]


def _ints_only(function: Callable[[Any, Any], Expr]) -> Callable[[Element, Element, Facts], Element | None]:
    return lambda a, b, facts: None if isinstance(a, SizeRatio) or isinstance(b, SizeRatio) else function(a, b)


_ELEMENTWISE: dict[str, Callable[..., Element | None]] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Neg": _negative,
    "Floor": _floor,
    "Ceil": _ceil,
    "Equal": _compare(equal),
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "And": lambda a, b, facts: logical_and(a, b),
    "Or": lambda a, b, facts: logical_or(a, b),
    "Not": lambda a, facts: logical_not(a),
    "Where": _select,
    "Abs": lambda a, facts: None if isinstance(a, SizeRatio) else maximum(a, 0 - a),
    "Identity": lambda a, facts: a,
}
for _name, _function in _ELEMENTWISE.items():
    RULES[_name] = _elementwise(_function)


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


RULES["Max"] = _fold(_ints_only(maximum))
RULES["Min"] = _fold(_ints_only(minimum))
RULES["Sum"] = _fold(_add)


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
            return whole if isinstance(whole, SizeRatio) else SizeRatio(whole)
        result = _truncate(whole, facts) if isinstance(whole, SizeRatio) else whole
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
    if shape is None or fill is None or any(n < 0 for n in shape) or np.prod(shape, dtype=object) > MAX_ELEMENTS:
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
    index: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = _python_slice(start, end, step, data.shape[axis])
    return [data[tuple(index)]]


def _python_slice(start: int, end: int, step: int, size: int) -> slice:
    """ONNX's slice bounds are clamped to the axis; a negative step that ends below 0 runs to the first element."""
    if step < 0:
        start = min(start + size if start < 0 else start, size - 1)
        end = end + size if end < 0 else end
        return slice(start, None if end < 0 else end, step) if start >= 0 else slice(0, 0)
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
    return [data.reshape(rows, -1 if data.size else 0)]


@rule("Transpose")
def _transpose(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known = _known(operands)
    return None if known is None else [np.transpose(known[0], node.attr("perm"))]


@rule("Expand")
def _expand(node: NodeAttributes, operands: Sequence[ShapeOperand | None], facts: Facts) -> list[Elements] | None:
    known, shape = _known(operands, 1), _ints(operands[1])
    if known is None or shape is None or np.prod(shape, dtype=object) > MAX_ELEMENTS:
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
    if min(shape, default=1) == 0:  # numpy repeats axis by axis, whatever becomes of the result
        return [np.empty(shape, object)]
    return [np.tile(known[0], repeats)] if np.prod(shape, dtype=object) <= MAX_ELEMENTS else None


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


RULES["ReduceProd"] = _reduction(_mul, 1)
RULES["ReduceSum"] = _reduction(_add, 0)
RULES["ReduceMax"] = _reduction(_ints_only(maximum), 0)
RULES["ReduceMin"] = _reduction(_ints_only(minimum), 0)
