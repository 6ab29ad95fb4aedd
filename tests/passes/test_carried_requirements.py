"""Conditions over dims that a branch carries stay with it, and are checked where it runs."""

from __future__ import annotations

import numpy as np

from tc.ir.dtype import bool_, f32
from tc.ir.expr import Var
from tc.ir.graph import Atom, If, TensorConst
from tc.ir.module import IRModule
from tc.ir.plan import Branch, Check
from tc.ir.types import tensor_type
from tc.ops.build import GraphBuilder
from tc.passes.graph.canonicalize import canonicalize
from tc.passes.graph.plan_memory import plan_memory


def module_with_branch(condition: Atom | None) -> IRModule:
    """if c: x + y (needs dims that fit) else: x; `c` is a parameter when no condition is given."""
    n, m = Var("n"), Var("m")
    builder = GraphBuilder()
    x, y = builder.param("x", tensor_type((n,), f32)), builder.param("y", tensor_type((m,), f32))
    chosen = builder.param("c", tensor_type((), bool_)) if condition is None else condition
    inside, other = GraphBuilder(parent=builder), GraphBuilder(parent=builder)
    then_branch = inside.function("then", (inside.call("add", x, y),))
    (z,) = builder.bind(If(chosen, then_branch, other.function("else", (x,))), [tensor_type((n,), f32)], ["z"])
    return IRModule((builder.function("main", (z,)),))


def test_a_check_is_made_in_the_branch() -> None:
    (branch,) = plan_memory(module_with_branch(None)).steps

    assert isinstance(branch, Branch)
    assert [str(step.condition) for step in branch.then_steps if isinstance(step, Check)] == ["n == m or n == 1 or m == 1"]
    assert not any(isinstance(step, Check) for step in branch.else_steps)


def test_a_branch_that_becomes_part_of_its_function_brings_its_checks() -> None:
    module = canonicalize(module_with_branch(TensorConst(np.array(True))))

    first, *_ = plan_memory(module).steps

    assert isinstance(first, Check) and str(first.condition) == "n == m or n == 1 or m == 1"


def test_a_branch_that_is_left_out_takes_its_checks_along() -> None:
    module = canonicalize(module_with_branch(TensorConst(np.array(False))))

    assert not any(isinstance(step, Check) for step in plan_memory(module).steps)
