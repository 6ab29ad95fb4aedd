"""Blocked layouts: small convolution networks of every shape against onnxruntime, and nothing leaks from the lanes past the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.compiler import run_stages
from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.graph import Call, Function, bodies_of
from tc.ir.loop import PrimFunc
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.ir.printer import print_ir
from tc.ir.structural import first_difference
from tc.ir.verify import verify
from tc.ops import blocked
from tc.ops.registry import OPS
from tc.passes.graph.blocked_literals import block_axes
from tc.passes.graph.convert_layout import DEVICE_BLOCK, convert_layout
from tc.passes.manager import run_pipeline
from tc.passes.pipeline import SIMPLIFY
from tc.runtime.builder import ModuleBuilder, build_module
from tc.schedule.knobs import Knob, Value
from tc.stages import interpret_in_f64
from tc.target import Target, native_target
from tests.draws import some_of

Arrays = dict[str, np.ndarray]

CHANNELS = (1, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 48)


class Net:
    """A network in the making. `shapes` holds every value [n, c, h, w] that a layer may read."""

    def __init__(self, seed: int = 0, shape: tuple[int, ...] = (1, 16, 7, 6)) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays: Arrays = {"x": self.normal(*shape)}
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def normal(self, *shape: int) -> np.ndarray:
        return np.asarray(self.rng.standard_normal(shape), np.float32)

    def const(self, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, f"c{len(self.weights)}"))
        return self.weights[-1].name

    def input(self, value: np.ndarray) -> str:
        name = f"in{len(self.arrays)}"
        self.arrays[name] = value
        return name

    def op(self, kind: str, *inputs: str, shape: tuple[int, ...] | None = None, **attrs: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"t{len(self.nodes)}"], f"n{len(self.nodes)}", **attrs))
        name = self.nodes[-1].output[0]
        if shape is not None:
            self.shapes[name] = shape
        return name

    def conv(
        self, x: str, outputs: int, kernel: int = 3, stride: int = 1, dilation: int = 1, groups: int = 1, bias: bool = True
    ) -> str:
        n, c, *space = self.shapes[x]
        w = self.normal(outputs, c // groups, *(kernel,) * len(space)) / np.float32(np.sqrt(c // groups * kernel ** len(space)))
        pad = (kernel - 1) * dilation // 2
        sizes = [(d + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for d in space]
        operands = [x, self.const(w), *([self.const(self.normal(outputs))] if bias else [])]
        rank = len(space)
        return self.op(
            "Conv", *operands, shape=(n, outputs, *sizes), group=groups,
            strides=[stride] * rank, dilations=[dilation] * rank, pads=[pad] * 2 * rank,
        )  # fmt: skip

    def same(self, kind: str, x: str, *others: str, **attrs: object) -> str:
        """An operator whose result has the shape of its first operand."""
        return self.op(kind, x, *others, shape=self.shapes[x], **attrs)

    def group_norm(self, x: str, groups: int) -> str:
        """As it is exported: as a normalisation of instances whose channels are the groups."""
        shape = self.shapes[x]
        ones, zeros = (self.const(np.full(groups, value, np.float32)) for value in (1, 0))
        grouped = self.op("Reshape", x, self.const(np.array([0, groups, -1])))
        normal = self.op("InstanceNormalization", grouped, ones, zeros, epsilon=0.1)
        return self.op("Reshape", normal, self.const(np.array(shape)), shape=shape)

    def finish(self, *outputs: str, symbolic: tuple[int, ...] = ()) -> bytes:
        """The model; the axes `symbolic` of all inputs [n, c, h, w] are symbolic dims."""

        def dims(array: np.ndarray) -> list[object]:
            return [f"d{k}" if k in symbolic and array.ndim > 2 else size for k, size in enumerate(array.shape)]

        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims(a)) for name, a in self.arrays.items()]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def expected(model: bytes, arrays: Arrays) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, arrays)


def assert_close(found: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    """NaN and infinities in the same places; the rest apart by at most `tolerance` of the largest finite magnitude."""
    assert found.shape == wanted.shape
    largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * largest)


def check(model: bytes, arrays: Arrays, tolerance: float = 1e-5) -> None:
    """The compiled model, with the same bits on one thread and on two, against onnxruntime."""
    wanted = expected(model, arrays)
    one, two = (list(tc.compile(model, threads=threads).run(arrays).values()) for threads in (1, 2))
    for a, b, want in zip(one, two, wanted, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))
        assert_close(a, want, tolerance)


def check_where_ill_conditioned(model: bytes, arrays: Arrays) -> None:
    """`check`, of outputs of which onnxruntime itself is far from exact: as far again is no mistake."""
    wanted, exact = expected(model, arrays), interpret_in_f64(model, arrays).values()
    for found, want, true in zip(tc.compile(model).run(arrays).values(), wanted, exact, strict=True):
        known = np.isfinite(want) & np.isfinite(true)
        largest = np.abs(want[known]).max(initial=1.0)
        assert_close(found, want, 1e-4 + 4 * np.abs(want - true)[known].max(initial=0.0) / largest)


def blocked_ops(model: bytes) -> list[str]:
    """The operators after the pass, those of bodies included."""
    found: list[str] = []

    def visit(func: Function) -> None:
        for binding in func.bindings:
            if isinstance(binding.value, Call):
                found.append(binding.value.op)
            for body in bodies_of(binding.value):
                visit(body)

    visit(convert_layout(run_pipeline(import_model(model).module, SIMPLIFY), block=native_target().lanes(32)).main)
    return found


# -- random networks


def random_layer(net: Net, x: str) -> str:
    """One more layer on top of `x`, of a random kind."""
    rng = net.rng
    n, c, h, w = net.shapes[x]
    outputs = int(rng.choice(CHANNELS))
    match int(rng.integers(0, 22)):
        case 0 | 1 | 2:
            return net.conv(x, outputs, int(rng.choice([1, 3, 5])), int(rng.choice([1, 1, 2])), bias=bool(rng.integers(2)))
        case 3:
            return net.conv(x, outputs, 3, dilation=2)
        case 4:
            return net.conv(x, c, 3, int(rng.choice([1, 2])), groups=c)
        case 5:
            groups = int(rng.choice([g for g in (1, 2, 3, 4) if c % g == 0]))
            return net.conv(x, groups * int(rng.integers(1, 20)), 3, groups=groups)
        case 6:
            return net.same(str(rng.choice(["Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"])), x)
        case 7:
            shape = [(), (c, 1, 1), (1, c, 1, 1), (1, 1, h, w), (c, h, w), (h, w), (w,), (1,), (n, c, h, 1), (1, 1, 1)]
            operand = net.normal(*shape[int(rng.integers(len(shape)))])
            made = net.const(operand) if rng.integers(2) else net.input(operand)
            return net.same(str(rng.choice(["Add", "Mul", "Sub"])), x, made)
        case 8:
            twins = [name for name, shape in net.shapes.items() if shape == net.shapes[x]]
            return net.same("Add", x, str(rng.choice(twins)))
        case 9:
            mates = [name for name, s in net.shapes.items() if (s[0], *s[2:]) == (n, h, w)]
            other = str(rng.choice(mates))
            return net.op("Concat", x, other, shape=(n, c + net.shapes[other][1], h, w), axis=1)
        case 10:
            kind = str(rng.choice(["MaxPool", "AveragePool"]))
            return net.op(kind, x, shape=(n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        case 11:  # squeeze and excitation
            mean = net.op("GlobalAveragePool", x, shape=(n, c, 1, 1))
            return net.same("Mul", x, net.same("Sigmoid", net.conv(mean, c, 1)))
        case 12:
            return net.same("Sub", x, net.op("ReduceMean", x, net.const(np.array([2, 3])), keepdims=1))
        case 13:
            scales = net.const(np.array([1, 1, 2, 2], np.float32))
            mode = str(rng.choice(["nearest", "linear"]))
            return net.op("Resize", x, "", scales, shape=(n, c, 2 * h, 2 * w), mode=mode) if h * w <= 100 else x
        case 14:
            scale, shift, mean = (net.const(net.normal(c)) for _ in range(3))
            return net.same("BatchNormalization", x, scale, shift, mean, net.const(np.abs(net.normal(c)) + 0.5))
        case 15:
            return net.same("Softmax", x, axis=int(rng.integers(1, 4)))
        case 16:
            weights = net.normal(c, outputs, 2, 2) / np.float32(np.sqrt(c))
            made = net.op("ConvTranspose", x, net.const(weights), shape=(n, outputs, 2 * h, 2 * w), strides=[2, 2])
            return made if h * w <= 100 else x
        case 17:
            return net.op("Transpose", x, shape=(n, c, w, h), perm=[0, 1, 3, 2])
        case 18:
            scale, shift = net.const(net.normal(c)), net.const(net.normal(c))
            return net.same("InstanceNormalization", x, scale, shift, epsilon=0.1)
        case 19:
            return net.group_norm(x, int(rng.choice([g for g in range(1, c + 1) if c % g == 0])))
        case 20:
            mode = str(rng.choice(["constant", "edge", "reflect"]))
            top, right = (int(rng.integers(0, min(size, 3))) for size in (h, w))
            return net.op("Pad", x, net.const(np.array([0, 0, top, 0, 0, 0, 0, right])), shape=(n, c, h + top, w + right), mode=mode)
        case _:
            part = max(c // 2, 1)
            bounds = [net.const(np.array([value])) for value in (c - part, c, 1)]
            return net.op("Slice", x, *bounds, shape=(n, part, h, w))


def random_net(seed: int) -> Net:
    rng = np.random.default_rng(seed)
    net = Net(seed, (int(rng.integers(1, 3)), int(rng.choice(CHANNELS)), int(rng.integers(1, 12)), int(rng.integers(1, 12))))
    x = net.conv("x", int(rng.choice(CHANNELS)))
    for _ in range(7):
        x = random_layer(net, x)
    net.conv(x, int(rng.choice(CHANNELS)), 1)
    return net


@pytest.mark.parametrize("seed", some_of(range(15), quick=range(5)))
def test_random_networks(seed: int) -> None:
    net = random_net(seed)
    last = list(net.shapes)[-1]
    read = {name for node in net.nodes for name in node.input}
    loose = [name for name in net.shapes if name not in read and name not in (last, "x")]
    model = net.finish(last, *loose)

    check(model, net.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_random_networks(seed: int) -> None:
    net = random_net(seed)

    check(net.finish(list(net.shapes)[-1]), net.arrays)


class AnyAnswers:
    """A `tc.codegen.kernels.TunedDecisions` with default schedules, and an answer drawn at random for every question of a graph pass."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.given: dict[tuple[str, str], Value] = {}

    def schedule(self, func: PrimFunc) -> None:
        return None

    def decide(self, knob: Knob) -> Value:
        return self.given.setdefault(knob.place, knob.options[int(self.rng.integers(len(knob.options)))])


def check_any_answers(seed: int) -> AnyAnswers:
    """A random network compiled with answers drawn at random, against onnxruntime."""
    net, answers, target = random_net(seed), AnyAnswers(seed), dataclasses.replace(native_target(), cores=2)
    model = net.finish(list(net.shapes)[-1])
    builder = ModuleBuilder(target)
    module = build_module(run_stages(model, target, tuned=answers, ready=builder.want), builder, 2)

    for found, wanted in zip(module.run(net.arrays).values(), expected(model, net.arrays), strict=True):
        assert_close(found, wanted)
    return answers


@pytest.mark.parametrize("count", some_of([6, 12], quick=[6]))
def test_random_networks_whatever_the_passes_are_answered(count: int) -> None:
    given = [place for seed in range(count) for place in check_any_answers(seed).given]

    assert {name.split("/")[0] for name, _ in given} == {"convert_layout", "fuse_ops", "use_winograd"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300, 400))
def test_many_random_networks_whatever_the_passes_are_answered(seed: int) -> None:
    check_any_answers(seed)


def test_how_far_estimates_hold_decides_the_layout() -> None:
    net = Net(0, (1, 64, 40, 40))
    net.conv("x", 64, 1)
    module = run_pipeline(import_model(net.finish(list(net.shapes)[-1])).module, SIMPLIFY)
    asked: list[Knob] = []

    def decide(knob: Knob) -> Value:
        asked.append(knob)
        return 25 if knob.name == "convert_layout/rate of copies, %" else knob.default

    plain, same = convert_layout(module), convert_layout(module, decide=lambda knob: knob.default)
    dear = convert_layout(module, decide=decide)

    assert same is module and plain is module, "one pointwise convolution does not pay for two copies"
    assert dear is module, "and even less for dear ones"
    assert {knob.key for knob in asked} == {asked[0].key} and not any(knob.alone for knob in asked)
    slow = convert_layout(module, decide=lambda q: 25 if "pointwise" in q.name else q.default)
    assert "conv_blocked" in [binding.value.op for binding in slow.main.bindings if isinstance(binding.value, Call)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_every_stage_of_a_random_network_round_trips_as_text(seed: int) -> None:
    net = random_net(seed)
    stages = run_stages(net.finish(list(net.shapes)[-1]), native_target())
    kernels = IRModule(tuple(kernel.scheduled for kernel in stages.kernels.values()))

    for module in (stages.imported.module, stages.graph, stages.lowered, stages.module, kernels):
        constants: Arrays = {}
        text = print_ir(module, constants)
        assert first_difference(module, parse_module(text, constants)) is None


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes past the end hold NaN wherever the reference kernels make blocks."""
    plain = blocked.reference_block

    def reference_block(arrays: list[np.ndarray], attrs: object) -> np.ndarray:
        x = arrays[0]
        inside = plain([np.ones(x.shape, bool)], attrs)
        made = plain(arrays, attrs)
        return np.where(inside, made, np.nan).astype(made.dtype) if made.dtype.kind == "f" else made

    monkeypatch.setattr(blocked, "reference_block", reference_block)
    monkeypatch.setitem(OPS, "block", dataclasses.replace(OPS["block"], reference=reference_block))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("block", [4, 8, 16, 64])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_pass_keeps_the_meaning_whatever_the_spare_lanes_hold(seed: int, block: int) -> None:
    net = random_net(seed)
    before = run_pipeline(import_model(net.finish(list(net.shapes)[-1])).module, SIMPLIFY)

    after = convert_layout(before, block=block)

    verify(after)
    inputs = [net.arrays[param.name] for param in before.main.params]
    for found, wanted in zip(_results(after, inputs), _results(before, inputs), strict=True):
        assert_close(found, wanted)


def _results(module: IRModule, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return list(run_function(module, "main", inputs))


def test_random_networks_do_run_on_blocks() -> None:
    found = [blocked_ops(net.finish(list(net.shapes)[-1])) for net in map(random_net, range(15))]

    assert sum("conv_blocked" in ops for ops in found) >= 10
    assert any("block" in ops for ops in found) and any("unblock" in ops for ops in found)


# -- what each layer must keep


@pytest.mark.parametrize("channels", some_of(range(3, 19), quick=(3, 4, 5, 7, 8, 9, 15, 16, 17, 18)))
def test_nothing_leaks_from_the_lanes_past_the_end(channels: int) -> None:
    """log(0) and 1 / 0 in lanes that do not exist; infinities and NaN in some pixels of those that do."""
    net = Net(channels, (1, channels, 6, 6))
    net.arrays["x"][0, channels - 1, 1, 2] = np.inf
    net.arrays["x"][0, 0, 4, 4] = np.nan
    x = net.conv("x", channels, 1, bias=False)
    x = net.same("Reciprocal", net.same("Abs", x))
    x = net.conv(x, channels + 1, 3, 2, bias=False)
    x = net.same("Log", net.same("Exp", net.same("Tanh", x)))
    x = net.conv(net.same("Reciprocal", x), channels, 1)
    mean = net.op("GlobalAveragePool", x, shape=(1, channels, 1, 1))
    total = net.op("ReduceSum", x, net.const(np.array([1])), keepdims=1)
    largest = net.op("ReduceMax", x, net.const(np.array([1])), keepdims=1)

    with np.errstate(all="ignore"):
        check_where_ill_conditioned(net.finish(x, mean, total, largest), net.arrays)


@pytest.mark.parametrize("channels", [3, 5, 16, 17, 20])
def test_infinities_stay_in_their_channels_in_depthwise_convolutions(channels: int) -> None:
    net = Net(1, (1, channels, 5, 9))
    net.arrays["x"][0, channels // 2, 2, 3] = -np.inf
    x = net.conv(net.same("Relu", net.conv("x", channels, 3, groups=channels)), channels, 3, groups=channels, bias=False)

    check(net.finish(x), net.arrays)


OPERANDS = [(), (1,), (6,), (7, 6), (7, 1), (20, 1, 1), (1, 7, 6), (20, 7, 6), (1, 20, 1, 1), (2, 20, 1, 1), (2, 1, 7, 6), (2, 20, 7, 1)]


IN_TURNS = [(shape, is_literal) for shape in OPERANDS for is_literal in (True, False)]
QUICK_TURNS = [(shape, n % 2 == 0) for n, shape in enumerate(OPERANDS)]


@pytest.mark.parametrize(("shape", "literal"), some_of(IN_TURNS, quick=QUICK_TURNS), ids=str)
def test_operands_that_are_broadcast(shape: tuple[int, ...], literal: bool) -> None:
    net = Net(2, (2, 20, 7, 6))
    operand = net.normal(*shape)
    other = net.const(operand) if literal else net.input(operand)
    x = net.same("Mul", net.conv("x", 20), other)
    x = net.conv(net.op("Sub", other, x, shape=net.shapes[x]), 20)

    model = net.finish(x)

    check(model, net.arrays)
    assert blocked_ops(model).count("conv_blocked") == 2


@pytest.mark.covering
@pytest.mark.parametrize("parts", [(16, 5), (5, 16), (32, 16, 3), (3, 3), (16, 16), (1, 15, 16), (48, 1)], ids=str)
@pytest.mark.parametrize("axis", [1, -1])
def test_concatenations(parts: tuple[int, ...], axis: int) -> None:
    net = Net(3, (1, 16, 5, 6))
    widths = parts if axis == 1 else (parts[0],) * len(parts)
    made = [net.conv("x", outputs, 3) for outputs in widths]
    whole = list(net.shapes[made[0]])
    whole[axis] = sum(net.shapes[name][axis] for name in made)
    x = net.conv(net.op("Concat", *made, shape=tuple(whole), axis=axis), 9, 1)

    check(net.finish(x), net.arrays)


@pytest.mark.covering
@pytest.mark.parametrize("groups", [1, 2, 3, 16, 48])
@pytest.mark.parametrize("stride", [1, 2])
def test_groups(groups: int, stride: int) -> None:
    net = Net(4, (1, 48, 6, 7))
    x = net.conv(net.same("Relu", net.conv("x", 48, 3, stride, groups=groups)), 96 if groups < 48 else 48, 1, groups=groups)

    check(net.finish(x), net.arrays)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_two_and_three_spatial_axes(rank: int) -> None:
    net = Net(5, (2, 31, *(9, 5, 4)[:rank]))
    x = net.same("Relu", net.conv("x", 47))
    x = net.same("Add", net.conv(x, 47, 1), x)
    x = net.conv(x, 8, 3, 2)
    model = net.finish(x)

    check(model, net.arrays)
    assert "conv_blocked" in blocked_ops(model)


@pytest.mark.parametrize("channels", [3, 17, 32])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_an_image_that_is_shifted_by_padding_it_at_one_end_and_cutting_it_at_the_other(mode: str, channels: int) -> None:
    """Its size stays, but it is no map of elements: nothing is known of what lies past the channels."""
    net = Net(channels, (1, 16, 9, 7))
    x = net.same("Reciprocal", net.same("Abs", net.conv("x", channels, bias=False)))
    x = net.same("Pad", x, net.const(np.array([0, 0, 1, 0, 0, 0, -1, 0])), mode=mode)

    check(net.finish(net.conv(net.same("Tanh", x), 24)), net.arrays, 1e-4)


@pytest.mark.parametrize("channels, groups", [(32, 1), (32, 2), (32, 8), (30, 3), (24, 24), (20, 5)])
def test_norms_between_convolutions_run_on_blocks(channels: int, groups: int) -> None:
    net = Net(channels + groups, (2, 16, 9, 7))
    x = net.group_norm(net.conv("x", channels), groups)
    x = net.same("InstanceNormalization", net.conv(x, channels), net.const(net.normal(channels)), net.const(net.normal(channels)))
    x = net.op("Pad", x, net.const(np.array([0, 0, 2, 1, 0, 0, 2, 1])), shape=(2, channels, 13, 9), mode="reflect")
    model = net.finish(net.conv(x, 16))

    assert [op for op in blocked_ops(model) if "norm" in op or "block" in op] == [
        "block", "conv_blocked", "norm_blocked", "conv_blocked", "norm_blocked", "conv_blocked", "unblock",
    ]  # fmt: skip
    check(model, net.arrays, 1e-4)


def test_a_value_wanted_in_both_forms_is_copied_once() -> None:
    net = Net(6, (1, 64, 14, 14))
    x = net.conv("x", 64)
    flat = [net.same("Softmax", x, axis=1), net.same("CumSum", x, net.const(np.array(1)))]
    y = net.conv(net.conv(x, 64), 64)
    model = net.finish(*flat, y)

    check(model, net.arrays)
    assert blocked_ops(model).count("unblock") == 2  # x once, and the result


@pytest.mark.parametrize("channels", [24, 20, 40])
def test_what_follows_a_convolution_is_done_on_its_blocks_whether_or_not_channels_fill_them(channels: int) -> None:
    net = Net(8, (1, 32, 20, 20))
    x = net.conv("x", channels)
    for _ in range(3):
        x = net.same("Sigmoid", net.same("Neg", x))
    model = net.finish(net.same("CumSum", x, net.const(np.array(1))))

    check(model, net.arrays)
    assert blocked_ops(model)[-2:] == ["unblock", "cumsum"] and blocked_ops(model).count("unblock") == 1


def test_literals_are_converted_when_compiling() -> None:
    net = Net(7, (1, 16, 8, 8))
    x = net.same("Add", net.conv("x", 16), net.const(net.normal(1, 16, 8, 8)))
    model = net.finish(net.conv(x, 16))

    check(model, net.arrays)
    assert blocked_ops(model).count("block") == 1  # the input


def test_nothing_to_do_is_the_same_module() -> None:
    net = Net(8)
    module = run_pipeline(import_model(net.finish(net.same("Relu", "x"))).module, SIMPLIFY)

    assert convert_layout(module) is module


# -- symbolic dims


@pytest.mark.parametrize("symbolic", [(0,), pytest.param((2, 3), marks=pytest.mark.slow), (0, 2, 3)], ids=str)
def test_symbolic_batch_and_image(symbolic: tuple[int, ...]) -> None:
    net = Net(9, (1, 3, 16, 16))
    x = net.same("Relu", net.conv("x", 20, 3, 2))
    x = net.same("Add", net.conv(net.conv(x, 20, 3, groups=20), 20, 1), x)
    x = net.conv(net.op("MaxPool", x, shape=(1, 20, 4, 4), kernel_shape=[2, 2], strides=[2, 2]), 33, 3)
    mean = net.op("GlobalAveragePool", x)
    model = net.finish(x, mean, symbolic=symbolic)
    modules = [tc.compile(model, threads=threads) for threads in (1, 2)]

    for n, h, w in [(1, 16, 16), (3, 4, 5), (2, 7, 31), (1, 3, 3), (5, 33, 9)]:
        sizes = [n if 0 in symbolic else 1, 3, *((h, w) if 2 in symbolic else (16, 16))]
        arrays = {"x": np.random.default_rng(h).standard_normal(sizes).astype(np.float32)}
        one, two = (list(module.run(arrays).values()) for module in modules)
        for a, b, want in zip(one, two, expected(model, arrays), strict=True):
            np.testing.assert_array_equal(a, b)
            assert_close(a, want)


def test_an_empty_batch() -> None:
    net = Net(10, (1, 5, 8, 8))
    model = net.finish(net.conv(net.conv("x", 20), 7, 1), symbolic=(0,))

    assert tc.compile(model)(np.zeros((0, 5, 8, 8), np.float32)).shape == (0, 7, 8, 8)


# -- bodies


def _branch(net: Net, name: str, x: str, outputs: int, kernel: int) -> onnx.GraphProto:
    """A body of two convolutions that reads `x` from outside."""
    start = len(net.nodes)
    made = net.conv(net.same("Relu", net.conv(x, outputs, kernel)), net.shapes[x][1], kernel)
    nodes, net.nodes = net.nodes[start:], net.nodes[:start]
    for node in nodes:
        node.output[0] = f"{name}_{node.output[0]}"
        node.input[:] = [f"{name}_{i}" if i in {n.output[0].removeprefix(f"{name}_") for n in nodes} else i for i in node.input]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_{made}", TensorProto.FLOAT, None)])


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken: bool) -> None:
    net = Net(11, (1, 48, 12, 12))
    x = net.conv("x", 48)
    flag = net.input(np.array(1.0 if taken else -1.0, np.float32))
    then_branch, else_branch = _branch(net, "yes", x, 47, 3), _branch(net, "no", x, 31, 3)
    condition = net.op("Greater", flag, net.const(np.zeros((), np.float32)))
    made = net.op("If", condition, shape=net.shapes[x], then_branch=then_branch, else_branch=else_branch)
    model = net.finish(net.conv(net.same("Add", made, x), 47))

    check(model, net.arrays)
    assert blocked_ops(model).count("conv_blocked") == 6


def test_loops() -> None:
    net = Net(12, (1, 48, 12, 12))
    x = net.conv("x", 48)
    start = len(net.nodes)
    net.shapes["state"] = net.shapes[x]
    made = net.same("Add", net.conv(net.same("Tanh", net.conv("state", 33)), 48), x)
    nodes, net.nodes = net.nodes[start:], net.nodes[:start]
    nodes.append(helper.make_node("Identity", ["going"], ["goes_on"]))
    shape = list(net.shapes[x])
    body = helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("k", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, shape),
        ],
        [helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []), helper.make_tensor_value_info(made, TensorProto.FLOAT, shape)],
    )
    count = net.const(np.array(3))
    net.nodes.append(helper.make_node("Loop", [count, "", x], ["looped"], "loop", body=body))
    net.shapes["looped"] = net.shapes[x]
    model = net.finish(net.conv("looped", 47))

    check(model, net.arrays)
    assert blocked_ops(model).count("conv_blocked") == 4


# -- pieces


def _blocked_cases() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    yield (5, 3), (0,), 4
    yield (2, 7, 3), (1,), 4
    yield (9, 6, 2, 2), (1, 0), 4
    yield (8, 8), (1, 0), 4
    yield (1, 1, 3), (1,), 16


@pytest.mark.parametrize(("shape", "axes", "block"), list(_blocked_cases()), ids=str)
def test_blocked_literals_hold_every_number_at_its_place(shape: tuple[int, ...], axes: tuple[int, ...], block: int) -> None:
    array = np.arange(1, 1 + np.prod(shape)).reshape(shape)

    made = block_axes(array, axes, block)

    seen = 0
    for place, value in np.ndenumerate(array):
        outer = [i // block if axis in axes else i for axis, i in enumerate(place)]
        assert made[(*outer, *(place[axis] % block for axis in axes))] == value
        seen += 1
    assert np.count_nonzero(made) == seen


def test_weights_are_packed_as_the_operator_reads_them() -> None:
    net = Net(13, (1, 20, 6, 6))
    model = net.finish(net.conv("x", 40, kernel=5))  # of 3 x 3 there may be Winograd's method

    (call,) = [
        b.value
        for f in run_stages(model, native_target()).graph.graph_functions
        for b in f.bindings
        if isinstance(b.value, Call) and b.value.op == "conv_blocked"
    ]

    lanes = native_target().lanes(32)
    assert call.args[1].type.static_shape == (-(-40 // lanes), -(-20 // lanes), 5, 5, lanes, lanes)


def images(dtype: str, groups: int) -> str:
    """A network of two convolutions with something between them, for images of 56 x 56."""
    channels = 64 // groups
    return f"""
@graph
def main(x: {dtype}[n, 64, 56, 56], w: {dtype}[128, {channels}, 3, 3], v: {dtype}[64, {128 // groups}, 1, 1]):
    a: {dtype}[n, 128, 56, 56] = conv(x, w, pads=(1, 1, 1, 1), groups={groups})
    b: {dtype}[n, 128, 56, 56] = relu(a)
    c: {dtype}[n, 64, 56, 56] = conv(b, v, groups={groups})
    return c
"""


@pytest.mark.parametrize(("dtype", "groups", "converted"), [("f16", 1, 2), ("bf16", 1, 2), ("f32", 1, 0), ("f16", 2, 0)])
def test_devices_with_matrix_instructions_have_convolutions_of_halves_on_blocks(dtype: str, groups: int, converted: int) -> None:
    module = parse_module(images(dtype, groups))

    found = convert_layout(module, target=Target.parse("cuda:sm_80@x86-64-v3"))

    calls = [binding.value for binding in found.functions[0].bindings if isinstance(binding.value, Call)]
    blocked = [call for call in calls if call.op == "conv_blocked"]
    assert len(blocked) == converted
    assert all(dict(call.attrs)["in_block"] == DEVICE_BLOCK for call in blocked)
    assert sum(call.op == "unblock" for call in calls) == (converted > 0)  # not between the two


@pytest.mark.parametrize(("arch", "channels", "block"), [("sm_90a", 64, 64), ("sm_90a", 96, 32), ("sm_90", 64, 32), ("sm_80", 64, 32)])
def test_blocks_are_rows_of_boxes_where_most_channels_fill_them(arch: str, channels: int, block: int) -> None:
    module = parse_module(images("f16", 1).replace("128", str(3 * channels)).replace("64", str(channels)))

    found = convert_layout(module, target=Target.parse(f"cuda:{arch}@x86-64-v3"))

    calls = [binding.value for binding in found.functions[0].bindings if isinstance(binding.value, Call)]
    assert [dict(call.attrs)["in_block"] for call in calls if call.op == "conv_blocked"] == [block, block]


@pytest.mark.parametrize(
    ("outputs", "channels", "width", "is_blocked"),
    [
        (8, 32, 64, False),
        (20, 12, 64, False),
        (6, 128, "w", False),
        (12, 16, "w", False),
        (64, 64, 56, True),
        (32, 32, "w", True),
        (128, 12, 10, True),
    ],
)
def test_outputs_that_leave_lanes_empty_stay_as_they_are(outputs: int, channels: int, width: int | str, is_blocked: bool) -> None:
    weights = numpy_helper.from_array(np.zeros((outputs, channels, 3, 3), np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 64, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph([conv], "g", [x], [y], [weights]), opset_imports=[helper.make_opsetid("", 17)])
    module = run_pipeline(import_model(model).module, SIMPLIFY)

    after = convert_layout(module, block=16)

    assert ("conv_blocked" in print_ir(after)) == is_blocked
