"""`tc fuzz`: random models against onnxruntime and the onnx reference evaluator."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from tc.cli.options import TARGET_HELP
from tc.cli.outcome import Outcome, make_table
from tc.errors import UsageError
from tc.fuzz.campaign import Failure, Settings, Summary, run_campaign
from tc.fuzz.files.search import FileSearch, search_files
from tc.fuzz.generate import MODES
from tc.fuzz.reduce import describe as describe_subject
from tc.target import Target

EPILOG = """\
examples:
  tc fuzz                                  100 random models
  tc fuzz --seed 1000 --count 5000 -j 2    those of the seeds 1000 to 5999, two at a time
  tc fuzz --budget 10m --folder failing    as many as ten minutes allow; failing models to a folder
  tc fuzz --mode indices                   operators that index, with indices out of range
  tc fuzz --mode networks                  layers of common widths: float, quantized, in f32, bf16, f16 and mixed in turns
  tc fuzz --mode programs                  nested loops, branches and sequences over rows whose number changes
  tc fuzz --mode files --budget 10m        damaged and hostile files for all that reads files; kept where they reach new lines
  tc fuzz --target opencl                  on another target that runs here
exit code 3 when a result is wrong, a process died, tc refused what both others run, or a file ends in anything but a numbered error
"""
FILES = "files"
MODE_HELP = (
    "indices: more operators that index; networks: layers of common widths, in low precision too; programs: nested loops and branches; "
    "files: files that lie"
)
_BUDGET = re.compile(r"(\d+)([smh]?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--count", type=int, help="how many seeds (default 100; without end when there is a budget)")
    parser.add_argument("--budget", metavar="TIME", help="stop after this time: 90s, 10m, 2h")
    known = (*MODES, FILES)
    parser.add_argument("--mode", choices=known, default="general", help=MODE_HELP)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where failing models and their inputs are written")
    parser.add_argument(
        "--reduce",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="time to reduce each new kind of failure (default 20)",
    )
    parser.add_argument("-j", "--processes", type=int, default=1, metavar="N", help="models at a time (default 1)")
    parser.add_argument("--threads", type=int, help="threads of a compiled model (default: 1 and 2 in turns)")
    parser.add_argument("--numerics", choices=("default", "strict"), help="default: every eighth model is strict")
    parser.add_argument("--target", default="native", help=TARGET_HELP)
    parser.add_argument("--precision", help="f32, bf16, bf16x3, f16, mixed:TOLERANCE (default: f32; of networks several in turns)")


def execute(args: argparse.Namespace) -> Outcome:
    """Judge the seeds and report; exit code 3 when one failed."""
    if args.count is not None and args.count < 1:
        raise UsageError(f"--count is {args.count}, must be at least 1")
    if args.processes < 1:
        raise UsageError(f"--processes is {args.processes}, must be at least 1")
    if args.seed < 0:
        raise UsageError(f"--seed is {args.seed}, must not be negative")
    seconds = parse_budget(args.budget) if args.budget else None
    count = args.count or (10**9 if seconds else 100)
    if args.mode == FILES:
        found = search_files(args.seed, args.count or (10**9 if seconds else 1000), seconds, args.folder)
        return Outcome(describe_files(found), lambda console: show_files(console, found), 3 if found.findings else 0)
    Target.of(args.target)  # refused here, not once a model
    settings = Settings(
        args.mode, args.threads, args.numerics, args.processes, seconds, args.reduce, target=args.target, precision=args.precision
    )
    settings.of(args.seed)  # a precision that there is not is refused here too
    summary = run_campaign(range(args.seed, args.seed + count), settings, args.folder)
    return Outcome(describe(summary), lambda console: show(console, summary), 3 if summary.failures else 0)


def parse_budget(text: str) -> float:
    """Seconds of `90s`, `10m` or `2h`."""
    matched = _BUDGET.fullmatch(text)
    if matched is None:
        raise UsageError(f"--budget: '{text}' is not a time such as 90s, 10m or 2h")
    return int(matched[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[matched[2]]


def describe(summary: Summary) -> dict[str, Any]:
    """The summary as plain data."""
    return {
        "models": sum(summary.kinds.values()),
        "seconds": summary.seconds,
        "interrupted": summary.interrupted,
        "kinds": dict(summary.kinds),
        "operators": dict(sorted(summary.operators.items())),
        "undecided": dict(summary.undecided.most_common()),
        "failures": [
            {
                "signature": signature,
                "seeds": [f.seed for f in group],
                "text": group[0].judged.verdict.text,
                "reduced": _text(group[0]),
            }
            for signature, group in summary.by_signature.items()
        ],
    }


def describe_files(found: FileSearch) -> dict[str, Any]:
    """What came of files that lie, as plain data."""
    return {
        "files": found.tried,
        "seconds": found.seconds,
        "outcomes": dict(found.outcomes),
        "codes": dict(found.codes.most_common()),
        "lines": {"of the corpus": found.first_lines, "in the end": found.lines},
        "kept": len(found.kept),
        "findings": [{"kind": case.kind, "from": case.name, "text": verdict.text} for case, verdict in found.findings.values()],
    }


def show_files(console: Console, found: FileSearch) -> None:
    for case, verdict in found.findings.values():
        console.print(f"{case.kind}, made of {case.name!r}: {verdict.text}", markup=False, highlight=False, soft_wrap=True)
    console.print(make_table("files", ("came to", "how many "), found.outcomes.most_common()))
    lines = f"{found.lines} lines of the readers, {found.first_lines} of them by the corpus"
    console.print(f"{lines}; {len(found.kept)} files kept; {found.seconds:.0f} s", highlight=False)


def _text(failure: Failure) -> str | None:
    reduced = failure.reduced
    return None if reduced is None else describe_subject(reduced.subject, reduced.verdict)


def show(console: Console, summary: Summary) -> None:
    for signature, group in summary.by_signature.items():
        seeds = ", ".join(str(f.seed) for f in group[:8]) + (" ..." if len(group) > 8 else "")
        console.rule(f"{len(group)} of: {signature}".replace("[", "\\["))
        console.print(f"seeds {seeds}", highlight=False)
        console.print(_text(group[0]) or group[0].judged.verdict.text, markup=False, highlight=False)
    console.print(make_table("models", ("came to", "how many "), summary.kinds.most_common()))
    rare = sorted(summary.operators.items(), key=lambda item: item[1])
    console.print(
        f"{len(summary.operators)} operators; rarest: {', '.join(f'{name} {n}' for name, n in rare[:12])}",
        highlight=False,
    )
    console.print(f"{summary.seconds:.0f} s{', interrupted' if summary.interrupted else ''}", highlight=False)
