"""`tc explain`: what the code of an error means, where it comes from and what to do."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from rich.console import Console

from tc.cli.outcome import Outcome, make_table
from tc.error_codes import CODES, RANGES, ErrorCode
from tc.errors import UsageError

EPILOG = """\
examples:
  tc explain TC1012         what the error means, its causes, what to do, an example
  tc explain                all codes
  tc explain TC1012 --json  the same for programs

Every error of tc ends in its code; in Python it is the attribute `code`. Exit code 1 for a code that there is not.
"""

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", help="such as TC1012; all of them if it is left out")


def execute(args: argparse.Namespace) -> Outcome:
    """Look the code up."""
    if args.code is None:
        return Outcome({"codes": [as_data(each) for each in CODES.values()]}, _show_all)
    found = find_code(args.code)
    return Outcome(as_data(found), lambda console: _show(console, found))


def find_code(text: str) -> ErrorCode:
    """The entry of a code that may be written as `TC1012`, `tc1012`, `1012` or `[TC1012]`. UsageError for others."""
    wanted = text.strip("[]").upper()
    wanted = wanted if wanted.startswith("TC") else f"TC{wanted}"
    if wanted not in CODES:
        near = get_close_matches(wanted, CODES, n=3, cutoff=0.5)
        likes = f"; near it are {', '.join(f'{code} ({CODES[code].title})' for code in near)}" if near else ""
        raise UsageError(f"there is no error code {text!r}{likes}; tc explain lists all")
    return CODES[wanted]


def as_data(entry: ErrorCode) -> dict[str, Any]:
    """An entry for `--json`."""
    return asdict(entry)


def _show(console: Console, entry: ErrorCode) -> None:
    def say(text: str = "", style: str = "") -> None:
        console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def paragraph(text: str, first: str = "", rest: str = "") -> None:
        say(textwrap.fill(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False))

    say(f"{entry.code}: {entry.title}", "bold")
    say(f"{entry.kind}, {RANGES[entry.code[2]]}" + (f"; what is missing: {entry.miss}" if entry.miss else ""))
    say()
    paragraph(entry.meaning)
    for title, items in (("Causes", entry.causes), ("What to do", entry.advice)):
        say()
        say(f"{title}:")
        for item in items:
            paragraph(item, "  - ", "    ")
    say()
    say("Example:")
    say(f"  {entry.example}")


def _show_all(console: Console) -> None:
    for digit, title in RANGES.items():
        rows = [(each.code, each.kind, each.title) for each in CODES.values() if each.code[2] == digit]
        console.print(make_table(f"TC{digit}xxx: {title}", ("", "", ""), rows))
        console.print()
