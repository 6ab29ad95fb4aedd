"""Compiling takes no more than it did: function calls, nodes, passes and instructions, which a busy machine does not change.

After a change that makes compilation cheaper, or dearer for a reason, `pytest --update-golden tests/test_compile_counts.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.compile_counts import NETWORKS, Counts
from tests.golden_files import FOLDER

PATH = FOLDER / "compile_counts.json"
MOST = 1.2
FEW = 500  # so many more are never too many


def too_many(found: Counts, known: Counts) -> dict[str, tuple[int, int]]:
    """Found and known of what has grown by more than a fifth, and what was not counted before."""
    pairs = {name: (count, known.get(name, 0)) for name, count in found.items()}
    return {name: (count, before) for name, (count, before) in pairs.items() if count > max(MOST * before, before + FEW)}


def test_compiling_takes_no_more_than_it_did(update_golden: bool) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.compile_counts"], capture_output=True, text=True, check=True)
    found: dict[str, Counts] = json.loads(done.stdout)
    if update_golden:
        PATH.write_text(json.dumps(found, indent=1) + "\n")

    known: dict[str, Counts] = json.loads(PATH.read_text())

    assert found.keys() == known.keys() == set(NETWORKS)
    for name, counts in found.items():
        assert min(counts[what] for what in ("nodes rewritten", "passes", "instructions", "calls in ir")) > 0
        assert too_many(counts, known[name]) == {}, name


@pytest.mark.parametrize(("found", "known", "names"), [
    ({"a": 1200}, {"a": 1000}, set()),
    ({"a": 12_001}, {"a": 10_000}, {"a"}),
    ({"a": 501}, {"a": 2}, set()),
    ({"a": 503}, {"a": 2}, {"a"}),
    ({"a": 9, "b": 501}, {"a": 10}, {"b"}),
])  # fmt: skip
def test_a_fifth_more_is_too_many(found: Counts, known: Counts, names: set[str]) -> None:
    assert too_many(found, known).keys() == names
