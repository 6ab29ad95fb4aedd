"""`tc measure`: time what other machines have put into a folder of jobs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from tc.autotune.job_folder import JobFolder
from tc.autotune.job_runner import FolderReport, measure_folder
from tc.autotune.measure import LocalRunner
from tc.autotune.tuning import parse_budget
from tc.cli.outcome import Outcome

EPILOG = """\
examples:
  tc tune model.onnx --target cuda:sm_90a --jobs FOLDER      on a machine with a compiler and no device: writes jobs, waits for results
  tc measure FOLDER --watch 10m                              on the machine with the device: measures them as they come
  tc measure FOLDER --budget 9m                              for nine minutes; the next call goes on

Results appear one file each, whole or not at all; a process that is killed is made up for by the next, and several may measure at a time.
Exit code 1 when a file is no job, or is one for a device that is not here.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="that tc tune --jobs has written to")
    parser.add_argument("--budget", metavar="TIME", help="begin no job after so long, such as 9m (default: when all are done)")
    parser.add_argument("--watch", metavar="TIME", help="wait so long for more when all are done (default: not at all)")
    parser.add_argument("--builders", type=int, metavar="N", help="processes that compile side by side (default: one for each core)")


def execute(args: argparse.Namespace) -> Outcome:
    """Measure what is there."""
    seconds = float("inf") if args.budget is None else parse_budget(args.budget)
    watch = 0.0 if args.watch is None else parse_budget(args.watch)
    folder = JobFolder(args.folder)

    def show(report: FolderReport) -> None:
        if not args.json:
            print(f"{report.done.total()} done, {len(folder.pending())} wait", file=sys.stderr, flush=True)

    with LocalRunner(builders=args.builders, binaries=folder.binaries if folder.binaries.is_dir() else None) as runner:
        report = measure_folder(args.folder, runner, seconds=seconds, watch_seconds=watch, on_batch=show)
    left = len(folder.pending())
    data = {"folder": str(args.folder), "done": dict(report.done), "left": left, "refused": report.damaged}
    return Outcome(data, lambda console: _show(console, report, left), 1 if report.damaged else 0)


def _show(console: Console, report: FolderReport, left: int) -> None:
    for name, why in report.damaged.items():
        console.print(f"{name}: {why}", highlight=False, markup=False)
    done = ", ".join(f"{count} {kind}" for kind, count in report.done.items()) or "nothing to do"
    console.print(f"{done}; {left} left", highlight=False, markup=False)
