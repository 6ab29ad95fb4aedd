"""Modules as bytes: pickled, copied, handed to other processes."""

from __future__ import annotations

import copy
import copyreg
import io
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.errors import ModelError
from tc.ir.parser import parse_module
from tc.runtime.module import CompiledModule

X = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)


def make(rows: str = "n", threads: int = 2) -> CompiledModule:
    text = f"@graph\ndef main(x: f32[{rows}, 64]):\n    a: f32[{rows}, 64] = exp(x)\n    b: f32[{rows}, 64] = softmax(a, axis=1)\n"
    return tc.compile(parse_module(text + "    return b\n"), threads=threads)


def with_constants() -> CompiledModule:
    from tc.demo import MODEL_PATH

    return tc.compile(str(MODEL_PATH), threads=2)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_module_is_what_it_was(protocol: int) -> None:
    """Broke: "cannot pickle 'weakref' object" and other inner words."""
    for module, x in ((make(), X), (make("5"), X), (with_constants(), np.ones((3, 1, 8, 8), np.float32))):
        again = pickle.loads(pickle.dumps(module, protocol))

        np.testing.assert_array_equal(again(x), module(x))
        assert (again.inputs, again.outputs, again.threads, again.target) == (module.inputs, module.outputs, 2, module.target)
        assert again.report().kernels and pickle.loads(pickle.dumps(again))(x).shape == module(x).shape


def test_a_pickle_holds_the_bytes_of_save(tmp_path: Path) -> None:
    module = with_constants()
    module.save(tmp_path / "m.tcm")

    assert copyreg.dispatch_table[type(module)](module)[1][0] == (tmp_path / "m.tcm").read_bytes()


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy])
def test_a_copy_computes_the_same_and_is_another(way: object) -> None:
    module = make()
    other = way({"m": module, "x": [module]})["m"] if way is copy.deepcopy else way(module)  # type: ignore[operator]

    assert other is not module
    kept = np.array(module(X))
    del module
    np.testing.assert_array_equal(other(X), kept)


def test_joblib_keeps_a_module(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    module, file = make(), io.BytesIO()

    joblib.dump(module, file)
    file.seek(0)

    np.testing.assert_array_equal(joblib.load(file)(X), module(X))


def test_a_damaged_pickle_is_refused() -> None:
    module = make()
    maker, (data, threads) = copyreg.dispatch_table[type(module)](module)

    for bad in (data[:-1], data[:50], b"", data[:200] + bytes([data[200] ^ 1]) + data[201:]):
        with pytest.raises(ModelError, match="the pickled module"):
            maker(bad, threads)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_module_goes_to_other_processes(method: str) -> None:
    module = make()
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        np.testing.assert_array_equal(pool.submit(module, X).result(), module(X))
