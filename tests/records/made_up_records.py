"""Made-up tuning records that tests share."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tc.records.database import Database
from tc.records.record import Choice, Record, target_key
from tc.schedule.step import Step, Trace
from tc.target import Target

TARGET = Target.parse("x86-64-v3:cores=2")
KEY = target_key(TARGET)
WORKLOAD = "0123456789abcdef"


def make_trace(number: int = 4) -> str:
    """A schedule, another one for every number."""
    return Trace((Step("split", ("i", (None, number), ("io", "ii"))), Step("vectorize", ("ii",)))).to_json()


def make_record(number: int = 4, seconds: float = 1e-3, **changes: Any) -> Record:
    """A verified record of the schedule with this number; with `error` a failure."""
    times = {"seconds": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds, "ratio": seconds / 2e-3, "verified": True}
    facts = {
        "workload": WORKLOAD,
        "target": KEY,
        "threads": 2,
        "trace": make_trace(number),
        "task": "conv_1",
        "rule": "contraction",
        "point": (("mm/rows", (number, 2)), ("mm/pack", True), ("mm/order", "io jo")),
        "trial": number,
        "created": "2026-05-17T09:30:00Z",
        **({} if "error" in changes else times),
        **changes,
    }
    return Record(**facts)


def make_choice(value: Any = 4, **changes: Any) -> Choice:
    """A choice of a Winograd tile."""
    facts = {
        "pass_name": "use_winograd",
        "key": WORKLOAD,
        "target": KEY,
        "threads": 2,
        "value": value,
        "seconds": ((0, 2e-3), (2, 1.5e-3), (4, 1e-3)),
        "created": "2026-05-17T09:30:00Z",
        **changes,
    }
    return Choice(**facts)


def seal(data: dict[str, Any]) -> bytes:
    """A line with a right checksum, whatever it holds: what somebody could write who knows the format."""
    body = json.dumps(data)[1:].encode()
    return b'{"sum":"%s",%s\n' % (hashlib.blake2b(body, digest_size=8).hexdigest().encode(), body)


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file, each with its end."""
    return path.read_bytes().splitlines(keepends=True)


def all_records(path: Path) -> list[Record]:
    """What a newly opened database at `path` holds."""
    return list(Database(path, create=False).records(any_language=True))
