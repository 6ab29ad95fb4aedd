"""What tests know of the CPU that they run on."""

from __future__ import annotations

import pytest

from tc.target import Target


def skip_where_it_cannot_run(target: Target | str) -> None:
    """Skip the test, with a reason, on a CPU that lacks instructions of a target whose code is to run."""
    chosen = target if isinstance(target, Target) else Target.parse(target)
    missing = chosen.host.missing_here()
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(missing)}")
