"""`tc reproduce`: do again what tc failed at, from the folder that the error named."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

import tc
from tc.check.reproducer import read_failure, run_again, signature
from tc.cli.outcome import Outcome

EPILOG = """\
examples:
  tc reproduce ~/.cache/tc/failures/fuse_ops-1a2b3c4d5e     the folder that an error of the code TC3900 named
  tc reproduce FOLDER --debug                               with the place in tc

Exit code 5 when the step fails as it did, 1 when it fails otherwise, 0 when it does not fail.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="with failure.json, and what tc was at")


def execute(args: argparse.Namespace) -> Outcome:
    """Run the step."""
    facts = read_failure(args.folder)
    known, found, message = facts["error"], None, ""
    try:
        run_again(args.folder, compile_again)
    except Exception as error:
        if args.debug:
            raise
        found, message = signature(error), str(error)
    same = found == (known["type"], known["at"])
    data = {
        "step": facts["step"],
        "kind": facts["kind"],
        "expected": f"{known['type']} in {known['at']}",
        "found": None if found is None else f"{found[0]} in {found[1]}",
        "message": message,
        "same": same,
    }
    return Outcome(data, lambda console: _show(console, data), 0 if found is None else 5 if same else 1)


def compile_again(model: Any, options: Mapping[str, Any]) -> object:
    """`tc.compile` with options as text."""
    return tc.compile(model, **options)


def _show(console: Console, data: Mapping[str, Any]) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"step:     {data['step']}")
    say(f"expected: {data['expected']}")
    say(f"found:    {data['found'] or 'no error'}")
    if data["message"]:
        say(data["message"])
