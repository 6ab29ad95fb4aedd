"""Operators of other domains: of classical learning ("ai.onnx.ml"), and those that onnxruntime writes into models ("com.microsoft")."""

from __future__ import annotations

from typing import Any

import numpy as np

from tc.fuzz.builder import F32, I8, I64, LEARNING, MICROSOFT, U8, Builder, Held
from tc.fuzz.operators.quantize import bytes_like, scale, zero_point
from tc.fuzz.operators.row import Draw, Row, no_attrs, some


def _numbers(b: Builder, count: int) -> list[float]:
    return [float(x) for x in b.rng.integers(-8, 9, count) / 4]


# -- ai.onnx.ml


def _table(b: Builder) -> Held:
    """Rows of a few features."""
    return (
        b.data(F32, (b.dim(), b.extent(1, 6)))
        if b.chance(0.7)
        else b.pick((F32,), rank=2, where=lambda h: h.shape[1] > 0)
    )


def scaler(b: Builder) -> None:
    x = _table(b)
    count = b.choose((1, x.shape[1]))
    b.emit("Scaler", [x], domain=LEARNING, offset=_numbers(b, count), scale=_numbers(b, count))


def imputer(b: Builder) -> None:
    x = _table(b)
    count = b.choose((1, x.shape[1]))
    replaced = b.choose((0.25, -1.0, float("nan")))
    b.emit("Imputer", [x], domain=LEARNING, imputed_value_floats=_numbers(b, count), replaced_value_float=replaced)


def array_feature_extractor(b: Builder) -> None:
    x = _table(b)
    chosen = b.parameter(b.rng.integers(0, x.shape[1], b.extent(1, 4)), kind="index")
    b.emit("ArrayFeatureExtractor", [x, chosen], domain=LEARNING)


def label_encoder(b: Builder) -> None:
    keys = [int(k) for k in b.rng.permutation(9)[: b.integer(1, 5)] - 3]
    x = b.pick((I64,))
    if b.chance(0.5):
        values: dict[str, Any] = {"values_floats": _numbers(b, len(keys)), "default_float": -0.5}
    else:
        values = {"values_int64s": [k * 3 for k in keys], "default_int64": -7}
    b.emit("LabelEncoder", [x], domain=LEARNING, keys_int64s=keys, **values)


def one_hot_encoder(b: Builder) -> None:
    x = b.parameter(b.rng.integers(0, 4, b.shape(b.integer(1, 2), most=12)), kind="data")
    b.emit("OneHotEncoder", [x], domain=LEARNING, cats_int64s=[0, 1, 2, 3], zeros=1)


def feature_vectorizer(b: Builder) -> None:
    x = _table(b)
    others = [b.data(F32, (x.shape[0], b.integer(1, 3))) for _ in range(b.integer(0, 2))]
    parts = [x, *others]
    b.emit("FeatureVectorizer", parts, domain=LEARNING, inputdimensions=[p.shape[1] for p in parts])


def linear_regressor(b: Builder) -> None:
    x, targets = _table(b), b.extent(1, 3)
    attrs: dict[str, Any] = {"coefficients": _numbers(b, targets * x.shape[1]), "targets": targets}
    if b.chance(0.6):
        attrs["intercepts"] = _numbers(b, targets)
    b.emit("LinearRegressor", [x], domain=LEARNING, **attrs)


def svm_regressor(b: Builder) -> None:
    x, count = _table(b), b.extent(1, 5)
    attrs: dict[str, Any] = {
        "kernel_type": b.choose(("LINEAR", "POLY", "RBF", "SIGMOID")),
        "kernel_params": [0.25, 0.5, 2.0],
        "support_vectors": _numbers(b, count * x.shape[1]),
        "coefficients": _numbers(b, count),
        "n_supports": count,
        "rho": _numbers(b, 1),
    }
    b.emit("SVMRegressor", [x], domain=LEARNING, **attrs)


def trees(b: Builder) -> None:
    """Thresholds lie between the numbers that features have, so that no rounding decides a branch."""
    features, targets = b.extent(1, 5), b.integer(1, 3)
    x = b.data(F32, (b.dim(), features))
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree: int, free: list[int], depth: int) -> int:
        node = free.pop(0)
        is_leaf = depth == 0 or b.chance(0.25)
        mode = "LEAF" if is_leaf else b.choose(("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"))
        place = len(nodes["nodeids"])
        for name, value in zip(
            nodes,
            (tree, node, mode, b.integer(0, features - 1), float(b.integer(-12, 12)) / 4 + 0.125, 0, 0),
            strict=True,
        ):
            nodes[name].append(value)
        if is_leaf:
            for target in range(targets):
                for name, value in zip(leaves, (tree, node, target, float(b.integer(-8, 8)) / 4), strict=True):
                    leaves[name].append(value)
        else:
            nodes["truenodeids"][place] = grow(tree, free, depth - 1)
            nodes["falsenodeids"][place] = grow(tree, free, depth - 1)
        return node

    for tree in range(b.integer(1, 4)):
        grow(tree, list(range(64)), b.integer(0, 4))
    attrs = {f"nodes_{name}": value for name, value in nodes.items()} | {
        f"target_{name}": value for name, value in leaves.items()
    }
    kind = b.choose(("SUM", "AVERAGE", "MIN", "MAX"))
    b.emit("TreeEnsembleRegressor", [x], domain=LEARNING, n_targets=targets, aggregate_function=kind, **attrs)


# -- com.microsoft


def _row_of(op: str, draw: Draw, weight: float = 0.5) -> Row:
    return Row(op, draw, weight=weight, simple=False)


def activation(op: str, attrs: Any = no_attrs) -> Row:
    return _row_of(op, lambda b: b.emit(op, [b.finite(b.pick((F32,)))], domain=MICROSOFT, **attrs(b)))


def _hidden(b: Builder) -> Held:
    """Of three dims, as between the layers of a transformer."""
    known = [h for h in b.pool if h.dtype == F32 and h.rank == 3 and 0 not in h.shape]
    return b.finite(
        b.choose(known)
        if known and b.chance(0.5)
        else b.data(F32, (b.integer(1, 3), b.integer(1, 5), b.choose((1, 3, 4, 8, 17))))
    )


def bias_gelu(b: Builder) -> None:
    x = _hidden(b)
    b.emit("BiasGelu", [x, b.weights(F32, x.shape[-1:])], domain=MICROSOFT)


def fast_gelu(b: Builder) -> None:
    x = _hidden(b)
    b.emit("FastGelu", [x, b.weights(F32, x.shape[-1:]) if b.chance(0.5) else None], domain=MICROSOFT)


def skip_norm(b: Builder) -> None:
    x = _hidden(b)
    size = x.shape[-1:]
    skip, factor = b.data(F32, x.shape), b.weights(F32, size)
    b.finite(skip)
    if b.chance(0.5):
        inputs = [
            x,
            skip,
            factor,
            b.weights(F32, size) if b.chance(0.6) else None,
            b.weights(F32, size) if b.chance(0.5) else None,
        ]
        b.emit("SkipLayerNormalization", inputs, domain=MICROSOFT, epsilon=1e-3)
    else:
        inputs = [x, skip, factor, b.weights(F32, size) if b.chance(0.5) else None]
        b.emit("SkipSimplifiedLayerNormalization", inputs, domain=MICROSOFT, epsilon=1e-3)


def fused_matmul(b: Builder) -> None:
    m, k, n = (b.extent(1, 6) for _ in range(3))
    batch = tuple(b.shape(b.integer(0, 2), most=3))
    left, right = b.integer(0, 1), b.integer(0, 1)
    x = b.finite(b.data(F32, (*batch, k, m) if left else (*batch, m, k)))
    y = b.finite(b.data(F32, (*batch, n, k) if right else (*batch, k, n)))
    b.emit("FusedMatMul", [x, y], domain=MICROSOFT, transA=left, transB=right, alpha=b.choose((1.0, 0.5, -2.0)))


def fused_conv(b: Builder) -> None:
    x = b.finite(b.image((F32,), 4, most=500))
    out = b.extent(1, 4)
    w = b.weights(F32, (out, x.shape[1], b.choose((1, 3)), 1))
    kind = b.choose(("Relu", "Sigmoid", "Tanh"))
    b.emit(
        "FusedConv",
        [x, w, b.weights(F32, (out,)) if b.chance(0.5) else None],
        domain=MICROSOFT,
        activation=kind,
        pads=[1, 0, 1, 0],
    )


def multi_head_attention(b: Builder) -> None:
    heads, batch, size = b.integer(1, 3), b.integer(1, 2), b.choose((1, 2, 4))
    q, k = b.extent(1, 4), b.extent(1, 5)
    width = heads * size
    inputs = [b.finite(b.data(F32, (batch, n, width))) for n in (q, k, k)]
    b.emit("MultiHeadAttention", inputs, domain=MICROSOFT, num_heads=heads)


def quantized_arithmetic(b: Builder) -> None:
    dtype = b.choose((U8, I8))
    shape = tuple(b.shape(b.integer(1, 3), most=6))
    other = tuple(n if b.chance(0.6) else 1 for n in shape)
    inputs = [v for s in (shape, other) for v in (bytes_like(b, dtype, s), scale(b), zero_point(b, dtype))]
    big = b.constant(np.array(b.choose((2.0, 16.0)), np.float32))
    b.emit(b.choose(("QLinearAdd", "QLinearMul")), [*inputs, big, zero_point(b, dtype)], domain=MICROSOFT)


def integer_product_to_float(b: Builder) -> None:
    left, right = U8, b.choose((U8, I8))
    m, k, n = (b.extent(1, 7) for _ in range(3))
    x = bytes_like(b, left, (m, k))
    # seven bits: with eight, sums saturate in onnxruntime where the processor has no exact instruction
    y = b.fresh(
        b.rng.integers(0 if right == U8 else -63, 64, (k, n)).astype(right), "weights", 0.5
    )
    inputs = [
        x,
        y,
        scale(b),
        scale(b),
        zero_point(b, left),
        zero_point(b, right),
        b.weights(F32, (n,)) if b.chance(0.5) else None,
    ]
    b.emit("MatMulIntegerToFloat", inputs, domain=MICROSOFT)


def product_of_few_bits(b: Builder) -> None:
    k, n, block = b.choose((16, 32, 48, 70)), b.extent(1, 9), b.choose((16, 32))
    blocks = -(-k // block)
    x = b.finite(b.data(F32, (*b.shape(b.integer(0, 1), most=3), b.extent(1, 6), k)))
    packed = b.constant(b.rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8))
    scales = b.constant((b.rng.integers(1, 5, n * blocks) / 4).astype(np.float32))
    zeros = b.constant(b.rng.integers(0, 256, n * (-(-blocks // 2))).astype(np.uint8)) if b.chance(0.5) else None
    b.emit("MatMulNBits", [x, packed, scales, zeros], domain=MICROSOFT, K=k, N=n, bits=4, block_size=block)


ROWS = (
    *(
        Row(op, draw, since=9, weight=0.3, simple=False)
        for op, draw in {
            "Scaler": scaler,
            "Imputer": imputer,
            "ArrayFeatureExtractor": array_feature_extractor,
            "LabelEncoder": label_encoder,
            "OneHotEncoder": one_hot_encoder,
            "FeatureVectorizer": feature_vectorizer,
            "LinearRegressor": linear_regressor,
            "SVMRegressor": svm_regressor,
            "TreeEnsembleRegressor": trees,
            "Binarizer": lambda b: b.emit("Binarizer", [_table(b)], domain=LEARNING, threshold=b.choose((0.0, 0.375))),
            "Normalizer": lambda b: b.emit(
                "Normalizer", [b.finite(_table(b))], domain=LEARNING, norm=b.choose(("MAX", "L1", "L2"))
            ),
        }.items()
    ),
    activation("Gelu"),
    activation("QuickGelu", some(alpha=(1.702, 1.0))),
    _row_of("BiasGelu", bias_gelu),
    _row_of("FastGelu", fast_gelu),
    _row_of("SkipLayerNormalization", skip_norm, 0.8),
    _row_of("FusedMatMul", fused_matmul, 0.8),
    _row_of("FusedConv", fused_conv),
    _row_of("MultiHeadAttention", multi_head_attention),
    _row_of("QLinearAdd", quantized_arithmetic, 0.8),
    _row_of("MatMulIntegerToFloat", integer_product_to_float),
    _row_of("MatMulNBits", product_of_few_bits, 0.8),
)
