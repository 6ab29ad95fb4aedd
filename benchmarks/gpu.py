"""Everything about one GPU by one command: is it right, how fast is it, and beside whom. Resumable in pieces; a number is there only when
it was measured.

    python -m benchmarks.gpu --state gpu_state --minutes 9               measure what is missing, for nine minutes
    python -m benchmarks.gpu --state gpu_state --minutes 9 --tune 60     and tune each row for a minute where it is tuned at all
    python -m benchmarks.gpu --state gpu_state --list                    the rows, and which are done
    python -m benchmarks.gpu --state gpu_state --report RESULTS-GPU      write RESULTS-GPU.json and RESULTS-GPU.md
    python -m benchmarks.gpu --prebuild binaries --target cuda:sm_90a    on a machine with nvcc and no GPU: compile all kernels
    python -m benchmarks.gpu --state gpu_state --target cuda:sm_90a --prebuilt binaries      there, without a compiler
    python -m benchmarks.gpu --state dry --target opencl --rows '*small*' the parts that need no CUDA, on any OpenCL device

A machine that is lent for half an hour in commands of ten minutes, without a network, is used so: `--prebuild` beforehand and take the
folder along (with the same `--target` there; a target named by its architecture has the same kernels on both machines); then three times
the command with `--minutes 9` and the state folder in what is brought back, or brought in again. Each row is written down when it is done,
in `STATE/results.jsonl`; a command that is killed loses the row it was at. Rows go in order of worth: first what everything is set in
relation to (the measured peak and bandwidth), then correctness, then kernels, models, launches, and what is tuned.

Models and inputs are random and made on the spot (`benchmarks.half`). Programs take turns in short slots, each slot a number of calls and
one wait for the device; what counts is the median of the ratios of pairs, printed with its quartiles. tc's modules and torch's get the same
arrays on the device. "eager" is torch node by node of the same graph (`benchmarks.torch_graph`), "compile" is torch.compile in its default
mode, "graphs" in the mode reduce-overhead, with CUDA graphs, "max" is max-autotune with CUDA graphs and channels_last; "flash" and "cudnn"
are the back ends of torch's SDPA.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_report
from benchmarks.gpu_rows import ROWS, Settings, measure_row, prebuild
from tc.errors import TcError
from tc.target import Target

ROW_SECONDS = 240.0
"""After which a row is given up, and with it the process that measures it."""

START_SECONDS = 120.0
"""For a process that measures to be ready."""


class State:
    """The results so far: a line of JSON for each row that was done, in one file. A last line without an end is the work of a command that
    was killed, and is left out."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"

    def results(self) -> dict[str, dict[str, Any]]:
        """By the names of rows, the last of each."""
        found = {}
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.is_file() else []
        for line in lines:
            try:
                row = json.loads(line) if line.endswith("\n") else None
            except ValueError:
                row = None
            if isinstance(row, dict) and isinstance(row.get("row"), str):
                found[row["row"]] = row
        return found

    def add(self, row: dict[str, Any]) -> None:
        """Keep a result; what a killed command left unfinished at the end goes."""
        data = self.path.read_bytes() if self.path.is_file() else b""
        with open(self.path, "r+b" if data else "wb") as file:
            file.seek(data.rfind(b"\n") + 1)
            file.truncate()
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Worker:
    """A process that measures rows, one after the other. It is replaced when it dies or takes too long."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None

    def measure(self, name: str, seconds: float) -> dict[str, Any]:
        """A row's result, or why there is none."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            line = self._line(seconds)
        except OSError as error:
            line = None
            why = str(error)
        else:
            why = f"it took more than {seconds:.0f} s" if process.poll() is None else f"its process ended with status {process.returncode}"
        if line is None:
            self.close()
            return {"row": name, "problem": why}
        found: dict[str, Any] = json.loads(line)
        return found

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.gpu", "--worker", self._settings.to_json()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line(START_SECONDS)
        return self._process

    def _line(self, seconds: float) -> str | None:
        """The next line that the process says is a result; None when it does not come."""
        assert self._process is not None and self._process.stdout is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([self._process.stdout], [], [], min(1.0, max(end - time.monotonic(), 0.0)))
            if ready:
                line = self._process.stdout.readline()
                if not line:
                    self._process.wait()
                    return None
                if line.startswith("{"):
                    return line
        return None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def serve(settings: Settings) -> None:
    """The worker's side: names of rows come in by lines, results go out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no result
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure_row(line.strip(), settings), allow_nan=False), file=out, flush=True)


def run(state: State, settings: Settings, names: Sequence[str], minutes: float) -> None:
    """Measure the rows that are not done, until time is over."""
    end = time.monotonic() + 60 * minutes
    worker = Worker(settings)
    try:
        for name in pending(state, names):
            left = end - time.monotonic()
            if left < ROWS[name].seconds:
                continue  # a shorter one may still fit
            found = worker.measure(name, min(ROW_SECONDS + settings.tune_seconds, left))
            if found.get("problem", "").startswith("it took") and left < ROW_SECONDS:
                continue  # there was no time for it
            state.add(found)
            print(f"{name:34} {gpu_report.in_short(found)}", flush=True)
    finally:
        worker.close()


def pending(state: State, names: Sequence[str]) -> Iterator[str]:
    """Rows without a result, in order; those, too, for which something was missing that may be there now."""
    done = {name for name, row in state.results().items() if not str(row.get("problem", "")).startswith("MissingError")}
    return (name for name in names if name not in done)


def chosen_rows(patterns: Sequence[str], settings: Settings) -> list[str]:
    """The rows that fit a pattern; by default all but those of small sizes. Those that tune only if there is time for it."""
    found = [name for name in ROWS if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns or ("*",))]
    if not patterns:
        found = [name for name in found if "small" not in name]
    return [name for name in found if settings.tune_seconds or not ROWS[name].is_tuned]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="where results are kept from piece to piece")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no row that is not expected to be done by then (default 9)")
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="only these, such as 'check/*'")
    parser.add_argument("--target", default="cuda", help="default: the first CUDA device of this machine")
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS", help="for each row that is tuned; none by default")
    parser.add_argument("--prebuild", type=Path, metavar="DIR", help="compile all kernels for the target into a folder, and nothing else")
    parser.add_argument("--prebuilt", type=Path, metavar="DIR", help="take binaries from a folder that --prebuild made")
    parser.add_argument("--list", action="store_true", help="the rows, and what is known of them")
    parser.add_argument("--report", type=Path, metavar="NAME", help="write NAME.json and NAME.md")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.worker:
        serve(Settings.from_json(options.worker))
        return 0
    folder = options.state or Path("gpu_state")
    settings = Settings(options.target, options.tune, str(options.prebuilt or ""), str(folder))
    try:
        if options.prebuild:
            return prebuild(Target.parse(options.target), options.prebuild, options.rows)
        state, names = State(folder), chosen_rows(options.rows, settings)
        if options.list or options.report:
            results = state.results()
            if options.list:
                for name in names:
                    print(f"{name:34} {gpu_report.in_short(results[name]) if name in results else 'not measured yet'}")
            if options.report:
                gpu_report.write(options.report, results, [name for name in ROWS if name in results or name in names])
            return 0
        Target.parse(options.target)  # which says what is wrong before anything is started
        run(state, settings, names, options.minutes)
    except (TcError, OSError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 1
    wrong = [name for name, row in state.results().items() if row.get("right") is False]
    for name in wrong:
        print(f"WRONG: {name}: {gpu_report.in_short(state.results()[name])}")
    print(f"{len(list(pending(state, names)))} of {len(names)} rows are left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
