"""HTML with escaping by type: text is escaped when it becomes `Html`.

Belongs here: elements, tables and the page around them. The other modules of `report` hold the content.
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
    """Escape text; control characters become visible symbols, very long text is cut with a note of the length."""
    cut = len(value) - _LONGEST_TEXT
    shown = f"{value[:_LONGEST_TEXT]} … ({cut:,} more characters)" if cut > 0 else value
    return Html(escape(shown.translate(_CONTROL)))


def element(name: str, *children: Html, attributes: Mapping[str, str | float] | None = None) -> Html:
    """Make `<name key="value">children</name>`; attribute values are escaped, floats are shortened."""
    opened = ""
    for key, value in (attributes or {}).items():
        shown = escape(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
        opened += f' {key}="{shown}"'
    return Html(f"<{name}{opened}>{''.join(children)}</{name}>")


def styled(name: str, style: str, *children: Html) -> Html:
    """Make an element with a CSS class."""
    return element(name, *children, attributes={"class": style})


def join(parts: Iterable[Html]) -> Html:
    """Concatenate parts."""
    return Html("".join(parts))


def table(heads: Sequence[str], rows: Sequence[Sequence[Html]], *, style: str, numeric: Sequence[int] = ()) -> Html:
    """Make a table with right-aligned `numeric` columns of equal-width digits; a wide table scrolls."""

    def row(tag: str, values: Sequence[Html]) -> Html:
        cells = (
            element(tag, value, attributes={"class": "n"} if k in numeric else None) for k, value in enumerate(values)
        )
        return element("tr", *cells)

    head = element("thead", row("th", [text(head) for head in heads]))
    body = element("tbody", *(row("td", values) for values in rows))
    return styled("div", "scroll", styled("table", style, head, body))


def collapsible(summary: str, *children: Html) -> Html:
    """Make content that is hidden until it is opened."""
    return element("details", element("summary", text(summary)), *children)


def page(title: str, *body: Html) -> Html:
    """Make a self-contained document: inline style, no scripts, no network access."""
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
    """Format with three to four significant digits: `0.9034 -> '0.903'`, `12345.6 -> '12,346'`, `3e-06 -> '3e-6'`."""
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
    """Replace the hyphen of a printed number by a minus sign, which is as wide as the plus."""
    return shown.replace("-", MINUS)


def format_duration(seconds: float) -> str:
    """Format seconds: `75.3 -> '1 min 15 s'`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
