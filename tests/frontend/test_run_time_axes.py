"""Axes that are data: one compiled module for all of them, equal to numpy, native; axes that are none are named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tc
from tc.errors import InputError, ShapeError, TcError
from tests.frontend.models import make_model, node, run_onnxruntime

NUMPY = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMean": np.mean, "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k))}


def is_native(model: object) -> bool:
    return all(report.status == "native" for report in tc.inspect(model).nodes)


@pytest.mark.covering
@pytest.mark.parametrize("op", sorted(NUMPY))
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_over_any_two_axes_is_one_module(op: str, keepdims: int) -> None:
    model = make_model(
        [node(op, "x axes", "y", keepdims=keepdims)],
        {"x": (np.float32, ["a", "b", 3, "b"]), "axes": (np.int64, [2])},
        ["y"],
        opset=18,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(0)
    for shape in [(2, 5, 3, 5), (1, 1, 3, 1)]:
        x = rng.standard_normal(shape).astype(np.float32)
        for axes in itertools.permutations(range(-4, 4), 2):
            if axes[0] % 4 != axes[1] % 4:
                expected = NUMPY[op](x, axis=axes, keepdims=bool(keepdims))
                np.testing.assert_allclose(module(x, np.array(axes)), expected, rtol=1e-5, atol=1e-6)


def test_sums_over_empty_axes_are_zero_and_over_kept_ones_empty() -> None:
    model = make_model(
        [node("ReduceSum", "x axes", "y", keepdims=1)], {"x": (np.int32, ["a", "b"]), "axes": (np.int64, [1])}, ["y"], opset=18
    )
    module = tc.compile(model)

    np.testing.assert_array_equal(module(np.zeros((0, 3), np.int32), np.array([0])), np.zeros((1, 3), np.int32))
    np.testing.assert_array_equal(module(np.zeros((0, 3), np.int32), np.array([1])), np.zeros((0, 1), np.int32))


@pytest.mark.parametrize("axes", [[0, 0], [1, -1], [2, 0], [0, -3]])
def test_axes_named_twice_or_out_of_range_are_errors(axes: list[int]) -> None:
    model = make_model(
        [node("ReduceSum", "x axes", "y", keepdims=0)], {"x": (np.float32, [2, 2]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    module = tc.compile(model)

    with pytest.raises(TcError, match=r"named twice|out of range"):
        module(np.ones((2, 2), np.float32), np.array(axes))


# Axes below -rank were told as the numbers that they are with the rank added.
@pytest.mark.parametrize("axis", [4, 7, 2**62, -5, -7, -(2**63)])
@pytest.mark.parametrize(
    ("op", "inputs", "rank"),
    [
        ("ReduceSum", "x axes", 3),
        ("Squeeze", "x axes", 3),
        ("Unsqueeze", "x axes", 4),
        ("CumSum", "x axes", 3),
        ("Slice", "x one one axes", 3),
        ("Pad", "x two - axes", 3),
    ],
)
def test_an_axis_out_of_range_is_told_as_it_was_given(op: str, inputs: str, rank: int, axis: int) -> None:
    constants = {name: np.ones(k, np.int64) for k, name in enumerate(("one", "two"), 1) if name in inputs}
    model = make_model([node(op, inputs, "y")], {"x": (np.float32, ["a", "b", "c"]), "axes": (np.int64, [1])}, ["y"], constants, opset=18)

    with pytest.raises(InputError, match=rf"{op}: axis {axis} is out of range: it must be at least -{rank} and below {rank} "):
        tc.compile(model)(np.ones((1, 1, 1), np.float32), np.array([axis]))


# Of two slices of one axis the last one was taken; onnxruntime refuses them.
@pytest.mark.parametrize("axes", [[1, 1], [1, -2], [-3, 0]])
@pytest.mark.parametrize("given", ["the run", "the file", "the file, not the starts"])
def test_a_slice_names_no_axis_twice(axes: list[int], given: str) -> None:
    from_run = {"the run": ["axes"], "the file": [], "the file, not the starts": ["starts"]}[given]
    values = {"starts": np.array([0, 0]), "ends": np.array([1, 1]), "axes": np.array(axes)}
    constants = {name: value for name, value in values.items() if name not in from_run}
    inputs = {"x": (np.float32, ["a", "b", "c"]), **{name: (np.int64, [2]) for name in from_run}}
    model = make_model([node("Slice", "x starts ends axes", "y")], inputs, ["y"], constants, opset=13)
    feeds = {"x": np.ones((1, 2, 3), np.float32), **{name: values[name] for name in from_run}}

    with pytest.raises(TcError, match="Slice: an axis is named twice"):
        tc.compile(model).run(feeds)
    with pytest.raises(Exception, match=r"duplicates|more than once"):
        run_onnxruntime(model, feeds)


def test_squeeze_and_unsqueeze_take_axes_from_data() -> None:
    squeeze = make_model(
        [node("Squeeze", "x axes", "y")], {"x": (np.float32, ["a", "b", "c"]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    unsqueeze = make_model(
        [node("Unsqueeze", "x axes", "y")], {"x": (np.float32, ["a", "b"]), "axes": (np.int64, [2])}, ["y"], opset=18
    )
    less, more = tc.compile(squeeze), tc.compile(unsqueeze)
    assert is_native(squeeze) and is_native(unsqueeze)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axes in itertools.permutations(range(-4, 4), 2):
        if axes[0] % 4 != axes[1] % 4:
            np.testing.assert_array_equal(more(x, np.array(axes)), np.expand_dims(x, axes))
    for axes in [(0, 1), (1, -3), (-2, -3)]:
        np.testing.assert_array_equal(less(x[:1].reshape(1, 1, 3), np.array(axes)), x[0])
    with pytest.raises(TcError):
        less(x.reshape(1, 2, 3), np.array([0, 1]))


@pytest.mark.parametrize("count", [1, 2])
def test_slices_take_axes_and_steps_from_data(count: int) -> None:
    names = ("starts", "ends", "axes", "steps")
    model = make_model(
        [node("Slice", f"x {' '.join(names)}", "y")],
        {"x": (np.float32, ["a", "b", 4]), **{name: (np.int64, [count]) for name in names}},
        ["y"],
        opset=13,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(count)
    ends = [0, 1, 3, 100, -1, -2, -100, 2**62, -(2**62), 2**63 - 1, -(2**63)]
    for _ in range(150):
        x = rng.standard_normal((*rng.integers(0, 7, 2), 4)).astype(np.float32)
        axes = rng.permutation(3)[:count]
        bounds = rng.choice(ends, (2, count))
        steps = rng.choice([1, 2, 3, -1, -2, 50, -(2**63), 2**63 - 1], count)
        chosen = [slice(None)] * 3
        for axis, start, end, step in zip(axes, *bounds.tolist(), steps.tolist(), strict=True):
            chosen[axis] = python_slice(start, end, step, x.shape[axis])
        signed = np.where(rng.random(count) < 0.5, axes, axes - 3)
        np.testing.assert_array_equal(module(x, bounds[0], bounds[1], signed, steps), x[tuple(chosen)])


def python_slice(start: int, end: int, step: int, size: int) -> slice:
    """What ONNX's bounds are in Python, where an end before the first element is None and not below it."""
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step) if size else slice(0, 0)


def test_a_step_of_zero_from_data_is_an_error() -> None:
    model = make_model(
        [node("Slice", "x starts ends axes steps", "y")],
        {"x": (np.float32, [4]), **{name: (np.int64, [1]) for name in ("starts", "ends", "axes", "steps")}},
        ["y"],
        opset=13,
    )
    zero = np.array([0])

    with pytest.raises(TcError, match="no step may be 0"):
        tc.compile(model)(np.ones(4, np.float32), zero, np.array([3]), zero, zero)


# More ends or steps than starts were passed over.
@pytest.mark.parametrize("more", ["starts", "ends", "axes", "steps"])
def test_a_slice_of_axes_from_data_has_as_many_of_each(more: str) -> None:
    counts = {name: 2 if name == more else 1 for name in ("starts", "ends", "axes", "steps")}
    inputs = {"x": (np.float32, [4, "m"]), **{name: (np.int64, [count]) for name, count in counts.items()}}
    model = make_model([node("Slice", "x starts ends axes steps", "y")], inputs, ["y"])

    with pytest.raises(ShapeError, match=rf"Slice: there must be as many of each, found .*2 {more}.*TC1050"):
        tc.compile(model)


def test_diagonals_from_data() -> None:
    model = make_model([node("Trilu", "x k", "y", upper=0)], {"x": (np.int32, ["a", "b"]), "k": (np.int64, [])}, ["y"], opset=14)
    module = tc.compile(model)
    assert is_native(model)
    x = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
    for k in (0, 1, -1, 3, -5, 2**63 - 1, -(2**63)):
        np.testing.assert_array_equal(module(x, np.array(k)), np.tril(x, max(-9, min(k, 9))))


@pytest.mark.parametrize("mode, coordinates", [("linear", "half_pixel"), ("nearest", "asymmetric"), ("cubic", "align_corners")])
def test_images_are_resized_by_scales_from_data(mode: str, coordinates: str) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    model = make_model(
        [node("Resize", "x - scales", "y", **attrs)],
        {"x": (np.float32, [1, 2, "h", "w"]), "scales": (np.float32, [4])},
        ["y"],
        opset=13,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(0)
    for scales in ([1, 1, 1, 1], [1, 1, 2, 3], [1, 1, 0.6, 1.7], [1, 1, 2.3, 0.4]):
        feed = {"x": rng.standard_normal((1, 2, 6, 5)).astype(np.float32), "scales": np.array(scales, np.float32)}
        (expected,) = run_onnxruntime(model, feed)
        np.testing.assert_allclose(module.run(feed)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.covering
@pytest.mark.parametrize("op, running", [("CumSum", np.cumsum), ("CumProd", np.cumprod)])
@pytest.mark.parametrize("exclusive, reverse", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_running_sums_and_products_go_along_any_axis(op: str, running: object, exclusive: int, reverse: int) -> None:
    model = make_model(
        [node(op, "x axis", "y", exclusive=exclusive, reverse=reverse)],
        {"x": (np.int32, ["a", "b", "a"]), "axis": (np.int64, [])},
        ["y"],
        opset=26 if op == "CumProd" else 14,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(0)
    for shape in [(3, 4, 3), (1, 1, 1), (0, 2, 0), (2, 0, 2)]:
        x = rng.integers(-9, 9, shape, np.int32)
        for axis in range(-3, 3):
            values = np.flip(x, axis) if reverse else x
            expected = running(values, axis=axis, dtype=np.int32)
            if exclusive:
                first = np.full_like(expected.take([0] if expected.shape[axis] else [], axis), op == "CumProd")
                expected = np.concatenate([first, expected], axis).take(range(expected.shape[axis]), axis)
            np.testing.assert_array_equal(module(x, np.array(axis)), np.flip(expected, axis) if reverse else expected)


def test_pads_of_axes_from_data() -> None:
    model = make_model(
        [node("Pad", "x pads fill axes", "y")],
        {"x": (np.float32, ["a", "b", "a"]), "pads": (np.int64, [4]), "fill": (np.float32, []), "axes": (np.int64, [2])},
        ["y"],
        opset=18,
    )
    module = tc.compile(model)
    assert is_native(model)
    rng = np.random.default_rng(0)
    for shape in [(2, 3, 2), (1, 1, 1), (0, 3, 0)]:
        x = rng.standard_normal(shape).astype(np.float32)
        for axes in itertools.permutations(range(-3, 3), 2):
            if axes[0] % 3 != axes[1] % 3:
                pads = rng.integers(0, 4, 4)
                widths = [(0, 0)] * 3
                for k, axis in enumerate(axes):
                    widths[axis] = (pads[k], pads[2 + k])
                found = module(x, pads, np.float32(7), np.array(axes))
                np.testing.assert_array_equal(found, np.pad(x, widths, constant_values=7))
    x, cut = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.array([-1, 1, 0, -1])
    expected = np.pad(x[:, 1:, :1], [(0, 0), (0, 0), (1, 0)], constant_values=7)
    np.testing.assert_array_equal(module(x, cut, np.float32(7), np.array([1, -1])), expected)
    for axes in ([0, -3], [1, 3]):
        with pytest.raises(TcError, match=r"named twice|out of range"):
            module(x, cut, np.float32(7), np.array(axes))
