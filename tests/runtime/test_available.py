"""How much memory there is, and what is refused for want of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tc
from tc.errors import LimitError
from tc.runtime import available
from tc.runtime.available import available_bytes, check_fits
from tests.frontend.models import make_model, node

F32, GIB = np.float32, 1 << 30


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB\n"}


def test_the_smaller_of_machine_and_control_group_counts(tmp_path: Path) -> None:
    assert available_bytes(files(tmp_path / "a", MACHINE)) == 4 * GIB
    second = {
        "proc/self/cgroup": "0::/app/worker\n",
        "sys/fs/cgroup/app/worker/memory.max": "max\n",
        "sys/fs/cgroup/app/worker/memory.current": "1\n",
        "sys/fs/cgroup/app/memory.max": f"{3 * GIB}\n",
        "sys/fs/cgroup/app/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/app/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
    }
    assert available_bytes(files(tmp_path / "b", MACHINE | second)) == GIB + GIB // 2
    first = {
        "proc/self/cgroup": "4:cpu,memory:/container\n1:cpu:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB + 1}\n",
    }
    assert available_bytes(files(tmp_path / "c", MACHINE | first)) == 0
    assert available_bytes(tmp_path / "nothing") is None


def test_no_more_is_available_than_the_machine_says() -> None:
    found = available_bytes()

    assert found is None or 0 < found < 1 << 50


def test_little_is_not_asked_for_and_much_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "available_bytes", lambda: 1 << 30)

    check_fits(1 << 20)
    check_fits(1 << 30)
    with pytest.raises(LimitError, match=r"needs 1073741825 bytes \(1\.0 GiB\).* 1073741824 \(1\.0 GiB\) are available"):
        check_fits((1 << 30) + 1)


@pytest.mark.covering
@pytest.mark.parametrize("rows", [1 << 15, "n"])
@pytest.mark.parametrize("output", ["s", "p"])
def test_a_plan_that_does_not_fit_is_refused_before_it_runs(rows: int | str, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # It ran until it was killed. The scores of every row with every row are 4 GiB, as a result or on the way to one.
    nodes = [node("MatMul", "x t", "p"), node("Softmax", "p", "q", axis=-1), node("MatMul", "q x", "s")]
    model = make_model([node("Transpose", "x", "t", perm=[1, 0]), *nodes], {"x": (F32, [rows, 1])}, [output])
    compiled = tc.compile(model, numerics="strict")
    monkeypatch.setattr(available, "available_bytes", lambda: 1 << 30)
    x = np.zeros((1 << 15, 1), F32)

    with pytest.raises(LimitError, match=r"the call needs \d{10,} bytes \(\d+\.\d GiB\)"):
        compiled(x)
    if rows == "n":
        assert compiled(x[:4]).shape == ((4, 4) if output == "p" else (4, 1))
