"""Calibration data in every form, and what is said of data that do not fit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tc.errors import UserError
from tc.quantization.calibration import read_feeds


def model_of(*inputs: tuple[str, int, list[object]]) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    return helper.make_model(helper.make_graph([], "net", values, []))


ONE = model_of(("x", TensorProto.FLOAT, ["n", 3]))
FIXED = model_of(("x", TensorProto.FLOAT, [2, 3]))
TWO = model_of(("x", TensorProto.FLOAT, ["n", 3]), ("ids", TensorProto.INT64, ["n"]))


def x(n: int = 2, value: float = 1.0) -> np.ndarray:
    return np.full((n, 3), value, np.float32)


@pytest.mark.parametrize(
    ("model", "given", "calls"),
    [
        (ONE, {"x": x()}, 1),
        (ONE, x(), 1),
        (ONE, [x(), x(5)], 2),
        (ONE, [{"x": x()}] * 3, 3),
        (ONE, (x() for _ in range(4)), 4),
        (FIXED, x(6), 3),
        (FIXED, x(2), 1),
        (TWO, [{"x": x(), "ids": np.arange(2)}], 1),
        (TWO, [(x(), np.arange(2))], 1),
    ],
)
def test_every_form_is_read(model: onnx.ModelProto, given: Any, calls: int) -> None:
    feeds = read_feeds(given, model)

    assert len(feeds) == calls
    assert all(list(feed) == [value.name for value in model.graph.input] for feed in feeds)


def test_files_of_other_machines_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", x(value=3).astype(">f4"))
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")

    (feed,) = read_feeds(tmp_path, ONE)

    assert feed["x"].dtype == np.float32 and feed["x"].dtype.isnative
    np.testing.assert_array_equal(feed["x"], x(value=3))


def test_folders_are_read_in_the_order_of_names(tmp_path: Path) -> None:
    for index in (2, 0, 1):
        np.save(tmp_path / f"{index}.npy", x(value=index))
    np.savez(tmp_path / "3.npz", x=x(value=3))
    (tmp_path / "notes.txt").write_text("no data")

    feeds = read_feeds(tmp_path, ONE)

    assert [feed["x"][0, 0] for feed in feeds] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (ONE, [], "there are no inputs"),
        (ONE, iter(()), "there are no inputs"),
        (ONE, 3, "calibration is a int"),
        (ONE, [{"y": x()}], "calibration input 0: the model has no input 'y'; its inputs are x"),
        (TWO, [{"x": x()}], "needs the input 'ids'"),
        (TWO, [x()], "must be arrays by name: x, ids"),
        (ONE, [x(), x().astype(np.float64)], "calibration input 1: x is of float64, but the model takes float32"),
        (ONE, [np.zeros((2, 4), np.float32)], r"x has shape \[2, 4\], but the model takes \[n, 3\]"),
        (ONE, [np.zeros(3, np.float32)], r"x has shape \[3\]"),
        (ONE, [np.zeros((0, 3), np.float32)], r"x is empty, of shape \[0, 3\]"),
        (ONE, [x(), np.array([[1, np.nan, 2]], np.float32)], r"calibration input 1: x holds nan at \[0, 1\]"),
        (ONE, [np.array([[1, 2, -np.inf]], np.float32)], r"x holds -inf at \[0, 2\]"),
        (ONE, [["a"]], "calibration input 0 is a list, must be arrays by the names"),
        (ONE, "no/such/folder", "there is no such file or folder"),
    ],
)
def test_what_does_not_fit_is_named(model: onnx.ModelProto, given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_feeds(given, model)


def test_a_folder_without_data_and_a_damaged_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the folder holds no \.npz or \.npy file"):
        read_feeds(tmp_path, ONE)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY broken")
    with pytest.raises(UserError, match=r"a\.npy: cannot be read"):
        read_feeds(tmp_path, ONE)


@pytest.mark.parametrize("cut", [3, 40, 200, -60])
def test_an_archive_that_ends_early_is_named(tmp_path: Path, cut: int) -> None:
    """zipfile has an error of its own, which left as it was."""
    np.savez(tmp_path / "a.npz", x=x(50))
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:cut])

    with pytest.raises(UserError, match=r"a\.npz: cannot be read"):
        read_feeds(tmp_path, ONE)


def test_numbers_of_an_archive_that_changed_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=x(50))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[300] ^= 1
    (tmp_path / "a.npz").write_bytes(data)

    with pytest.raises(UserError, match=r"a\.npz: cannot be read"):
        read_feeds(tmp_path, ONE)


def test_an_input_may_be_empty_beside_others() -> None:
    """The cache of a decoder before its first word."""
    (feed,) = read_feeds([{"x": x(), "ids": np.zeros(0, np.int64)}], TWO)

    assert feed["ids"].shape == (0,)


def test_an_iterator_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tc.precision.inputs.CALLS_LIMIT", 5)

    with pytest.raises(UserError, match="more than 5 inputs"):
        read_feeds((x() for _ in itertools.count()), ONE)


def test_python_objects_are_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([print], object), allow_pickle=True)

    with pytest.raises(UserError, match=r"a\.npy: cannot be read"):
        read_feeds(tmp_path, ONE)
