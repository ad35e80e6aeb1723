"""HTML that cannot be broken by what it shows: text is escaped when it enters, and only then is it markup.

Belongs here: elements, tables and the page around them, for the report. What is shown belongs to `report`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NewType

Html = NewType("Html", str)

EMPTY = Html("")
MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
_CONTROL = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
_LONGEST_TEXT = 4000


def text(value: str) -> Html:
    """Escaped text; control characters as their pictures, very long text cut with a note of how much."""
    cut = len(value) - _LONGEST_TEXT
    shown = f"{value[:_LONGEST_TEXT]} … ({cut:,} more characters)" if cut > 0 else value
    return Html(escape(shown.translate(_CONTROL)))


def element(name: str, *children: Html, attributes: Mapping[str, str | float] | None = None) -> Html:
    """`<name key="value">children</name>`; attribute values are escaped, and floats are kept short."""
    opened = "".join(f' {key}="{_attribute(value)}"' for key, value in (attributes or {}).items())
    return Html(f"<{name}{opened}>{''.join(children)}</{name}>")


def styled(name: str, style: str, *children: Html) -> Html:
    """An element with a class."""
    return element(name, *children, attributes={"class": style})


def join(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def table(heads: Sequence[str], rows: Sequence[Sequence[Html]], *, style: str, numeric: Sequence[int] = ()) -> Html:
    """A table whose `numeric` columns are set flush right in figures of one width. Scrolls by itself when too wide."""

    def row(tag: str, values: Sequence[Html]) -> Html:
        cells = (
            element(tag, value, attributes={"class": "n"} if k in numeric else None) for k, value in enumerate(values)
        )
        return element("tr", *cells)

    head = element("thead", row("th", [text(head) for head in heads]))
    body = element("tbody", *(row("td", values) for values in rows))
    return styled("div", "scroll", styled("table", style, head, body))


def collapsible(summary: str, *children: Html) -> Html:
    """Content that is closed until somebody asks for it."""
    return element("details", element("summary", text(summary)), *children)


def page(title: str, *body: Html) -> Html:
    """A whole document that needs nothing but itself: style inline, no scripts, nothing from the network."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    head = element(
        "head",
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        element("title", text(title)),
        element("style", Html(style)),
    )
    content = element("body", element("main", *body))
    return Html(f"<!doctype html>\n{element('html', head, content, attributes={'lang': 'en'})}\n")


def format_number(value: float) -> str:
    """Three to four telling figures: `0.9034 -> '0.903'`, `12345.6 -> '12,346'`, `3e-06 -> '3e-6'`."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    size = abs(value)
    if value == int(value) and size < 1e6:
        shown = f"{int(value):,}"
    elif size >= 1e6 or size < 1e-3:
        digits, exponent = f"{value:.2e}".split("e")
        shown = f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    elif size >= 1000:
        shown = f"{value:,.0f}"
    else:
        shown = f"{value:.{1 if size >= 100 else 2 if size >= 10 else 3}f}"
    return with_minus_sign(shown)


def with_minus_sign(shown: str) -> str:
    """A printed number with a real minus sign, as wide as the plus."""
    return shown.replace("-", MINUS)


def format_duration(seconds: float) -> str:
    """`75.3 -> '1 min 15 s'`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _attribute(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
