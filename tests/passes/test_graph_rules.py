"""Every graph rule applies to its example, and does not change what the example computes."""

from __future__ import annotations

import numpy as np
import pytest

from tc.errors import Span
from tc.interp import run_function
from tc.ir.dtype import f32
from tc.ir.graph import Call, Function
from tc.ir.module import IRModule
from tc.ir.node import replace
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.bounded_steps import BOUND_RULES
from tc.passes.graph.byte_tables import TABLE_RULES
from tc.passes.graph.dce import remove_dead_code
from tc.passes.graph.find_attention import ATTENTION_RULES, ROUNDING_RULES
from tc.passes.graph.find_idioms import IDIOM_RULES
from tc.passes.graph.integer_graphs import PRODUCT_RULES
from tc.passes.graph.integer_movement import MOVEMENT_RULES, SIGN_RULES
from tc.passes.graph.integer_phases import PHASE_RULES
from tc.passes.graph.integer_products import INTEGER_RULES, MERGED_SCALE_RULES, WINDOWS_RULES
from tc.passes.graph.pack_matmul import matmul_rules
from tc.passes.graph.rewrite import GraphRule, any_, op, rewrite_module
from tc.passes.graph.separate_windows import POOL_RULES
from tc.passes.graph.share_scales import SCALE_RULES
from tc.passes.graph.simplify_graph import GRAPH_RULES, simplify_graph
from tc.passes.graph.split_phases import phase_rules
from tc.passes.graph.transforms_as_products import TRANSFORM_RULES

RULES = (
    *(*GRAPH_RULES, *ATTENTION_RULES, *ROUNDING_RULES, *IDIOM_RULES, *INTEGER_RULES, *WINDOWS_RULES, *MERGED_SCALE_RULES),
    *(*MOVEMENT_RULES, *SIGN_RULES, *PHASE_RULES, *PRODUCT_RULES, *BOUND_RULES, *SCALE_RULES, *POOL_RULES, *TABLE_RULES, *TRANSFORM_RULES),
    *matmul_rules(8, features=("avx2", "avxvnni")),
    *phase_rules(4),
)


def example_of(rule: GraphRule) -> IRModule:
    builder = GraphBuilder()
    result = rule.example(builder)
    return IRModule((builder.function("main", (result,)),))


def ops_of(module: IRModule) -> list[str]:
    main = module.main
    assert isinstance(main, Function)
    return [binding.value.op for binding in main.bindings if isinstance(binding.value, Call)]


def attrs_of(module: IRModule) -> list[dict]:
    return [dict(binding.value.attrs) for binding in module.main.bindings if isinstance(binding.value, Call)]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_keeps_the_meaning_of_its_example(rule: GraphRule) -> None:
    before = example_of(rule)
    rng = np.random.default_rng(5)
    inputs = [rng.uniform(0.5, 1.5, p.type.static_shape).astype(p.type.dtype.numpy) for p in before.main.params]

    after = remove_dead_code(rewrite_module(before, [rule]))

    assert after is not before
    (expected,) = run_function(before, "main", inputs)
    (actual,) = run_function(after, "main", inputs)
    if rule.inexact:
        np.testing.assert_allclose(actual, expected, rtol=1e-5 if actual.dtype.itemsize > 2 else 2e-3, atol=1e-6)
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_changes_the_operators_of_its_example(rule: GraphRule) -> None:
    before = example_of(rule)

    after = remove_dead_code(rewrite_module(before, [rule]))

    assert after is not before
    assert ops_of(after) != ops_of(before) or attrs_of(after) != attrs_of(before)


def test_a_convolution_used_twice_is_not_copied_into_one_of_its_uses() -> None:
    """A normalization that was folded had its uses forgotten, and the next rule took its result for used once."""
    b = GraphBuilder()
    x = b.param("x", tensor_type((1, 3, 5, 5), f32))
    w = b.const(np.ones((4, 3, 3, 3), np.float32))
    four = [b.const(np.full(4, k, np.float32)) for k in (1.0, 2.0, 3.0, 4.0)]
    y = b.call("batch_norm", b.call("conv", x, w), *four)
    shifted = b.call("add", y, b.const(np.float32(3.0)))
    module = IRModule((b.function("main", (b.call("mul", y, shifted),)),))

    simplified = remove_dead_code(simplify_graph(module))

    assert ops_of(simplified) == ["conv", "add", "mul"]


def test_what_a_rule_puts_there_names_the_nodes_that_it_takes_the_place_of_and_no_others() -> None:
    """What is made of an operand that the new operation does not read is no part of it."""
    b = GraphBuilder()
    x, y = (b.param(name, tensor_type((4,), f32)) for name in "xy")
    result = b.call("mul", b.call("neg", b.call("abs", x)), b.call("exp", y))
    named = tuple(replace(binding, span=Span(f"/{binding.value.op}")) for binding in b.bindings)
    module = IRModule((replace(b.function("main", (result,)), bindings=named),))
    pattern = op("mul", op("neg", any_("x")), op("exp", any_("y")))
    rule = GraphRule("without y", pattern, lambda b, m: b.call("relu", m.x), lambda b: x)

    main = remove_dead_code(rewrite_module(module, [rule])).main

    assert [binding.span.nodes for binding in main.bindings] == [("/abs",), ("/neg", "/mul")]


def asked_and_rewritten(single_use: bool, tidy: bool) -> tuple[list[str], list[str]]:
    """Of neg(abs(x)), whose abs something dead uses, too, until a rule has removed it; and of tanh(y): which values were asked about, and
    what is left."""
    b, asked = GraphBuilder(), []
    x, y = (b.param(name, tensor_type((4,), f32)) for name in "xy")
    inner = b.call("abs", x)
    b.call("exp", inner)
    results = b.call("neg", inner), b.call("tanh", y), b.call("sqrt", b.call("relu", b.call("relu", y)))

    def ask(name: str) -> bool:
        asked.append(name)
        return name != "tanh"

    make = lambda b, m: b.call("relu", m.x)  # noqa: E731
    rules = [
        GraphRule("once", op("neg", op("abs", any_("x"), single_use=single_use)), make, make, when=lambda m: ask("neg")),
        GraphRule("never", op("tanh", any_("x")), make, make, when=lambda m: ask("tanh")),
        GraphRule("later", op("sqrt", op("relu", any_("x"))), lambda b, m: b.call("exp", m.x), make, when=lambda m: ask("sqrt")),
    ]
    module = IRModule((b.function("main", results),))
    found = rewrite_module(module, rules, **({"tidy": remove_dead_code} if tidy else {}))
    return asked, ops_of(remove_dead_code(found))


def test_rules_that_did_not_apply_are_not_asked_again_where_all_is_as_it_was() -> None:
    asked, ops = asked_and_rewritten(single_use=False, tidy=False)

    assert asked == ["neg", "tanh", "sqrt"]
    assert sorted(ops) == ["exp", "relu", "relu", "tanh"]


def test_rules_are_asked_again_where_another_use_is_gone() -> None:
    """The abs of neg is used once only when the exp, which nobody needs, has been removed after the first round."""
    asked, ops = asked_and_rewritten(single_use=True, tidy=True)

    assert asked == ["tanh", "sqrt", "neg"]
    assert sorted(ops) == ["exp", "relu", "relu", "tanh"]


def test_rules_are_not_applied_to_what_has_other_uses_still() -> None:
    asked, ops = asked_and_rewritten(single_use=True, tidy=False)

    assert "neg" not in asked
    assert "abs" in ops
