"""Pieces of a page: everything from outside is text in them and never markup, by way of `words`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tc.autotune.report.style import STYLE
from tc.errors import TuningError
from tc.files import whole_file
from tc.records.record import clean_text

_TEXT_LIMIT = 1 << 14


def write_page(path: str | Path, page: str) -> None:
    """Write a page to `path`, which changes only when the whole page is there. UserError when the file cannot be written."""
    try:
        with whole_file(path) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:  # a zero byte in the name
        raise TuningError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def whole_page(title: str, sections: Iterable[str]) -> str:
    """A page of these sections; those that are empty are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{words(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(each for each in sections if each)
        + "\n</main>\n</body>\n</html>\n"
    )


def card(title: str, value: str, note: str) -> str:
    return element(
        "div",
        element("span", words(title), class_="title"),
        element("span", words(value), class_="value"),
        element("span", words(note), class_="note"),
        class_="card",
    )


def words(value: object) -> str:
    """Anything as text of the page."""
    return escape(clean_text(str(value), _TEXT_LIMIT))


def breakable(name: str) -> str:
    """The same as `words`, and a long name may go on in the next line after `_` and `/`."""
    return re.sub(r"(?<=\w[_/])(?=\w)", "<wbr>", words(name))


def bar(part: float) -> str:
    return element("span", element("span", "", class_="bar", style=f"width:{100 * part:.1f}%"), class_="track")


def element(name: str, *children: str, **attributes: str) -> str:
    """An HTML element. `children` are HTML already; attributes are not, and those that are empty are left out, but for `open`."""
    kept = {key.rstrip("_"): value for key, value in attributes.items() if value or key == "open"}
    given = "".join(f' {key}="{escape(value)}"' for key, value in kept.items())
    return f"<{name}{given}>{''.join(children)}</{name}>"


def table(columns: Sequence[tuple[str, str]], rows: Iterable[str], class_: str = "") -> str:
    """A table of rows that are HTML already, under the names of the columns, each with its class."""
    head = element("tr", *(element("th", words(name), class_=kind, scope="col") for name, kind in columns))
    body = element("table", element("thead", head), element("tbody", *rows), class_=class_)
    return element("div", body, class_="wide")


def section(title: str, *children: str) -> str:
    return element("section", element("h2", words(title)), *children)


def figure(title: str, svg: str, key: str, text: str) -> str:
    return element("figure", element("h3", breakable(title)), svg, key, element("figcaption", words(text)))


def color_key(*entries: tuple[str, str]) -> str:
    """What the colours of a plot mean."""
    items: Iterable[str] = (
        element("span", element("i", "", style=f"background:var(--{colour})"), words(text)) for colour, text in entries
    )
    return element("p", *items, class_="key")


# Numbers and text.
