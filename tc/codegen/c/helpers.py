"""The helper functions that a text needs, each once and behind those that it calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

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
        return "\n\n".join(reversed(kept))

    def __contains__(self, name: str) -> bool:
        return name in self._texts


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
