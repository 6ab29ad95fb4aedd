"""From the command line to an exit code: parses, calls the command, prints its outcome or its error."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from rich.console import Console

from tc.cli import (
    bench,
    bisect,
    compare,
    db,
    demo,
    doctor,
    explain,
    fuzz,
    inspect,
    measure,
    profile,
    quantize,
    reproduce,
    run,
    tune,
)
from tc.cli import compile as compile_command
from tc.cli import reduce as reduce_command
from tc.cli.operators import import_operators
from tc.cli.outcome import Outcome
from tc.errors import TcError, UsageError
from tc.version import __version__

COMMANDS = {
    "run": (run, "compile a model and run it"),
    "inspect": (inspect, "say what a model holds and how each node will run"),
    "compile": (compile_command, "write a compiled module, or the text of a stage"),
    "profile": (profile, "time every kernel of a model"),
    "bench": (bench, "measure a model beside other runtimes"),
    "compare": (compare, "find the first node whose result another runtime does not have"),
    "bisect": (bisect, "find the pass or the kernel that changes what a model computes"),
    "tune": (tune, "search for faster schedules under a time budget"),
    "quantize": (quantize, "find which edges run in 8 bits, and write the model so"),
    "measure": (measure, "time candidates that another machine has put into a folder"),
    "fuzz": (fuzz, "compile random models and compare them with other runtimes"),
    "reduce": (reduce_command, "make a model that fails small"),
    "db": (db, "look into tuning databases; join, shrink and export them"),
    "reproduce": (reproduce, "do again what tc itself failed at"),
    "explain": (explain, "say what the code of an error means"),
    "doctor": (doctor, "check this machine and this installation"),
    "demo": (demo, "read handwritten digits with a model that comes along"),
}

WITH_OPERATORS = {"run", "inspect", "compile", "profile", "tune", "compare", "bisect"}
"""The commands that compile a model of the user in this process."""

EPILOG = """\
examples:
  tc demo
  tc inspect model.onnx
  tc run model.onnx --dims batch=4 --check interpreter
  tc compile model.onnx --emit loops
  tc profile model.onnx --dims batch=4
  tc bench model.onnx --vs onnxruntime,openvino
  tc compare model.onnx --against onnxruntime
  tc bisect model.onnx
  tc tune model.onnx --budget 10m --db tuned.db
  tc quantize model.onnx --data calib/ -o model.int8.onnx
  tc db list tuned.db
  tc explain TC1012
  tc COMMAND --help                     more of them

exit codes:
  0 done   1 wrong request or damaged file   2 not supported   3 results differ from the reference
  4 a bound on size, time or memory was reached   5 tc itself failed
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`: the exit code is 1, since 2 means "not supported"."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try {self.prog} --help)")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="tc",
        description="Compile deep-learning models to native code.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tc {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (module, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
        if name in WITH_OPERATORS:
            said = "Python that registers operators of yours (tc.op), before the model is read: a .py file or a module"
            subparser.add_argument("--operators", action="append", default=[], metavar="FILE", help=said)
        subparser.add_argument("--json", action="store_true", help="print the result as JSON")
        subparser.add_argument("--debug", action="store_true", help="show where in tc an error comes from")
        subparser.set_defaults(execute=module.execute)
    return parser


class _Console(Console):
    """Rich's console ends the program with an error when its reader is gone; here that is a normal end."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are those of the process if not given. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _prepare_streams()
        args = make_parser().parse_args(given)
    except (UsageError, KeyboardInterrupt) as error:
        raise SystemExit(report_error(error, as_json="--json" in given)) from None
    try:
        for name in args.operators if args.command in WITH_OPERATORS else ():
            import_operators(name)
        outcome = args.execute(args)
        return _shown(outcome, as_json=args.json)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _write_nowhere()
        return 0
    except KeyboardInterrupt as error:
        return report_error(error, as_json=args.json)
    except Exception as error:
        if args.debug:
            raise
        return report_error(error, as_json=args.json)


def _shown(outcome: Outcome, *, as_json: bool) -> int:
    """Print what came of a command; returns the exit code: another one where that cannot be written, as on a full disk."""
    try:
        if as_json:
            print(to_json(outcome.data))
        else:
            outcome.show(_Console())
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        code = report_error(error, as_json=False)
        _write_nowhere()
        return code
    return int(outcome.exit_code)


def _prepare_streams() -> None:
    """Have somewhere to write to where a stream is closed, something to write for letters that its encoding lacks, and a width where the
    environment says 0, which means that it does not know."""
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # as long as the process
        elif hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")


def _write_nowhere() -> None:
    """What is still to be written at the end of the process would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_error(error: BaseException, *, as_json: bool) -> int:
    """Print `error` as one message, as a JSON object too if asked to; returns the exit code that belongs to it."""
    kind, facts, shown = type(error).__name__, {}, ""
    match error:
        case TcError():
            message, exit_code, facts = error.with_end(""), error.exit_code, error.facts()
            shown = error.with_end(f" (tc explain {error.code})")
        case OSError(filename=str(name)):
            message, exit_code = f"{name}: {error.strerror}", 1
        case OSError():
            message, exit_code = error.strerror or str(error), 1
        case MemoryError():
            message, exit_code = "out of memory", 4
        case KeyboardInterrupt():
            message, exit_code = "interrupted", 130
        case _:
            message, exit_code = f"internal error: {kind}: {error} (--debug shows where)", 5
    if as_json:
        print(to_json({"error": {"kind": kind, "message": message, "exit_code": exit_code, **facts}}))
    print(f"tc: error: {shown or message}", file=sys.stderr)
    return exit_code


def to_json(data: dict[str, Any]) -> str:
    """JSON text. NaN and infinities, which JSON lacks, become the strings "nan", "inf" and "-inf"."""
    return json.dumps(plain(data), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` in the types that JSON has."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case np.generic() | np.ndarray():
            return plain(value.tolist())
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return str(value)
