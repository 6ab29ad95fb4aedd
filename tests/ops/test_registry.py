"""Every operator: its type rule, its reference and its loops agree, on the samples that its record gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tc.errors import ShapeError
from tc.ir.arith import Facts
from tc.ir.dtype import f32, from_numpy
from tc.ir.expr import Var, const
from tc.ir.graph import Call
from tc.ir.types import TensorType, tensor_type
from tc.ops.build import full_attrs
from tc.ops.registry import OPS, OpDef, inference, seeing
from tc.passes.loop.simplify_loops import simplify_loops
from tc.passes.pipeline import finish_loops
from tc.schedule.rules import apply_rules
from tc.target import native_target
from tests.ops.kernels import finish, make_prim_func, run

# Rounding of sums and of functions: a few units in the last place of results of order one.
TOLERANCES = {2: 1e-2, 4: 1e-5, 8: 1e-6}

NAMES = sorted(OPS)
WITH_LOOPS = [name for name in NAMES if OPS[name].compute is not None]


def samples_of(op: OpDef) -> list[tuple[list[np.ndarray | None], dict]]:
    samples = list(op.samples(np.random.default_rng(7)))
    assert samples, f"{op.name} has no samples"
    return samples


def assert_same(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.shape == expected.shape
    if expected.dtype.kind in "fV" and expected.dtype.itemsize > 1:
        tolerance = TOLERANCES[expected.dtype.itemsize]
        np.testing.assert_allclose(
            actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    elif expected.dtype.kind in "fV":
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_type_rule_gives_what_the_reference_computes(name: str) -> None:
    op = OPS[name]
    for arrays, attrs in samples_of(op):
        full = op.attrs(attrs)
        types = [None if a is None else tensor_type(a.shape, from_numpy(a.dtype)) for a in arrays]

        with inference(Facts()):
            inferred = op.infer_types(types, full)
        results = op.run_reference(arrays, full)

        assert [r.dtype for r in results] == [t.dtype.numpy for t in inferred]
        found = {}  # what the data decide: each of these dims is one number in all results
        for result, type_ in zip(results, inferred, strict=True):
            for size, dim in zip(result.shape, type_.shape, strict=True):
                assert size == (found.setdefault(dim, size) if isinstance(dim, Var) else int(dim))


@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.parametrize("some", [slice(0, None, 2), pytest.param(slice(1, None, 2), marks=pytest.mark.slow)], ids=["half", "others"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unscheduled_loops_compute_the_reference(name: str, some: slice) -> None:
    op = OPS[name]
    for arrays, attrs in samples_of(op)[some]:
        expected = op.run_reference(arrays, op.attrs(attrs))

        actual = run(finish(make_prim_func(op, arrays, attrs)), [a for a in arrays if a is not None])

        for a, e in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
            assert_same(a, e)


@pytest.mark.parametrize("name", WITH_LOOPS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scheduled_loops_compute_the_reference(name: str) -> None:
    op = OPS[name]
    for arrays, attrs in samples_of(op):
        expected = op.run_reference(arrays, op.attrs(attrs))
        prim = simplify_loops(make_prim_func(op, arrays, attrs))

        scheduled = finish_loops(apply_rules(prim, native_target()).func)
        actual = run(scheduled, [a for a in arrays if a is not None])

        for a, e in zip(actual[: len(expected)], expected, strict=True):  # workspaces follow
            assert_same(a, e)


def test_symbolic_dims_flow_through_type_rules() -> None:
    n = Var("n")
    x = TensorType((n, const(8)), f32)
    w = TensorType((const(8), const(3)), f32)

    with inference(Facts()):
        (result,) = OPS["matmul"].infer_types([x, w], OPS["matmul"].attrs({}))

    assert result.shape == (n, const(3))


def test_dims_that_may_differ_become_a_requirement() -> None:
    n, m = Var("n"), Var("m")
    a, b = TensorType((n,), f32), TensorType((m,), f32)

    with inference(Facts()) as requirements:
        OPS["add"].infer_types([a, b], OPS["add"].attrs({}))

    assert "does not broadcast with" in requirements[0].message


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "words"),
    [
        ("matmul", [(2, 3), (4, 5)], {}, "last dim"),
        ("add", [(2, 3), (4,)], {}, "broadcast"),
        ("reshape", [(2, 3)], {"shape": (7,)}, "elements"),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}, "concat: dim 0"),
        ("conv", [(1, 3, 5, 5), (4, 2, 3, 3)], {}, "channels"),
        ("transpose", [(2, 3)], {"perm": (0, 0)}, "permutation"),
        ("softmax", [(2, 3)], {"axis": 5}, "out of range"),
        ("gather", [(2, 3), (1,)], {"no_such": 1}, "no attribute"),
    ],
)
def test_operands_that_do_not_fit_are_refused_with_a_reason(name: str, shapes: list, attrs: dict, words: str) -> None:
    op = OPS[name]

    with pytest.raises(ShapeError, match=words), inference(Facts()):
        op.infer_types([tensor_type(shape, f32) for shape in shapes], op.attrs(attrs))


def test_a_call_has_the_defaults_that_its_operator_has_now() -> None:
    """Users may register another operator under a name, and compile the same IR again."""
    call = Call("my.dom::Leak", (), ())

    for alpha in (0.25, 0.5):
        with seeing({call.op: replace(OPS["leaky_relu"], name=call.op, defaults={"alpha": alpha})}):
            assert full_attrs(call).alpha == alpha
