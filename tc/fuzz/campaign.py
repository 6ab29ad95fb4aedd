"""Many seeds, one after another or in several processes, within a count and a time budget; what failed goes to a folder."""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import onnx

from tc.fuzz.differential import How
from tc.fuzz.generate import NETWORKS
from tc.fuzz.process import Judge, Judged
from tc.fuzz.reduce import Reduced, Subject, describe, reduce_failure

PRECISIONS = ("bf16", "f32", "mixed:0.05", "bf16x3", "f16")  # of networks, two seeds each in turns


@dataclass(frozen=True)
class Settings:
    """How seeds are judged. With `numerics`, `threads` or `precision` None they change from seed to
    seed; precision in networks alone."""

    mode: str = "general"
    threads: int | None = None
    numerics: str | None = None
    processes: int = 1
    seconds: float | None = None
    reduce_seconds: float = 0.0  # for the first failure of each signature; 0: none is reduced
    timeout_seconds: float = 120.0
    target: str = "native"
    precision: str | None = None

    def of(self, seed: int) -> How:
        """How the model of a seed is compiled."""
        drawn = PRECISIONS[seed // 2 % len(PRECISIONS)] if self.mode == NETWORKS else "f32"
        numerics = self.numerics or ("strict" if seed % 8 == 7 else "default")
        return How(self.threads or 1 + seed % 2, numerics, self.target, self.precision or drawn)


@dataclass(frozen=True)
class Failure:
    """A seed that failed: what was judged, and the smallest model found that fails alike."""

    seed: int
    judged: Judged
    reduced: Reduced | None = None


@dataclass
class Summary:
    """What came of all seeds: how many of each kind, how often each operator stood in a model that was compared, the failures."""

    kinds: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def by_signature(self) -> dict[str, list[Failure]]:
        """The failures that look alike, together."""
        groups: dict[str, list[Failure]] = {}
        for failure in self.failures:
            groups.setdefault(failure.judged.verdict.signature, []).append(failure)
        return groups


def run_campaign(
    seeds: range,
    settings: Settings,
    folder: Path | None,
    tell: Callable[[int, Judged], None] = lambda seed, judged: None,
) -> Summary:
    """Judge the seeds; no new one is begun after `settings.seconds`, or when the user interrupts: what was judged until then counts.
    Failing models are written to `folder`. `tell` hears of each seed."""
    summary, begun = Summary(), time.monotonic()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    try:
        for seed, judged in _all(seeds, settings, begun):
            tell(seed, judged)
            _count(summary, seed, judged, settings, folder)
    except KeyboardInterrupt:
        summary.interrupted = True
    summary.seconds = time.monotonic() - begun
    return summary


def _count(summary: Summary, seed: int, judged: Judged, settings: Settings, folder: Path | None) -> None:
    """Add what came of one seed to the summary, a failure reduced if it is the first of its kind."""
    verdict = judged.verdict
    summary.kinds[verdict.kind] += 1
    if verdict.kind == "undecided":
        summary.undecided[verdict.text.split("\n")[0][:120]] += 1
    else:
        summary.operators.update(judged.operators)
    if verdict.failed:
        is_new = verdict.signature not in summary.by_signature
        failure = Failure(seed, judged, _reduced(judged, settings, seed) if is_new and settings.reduce_seconds else None)
        summary.failures.append(failure)
        if folder is not None:
            write_failure(folder, failure, settings)


def _all(seeds: range, settings: Settings, begun: float) -> Iterator[tuple[int, Judged]]:
    """The seeds and what came of them, in their order."""
    judges = [Judge(timeout_seconds=settings.timeout_seconds) for _ in range(settings.processes)]

    def work(seed: int) -> tuple[int, Judged]:
        judge = judges.pop()
        try:
            return seed, judge.draw(seed, settings.mode, settings.of(seed))
        finally:
            judges.append(judge)

    def in_time() -> bool:
        return settings.seconds is None or time.monotonic() - begun < settings.seconds

    try:
        with ThreadPoolExecutor(settings.processes) as pool:
            running: deque[Future[tuple[int, Judged]]] = deque()
            for seed in takewhile(lambda _: in_time(), seeds):
                running.append(pool.submit(work, seed))
                if len(running) == settings.processes:
                    yield running.popleft().result()
            yield from (future.result() for future in running)
    finally:
        for judge in judges:
            judge.close()


def _reduced(judged: Judged, settings: Settings, seed: int) -> Reduced | None:
    if judged.model is None or judged.verdict.kind == "timeout":
        return None
    judge = Judge(timeout_seconds=settings.timeout_seconds)
    try:
        return reduce_failure(
            judged.model, judged.runs, judged.verdict, judge, settings.of(seed), seconds=settings.reduce_seconds
        )
    finally:
        judge.close()


def write_failure(folder: Path, failure: Failure, settings: Settings) -> None:
    """`seed.onnx` and `seed.npz`, the inputs it fails on, `seed.json`, what came of it; `seed.txt`, the reduced model as text."""
    judged, stem = failure.judged, folder / str(failure.seed)
    report = {
        "seed": failure.seed,
        "mode": settings.mode,
        **vars(settings.of(failure.seed)),
        "kind": judged.verdict.kind,
        "text": judged.verdict.text,
    }
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    if judged.model is not None:
        write_subject(stem, Subject(judged.model, judged.runs[judged.verdict.run].feeds))
    if failure.reduced is not None:
        stem.with_suffix(".txt").write_text(
            describe(failure.reduced.subject, failure.reduced.verdict), encoding="utf-8"
        )


def write_subject(stem: Path, subject: Subject) -> None:
    """`stem`.onnx and, with the inputs, `stem`.npz."""
    onnx.save(subject.model, stem.with_suffix(".onnx"))
    np.savez(stem.with_suffix(".npz"), **subject.feeds)
