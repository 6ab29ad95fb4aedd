"""Operators of the domain "ai.onnx.ml", natively, against onnxruntime on random and edge inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tc
from tc.errors import InputError, ModelError, ShapeError

F, I64, S, DOUBLE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.DOUBLE
RNG = np.random.default_rng(0)


def ml(
    op_type: str, inputs: list[tuple[int, int]], outputs: list[int], opset: int = 3, ranks: tuple[int, ...] = (), **attributes: Any
) -> onnx.ModelProto:
    """A model of one node; inputs are (element type, rank)."""
    infos = [helper.make_tensor_value_info(f"x{k}", code, [f"d{k}{a}" for a in range(rank)]) for k, (code, rank) in enumerate(inputs)]
    results = [helper.make_tensor_value_info(f"y{k}", code, None) for k, code in enumerate(outputs)]
    node = helper.make_node(
        op_type, [i.name for i in infos], [r.name for r in results], name="the_node", domain="ai.onnx.ml", **attributes
    )
    graph = helper.make_graph([node], "g", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", opset)], ir_version=8)


def check(model: onnx.ModelProto, *calls: list[np.ndarray], native: bool = True, rtol: float = 2e-5) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = tc.compile(model)
    assert not (native and module.report().fallbacks)
    for arrays in calls:
        feeds = {f"x{k}": array for k, array in enumerate(arrays)}
        for found, expected in zip(module.run(feeds).values(), session.run(None, feeds), strict=True):
            assert found.shape == np.shape(expected)
            assert found.dtype.kind == expected.dtype.kind
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(found, expected, rtol=rtol, atol=2e-6)
            else:
                np.testing.assert_array_equal(found, expected)


def floats(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def words(*texts: str) -> np.ndarray:
    return np.array(texts, object)


@pytest.mark.parametrize("code", [F, DOUBLE, I64])
@pytest.mark.parametrize("count", [1, 4])
def test_scaler(code: int, count: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(code)
    model = ml("Scaler", [(code, 2)], [F], offset=floats(count).tolist(), scale=floats(count).tolist())

    check(model, [(floats(3, 4) * 9).astype(dtype)], [np.zeros((0, 4), dtype)])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    zeros = np.zeros((2, 3), np.float32)

    check(ml("Normalizer", [(F, 2)], [F], norm=norm), [np.abs(floats(5, 3))], [zeros], [floats(4, 1)])
    if norm != "MAX":
        check(ml("Normalizer", [(F, 2)], [F], norm=norm), [floats(5, 3)])


def test_binarizer_array_feature_extractor_and_feature_vectorizer() -> None:
    check(ml("Binarizer", [(F, 2)], [F], threshold=0.25), [np.append(floats(3, 3), np.array([[0.25, np.inf, -np.inf]], np.float32), 0)])
    check(ml("ArrayFeatureExtractor", [(F, 2), (I64, 1)], [F]), [floats(3, 5), np.array([4, 0, 0])])
    check(ml("ArrayFeatureExtractor", [(F, 1), (I64, 1)], [F]), [floats(5), np.array([4, 0])])
    check(ml("ArrayFeatureExtractor", [(S, 2), (I64, 1)], [S]), [words("a", "ü", "", "d").reshape(2, 2), np.array([1])])
    model = ml("FeatureVectorizer", [(F, 2), (F, 2)], [F], inputdimensions=[3, 2])
    for k, width in enumerate((3, 2)):
        model.graph.input[k].type.tensor_type.shape.dim[1].dim_value = width
    check(model, [floats(4, 3), floats(4, 2)])


def test_inputs_of_other_widths_are_cut_or_filled_up() -> None:
    for columns in ((3, 2), (4, 2), (2, 5), (0, 1)):
        for is_known in (False, True):
            model = ml("FeatureVectorizer", [(F, 2), (F, 2)], [F], inputdimensions=[3, 2])
            for info, width in zip(model.graph.input, columns if is_known else (), strict=is_known):
                info.type.tensor_type.shape.dim[1].dim_value = width
            check(model, [floats(4, width) for width in columns])


def test_imputer() -> None:
    x = floats(6, 3)
    x[::2, 1], x[1, 0] = np.nan, np.nan

    check(ml("Imputer", [(F, 2)], [F], imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan")), [x])
    check(ml("Imputer", [(F, 2)], [F], imputed_value_floats=[7.0], replaced_value_float=0.0), [np.round(floats(5, 3))])
    check(ml("Imputer", [(I64, 2)], [I64], imputed_value_int64s=[7], replaced_value_int64=2), [RNG.integers(0, 4, (5, 3))])


def test_one_hot_encoder() -> None:
    check(ml("OneHotEncoder", [(I64, 1)], [F], cats_int64s=[3, 1, 7]), [np.array([1, 3, 7, 4])])
    check(ml("OneHotEncoder", [(F, 2)], [F], cats_int64s=[3, 1]), [np.array([[1, 3.5], [0, 1]], np.float32)])
    check(ml("OneHotEncoder", [(S, 1)], [F], cats_strings=["a", "é"]), [words("é", "a", "b", "")])


# It ran on ONNX's reference, which cannot do without elements.
def test_one_hot_encoder_of_known_categories_alone() -> None:
    model = ml("OneHotEncoder", [(I64, 2)], [F], cats_int64s=[3, 1, 7], zeros=0)
    for x in (np.array([[1, 3, 7], [7, 7, 1]]), np.zeros((0, 2), np.int64), np.zeros((2, 0), np.int64)):
        check(model, [x])

    with pytest.raises(InputError, match=r"place of a category 3 is out of range.*TC2004"):
        tc.compile(model)(np.array([[3, 2]]))


ENCODERS: dict[str, tuple[list[tuple[int, int]], list[int], dict[str, Any], np.ndarray]] = {
    "strings to integers": ([(S, 1)], [I64], {"keys_strings": ["a", "é", ""], "values_int64s": [5, 7, 9]}, words("é", "b", "a", "", "zz")),
    "strings to floats": ([(S, 2)], [F], {"keys_strings": ["a", "b"], "values_floats": [0.5, 1.5], "default_float": -3.0},
                          words("b", "a", "q", "b").reshape(2, 2)),
    "strings to strings": ([(S, 1)], [S], {"keys_strings": ["a", "b"], "values_strings": ["ü", "a"], "default_string": "?"},
                           words("b", "a", "x")),
    "integers to strings": ([(I64, 1)], [S], {"keys_int64s": [5, -3, 1 << 40], "values_strings": ["p", "q", "r"]},
                            np.array([-3, 5, 1 << 40, 6, -4, 1 << 41])),
    "integers to floats": ([(I64, 1)], [F], {"keys_int64s": [2], "values_floats": [4.0]}, np.array([1, 2, 3])),
    "floats to integers": ([(F, 1)], [I64], {"keys_floats": [0.5, -1.0, 2.0, 9.0, 3.0], "values_int64s": [1, 2, 3, 4, 5]},
                           np.array([0.5, -1, 9, 9.5, np.inf, -9, 3, 2], np.float32)),
    "floats with NaN": ([(F, 1)], [F], {"keys_floats": [0.5, float("nan")], "values_floats": [1.0, 2.0]},
                        np.array([np.nan, 0.5, 1], np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODERS)
def test_label_encoder(name: str) -> None:
    inputs, outputs, attributes, x = ENCODERS[name]

    check(ml("LabelEncoder", inputs, outputs, 4 if "NaN" in name else 2, **attributes), [x], [x[:0]])


def test_label_encoder_of_many_keys_and_of_opset_1() -> None:
    keys = RNG.permutation(1000)[:301].tolist()

    check(ml("LabelEncoder", [(I64, 1)], [I64], 2, keys_int64s=keys, values_int64s=list(range(301))), [np.arange(-5, 1005)])
    check(ml("LabelEncoder", [(S, 1)], [I64], 1, classes_strings=["x", "y"]), [words("y", "z", "x")])
    check(ml("LabelEncoder", [(I64, 1)], [S], 1, classes_strings=["x", "y"]), [np.array([1, 0, 5])])


@pytest.mark.covering
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("labels", [[4, 2, 9], ["a", "b", "ü"], [0, 1]])
def test_linear_classifier(transform: str, labels: list[Any]) -> None:
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_ints"
    attributes = {"coefficients": floats(len(labels) * 5).tolist(), "intercepts": floats(len(labels)).tolist(), kind: labels}

    outputs = [S if kind.endswith("strings") else I64, F]
    check(ml("LinearClassifier", [(F, 2)], outputs, post_transform=transform, **attributes), [floats(40, 5)])


@pytest.mark.parametrize("labels", [[4, 2, 9], ["a", "b", "ü"]])
def test_maps_of_scores(labels: list[Any], tmp_path: Path) -> None:
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    model = ml("ZipMap", [(F, 2)], [F], 1, **{kind: labels})
    key = TensorProto.STRING if isinstance(labels[0], str) else I64
    value = helper.make_map_type_proto(key, helper.make_tensor_type_proto(F, []))
    model.graph.output[0].CopyFrom(helper.make_value_info("y0", helper.make_sequence_type_proto(value)))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    module = tc.compile(model)
    module.save(tmp_path / "maps.tcm")

    for x in (floats(4, 3), floats(0, 3)):
        assert module(x) == session.run(None, {"x0": x})[0]
        assert tc.load(tmp_path / "maps.tcm")(x) == module(x)
    with pytest.raises(InputError):
        module(floats(2, 4))
    assert [str(value.dtype) for value in tc.inspect(model).outputs] == ["sequence of maps of 3 x f32"]


def test_category_mapper() -> None:
    categories = {"cats_strings": ["a", "é"], "cats_int64s": [7, -2]}

    check(ml("CategoryMapper", [(S, 1)], [I64], 1, **categories), [words("é", "a", "b")])
    check(ml("CategoryMapper", [(I64, 1)], [S], 1, default_string="?", **categories), [np.array([7, -2, 3])])


def test_linear_regressor() -> None:
    check(ml("LinearRegressor", [(F, 2)], [F], coefficients=floats(10).tolist(), intercepts=[0.5, -1.0], targets=2), [floats(6, 5)])
    check(ml("LinearRegressor", [(F, 2)], [F], coefficients=floats(5).tolist()), [floats(6, 5)], [floats(0, 5)])


@pytest.mark.covering
@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kind: str, one_class: int) -> None:
    attributes = {"kernel_type": kind, "kernel_params": [0.3, 0.5, 3.0], "support_vectors": floats(20).tolist(), "rho": [0.25]}
    model = ml("SVMRegressor", [(F, 2)], [F], n_supports=5, coefficients=floats(5).tolist(), one_class=one_class, **attributes)

    check(model, [floats(30, 4)])


def test_the_score_of_a_regressor_is_transformed() -> None:
    # So ONNX says; onnxruntime leaves a score that is alone as it is, but for PROBIT.
    given = {"n_supports": 2, "coefficients": [0.5, -0.25], "support_vectors": floats(6).tolist(), "kernel_params": [0.3, 0.5, 3.0]}
    x = floats(9, 3)
    raw, made = (tc.compile(ml("SVMRegressor", [(F, 2)], [F], post_transform=kind, **given))(x) for kind in ("NONE", "LOGISTIC"))

    np.testing.assert_allclose(made, 1 / (1 + np.exp(-raw)), rtol=1e-5)


@pytest.mark.parametrize("labels", [[7], ["a"]])
@pytest.mark.parametrize("kind", ["LinearClassifier", "SVMClassifier", "SVMClassifier of probabilities"])
def test_all_rows_are_of_a_class_that_is_alone(kind: str, labels: list[Any]) -> None:
    names = {"classlabels_ints" if isinstance(labels[0], int) else "classlabels_strings": labels}
    attributes: dict[str, Any] = {"coefficients": [0.5, 1.0, -2.0], **names}
    if kind == "LinearClassifier":
        attributes |= {"intercepts": [0.25]}
    elif kind == "SVMClassifier":
        attributes |= {"kernel_type": "LINEAR", "rho": [0.25]}
    else:
        attributes |= {"kernel_type": "RBF", "kernel_params": [0.5, 0.0, 3.0], "rho": [0.25], "prob_a": [-0.5], "prob_b": [0.1]}
        attributes |= {"support_vectors": floats(9).tolist(), "vectors_per_class": [3]}
    x = floats(5, 3)

    label, scores = tc.compile(ml(kind.split()[0], [(F, 2)], [S if labels == ["a"] else I64, F], **attributes))(x)

    assert label.tolist() == labels * 5
    expected = np.ones((5, 1)) if "of" in kind else x @ np.array([[0.5], [1.0], [-2.0]]) + 0.25
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("kind", ["LINEAR", "RBF"])
def test_svm_classifier_with_probabilities(kind: str, classes: int) -> None:
    # ONNX's reference couples more than two classes by a sum where single products belong: other probabilities.
    pairs, vectors = classes * (classes - 1) // 2, 4 * classes
    model = ml(
        "SVMClassifier",
        [(F, 2)],
        [I64, F],
        kernel_type=kind,
        kernel_params=[0.3, 0.5, 3.0],
        classlabels_ints=list(range(classes)),
        coefficients=floats((classes - 1) * vectors).tolist(),
        support_vectors=floats(vectors * 3).tolist(),
        vectors_per_class=[4] * classes,
        rho=floats(pairs).tolist(),
        prob_a=(-np.abs(floats(pairs)) - 0.5).tolist(),
        prob_b=floats(pairs).tolist(),
    )

    check(model, [floats(20, 3)], native=False, rtol=1e-4)


@pytest.mark.parametrize("code", [F, DOUBLE, I64])
@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "c"]])
def test_svm_classifier_of_rows_of_any_type_with_labels_that_are_strings(code: int, labels: list[str]) -> None:
    classes = len(labels)
    model = ml(
        "SVMClassifier",
        [(code, 2)],
        [S, F],
        kernel_type="RBF",
        kernel_params=[0.3, 0.5, 3.0],
        classlabels_strings=labels,
        coefficients=floats((classes - 1) * 2 * classes).tolist(),
        support_vectors=floats(2 * classes * 3).tolist(),
        vectors_per_class=[2] * classes,
        rho=floats(classes * (classes - 1) // 2).tolist(),
    )
    dtype = helper.tensor_dtype_to_np_dtype(code)

    check(model, [(2 * floats(20, 3)).astype(dtype)], [np.zeros((0, 3), dtype)], native=False)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ModelError, match="LabelEncoder: 2 keys and 1 values"):
        tc.compile(ml("LabelEncoder", [(I64, 1)], [I64], 2, keys_int64s=[1, 2], values_int64s=[1]))
    with pytest.raises(ModelError, match=r"LabelEncoder: keys of int64 for f32\[d00\]"):
        tc.compile(ml("LabelEncoder", [(F, 1)], [I64], 2, keys_int64s=[1], values_int64s=[1]))
    model = ml("Scaler", [(F, 2)], [F], offset=[1.0, 2.0], scale=[1.0, 2.0])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    with pytest.raises(ShapeError, match="Scaler: offset has 2 numbers"):
        tc.compile(model)
