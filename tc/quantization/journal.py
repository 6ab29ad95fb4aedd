"""What a search for a quantization has found, in a file that it goes on from: a line of facts, then a line for each thing found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tc.errors import QuantizationError
from tc.quantization.evaluate import Quality

LOCK_SECONDS = 10.0
"""How long a line waits until another process has written its own."""

Entry = dict[str, Any]


class Journal:
    """The trials of a search, in a file if it is named: a line of facts about the search, then a line for each trial.

    Made before anything long starts: UserError for a file that is damaged, of another search, or cannot be written. Nothing is written
    until there is something to remember, and nothing into a file that another process has added to.
    """

    def __init__(self, path: str | os.PathLike[str] | None, facts: dict[str, Any]) -> None:
        if not (path is None or isinstance(path, (str, os.PathLike))):
            raise QuantizationError(f"state is a {type(path).__name__}, must be the path of a file")
        self.path = None if path is None else Path(path)
        self.known: dict[str, Entry] = {}
        self._lines: dict[str, int] = {}
        self._facts: dict[str, Any] | None = facts  # to be written first
        self._size = 0
        if self.path is None:
            return
        if self.path.is_dir():
            raise QuantizationError(f"state {self.path}: that is a folder")
        if not self.path.parent.is_dir():
            raise QuantizationError(f"state {self.path}: there is no folder {str(self.path.parent)!r}")
        if not os.access(self.path if self.path.exists() else self.path.parent, os.W_OK):
            raise QuantizationError(f"state {self.path}: cannot be written")
        try:
            if self.path.exists() and self.path.stat().st_size:
                self._read(facts)
        except OSError as error:
            raise QuantizationError(f"state {self.path}: {error.strerror or error}") from error

    def _read(self, facts: dict[str, Any]) -> None:
        assert self.path is not None
        first, *rest = self.path.read_bytes().splitlines(keepends=True)
        if not rest and _line(facts).startswith(first):  # a search that was killed when it began
            self.path.write_bytes(b"")
            return
        found = _json(first)
        if not isinstance(found, dict) or found.get("kind") != facts["kind"]:
            raise QuantizationError(f"state {self.path}: is no state of a search for a quantization; nothing was written")
        for name, value in facts.items():
            if found.get(name) != value:
                differs = f"its {name} is {found.get(name)!r}, here it is {value!r}"
                raise QuantizationError(f"state {self.path}: belongs to another search: {differs}; nothing was written")
        whole = [line for line in (first, *rest) if line.endswith(b"\n")]  # the last line of a search that was killed may be half
        for number, line in enumerate(whole[1:], start=2):
            entry = _json(line)
            if not is_entry(entry):
                raise self._damaged(number)
            self.known[entry["key"]] = entry
            self._lines[entry["key"]] = number
        if len(whole) <= len(rest):
            self.path.write_bytes(b"".join(whole))
        self._facts = None if whole else facts
        self._size = sum(map(len, whole))

    def _damaged(self, number: int) -> QuantizationError:
        return QuantizationError(f"state {self.path}: line {number} is damaged; nothing was written: remove the line, or name another file")

    def remember(self, key: str, make: Callable[[], Entry], is_right: Callable[[Entry], bool] = lambda entry: True) -> Entry:
        """The entry of this key: read, or made and written. `is_right`: whether one that was read may be that of this key."""
        if key not in self.known:
            self.known[key] = {"key": key, **make()}
            if self.path is not None:
                self._add(self.path, self.known[key])
        elif key in self._lines and not is_right(self.known[key]):
            raise self._damaged(self._lines[key])
        return self.known[key]

    def _add(self, path: Path, entry: Entry) -> None:
        lines = b"".join(_line(each) for each in (self._facts, entry) if each is not None)
        try:
            with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_SECONDS), path.open("ab") as file:
                if file.tell() != self._size:
                    raise QuantizationError(f"state {path}: another search has written to it; nothing was written: name another file")
                file.write(lines)
        except Timeout:
            raise QuantizationError(f"state {path}: another search has kept it locked for {LOCK_SECONDS:g} s") from None
        except OSError as error:
            raise QuantizationError(f"state {path}: {error.strerror or error}") from error
        self._facts = None
        self._size += len(lines)


def _line(entry: Mapping[str, Any]) -> bytes:
    return (json.dumps(entry) + "\n").encode()


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # of its encoding, too
        return None


def is_entry(entry: Any) -> bool:
    """Whether a line of a state is one that a search wrote: a trial, the error of a product alone, or the costs of products."""
    return isinstance(entry, dict) and isinstance(entry.get("key"), str) and (is_trial(entry) or is_cost(entry) or is_error(entry))


def is_trial(entry: Entry) -> bool:
    """Whether it holds the quality of a guess: its metric may be NaN, which says that there is none."""
    quality, names = entry.get("quality"), {field.name for field in fields(Quality)}
    if not isinstance(quality, dict) or set(quality) != names:
        return False
    return all(is_number(value) and (name == "metric" or value == value) for name, value in quality.items())


def is_error(entry: Entry) -> bool:
    """Whether it holds the error of a product alone."""
    error = entry.get("error")
    return is_number(error) and error == error


def is_cost(entry: Entry) -> bool:
    """Whether it holds seconds of every choice of a site, and of what is no site."""
    sites = entry.get("sites")
    costs = list(sites.values()) if isinstance(sites, dict) else [None]
    return is_number(entry.get("rest")) and all(isinstance(each, list) and all(map(is_number, each)) for each in costs)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
