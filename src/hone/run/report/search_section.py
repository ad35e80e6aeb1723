"""Report section about searches at test time: accuracy by tokens, with the frontier of the plans.

Belongs here: the plot, the table and their text. `store.search` says which plans are on the frontier.
"""

import math
from collections.abc import Sequence

from hone.run.report.html import EMPTY, Html, collapsible, element, format_number, join, styled, table, text
from hone.run.report.svg import Attributes, LinearScale, label, labelled_ticks, polyline
from hone.run.report.svg_lines import legend
from hone.run.store.search import ORACLE, SINGLE, PlanScore, SearchRecord, frontier

_WIDTH, _HEIGHT = 960.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 24.0, 14.0, 40.0
_COLOURS = 7


def search_section(found: SearchRecord | None, level: str) -> Html:
    """Render the section; empty for a run without searches."""
    if found is None or not found.plans:
        return EMPTY
    scorer = f" The scorer is {found.scorer}" if found.scorer else ""
    scorer += f", which ranks a right answer above a wrong one in {found.auc:.1%} of cases" if _known(found.auc) else ""
    words = (
        f"Accuracy on {found.problems:,} problems by tokens, drawn and scored, those of answers that were thrown away "
        f"included.{scorer}{'.' if scorer else ''} pass:N is the most that selecting among N answers could reach. The "
        "dashed line connects the plans that no plan with fewer tokens reaches."
    )
    families = list(dict.fromkeys(plan.family for plan in found.plans))
    return join(
        [
            element(level, text("Search at test time")),
            *(styled("p", "bad", text(f"{note}.")) for note in found.notes),
            styled("div", "card", styled("p", "note", text(words)), legend(families), _accuracy_plot(found.plans)),
            collapsible("As a table", _table(found.plans)),
        ]
    )


def _accuracy_plot(plans: Sequence[PlanScore]) -> Html:
    """Plot accuracy over tokens, on a logarithmic axis: a line for each family, and the frontier."""
    families = list(dict.fromkeys(plan.family for plan in plans))
    known = [plan for plan in plans if plan.tokens > 0 and _known(plan.mean)]
    if not known:
        return EMPTY
    tokens = [math.log2(plan.tokens) for plan in known]
    low, high = min(tokens), max(tokens)
    x = LinearScale(low - 0.15, max(high, low + 1) + 0.15, _LEFT, _WIDTH - _RIGHT)
    ends = [value for plan in known for value in (plan.low, plan.mean, plan.high) if _known(value)]
    y = LinearScale(min(0.0, *ends), max(1.0, *ends), _HEIGHT - _BOTTOM, _TOP)
    parts = _axes(x, y)
    best = [(math.log2(plan.tokens), plan.mean) for plan in frontier(known)]
    parts.append(polyline(x, y, best, {"class": "level"}))
    for colour, family in enumerate(families):
        some = sorted((plan for plan in known if plan.family == family), key=lambda plan: plan.tokens)
        parts.append(_curve(some, colour % _COLOURS, x, y))
    box: Attributes = {"viewBox": f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}", "class": "wide", "role": "img"}
    return element("svg", *parts, attributes=box)


def _axes(x: LinearScale, y: LinearScale) -> list[Html]:
    parts: list[Html] = []
    for tick, words in labelled_ticks(y.low, y.high, 5):
        line: Attributes = {"x1": x.start, "x2": x.end, "y1": y.at(tick), "y2": y.at(tick), "class": "grid"}
        parts += [element("line", attributes=line), label(x.start - 8, y.at(tick) + 4, words, "tick end")]
    for power in range(math.ceil(x.low), math.floor(x.high) + 1):
        parts.append(label(x.at(power), y.start + 16, f"{2.0**power:,.0f}", "tick middle"))
    parts.append(label((x.start + x.end) / 2, y.start + 36, "tokens for each problem", "tick middle"))
    return parts


def _curve(plans: Sequence[PlanScore], colour: int, x: LinearScale, y: LinearScale) -> Html:
    """The plans of a family: a line, and a dot with its interval for each."""
    points = [(math.log2(plan.tokens), plan.mean) for plan in plans]
    parts = [polyline(x, y, points, {"class": f"stroke s{colour}"})]
    for (at, mean), plan in zip(points, plans, strict=True):
        title = element("title", text(f"{plan.plan}: {_interval(plan)} at {format_number(plan.tokens)} tokens"))
        if _known(plan.low) and _known(plan.high):
            bar: Attributes = {"x1": x.at(at), "x2": x.at(at), "y1": y.at(plan.low), "y2": y.at(plan.high)}
            parts.append(element("line", attributes=bar | {"class": f"s{colour}"}))
        # A rule of the page colours all circles; the style of this one has the last word.
        dot: Attributes = {"cx": x.at(at), "cy": y.at(mean), "r": 4, "style": f"fill: var(--p{colour})"}
        parts.append(element("circle", title, attributes=dot))
    return element("g", *parts)


def _table(plans: Sequence[PlanScore]) -> Html:
    best = {plan.plan for plan in frontier(plans)}
    rows = [
        [
            text(plan.plan),
            text(_interval(plan)),
            *map(text, map(format_number, (plan.drawn_tokens, plan.scored_tokens, plan.seconds))),
            text(
                "yes"
                if plan.plan in best
                else ("knows the answers" if plan.family == ORACLE and plan.plan != SINGLE else "")
            ),
        ]
        for plan in plans
    ]
    heads = ("plan", "accuracy (95% interval)", "tokens drawn", "tokens scored", "seconds", "on the frontier")
    return table(heads, rows, style="fit", numeric=(2, 3, 4))


def _interval(plan: PlanScore) -> str:
    return f"{plan.mean:.3f} ({plan.low:.3f} to {plan.high:.3f})"


def _known(value: float) -> bool:
    return math.isfinite(value)
