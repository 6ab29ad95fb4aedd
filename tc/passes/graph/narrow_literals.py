"""Which literals stay as narrow as they are in the model: those that are made wider for matrix products alone.

The kernel of the product widens a tile at a time, so that memory holds, and is asked for, a half or a quarter of the bytes.
"""

from __future__ import annotations

from math import prod

from tc.ir.expr import Const
from tc.ir.graph import Atom, Binding, Call, Function, TensorConst, atoms_read
from tc.ir.types import TensorType
from tc.ops.build import full_attrs, operand_types
from tc.ops.registry import get_op, is_scoped
from tc.passes.graph.fusion_kind import infer_loop_shape

LEAST_KEPT_BYTES = 64 << 10
"""A literal that becomes no larger than this when it is widened may as well be wide."""

Uses = dict[Atom, list[tuple[Binding | None, int]]]
"""The bindings that read each value, and as which operand; None stands for the caller."""


def uses_of(func: Function) -> Uses:
    """Who reads what in a function."""
    found: Uses = {}
    for binding in func.bindings:
        value = binding.value
        for place, atom in enumerate(value.args if isinstance(value, Call) else atoms_read(value)):
            found.setdefault(atom, []).append((binding, place))  # type: ignore[arg-type]  # nobody asks for what is absent
    for atom in func.results:
        found.setdefault(atom, []).append((None, 0))
    return found


def widens_operand(binding: Binding, uses: Uses) -> bool:
    """Whether a binding makes a large literal wider, element by element, for contractions that can do so themselves."""
    call = binding.value
    if len(binding.targets) != 1 or not isinstance(call, Call) or not call.args:
        return False  # reading dims out of data has no targets
    (target,) = binding.targets
    if not isinstance(target.type, TensorType):
        return False
    literal = call.args[0]
    sizes: list[int] = [int(dim.value) for dim in target.type.shape if isinstance(dim, Const)]
    if not isinstance(literal, TensorConst) or len(sizes) != target.type.rank:
        return False
    count = prod(sizes)
    is_wider = target.type.dtype.size_bytes * count > max(LEAST_KEPT_BYTES, literal.value.nbytes)
    return is_wider and count == literal.value.size and get_op(call.op).compute is not None and _is_operand(target, uses)


def _is_operand(target: Atom, uses: Uses) -> bool:
    return all(user is not None and _takes_in(user, place, uses) for user, place in uses.get(target, [(None, 0)]))


def _takes_in(binding: Binding, place: int, uses: Uses) -> bool:
    """Whether a binding is a contraction that can make this operand itself, or transposes it for one (`simplify_graph` has the literal
    transposed instead). Operators that run on blocks of channels want their literals in blocks, or transformed: those are folded."""
    call = binding.value
    op = get_op(call.op) if isinstance(call, Call) else None
    if op is None or op.compute is None or not isinstance(call, Call):
        return False
    if call.op == "transpose":
        return all(_is_operand(target, uses) for target in binding.targets)
    if op.blocked is not None and not is_scoped(op.name):  # those of users only do where they are elementwise
        return False
    results = [target.type for target in binding.targets]
    shape = infer_loop_shape(op, operand_types(call), full_attrs(call), results)  # type: ignore[arg-type]
    return place < len(shape.reuses) and shape.reuses[place] is not None
