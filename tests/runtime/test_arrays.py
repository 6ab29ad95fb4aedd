"""Arrays of callers: `out` that lies upon something, other byte orders, other libraries."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import tc
from tc.errors import InputError
from tc.ir.parser import parse_module
from tc.runtime.arrays import overlapping
from tc.runtime.module import CompiledModule

TEXT = """
@graph
def main(x: f32[N, 16], y: f32[N, 16]):
    a: f32[N, 16] = softmax(x, axis=1)
    s: f32[N, 16] = add(a, y)
    d: f32[N, 16] = sub(x, y)
    return s, d
"""


def compiled(rows: str, text: str = TEXT) -> CompiledModule:
    return tc.compile(parse_module(text.replace("[N,", f"[{rows},")), threads=1)


@pytest.fixture(scope="module", params=["8", "n"])
def module(request: pytest.FixtureRequest) -> CompiledModule:
    return compiled(request.param)


def place(room: np.ndarray, start: int) -> np.ndarray:
    return room[start : start + 128].reshape(8, 16)


def test_out_that_lies_upon_inputs_gives_right_results(module: CompiledModule) -> None:
    """Broke: rows that had been written were read as inputs, and nothing was said."""
    values = np.random.default_rng(1).standard_normal(800).astype(np.float32)
    starts = [0, 1, 16, 64, 127, 128, 200]

    for x, y, s, d in itertools.product(starts, [0, 20, 300], starts, [400, 0, 130]):
        if abs(s - d) < 128:
            continue
        room = values.copy()
        expected = [np.array(r) for r in module(place(values, x), place(values, y))]
        for _ in range(2):  # the second time, that the first found these places well must not be all
            room[:] = values
            found = module(place(room, x), place(room, y), out=[place(room, s), place(room, d)])
            for mine, right, start in zip(found, expected, (s, d), strict=True):
                np.testing.assert_array_equal(mine, right)
                np.testing.assert_array_equal(place(room, start), right)


def test_calls_with_and_without_out_in_any_order_write_where_they_should(module: CompiledModule) -> None:
    rng = np.random.default_rng(2)
    x, y, z = (rng.standard_normal((8, 16)).astype(np.float32) for _ in range(3))
    expected = [np.array(r) for r in module(x, y)]
    buffers = [np.zeros((8, 16), np.float32) for _ in range(2)]

    for turn in range(6):
        for buffer in buffers:
            buffer[...] = -1
        module(x, y, out=buffers)
        np.testing.assert_array_equal(buffers, expected)
        if turn % 2:
            module.run({"x": z, "y": x})
        else:
            module({"x": z, "y": x}, out=[np.empty_like(x), np.empty_like(x)])
        np.testing.assert_array_equal(buffers, expected)


def test_the_same_addresses_with_other_sizes_are_looked_at_again() -> None:
    """What follows from the sizes of a call is kept for the next one: sizes that grow into a result, or that are refused, are not."""
    module = compiled("n")
    values = np.random.default_rng(2).standard_normal((40, 16)).astype(np.float32)

    for rows in (4, 12, 4, 0, 12, 12):
        room = values.copy()
        x, y = room[:rows], room[16 : 16 + rows]
        expected = [np.array(r) for r in module(x.copy(), y.copy())]
        with pytest.raises(InputError):
            module(x, room[: rows + 1])
        for found, right in zip(module(x, y), expected, strict=True):
            np.testing.assert_array_equal(found, right)
        module(x, y, out=[room[8 : 8 + rows], room[28 : 28 + rows]])
        for found, right in zip((room[8 : 8 + rows], room[28 : 28 + rows]), expected, strict=True):
            np.testing.assert_array_equal(found, right)


def test_outs_upon_each_other_are_refused_by_name(module: CompiledModule) -> None:
    room, x = np.zeros(400, np.float32), np.zeros((8, 16), np.float32)

    for start in (0, 1, 127):
        with pytest.raises(InputError, match='"s" and "d" overlap'):
            module(x, x, out=[place(room, start), place(room, 0)])
    module(x, x, out=[place(room, 128), place(room, 0)])


def test_an_out_that_cannot_be_written_is_refused_by_name(module: CompiledModule) -> None:
    x = np.zeros((8, 16), np.float32)
    fixed = x.copy()
    fixed.flags.writeable = False

    for bad, words in [
        (fixed, "read-only"),
        (np.zeros((8, 32), np.float32)[:, ::2], "strides"),
        (np.zeros((16, 8), np.float32).T, "strides"),
        (x.astype(">f4"), "byte order"),
        (x.astype(np.float64), "f64.*must be f32"),
        ([[0.0]], "is a list"),
    ]:
        with pytest.raises(InputError, match=f'"d".*{words}'):
            module(x, x, out=[np.empty_like(x), bad])


def test_inputs_may_lie_upon_each_other(module: CompiledModule) -> None:
    room = np.random.default_rng(3).standard_normal(300).astype(np.float32)

    for start in (0, 1, 50):
        found = module(place(room, 0), place(room, start))
        expected = module(place(room, 0).copy(), place(room, start).copy())
        np.testing.assert_array_equal(found, expected)


def test_overlaps_are_those_that_pairs_have() -> None:
    rng = np.random.default_rng(4)
    room = np.zeros(200, np.int8)
    for _ in range(3000):
        arrays = [room[a : a + n] for a, n in zip(rng.integers(0, 150, 6), rng.integers(0, 20, 6), strict=True)]
        inputs, results = arrays[:3], arrays[3:]
        pairs = [(i, j) for i, j in itertools.combinations(range(3), 2) if np.shares_memory(results[i], results[j])]

        over_input, pair = overlapping(inputs, results)

        assert (pair is not None) == bool(pairs) and (pair is None or pair in pairs)
        if not pairs:
            assert over_input == {k for k in range(3) if any(np.shares_memory(results[k], x) for x in inputs)}


def test_arrays_of_the_other_byte_order_are_converted(module: CompiledModule) -> None:
    """Broke: "dtype is f32, but must be f32"."""
    x = np.random.default_rng(5).standard_normal((8, 16)).astype(np.float32)

    found = module(x.astype(">f4"), x)

    np.testing.assert_array_equal(found, module(x, x))
    with pytest.raises(InputError, match='input "y": dtype is f64, but must be f32'):
        module(x, x.astype(">f8"))


def test_masked_elements_are_not_taken_for_numbers(module: CompiledModule) -> None:
    x = np.zeros((8, 16), np.float32)

    with pytest.raises(InputError, match='"y" has masked elements'):
        module(x, np.ma.masked_equal(x, 0))
    with pytest.raises(InputError, match="is a masked array"):
        module(x, x, out=[np.ma.masked_equal(x.copy(), 0), x.copy()])


def test_torch_tensors_serve_as_out(module: CompiledModule) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(6).standard_normal((8, 16)).astype(np.float32)
    expected = [np.array(r) for r in module(x, x)]
    out = [torch.zeros(8, 16), np.zeros((8, 16), np.float32)]

    found = module(torch.from_numpy(x), x, out=out)

    assert found[0] is out[0] and found[1] is out[1]
    np.testing.assert_array_equal(out, expected)
    same = torch.from_numpy(x.copy())
    module(same, x, out=[same, out[1]])
    np.testing.assert_array_equal(same, expected[0])
    for bad, words in [(torch.zeros(16, 8).T, "strides"), (torch.zeros(8, 16, dtype=torch.float64), "f64"),
                       (torch.zeros(8, 16, requires_grad=True), "DLPack")]:  # fmt: skip
        with pytest.raises(InputError, match=f'"s".*{words}'):
            module(x, x, out=[bad, out[1]])


@pytest.mark.parametrize("rows", ["8", "n"])
def test_bfloat16_tensors_go_in_and_come_out(rows: str) -> None:
    """Broke: numpy knows no bfloat16 and refused them."""
    torch = pytest.importorskip("torch")
    text = "@graph\ndef main(x: bf16[N, 16]):\n    y: bf16[N, 16] = neg(x)\n    return y\n"
    module = compiled(rows, text)
    x = torch.randn(8, 16).to(torch.bfloat16)

    for given in (x, torch.cat([x, x], 1)[:, ::2], x[::2].repeat(2, 1)):
        result = module(given)
        assert result.dtype == torch.bfloat16 and torch.equal(result, -given)

    out = torch.zeros(8, 16, dtype=torch.bfloat16)
    assert module(x, out=out) is out and torch.equal(out, -x)
    bits = np.zeros((8, 16), ml_dtypes.bfloat16)
    module(x, out=bits)
    assert np.array_equal(bits.view(np.int16), (-x).view(torch.int16).numpy())
    held = [module(x + k) for k in range(20)]
    assert all(torch.equal(each, -(x + k)) for k, each in enumerate(held))
    with pytest.raises(InputError, match="dtype is bfloat16"):
        compiled("8")(x, x)


# Broke: the native target took bytes by their lowest bit, and target c by all.
@pytest.mark.parametrize("target", ["native", "c"])
def test_every_byte_but_0_is_true(target: str) -> None:
    text = "@graph\ndef main(x: bool[n]):\n    y: bool[n] = logical_not(x)\n    z: i32[n] = cast(x, dtype=i32)\n    return y, z\n"
    bits = np.concatenate([np.arange(256, dtype=np.uint8)] * 2)[: 256 + 37]

    inverse, numbers = tc.compile(parse_module(text), target=target, threads=1)(bits.view(bool))

    np.testing.assert_array_equal(inverse.view(np.uint8), bits == 0)
    np.testing.assert_array_equal(numbers, bits != 0)


def test_numbers_of_torch_that_stand_for_their_negatives(module: CompiledModule) -> None:
    torch = pytest.importorskip("torch")
    plain = torch.randn(8, 16)
    negated = torch._neg_view(-plain)
    assert negated.is_neg() and torch.equal(negated, plain)

    for got, want in zip(module(negated, plain), module(plain, plain), strict=True):
        assert torch.equal(got, want)

    with pytest.raises(InputError, match="with their signs turned"):
        module(plain, plain, out=[torch._neg_view(torch.zeros(8, 16)), torch.zeros(8, 16)])
