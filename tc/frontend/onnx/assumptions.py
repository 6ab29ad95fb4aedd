"""What a program may take for granted of dims that the model leaves open.

Dims that may be broadcast against each other are mostly equal, and sizes that are divided are mostly those of images large enough for
the convolutions before. A program made under such assumptions is faster, and found by passes that look for equal shapes. It states
them as assumed requirements: where one fails, another program runs, which was made without.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tc.errors import Span
from tc.ir.arith import Facts, prove
from tc.ir.expr import Const, Expr, Var, equal, is_const
from tc.ir.graph import Atom, AttrValue, Call, tensor_type_of
from tc.ir.node import walk
from tc.ir.types import TensorType
from tc.ops.build import GraphBuilder
from tc.ops.common import broadcast_dim
from tc.ops.registry import Requirement, get_op

_MOST_ASSUMED = 256
_USUAL = 1 << 12


class Policy(Protocol):
    """Whether anything may be assumed, and whether anything was."""

    assume_equal: bool
    assumes: bool


def aligned_operands(
    b: GraphBuilder,
    policy: Policy,
    op: str,
    atoms: Sequence[Atom | None],
    attrs: Mapping[str, AttrValue],
    span: Span | None,
) -> list[Atom | None]:
    """The operands of `op`, with one expression for dims that broadcast with each other and are known, or assumed, to be equal."""
    record = get_op(op)
    if record.aligned is None:
        return list(atoms)
    types = [None if atom is None else tensor_type_of(atom) for atom in atoms]
    keys = record.aligned(types, record.attrs(dict(attrs)))
    groups: dict[object, dict[Expr, str]] = {}
    for k, (type_, own) in enumerate(zip(types, keys, strict=True)):
        if type_ is None or own is None:
            continue
        for axis, (key, dim) in enumerate(zip(own, type_.shape, strict=True)):
            if key is not None and not is_const(dim, 1):
                groups.setdefault(key, {}).setdefault(dim, f"dim {axis} of operand {k}")
    wide = {key: _common_dim(b, policy, dims, op, span) for key, dims in groups.items() if len(dims) > 1}
    if all(dim is None for dim in wide.values()):
        return list(atoms)
    return [
        atom if atom is None or own is None else _match_dims(b, atom, [wide.get(key) for key in own], span)
        for atom, own in zip(atoms, keys, strict=True)
    ]


def _common_dim(b: GraphBuilder, policy: Policy, dims: Mapping[Expr, str], op: str, span: Span | None) -> Expr | None:
    """The one expression for dims that are equal, or that are assumed to be; None where they need not be. Of each dim is said
    where it is."""
    first, *others = dims
    plain = Facts.of(b.facts)
    if all(prove(equal(first, dim), plain) is True for dim in others):
        return None  # as every pass will find
    for dim in others:
        if prove(equal(first, dim), b.known) is True:
            continue
        if not policy.assume_equal or not _may_be_equal(first, dim, b.known):
            return None
        b.state(partial(broadcast_dim, first, dim, op, dims[dim]), span)
        place = "" if span is None else f"{span}: "
        text = f"{place}{op}: this program is for operands whose dims {first} and {dim} are equal"
        b.require(Requirement(equal(first, dim), text, assumed=True))
        policy.assumes = True
    known = next((dim for dim in dims if isinstance(dim, Const)), None)
    return b.simplest(first) if known is None else known


def _may_be_equal(x: Expr, y: Expr, facts: Facts) -> bool:
    """Whether two dims may be equal, and are not such that one of them is there to be broadcast."""
    if prove(equal(x, y), facts) is False:
        return False
    return prove(x <= 1, facts) is not True and prove(y <= 1, facts) is not True


def _match_dims(b: GraphBuilder, atom: Atom, wanted: Sequence[Expr | None], span: Span | None) -> Atom:
    """`atom` with the wanted dims in place of its own, which are equal, where it has any but 1."""
    type_ = tensor_type_of(atom)
    shape = tuple(dim if want is None or is_const(dim, 1) else want for dim, want in zip(type_.shape, wanted, strict=True))
    if all(x is y for x, y in zip(shape, type_.shape, strict=True)):
        return atom
    call = Call("match_shape", (atom,), (("shape", shape),), span=span)
    return b.bind(call, [TensorType(shape, type_.dtype)], ["same"], span)[0]


def is_usual(condition: Expr, facts: Facts) -> bool:
    """Whether a condition holds for dims of up to `_USUAL`, if it does for any that the model may have."""
    for var in dict.fromkeys(node for node in walk(condition) if isinstance(node, Var)):
        facts = facts.with_bounds(var, 0, _USUAL, 1)
    return prove(condition, facts) is True


def assume_large_enough(
    b: GraphBuilder, policy: Policy, size: Expr, holds: Callable[[Facts], bool], span: Span | None
) -> None:
    """Make the program for dims of inputs, of those in `size`, that are so large that something holds, if any number does."""
    given = b.given_facts()
    dims = [given[v] for v in dict.fromkeys(walk(size)) if isinstance(v, Var) and v in given]

    def with_least(least: int) -> Facts:
        facts = b.known
        for fact in dims:
            facts = facts.with_bounds(fact.var, max(fact.lo, least), fact.hi, fact.multiple_of)
        return facts

    if not policy.assume_equal or not dims or not holds(with_least(_MOST_ASSUMED)):
        return
    least = 1 + bisect_left(range(1, _MOST_ASSUMED), True, key=lambda n: holds(with_least(n)))
    for fact in dims:
        if fact.lo < least <= (least if fact.hi is None else fact.hi):
            text = f"{span or 'the model'}: this program is for dims {fact.var} of {least} at least"
            b.assume_at_least(fact.var, least, text)
            policy.assumes = True
