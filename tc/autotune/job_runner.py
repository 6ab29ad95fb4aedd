"""Both sides of a folder of jobs: a runner that writes jobs and waits for results, and what measures them where the device is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tc.autotune.build import BuildRequest, build
from tc.autotune.job_folder import (
    DamagedFile,
    JobFolder,
    encode,
    measurement_data,
    parse_job,
    parse_measurement,
    read_arrays,
    read_json,
    write_at_once,
)
from tc.autotune.runner import Job, Measurement, ReferenceClock, Runner
from tc.codegen.cuda.compile import compiler, keep_binaries
from tc.errors import MeasureError, TcError, TuningError, UserError
from tc.target import Target

POLL_SECONDS = 0.2
BATCH = 8
"""Jobs that a process takes at a time."""


class JobFolderRunner:
    """Measures through a folder; see `tc.autotune.runner.Runner`. Whoever runs `tc measure FOLDER` does the work.

    patience_seconds: how long nothing may come of what is waited for before that is a MeasureError; jobs and results stay, so a later run
    goes on with them. Kernels for CUDA devices are compiled here, if there is a compiler, and go along as binaries.
    """

    def __init__(self, folder: Path | str, *, patience_seconds: float = 600.0) -> None:
        self.folder = JobFolder(Path(folder))
        self._patience = patience_seconds
        self._clock = ReferenceClock()
        self._lock = threading.Lock()
        self._closed = False
        self.folder.path.mkdir(parents=True, exist_ok=True)

    def measure(self, jobs: Sequence[Job]) -> list[Measurement]:
        """One measurement for each job, in order. MeasureError when nobody measures."""
        found: list[Measurement | None] = [self._prebuilt(job) for job in jobs]
        names = {k: self.folder.put(job) for k, job in enumerate(jobs) if found[k] is None}
        results = self._await(list(names.values()))
        for k, name in names.items():
            found[k] = self._measurement(jobs[k], results[name])
        return [each for each in found if each is not None]

    def check(self, job: Job, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str | None:
        """What differs when the job's candidate runs on `inputs`, as whoever measures says; None when nothing does."""
        arrays = {f"input{k}": np.asarray(x) for k, x in enumerate(inputs)} | {f"result{k}": np.asarray(x) for k, x in enumerate(expected)}
        name = self.folder.put(job, arrays)
        said = self._await([name])[name].get("said")
        return None if said is None else str(said)[:4096]

    def close(self) -> None:
        """Wait for nothing any more."""
        self._closed = True

    def __enter__(self) -> JobFolderRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _prebuilt(self, job: Job) -> Measurement | None:
        """Compile what goes along; what is wrong with the candidate, if that shows here already."""
        target = Target.parse(job.workload.target)
        if target.kind != "cuda" or not compiler():
            return None
        with self._lock:
            keep_binaries(self.folder.binaries)
            try:
                build(BuildRequest(job.workload, job.trace))
                build(BuildRequest(job.reference, job.reference_trace))
            except TcError as error:
                return Measurement.failed("build", error.text[:400])
            finally:
                keep_binaries(None)
        return None

    def _await(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The results of jobs. MeasureError when none of them comes for too long."""
        found: dict[str, dict[str, Any]] = {}
        latest = time.monotonic()
        while len(found) < len(set(names)):
            if self._closed:
                raise MeasureError("the runner has been closed")
            for name in dict.fromkeys(names):
                result = None if name in found else self._result(name)
                if result is not None:
                    found[name], latest = result, time.monotonic()
            if len(found) < len(set(names)):
                if time.monotonic() - latest > self._patience:
                    waiting = f"{len(set(names)) - len(found)} jobs wait in {self.folder.path}"
                    raise MeasureError(f"{waiting}: run tc measure on it where the device is, then this again")
                time.sleep(POLL_SECONDS)
        return found

    def _result(self, name: str) -> dict[str, Any] | None:
        try:
            return self.folder.result(name)
        except DamagedFile as error:
            raise MeasureError(f"{self.folder.result_path(name)}: {error}; delete it to have the job measured again") from None

    def _measurement(self, job: Job, result: Mapping[str, Any]) -> Measurement:
        try:
            found = parse_measurement(result.get("measurement"))
        except DamagedFile as error:
            return Measurement.failed("crash", f"its result cannot be read: {error}")
        if found.error is not None:
            return found
        self._clock.add(job.reference_key, found.reference_seconds)
        return found.with_reference(self._clock.seconds(job.reference_key) or found.reference_seconds)


# -- where the device is


@dataclass
class FolderReport:
    """What was done: results by kind ("measured", "checked", or the kind of a failure), and files that are no jobs."""

    done: Counter[str] = field(default_factory=Counter)
    damaged: dict[str, str] = field(default_factory=dict)


def measure_folder(
    folder: Path,
    runner: Runner,
    *,
    seconds: float = float("inf"),
    watch_seconds: float = 0.0,
    on_batch: Callable[[FolderReport], None] = lambda report: None,
) -> FolderReport:
    """Measure the jobs in a folder, several processes at a time if several do this, until none is left.

    seconds: begin none after so long. watch_seconds: how long to wait for more when none is left. Whoever is killed leaves its claims,
    which others take over, and no half results. Jobs for a target that this machine does not have are left alone, with a note.
    """
    jobs, report = JobFolder(folder), FolderReport()
    if not folder.is_dir():
        raise TuningError(f"there is no folder {str(folder)!r}")
    end, idle = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end:
        names = _claimed(jobs, report)
        if names:
            _measure(jobs, names, runner, report)
            idle = time.monotonic()
            on_batch(report)
        elif time.monotonic() - idle >= watch_seconds:
            break
        else:
            time.sleep(POLL_SECONDS)
    return report


def _claimed(jobs: JobFolder, report: FolderReport) -> list[str]:
    """Jobs without a result that nobody is at, now ours."""
    found: list[str] = []
    for name in jobs.pending():
        if len(found) == BATCH:
            break
        if name not in report.damaged and jobs.claim(name):
            if jobs.result_path(name).is_file():  # somebody was quicker
                jobs.release(name)
            else:
                found.append(name)
    return found


def _measure(jobs: JobFolder, names: Sequence[str], runner: Runner, report: FolderReport) -> None:
    """Measure claimed jobs and write down what came of them."""
    try:
        parsed: dict[str, tuple[Job, bool]] = {}
        for name in names:
            try:
                data = read_json(jobs.job_path(name))
                parsed[name] = parse_job(data), data.get("kind") == "check"
            except DamagedFile as error:
                report.damaged[name] = str(error)
        timed = [name for name, (_, is_check) in parsed.items() if not is_check]
        for name, found in zip(timed, _measured(runner, [parsed[name][0] for name in timed]), strict=True):
            if isinstance(found, str):
                report.damaged[name] = found
            else:
                _finish(jobs, name, {"measurement": measurement_data(found)})
                report.done["measured" if found.error is None else found.error] += 1
        for name in (name for name, (_, is_check) in parsed.items() if is_check):
            try:
                arrays = read_arrays(jobs.job_path(name).with_suffix(".npz"))
                inputs, expected = ([arrays[key] for key in _numbered(arrays, word)] for word in ("input", "result"))
                _finish(jobs, name, {"said": runner.check(parsed[name][0], inputs, expected)})
                report.done["checked"] += 1
            except (DamagedFile, UserError) as error:
                report.damaged[name] = str(error)
    finally:
        for name in names:
            jobs.release(name)


def _measured(runner: Runner, jobs: Sequence[Job]) -> list[Measurement | str]:
    """Measurements, or why this machine cannot make them."""
    try:
        return list(runner.measure(jobs)) if jobs else []
    except UserError as error:
        if len(jobs) == 1:
            return [error.text]
    found: list[Measurement | str] = []
    for job in jobs:  # one of another target keeps none of the others from being measured
        try:
            found += runner.measure([job])
        except UserError as error:
            found.append(error.text)
    return found


def _numbered(arrays: Mapping[str, np.ndarray], word: str) -> list[str]:
    return sorted((key for key in arrays if key.startswith(word) and key[len(word) :].isdigit()), key=lambda key: int(key[len(word) :]))


def _finish(jobs: JobFolder, name: str, members: Mapping[str, Any]) -> None:
    write_at_once(jobs.result_path(name), encode("result", {"job": name, **members}))
