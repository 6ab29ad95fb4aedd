"""A text has the helpers that it calls, and no others: an unused function is a warning of every compiler."""

from __future__ import annotations

import re

import pytest

import tc
from tc.codegen.c.dialect import CUDA
from tc.codegen.c.helpers import Helpers
from tc.demo import MODEL_PATH


def test_helpers_that_nothing_comes_to_are_left_out() -> None:
    helpers = Helpers(CUDA)
    for text in ("f32x2 is a type", "twice takes f32x2", "inverse takes f32x2", "four calls twice"):
        helpers.need(text.split()[0], lambda text=text: text)

    assert helpers.text(["y = four(x);"]).split("\n") == ["f32x2 is a type", "twice takes f32x2", "four calls twice"]
    assert helpers.text(["y = x;"]) == ""


@pytest.mark.parametrize(("target", "language"), [("cuda:sm_90", "cuda"), ("c", "c")])
def test_every_helper_of_a_models_kernels_is_called(target: str, language: str) -> None:
    # A mask was inverted for a line that was then found to be of no use.
    lowered = tc.lower(str(MODEL_PATH), language, target)

    unused = []
    for kernel in lowered.kernels:
        text = lowered.as_text(kernel)
        names = re.findall(r"^static .*?\b(\w+)\([^;]*\{$", text, re.MULTILINE)
        unused += [(kernel, name) for name in names if len(re.findall(rf"\b{name}\b", text)) < 2]

    assert unused == []
