"""Convolutions that sum whole blocks of channels: what lies in the lanes past the channels is multiplied with zeros, so it has to be a
number."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from tc.frontend.registry import import_model
from tc.interp import run_function
from tc.ir.graph import Call
from tc.ir.module import IRModule
from tc.ir.parser import parse_module
from tc.passes.pipeline import PreparedModel, lay_out, lower_model, prepare_model
from tc.target import Target
from tests.codegen import tile_model
from tests.draws import some_of
from tests.golden_files import Literals
from tests.passes.test_tile_layout import values_of
from tests.schedule.test_tile_products import WIDE

BF16 = ml_dtypes.bfloat16

PAIRS = dataclasses.replace(WIDE, features=tuple(each for each in WIDE.features if not each.startswith("amx")))
"""A target without tile registers."""

BETWEEN = {
    "nothing": "b: {t} = add(a, a)",
    "what keeps zeros": "c: {t} = relu(a)\n    b: {t} = mul(c, const('random {n}x1x1', {v}))",
    "numbers that are not zero": "b: {t} = sigmoid(a)",
    "no number, 0 / 0": "b: {t} = div(a, const('random {n}x1x1', {v}))",
    "infinities": "c: {t} = abs(a)\n    b: {t} = log(c)",
    "windows": "c: {t} = log(a)\n    b: {t} = max_pool(c, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))",
}


def network(channels: int, between: str, batch: int = 1) -> IRModule:
    kind, n = f"bf16[{batch}, {channels}, 20, 20]", channels
    middle = BETWEEN[between].format(t=kind, n=n, v=f"bf16[{n}, 1, 1]").replace("'random ", "'random bf16 ")
    text = f"""
@graph
def main(x: {kind}):
    a: {kind} = conv(x, const('random bf16 {n}x{n}x3x3', bf16[{n}, {n}, 3, 3]), pads=(1, 1, 1, 1))
    {middle}
    d: {kind} = conv(b, const('random bf16 {n}x{n}x3x3 again', bf16[{n}, {n}, 3, 3]), pads=(1, 1, 1, 1))
    e: {kind} = add(a, d)
    return e
"""
    literals = Literals()
    rng = np.random.default_rng(channels)
    literals[f"random bf16 {n}x{n}x3x3 again"] = rng.standard_normal((n, n, 3, 3)).astype(BF16)
    return parse_module(text, literals)


def prepared_and_laid(module: IRModule, target: Target) -> tuple[PreparedModel, PreparedModel]:
    prepared = prepare_model(import_model(module), target)
    return prepared, lay_out(prepared)


def calls_of(module: IRModule) -> list[Call]:
    return [binding.value for binding in module.main.bindings if isinstance(binding.value, Call)]


def summed_channels(module: IRModule) -> list[int]:
    return [dict(call.attrs)["in_channels"] for call in calls_of(module) if call.op == "conv_blocked"]


@pytest.mark.covering
@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize(("channels", "whole"), [(40, 64), (57, 64), (96, 96)])
@pytest.mark.parametrize("bad", [None, np.inf, np.nan])
def test_no_lane_past_the_channels_is_seen(between: str, channels: int, whole: int, bad: float | None) -> None:
    prepared, laid = prepared_and_laid(network(channels, between), WIDE)
    x = (np.random.default_rng(0).standard_normal((1, channels, 20, 20)) / 16).astype(BF16)
    if bad is not None:
        x[0, 3, 10, 10] = bad
    assert summed_channels(laid.graph) == [whole, whole]

    with np.errstate(all="ignore"):
        (expected,) = run_function(prepared.graph, "main", [x])
        (found,) = run_function(laid.graph, "main", [x])

    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    found, expected = (np.nan_to_num(each.astype(np.float64), nan=0, posinf=0, neginf=0) for each in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=2.0**-6, atol=2.0**-6 * np.abs(expected).max())


@pytest.mark.parametrize("between", some_of(BETWEEN, quick=["no number, 0 / 0", "windows"]))
def test_kernels_on_tile_registers_see_none_either(between: str) -> None:
    prepared, laid = prepared_and_laid(network(40, between, batch=2), WIDE)
    x = (np.random.default_rng(1).standard_normal((2, 40, 20, 20)) / 16).astype(BF16)

    with np.errstate(all="ignore"):
        (expected,) = run_function(prepared.graph, "main", [x])
        (found,) = values_of(lower_model(laid).lowered, [x])

    assert "tdpbf16ps" in tile_model.used
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize(("between", "kept"), [("what keeps zeros", 1), ("numbers that are not zero", 1), ("no number, 0 / 0", 2)])
def test_lanes_are_cleared_where_they_may_be_no_numbers_only(between: str, kept: int) -> None:
    """Behind the first convolution, of whose operands some may be infinite, and before the second one."""
    _, laid = prepared_and_laid(network(40, between), WIDE)

    assert sum(call.op == "keep_channels" for call in calls_of(laid.graph)) == kept


def test_bytes_need_no_clearing() -> None:
    text = """
@graph
def main(x: u8[1, 40, 20, 20]):
    y: i32[1, 57, 20, 20] = conv_integer(x, const('random i8 57x40x3x3', i8[57, 40, 3, 3]), pads=(1, 1, 1, 1), fill=3)
    return y
"""
    prepared, laid = prepared_and_laid(parse_module(text, Literals()), WIDE)
    x = np.random.default_rng(0).integers(0, 256, (1, 40, 20, 20)).astype(np.uint8)

    assert summed_channels(laid.graph) == [64]
    assert not [call for call in calls_of(laid.graph) if call.op == "keep_channels"]
    np.testing.assert_array_equal(run_function(laid.graph, "main", [x])[0], run_function(prepared.graph, "main", [x])[0])


def test_without_tile_registers_as_few_are_summed_as_there_are() -> None:
    _, laid = prepared_and_laid(network(40, "nothing"), PAIRS)

    assert all(count == 40 for count in summed_channels(laid.graph))
