"""ONNX's test suite as ONNX runs it, tolerances included, through its own interface."""

from __future__ import annotations

import fnmatch
import unittest
import warnings
from pathlib import Path

import numpy as np
import onnx.backend.test
import pytest

from tc.onnx_backend import TcBackend

DENIED = {
    "test_bernoulli*": "compares random numbers, of which ONNX says the distribution alone",
    "test_resize_downsample_scales_linear_align_corners_cpu": "ONNX takes the size before it is rounded, runtimes do not",
    "test_resize_downsample_scales_cubic_align_corners_cpu": "ONNX takes the size before it is rounded, runtimes do not",
    "test_maxunpool_export_with_output_shape_cpu": "ONNX counts places in a smaller result than the one asked for, runtimes in that one",
    **dict.fromkeys(
        ("test_attention_4d_causal_fp16_cpu", "test_attention_4d_causal_fp16_expanded_cpu"),
        "within two numbers of f16: ONNX's data are rounded to f16 after every step, tc rounds once",
    ),
    "test_gradient_of_*": "the Gradient of ai.onnx.preview.training: models are not differentiated",
    "test_loop16_seq_none_cpu": "ONNX's comparison takes the length of a scalar in a sequence (`test_signature` has the case)",
}
"""Cases that do not pass, and why: patterns of names. It only gets shorter."""


ROOT = Path(__file__).parents[2]
GROUPS = ("Node", "Simple", "PyTorchConverted", "PyTorchOperator")


def cases() -> dict[str, dict[str, unittest.TestCase]]:
    """The cases of the suite that need no model from elsewhere, by group and name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite = onnx.backend.test.BackendTest(TcBackend, __name__)
    found: dict[str, dict[str, unittest.TestCase]] = {}
    for group in GROUPS:
        of_group = suite.test_cases[f"OnnxBackend{group}ModelTest"]
        found[group] = {name: of_group(name) for name in dir(of_group) if name.startswith("test_") and name.endswith("_cpu")}
    return found


BY_GROUP = cases()
NODES = BY_GROUP["Node"]
CASES = {name: case for group in BY_GROUP.values() for name, case in group.items()}
ALL = sorted(CASES)


def is_denied(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in DENIED)


def run(name: str) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        getattr(CASES[name], name)()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if not is_denied(name)])
def test_case_of_onnx(name: str) -> None:
    run(name)


@pytest.mark.parametrize("name", [name for name in ALL if not is_denied(name)][::50])
def test_some_cases_of_onnx(name: str) -> None:
    run(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL if is_denied(name) and "bernoulli" not in name])
def test_what_is_denied_does_not_pass(name: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - whatever a case fails with
        run(name)


def test_the_list_names_cases_that_there_are() -> None:
    assert len(ALL) > 1900
    assert not [pattern for pattern in DENIED if not fnmatch.filter(ALL, pattern)]


def test_the_readme_says_how_many_cases_of_single_nodes_pass() -> None:
    names = sorted(name for name in ALL if name in NODES)
    passing = sum(not is_denied(name) for name in names)

    assert f"{passing:,} of {len(names):,} cases of single nodes pass" in (ROOT / "README.md").read_text(encoding="utf-8")
