"""Kernels that do the same to each pixel see an image as one row of them.

Tiles of pixels then run on where rows of the image end without schedules that let them: nothing is divided by the width to find a pixel,
and no digits are carried from one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tc.ir.arith import Facts, equal_shapes, simplify
from tc.ir.expr import Const, Expr, const, is_const
from tc.ir.graph import (
    Atom,
    Binding,
    Call,
    CallFunction,
    Function,
    GlobalRef,
    TensorConst,
    TensorVar,
    atoms_read,
    map_bodies,
)
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType, product
from tc.ops.build import full_attrs
from tc.ops.window import is_pointwise, window_of
from tc.passes.graph.elementwise import Pattern, computes_elements
from tc.passes.lower import is_primitive
from tc.passes.manager import graph_pass

FIRST = 2
"""The first axis of an image, behind that of the batch and that of (blocks of) channels."""


@graph_pass
def merge_image_axes(module: IRModule) -> IRModule:
    """Let primitive functions around a convolution without a window, which leaves out no pixel, have one axis for those of the image.

        y = f(x) = relu(conv_blocked(x[n, c, h, w, b], k[o, c, 1, 1, b, b]))
            =>      y = reshape(f(reshape(x))),   f(x) = relu(conv_blocked(x[n, c, h * w, b], k[o, c, 1, b, b]))

    What else is in them must compute elements of those at their places. The reshapes are views of memory; there is none between two such
    functions. For modules whose operators are fused.
    """
    merged: dict[str, Function] = {}
    for func in module.graph_functions:
        other = _merged(func) if is_primitive(func) else None
        if other is not None:
            merged[func.name] = other
    if not merged:
        return module
    functions = [merged.get(func.name, func) for func in module.functions]
    calling = [_calling(func, merged) if isinstance(func, Function) and not is_primitive(func) else func for func in functions]
    return IRModule(tuple(calling), module.entry)


def _merged(func: Function) -> Function | None:
    """A primitive function with one axis for those of its images; None where it does more than the same to each pixel."""
    convs = [binding for binding in func.bindings if isinstance(binding.value, Call) and binding.value.op == "conv_blocked"]
    if len(convs) != 1:
        return None
    conv, image = convs[0].value, _type(convs[0].targets[0]).shape[FIRST:-1]
    assert isinstance(conv, Call)
    kernel = _type(conv.args[1]).shape[FIRST : FIRST + len(image)]  # type: ignore[arg-type]
    attrs = full_attrs(conv)
    if attrs.depthwise or len(image) < 2 or not is_pointwise(window_of(attrs, kernel, len(image), "conv_blocked")):
        return None
    merging = _Merging(image, Facts.of(func.facts))
    bindings: list[Binding] = []
    for binding in func.bindings:
        made = merging.conv(binding) if binding is convs[0] else merging.elementwise(binding)
        if made is None:
            return None
        bindings.append(made)
    if not merging.merged.keys() >= {*func.params, *func.results}:
        return None
    params, results = ([merging.merged[atom] for atom in atoms] for atoms in (func.params, func.results))
    return replace(func, params=tuple(params), bindings=tuple(bindings), results=tuple(results))


class _Merging:
    """The values of a primitive function over images of one shape, and in `merged` those with one axis for it."""

    def __init__(self, image: tuple[Expr, ...], facts: Facts) -> None:
        self.image = image
        self.facts = facts
        self.merged: dict[Atom, Atom] = {}

    def conv(self, binding: Binding) -> Binding | None:
        """The convolution over rows of pixels; None where its input is not of this image."""
        call = binding.value
        assert isinstance(call, Call)
        _, weights, *bias = call.args
        assert weights is not None
        shape = _type(weights).shape
        self.merged[weights] = _of_shape(weights, (*shape[: FIRST + 1], *shape[FIRST + len(self.image) :]))
        self.merged.update({atom: atom for atom in bias if atom is not None})
        once = {name: value[:1] for name, value in call.attrs if name in ("strides", "dilations")}  # type: ignore[index]
        return self._made(binding, {**dict(call.attrs), **once, "pads": (0, 0)})

    def elementwise(self, binding: Binding) -> Binding | None:
        """A call of any other operator; None where it does more than to compute elements of those at their places."""
        if not isinstance(binding.value, Call) or len(binding.targets) != 1:
            return None
        made = self._made(binding, dict(binding.value.attrs))
        return made if made is not None and _is_elementwise(binding) and _is_elementwise(made) else None

    def _made(self, binding: Binding, attrs: Mapping[str, Any]) -> Binding | None:
        call = binding.value
        assert isinstance(call, Call)
        for atom in (*call.args, *binding.targets):
            if atom is not None and atom not in self.merged:
                shape = self._rows(_type(atom).shape)
                if shape is None:
                    return None
                self.merged[atom] = _of_shape(atom, shape)
        targets, args = tuple([self.merged[target] for target in binding.targets]), [arg and self.merged[arg] for arg in call.args]
        return replace(binding, targets=targets, value=replace(call, args=tuple(args), attrs=tuple(attrs.items())))

    def _rows(self, shape: tuple[Expr, ...]) -> tuple[Expr, ...] | None:
        """The shape of a tensor with one axis for those of the image, or for its one pixel; of numbers, which have none, it is the same."""
        if len(shape) < FIRST or (len(shape) <= len(self.image) and all(is_const(dim, 1) for dim in shape)):
            return shape
        last = FIRST + len(self.image)
        own = shape[FIRST:last]
        if equal_shapes(own, self.image, self.facts):
            return (*shape[:FIRST], simplify(product(own), self.facts), *shape[last:])
        is_one_pixel = len(own) == len(self.image) and all(is_const(dim, 1) for dim in own)
        return (*shape[:FIRST], const(1), *shape[last:]) if is_one_pixel else None


def _is_elementwise(binding: Binding) -> bool:
    """Whether an operator computes each element of those at its place."""
    call, result = binding.value, _type(binding.targets[0])
    assert isinstance(call, Call)
    operands = [None if arg is None else _pattern(_type(arg), result) for arg in call.args]
    return computes_elements(call, tuple(operands), result.dtype, result.rank)


def _pattern(operand: TensorType, result: TensorType) -> Pattern:
    if operand.rank != result.rank:
        return operand.dtype, tuple([int(dim.value) if isinstance(dim, Const) else None for dim in operand.shape])
    pairs = zip(operand.shape, result.shape, strict=True)
    return operand.dtype, tuple([1 if is_const(own, 1) and not is_const(dim, 1) else None for own, dim in pairs])


def _calling(func: Function, merged: Mapping[str, Function]) -> Function:
    """A function that calls the merged functions in the place of those of their names."""
    rows: dict[tuple[Atom, int], TensorVar] = {}  # by their rank
    unused: dict[Atom, Binding] = {}  # what makes results as they were, until somebody reads them
    bindings: list[Binding] = []

    def reshaped(atom: Atom, target: TensorVar) -> Binding:
        return Binding((target,), Call("reshape", (atom,), (("shape", _type(target).shape),), span=atom.span), span=atom.span)

    def as_it_was(atom: Atom) -> Atom:
        if atom in unused:
            bindings.append(unused.pop(atom))
        return atom

    def as_rows(atom: Atom, param: TensorVar) -> Atom:
        type_ = _type(param)
        if type_.rank == _type(atom).rank:
            return as_it_was(atom)
        if isinstance(atom, TensorConst):
            return _of_shape(atom, type_.shape)
        if (atom, type_.rank) not in rows:
            row = rows[atom, type_.rank] = TensorVar(atom.name, type_, span=atom.span)
            bindings.append(reshaped(as_it_was(atom), row))
        return rows[atom, type_.rank]

    for binding in func.bindings:
        call = binding.value
        name = call.callee.name if isinstance(call, CallFunction) and isinstance(call.callee, GlobalRef) else ""
        if name not in merged:
            for atom in atoms_read(call):
                as_it_was(atom)
            bindings.append(replace(binding, value=map_bodies(call, lambda body: _calling(body, merged))))
            continue
        assert isinstance(call, CallFunction)
        callee = merged[name]
        args = tuple([as_rows(*pair) for pair in zip(call.args, callee.params, strict=True)])
        pairs = list(zip(binding.targets, callee.results, strict=True))
        targets = tuple([TensorVar(target.name, result.type, span=target.span) for target, result in pairs])
        bindings.append(replace(binding, targets=targets, value=replace(call, callee=GlobalRef(name, callee.type), args=args)))
        for target, row in zip(binding.targets, targets, strict=True):
            rows[target, _type(row).rank] = row
            unused[target] = reshaped(row, target)
    for result in func.results:
        as_it_was(result)
    return replace(func, bindings=tuple(bindings))


def _of_shape(atom: Atom, shape: tuple[Expr, ...]) -> Atom:
    """The same tensor under another shape: a literal, or another variable in its place."""
    if len(shape) == _type(atom).rank:
        return atom
    if isinstance(atom, TensorConst):
        return TensorConst(atom.value.reshape([int(dim.value) for dim in shape if isinstance(dim, Const)]), atom.name, span=atom.span)
    assert isinstance(atom, TensorVar)
    return TensorVar(atom.name, TensorType(shape, _type(atom).dtype), span=atom.span)


def _type(atom: Atom) -> TensorType:
    assert isinstance(atom.type, TensorType)
    return atom.type
