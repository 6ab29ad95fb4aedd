"""DynamicQuantizeLSTM: against onnxruntime, which rounds inputs and states to the same bytes, and native with any dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tc
from tc.errors import TcError
from tc.frontend.onnx import load_model
from tests.frontend.models import make_model, node, run

F32, I32 = np.float32, np.int32
HIDDEN, TERMS, LENGTH, BATCH = 8, 6, 5, 3
OUTPUTS = ("y", "h", "c")


class Case:
    """A node, its weights, and inputs. Of bytes that are signed, half the range is used: onnxruntime's sums saturate beyond it."""

    def __init__(
        self, dtype: type = np.int8, count: int = 1, per_column: bool = False, given: str = "", seed: int = 0, **attrs: Any
    ) -> None:
        rng = np.random.default_rng(seed)
        gates = 4 * HIDDEN
        low, high = (-63, 64) if dtype is np.int8 else (0, 128)
        columns = (count, gates) if per_column else (count,)
        self.constants: dict[str, np.ndarray] = {
            "w": rng.integers(low, high, (count, TERMS, gates)).astype(dtype),
            "r": rng.integers(low, high, (count, HIDDEN, gates)).astype(dtype),
            "b": (rng.standard_normal((count, 2 * gates)) / 8).astype(F32),
            "w_scale": rng.uniform(0.005, 0.01, columns).astype(F32),
            "w_zero": np.full(columns, 64 if dtype is np.uint8 else 0, dtype),
            "r_scale": rng.uniform(0.005, 0.01, columns).astype(F32),
            "r_zero": np.full(columns, 60 if dtype is np.uint8 else 0, dtype),
            "p": (rng.standard_normal((count, 3 * HIDDEN)) / 4).astype(F32),
        }
        self.count, self.given, self.rng = count, given.split(), rng
        names = ["x", "w", "r", "b", *(name if name in self.given else "-" for name in ("lengths", "h0", "c0", "p"))]
        self.node = node(
            "DynamicQuantizeLSTM", " ".join([*names, "w_scale", "w_zero", "r_scale", "r_zero"]), " ".join(OUTPUTS),
            domain="com.microsoft", hidden_size=HIDDEN, **attrs,
        )  # fmt: skip

    def inputs(self, length: int = LENGTH, batch: int = BATCH) -> dict[str, np.ndarray]:
        found = {"x": self.rng.standard_normal((length, batch, TERMS)).astype(F32)}
        found["lengths"] = self.rng.integers(1, length + 1, batch).astype(I32)
        found |= {name: (self.rng.standard_normal((self.count, batch, HIDDEN)) / 2).astype(F32) for name in ("h0", "c0")}
        return {name: array for name, array in found.items() if name == "x" or name in self.given}

    @property
    def model(self) -> onnx.ModelProto:
        shapes = {"x": ["t", "n", TERMS], "lengths": ["n"], "h0": [self.count, "n", HIDDEN], "c0": [self.count, "n", HIDDEN]}
        declared = {name: (I32 if name == "lengths" else F32, shapes[name]) for name in self.inputs()}
        used = {name: array for name, array in self.constants.items() if name != "p" or "p" in self.given}
        model = make_model([self.node], declared, OUTPUTS, used, domains=[("com.microsoft", 1)])
        for info in model.graph.output:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        return model


def peer(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # with more it rounds parts of a batch by ranges of their own
    found: list[np.ndarray] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, arrays)
    return found


def close(found: Any, wanted: Any) -> None:
    """But for a state that lies between two bytes, and is rounded to the other one: a step of a state, 1/255 of their range, in a sum."""
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        apart = np.abs(a - b)
        assert apart.max(initial=0) <= 5e-3 and np.mean(apart > 2e-6) <= 0.02


CASES: dict[str, dict[str, Any]] = {
    "signed": {},
    "unsigned": {"dtype": np.uint8},
    "columns": {"per_column": True},
    "both ways": {"count": 2, "direction": "bidirectional", "dtype": np.uint8},
    "backwards": {"direction": "reverse", "per_column": True},
    "of given states": {"given": "h0 c0"},
    "with peepholes": {"given": "p", "dtype": np.uint8},
    "of lengths": {"given": "lengths"},
    "of lengths, both ways": {"given": "lengths h0 c0", "count": 2, "direction": "bidirectional"},
    "clipped": {"clip": 0.2, "input_forget": 1},
    "clipped, but for cells": {"clip": 0.2, "given": "h0 c0", "dtype": np.uint8},
    "of other activations": {"activations": ["HardSigmoid", "Softsign", "Tanh"], "activation_alpha": [0.3], "activation_beta": [0.4]},
}


@pytest.mark.parametrize("case", CASES)
def test_states_are_onnxruntimes(case: str) -> None:
    for seed in range(3):
        made = Case(seed=seed, **CASES[case])
        arrays = made.inputs()

        close(run(load_model(made.model, on_unsupported="error"), arrays), peer(made.model, arrays))


def test_it_is_native_for_any_number_of_steps_and_sentences() -> None:
    made = Case(count=2, direction="bidirectional", given="h0 c0")
    module = tc.compile(made.model, on_unsupported="error", threads=1)

    for length, batch in ((5, 3), (1, 1), (9, 4), (2, 1)):
        arrays = made.inputs(length, batch)
        found = module.run(arrays)
        close([found[name] for name in OUTPUTS], peer(made.model, arrays))


def test_inputs_of_zeros_have_a_scale() -> None:
    made = Case()
    arrays = {"x": np.zeros((LENGTH, BATCH, TERMS), F32)}

    close(run(load_model(made.model, on_unsupported="error"), arrays), peer(made.model, arrays))


def test_weights_the_other_way_round_are_refused() -> None:
    made = Case()
    made.constants["w"] = made.constants["w"].transpose(0, 2, 1).copy()

    with pytest.raises(TcError, match="dim 1 of input 1"):
        load_model(made.model, on_unsupported="error")
