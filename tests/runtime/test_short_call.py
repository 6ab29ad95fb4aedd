"""The short way into a program: who takes it, and that whatever does not fit it ends as it does on the long way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tc
from tc.errors import TcError
from tc.ir.parser import parse_module
from tc.runtime import program
from tc.runtime.module import CompiledModule

STATIC = """
@graph
def main(x: f32[3, 4], y: i64[4]):
    a: f32[4] = cast(y, dtype=f32)
    z: f32[3, 4] = add(x, a)
    s: f32[3] = sum(z, axes=(1,), keepdims=False)
    return z, s
"""
SYMBOLIC = STATIC.replace("f32[3", "f32[n")
def made(text: str) -> CompiledModule:
    return tc.compile(parse_module(text))


@pytest.fixture(scope="module", params=[STATIC, SYMBOLIC], ids=["static", "symbolic"])
def module(request: pytest.FixtureRequest) -> CompiledModule:
    return made(request.param)


@pytest.fixture(scope="module")
def long_way(module: CompiledModule) -> CompiledModule:
    """The same program without the short way."""
    other = made(SYMBOLIC if module.dims else STATIC)
    other._enter = None
    return other


def counted(module: CompiledModule, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with every call that takes the long way."""
    long_calls: list[None] = []
    execute = module._execute

    def counting(*given: Any) -> Any:
        long_calls.append(None)
        return execute(*given)

    monkeypatch.setattr(module, "_execute", counting)
    return long_calls


def operands(rows: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(-9, 9, (rows, 4)).astype(np.float32), rng.integers(-9, 9, 4)


def check(found: Any, x: np.ndarray, y: np.ndarray) -> None:
    np.testing.assert_array_equal(found[0], x + y)
    np.testing.assert_array_equal(found[1], (x + y).sum(1))


def test_calls_of_the_same_sizes_take_it(module: CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    module(*operands())
    long_calls = counted(module, monkeypatch)
    held = []
    for seed in range(6):
        x, y = operands(seed=seed)
        held.append((module(x, y), x, y))
        out = [np.empty((3, 4), np.float32), np.empty(3, np.float32)]
        assert module(x, y, out=out)[0] is out[0]
        held += [(out, x, y), (tuple(module.run({"x": x, "y": y}).values()), x, y)]

    assert long_calls == []
    for found, x, y in held:
        check(found, x, y)


def test_calls_of_other_sizes_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made(SYMBOLIC)
    long_calls = counted(module, monkeypatch)
    for rows in (3, 3, 0, 0, 5, 1, 1, 3):
        x, y = operands(rows, seed=rows)
        check(module(x, y), x, y)
        out = (np.empty((rows, 4), np.float32), np.empty(rows, np.float32))
        check(module(x, y, out=out), x, y)

    assert len(long_calls) == 5


def test_sizes_that_data_decide_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[6] x) => (int64[1, n] places, float[6] r) {
        places = NonZero(x)
        r = Relu(x)
    }"""
    module = tc.compile(onnx.parser.parse_model(text))
    module(np.ones(6, np.float32))
    long_calls = counted(module, monkeypatch)
    for seed in range(20):
        x = np.random.default_rng(seed).integers(-1, 2, 6).astype(np.float32) * (seed % 5 > 0)
        places, r = module(x)
        np.testing.assert_array_equal(places, np.nonzero(x))
        np.testing.assert_array_equal(r, np.maximum(x, 0))

    assert long_calls == []


def outcome(module: CompiledModule, args: tuple[Any, ...], out: Any) -> Any:
    """What a call gives: bytes and types of the results, or the words of the error."""
    try:
        return [(type(r), r.dtype, r.shape, r.tobytes()) for r in module(*args, out=out)]
    except TcError as error:
        return str(error)


class Sub(np.ndarray):
    pass


def input_variants(rng: np.random.Generator) -> list[Any]:
    x = rng.integers(-9, 9, (3, 4)).astype(np.float32)
    unaligned = np.zeros(49, np.uint8)[1:].view(np.float32).reshape(3, 4)
    unaligned[...] = x
    variants: list[Any] = [x, x.copy(), x.astype(">f4"), x.astype(np.float64), x[:2], x.T, np.asfortranarray(x), x.reshape(12), x[None]]
    variants += [np.repeat(x, 2, 0)[::2], x.view(Sub), np.ma.masked_array(x), unaligned, x.tolist(), 1.0, None, np.float32(1)]
    variants += [x.astype(np.dtype(np.float32, metadata={"a": 1})), x.view(np.int32), {"x": x}, {}]
    return variants


def output_variants(rng: np.random.Generator) -> list[Any]:
    z, s = np.empty((3, 4), np.float32), np.empty(3, np.float32)
    frozen = s.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(13, np.uint8)[1:].view(np.float32)
    variants: list[Any] = [None, None, None, (z, s), [z, s], (z,), z, (z, s, s), (s, z), (z, frozen), (z, unaligned), (z, s.view(Sub))]
    variants += [(z, z[0, :3]), (z[::-1], s), (z.T, s), (z, s.astype(np.float64)), (z, None), (), [], (z, s.tolist())]
    return variants


@pytest.mark.parametrize("seed", range(150))
def test_calls_end_as_on_the_long_way(module: CompiledModule, long_way: CompiledModule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, outs = input_variants(rng), output_variants(rng)
    x = inputs[0] if rng.random() < 0.3 else inputs[rng.integers(len(inputs))]
    y: Any = [np.arange(4), np.arange(4), np.arange(4)[::-1], np.arange(4, dtype=np.int32), np.arange(8)[::2]][rng.integers(5)]
    args = [(x, y), (x, y), (x, y), (x,), (x, y, y), ({"x": x, "y": y},), ({"x": x},), ()][rng.integers(8)]
    if rng.random() < 0.3:
        module(*operands(seed=seed)), long_way(*operands(seed=seed))  # the sizes of the call before

    out = outs[rng.integers(len(outs))]
    found = outcome(module, args, out)
    written = [np.array(each) for each in out] if isinstance(out, (list, tuple)) and isinstance(found, list) else []

    assert found == outcome(long_way, args, out)
    assert [each.tobytes() for each in written] == [bytes_ for *_, bytes_ in found[: len(written)]]


def test_threads_have_calls_of_their_own(module: CompiledModule) -> None:
    def run(seed: int) -> None:
        for k in range(300):
            x, y = operands(seed=seed + k)
            check(module(x, y), x, y)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(0, 4000, 1000)))


def test_no_inputs_and_scalars() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g () => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }'
    nothing = tc.compile(onnx.parser.parse_model(text))
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float x, float[0, 3] e) => (float y, float[0, 3] f) {
        y = Add(x, x)
        f = Relu(e)
    }"""
    scalar = tc.compile(onnx.parser.parse_model(text))
    for _ in range(3):
        np.testing.assert_array_equal(nothing(), [1, 2])
        y, f = scalar(np.array(4, np.float32), np.empty((0, 3), np.float32))
        assert (y.shape, float(y), f.shape) == ((), 8.0, (0, 3))


def test_there_is_none_where_objects_look_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "find_types", lambda ports, found: None)
    module = made(STATIC)

    assert module._enter is None
    check(module(*operands()), *operands())
