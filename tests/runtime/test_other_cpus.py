"""A module for another CPU is not run here: the operating system would end the process at the first instruction that is missing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tc
from tc.demo import MODEL_PATH
from tc.errors import ModelError, UserError
from tc.target import Target, native_target

KNOWN = ("avx512bw", "avx512fp16", "sse4a", "amx-int8")
"""Of these every x86-64 CPU lacks one at least."""


@pytest.fixture
def foreign() -> Target:
    here = native_target()
    missing = [feature for feature in KNOWN if not here.has(feature)]
    assert missing
    return dataclasses.replace(here, features=(*here.features, missing[0]))


@pytest.mark.parametrize("into", [False, True], ids=["made", "given"])
def test_it_is_refused_with_what_is_missing(foreign: Target, into: bool) -> None:
    module = tc.compile(MODEL_PATH, foreign)
    x = np.zeros((2, 1, 8, 8), np.float32)

    for _ in range(2):
        with pytest.raises(UserError, match=f"with {foreign.features[-1]}, which this machine lacks"):
            module(x, out=np.zeros((2, 10), np.float32) if into else None)


def test_it_is_saved_and_refused_when_loaded(foreign: Target, tmp_path: Path) -> None:
    path = tmp_path / "m.tcm"
    tc.compile(MODEL_PATH, foreign).save(path)

    with pytest.raises(ModelError, match=f"{foreign.features[-1]}, which this machine lacks"):
        tc.load(path)


def test_what_the_cache_holds_for_another_cpu_is_not_damaged(
    foreign: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken for that, thrown away and built again on every compilation."""
    monkeypatch.setenv("TC_CACHE_DIR", str(tmp_path))
    tc.compile(MODEL_PATH, foreign)
    kept = {path: path.stat().st_ino for path in tmp_path.rglob("*.tcm")}

    tc.compile(MODEL_PATH, foreign).save(tmp_path / "m.saved")

    assert len(kept) == 1
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.tcm")} == kept
    assert not caplog.records
