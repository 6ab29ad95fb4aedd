"""Ensembles of trees, natively, against onnxruntime on random forests and inputs, NaN among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import tc
from tc.errors import InputError, ModelError, ShapeError
from tc.stages import interpret_in_f64
from tests.frontend.models import run_onnxruntime
from tests.frontend.test_onnx_ml import DOUBLE, I64, F, S, check, floats, ml

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def forest(rng: np.random.Generator, trees: int, depth: int, features: int, modes: tuple[str, ...], missing: bool) -> dict[str, list[Any]]:
    """Random trees, some of a leaf alone; the attributes that two operators share, and the leaves under "leaves"."""
    found: dict[str, list[Any]] = {
        name: []
        for name in (
            *("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"),
            "missing_value_tracks_true",
        )
    }
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, level: int) -> int:
        node = sum(t == tree for t in found["treeids"])
        is_leaf = level == depth or rng.random() < 0.2
        row = (tree, node, int(rng.integers(features)), float(np.float32(rng.integers(-8, 9) / 4)), "LEAF", 0, 0, 0)
        for name, value in zip(found, row, strict=True):
            found[name].append(value)
        if is_leaf:
            leaves.append((tree, node))
            return node
        place = len(found["modes"]) - 1
        found["modes"][place] = str(rng.choice(modes))
        found["missing_value_tracks_true"][place] = int(missing and rng.integers(2))
        found["truenodeids"][place] = grow(tree, level + 1)
        found["falsenodeids"][place] = grow(tree, level + 1)
        return node

    for tree in range(trees):
        grow(tree, 0)
    if not missing:
        del found["missing_value_tracks_true"]
    return {**{f"nodes_{name}": values for name, values in found.items()}, "leaves": leaves}


def weights(kind: str, leaves: list[Any], ids: list[int], rng: np.random.Generator, positive: bool) -> dict[str, list[Any]]:
    """A weight of every leaf for each of `ids`."""
    given = rng.standard_normal(len(leaves) * len(ids)).astype(np.float32)
    return {
        f"{kind}_treeids": [tree for tree, _ in leaves for _ in ids],
        f"{kind}_nodeids": [node for _, node in leaves for _ in ids],
        f"{kind}_ids": ids * len(leaves),
        f"{kind}_weights": (np.abs(given) / 4 if positive else given).tolist(),
    }


def inputs(missing: bool) -> list[np.ndarray]:
    x = np.round(floats(60, 5) * 4) / 4
    if missing:
        x[::3, 1], x[5] = np.nan, np.nan
    return [x.astype(np.float32)]


@pytest.mark.covering(2)
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize(("modes", "missing"), [(MODES[:1], False), (MODES[1:2], True), (MODES, True)], ids=["leq", "lt", "all"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(aggregate: str, modes: tuple[str, ...], missing: bool, targets: int) -> None:
    rng = np.random.default_rng(targets)
    trees = forest(rng, 7, 5, 5, modes, missing)
    leaves = trees.pop("leaves")
    base = {"base_values": [0.5, -1.0, 2.0][:targets]} if aggregate == "SUM" else {}
    given = {**trees, **weights("target", leaves, list(range(targets)), rng, False), **base}

    model = ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=targets, aggregate_function=aggregate, **given)
    check(model, inputs(missing), [floats(0, 5)])


@pytest.mark.covering(2)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("labels", [[4, 2, 9], ["a", "b", "ü"]], ids=["integers", "strings"])
@pytest.mark.parametrize("positive", [True, False])
def test_classifier_of_many(transform: str, labels: list[Any], positive: bool) -> None:
    rng = np.random.default_rng(5)
    trees = forest(rng, 6, 4, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    kind = "classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s"
    given = {**trees, **weights("class", leaves, [0, 1, 2], rng, positive), kind: labels, "post_transform": transform}

    check(ml("TreeEnsembleClassifier", [(F, 2)], [S if kind.endswith("strings") else I64, F], **given), inputs(False))


@pytest.mark.covering
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("kind", ["a class for each tree", "a class for each leaf", "classes of some leaves", "one class of all"])
@pytest.mark.parametrize("base", [[], [0.5, -0.25, 1.0, -3.0]])
def test_leaves_need_not_have_a_weight_for_each_class(transform: str, kind: str, base: list[float]) -> None:
    rng = np.random.default_rng(len(kind))
    trees = forest(rng, 6, 4, 5, MODES, True)
    leaves = trees.pop("leaves")
    chosen = {
        "a class for each tree": [[tree % 4] for tree, _ in leaves],
        "a class for each leaf": [[int(rng.integers(4))] for _ in leaves],
        "classes of some leaves": [np.flatnonzero(rng.random(4) < 0.2).tolist() for _ in leaves],
        "one class of all": [[2] for _ in leaves],
    }[kind]
    pairs = [(leaf, k) for leaf, classes in zip(leaves, chosen, strict=True) for k in classes]
    given = {
        **trees,
        "class_treeids": [leaf[0] for leaf, _ in pairs],
        "class_nodeids": [leaf[1] for leaf, _ in pairs],
        "class_ids": [k for _, k in pairs],
        "class_weights": (rng.integers(-8, 9, len(pairs)) / 4).tolist(),
        "classlabels_int64s": [7, 3, 12, 5],
        "post_transform": transform,
    }  # fmt: skip
    model = ml("TreeEnsembleClassifier", [(F, 2)], [I64, F], **given, **({"base_values": base} if base else {}))

    check(model, inputs(True), [floats(0, 5)])
    if kind == "a class for each tree":
        del given["nodes_missing_value_tracks_true"]
        check(ml("TreeEnsembleClassifier", [(F, 2)], [I64, F], **given), inputs(True))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_scores_of_a_regressor_are_transformed(transform: str) -> None:
    rng = np.random.default_rng(8)
    trees = forest(rng, 4, 4, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = {**trees, **weights("target", leaves, [0, 1, 2], rng, False), "post_transform": transform}

    check(ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=3, **given), inputs(False))


@pytest.mark.covering
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("base", [[], [0.375]])
def test_classifier_of_yes_and_no(transform: str, positive: bool, base: list[float]) -> None:
    rng = np.random.default_rng(6)
    trees = forest(rng, 4, 4, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = {**trees, **weights("class", leaves, [0], rng, positive), "classlabels_int64s": [3, 8], "post_transform": transform}

    check(ml("TreeEnsembleClassifier", [(F, 2)], [I64, F], **given, **({"base_values": base} if base else {})), inputs(False))


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("positive", [True, False])
def test_weights_of_the_second_class_alone_say_yes_or_no(transform: str, positive: bool) -> None:
    # ONNX's reference forgets them.
    rng = np.random.default_rng(8)
    trees = forest(rng, 4, 4, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = {**trees, **weights("class", leaves, [1], rng, positive), "classlabels_int64s": [3, 8], "post_transform": transform}

    check(ml("TreeEnsembleClassifier", [(F, 2)], [I64, F], **given), inputs(False))


@pytest.mark.parametrize("labels", [[5], ["a"]])
def test_all_rows_are_of_a_class_that_is_alone(labels: list[Any]) -> None:
    rng = np.random.default_rng(9)
    trees = forest(rng, 3, 2, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = weights("class", leaves, [0], rng, False)
    sums = {name.replace("class_", "target_"): values for name, values in given.items()}
    named = {"classlabels_strings" if labels == ["a"] else "classlabels_int64s": labels}
    (x,) = inputs(False)

    label, scores = tc.compile(ml("TreeEnsembleClassifier", [(F, 2)], [S if labels == ["a"] else I64, F], **trees, **given, **named))(x)

    assert label.tolist() == labels * len(x)
    model = ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=1, **trees, **sums)
    np.testing.assert_allclose(scores, run_onnxruntime(model, {"x0": x})[0], rtol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_of_two_classes_with_weights_the_one_of_the_larger_score_is_taken(transform: str) -> None:
    # So ONNX says; onnxruntime compares the second score with 0 or with 0.5, and gives no label of the model's.
    rng = np.random.default_rng(7)
    trees = forest(rng, 4, 4, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = {**trees, **weights("class", leaves, [0, 1], rng, True), "classlabels_int64s": [3, 8], "post_transform": transform}
    model, (x,) = ml("TreeEnsembleClassifier", [(F, 2)], [I64, F], **given), inputs(False)
    module = tc.compile(model)

    labels, scores = module(x)

    assert not module.report().fallbacks
    np.testing.assert_array_equal(labels, np.where(scores[:, 0] >= scores[:, 1], 3, 8))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(scores, session.run(["y1"], {"x0": x})[0], rtol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("trees", [1, 3, 16, 45])
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_rows_and_trees(trees: int, threads: int) -> None:
    """Rows and trees of which neither fills what is walked at once, known and symbolic."""
    rng = np.random.default_rng(trees)
    given = forest(rng, trees, 8, 5, MODES[:2], True)
    leaves = given.pop("leaves")
    given |= weights("target", leaves, [0, 1], rng, False)
    for rows in (None, 0, 1, 31, 32, 33, 200):
        model = ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=2, **given)
        if rows is not None:
            model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
        module = tc.compile(model, threads=threads)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for count in (rows,) if rows is not None else (0, 1, 2, 47, 300):
            x = np.round(rng.standard_normal((count, 5)) * 4).astype(np.float32) / 4
            x[::7, 2] = np.nan
            np.testing.assert_allclose(module(x), session.run(None, {"x0": x})[0], rtol=1e-5, atol=1e-5)


def test_other_precisions_walk_the_same_ways() -> None:
    """Values of nodes are words among integers: what makes floats wider or narrower does not see them."""
    rng = np.random.default_rng(8)
    trees = forest(rng, 5, 6, 5, MODES[:1], False)
    given = weights("target", trees.pop("leaves"), [0], rng, False)
    model, x = ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=1, **trees, **given), floats(40, 5)
    wanted = tc.compile(model)(x)

    np.testing.assert_allclose(next(iter(interpret_in_f64(model, {"x0": x}).values())), wanted, rtol=1e-5, atol=1e-6)
    for precision in ("bf16", "f16", "mixed:1e-3"):
        np.testing.assert_allclose(tc.compile(model, precision=precision, calibration=[{"x0": x}])(x), wanted, rtol=2e-2, atol=2e-2)


def test_features_that_are_known_late_are_asked_for() -> None:
    rng = np.random.default_rng(3)
    trees = forest(rng, 3, 3, 5, MODES[:1], False)
    given = weights("target", trees.pop("leaves"), [0], rng, False)
    module = tc.compile(ml("TreeEnsembleRegressor", [(F, 2)], [F], n_targets=1, **trees, **given))
    last = max(feature for feature, mode in zip(trees["nodes_featureids"], trees["nodes_modes"], strict=True) if mode != "LEAF")

    module(floats(4, last + 1))
    with pytest.raises(InputError, match=f"TreeEnsembleRegressor: feature {last} of "):
        module(floats(4, last))


@pytest.mark.covering
@pytest.mark.parametrize("aggregate", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trees_of_version_5(aggregate: int, dtype: Any) -> None:
    # Two trees; the second is a node both of whose ways lead to one leaf.
    attributes = {
        "tree_roots": [0, 3],
        "n_targets": 1,
        "aggregate_function": aggregate,
        "nodes_featureids": [0, 1, 2, 0],
        "nodes_modes": numpy_helper.from_array(np.array([0, 1, 3, 0], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([0.0, 0.5, -0.25, 1.0], dtype)),
        "nodes_truenodeids": [1, 0, 2, 4],
        "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 4],
        "nodes_falseleafs": [0, 1, 1, 1],
        "nodes_missing_value_tracks_true": [1, 0, 1, 0],
        "leaf_targetids": [0] * 5,
        "leaf_weights": numpy_helper.from_array(np.array([1.0, -2.0, 3.5, 0.25, 0.75], dtype)),
    }
    code = F if dtype is np.float32 else DOUBLE
    # ONNX's reference takes the leaf with the number of the node for that.
    check(ml("TreeEnsemble", [(code, 2)], [code], 5, **attributes), [inputs(True)[0].astype(dtype)])


def test_trees_that_are_damaged_are_refused() -> None:
    rng = np.random.default_rng(1)
    trees = forest(rng, 1, 3, 5, MODES[:1], False)
    leaves = trees.pop("leaves")
    given = {**trees, **weights("target", leaves, [0], rng, False), "n_targets": 1}

    def refused(error: type[Exception], words: str, **changes: Any) -> None:
        model = ml("TreeEnsembleRegressor", [(F, 2)], [F], **{**given, **changes})
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
        with pytest.raises(error, match=words):
            tc.compile(model)

    count = len(trees["nodes_modes"])
    refused(ModelError, "goes to node 99, which is not there", nodes_truenodeids=[99] * count)
    refused(ModelError, "nodes that none leads to, for 1 trees", nodes_truenodeids=[0] * count)
    refused(ModelError, "the mode 'BRANCH' of a node", nodes_modes=["BRANCH"] * count)
    refused(ModelError, r"nodes, with lists of", nodes_values=[0.0])
    refused(ShapeError, r"feature 7 of f32\[d00, 5\]", nodes_featureids=[7] * count)
    refused(ModelError, "a weight of a node or of a target", target_ids=[3] * len(leaves))
