"""Sizes of operands that must fit each other, for operators that are defined by other operators.

The definitions broadcast, gather and reshape as they go: operands that do not fit end in numbers, or in an error about a part that the
user never wrote. What must hold is stated here, before any part is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tc.errors import NodeError, ShapeError
from tc.frontend.onnx.node_context import NodeContext
from tc.frontend.onnx.values import ModelValue
from tc.ir.expr import Expr, const, equal
from tc.ir.types import product
from tc.ops.common import require_broadcasts_to, require_equal
from tc.ops.registry import require


def _require_shape(value: ModelValue | None, wanted: Sequence[Expr], what: str) -> None:
    """State that an operand has this shape; an absent one has any."""
    if value is None:
        return
    if len(value.shape) != len(wanted):
        raise ShapeError(f"{what} is {value.type}, but must have {len(wanted)} dims")
    for axis, (dim, want) in enumerate(zip(value.shape, wanted, strict=True)):
        require_equal(dim, want, f"dim {axis} of {what}")


def _require_rank(value: ModelValue, ranks: Sequence[int], what: str) -> None:
    if len(value.shape) not in ranks:
        raise ShapeError(f"{what} is {value.type}, but must have {' or '.join(map(str, ranks))} dims")


def _heads(n: NodeContext, name: str) -> int:
    heads = n.attr(name, 0)
    if heads <= 0:
        raise NodeError(f"{n.op_type}: the attribute {name} is {heads}, but operands of 3 dims need one of at least 1")
    return int(heads)


def require_divides(count: Expr | int, dim: Expr, what: str) -> None:
    require(equal(dim % count, 0), f"{what} is {dim}, but must be a multiple of {count}")


def _loss(n: NodeContext) -> None:
    """Scores [batch, classes, *places], a target [batch, *places] and a weight [classes]."""
    scores = n.value(0)
    if len(scores.shape) < 2:
        raise ShapeError(f"{n.op_type}: the input is {scores.type}, but must have at least 2 dims")
    _require_shape(n.value(1), (scores.shape[0], *scores.shape[2:]), f"{n.op_type}: the target")
    _require_shape(n.optional(2), (scores.shape[1],), f"{n.op_type}: the weight")


def _rotary(n: NodeContext) -> None:
    """X [batch, heads, length, size] or [batch, length, heads * size]; caches [positions, half] or [batch, length, half]."""
    x, positions = n.value(0), n.optional(3)
    _require_rank(x, (3, 4), f"{n.op_type}: the input")
    heads = _heads(n, "num_heads") if len(x.shape) == 3 else 1
    length = x.shape[-2]
    rotated = n.attr("rotary_embedding_dim", 0)
    require_divides(heads, x.shape[-1], f"{n.op_type}: the last dim of {x.type}")
    size: Expr = x.shape[-1] // heads
    require_divides(2, const(rotated) if rotated else size, f"{n.op_type}: what is rotated of a head")
    require(size >= rotated, f"{n.op_type}: the size of a head is {size}, of which {rotated} are to be rotated")
    half = const(rotated // 2) if rotated else size // 2
    first = n.value(1)
    _require_rank(first, (3,) if positions is None else (2,), f"{n.op_type}: the cache of cosines")
    rows = (x.shape[0], length) if positions is None else (first.shape[0],)
    _require_shape(first, (*rows, half), f"{n.op_type}: the cache of cosines")
    _require_shape(n.value(2), (*rows, half), f"{n.op_type}: the cache of sines")
    _require_shape(positions, (x.shape[0], length), f"{n.op_type}: the positions")


def _attention(n: NodeContext) -> None:
    """Q [batch, heads, length, size], K and V [batch, kv heads, keys, size], their past, a mask; or with the heads in the last dim."""
    q, k, v = n.value(0), n.value(1), n.value(2)
    _require_rank(q, (3, 4), f"{n.op_type}: Q")
    for name, value in (("K", k), ("V", v)):
        _require_rank(value, (len(q.shape),), f"{n.op_type}: {name}")
    batch, length, keys = q.shape[0], q.shape[-2], k.shape[-2]
    if len(q.shape) == 4:
        heads, kv_heads = q.shape[1], k.shape[1]
        size, width = q.shape[3], v.shape[3]
        require_divides(kv_heads, heads, f"{n.op_type}: the number of heads of Q")
        _require_shape(k, (batch, kv_heads, keys, size), f"{n.op_type}: K")
        _require_shape(v, (batch, kv_heads, keys, width), f"{n.op_type}: V")
    else:
        heads, kv_heads = (const(_heads(n, name)) for name in ("q_num_heads", "kv_num_heads"))
        require_divides(kv_heads, heads, f"{n.op_type}: the number of heads of Q")
        require_divides(heads, q.shape[2], f"{n.op_type}: the last dim of Q")
        require_divides(kv_heads, v.shape[2], f"{n.op_type}: the last dim of V")
        size, width = q.shape[2] // heads, v.shape[2] // kv_heads
        _require_shape(k, (batch, keys, size * kv_heads), f"{n.op_type}: K")
        _require_shape(v, (batch, keys, v.shape[2]), f"{n.op_type}: V")
    past = n.optional(4)
    total = keys
    if past is not None:
        _require_rank(past, (4,), f"{n.op_type}: the past of K")
        _require_shape(past, (batch, kv_heads, past.shape[2], size), f"{n.op_type}: the past of K")
        _require_shape(n.optional(5), (batch, kv_heads, past.shape[2], width), f"{n.op_type}: the past of V")
        total = past.shape[2] + keys
    mask = n.optional(3)
    if mask is not None:
        _require_rank(mask, (1, 2, 3, 4), f"{n.op_type}: the mask")
        require_broadcasts_to(mask.shape[:-1], (batch, heads, length), f"{n.op_type}: the mask")
        require(mask.shape[-1] <= total, f"{n.op_type}: the mask has {mask.shape[-1]} columns for {total} keys")
    _require_shape(n.optional(6), (batch,), f"{n.op_type}: the numbers of keys")


OPERAND_SIZES: dict[str, Callable[[NodeContext], None]] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
    "NegativeLogLikelihoodLoss": _loss,
    "SoftmaxCrossEntropyLoss": _loss,
}


SINGLE_NUMBERS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("Trilu", "TopK", "OneHot", "CumSum"), (1,)),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow"), (0,)),
    "DFT": (1, 2),
    "STFT": (1, 3),
    "Loop": (0, 1),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
}
"""Inputs that are one number, by operator: a scalar, or a vector of one element."""


def check_sizes(n: NodeContext) -> None:
    """State what the sizes of the node's operands must be to each other. ShapeError for those that cannot fit."""
    if n.domain:
        return
    rule, single = OPERAND_SIZES.get(n.op_type), SINGLE_NUMBERS.get(n.op_type, ())
    numbers = [(k, value) for k in single if k < len(n.inputs) and isinstance(value := n.inputs[k], ModelValue)]
    if rule is not None:
        n.graph.state(lambda: rule(n), n.span)
    if numbers:
        n.graph.state(lambda: _require_one_each(n, numbers), n.span)


def _require_one_each(n: NodeContext, numbers: Sequence[tuple[int, ModelValue]]) -> None:
    for k, value in numbers:
        require(equal(product(value.shape), 1), f"{n.op_type}: input {k} is {value.type}, but must be one number")
