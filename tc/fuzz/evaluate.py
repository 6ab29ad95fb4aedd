"""The oracles: ONNX's reference evaluator and ONNX Runtime, on whole models and on single nodes.

`step` runs one node on concrete values and says how far another correct implementation may be from the result. The bound is measured, not
assumed: the inputs are moved by what is already uncertain about them and the node runs again, and the node's own roundings are added by
the number of its additions. A node whose integers, booleans or shapes change under such a move has no answer to compare (`Unstable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

Value = Any  # np.ndarray, a list of them (a sequence), or None (an absent optional)
Feeds = dict[str, Value]

# No arithmetic on floats: what goes in comes out.
MOVES = frozenset(
    """Identity Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND Expand Tile
    DepthToSpace SpaceToDepth Compress Trilu ReverseSequence Relu Neg Abs Max Min MaxPool GlobalMaxPool ReduceMax ReduceMin Where Clip
    SequenceConstruct SequenceAt SequenceInsert SequenceErase ConcatFromSequence SplitToSequence Optional OptionalGetElement Dropout
    CenterCropPad MaxUnpool TensorScatter Scatter""".split()
)
# Exact as long as operands and results are small multiples of a power of two.
EXACT = MOVES | frozenset(
    """Add Sub Mul Sum MatMul Gemm ReduceSum ReduceL1 ReduceSumSquare CumSum PRelu LeakyRelu Floor Ceil Round Sign Einsum Cast CastLike
    ScatterElements ScatterND Pad TopK Unique Mod Shape Size NonZero Equal Greater Less GreaterOrEqual LessOrEqual IsNaN IsInf ArgMax
    ArgMin Hardmax OneHot Range ThresholdedRelu Constant ConstantOfShape EyeLike Not And Or Xor SequenceLength OptionalHasElement
    NonMaxSuppression Col2Im HardSigmoid""".split()
)
# Sums of products: the error is relative to the sum of the products' magnitudes, which the node itself gives on |inputs|.
LINEAR = frozenset(
    """Add Sub Sum MatMul Gemm Conv ConvTranspose ReduceSum ReduceMean ReduceSumSquare ReduceL1 CumSum Einsum AveragePool Mean
    GlobalAveragePool Col2Im""".split()
)
# Results that may be off by one: a quotient is rounded, and the quotient may be computed with a reciprocal.
ROUNDED = frozenset("QuantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul QLinearAdd".split())
# What the reference evaluator gets wrong: lengths of sequences and directions, equal orders, one spatial dim, stacked scalars, the last
# channel, opsets before 13, dtypes of sums. For them ONNX Runtime alone speaks, for both.
LED_BY_ONNXRUNTIME = frozenset(
    """LSTM GRU RNN GlobalMaxPool BatchNormalization Loop RoiAlign LpNormalization LRN MaxPool ReduceSumSquare Softmax LogSoftmax Hardmax
    SequenceInsert Unique ConvTranspose Unsqueeze""".split()
)
# Of these, what it gets wrong in most cases: alone it does not count.
WRONG_BY_REFERENCE = frozenset("LRN LSTM GRU RNN".split())  # batches are taken for channels; lengths of sequences are ignored
COUNTED = ROUNDED | {"MatMulInteger", "ConvInteger"}  # their integers stand for numbers: what an operand is off by shows in them
COMPARISONS = frozenset(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"))
CONTROL = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_EPS = {np.dtype(np.float64): 2.0**-52, np.dtype(np.float32): 2.0**-23, np.dtype(np.float16): 2.0**-10}
TWINS = 5  # runs of a model with other roundings
_GRID = {11: 2.0**4, 24: 2.0**8, 8: 2.0**2}  # by the bits of a significand: in what multiples exact values are counted
_NATIVE = frozenset("fiub")


class Unstable(Exception):
    """The result depends on how the inputs were rounded."""


class Failed(Exception):
    """No oracle runs the node or model; or, within a node, they disagree."""


def is_float(array: Value) -> bool:
    """Whether an array holds floating-point numbers, the kinds numpy lacks included."""
    return isinstance(array, np.ndarray) and (array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16)


def _no_steps(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """onnxruntime forgets the initial state; after no step it is the state."""
    return operands[0].shape[attrs.get("layout", 0)] == 0


def _no_image(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """There is nothing to sample, or fewer than no windows: ONNX's formula rounds -3 / 2 down, the oracles towards 0."""
    sizes = operands[0].shape[2:]
    kernel, rank = attrs.get("kernel_shape"), len(sizes)
    if 0 in sizes or kernel is None or attrs.get("auto_pad", b"NOTSET").startswith(b"SAME"):
        return 0 in sizes
    strides, dilations = (attrs.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attrs.get("pads", [0] * (2 * rank))
    free = [n + pads[k] + pads[rank + k] - (kernel[k] - 1) * dilations[k] - 1 for k, n in enumerate(sizes)]
    return any(rest // stride + 1 < 0 for rest, stride in zip(free, strides))


def _same_with_gaps(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """Kernels shorter than their stride do not cover size * stride: onnxruntime gives what they cover, the reference evaluator all."""
    kernel = operands[1].shape[2:]
    strides, dilations = (attrs.get(name, [1] * len(kernel)) for name in ("strides", "dilations"))
    gaps = any((k - 1) * d + 1 < s for k, d, s in zip(kernel, dilations, strides))
    return bool(attrs.get("auto_pad", b"NOTSET").startswith(b"SAME")) and gaps


def _pooled_otherwise(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """onnxruntime pads for the kernel as it is without dilations: fewer results than size / stride; and nothing has one maximum."""
    if _no_image(attrs, operands):
        return True
    return attrs.get("auto_pad", b"NOTSET").startswith(b"SAME") and max(attrs.get("dilations", [1])) > 1


def _averaged_otherwise(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """The reference evaluator takes VALID for the kernel as it is without dilations."""
    if _no_image(attrs, operands):
        return True
    return attrs.get("auto_pad", b"NOTSET") == b"VALID" and max(attrs.get("dilations", [1])) > 1


def _classes_without_weight(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """It runs as long as no label is of such a class."""
    return len(operands) > 2 and operands[2] is not None and operands[2].shape != operands[0].shape[1:2]


def _not_finite(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """What is subtracted from infinity gives NaN: by the order of the steps of a LogSoftmax, or of onnxruntime's moving sum of LRN."""
    return not np.isfinite(operands[0].astype(np.float64)).all()


def _has_nan(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """onnxruntime passes over NaN where it looks for the largest; numpy, and `tc`, take it."""
    return bool(np.isnan(operands[0].astype(np.float64)).any())


def _unique_otherwise(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """onnxruntime sorts with a comparison that NaN breaks: what comes after it is lost, or there twice. The reference evaluator, alone with
    the types that onnxruntime does not have, takes what is not to be sorted along the first axis, whichever was asked for."""
    x = operands[0]
    if is_float(x):
        return _has_nan(attrs, operands)
    return x.dtype.kind == "b" and not attrs.get("sorted", 1) and attrs.get("axis", 0) % max(x.ndim, 1) != 0


def _stashed(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """Doubles are normalised as floats by the letter, as doubles by `tc`."""
    return operands[0].dtype == np.float64 and attrs.get("stash_type", 1) == 1


def _of_doubles(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """The numbers in the function by which the reference evaluator computes it are rounded to floats; onnxruntime has it for floats."""
    return operands[0].dtype == np.float64


def _resized_to_one(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """An axis of one element is read at 0 by `pytorch_half_pixel`; by cubic weights the reference evaluator reads it half a step before."""
    if (attrs.get("mode"), attrs.get("coordinate_transformation_mode")) != (b"cubic", b"pytorch_half_pixel"):
        return False
    _, _, scales, sizes = (*operands, None, None)[:4]
    lengths = np.array(operands[0].shape)[attrs.get("axes", slice(None))]
    made = sizes if sizes is not None and len(sizes) else np.floor(lengths * scales)
    if made is sizes and (policy := attrs.get("keep_aspect_ratio_policy", b"stretch")) != b"stretch":
        ratios = sizes / np.maximum(lengths, 1)
        made = np.floor(lengths * (ratios.min() if policy == b"not_larger" else ratios.max()) + 0.5)
    return bool(((lengths > 1) & (made == 1)).any())


def _beyond_doubles(attrs: Mapping[str, Any], operands: Sequence[Value]) -> bool:
    """Integers less a bias are doubles, that of the largest ones being none that an integer holds."""
    return operands[0].dtype.kind in "iu" and bool((np.abs(operands[0].astype(np.float64)) >= 2.0**53).any())


# Where ONNX does not say what the result is, though one oracle gives one, or says something else than the oracle that leads.
UNSAID: dict[str, Callable[[Mapping[str, Any], Sequence[Value]], bool]] = {
    "RNN": _no_steps,
    "GRU": _no_steps,
    "LSTM": _no_steps,
    "RoiAlign": _no_image,
    "ConvTranspose": _same_with_gaps,
    "MaxPool": _pooled_otherwise,
    "AveragePool": _averaged_otherwise,
    "LpPool": _averaged_otherwise,
    "LogSoftmax": _not_finite,
    "LRN": _not_finite,
    "Hardmax": _has_nan,
    "Unique": _unique_otherwise,
    "GroupNormalization": _stashed,
    "Gelu": _of_doubles,
    "Shrink": _beyond_doubles,
    "Resize": _resized_to_one,
    "NegativeLogLikelihoodLoss": _classes_without_weight,
    "SoftmaxCrossEntropyLoss": _classes_without_weight,
}


def epsilon(dtype: np.dtype) -> float:
    """The distance from 1 to the next number of a float type; that of bfloat16 for all that numpy does not know."""
    return _EPS.get(dtype, 2.0**-7)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The bodies that a node carries."""
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def free_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a body takes from the graph around it."""
    bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= node_reads(node) - bound
        bound |= set(node.output)
    return free | ({o.name for o in graph.output} - bound)


def node_reads(node: onnx.NodeProto) -> set[str]:
    """All names that a node reads, those of its bodies included."""
    return {name for name in node.input if name}.union(*(free_names(body) for body in subgraphs(node)))


def _value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype) if value else onnx.TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, kind, None)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def node_model(
    node: onnx.NodeProto, feeds: Feeds, opsets: Sequence[onnx.OperatorSetIdProto], ir_version: int
) -> onnx.ModelProto:
    """A model of one node, whose inputs are all that it reads."""
    inputs = [_value_info(name, feeds[name]) for name in sorted(node_reads(node))]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=list(opsets), ir_version=ir_version)


def run_reference(model: onnx.ModelProto, feeds: Feeds) -> list[Value]:
    """The outputs by ONNX's reference evaluator; Failed with its words."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, dict(feeds))
    except Exception as error:  # whatever it cannot do it says in its own way
        raise Failed(f"reference: {type(error).__name__}: {error}") from error
    return [np.asarray(r) if isinstance(r, np.generic) else r for r in results]


@cache
def _session_options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def has_onnxruntime() -> bool:
    """Whether the second oracle is installed."""
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def run_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[Value]:
    """The outputs by ONNX Runtime without graph optimizations; Failed with its words, or when it is not installed."""
    if not has_onnxruntime():
        raise Failed("onnxruntime: not installed")
    if any(isinstance(v, np.ndarray) and v.dtype.kind not in _NATIVE for v in feeds.values()):
        raise Failed("onnxruntime: its Python interface takes no such dtype")
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), _session_options(), providers=["CPUExecutionProvider"]
        )
        run_options = onnxruntime.RunOptions()
        run_options.log_severity_level = 4
        names = {i.name for i in session.get_inputs()}
        results: list[Value] = session.run(None, {k: v for k, v in feeds.items() if k in names}, run_options)
    except Exception as error:
        raise Failed(f"onnxruntime: {type(error).__name__}: {error}") from error
    return results


@dataclass(frozen=True)
class EvaluationStep:
    """What a node gives: its values; for each, how far a correct implementation may be from it; who says so."""

    outputs: list[Value]
    errors: list[float]
    by_reference: bool
    by_onnxruntime: bool
    missing: str = ""  # what the oracle said that does not run it


def step(
    node: onnx.NodeProto,
    values: Mapping[str, Value],
    errors: Mapping[str, float],
    opsets: Sequence[onnx.OperatorSetIdProto],
    ir_version: int,
    *,
    both: bool = False,
) -> EvaluationStep:
    """Run one node. With `both`, ONNX Runtime runs it too, and Failed is raised when the oracles disagree."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in UNSAID and UNSAID[node.op_type](attrs, [values[name] if name else None for name in node.input]):
        raise Failed(f"what {node.op_type} gives here is not said")
    feeds = {name: values[name] for name in sorted(node_reads(node))}
    model = node_model(node, feeds, opsets, ir_version)
    by_reference = by_onnxruntime = False
    missing = ""
    led = node.op_type in LED_BY_ONNXRUNTIME and has_onnxruntime()
    first, second = (run_onnxruntime, run_reference) if led else (run_reference, run_onnxruntime)
    try:
        outputs, run = first(model, feeds), first
        by_reference, by_onnxruntime = True, led
    except Failed as error:
        if node.op_type in WRONG_BY_REFERENCE and led:
            raise
        outputs, run = second(model, feeds), second
        by_onnxruntime, missing = not led, str(error)
        by_reference = led
    bounds = _bounds(node, model, feeds, errors, outputs, run)
    if both and by_reference and not led:
        try:
            other = run_onnxruntime(model, feeds)
            by_onnxruntime = True
        except Failed as error:
            return EvaluationStep(outputs, bounds, True, False, str(error))
        for mine, theirs, bound in zip(outputs, other, bounds):
            if text := disagreement(mine, theirs, 4 * bound):
                raise Failed(f"the oracles disagree on {node.op_type}: {text}")
    return EvaluationStep(outputs, bounds, by_reference, by_onnxruntime, missing)


def _bounds(
    node: onnx.NodeProto,
    model: onnx.ModelProto,
    feeds: Feeds,
    errors: Mapping[str, float],
    outputs: list[Value],
    run: Any,
) -> list[float]:
    """For each output, the error carried over from the inputs plus the node's own."""
    uncertain = {name: errors.get(name, 0.0) for name in feeds if errors.get(name, 0.0)}
    if any(isinstance(v, list) for v in (*feeds.values(), *outputs)):
        worst = max(uncertain.values(), default=0.0)
        return [worst + _own_of_items(node, feeds, outputs)] * len(outputs)
    if not uncertain and not any(is_float(v) for v in (*feeds.values(), *outputs)):
        return [0.0] * len(outputs)
    if not uncertain and not any(is_float(v) for v in outputs) and node.op_type not in ROUNDED:
        return [0.0] * len(outputs)
    if _is_close_call(node, feeds, uncertain):
        raise Unstable("its truth depends on roundings")
    carried = _carried(model, feeds, uncertain, outputs, run, node.op_type in COUNTED)
    if _is_exact(node) and not uncertain:
        scales = _linear_scales(node, model, feeds, outputs, run)
        if all(_on_grid(o, s) for o, s in zip(outputs, scales)) and all(_on_grid(v, 0.0) for v in feeds.values()):
            return carried
    return [c + o for c, o in zip(carried, _own(node, model, feeds, outputs, run))]


def _is_close_call(node: onnx.NodeProto, feeds: Feeds, uncertain: dict[str, float]) -> bool:
    """Whether a comparison is of numbers that may be equal: random moves seldom make them so."""
    if node.op_type not in COMPARISONS or not uncertain or node.input[0] == node.input[1]:
        return False
    a, b = (feeds[name].astype(np.float64) for name in node.input)
    with np.errstate(all="ignore"):
        return bool((np.abs(a - b) <= sum(uncertain.get(name, 0.0) for name in node.input)).any())


def _is_exact(node: onnx.NodeProto) -> bool:
    if node.op_type in CONTROL:
        return all(_is_exact(inner) for body in subgraphs(node) for inner in body.node)
    return node.op_type in EXACT


def _on_grid(value: Value, scale: float) -> bool:
    """Whether all numbers are multiples of one power of two, and sums up to `scale` of them fit a significand."""
    if not is_float(value):
        return True
    bits = {np.dtype(np.float64): 24, np.dtype(np.float32): 24, np.dtype(np.float16): 11}.get(value.dtype, 8)
    unit = _GRID[bits]
    counted = value.astype(np.float64) * unit
    counted = counted[np.isfinite(counted)]
    most = max(float(np.abs(counted).max(initial=0.0)), scale * unit)
    return most <= 2.0**bits and bool((counted == np.rint(counted)).all())


def _carried(
    model: onnx.ModelProto, feeds: Feeds, uncertain: dict[str, float], outputs: list[Value], run: Any, counts: bool
) -> list[float]:
    """How far the outputs move when the inputs do, the largest of three random moves, doubled. `counts`: integers may move far."""
    moved = [0.0] * len(outputs)
    rng = np.random.default_rng(0)
    if not uncertain:
        return moved
    for size in (1.0, 1.0, 8.0):
        nudged = dict(feeds)
        for name, error in uncertain.items():
            nudged[name] = _nudge(feeds[name], error * size, rng)
        try:
            again = run(model, nudged)
        except Failed as error:
            raise Unstable(str(error)) from error
        for k, (old, new) in enumerate(zip(outputs, again)):
            if old.shape != new.shape or (not is_float(old) and old.dtype.kind == "b" and not np.array_equal(old, new)):
                raise Unstable("its shape or its truth depends on roundings")
            with np.errstate(all="ignore"):
                difference = np.abs(old.astype(np.float64) - new.astype(np.float64))
            if old.dtype.kind in "iu" and difference.max(initial=0.0) > 1 and not counts:
                raise Unstable("its integers depend on roundings")
            difference = np.where(old == new, 0.0, difference)  # inf - inf
            moved[k] = max(moved[k], 2 * float(np.nan_to_num(difference, nan=0.0).max(initial=0.0)) / size)
    for k, old in enumerate(outputs):
        if old.dtype.kind in "iu" and moved[k]:
            moved[k] = float(np.ceil(moved[k])) if counts else 1.0
    return moved


def _nudge(array: np.ndarray, error: float, rng: np.random.Generator) -> np.ndarray:
    signs = rng.integers(0, 2, array.shape) * 2 - 1
    if is_float(array):
        return np.asarray(array.astype(np.float64) + signs * error).astype(array.dtype)
    moved = array.astype(np.int64) + signs * int(np.ceil(error))
    if array.dtype.itemsize < 8:
        moved = moved.clip(np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)  # a byte is not moved round its range
    return np.asarray(moved).astype(array.dtype)


def _linear_scales(
    node: onnx.NodeProto, model: onnx.ModelProto, feeds: Feeds, outputs: list[Value], run: Any
) -> list[float]:
    if node.op_type in LINEAR:
        positive = {name: np.abs(v) if is_float(v) else v for name, v in feeds.items()}
        if node.op_type == "Sub":
            node = onnx.NodeProto.FromString(node.SerializeToString())
            node.op_type = "Add"
            model = onnx.ModelProto.FromString(model.SerializeToString())
            model.graph.node[0].CopyFrom(node)
        try:
            return [_largest(v) for v in run(model, positive)]
        except Failed:
            pass
    return [_largest(v) for v in outputs]


def _own(node: onnx.NodeProto, model: onnx.ModelProto, feeds: Feeds, outputs: list[Value], run: Any) -> list[float]:
    """Roundings inside the node: (4 + log2 n) of them, n its operands per result, each of the largest intermediate."""
    if node.op_type in ROUNDED:
        return [1.0 if o.dtype.kind in "iu" else epsilon(o.dtype) * 8 * _largest(o) for o in outputs]
    if node.op_type in MOVES:
        return [0.0] * len(outputs)
    floats = [v for v in (*feeds.values(), *outputs) if is_float(v)]
    eps = max((epsilon(v.dtype) for v in floats), default=0.0)
    terms = max((v.size for v in floats), default=1)
    count = _roundings_of(terms)
    scales = _linear_scales(node, model, feeds, outputs, run)
    if node.op_type not in LINEAR:
        widest = max((_largest(v) for v in feeds.values() if is_float(v)), default=0.0)
        scales = [s + (min(widest, 100.0) if node.op_type != "Div" else 0.0) for s in scales]
        count *= 64 if node.op_type in CONTROL | {"LSTM", "GRU", "RNN", "Attention", "DFT", "STFT"} else 2
    return [eps * count * s if is_float(o) else 0.0 for o, s in zip(outputs, scales)]


def _roundings_of(terms: int) -> float:
    return float(4 + np.log2(1 + terms) + np.sqrt(terms) / 4)


def _own_of_items(node: onnx.NodeProto, feeds: Feeds, outputs: list[Value]) -> float:
    """Roundings inside a body that takes or gives sequences; what else there is for these moves them."""
    if node.op_type not in CONTROL:
        return 0.0
    values = [item for v in (*feeds.values(), *outputs) for item in (v if isinstance(v, list) else [v]) if is_float(item)]
    terms = max((v.size for v in values), default=1)
    count = 64 * _roundings_of(terms)
    return max((epsilon(v.dtype) * count * min(_largest(v), 100.0) for v in values), default=0.0)


def _largest(value: Value) -> float:
    if not isinstance(value, np.ndarray) or value.dtype.kind == "b":
        return 0.0
    numbers = np.abs(value.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def agrees(found: Value, expected: Value, bound: float) -> bool:
    """Same kind, dtype, shape, NaNs and infinities, and no number further away than `bound`."""
    return not disagreement(found, expected, bound)


def disagreement(found: Value, expected: Value, bound: float) -> str:
    """What is wrong with `found`, in words; nothing when it agrees."""
    if isinstance(expected, list) or isinstance(found, list):
        if not isinstance(found, list) or not isinstance(expected, list) or len(found) != len(expected):
            return "another length of a sequence"
        return next((text for f, e in zip(found, expected) if (text := disagreement(f, e, bound))), "")
    if found is None or expected is None:
        return "" if found is expected else "an optional that is there and not there"
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return f"shape {found.shape} instead of {expected.shape}"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype} instead of {expected.dtype}"
    if found.dtype.kind in "OUS" or found.dtype.kind == "b":
        return "" if np.array_equal(found, expected) else "other values"
    f, e = found.astype(np.float64), expected.astype(np.float64)
    if found.dtype.kind in "iu" and bound < 1:
        return "" if np.array_equal(found, expected) else _worst(f, e, bound)
    finite = np.isfinite(e)
    if not np.array_equal(f[~finite], e[~finite], equal_nan=True) or not np.isfinite(f[finite]).all():
        return "NaN or infinity elsewhere"
    return "" if (np.abs(f[finite] - e[finite]) <= bound).all() else _worst(f, e, bound)


def _worst(found: np.ndarray, expected: np.ndarray, bound: float) -> str:
    with np.errstate(all="ignore"):
        distance = np.nan_to_num(np.abs(found - expected), nan=0.0)
    at = np.unravel_index(int(distance.argmax()), distance.shape)
    return f"{found[at]!r} instead of {expected[at]!r} at {tuple(map(int, at))}, allowed is {bound:.3g}"


@dataclass(frozen=True)
class ValueTrace:
    """All values of a model by name, by running its nodes one after another, and the error allowed for each."""

    values: Feeds
    errors: dict[str, float]
    by_reference: bool
    problem: str  # why the run ended early, or empty


def trace(model: onnx.ModelProto, feeds: Feeds) -> ValueTrace:
    """Run a model node by node. A node that is unstable leaves infinite errors from there on."""
    from onnx import numpy_helper

    values: Feeds = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    values |= feeds
    errors: dict[str, float] = {}
    by_reference = True
    for node in model.graph.node:
        if missing := node_reads(node) - set(values):
            return ValueTrace(
                values, errors, by_reference, f"{node.op_type} reads {', '.join(sorted(missing))}, which nothing makes"
            )
        known = {n: e for n, e in errors.items() if e != float("inf")}
        lost = any(errors.get(name) == float("inf") for name in node_reads(node))
        try:
            done = step(node, values, {} if lost else known, model.opset_import, model.ir_version)
            bounds = [float("inf")] * len(done.errors) if lost else done.errors
            results = done.outputs
            by_reference &= done.by_reference
        except Unstable:
            done = step(node, values, {}, model.opset_import, model.ir_version)
            results, bounds = done.outputs, [float("inf")] * len(done.outputs)
        except Failed as error:
            return ValueTrace(values, errors, by_reference, f"{node.op_type}: {error}")
        for name, value, bound in zip([n for n in node.output if n], results, bounds):
            values[name], errors[name] = value, bound
    return ValueTrace(values, errors, by_reference, "")


def spread(model: onnx.ModelProto, values: Feeds, feeds: Feeds, rounding: float) -> dict[str, float]:
    """How far the values of a model move when each node reads and gives floats that are off by up to `rounding`, relative: by running it
    so a few times (Monte Carlo arithmetic: D. S. Parker, 1997). `values`: those without such errors. Bytes that were rounded are off by
    one at times. A value whose shape moves has no bound."""
    from onnx import numpy_helper

    bounds = {name: 4 * rounding * _largest(value) for name, value in values.items()}
    for seed in range(TWINS):
        rng = np.random.default_rng(seed)
        twin: Feeds = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | feeds
        for node in model.graph.node:
            exact = set(node.input[1:]) if node.op_type == "Resize" else set()  # they say how large the result is
            reads = {name: twin[name] if name in exact else _rounded(twin[name], rounding, rng) for name in sorted(node_reads(node))}
            one = node_model(node, reads, model.opset_import, model.ir_version)
            try:
                outputs = run_onnxruntime(one, reads)
            except Failed:
                outputs = run_reference(one, reads)
            if node.op_type in ROUNDED:
                outputs = [_nudge(o, 1.0, rng) if not is_float(o) and o.ndim and rng.random() < 0.9 else o for o in outputs]
            rounded = outputs if node.op_type == "Constant" else [_rounded(o, rounding, rng) for o in outputs]
            twin |= dict(zip([n for n in node.output if n], rounded))
        for name, value in values.items():
            bounds[name] = max(bounds[name], 2 * _distance(value, twin[name]))
    return bounds


def _rounded(value: Value, rounding: float, rng: np.random.Generator) -> Value:
    if not is_float(value) or value.dtype != np.float32:
        return value
    return np.asarray(value * (1 + rounding * rng.uniform(-1, 1, value.shape)), np.float32)


def _distance(value: Value, other: Value) -> float:
    if not isinstance(value, np.ndarray) or value.shape != other.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        apart = np.abs(value.astype(np.float64) - other.astype(np.float64))
    return float(np.nan_to_num(apart, nan=0.0, posinf=0.0).max(initial=0.0))


def output_names(model: onnx.ModelProto) -> list[str]:
    """The names of a model's results."""
    return [value.name for value in model.graph.output]
