"""Operators of the domain "ai.onnx.ml" on features: scaling, encoding, linear models and support vectors. Trees are in `ops_trees`.

What these do where ONNX leaves it open is what onnxruntime does. A node that an entry refuses runs on ONNX's reference implementation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tc.errors import NodeError, ShapeError, UnsupportedError
from tc.frontend.onnx.node_context import NodeContext, NodeResult, onnx_op
from tc.frontend.onnx.tensors import STRING_CODE, read_strings
from tc.frontend.onnx.values import MapsValue, ModelValue, StringsValue, constant_value
from tc.ir.arith import prove
from tc.ir.dtype import f32, f64, i64
from tc.ir.expr import const, equal

DOMAIN = "ai.onnx.ml"


def as_floats(n: NodeContext, x: ModelValue) -> ModelValue:
    """`x` in f32, which scores are of."""
    return x if x.dtype == f32 else n.call("cast", x, dtype=f32)


def rows(n: NodeContext, x: ModelValue) -> ModelValue:
    """`x` as [rows, features]; a vector is one row."""
    if x.rank == 1:
        return n.call("unsqueeze", x, axes=(0,))
    if x.rank != 2:
        raise ShapeError(f"{n.op_type}: the input must be [features] or [rows, features], found {x.type}")
    return x


def per_feature(n: NodeContext, x: ModelValue, name: str, given: Sequence[float], dtype: Any) -> ModelValue:
    """An attribute of one number for each feature, or one for all."""
    if len(given) != 1 and (x.rank == 0 or prove(equal(x.shape[-1], len(given)), n.facts) is False):
        raise ShapeError(f"{n.op_type}: {name} has {len(given)} numbers for {x.type}")
    return n.const(np.array(given), dtype)


@onnx_op("Scaler", domain=DOMAIN)
def import_scaler(n: NodeContext) -> NodeResult:
    """(x - offset) * scale"""
    x = n.value(0)
    wide = x if x.dtype == f64 else as_floats(n, x)
    moved = n.call("sub", wide, per_feature(n, x, "offset", n.attr("offset") or [0.0], wide.dtype))
    return as_floats(n, n.call("mul", moved, per_feature(n, x, "scale", n.attr("scale") or [1.0], wide.dtype)))


@onnx_op("Normalizer", domain=DOMAIN)
def import_normalizer(n: NodeContext) -> NodeResult:
    """Each row over its largest number, its sum of absolute values or its length; one where that is 0 stays."""
    x, norm = as_floats(n, n.value(0)), n.attr("norm", "MAX")
    if x.rank not in (1, 2):
        raise ShapeError(f"Normalizer: the input must be [features] or [rows, features], found {x.type}")
    kinds = {"MAX": "max", "L1": "l1", "L2": "l2"}
    if norm not in kinds:
        raise NodeError(f"Normalizer: the norm {norm!r} is none of {', '.join(kinds)}")
    size = n.call(kinds[norm], x, axes=(x.rank - 1,), keepdims=True)
    zero = n.const(0, f32)
    return n.call("div", x, n.call("where", n.call("equal", size, zero), n.const(1, f32), size))


@onnx_op("Binarizer", domain=DOMAIN)
def import_binarizer(n: NodeContext) -> NodeResult:
    x = n.value(0)
    threshold = n.attr("threshold", 0.0)
    wide = as_floats(n, x) if x.dtype.is_int else x
    return n.call("cast", n.call("greater", wide, n.const(threshold, wide.dtype)), dtype=x.dtype)


@onnx_op("ArrayFeatureExtractor", domain=DOMAIN)
def import_array_feature_extractor(n: NodeContext) -> NodeResult:
    """Features by number; of a vector, as a matrix of one row."""
    given = n.inputs[0]
    x = given.numbers if isinstance(given, StringsValue) else n.value(0)
    if x.rank == 0:
        raise ShapeError(f"ArrayFeatureExtractor: {x.type} has no features")
    places = n.call("reshape", n.value(1), shape=(_count(n.value(1)),))
    found = n.call("gather", rows(n, x) if x.rank == 1 else x, places, axis=max(x.rank - 1, 1))
    return StringsValue(found) if isinstance(given, StringsValue) else found


def _count(value: ModelValue) -> Any:
    count: Any = 1
    for dim in value.shape:
        count = count * dim
    return count


@onnx_op("Imputer", domain=DOMAIN)
def import_imputer(n: NodeContext) -> NodeResult:
    """A number for each place that has the one to replace, or NaN."""
    x = n.value(0)
    kind = "float" if x.dtype.is_float else "int64"
    values, replaced = n.attr(f"imputed_value_{kind}s"), n.attr(f"replaced_value_{kind}", 0.0 if x.dtype.is_float else 0)
    if not values:
        raise NodeError(f"Imputer: no values to impute for {x.type}")
    nan = isinstance(replaced, float) and np.isnan(replaced)
    missing = n.call("is_nan", x) if nan else n.call("equal", x, n.const(replaced, x.dtype))
    return n.call("where", missing, per_feature(n, x, f"imputed_value_{kind}s", values, x.dtype), x)


@onnx_op("FeatureVectorizer", domain=DOMAIN)
def import_feature_vectorizer(n: NodeContext) -> NodeResult:
    """The inputs side by side, [rows, features], each of the width that the node says: cut, or filled up with zeros."""
    values, widths = [as_floats(n, value) for value in n.values()], n.attr("inputdimensions") or []
    if len(values) != len(widths):
        raise NodeError(f"FeatureVectorizer: {len(widths)} widths for {len(values)} inputs")
    return n.call("concat", *(_of_width(n, *each) for each in zip(values, widths, strict=True)), axis=1)


def _of_width(n: NodeContext, value: ModelValue, width: int) -> ModelValue:
    if value.rank != 2:
        raise UnsupportedError(f"FeatureVectorizer: {value.type} is not [rows, columns]", code="TC1014")
    if width < 0:
        raise NodeError(f"FeatureVectorizer: the width {width}")
    if prove(equal(value.shape[1], width), n.facts) is True:
        return value
    shape = value.shape[0], const(width)
    filled = n.call("concat", value, n.call("full", shape=shape, value=0, dtype=value.dtype), axis=1)
    return n.call("slice", filled, starts=(0, 0), sizes=shape, steps=(1, 1))


@onnx_op("OneHotEncoder", domain=DOMAIN)
def import_one_hot_encoder(n: NodeContext) -> NodeResult:
    """A last axis of zeros, with a one where the element is the category. Without `zeros`, each element must be of one."""
    given, texts = n.inputs[0], n.attr("cats_strings")
    if isinstance(given, StringsValue):
        if not texts:
            raise NodeError("OneHotEncoder: strings need cats_strings")
        x, categories = given.numbers, n.graph.shared.strings.numbers(np.array(texts, object), n.label)
    else:
        x = n.value(0)
        x, categories = x if x.dtype == i64 else n.call("cast", x, dtype=i64), np.array(n.attr("cats_int64s") or [], np.int64)
    if not categories.size:
        raise NodeError("OneHotEncoder: there are no categories")
    same = n.call("equal", n.call("unsqueeze", x, axes=(x.rank,)), constant_value(categories))
    if not n.attr("zeros", 1):
        places = n.call("where", same, n.const(np.arange(categories.size), i64), n.const(categories.size, i64))
        first = n.call("min", places, axes=(x.rank,), keepdims=True)
        first = n.call("check_range", first, limit=const(categories.size), what="place of a category")
        same = n.call("equal", first, n.const(np.arange(categories.size), i64))
    return n.call("cast", same, dtype=f32)


# -- LabelEncoder


@onnx_op("LabelEncoder", domain=DOMAIN)
def import_label_encoder_of_classes(n: NodeContext) -> NodeResult:
    """Opset 1: strings to their numbers in a list, or back."""
    texts = n.attr("classes_strings") or []
    names, numbers = np.array(texts, object), np.arange(len(texts))
    if isinstance(n.inputs[0], StringsValue):
        return _encode(n, names, numbers, n.attr("default_int64", -1))
    return _encode(n, numbers, names, n.attr("default_string", "_Unused"))


@onnx_op("LabelEncoder", since=2, domain=DOMAIN)
def import_label_encoder(n: NodeContext) -> NodeResult:
    """What a list says for each key that is in another list."""
    keys, _ = _listed(n, "keys")
    values, kind = _listed(n, "values")
    if keys.size != values.size:
        raise NodeError(f"LabelEncoder: {keys.size} keys and {values.size} values")
    defaults = {"strings": "_Unused", "int64s": -1, "floats": -0.0}
    if kind != "tensor":
        return _encode(n, keys, values, n.attr(f"default_{kind.removesuffix('s')}", defaults[kind]))
    default = _tensor_of(n, "default_tensor")
    if default is None:
        default = np.array(["_Unused"], object) if values.dtype == object else np.array([-1 if values.dtype.kind == "i" else -0.0])
    return _encode(n, keys, values, default.reshape(-1)[0])


def _listed(n: NodeContext, what: str) -> tuple[np.ndarray, str]:
    """Keys or values, from the attribute that holds them, and which that is."""
    for kind, dtype in (("strings", object), ("int64s", np.int64), ("floats", np.float32)):
        found = n.attr(f"{what}_{kind}")
        if found:
            return np.array(found, dtype), kind  # type: ignore[arg-type]
    tensor = _tensor_of(n, f"{what}_tensor")
    if tensor is None:
        raise NodeError(f"LabelEncoder: there are no {what}")
    return tensor.reshape(-1), "tensor"


def _tensor_of(n: NodeContext, name: str) -> np.ndarray | None:
    attribute = next((a for a in n.node.attribute if a.name == name), None)
    if attribute is None:
        return None
    return read_strings(attribute.t) if attribute.t.data_type == STRING_CODE else n.graph.shared.model.reader.read(attribute.t)


def _encode(n: NodeContext, keys: np.ndarray, values: np.ndarray, default: Any) -> NodeResult:
    strings, given = n.graph.shared.strings, n.inputs[0]
    x = given.numbers if isinstance(given, StringsValue) else n.value(0)
    if isinstance(given, StringsValue) != (keys.dtype == object) or (keys.dtype != object and x.dtype.numpy != keys.dtype):
        raise NodeError(f"LabelEncoder: keys of {keys.dtype} for {'strings' if isinstance(given, StringsValue) else x.type}")
    number = strings.numbers(keys, n.label) if keys.dtype == object else keys
    places = {key if key == key else None: k for k, key in reversed(list(enumerate(number.tolist())))}  # of equal keys the first
    kept = sorted(places.values())
    number, values = number[kept], values[kept]
    are_texts = values.dtype == object
    found = strings.numbers(np.array([*values, default], object), n.label) if are_texts else np.array([*values, default], values.dtype)
    if keys.dtype == object:
        table = np.full(len(strings) + 1, found[-1])
        table[number] = found[:-1]
        place = n.call("minimum", x, n.const(len(strings), i64))  # strings of the call alone have higher numbers
        result = n.call("gather", constant_value(table), place, axis=0, in_range=True)
    else:
        result = _search(n, x, number, found)
    return StringsValue(result) if are_texts else result


def _search(n: NodeContext, x: ModelValue, keys: np.ndarray, found: np.ndarray) -> ModelValue:
    """`found[k]` where `keys[k]` is x, else the last of `found`: by halves in the sorted keys."""
    numbers = np.flatnonzero(keys == keys)  # without NaN, which is in no order
    order = numbers[np.argsort(keys[numbers], kind="stable")]
    place: ModelValue = n.call("full", shape=x.shape, value=0, dtype=i64)
    if order.size:
        step = 1 << max(order.size - 1, 0).bit_length()
        padded = constant_value(np.append(keys[order], np.repeat(keys[order[-1:]], 2 * step - order.size)))
        while step := step >> 1:
            after = n.call("add", place, n.const(step, i64))
            inside = n.call("less", after, n.const(order.size, i64))
            not_above = n.call("less_equal", n.call("gather", padded, after, axis=0, in_range=True), x)
            place = n.call("where", n.call("logical_and", inside, not_above), after, place)
        same = n.call("equal", n.call("gather", padded, place, axis=0, in_range=True), x)
        place = n.call("where", same, place, n.const(order.size, i64))
    table = constant_value(np.append(found[order], found[-1:]))
    result = n.call("gather", table, place, axis=0, in_range=True)
    if numbers.size < keys.size and n.opset >= 4:  # before, NaN is not equal to itself here either
        value = constant_value(found[np.flatnonzero(keys != keys)[0]])
        result = n.call("where", n.call("is_nan", x), value, result)
    return result


@onnx_op("CategoryMapper", domain=DOMAIN)
def import_category_mapper(n: NodeContext) -> NodeResult:
    """Strings to the numbers of the same places, or back."""
    texts, numbers = np.array(n.attr("cats_strings") or [], object), np.array(n.attr("cats_int64s") or [], np.int64)
    if texts.size != numbers.size or not texts.size:
        raise NodeError(f"CategoryMapper: {texts.size} strings and {numbers.size} numbers")
    if isinstance(n.inputs[0], StringsValue):
        return _encode(n, texts, numbers, n.attr("default_int64", -1))
    return _encode(n, numbers, texts, n.attr("default_string", "_Unused"))


@onnx_op("ZipMap", domain=DOMAIN)
def import_zip_map(n: NodeContext) -> NodeResult:
    x, labels = rows(n, n.value(0)), tuple(n.attr("classlabels_strings") or n.attr("classlabels_int64s") or ())
    if not labels or len(set(labels)) < len(labels) or prove(equal(x.shape[1], len(labels)), n.facts) is False:
        raise ShapeError(f"ZipMap: {len(labels)} labels, all of which must differ, for {x.type}")
    if prove(equal(x.shape[1], len(labels)), n.facts) is not True:
        x = n.call("match_shape", x, shape=(x.shape[0], const(len(labels))))
    return MapsValue(x, labels)


# -- scores


def transformed(n: NodeContext, scores: ModelValue) -> ModelValue:
    """Scores as `post_transform` says."""
    return transformed_scores(n, scores, n.attr("post_transform", "NONE"))


def transformed_scores(n: NodeContext, scores: ModelValue, kind: str) -> ModelValue:
    """Scores [rows, classes] after a transform by its name."""
    match kind:
        case "NONE":
            return scores
        case "LOGISTIC":
            return n.call("sigmoid", scores)
        case "SOFTMAX":
            return n.call("softmax", scores, axis=1)
        case "SOFTMAX_ZERO":  # of those that are not 0
            is_there = n.call("less", n.const(1e-7, scores.dtype), n.call("abs", scores))
            powers = n.call("exp", n.call("sub", scores, n.call("max", scores, axes=(1,), keepdims=True)))
            kept = n.call("where", is_there, powers, n.const(0, scores.dtype))
            return n.call("div", kept, n.call("sum", kept, axes=(1,), keepdims=True))
        case "PROBIT":
            return _probit(n, scores)
    supported = "NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO, PROBIT"
    raise UnsupportedError(f"{n.op_type}: post_transform {kind!r}", code="TC1013", supported=supported)


def _probit(n: NodeContext, scores: ModelValue) -> ModelValue:
    """sqrt(2) erfinv(2 p - 1), by the approximation that onnxruntime and the reference take. Source: Winitzki (2008), A handy approximation
    for the error function and its inverse."""
    x = n.call("sub", n.call("mul", scores, n.const(2, scores.dtype)), n.const(1, scores.dtype))
    log = n.call("log", n.call("sub", n.const(1, scores.dtype), n.call("mul", x, x)))
    first = n.call("add", n.const(2 / (math.pi * _WINITZKI), scores.dtype), n.call("mul", log, n.const(0.5, scores.dtype)))
    root = n.call("sqrt", n.call("sub", n.call("mul", first, first), n.call("mul", log, n.const(1 / _WINITZKI, scores.dtype))))
    size = n.call("mul", n.call("sqrt", n.call("sub", root, first)), n.const(math.sqrt(2), scores.dtype))
    return n.call("where", n.call("less", x, n.const(0, scores.dtype)), n.call("neg", size), size)


_WINITZKI = 0.147


def labelled(n: NodeContext, place: ModelValue, labels: Sequence[Any]) -> ModelValue | StringsValue:
    """The labels of classes by number."""
    if labels and isinstance(labels[0], str):
        numbers = n.graph.shared.strings.numbers(np.array(labels, object), n.label)
        return StringsValue(n.call("gather", constant_value(numbers), place, axis=0, in_range=True))
    return n.call("gather", constant_value(np.array(labels, np.int64)), place, axis=0, in_range=True)


def _linear(n: NodeContext, targets: int) -> ModelValue:
    """x @ coefficients + intercepts, f32[rows, targets]"""
    x = as_floats(n, rows(n, n.value(0)))
    given, intercepts = n.attr("coefficients") or [], n.attr("intercepts")
    if targets < 1 or len(given) % targets or prove(equal(x.shape[1], len(given) // targets), n.facts) is False:
        raise ShapeError(f"{n.op_type}: {len(given)} coefficients for {targets} targets of {x.type}")
    scores = n.call("matmul", x, n.const(np.array(given).reshape(targets, -1).T, f32))
    return n.call("add", scores, n.const(intercepts, f32)) if intercepts else scores


@onnx_op("LinearRegressor", domain=DOMAIN)
def import_linear_regressor(n: NodeContext) -> NodeResult:
    return transformed(n, _linear(n, n.attr("targets", 1)))


@onnx_op("LinearClassifier", domain=DOMAIN)
def import_linear_classifier(n: NodeContext) -> NodeResult:
    """The class of the largest score, and the scores."""
    labels = n.attr("classlabels_strings") or n.attr("classlabels_ints") or []
    intercepts = n.attr("intercepts") or []
    if len(intercepts) != len(labels) or not labels:
        raise UnsupportedError(f"LinearClassifier: {len(intercepts)} intercepts for {len(labels)} classes", code="TC1022")
    scores = _linear(n, len(labels))
    place = n.call("argmax", scores, axis=1, keepdims=False)
    return [labelled(n, place, labels), transformed(n, scores)]


@onnx_op("SVMRegressor", domain=DOMAIN)
def import_svm_regressor(n: NodeContext) -> NodeResult:
    """The sum of coefficient * kernel(x, support vector), and rho."""
    x, count = as_floats(n, rows(n, n.value(0))), n.attr("n_supports", 0)
    weights, rho = n.attr("coefficients") or [], n.attr("rho") or [0.0]
    if count:
        values = kernel(n, x, np.array(n.attr("support_vectors") or [], np.float32).reshape(count, -1))
    else:
        values = x
    score = n.call("matmul", values, n.const(np.array(weights).reshape(-1, 1), f32))
    score = n.call("add", score, n.const(rho[0], f32))
    if n.attr("one_class", 0):
        score = n.call("where", n.call("greater", score, n.const(0, f32)), n.const(1, f32), n.const(-1, f32))
    return transformed(n, score)


def kernel(n: NodeContext, x: ModelValue, supports: np.ndarray) -> ModelValue:
    """kernel(x, support vector), f32[rows, supports]"""
    kind, (gamma, offset, degree) = n.attr("kernel_type", "LINEAR"), n.attr("kernel_params") or [0.0, 0.0, 0.0]
    if kind == "RBF":
        apart = n.call("sub", n.call("unsqueeze", x, axes=(1,)), n.const(supports, f32))
        squares = n.call("sum_square", apart, axes=(2,), keepdims=False)
        return n.call("exp", n.call("mul", squares, n.const(-gamma, f32)))
    product = n.call("matmul", x, n.const(supports.T, f32))
    if kind == "LINEAR":
        return product
    scaled = n.call("add", n.call("mul", product, n.const(gamma, f32)), n.const(offset, f32))
    if kind == "SIGMOID":
        return n.call("tanh", scaled)
    if kind != "POLY":
        raise NodeError(f"{n.op_type}: the kernel {kind!r} is none of LINEAR, POLY, RBF and SIGMOID")
    return n.call("pow", scaled, n.const(degree, f32))
