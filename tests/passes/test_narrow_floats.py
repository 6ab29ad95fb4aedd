"""Which operations `narrow_floats` narrows, and that graphs with control flow, integers and state mean the same afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tc
from tc.interp import run_named
from tc.ir.dtype import DType, bf16, f16, f32, i64
from tc.ir.expr import Var
from tc.ir.graph import Atom, Call, TensorVar, all_bindings
from tc.ir.module import IRModule
from tc.ir.types import tensor_type
from tc.ir.verify import verify
from tc.ops.build import GraphBuilder
from tc.passes.graph.narrow_floats import narrow_floats
from tc.passes.graph.narrowing import Precision, choose_narrowing
from tc.passes.manager import run_pipeline
from tc.target import Target

BF16 = Precision(bf16)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))


def module_of(b: GraphBuilder, *results: Atom) -> IRModule:
    return IRModule((b.function("main", results),), "main")


def types_of(module: IRModule, op: str) -> list[str]:
    found = [b for func in module.graph_functions for b in all_bindings(func) if isinstance(b.value, Call) and b.value.op == op]
    return [str(target.type) for binding in found for target in binding.targets]


def check(module: IRModule, **arrays: np.ndarray) -> IRModule:
    """The narrowed module, verified, whose results are near the module's, compiled and interpreted."""
    narrowed = narrow_floats(module, precision=BF16)
    verify(narrowed)
    assert [str(p.type) for p in narrowed.main.params] == [str(p.type) for p in module.main.params]
    exact, interpreted = (list(run_named(each, arrays).values()) for each in (module, narrowed))
    compiled = list(tc.compile(module, threads=1, precision="bf16").run(arrays).values())
    for want, *others in zip(exact, interpreted, compiled, strict=True):
        for found in others:
            assert found.dtype == want.dtype and found.shape == want.shape
            np.testing.assert_allclose(found, want, rtol=0, atol=0.03 * np.abs(want).max(initial=1e-6))
    return narrowed


def x_of(b: GraphBuilder, *shape: object) -> TensorVar:
    return b.param("x", tensor_type(shape, f32))  # type: ignore[arg-type]


def test_with_nothing_asked_for_the_module_is_the_same_object() -> None:
    b = GraphBuilder()
    module = module_of(b, b.call("matmul", x_of(b, 4, 8), b.const(normal(8, 8))))

    assert narrow_floats(module) is module


def test_a_graph_without_products_is_the_same_object() -> None:
    b = GraphBuilder()
    module = module_of(b, b.call("softmax", b.call("exp", x_of(b, 64, 64)), axis=-1))

    assert narrow_floats(module, precision=BF16) is module


def test_biases_stay_f32_and_activations_between_products_are_stored_in_16_bits() -> None:
    b = GraphBuilder()
    y = b.call("relu", b.call("conv", x_of(b, 1, 8, 9, 9), b.const(normal(16, 8, 3, 3)), b.const(normal(16))))
    y = b.call("max_pool", y, kernel=(2, 2), strides=(2, 2))
    y = b.call("conv", y, b.const(normal(16, 16, 3, 3)))

    narrowed = check(module_of(b, y), x=normal(1, 8, 9, 9))

    assert types_of(narrowed, "conv") == ["bf16[1, 16, 7, 7]", "bf16[1, 16, 1, 1]"]
    assert types_of(narrowed, "add") == ["f32[1, 16, 7, 7]"] and types_of(narrowed, "relu") == ["f32[1, 16, 7, 7]"]
    assert types_of(narrowed, "max_pool") == ["bf16[1, 16, 3, 3]"]


def test_residuals_norms_and_softmax_compute_in_f32() -> None:
    b = GraphBuilder()
    x = x_of(b, 2, 16, 32)
    y = b.call("layer_norm", x, b.const(normal(32)), b.const(normal(32)), axis=-1, epsilon=1e-5)
    y = b.call("softmax", b.call("add", x, b.call("matmul", y, b.const(normal(32, 32)))), axis=-1)
    y = b.call("matmul", b.call("transpose", y, perm=(0, 2, 1)), y)

    narrowed = check(module_of(b, y), x=normal(2, 16, 32))

    assert {types_of(narrowed, op)[0] for op in ("layer_norm", "softmax", "add")} == {"f32[2, 16, 32]"}
    assert types_of(narrowed, "transpose") == ["bf16[2, 32, 16]"]


def test_integers_and_shapes_are_left_alone() -> None:
    b = GraphBuilder()
    n = Var("n")
    x = x_of(b, n, 16)
    ids = b.param("ids", tensor_type((8,), i64))
    rows = b.call("gather", b.call("matmul", x, b.const(normal(16, 32))), b.call("add", ids, b.const(np.array(0, np.int64))), axis=0)
    count = b.call("cast", b.call("shape_tensor", dims=(n, 16)), dtype=f32)
    y = b.call("mul", b.call("argmax", rows, axis=1, keepdims=False), b.const(np.array(1, np.int64)))

    narrowed = check(module_of(b, b.call("sum", count, axes=(0,), keepdims=False)), x=normal(5, 16), ids=np.arange(8) % 5)

    assert types_of(narrowed, "sum") == ["f32[]"]
    found = narrow_floats(module_of(b, y, rows), precision=BF16)
    assert types_of(found, "argmax") == ["i64[8]"] and types_of(found, "add") == ["i64[8]"]


def test_angles_stay_f32_back_to_the_product_that_makes_them() -> None:
    b = GraphBuilder()
    x = x_of(b, 64, 8)
    angles = b.call("mul", b.call("matmul", x, b.const(1000 * normal(8, 32))), b.const(np.float32(3.0)))
    y = b.call("matmul", b.call("cos", angles), b.const(normal(32, 32)))

    narrowed = check(module_of(b, y), x=normal(64, 8))

    assert types_of(narrowed, "matmul") == ["f32[64, 32]", "bf16[64, 32]"]


def test_products_of_one_term_and_kept_ones_stay_f32_and_say_why() -> None:
    b = GraphBuilder()
    outer = b.call("matmul", x_of(b, 32, 1), b.const(normal(1, 32)))
    module = module_of(b, b.call("matmul", b.call("matmul", outer, b.const(normal(32, 32))), b.const(normal(32, 32))))

    found = choose_narrowing(module, Precision(bf16, ((2, "because"),))).describe(module)

    assert [(each.computed, each.why) for each in found] == [
        ("f32", "sums of a term or two, which are no faster in 16 bits"),
        ("bf16", ""),
        ("f32", "because"),
    ]


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_weights_of_fewer_bits_are_multiplied_as_they_are(dtype: DType) -> None:
    b = GraphBuilder()
    w = np.random.default_rng(0).integers(-128, 128, (64, 64)).astype(np.int8)
    scaled = b.call("dequantize_linear", b.const(w), b.const(np.float32(0.01)), None)
    module = module_of(b, b.call("matmul", x_of(b, 4, 64), scaled))

    (found,) = [each for each in choose_narrowing(module, Precision(dtype)).describe(module) if each.op == "matmul"]
    narrowed = narrow_floats(module, precision=Precision(dtype))

    assert (found.computed, found.why) == (("bf16", "") if dtype is bf16 else ("f32", "its weights have fewer bits already"))
    calls = [binding.value.op for binding in narrowed.main.bindings if isinstance(binding.value, Call)]
    assert calls == ["dequantize_linear", *(["narrow", "cast"] if dtype is bf16 else []), "matmul"]


def test_bodies_of_branches_and_loops() -> None:
    """Products inside read values of the function around them, in both forms."""
    w = normal(32, 32)

    def value(name: str, shape: tuple = (4, 32), kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    then = helper.make_graph([helper.make_node("MatMul", ["h", "w"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["e"])], "else", [], [value("e")])
    steps = [
        helper.make_node("MatMul", ["carried", "w"], ["product"]),
        helper.make_node("Add", ["product", "h"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
        helper.make_node("Identity", ["going"], ["still"]),
    ]
    inner = [value("i", (), TensorProto.INT64), value("going", (), TensorProto.BOOL), value("carried")]
    body = helper.make_graph(steps, "body", inner, [value("still", (), TensorProto.BOOL), value("next")])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["c"], ["chosen"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["n", "", "chosen"], ["y"], body=body),
    ]
    given = [value("x"), value("c", (), TensorProto.BOOL), value("n", (), TensorProto.INT64)]
    graph = helper.make_graph(nodes, "g", given, [value("y")], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    module = tc.compile(model, threads=1, precision="bf16")

    for condition in (True, False):
        for count in (0, 1, 5):
            x = {"x": normal(4, 32), "c": np.array(condition), "n": np.array(count, np.int64)}
            want = tc.interpret(model, x)["y"]
            np.testing.assert_allclose(module.run(x)["y"], want, rtol=0, atol=0.03 * np.abs(want).max())
    assert any(each.computed == "bf16" and each.op == "matmul" for each in module.report().precisions)


@pytest.mark.parametrize("has_dots", [True, False])
def test_convolutions_of_bf16_have_their_terms_in_pairs_where_instructions_add_these(has_dots: bool) -> None:
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, 32, 14, 14), bf16))
    y = b.call("conv", x, b.const(normal(32, 32, 1, 1).astype(bf16.numpy)))
    y = b.call("conv", b.call("relu", y), b.const(normal(32, 32, 1, 1).astype(bf16.numpy)))
    chosen = Target.parse("x86-64-v4:machine=znver4")
    chosen = replace(chosen, features=(*chosen.features, "avx512bf16")) if has_dots else chosen

    for exact in (False, True):
        made = run_pipeline(module_of(b, y), f"convert_layout(exact={exact})", {"target": chosen, "block": chosen.lanes(32)})
        calls = [each.value for each in made.main.bindings if getattr(each.value, "op", "") == "conv_blocked"]
        assert all(call.args[1].type.rank == (7 if has_dots and not exact else 6) for call in calls)
        assert len(calls) == 2 or not has_dots


def test_f16_of_products_whose_weights_overflow() -> None:
    b = GraphBuilder()
    module = module_of(b, b.call("matmul", x_of(b, 4, 8), b.const(np.full((8, 8), 1e6, np.float32))))

    assert narrow_floats(module, precision=Precision(f16)) is module


@pytest.mark.parametrize("added", [False, True])
def test_scores_under_a_mask_of_the_least_f32_are_not_stored_in_16_bits(added: bool) -> None:
    # They were, as minus infinity: rows that are masked wholly became NaN.
    least, n = np.finfo(np.float32).min, Var("n")
    b = GraphBuilder()
    x, kept = x_of(b, n, 64), b.param("kept", tensor_type((n, 512), f32))
    scores = b.call("matmul", x, b.const(normal(64, 512)))
    both = b.call("relu", b.call("add", scores, scores))
    if added:
        masked = b.call("add", both, b.call("mul", b.call("sub", b.const(np.float32(1)), kept), b.const(least)))
    else:
        masked = b.call("where", b.call("greater", kept, b.const(np.float32(0))), both, b.const(least))
    weights = b.call("softmax", b.call("abs", b.call("neg", masked)) if added else masked, axis=-1)
    module = module_of(b, b.call("matmul", weights, b.const(normal(512, 64))), weights)
    mask = (np.arange(512) < np.array([[0], [5], [512]])).astype(np.float32)

    narrowed = check(module, x=normal(3, 64), kept=mask)

    assert types_of(narrowed, "matmul")[0].startswith("bf16")
    assert all(each.startswith("f32") for op in ("add", "where", "neg") for each in types_of(narrowed, op)[-1:])


@pytest.mark.parametrize(("name", "channels"), [("weight", 5), ("3.weight", 6), ("wé", 7)])  # each a kernel of its own
def test_weights_of_any_name_are_rounded(name: str, channels: int) -> None:
    # A buffer on the stack had the name of the weight, which LLVM took for a number: a CodegenError.
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((3, channels, 1, 7)).astype(np.float32), rng.standard_normal((2, channels, 9, 11)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", name, "b"], ["c"], pads=[3, 3, 3, 3]), helper.make_node("Elu", ["c"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, "h", "w"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(w, name), numpy_helper.from_array(w[:, 0, 0, 0].copy(), "b")]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    found, expected = (tc.compile(model, threads=1, precision=precision)(x) for precision in ("bf16", "f32"))

    np.testing.assert_allclose(found, expected, rtol=0, atol=0.03 * np.abs(expected).max())
