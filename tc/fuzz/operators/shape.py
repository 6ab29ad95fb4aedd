"""Operators that move data or speak of shapes, most of them with shapes known at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from tc.fuzz.builder import F32, F64, FLOATS, I16, I32, I64, Builder, Held, Rejected
from tc.fuzz.operators.row import Row, unary


def factors(b: Builder, size: int, rank: int) -> list[int]:
    """A shape of `size` elements."""
    dims = [1] * rank
    n = size
    for p in (2, 3, 5, 7, 11, 13, 17, 19):
        while n > 1 and n % p == 0 and rank:
            dims[b.integer(0, rank - 1)] *= p
            n //= p
    if n > 1:
        if not rank:
            raise Rejected("no scalar")
        dims[b.integer(0, rank - 1)] *= n
    return dims


def reshape(b: Builder) -> None:
    x = b.pick(b.types("Reshape"))
    attrs: dict[str, Any] = {}
    if x.array.size == 0:
        dims = [int(d) for d in b.rng.permutation(x.shape)]
        if any(n == 0 for n in dims) and b.since(14):
            attrs = {"allowzero": 1}
        else:
            raise Rejected("0 would copy a dim")
    else:
        dims = factors(b, x.array.size, b.integer(0 if x.array.size == 1 else 1, 5))
        if dims and b.chance(0.4):
            dims[b.integer(0, len(dims) - 1)] = -1
        for k, n in enumerate(dims):
            if k < x.rank and n == x.shape[k] and b.chance(0.4):
                dims[k] = 0
    b.emit("Reshape", [x, b.parameter(dims)], **attrs)


def expand(b: Builder) -> None:
    x = b.pick(b.types("Expand"))
    dims = [b.dim() if n == 1 and b.chance(0.7) else (1 if b.chance(0.2) else n) for n in x.shape]
    if b.chance(0.3):
        dims = [b.dim(), *dims]
    elif dims and b.chance(0.2):
        dims = dims[1:]
    b.emit("Expand", [x, b.parameter(dims)])


def with_axes(b: Builder, op: str, x: Held, axes: list[int] | None, since: int, **attrs: Any) -> list[Held]:
    """`axes` as the operator takes them in this opset."""
    if axes is None:
        return b.emit(op, [x], **attrs)
    if b.since(since):
        return b.emit(op, [x, b.parameter(axes, p_runtime=0.03 * b.style.p_runtime)], **attrs)
    if not b.since(11):
        axes = [a % 8 if a >= 0 else a for a in axes]
        if any(a < 0 for a in axes):
            raise Rejected("no negative axes yet")
    return b.emit(op, [x], axes=axes, **attrs)


def squeeze(b: Builder) -> None:
    x = b.pick(b.types("Squeeze"), where=lambda h: 1 in h.shape)
    ones = [k for k, n in enumerate(x.shape) if n == 1]
    axes = [
        int(k) - (x.rank if b.since(11) and b.chance(0.3) else 0)
        for k in b.rng.permutation(ones)[: b.integer(1, len(ones))]
    ]
    with_axes(b, "Squeeze", x, None if b.chance(0.15) else axes, 13)


def unsqueeze(b: Builder) -> None:
    x = b.pick(b.types("Unsqueeze"), ranks=(0, 4))
    count = b.integer(1, 2)
    rank = x.rank + count
    axes = [int(k) - (rank if b.since(11) and b.chance(0.3) else 0) for k in b.rng.permutation(rank)[:count]]
    with_axes(b, "Unsqueeze", x, axes, 13)


def transpose(b: Builder) -> None:
    x = b.pick(b.types("Transpose"))
    b.emit(
        "Transpose", [x], **({"perm": [int(k) for k in b.rng.permutation(x.rank)]} if x.rank and b.chance(0.8) else {})
    )


def flatten(b: Builder) -> None:
    x = b.pick(b.types("Flatten"))
    axis = b.integer(-x.rank if b.since(11) else 0, x.rank)
    b.emit("Flatten", [x], **({"axis": axis} if x.rank == 0 or b.chance(0.8) else {}) if x.rank else {"axis": 0})


def concat(b: Builder) -> None:
    x = b.pick(b.types("Concat"), ranks=(1, 5))
    axis = b.axis(x.rank, negative=b.since(11))
    inputs = [x]
    for _ in range(b.integer(0, 3)):
        known = [
            h
            for h in b.pool
            if h.dtype == x.dtype
            and h.rank == x.rank
            and all(h.shape[k] == x.shape[k] for k in range(x.rank) if k != axis % x.rank)
        ]
        if known and b.chance(0.7):
            inputs.append(b.choose(known))
        else:
            shape = list(x.shape)
            shape[axis] = b.dim()
            inputs.append(b.data(x.dtype, shape))
    b.emit("Concat", [inputs[k] for k in b.rng.permutation(len(inputs))], axis=axis)


def split(b: Builder) -> None:
    x = b.pick(b.types("Split"), ranks=(1, 5))
    axis = b.axis(x.rank, negative=b.since(11))
    size, count = x.shape[axis], b.integer(1, 4)
    cuts = sorted(b.integer(0, size) for _ in range(count - 1))
    sizes = [int(n) for n in np.diff([0, *cuts, size])]
    attrs: dict[str, Any] = {} if axis == 0 and b.chance(0.5) else {"axis": axis}
    if b.since(18) and b.chance(0.4):
        if size == 0 or -(-size // count) * (count - 1) >= size:
            count = 1
        b.emit("Split", [x], count, num_outputs=count, **attrs)
    elif size % count == 0 and b.chance(0.4) and not b.since(18):
        b.emit("Split", [x], count, **attrs)
    elif b.since(13):
        b.emit("Split", [x, b.parameter(sizes)], count, **attrs)
    else:
        b.emit("Split", [x], count, split=sizes, **attrs)


def slice_(b: Builder) -> None:
    x = b.pick(b.types("Slice"), ranks=(1, 5))
    axes = b.axes(x.rank, 1)
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        step = b.choose((1, 1, 1, 2, 3, -1, -1, -2)) if b.since(10) else 1
        ends_wild = (2**31 - 1, 2**63 - 1, 2**62, n + 5) if step > 0 else (-(2**31), -(2**63) + 1, -n - 1, -n - 7)
        lo, hi = b.integer(-n - 1, n + 1), b.integer(-n - 1, n + 1)
        starts.append(lo)
        ends.append(b.choose(ends_wild) if b.chance(0.3) else hi)
        steps.append(step)
    if not b.since(10):
        if any(a < 0 for a in axes):
            raise Rejected("no negative axes yet")
        b.emit("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    dtype = b.choose((I64, I64, I32))
    if dtype == I32:
        starts, ends = ([max(min(v, 2**31 - 1), -(2**31)) for v in vs] for vs in (starts, ends))
    tail: list[Held | None] = [
        b.parameter(axes, dtype),
        b.parameter(steps, dtype) if steps != [1] * len(steps) or b.chance(0.5) else None,
    ]
    b.emit("Slice", [x, b.parameter(starts, dtype), b.parameter(ends, dtype), *tail])


def tile(b: Builder) -> None:
    x = b.pick(b.types("Tile"), ranks=(1, 4), where=lambda h: h.array.size < 800 * b.style.scale)
    b.emit(
        "Tile",
        [x, b.parameter([b.choose((0, 1, 1, 2, 3) if b.chance(b.style.p_zero) else (1, 1, 2, 3)) for _ in x.shape])],
    )


def pad(b: Builder) -> None:
    x = b.pick(b.types("Pad"), ranks=(1, 4))
    mode = b.choose(("constant", "constant", "reflect", "edge", *(("wrap",) if b.since(19) else ())))
    axes = b.axes(x.rank, 1) if b.since(18) and b.chance(0.4) else list(range(x.rank))
    sizes = [x.shape[a] for a in axes]
    most = [min(3, n - 1 if mode == "reflect" else n if mode in ("wrap", "edge") else 3) for n in sizes]
    begins, ends = (
        [b.integer(-1 if mode == "constant" and n > 2 and b.chance(0.2) else 0, max(m, 0)) for m, n in zip(most, sizes)]
        for _ in "ab"
    )
    attrs: dict[str, Any] = {} if mode == "constant" and b.chance(0.5) else {"mode": mode}
    if not b.since(11):
        b.emit(
            "Pad",
            [x],
            pads=begins + ends,
            **attrs,
            **({"value": b.integer(-4, 4) / 2} if mode == "constant" and b.chance(0.5) else {}),
        )
        return
    value = b.parameter(b.numbers(x.dtype, ()), x.dtype) if mode == "constant" and b.chance(0.5) else None
    given = b.parameter(axes) if len(axes) < x.rank or (b.since(18) and b.chance(0.1)) else None
    b.emit("Pad", [x, b.parameter(begins + ends), value, given], **attrs)


def depth_to_space(b: Builder) -> None:
    block = b.choose((1, 2, 3))
    shape = (b.choose((1, 2)), block * block * b.choose((1, 2, 3)), b.choose((1, 2, 3, 5)), b.choose((1, 2, 4)))
    x = b.reshaped(b.types("DepthToSpace"), shape)
    b.emit(
        "DepthToSpace",
        [x],
        blocksize=block,
        **({"mode": b.choose(("DCR", "CRD"))} if b.since(11) and b.chance(0.6) else {}),
    )


def space_to_depth(b: Builder) -> None:
    block = b.choose((1, 2, 3))
    shape = (b.choose((1, 2)), b.choose((1, 2, 3)), block * b.choose((1, 2, 3)), block * b.choose((1, 2, 4)))
    b.emit("SpaceToDepth", [b.reshaped(b.types("SpaceToDepth"), shape)], blocksize=block)


def shape(b: Builder) -> None:
    x = b.pick(b.types("Shape"))
    attrs = {}
    if b.since(15) and b.chance(0.5):
        attrs = {k: b.integer(-x.rank - 1, x.rank + 1) for k in ("start", "end") if b.chance(0.6)}
    b.emit("Shape", [x], **attrs)


def constant_of_shape(b: Builder) -> None:
    dims = b.shape(most=300)
    attrs = {}
    if b.chance(0.7):
        attrs = {"value": helper.make_tensor("value", *_one_number(b, b.dtype(b.types("ConstantOfShape", "T2"))))}
    b.emit("ConstantOfShape", [b.parameter(dims)], **attrs)


def _one_number(b: Builder, dtype: np.dtype) -> tuple[int, list[int], np.ndarray]:
    return helper.np_dtype_to_tensor_dtype(dtype), [1], b.numbers(dtype, (1,))


def range_(b: Builder) -> None:
    dtype = b.choose((I64, I64, I32, F32, F64, I16))
    step = b.choose((1, 1, 2, 3, -1, -2))
    start, count = b.integer(-4, 4), b.integer(0 if b.chance(0.3) else 1, 12)
    limit = start + step * count - (b.integer(0, abs(step) - 1) * (1 if step > 0 else -1) if count else 0)
    if dtype == I64 and b.chance(0.5):
        size = b.from_shapes(np.array([b.choose([n for h in b.pool[-8:] for n in h.shape])], I64))
        scalar = b.emit(
            "Squeeze",
            [size] if not b.since(13) else [size, b.constant(np.array([0], I64))],
            **({} if b.since(13) else {"axes": [0]}),
        )[0]
        b.emit("Range", [b.parameter(0), scalar, b.parameter(1)])
        return
    b.emit("Range", [b.parameter(v, dtype) for v in (start, limit, step)])


def eye_like(b: Builder) -> None:
    x = b.pick(b.types("EyeLike", "T1"), rank=2)
    attrs: dict[str, Any] = {"k": b.integer(-3, 3)} if b.chance(0.6) else {}
    if b.chance(0.5):
        attrs["dtype"] = helper.np_dtype_to_tensor_dtype(b.choose((F32, I64, F64, I32)))
    b.emit("EyeLike", [x], **attrs)


def trilu(b: Builder) -> None:
    x = b.pick(b.types("Trilu"), ranks=(2, 4))
    k = b.parameter(b.integer(-4, 4)) if b.chance(0.7) else None
    b.emit("Trilu", [x, k], **({"upper": b.integer(0, 1)} if b.chance(0.7) else {}))


def center_crop_pad(b: Builder) -> None:
    x = b.pick(b.types("CenterCropPad"), ranks=(1, 4))
    axes = b.axes(x.rank, 1)
    dims = [max(1, x.shape[a] + b.integer(-3, 3)) for a in axes]
    b.emit("CenterCropPad", [x, b.parameter(dims, b.choose((I64, I32)))], axes=axes)


def reverse_sequence(b: Builder) -> None:
    x = b.pick(b.types("ReverseSequence"), ranks=(2, 4), where=lambda h: 0 not in h.shape)
    batch = b.integer(0, 1)
    lengths = [b.integer(1, x.shape[1 - batch]) for _ in range(x.shape[batch])]
    b.emit("ReverseSequence", [x, b.parameter(lengths, kind="index")], batch_axis=batch, time_axis=1 - batch)


def dropout(b: Builder) -> None:
    x = b.pick(b.types("Dropout"))
    if b.since(12):
        b.emit("Dropout", [x, b.constant(np.array(0.5, F32)) if b.chance(0.5) else None])
    else:
        b.emit("Dropout", [x], **({"ratio": 0.3} if b.chance(0.5) else {}))


def constant(b: Builder) -> None:
    kind = b.choose(("value", "value_float", "value_int", "value_floats", "value_ints") if b.since(12) else ("value",))
    numbers = [b.integer(-3, 3) for _ in range(b.integer(1, 5))]
    match kind:
        case "value":
            b.constant(b.numbers(b.dtype(), b.shape()))
        case "value_float":
            b.emit("Constant", [], value_float=float(numbers[0]))
        case "value_int":
            b.emit("Constant", [], value_int=numbers[0])
        case "value_floats":
            b.emit("Constant", [], value_floats=[n / 2 for n in numbers])
        case _:
            b.emit("Constant", [], value_ints=numbers)


def identity_by_shape(b: Builder) -> None:
    """`x[:1] + z`: a dim that turns out to be 1 broadcasts."""
    x = b.pick(FLOATS[:1], ranks=(1, 3), where=lambda h: 0 not in h.shape)
    axis = b.integer(0, x.rank - 1)
    if b.since(10):
        one = b.emit("Slice", [x, b.parameter([0]), b.parameter([1]), b.constant(np.array([axis], I64))])[0]
    else:
        one = b.emit("Slice", [x], starts=[0], ends=[1], axes=[axis])[0]
    pair = [one, b.partner(one)]
    b.emit(b.choose(("Add", "Mul", "Sub")), pair if b.chance(0.5) else pair[::-1])


ROWS = (
    Row("Reshape", reshape, weight=3.0),
    Row("Expand", expand, since=8, weight=2.0),
    Row("Squeeze", squeeze, weight=1.5),
    Row("Unsqueeze", unsqueeze, weight=1.5),
    Row("Transpose", transpose, weight=2.0),
    Row("Flatten", flatten),
    Row("Concat", concat, weight=2.0),
    Row("Split", split, weight=1.5),
    Row("Slice", slice_, weight=3.0),
    Row("Slice", identity_by_shape),
    Row("Tile", tile, weight=1.5),
    Row("Pad", pad, weight=1.5),
    Row("DepthToSpace", depth_to_space),
    Row("SpaceToDepth", space_to_depth),
    Row("Shape", shape),
    unary("Size", weight=0.5),
    Row("ConstantOfShape", constant_of_shape, since=9),
    Row("Range", range_, since=11),
    Row("EyeLike", eye_like, since=9),
    Row("Trilu", trilu, since=14),
    Row("CenterCropPad", center_crop_pad, since=18),
    Row("ReverseSequence", reverse_sequence, since=10),
    Row("Dropout", dropout, weight=0.5),
    Row("Constant", constant, weight=0.5),
)
