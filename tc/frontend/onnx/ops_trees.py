"""Ensembles of trees of the domain "ai.onnx.ml".

All rows walk all trees without branches: the nodes are in constant tables, a leaf follows itself, and every step looks up what the node
of a (row, tree) compares and where it goes from there, as often as the deepest tree has levels (`walk_trees`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.ops_ml import DOMAIN, as_floats, labelled, rows, transformed_scores
from tc.frontend.onnx.values import ModelValue, constant_value
from tc.ir.dtype import f32, f64, i64, u8
from tc.ir.expr import const
from tc.ops.registry import require
from tc.ops.trees import MOST_FEATURES, node_words

_COMPARISONS = {
    "BRANCH_LEQ": "less_equal",
    "BRANCH_LT": "less",
    "BRANCH_GTE": "greater_equal",
    "BRANCH_GT": "greater",
    "BRANCH_EQ": "equal",
    "BRANCH_NEQ": "not_equal",
}
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # by number in TreeEnsemble
_LEAF = "LEAF"
_MODES = (*_COMPARISONS, "MEMBER")  # by number in TreeEnsemble
_MAX_WEIGHTS = 1 << 27


@dataclass(frozen=True)
class Forest:
    """Trees by their nodes: `yes` and `no` are the nodes that follow, a leaf itself; `missing`: where NaN goes the way of `yes`."""

    feature: np.ndarray
    value: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    roots: np.ndarray

    @property
    def leaves(self) -> np.ndarray:
        """bool[nodes]"""
        return self.mode == _LEAF

    def depth(self) -> int:
        """The most steps from a root to a leaf. ModelError when some never end."""
        level = np.unique(self.roots)
        for steps in range(len(self.mode) + 1):
            level = level[~self.leaves[level]]
            if not level.size:
                return steps
            level = np.unique(np.concatenate([self.yes[level], self.no[level]]))
        raise NodeError("a tree has a cycle")


def _walk(n: NodeContext, forest: Forest, x: ModelValue) -> ModelValue:
    """u32[rows, trees]: the leaf at which each row ends in each tree."""
    features, used = x.shape[1], forest.feature[~forest.leaves]
    if used.size:
        if used.min() < 0:
            raise ShapeError(f"{n.op_type}: feature {used.min()} of {x.type}")
        if used.max() >= MOST_FEATURES:
            raise UnsupportedError(f"{n.op_type}: feature {used.max()}", code="TC1022")
        n.graph.state(partial(require, const(int(used.max())) < features, f"{n.op_type}: feature {used.max()} of {x.type}"), n.span)
    names = [name for name in _COMPARISONS if (forest.mode == name).any()] or ["BRANCH_LEQ"]
    kinds = np.array([names.index(mode) if mode in names else 0 for mode in forest.mode])
    missing = forest.missing & ~forest.leaves
    nodes = node_words(forest.feature, forest.value.astype(x.dtype.numpy), forest.yes, forest.no, kinds, missing)
    tables = constant_value(nodes), constant_value(forest.roots.astype(np.uint32))
    comparisons = tuple(_COMPARISONS[name] for name in names)
    return n.call("walk_trees", x, *tables, depth=forest.depth(), comparisons=comparisons, missing=bool(missing.any()))


def _scores(
    n: NodeContext,
    forest: Forest,
    x: ModelValue,
    weights: np.ndarray,
    has: np.ndarray,
    aggregate: str,
    base: np.ndarray | None,
    leaves: ModelValue | None = None,
) -> ModelValue:
    """[rows, targets] of the weights [nodes, targets] of the leaves; `has` says which weights there are. `leaves`: where rows end, if that
    is known."""
    if aggregate not in ("SUM", "AVERAGE", "MIN", "MAX"):
        raise NodeError(f"{n.op_type}: aggregate_function {aggregate!r}")
    if aggregate in ("MIN", "MAX") and not has[forest.leaves].all():
        raise UnsupportedError(f"{n.op_type}: {aggregate} over leaves without a weight for each target", code="TC1013")
    reached = _walk(n, forest, x) if leaves is None else leaves
    taken = n.call("gather", n.const(weights, x.dtype), reached, axis=0, in_range=True)
    scores = n.call({"MIN": "min", "MAX": "max"}.get(aggregate, "sum"), taken, axes=(1,), keepdims=False)
    if aggregate == "AVERAGE":
        scores = n.call("div", scores, n.const(len(forest.roots), x.dtype))
    return scores if base is None else n.call("add", scores, n.const(base, x.dtype))


# -- the operators up to version 3


def _numbers(n: NodeContext, name: str) -> np.ndarray | None:
    """Floats from the attribute, or from the tensor that may stand for it."""
    tensor = n.attr(f"{name}_as_tensor")
    if tensor is not None and tensor.size:
        return np.asarray(tensor).reshape(-1)
    given = n.attr(name)
    return np.array(given, np.float32) if given else None


def _forest(n: NodeContext) -> tuple[Forest, dict[tuple[int, int], int]]:
    """The trees, and the number of each node by (tree, node)."""
    trees, ids = n.attr("nodes_treeids") or [], n.attr("nodes_nodeids") or []
    modes, count = n.attr("nodes_modes") or [], len(ids)
    place = {key: k for k, key in enumerate(zip(trees, ids, strict=False))}
    lists = {name: n.attr(f"nodes_{name}") or [] for name in ("featureids", "truenodeids", "falsenodeids")}
    values = _numbers(n, "nodes_values")
    lengths = {len(trees), len(modes), 0 if values is None else len(values), *map(len, lists.values())}
    if not count or len(place) < count or lengths != {count}:
        raise NodeError(f"{n.op_type}: {count} nodes, with lists of {', '.join(map(str, sorted(lengths)))}, must be as many and differ")
    unknown = sorted({*modes} - {*_COMPARISONS, _LEAF})
    if unknown:
        raise NodeError(f"{n.op_type}: the mode {unknown[0]!r} of a node")

    def following(name: str) -> np.ndarray:
        found = [k if modes[k] == _LEAF else place.get((trees[k], lists[name][k]), -1) for k in range(count)]
        if -1 in found:
            at = found.index(-1)
            raise NodeError(f"{n.op_type}: node {ids[at]} of tree {trees[at]} goes to node {lists[name][at]}, which is not there")
        return np.array(found, np.int64)

    missing = np.array(n.attr("nodes_missing_value_tracks_true") or [0] * count, bool)
    yes, no = following("truenodeids"), following("falsenodeids")
    inner = np.array([mode != _LEAF for mode in modes])
    led_to = {*yes[inner].tolist(), *no[inner].tolist()}
    roots = np.array([k for k in range(count) if k not in led_to], np.int64)
    if len(missing) != count or len(roots) != len(set(trees)):
        raise NodeError(f"{n.op_type}: {len(roots)} nodes that none leads to, for {len(set(trees))} trees")
    features = np.where(inner, np.array(lists["featureids"], np.int64), 0)
    assert values is not None
    return Forest(features, values, np.array(modes, object), yes, no, missing, roots), place


def _weights(n: NodeContext, kind: str, place: dict[tuple[int, int], int], targets: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights [nodes, targets] of leaves, and which there are. Those of one leaf and target add up."""
    keys = zip(n.attr(f"{kind}_treeids") or [], n.attr(f"{kind}_nodeids") or [], strict=False)
    ids, given = np.array(n.attr(f"{kind}_ids") or [], np.int64), _numbers(n, f"{kind}_weights")
    nodes = np.array([place.get(key, -1) for key in keys], np.int64)
    if given is None or len(nodes) != len(ids) or len(given) != len(ids):
        raise NodeError(f"{n.op_type}: {len(nodes)} leaves, {len(ids)} targets and {0 if given is None else len(given)} weights")
    if (nodes < 0).any() or (ids < 0).any() or (ids >= targets).any():
        raise NodeError(f"{n.op_type}: a weight of a node or of a target that is not there")
    if len(place) * targets > _MAX_WEIGHTS:
        raise UnsupportedError(f"{n.op_type}: {len(place)} nodes with weights of {targets} targets", code="TC1022")
    weights, has = np.zeros((len(place), targets), given.dtype), np.zeros((len(place), targets), bool)
    np.add.at(weights, (nodes, ids), given)
    has[nodes, ids] = True
    return weights, has


def _features(n: NodeContext) -> ModelValue:
    x = rows(n, n.value(0))
    return x if x.dtype == f64 else as_floats(n, x)


@onnx_op("TreeEnsembleRegressor", domain=DOMAIN)
def import_tree_ensemble_regressor(n: NodeContext) -> NodeResult:
    targets, transform = n.attr("n_targets", 1), n.attr("post_transform", "NONE")
    forest, place = _forest(n)
    weights, has = _weights(n, "target", place, targets)
    base = _numbers(n, "base_values")
    if base is not None and len(base) != targets:
        raise NodeError(f"TreeEnsembleRegressor: {len(base)} base values for {targets} targets")
    scores = as_floats(n, _scores(n, forest, _features(n), weights, has, n.attr("aggregate_function", "SUM"), base))
    return transformed_scores(n, scores, transform)


@onnx_op("TreeEnsembleClassifier", domain=DOMAIN)
def import_tree_ensemble_classifier(n: NodeContext) -> NodeResult:
    """The class of the largest score, and the scores. With two classes and weights of one alone, the score says yes or no."""
    labels: Sequence[Any] = n.attr("classlabels_strings") or n.attr("classlabels_int64s") or []
    if not labels:
        raise UnsupportedError("TreeEnsembleClassifier: no classes", code="TC1022")
    ids, transform = set(n.attr("class_ids") or []), n.attr("post_transform", "NONE")
    forest, place = _forest(n)
    weights, has = _weights(n, "class", place, len(labels))
    base = _numbers(n, "base_values")
    is_binary = len(labels) == 2 and len(ids) == 1
    if base is not None and len(base) != (1 if is_binary else len(labels)):
        raise UnsupportedError(f"TreeEnsembleClassifier: {len(base)} base values for {len(labels)} classes", code="TC1022")
    is_of_first = is_binary and ids == {0}
    if is_binary and (transform == "SOFTMAX" if is_of_first else base is not None):
        raise UnsupportedError(
            "TreeEnsembleClassifier: runtimes differ about a softmax of one weight, and about base values beside those of the second class",
            code="TC1013",
        )
    x, given = _features(n), has
    if is_of_first:
        weights, has = weights[:, :1], has[:, :1]
    leaves = _walk(n, forest, x)
    scores = as_floats(n, _scores(n, forest, x, weights, has, "SUM", base, leaves))
    if not is_binary:
        known = scores if base is not None else _of_given_classes(n, forest, scores, given, leaves)
        return [labelled(n, n.call("argmax", known, axis=1, keepdims=False), labels), transformed_scores(n, scores, transform)]
    positive = bool((weights >= 0).all())
    is_yes = n.call("greater", scores if is_of_first else n.part(scores, 1, 1, 1), n.const(0.5 if positive else 0.0, f32))
    number = n.call("squeeze", n.call("cast", is_yes, dtype=i64), axes=(1,))
    if is_of_first:
        other = n.call("sub", n.const(1, f32), scores) if positive and transform == "NONE" else n.call("neg", scores)
        scores = n.call("concat", other, scores, axis=1)
    return [labelled(n, number, labels), transformed_scores(n, scores, transform)]


def _of_given_classes(n: NodeContext, forest: Forest, scores: ModelValue, has: np.ndarray, leaves: ModelValue) -> ModelValue:
    """Scores [rows, classes], that of a class to which no leaf of a row gives a weight being the least: it is not chosen, as onnxruntime
    has it, though its score, which is 0, may be the largest."""
    reached = forest.leaves & ((trees := _tree_of_nodes(forest)) >= 0)
    is_whole = np.ones((len(forest.roots), has.shape[1]), bool)  # all leaves of a tree have a weight for a class
    np.logical_and.at(is_whole, trees[reached], has[reached])
    if is_whole.any(0).all():
        return scores
    given = n.call("max", n.call("gather", n.const(has, u8), leaves, axis=0, in_range=True), axes=(1,), keepdims=False)
    return n.call("where", n.call("less", n.const(0, u8), given), scores, n.const(-np.inf, f32))


def _tree_of_nodes(forest: Forest) -> np.ndarray:
    """int64[nodes]: the number of the root from which each is reached; -1: from none."""
    found = np.full(len(forest.mode), -1, np.int64)
    for tree, root in enumerate(forest.roots):
        level = np.array([root])
        while level.size:
            found[level] = tree
            level = level[~forest.leaves[level]]
            level = np.unique(np.concatenate([forest.yes[level], forest.no[level]])) if level.size else level
    return found


# -- the operator of version 5


@onnx_op("TreeEnsemble", since=5, domain=DOMAIN)
def import_tree_ensemble(n: NodeContext) -> NodeResult:
    """Inner nodes and leaves are numbered apart: leaves come behind all nodes here."""
    transform = n.attr("post_transform", 0)
    if not 0 <= transform < len(_TRANSFORMS):
        raise NodeError(f"TreeEnsemble: post_transform {transform}")
    splits, modes = np.asarray(n.attr("nodes_splits")).reshape(-1), np.asarray(n.attr("nodes_modes")).reshape(-1)
    weights, targets = np.asarray(n.attr("leaf_weights")).reshape(-1), n.attr("n_targets", 1)
    ids, roots = np.array(n.attr("leaf_targetids") or [], np.int64), np.array(n.attr("tree_roots") or [], np.int64)
    nodes, leaves = len(splits), len(weights)
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    lists = [np.array(n.attr(f"nodes_{name}") or [], np.int64) for name in names]
    missing = np.array(n.attr("nodes_missing_value_tracks_true") or [0] * nodes, bool)
    if {len(modes), len(missing), *map(len, lists)} != {nodes} or len(ids) != leaves or not nodes or not len(roots):
        raise NodeError("TreeEnsemble: the lists of nodes, or of leaves, are not all as long")
    if (modes >= len(_COMPARISONS)).any():
        raise UnsupportedError("TreeEnsemble: a node that asks for members of a set", code="TC1013")
    features, *ways = lists
    following = [np.where(leaf != 0, way + nodes, way) for way, leaf in zip(ways[:2], ways[2:], strict=True)]
    for way, leaf in zip(ways[:2], ways[2:], strict=True):
        if (way < 0).any() or (way >= np.where(leaf != 0, leaves, nodes)).any():
            raise NodeError("TreeEnsemble: a node goes to one that is not there")
    if (roots < 0).any() or (roots >= nodes).any() or (ids < 0).any() or (ids >= targets).any():
        raise NodeError("TreeEnsemble: a root or a target that is not there")
    own = np.arange(nodes, nodes + leaves)
    x = rows(n, n.value(0))
    zeros = np.zeros(leaves)
    words = np.array([_MODES[mode] for mode in modes] + [_LEAF] * leaves, object)
    yes, no = (np.concatenate([way, own]) for way in following)
    forest = Forest(
        np.concatenate([features, zeros.astype(np.int64)]),
        np.concatenate([splits, zeros.astype(splits.dtype)]),
        words,
        yes,
        no,
        np.concatenate([missing, zeros.astype(bool)]),
        roots,
    )
    table, has = np.zeros((nodes + leaves, targets), weights.dtype), np.zeros((nodes + leaves, targets), bool)
    table[own, ids], has[own, ids] = weights, True
    aggregate = n.attr("aggregate_function", 1)
    if not 0 <= aggregate < 4:
        raise NodeError(f"TreeEnsemble: aggregate_function {aggregate}")
    scores = _scores(n, forest, x, table, has, ("AVERAGE", "SUM", "MIN", "MAX")[aggregate], None)
    return transformed_scores(n, scores, _TRANSFORMS[transform])
