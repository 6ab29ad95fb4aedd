"""Splits of channels: what is joined again was never split, and a part is a slice, which has a layout and a place of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tc.ir.expr import Const, Expr, const
from tc.ir.graph import Atom, Binding, Call, Function, TensorVar, map_bodies
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import TensorType
from tc.ops.build import full_attrs
from tc.passes.manager import graph_pass, map_graph_functions

CHANNELS = 1
"""The axis of channels."""


@graph_pass
def simplify_splits(module: IRModule, *, block: int = 16) -> IRModule:
    """Join sources instead of all their parts, and slice where tensors [n, c, *space] are cut between blocks of `block` channels."""
    return map_graph_functions(module, lambda func: _simplified(func, block))


def _simplified(func: Function, block: int) -> Function:
    bindings: list[Binding] = []
    splits: dict[TensorVar, Binding] = {}
    for binding in func.bindings:
        binding = replace(binding, value=map_bodies(binding.value, lambda body: _simplified(body, block)))
        value = binding.value
        if isinstance(value, Call) and value.op == "split":
            splits.update(dict.fromkeys(binding.targets, binding))
            bindings.extend(_as_slices(binding, value, block) or [binding])
        elif isinstance(value, Call) and value.op == "concat":
            bindings.append(replace(binding, value=_with_sources(value, splits)))
        else:
            bindings.append(binding)
    changed = len(bindings) != len(func.bindings) or any(a is not b for a, b in zip(bindings, func.bindings, strict=True))
    return replace(func, bindings=tuple(bindings)) if changed else func


def _with_sources(concat: Call, splits: Mapping[TensorVar, Binding]) -> Call:
    """Operands that are all parts of something in order replaced by it; the same call where there are none, or nothing else."""
    operands: list[Atom | None] = []
    rest = list(concat.args)
    while rest:
        split = splits.get(rest[0]) if isinstance(rest[0], TensorVar) else None
        count = len(split.targets) if split is not None else 0
        if split is not None and tuple(rest[:count]) == split.targets and _axis(split.value) == _axis(concat):
            assert isinstance(split.value, Call)
            operands.append(split.value.args[0])
            del rest[:count]
        else:
            operands.append(rest.pop(0))
    return concat if len(operands) in (1, len(concat.args)) else replace(concat, args=tuple(operands))


def _axis(value: object) -> int:
    assert isinstance(value, Call) and value.args[0] is not None and isinstance(value.args[0].type, TensorType)
    return int(full_attrs(value).axis) % value.args[0].type.rank


def _as_slices(binding: Binding, split: Call, block: int) -> Sequence[Binding]:
    """A slice for each part; none where a cut is inside of a block."""
    source = split.args[0]
    assert source is not None and isinstance(source.type, TensorType)
    types = [target.type for target in binding.targets]
    if _axis(split) != CHANNELS or source.type.rank < 3 or source.type.dtype.bits != 32:
        return ()
    sizes = [type_.shape[CHANNELS] for type_ in types if isinstance(type_, TensorType)]
    if any(not isinstance(size, Const) or int(size.value) % block for size in sizes[:-1]):
        return ()
    return [part_as_slice(binding, target) for target in binding.targets]


def part_as_slice(split: Binding, part: TensorVar) -> Binding:
    """One of the results of a split as a slice."""
    call = split.value
    assert isinstance(call, Call) and isinstance(part.type, TensorType)
    source, axis = call.args[0], _axis(call)
    start: Expr = const(0)
    for target in split.targets[: split.targets.index(part)]:
        assert isinstance(target.type, TensorType)
        start = start + target.type.shape[axis]
    starts = tuple(start if d == axis else const(0) for d in range(part.type.rank))
    attrs = (("starts", starts), ("sizes", part.type.shape), ("steps", (1,) * part.type.rank))
    return Binding((part,), Call("slice", (source,), attrs, span=call.span), span=split.span)
