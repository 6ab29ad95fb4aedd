"""Random numbers by a counter: each element is a function of its place, of a stream and of a key, whoever computes it.

So results do not depend on threads, nor on how loops are scheduled, and are the same again for the same key.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), Philox4x32-10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tc import te
from tc.errors import ShapeError
from tc.ir.dtype import u32, u64
from tc.ir.expr import Expr, call, cast, const
from tc.ir.graph import Attrs
from tc.ir.types import TensorType
from tc.ops.common import Arrays, Tensors, Types, exprs, ints, operand
from tc.ops.registry import REQUIRED, OpDef, register
from tc.te import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What the halves of the key grow by from round to round."""

MOST = 2**32 - 1


def _infer(types: Types, attrs: Attrs) -> TensorType:
    key = operand(types, 0, "random_bits")
    if key.rank or key.dtype is not u64:
        raise ShapeError(f"random_bits: the key is {key}, must be a scalar of u64")
    if attrs.word not in range(4):
        raise ShapeError(f"random_bits: word is {attrs.word}, must be 0 to 3")
    return TensorType(exprs(attrs.shape), u32)


def philox(counter: Sequence[Any], key: Sequence[Any], high: Any, xor: Any, low: Any) -> list[Any]:
    """The four words of a counter of four, for a key of two; words are numbers of 64 bits below 2^32, in what `high`, `low` and `xor`
    compute with: the upper and lower half of a product with a literal, and bits that differ."""
    words, own = list(counter), list(key)
    for round_ in range(ROUNDS):
        if round_:
            own = [low(part, None, grows) for part, grows in zip(own, WEYL, strict=True)]
        a, b, c, d = words
        words = [
            *(xor(xor(high(c, MULTIPLIERS[1]), b), own[0]), low(c, MULTIPLIERS[1], 0)),
            *(xor(xor(high(a, MULTIPLIERS[0]), d), own[1]), low(a, MULTIPLIERS[0], 0)),
        ]
    return words


def _compute(tensors: Tensors, attrs: Attrs, types: Sequence[TensorType]) -> Tensor:
    (key,) = tensors
    assert key is not None
    shape = types[0].shape
    mask, half = const(MOST, u64), const(32, u64)

    def high(word: Expr, by: int) -> Expr:
        return call("shift_right", word * const(by, u64), half)

    def low(word: Expr, by: int | None, plus: int) -> Expr:
        return call("bit_and", word + const(plus, u64) if by is None else word * const(by, u64), mask)

    def xor(a: Expr, b: Expr) -> Expr:
        return call("bit_xor", a, b)

    def body(*axes: Expr) -> Expr:
        place: Expr = const(0)
        for axis, dim in zip(axes, shape, strict=True):
            place = place * dim + axis
        index, own = cast(place, u64), key[()]
        counter = [call("bit_and", index, mask), call("shift_right", index, half), const(attrs.stream & MOST, u64), const(0, u64)]
        words = philox(counter, [call("bit_and", own, mask), call("shift_right", own, half)], high, xor, low)
        return cast(words[attrs.word], u32)

    return te.compute(shape, body, "random_bits")


def random_bits(key: int, shape: tuple[int, ...], stream: int, word: int) -> np.ndarray:
    """u32[shape], as the operator gives them."""
    mask, half = np.uint64(MOST), np.uint64(32)
    index = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64)
    counter = [index & mask, index >> half, np.full_like(index, stream & MOST), np.zeros_like(index)]
    parts = [np.full_like(index, key & MOST), np.full_like(index, key >> 32)]
    words = philox(
        counter,
        parts,
        lambda x, by: (x * np.uint64(by)) >> half,
        lambda a, b: a ^ b,
        lambda x, by, plus: (x + np.uint64(plus) if by is None else x * np.uint64(by)) & mask,
    )
    return np.asarray(words[word].astype(np.uint32).reshape(shape))


def _run(arrays: Arrays, attrs: Attrs) -> np.ndarray:
    (key,) = arrays
    assert key is not None
    return random_bits(int(key), ints(attrs.shape), attrs.stream, attrs.word)


def _samples(rng: np.random.Generator) -> Iterator[tuple[list[np.ndarray | None], dict[str, Any]]]:
    for word in range(4):
        key = rng.integers(0, 2**64, dtype=np.uint64)
        yield [np.asarray(key)], {"shape": (3, 5), "stream": word * 1000003, "word": word}
    yield [np.asarray(np.uint64(7))], {"shape": (0, 3), "stream": 1, "word": 0}
    yield [np.asarray(np.uint64(2**64 - 1))], {"shape": (), "stream": 2**32 - 1, "word": 1}


register(
    OpDef("random_bits", _infer, _run, _compute, {"shape": REQUIRED, "stream": REQUIRED, "word": 0}, samples=_samples)
)
