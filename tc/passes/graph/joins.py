"""Concatenations without a kernel: where the operands lie one after the other in the result, they are made in their places there.

Then what layers add to a growing tensor one by one, as in densely connected networks, is never copied. An operand that cannot be
made in its place (an input of the model, a constant, one that is part of another concatenation) is copied there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tc.cost.typical import typical
from tc.ir.arith import EMPTY, Facts, polynomial
from tc.ir.expr import Expr, const
from tc.ir.graph import Atom, Binding, Call, CallTir, Function, TensorConst, TensorVar, atoms_of
from tc.ir.types import TensorType
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op
from tc.passes.graph.assign_storage import ALIGNMENT

LEAST_SHARE = 0.5
"""The part of the operands that must be made in place: kernels copy with all threads, plans with one."""

MOST_JOINED = 64
"""Operands that one kernel concatenates: each is copied by code of its own."""


@dataclass(frozen=True)
class JoinPart:
    """Where a value is made: `offset` bytes into the variable `whole`."""

    whole: TensorVar
    offset: Expr


def is_join(value: object) -> bool:
    """Whether the result of an operation is its operands, one after the other in memory."""
    if not isinstance(value, Call):
        return False
    rule = get_op(value.op).joins
    if rule is None:
        return False
    types = operand_types(value)
    if any(isinstance(type_, TensorType) and type_.dtype.per_byte > 1 for type_ in types):
        return False  # an operand may begin within a byte
    return rule(types, full_attrs(value))


def part_offset(value: object) -> Expr | None:
    """Where in the memory of its first operand an operation's result begins, in bytes; None when it is not there."""
    if not isinstance(value, Call):
        return None
    rule = get_op(value.op).part
    types = operand_types(value)
    place = None if rule is None else rule(types, full_attrs(value))
    if place is None or types[0].dtype.per_byte > 1:  # type: ignore[union-attr]
        return None
    offset = place * types[0].dtype.size_bytes  # type: ignore[union-attr]
    return offset if is_aligned(offset) else None


def pays(binding: Binding, made: Mapping[TensorVar, Binding], facts: Facts = EMPTY) -> bool:
    """Whether enough of what a join takes can be made in its place; `made`: the bindings of the function it is in (`made_here`)."""
    sizes: dict[Atom, int] = {
        operand: _typical_bytes(operand.type, facts) for operand, _ in operands_of(binding) if isinstance(operand.type, TensorType)
    }
    placed = [operand for operand, _ in operands_of(binding) if _root(operand, made) is not None]
    return bool(sum(sizes[operand] for operand in placed) >= LEAST_SHARE * max(1, sum(sizes.values())))


def parts_of(func: Function) -> Mapping[TensorVar, JoinPart]:
    """The values that are made as parts of others, by the joins among a function's bindings; later joins first."""
    made = made_here(func)
    found: dict[TensorVar, JoinPart] = {}
    for binding in reversed(func.bindings):
        if is_join(binding.value):
            for operand, offset in operands_of(binding):
                root = _root(operand, made)
                if root is not None and root not in found and is_aligned(offset):
                    found[root] = JoinPart(binding.targets[0], offset)
    return found


def appended(body: Function) -> dict[TensorVar, int]:
    """The joins in a loop's body that put something behind a carried value of a changing size, which is then its next value: they are made
    in its block. By the numbers of the carried values."""
    made = made_here(body)
    found: dict[TensorVar, int] = {}
    for number, (param, result) in enumerate(zip(body.params[1:], body.results[1:], strict=False)):
        if not isinstance(result, TensorVar) or result not in made or body.results.count(result) > 1:
            continue
        value = made[result].value
        if isinstance(value, Call) and is_join(value) and value.args[0] is param:
            found[result] = number
    return found


def operands_of(binding: Binding) -> Iterator[tuple[Atom, Expr]]:
    """The operands of a join with their offsets in bytes."""
    offset: Expr = const(0)
    for operand in atoms_of(binding.value):
        yield operand, offset
        assert isinstance(operand.type, TensorType)
        offset = offset + operand.type.size_bytes


def is_aligned(offset: Expr) -> bool:
    """Whether a number of bytes is a multiple of ALIGNMENT for all dims."""
    known = polynomial(offset)
    return all(count % ALIGNMENT == 0 for count in (*known.terms.values(), known.constant))


def _typical_bytes(type_: TensorType, facts: Facts) -> int:
    return type_.dtype.size_bytes * math.prod(typical(dim, facts) for dim in type_.shape)


def _root(operand: Atom, made: Mapping[TensorVar, Binding]) -> TensorVar | None:
    """The variable whose memory an operand is, if a kernel or a join makes it."""
    root = view_root(operand, made) if isinstance(operand, TensorVar) else None
    if root is None:
        return None
    value = made[root].value
    if part_offset(value) is not None:
        return None
    by_kernel = isinstance(value, CallTir) or (isinstance(value, Call) and get_op(value.op).compute is not None)
    return root if by_kernel or is_join(value) else None


def made_here(func: Function) -> dict[TensorVar, Binding]:
    """The bindings of a function by the variables they define."""
    return {target: binding for binding in func.bindings for target in binding.targets}


def view_root(var: TensorVar, made: Mapping[TensorVar, Binding]) -> TensorVar | None:
    """The variable whose memory `var` is, through views; None when that is not made by an operation of this function."""
    while True:
        binding = made.get(var)
        if binding is None:
            return None
        value = binding.value
        if isinstance(value, Call) and get_op(value.op).view:
            source = atoms_of(value)[0]
        elif isinstance(value, (TensorVar, TensorConst)):
            source = value
        else:
            return var
        if not isinstance(source, TensorVar):
            return None
        var = source
