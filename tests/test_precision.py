"""`precision=`: what is narrowed and what is not, how far results may be off, and what is said of what cannot be done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.errors import UserError

BF16_UNIT, F16_UNIT = 2.0**-8, 2.0**-11
"""Half of the distance between neighbours of 16-bit floats, over their size: what one rounding is off by at most."""


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple], outputs: dict[str, tuple], literals: dict[str, np.ndarray]) -> bytes:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in literals.items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def perceptron(width: int = 64, rows: object = 8) -> bytes:
    """Two products, a bias and gelu-like activation between them, a softmax behind."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Add", ["a", "b1"], ["b"], name="bias"),
        helper.make_node("Tanh", ["b"], ["c"], name="tanh"),
        helper.make_node("MatMul", ["c", "w2"], ["d"], name="second"),
        helper.make_node("Softmax", ["d"], ["y"], name="softmax", axis=-1),
    ]
    literals = {"w1": weights(rng, width, width), "b1": weights(rng, width), "w2": weights(rng, width, 2 * width)}
    return model_of(nodes, {"x": (rows, width)}, {"y": (rows, 2 * width)}, literals)


def inputs_of(shape: tuple[int, ...] = (8, 64), seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def off(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def test_bf16_narrows_products_and_what_is_stored_and_says_so() -> None:
    model, x = perceptron(), inputs_of()

    exact, module = tc.compile(model, threads=1), tc.compile(model, threads=1, precision="bf16")
    report = module.report()

    result = module.run(x)["y"]
    assert result.dtype == np.float32
    assert 0 < off(result, tc.interpret(model, x)["y"]) < 2 * BF16_UNIT
    by_node = {node: each for each in report.precisions for node in each.nodes}
    assert (by_node["first"].computed, by_node["first"].stored) == ("bf16", "bf16")
    assert (by_node["tanh"].computed, by_node["tanh"].stored) == ("f32", "bf16")
    assert (by_node["softmax"].computed, by_node["softmax"].stored) == ("f32", "f32")
    assert report.constant_bytes < 0.55 * exact.report().constant_bytes
    assert "precision bf16: bf16: first; second" in str(report)


def test_f32_stays_as_it_is_bit_for_bit() -> None:
    model, x = perceptron(), inputs_of()

    plain, named = tc.compile(model, threads=1), tc.compile(model, threads=1, precision="f32")

    assert plain.run(x)["y"].tobytes() == named.run(x)["y"].tobytes()
    assert named.report().precisions == () and named.report().precision == "f32"


def test_a_cached_and_a_saved_module_know_their_precision(tmp_path) -> None:
    model, x = perceptron(), inputs_of()
    first = tc.compile(model, threads=1, precision="bf16")

    again, exact = tc.compile(model, threads=1, precision="bf16"), tc.compile(model, threads=1)
    first.save(tmp_path / "m.tcm")
    loaded = tc.load(tmp_path / "m.tcm")

    assert again.report().precision == loaded.report().precision == "bf16" and exact.report().precision == "f32"
    assert again.report().precisions == loaded.report().precisions == first.report().precisions
    assert first.run(x)["y"].tobytes() == again.run(x)["y"].tobytes() == loaded.run(x)["y"].tobytes() != exact.run(x)["y"].tobytes()


@pytest.mark.parametrize(
    ("precision", "calibration", "words"),
    [
        ("bf17", None, '"bf17" is not known'),
        (16, None, "precision is a int"),
        ("mixed", [inputs_of()], "it has no tolerance"),
        ("mixed:", [inputs_of()], "is no number"),
        ("mixed:much", [inputs_of()], "'much' is no number"),
        ("mixed:0", [inputs_of()], "must be a finite number above 0"),
        ("mixed:-1e-2", [inputs_of()], "must be a finite number above 0"),
        ("mixed:nan", [inputs_of()], "must be a finite number above 0"),
        ("mixed:much", None, "'much' is no number"),
        ("mixed:1e-2", None, "needs calibration inputs"),
        ("f16", None, '"bf16" has the range of f32'),
        ("mixed:1e-2", [], "calibration: there are no inputs"),
        ("mixed:1e-2", 3, "calibration is a int"),
        ("mixed:1e-2", [3], "calibration input 0 is a int"),
        ("mixed:1e-2", {"x": np.full((8, 64), np.nan, np.float32)}, r"calibration: x holds nan at \[0, 0\]"),
        ("mixed:1e-2", [{"z": np.zeros((8, 64), np.float32)}], "the model has no input 'z'"),
        ("mixed:1e-2", [{}], "the model needs the input 'x'"),
        ("mixed:1e-2", {"x": inputs_of()["x"].astype(object)}, "calibration: x is no array of numbers, but of object"),
        ("mixed:1e-2", {"x": [[1.0], [2.0, 3.0]]}, "calibration: x is no array"),
        ("mixed:1e-2", (1 / n for n in (0,)), "the iterator raised ZeroDivisionError for input 0"),
        ("mixed:1e-2", "no/such/folder", "there is no such file or folder"),
        ("mixed:1e-2", __file__, "cannot be read as a .npz or .npy file: it is no such file, or holds Python objects"),
        ("mixed:1e-2", {1: inputs_of()["x"]}, "1 is a int, must be the name of an input"),
        ("mixed:1e-2", [np.zeros((0, 64), np.float32)], "x has shape"),
        ("f16", [inputs_of((8, 63))], r"calibration input 0: x has shape \[8, 63\], but the model takes \[8, 64\]"),
        ("f16", [{"x": np.zeros((8, 64))}], "calibration input 0: x is of float64, but the model takes float32"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(precision: object, calibration: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tc.compile(perceptron(), precision=precision, calibration=calibration)


def test_calibration_is_taken_in_every_form(tmp_path: Path) -> None:
    """As `tc.quantize` takes it: one mechanism for both."""
    model, batches = perceptron(64), [inputs_of((8, 64), seed) for seed in range(3)]
    for place, batch in enumerate(batches):
        np.savez(tmp_path / f"{place}.npz", **batch)
    forms = [
        batches,
        (batch for batch in batches),
        [batch["x"] for batch in batches],
        np.concatenate([batch["x"] for batch in batches]),  # cut into calls of eight rows
        tmp_path,
        [str(tmp_path / f"{place}.npz") for place in range(3)],
    ]

    found = [tc.compile(model, threads=1, precision="mixed:3e-3", calibration=form).report().precisions for form in forms]

    assert found == [found[0]] * len(forms)
    assert {each.computed for each in found[0]} == {"f32", "bf16"}


def test_an_iterator_serves_tuning_and_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once: the compilation after tuning had none left."""
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path))
    batches = [inputs_of((8, 64), seed) for seed in range(2)]

    module = tc.compile(perceptron(64), threads=1, precision="mixed:3e-3", calibration=iter(batches), tune="1s")

    assert module.report().precision == "mixed:3e-3"


def test_f16_keeps_in_f32_what_gets_large() -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="large"),
        helper.make_node("Mul", ["a", "down"], ["b"], name="down"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], name="small"),
    ]
    literals = {"w1": 3e4 * weights(rng, 64, 64), "down": np.float32(1e-4), "w2": weights(rng, 64, 64)}
    model, x = model_of(nodes, {"x": (8, 64)}, {"y": (8, 64)}, literals), inputs_of()

    module = tc.compile(model, threads=1, precision="f16", calibration=x)

    by_node = {node: each for each in module.report().precisions for node in each.nodes}
    assert by_node["large"].computed == "f32" and "65,504" in by_node["large"].why
    assert by_node["small"].computed == "f16"
    assert off(module.run(x)["y"], tc.interpret(model, x)["y"]) < 2 * F16_UNIT


def test_a_literal_that_16_bits_cannot_hold_stays() -> None:
    literals = {"w": np.array([[1e5, 1.0], [2.0, 3.0]], np.float32)}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], {"x": (4, 2)}, {"y": (4, 2)}, literals)
    x = {"x": np.full((4, 2), 1e-3, np.float32)}

    report = tc.compile(model, precision="f16", calibration=x).report()

    assert [(each.computed, "100000 is no number in f16" in each.why) for each in report.precisions] == [("f32", True)]


@pytest.mark.parametrize("size", [1e-3, 3e-5, 1e-6, 1e-9, 1e-30])
@pytest.mark.parametrize("of", ["weights", "inputs"])
def test_numbers_too_small_for_16_bits_stay(size: float, of: str) -> None:
    literals = {"w": weights(np.random.default_rng(1), 64, 32) * np.float32(size if of == "weights" else 1)}
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], {"x": (4, 64)}, {"y": (4, 32)}, literals)
    x = {"x": inputs_of((4, 64))["x"] * np.float32(size if of == "inputs" else 1)}

    module = tc.compile(model, precision="f16", calibration=x, threads=1)

    (found,) = module.report().precisions
    assert (found.computed == "f32") == (size < 1e-3), found.why
    exact = x["x"].astype(np.float64) @ literals["w"]
    assert off(module.run(x)["y"], exact) < 2 * F16_UNIT


def test_mixed_keeps_its_tolerance_on_fresh_inputs_and_is_deterministic() -> None:
    model = perceptron(128)
    calibration = [inputs_of((8, 128), seed) for seed in range(4)]
    wholly = tc.compile(model, threads=1, precision="bf16")
    error = max(off(wholly.run(x)["y"], tc.interpret(model, x)["y"]) for x in calibration)
    tolerance = 0.8 * error

    module = tc.compile(model, threads=1, precision=f"mixed:{tolerance}", calibration=calibration)
    again = tc.compile(model, threads=1, precision=f"mixed:{tolerance}", calibration=calibration, verify="never")

    errors = [off(module.run(x)["y"], tc.interpret(model, x)["y"]) for x in (inputs_of((8, 128), seed) for seed in range(10, 26))]
    kinds = {each.computed for each in module.report().precisions} | {each.stored for each in module.report().precisions}
    assert kinds == {"f32", "bf16"}
    assert np.median(errors) <= tolerance and max(errors) <= 1.5 * tolerance
    assert again.report().precisions == module.report().precisions
    assert any("break the tolerance" in each.why for each in module.report().precisions)


def test_mixed_with_a_wide_tolerance_narrows_all_and_with_none_to_spare_nothing() -> None:
    model, x = perceptron(), inputs_of()

    loose = tc.compile(model, threads=1, precision="mixed:0.5", calibration=x)
    tight = tc.compile(model, threads=1, precision="mixed:1e-9", calibration=x)

    assert [n.why for n in loose.report().precisions] == [""] * len(loose.report().precisions)
    assert tight.run(x)["y"].tobytes() == tc.compile(model, threads=1).run(x)["y"].tobytes()


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_kernels_of_16_bits_agree_with_the_interpreter(numerics: str) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["y"], name="second"),
    ]
    literals = {"w1": weights(rng, 32, 32, 3, 3) / 17, "w2": weights(rng, 32, 32, 1, 1)}
    images = model_of(nodes, {"x": (1, 32, 6, 6)}, {"y": (1, 32, 6, 6)}, literals)

    product = [helper.make_node("MatMul", ["x", "w"], ["y"])]  # its result is cast at once, and was held to what bf16 would have made of it
    single = model_of(product, {"x": (4, 64)}, {"y": (4, 8)}, {"w": weights(rng, 64, 8)})
    x = rng.standard_normal((4, 64)).astype(np.float32)

    for model in (perceptron(), images, single):
        tc.compile(model, threads=1, precision="bf16", numerics=numerics, verify="always")
    tc.compile(single, threads=1, precision="f16", calibration=[{"x": x}], numerics=numerics, verify="always")


@pytest.mark.parametrize("rows", [0, 1, 3, 17])
def test_symbolic_dims(rows: int) -> None:
    model = perceptron(32, "n")
    x = inputs_of((rows, 32))

    result = tc.compile(model, threads=1, precision="bf16").run(x)["y"]

    assert result.shape == (rows, 64)
    np.testing.assert_allclose(result, tc.interpret(model, x)["y"], rtol=0.05, atol=1e-3)


@pytest.mark.covering
@pytest.mark.parametrize("precision", ["f16", "mixed:1e-2"])
@pytest.mark.parametrize("calibrated", [(1,), (5,), (5, 1)], ids=str)
def test_a_calibration_input_may_be_broadcast_where_dims_are_taken_to_be_equal(precision: str, calibrated: tuple[int, ...]) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "z"], ["y"])]
    w = weights(np.random.default_rng(0), 16, 24)
    model = model_of(nodes, {"x": ("n", 16), "z": ("m", 24)}, {"y": ("k", 24)}, {"w": w})
    rng = np.random.default_rng(1)
    feeds = {rows: {"x": weights(rng, 5, 16), "z": weights(rng, rows, 24)} for rows in (1, 5)}

    module = tc.compile(model, threads=1, precision=precision, calibration=[feeds[rows] for rows in calibrated])
    for given in feeds.values():
        exact = given["x"] @ w + given["z"]
        assert np.linalg.norm(module.run(given)["y"] - exact) <= 1.5e-2 * np.linalg.norm(exact)
