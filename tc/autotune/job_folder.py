"""Candidates measured elsewhere, through a folder: jobs are files that one machine writes, results files that others write.

    FOLDER/jobs/ID.json         what to measure, as text: programs and schedules; ID follows from the contents
    FOLDER/jobs/ID.npz          the arrays of a check
    FOLDER/claims/ID.json       who is at it; a claim whose process is gone, or that is old, is taken over
    FOLDER/results/ID.json      what came of it
    FOLDER/binaries/HASH.cubin  kernels that were compiled where the jobs come from: the other side needs no compiler for these

Every file appears at once, under its name when it is whole, so a process that is killed leaves nothing half done, and two may measure at a
time. Files are data, JSON and plain arrays of limited size, checked field by field. What they describe is run all the same, in the children
that measure all candidates: programs, schedules and binaries. Measure what comes from where you would take a program from.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import socket
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from tc.autotune.runner import ERROR_KINDS, Job, Measurement, Workload
from tc.errors import TcError
from tc.ir.dtype import from_numpy, parse_dtype
from tc.records.apply import check_trace
from tc.schedule.step import Trace

FORMAT, VERSION = "tc-job-folder", 1
FILE_LIMIT_BYTES = 4 << 20
ARRAYS_LIMIT_BYTES = 2 << 30
CLAIM_SECONDS = 900.0
"""After which a claim of a process on another machine is nobody's."""

NEW_SECONDS = 2.0
"""Of a claim that is being written."""


class DamagedFile(ValueError):
    """A file that is none of this format; the message says why."""


# -- files


def write_at_once(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; DamagedFile for what is none."""
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            raise DamagedFile(f"it has more than {FILE_LIMIT_BYTES} bytes")
        found = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFile(str(error)) from None
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise DamagedFile(f"it is no file of {FORMAT} {VERSION}")
    return found


def encode(kind: str, members: Mapping[str, Any]) -> bytes:
    """The bytes of a file; equal contents give equal bytes."""
    return json.dumps({"format": FORMAT, "version": VERSION, "kind": kind, **members}, sort_keys=True, allow_nan=False).encode()


def job_data(job: Job) -> dict[str, Any]:
    """A job as JSON has it."""
    return {
        "workload": vars(job.workload),
        "trace": job.trace,
        "reference_trace": job.reference_trace,
        "reference_workload": None if job.reference_workload is None else vars(job.reference_workload),
        "effort": job.effort,
    }


def parse_job(data: Mapping[str, Any]) -> Job:
    """The job that `job_data` made this from; DamagedFile for anything else."""
    reference = data.get("reference_workload")
    effort = data.get("effort")
    if not isinstance(effort, (int, float)) or isinstance(effort, bool) or not 0 < effort <= 100:
        raise DamagedFile("its effort is no number from 0 to 100")
    traces = [data.get(name) for name in ("trace", "reference_trace")]
    for text in traces:
        if not isinstance(text, str):
            raise DamagedFile("a schedule is no text")
        try:
            check_trace(Trace.from_json(text))
        except (TcError, RecursionError) as error:
            raise DamagedFile(f"a schedule is none: {error}") from None
    workload = _workload(data.get("workload"))
    return Job(workload, str(traces[0]), str(traces[1]), None if reference is None else _workload(reference), float(effort))


def _workload(data: Any) -> Workload:
    names = {field.name for field in fields(Workload)}
    if not isinstance(data, dict) or data.keys() != names:
        raise DamagedFile("a workload has other fields than it should")
    good = all(isinstance(data[name], str) for name in ("key", "text", "target")) and _is_count(data["threads"], 1, 1 << 16)
    good = good and _is_count(data["apart_bytes"], 0, 1 << 40) and isinstance(data["constants"], list) and isinstance(data["dims"], list)
    good = good and all(_is_count(place, 0, 1 << 16) for place in data["constants"])
    good = good and all(isinstance(d, list) and len(d) == 2 and isinstance(d[0], str) and _is_count(d[1], 0, 1 << 40) for d in data["dims"])
    if not good:
        raise DamagedFile("a workload has a field of another type")
    dims = tuple((name, size) for name, size in data["dims"])
    return Workload(data["key"], data["text"], dims, data["target"], data["threads"], tuple(data["constants"]), data["apart_bytes"])


def _is_count(number: object, low: int, high: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number < high


def measurement_data(found: Measurement) -> dict[str, Any]:
    """A measurement as JSON has it: None stands for infinity."""
    return {name: None if isinstance(value, float) and math.isinf(value) else value for name, value in vars(found).items()}


def parse_measurement(data: Any) -> Measurement:
    """The measurement that `measurement_data` made this from; DamagedFile for anything else."""
    names = {field.name for field in fields(Measurement)}
    if not isinstance(data, dict) or data.keys() != names:
        raise DamagedFile("a measurement has other fields than it should")
    if data["error"] is not None:
        if data["error"] not in ERROR_KINDS or not isinstance(data["detail"], str):
            raise DamagedFile("its error is of no known kind")
        return Measurement.failed(data["error"], data["detail"][:4096])
    times = [data[name] for name in ("seconds", "low", "high", "ratio", "reference_seconds", "build_seconds")]
    if not all(isinstance(t, (int, float)) and not isinstance(t, bool) and 0 <= t < math.inf for t in times) or min(times[:5]) <= 0:
        raise DamagedFile("a time is no time")
    if not _is_count(data["rounds"], 1, 1 << 30):
        raise DamagedFile("it has no rounds")
    return Measurement(*map(float, times[:5]), data["rounds"], float(times[5]))


# -- the folder


@dataclass(frozen=True)
class JobFolder:
    """The folder, from either side."""

    path: Path

    def job_path(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.json"

    def result_path(self, name: str) -> Path:
        return self.path / "results" / f"{name}.json"

    def claim_path(self, name: str) -> Path:
        return self.path / "claims" / f"{name}.json"

    @property
    def binaries(self) -> Path:
        return self.path / "binaries"

    def put(self, job: Job, arrays: Mapping[str, np.ndarray] | None = None) -> str:
        """Write a job unless it is there; its name. `arrays`: of a check."""
        packed = b"" if arrays is None else _packed(arrays)
        data = encode("job" if arrays is None else "check", {**job_data(job), "arrays": hashlib.sha256(packed).hexdigest()})
        name = hashlib.sha256(data).hexdigest()[:24]
        if not self.job_path(name).is_file():
            if arrays is not None:
                write_at_once(self.job_path(name).with_suffix(".npz"), packed)
            write_at_once(self.job_path(name), data)
        return name

    def result(self, name: str) -> dict[str, Any] | None:
        """A result; None where there is none yet. DamagedFile for one that is none."""
        return read_json(self.result_path(name)) if self.result_path(name).is_file() else None

    def names(self) -> list[str]:
        """Of all jobs, oldest first."""
        found = list((self.path / "jobs").glob("*.json")) if self.path.is_dir() else []
        return [path.stem for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))]

    def pending(self) -> list[str]:
        """Jobs without a result."""
        return [name for name in self.names() if not self.result_path(name).is_file()]

    def claim(self, name: str) -> bool:
        """Take a job, if nobody has it who is alive."""
        path, own = self.claim_path(name), encode("claim", {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()})
        path.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(2):
            try:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                if _is_held(path):
                    return False
                stale = path.with_suffix(f".{os.getpid()}.stale")
                try:
                    os.replace(path, stale)  # of two that find it stale, one does
                except OSError:
                    return False
                stale.unlink(missing_ok=True)
                continue
            with os.fdopen(handle, "wb") as file:
                file.write(own)
            return True
        return False

    def release(self, name: str) -> None:
        """Give a job back."""
        self.claim_path(name).unlink(missing_ok=True)


def _is_held(path: Path) -> bool:
    """Whether whoever made a claim may still be at it."""
    try:
        age = time.time() - path.stat().st_mtime
        data = read_json(path)
    except (OSError, DamagedFile):
        return path.is_file() and time.time() - path.stat().st_mtime < NEW_SECONDS  # one is being written
    if data.get("host") == socket.gethostname() and isinstance(data.get("pid"), int):
        return _is_alive(data["pid"])
    return age < CLAIM_SECONDS


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as .npz, each as bytes under its name, dtype and shape, for numpy's own format does not know all dtypes."""
    out, plain = io.BytesIO(), {}
    for name, array in arrays.items():
        key = f"{name}:{from_numpy(array.dtype).name}:{'x'.join(map(str, array.shape))}"
        plain[key] = np.frombuffer(array.tobytes(), np.uint8)
    np.savez(out, **plain)
    return out.getvalue()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a check by name; DamagedFile for what `JobFolder.put` did not write."""
    found = {}
    try:
        if path.stat().st_size > ARRAYS_LIMIT_BYTES:
            raise DamagedFile(f"its arrays have more than {ARRAYS_LIMIT_BYTES} bytes")
        with np.load(path, allow_pickle=False) as data:
            for key in data.files:
                name, dtype, shape = key.split(":")
                sizes = tuple(int(size) for size in shape.split("x") if size)
                found[name] = data[key].view(parse_dtype(dtype).numpy).reshape(sizes)
    except (OSError, ValueError, TypeError, KeyError, EOFError, TcError, zipfile.BadZipFile) as error:
        raise DamagedFile(f"its arrays cannot be read: {error}") from None
    return found
