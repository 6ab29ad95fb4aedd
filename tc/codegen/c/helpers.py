"""The helper functions that a text needs, each once and behind those that it calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate

from tc.codegen.c.dialect import Dialect


class Helpers:
    """Collects helpers while kernels are written; `text` is what goes before the kernels."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._texts: dict[str, str] = {}

    def need(self, name: str, make: Callable[[], str]) -> str:
        """The name of a helper; `make` gives its text where it is needed for the first time, and asks for what it calls itself."""
        if name not in self._texts:
            text = make()
            self._texts.setdefault(name, text)
        return name

    def text(self, callers: Sequence[str]) -> str:
        """Those that the callers' texts come to, in an order in which each is known where it is called. Others were asked for by lines that
        were not kept."""
        wanted, kept = set(_WORD.findall("\n".join(callers))), []
        for name, text in reversed(self._texts.items()):
            words = set(_WORD.findall(text))
            if name in wanted or name not in words:
                wanted |= words
                kept.append(text)
        parts: list[str] = []
        for text in reversed(kept):
            is_small = bool(parts) and max(text.count("\n"), parts[-1].count("\n")) < _SMALL_LINES
            parts += [("\n" if is_small else "\n\n") if parts else "", text]
        return "".join(parts)

    def __contains__(self, name: str) -> bool:
        return name in self._texts


def function_text(head: str, body: Sequence[str]) -> str:
    """A function; in one line if it is short."""
    short = f"{head} {{ {body[0].strip()} }}"
    return short if len(body) == 1 and len(short) <= 120 else "\n".join((f"{head} {{", *body, "}"))


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a function, which gives each variable a name of its own, without values that nothing uses."""
    kept = list(lines)
    while True:
        counts = Counter(word for line in kept for word in re.findall(r"(?<![>\w])[A-Za-z_]\w*", line))
        used = [line for line in kept if (found := _CONSTANT.match(line)) is None or counts[found[1]] > 1]
        if len(used) == len(kept):
            return used
        kept = used


_WORD = re.compile(r"\w+")
_CONSTANT = re.compile(r"\s*(?:const )?\w+ \*?(\w+) = .*;$")


def folded(lines: Sequence[str]) -> list[str]:
    """The lines of a helper with what is used once written where it is used, as long as lines stay short."""
    kept = list(lines)
    number = 0
    while number < len(kept):
        found = _CONSTANT.match(kept[number])
        users = [] if found is None else [k for k in range(number + 1, len(kept)) if re.search(rf"\b{found[1]}\b", kept[k])]
        if found is not None and len(users) == 1 and _may_take(kept[users[0]], found[1]):
            value = kept[number].partition(" = ")[2][:-1]
            longer = _with_value(kept[users[0]], found[1], value)
            if len(longer) <= _LONGEST_LINE:
                kept[users[0]] = longer
                del kept[number]
                continue
        number += 1
    return kept


def _may_take(line: str, name: str) -> bool:
    """Whether a line is evaluated once, and has a name once."""
    return (line.lstrip().startswith("return ") or _CONSTANT.match(line) is not None) and len(re.findall(rf"\b{name}\b", line)) == 1


def _with_value(line: str, name: str, value: str) -> str:
    """A line with a value in place of a name; in parentheses unless it stands alone."""
    alone = re.sub(rf"(?<=[(,=n] |.\()\b{name}\b(?=[),;])", lambda _: value, line)
    return alone if alone != line else re.sub(rf"\b{name}\b", lambda _: value if _is_atom(value) else f"({value})", line)


def _is_atom(value: str) -> bool:
    """Whether a value is a name, a number or one call."""
    if _NAME_OR_NUMBER.match(value):
        return True
    name, _, rest = value.partition("(")
    depths = list(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in f"({rest}"))
    return name.isidentifier() and depths[-1] == 0 and min(depths[:-1], default=0) > 0


_NAME_OR_NUMBER = re.compile(r"[\w.]+$")
_LONGEST_LINE = 100
_SMALL_LINES = 5
"""Helpers of fewer lines stand without a line between them."""
