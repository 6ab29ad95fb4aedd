"""Operands whose sizes do not fit each other are refused when the model runs: memory behind the smaller one was read or written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tc

# operator -> (inputs, node), what each dim is when all is well, and the dims that spoil it
CASES = {
    "GatherElements": ("float[n,3] x, int64[a,b] i", "y = GatherElements <axis=1> (x, i)", {"n": 2, "a": 2, "b": 4}, {"a": 3}),
    "ScatterElements": (
        "float[n,3] x, int64[a,b] i, float[c,d] u",
        "y = ScatterElements <axis=1> (x, i, u)",
        {"n": 2, "a": 2, "b": 3, "c": 2, "d": 3},
        {"a": 4, "c": 4},
    ),
    "updates of ScatterElements": (
        "float[n,3] x, int64[a,b] i, float[c,d] u",
        "y = ScatterElements <axis=1> (x, i, u)",
        {"n": 2, "a": 2, "b": 3, "c": 2, "d": 3},
        {"c": 1},
    ),
    "ScatterND": (
        "float[n,3] x, int64[a,1] i, float[c,d] u",
        "y = ScatterND(x, i, u)",
        {"n": 2, "a": 2, "c": 2, "d": 3},
        {"c": 1},
    ),
    "GatherND": ("float[n,3] x, int64[a,1] i", "y = GatherND <batch_dims=1> (x, i)", {"n": 2, "a": 2}, {"a": 5}),
    "ReverseSequence": ("float[n,b] x, int64[l] i", "y = ReverseSequence(x, i)", {"n": 2, "b": 3, "l": 3}, {"l": 1}),
    "SpaceToDepth": ("float[1,1,h,4] x", "y = SpaceToDepth <blocksize=2> (x)", {"h": 4}, {"h": 5}),
    "QuantizeLinear": (
        "float[2,c] x, float[s] i",
        "z = Abs(i) k = Constant <value = float {1}> () t = Add(z, k) y = QuantizeLinear <axis=1> (x, t)",
        {"c": 3, "s": 3},
        {"s": 2},
    ),
    "LSTM": (
        "float[t,b,2] x, float[1,4,2] w, float[1,4,1] r, float[d,e,1] h",
        "p, q = LSTM <hidden_size=1> (x, w, r, \"\", \"\", h) y = Identity(q)",
        {"t": 2, "b": 3, "d": 1, "e": 3},
        {"e": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_fit_are_refused_when_the_model_runs(name: str) -> None:
    inputs, nodes, fits, spoils = CASES[name]
    kind = "uint8" if name == "QuantizeLinear" else "float"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({kind} y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    module = tc.compile(model, threads=1)

    def arrays(sizes: dict[str, int]) -> dict[str, np.ndarray]:
        found = {}
        for info in model.graph.input:
            shape = [d.dim_value or sizes[d.dim_param] for d in info.type.tensor_type.shape.dim]
            found[info.name] = np.ones(shape, np.float32) if info.type.tensor_type.elem_type == 1 else np.zeros(shape, np.int64)
        return found

    module.run(arrays(fits))
    with pytest.raises(tc.TcError, match=r"must be|at most"):
        module.run(arrays({**fits, **spoils}))


@pytest.mark.parametrize("wide", ["4", "d"])
def test_updates_beyond_the_indices_are_not_used_and_no_index_beyond_the_last_is_read(wide: str) -> None:
    """The loops ran over the updates, and read behind the indices."""
    text = f"g (float[2,6] x, int64[2,1] i, float[2,{wide}] u) => (float[2,6] y) {{ y = ScatterElements <axis=1> (x, i, u) }}"
    module = tc.compile(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), threads=1)
    updates = np.arange(1, 9, dtype=np.float32).reshape(2, 4)

    y = module(np.zeros((2, 6), np.float32), np.array([[3], [-1]]), updates)

    assert np.array_equal(y, [[0, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 5]])
