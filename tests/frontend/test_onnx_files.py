"""How valid files state the same tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run

F32 = np.float32
WEIGHTS = np.random.default_rng(0).standard_normal((4, 64)).astype(F32)
X = np.random.default_rng(1).standard_normal((3, 4)).astype(F32)


def weighty_model() -> onnx.ModelProto:
    return make_model([node("MatMul", "x w", "y")], {"x": (F32, ["n", 4])}, ["y"], {"w": WEIGHTS})


def stated_by_default(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_location = TensorProto.DEFAULT


def stated_with_leftovers(model: onnx.ModelProto) -> None:
    stated_by_default(model)
    for key, text in {"location": "gone.bin", "offset": "4096", "length": "16"}.items():
        model.graph.initializer[0].external_data.add(key=key, value=text)


@pytest.mark.parametrize("change", [stated_by_default, stated_with_leftovers])
def test_a_tensor_that_states_where_it_lies_by_default_is_read(change: object) -> None:
    # The reference that stands for raw data came before the file's own data_location, which then won.
    model = weighty_model()
    change(model)  # type: ignore[operator]

    found = run(load_model(model.SerializeToString() + b"\x5a\x00" * (1 << 15)), {"x": X})

    np.testing.assert_allclose(found[0], X @ WEIGHTS, rtol=1e-5)


def test_a_model_that_was_saved_again_from_external_data_is_read(tmp_path: Path) -> None:
    # "the model uses external data 'w.bin'" for what no longer is: `load` leaves data_location = DEFAULT behind.
    large = np.random.default_rng(2).standard_normal((4, 8192)).astype(F32)
    model = make_model([node("MatMul", "x w", "y")], {"x": (F32, ["n", 4])}, ["y"], {"w": large})
    onnx.save(model, tmp_path / "a.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "elsewhere").mkdir()
    onnx.save(onnx.load(tmp_path / "a.onnx"), tmp_path / "elsewhere" / "b.onnx")

    found = run(load_model(tmp_path / "elsewhere" / "b.onnx"), {"x": X})

    np.testing.assert_allclose(found[0], X @ large, rtol=1e-5)
