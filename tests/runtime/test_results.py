"""Results of calls: whoever holds one keeps it, and its memory serves again when nobody does."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

import tc
from tc.ir.parser import parse_module
from tc.runtime.memory import data_address
from tc.runtime.module import CompiledModule
from tc.runtime.results import CALLS_REMEMBERED, KEPT_BYTES, LEAST_LENT_BYTES, ResultPool
from tests.runtime.forking import failures, in_child

ROWS = LEAST_LENT_BYTES // 1024 + 1


def add_one(rows: int | str = ROWS) -> CompiledModule:
    text = f"@graph\ndef main(x: f32[{rows}, 256], y: f32[{rows}, 256]):\n    z: f32[{rows}, 256] = add(x, y)\n    return z\n"
    return tc.compile(parse_module(text), threads=1)


def filled(value: float, rows: int = ROWS) -> np.ndarray:
    return np.full((rows, 256), value, np.float32)


ONE = filled(1)


def as_torch(result: np.ndarray) -> object:
    return pytest.importorskip("torch").from_dlpack(result)


HOLDERS: dict[str, Callable[[np.ndarray], object]] = {
    "array": lambda r: r,
    "slice": lambda r: r[3:5, ::7],
    "transposed and reshaped": lambda r: r.T[5:].reshape(-1)[:9] if r.T[5:].flags.c_contiguous else r.T[5:],
    "subclass": lambda r: r[2:].view(np.matrix),
    "memoryview": lambda r: memoryview(r)[1:2],
    "base": lambda r: np.frombuffer(r.base, np.float32)[:100],
    "flat": lambda r: r.flat,
    "torch": as_torch,
    "torch of a view": lambda r: as_torch(r[4:])[1:],  # type: ignore[index]
    "numpy through DLPack": lambda r: np.from_dlpack(r)[2:],
}


def numbers(held: object) -> np.ndarray:
    return np.asarray(held).reshape(-1)


@pytest.mark.parametrize("dims", [ROWS, "n"])
def test_a_thousand_results_that_are_held_in_many_ways_stay_what_they_are(dims: int | str) -> None:
    pytest.importorskip("torch")
    module, held = add_one(dims), []
    ways = list(HOLDERS.values())

    for k in range(1000):
        held.append((k, ways[k % len(ways)](module(filled(k), ONE))))
        if k % 3 == 0:
            held[k // 2] = (held[k // 2][0], None)  # some go, so that their memory comes back

    gc.collect()
    for _ in range(20):
        module(filled(-5), ONE)
    checked = [np.all(numbers(each) == k + 1) for k, each in held if each is not None]
    assert len(checked) >= 600 and all(checked)


@pytest.mark.parametrize("way", list(HOLDERS))
def test_a_block_returns_only_when_its_last_owner_is_gone(way: str) -> None:
    module = add_one()
    place = data_address(first := module(filled(1), ONE))
    held = HOLDERS[way](first)
    del first

    others = [data_address(module(filled(2), ONE)) for _ in range(3)]
    assert place not in others and np.all(numbers(held) == 2)

    module.trim()
    del held
    gc.collect()
    assert module._results.idle_bytes() == 0  # it was lent before the trim


def test_results_of_calls_in_turn_lie_in_the_same_two_blocks() -> None:
    """Broke: every large result cost a page fault for each of its pages."""
    module, places = add_one(), set()

    for k in range(50):
        result = module(filled(k), ONE)
        places.add(data_address(result))

    assert len(places) == 2 and result.base is not None


def test_results_that_are_held_by_threes_lie_in_the_same_blocks() -> None:
    """Broke: all but one were new, with a page fault for each of their pages."""
    module, places = add_one(), []

    for k in range(3 * CALLS_REMEMBERED):
        some = [module(filled(k), ONE) for k in range(3)]
        places.append({data_address(result) for result in some})
        del some

    assert len(set.union(*places)) == 3


def test_what_is_kept_is_what_the_last_calls_needed() -> None:
    module = add_one()
    for count in (100, KEPT_BYTES // ONE.nbytes + 50):
        many = [module(filled(k), ONE) for k in range(count)]
        del many
        assert module._results.idle_bytes() <= min(count * ONE.nbytes * 9 // 8, KEPT_BYTES)

        for _ in range(2 * CALLS_REMEMBERED):
            module(ONE, ONE)
        assert module._results.idle_bytes() <= ONE.nbytes * 9 // 8
    module.trim()
    assert module._results.idle_bytes() == 0 and not module._idle and not module._frames
    assert np.array_equal(module(ONE, ONE), filled(2))


def test_blocks_of_a_size_that_calls_no_longer_need_are_given_back() -> None:
    module = add_one("n")
    large = filled(1, ROWS * 50)
    module(large, large)
    assert module._results.idle_bytes() >= large.nbytes

    for _ in range(2 * CALLS_REMEMBERED):
        module(ONE, ONE)

    assert ONE.nbytes <= module._results.idle_bytes() <= ONE.nbytes * 9 // 8


def test_growing_results_meet_few_sizes() -> None:
    module, places = add_one("n"), set()

    for rows in range(ROWS, ROWS + 200):
        result = module(filled(1, rows), filled(2, rows))
        assert result.shape == (rows, 256) and (result == 3).all()
        places.add(data_address(result))

    assert len(places) < 60


def test_several_results_of_one_call_have_blocks_of_their_own() -> None:
    wanted = [((ROWS, 256), np.dtype(np.float32))] * 3 + [((4,), np.dtype(np.int8))]
    pool = ResultPool()

    for _ in range(5):
        arrays = pool.arrays(wanted, 1)
        for k, array in enumerate(arrays):
            array[...] = k
        assert [array.reshape(-1)[-1] for array in arrays] == [0, 1, 2, 3]
        assert [array.dtype for array in arrays] == [dtype for _, dtype in wanted]
        del array, arrays
    assert 3 * ONE.nbytes <= pool.idle_bytes() <= 3 * ONE.nbytes * 9 // 8


def test_threads_never_share_a_block() -> None:
    module, wrong = add_one(), []

    def work(number: int) -> None:
        x, last = filled(number), None
        for _ in range(200):
            result = module(x, ONE)
            if not (result == number + 1).all() or (last is not None and not (last == number + 1).all()):
                wrong.append(number)
            last = result

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert module._results.idle_bytes() <= 2 * len(module._frames) * ONE.nbytes * 9 // 8  # each caller holds two results at once


def test_what_many_threads_needed_is_given_back_when_one_goes_on() -> None:
    """Broke: every block that a burst of calls had needed stayed."""
    module, inside = add_one(), threading.Barrier(8, timeout=60)

    def work() -> None:
        frame = module._take_frame()  # so that all have one at once
        inside.wait()
        module._idle.append(frame)
        held = module(ONE, ONE)
        inside.wait()
        del held

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(module._frames) == 8

    for _ in range(2 * CALLS_REMEMBERED):
        result = module(ONE, ONE)
    assert (result == 2).all() and module._results.idle_bytes() <= 2 * ONE.nbytes * 9 // 8


def test_trim_beside_calls_of_another_thread() -> None:
    module, wrong, over = add_one("n"), [], threading.Event()

    def work() -> None:
        while not over.is_set():
            if not (module(ONE, ONE) == 2).all():
                wrong.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(300):
        module.trim()
    over.set()
    thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_results_of_its_own() -> None:
    module = add_one()
    kept, last = module(filled(3), ONE), module(filled(4), ONE)
    del last
    assert module._results.idle_bytes() > 0

    def work() -> bool:
        empty = module._results.idle_bytes() == 0
        mine = [module(filled(7), ONE) for _ in range(3)]
        return empty and bool((kept == 4).all()) and all((each == 8).all() for each in mine)

    assert failures([in_child(work)]) == 0
    assert (kept == 4).all() and (module(filled(5), ONE) == 6).all()


def test_a_result_outlives_its_module() -> None:
    result = add_one()(filled(1), ONE)
    gc.collect()

    assert (result == 2).all()


def kept_rows(rows: int | str, columns: int | str = 256, dtype: int = 1, results: tuple[str, ...] = ("y",)) -> CompiledModule:
    """The rows that a vector of flags keeps, as results of these names."""
    from onnx import helper

    nodes = [helper.make_node("Compress", ["x", "kept"], ["y"], axis=0)]
    nodes += [helper.make_node("Identity", ["y"], [name]) for name in results if name != "y"]
    graph = helper.make_graph(
        nodes,
        "kept",
        [helper.make_tensor_value_info("x", dtype, [rows, columns]), helper.make_tensor_value_info("kept", 9, [rows])],
        [helper.make_tensor_value_info(name, dtype, None) for name in results],
    )
    return tc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), on_unsupported="error")


@pytest.mark.parametrize("rows", [ROWS, "n"])
def test_results_of_sizes_that_data_decide_are_their_holders_own(rows: int | str) -> None:
    rng = np.random.default_rng(0)
    module = kept_rows(rows)
    held, expected = [], []
    for count in (ROWS, 0, 1, ROWS // 2, ROWS - 1, 30, ROWS):
        x, kept = rng.standard_normal((ROWS, 256), np.float32), np.arange(ROWS) < count
        held.append(module(x, kept))
        expected.append(x[kept])
        held[-1][:1] += 1
        expected[-1][:1] += 1
    module.trim()
    del module
    gc.collect()

    for result, want in zip(held, expected, strict=True):
        np.testing.assert_array_equal(result, want, strict=True)
        assert result.flags.writeable and result.flags.c_contiguous and result.flags.aligned


def test_two_results_that_are_one_value_are_apart() -> None:
    first, second = kept_rows("n", results=("y", "z"))(ONE, np.ones(ROWS, bool))

    first += 1

    assert (second == 1).all() and (first == 2).all()


def test_elements_that_numpy_does_not_know_come_in_blocks_of_their_own() -> None:
    import ml_dtypes

    result = kept_rows(ROWS, dtype=16)(ONE.astype(ml_dtypes.bfloat16), np.ones(ROWS, bool))

    assert result.dtype == ml_dtypes.bfloat16 and (result == 1).all() and result.shape == ONE.shape


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_blocks_of_results_are_freed() -> None:
    rows = 4096
    module, x, kept = kept_rows("n"), filled(1, rows), np.ones(rows, bool)

    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    module(x, kept)
    before = resident_bytes()
    for _ in range(50):
        module(x, kept)

    assert resident_bytes() - before < 10 * x.nbytes
