"""Report sections of language models: dialogues, judges, preferences, searches at test time, dropped answers.

Belongs here: the figures that say why a run does not learn. A growing margin of preferences, for one, does not show
that the likelihoods of both answers fall: they are drawn together.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Turn
from hone.core.dialogue import STOP_REASONS
from hone.run.report.html import (
    EMPTY,
    MISSING,
    Html,
    collapsible,
    element,
    format_duration,
    format_number,
    join,
    styled,
    table,
    text,
)
from hone.run.report.run_data import RunData
from hone.run.report.svg import (
    Attributes,
    CurveSeries,
    LaneBlock,
    LinearScale,
    band_plot,
    label,
    labelled_ticks,
    lane_plot,
    legend,
    part_style,
    polyline,
    thinned,
)
from hone.run.store.metrics import CLOCK_PREFIX
from hone.run.store.records import ORACLE, SINGLE, PlanScore, SearchRecord, frontier
from hone.run.store.survivorship import FATES, LengthDecile, Survivorship

STOPS = "stops/"
LAST = 10
"""Steps at the end whose means are told."""
MEANINGS: Mapping[str, str] = {
    "done": "the world ended it, or a turn without a call",
    "turns": "as many turns as task.turns allows",
    "context": "no room for another turn: rollout.context",
    "max_tokens": "a turn was cut: rollout.max_tokens",
    "invalid_calls": "calls that could not be read, one after another",
    "deadline": "the world gave no answer in time; no score",
    "world_died": "the world failed; no score",
}
_FIGURES = (
    ("turns/mean", "turns of a dialogue", "mean"),
    ("turns/forked", "dialogues of several rows", "share; the chat template rewrote their history"),
    ("tools/called", "dialogues with a call", "share"),
    ("tools/invalid", "dialogues with a call that could not be read", "share"),
    ("tools/repeats", "dialogues that repeat a call ten times", "share"),
)
_WAITS = (
    ("world/wait_s", "wait for an answer of the world", "mean"),
    ("world/p95_s", "the same, of the slowest twentieth", "95th percentile"),
)
_MOST_LOST, _LEAST_CALLED, _MOST_CUT = 0.05, 0.05, 0.2

Floats = NDArray[np.float64]


def dialogue_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without dialogues."""
    values = stage.metrics.values
    stops: dict[str, Floats] = {one: values[f"{STOPS}{one}"] for one in STOP_REASONS if f"{STOPS}{one}" in values}
    if not stops:
        return EMPTY
    seen = {name: own for name, own in stops.items() if np.nansum(own) > 0}
    steps = stage.metrics.steps.astype(np.float64)
    curves = [_curve(name, colour, steps, own) for colour, (name, own) in enumerate(seen.items())]
    parts = [_table(values, seen)]
    if len(curves) > 1:
        words = text("Share of the dialogues by the reason of their end, by step.")
        parts[:0] = [
            styled("p", "note", words),
            legend([one.name for one in curves]),
            band_plot(curves, x_label="step"),
        ]
    card = styled("div", "card", *parts)
    warnings = [styled("p", "bad", text(one)) for one in dialogue_findings(values)]
    return join([element(level, text("Dialogues")), *warnings, card])


def dialogue_findings(values: Mapping[str, Floats]) -> list[str]:
    """Sentences on what keeps a run from learning: lost and cut dialogues, tools that nobody calls."""

    def late(name: str) -> float:
        return _last(values[name]) if name in values else np.nan

    lost = np.nansum([late(f"{STOPS}deadline"), late(f"{STOPS}world_died")])
    lines: list[str] = []
    if lost > _MOST_LOST:
        lines.append(f"{lost:.0%} of the last dialogues have no score: their world failed or gave no answer in time.")
    for reason, key in (("max_tokens", "rollout.max_tokens"), ("context", "rollout.context"), ("turns", "task.turns")):
        if (cut := late(f"{STOPS}{reason}")) > _MOST_CUT:
            lines.append(f"{cut:.0%} of the last dialogues were cut by {key}.")
    if (called := late("tools/called")) < _LEAST_CALLED:
        lines.append(
            f"Tools were called in {called:.1%} of the last dialogues: does the prompt say how, and does "
            "task.tools.format fit the chat template?"
        )
    if (invalid := late("tools/invalid")) > _MOST_CUT:
        lines.append(f"{invalid:.0%} of the last dialogues had a call that could not be read.")
    return lines


def dialogue_turns(turns: Sequence[Turn]) -> Html:
    """Turns of a dialogue, each in the colour of who said it: the policy's tokens were drawn, the world's were not."""
    return styled("div", "turns", *(_turn(speaker, words) for speaker, words in turns))


def _turn(speaker: str, words: str) -> Html:
    style = "policy" if speaker == "policy" else "world"
    who = styled("span", "who", text(style))
    return styled("div", f"said {style}", who, styled("div", "words", text(words.strip("\n")))) if words else EMPTY


def _table(values: Mapping[str, Floats], stops: Mapping[str, Floats]) -> Html:
    rows = [[text(f"stop: {name}"), text(f"{_last(own):.1%}"), text(MEANINGS[name])] for name, own in stops.items()]
    rows += [
        [text(title), text(format_number(_last(values[name]))), text(meaning)]
        for name, title, meaning in _FIGURES
        if name in values
    ]
    rows += [
        [text(title), text(format_duration(_last(values[name]))), text(meaning)]
        for name, title, meaning in _WAITS
        if name in values
    ]
    return table(("figure", f"last {LAST} steps", "meaning"), rows, style="fit", numeric=(1,))


def _curve(name: str, colour: int, steps: Floats, values: Floats) -> CurveSeries:
    known = np.isfinite(values)
    x, middle = thinned(steps[known], values[known])
    nothing = np.full(len(x), np.nan)
    return CurveSeries(name=name, colour=colour, x=x, middle=middle, low=nothing, high=nothing)


def _last(values: Floats) -> float:
    """Mean over the last steps; of a figure that was not measured then, the last value, or NaN."""
    late = values[-LAST:]
    known = late[np.isfinite(late)] if np.isfinite(late).any() else values[np.isfinite(values)][-1:]
    return float(known.mean()) if len(known) else float("nan")


# -------------------------------------------------------------------------------------------------------- judge section


_NAME = re.compile(r"judge/(.+)/missing")


@dataclass(frozen=True, slots=True)
class _HealthRow:
    """One measurement of a judge's health, with the range in which it is no cause for concern."""

    key: str
    name: str
    meaning: str
    lowest: float = -np.inf
    highest: float = np.inf


ROWS = (
    _HealthRow(
        "agreement",
        "agreement with canaries",
        "known-good answers that win; a tie counts against the judge",
        lowest=0.7,
    ),
    _HealthRow("self_consistency", "self-consistency", "repeated questions with the same outcome", lowest=0.7),
    _HealthRow("first_preferred", "answer shown first wins", "0.5 without bias of position", 0.4, 0.6),
    _HealthRow("order_consistency", "same winner in both orders", "1 for a judge that reads", lowest=0.6),
    _HealthRow("length_bias", "longer canary preferred too often", "0 without bias of length", -0.15, 0.15),
    _HealthRow("length_correlation", "correlation of score and length", "within the answers to one prompt"),
    _HealthRow("missing", "answers without a verdict", "missing scores, never 0", highest=0.05),
)
"""Measurements in the order of the table."""


def judge_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without judges."""
    names = [match[1] for key in stage.metrics.values if (match := _NAME.fullmatch(key))]
    if not names:
        return EMPTY
    return join([element(level, text("Judge health")), *(_judge(stage, name) for name in names)])


def _judge(stage: RunData, name: str) -> Html:
    floor = _floor(stage, name)
    parts = [styled("p", "verdict", element("b", text(name)), text(f": {_verdict(stage, name)}"))]
    series = _agreement(stage, name)
    if series is not None:
        words = "Agreement with the canaries by step, with its 95% interval"
        words += f"; the run stops when the interval lies below {format_number(floor)}" if floor is not None else ""
        plot = band_plot([series], x_label="step", floor=floor)
        parts.append(styled("div", "card", styled("p", "note", text(f"{words}.")), plot))
    lines = [line for row in ROWS if (line := _line(stage, name, row))]
    parts.append(table(("measured", "last", "mean of the run", "meaning", ""), lines, style="fit", numeric=(1, 2)))
    return join([*parts, styled("p", "note", text(_costs(stage, name)))])


def _verdict(stage: RunData, name: str) -> str:
    agreement = _last_value(stage, f"judge/{name}/agreement")
    if agreement is None:
        return "no canaries, so that nobody knows whether it is right."
    low, high = (_last_value(stage, f"judge/{name}/agreement_{end}") for end in ("low", "high"))
    asked = _last_value(stage, f"judge/{name}/canaries") or 0.0
    return (
        f"the good answer won in {agreement:.0%} of the last canaries (95% interval {format_number(low or 0.0)} to "
        f"{format_number(high or 0.0)}); {asked:.0f} canaries were asked."
    )


def _agreement(stage: RunData, name: str) -> CurveSeries | None:
    values = stage.metrics.values
    keys = [f"judge/{name}/agreement{end}" for end in ("", "_low", "_high")]
    if any(key not in values for key in keys):
        return None
    middle, low, high = (values[key] for key in keys)
    steps = stage.metrics.steps.astype(np.float64)
    return CurveSeries(name=name, colour=0, x=steps, middle=middle, low=low, high=high)


def _line(stage: RunData, name: str, row: _HealthRow) -> Sequence[Html]:
    values = stage.metrics.values.get(f"judge/{name}/{row.key}")
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    if not len(known):
        return []
    last = float(known[-1])
    concern = "" if row.lowest <= last <= row.highest else "look at this"
    shown = styled("span", "bad", text(concern)) if concern else EMPTY
    mean = format_number(float(known.mean()))
    return [text(row.name), text(format_number(last)), text(mean), text(row.meaning), shown]


def _costs(stage: RunData, name: str) -> str:
    tokens = stage.metrics.values.get(f"judge/{name}/tokens")
    total = 0.0 if tokens is None else float(np.nansum(tokens))
    requests, money = (_last_value(stage, f"{CLOCK_PREFIX}judge/{name}/{key}") or 0.0 for key in ("requests", "money"))
    cost = f", which cost {format_number(money)}" if money else ""
    return f"{requests:,.0f} requests{cost}; the verdicts of the steps that are shown hold {total:,.0f} tokens."


def _floor(stage: RunData, name: str) -> float | None:
    """`canaries.floor` of the judge's table."""
    for key, setting in stage.config.items():
        table_key, _, last = key.rpartition(".")
        if last == "name" and setting.value == name and table_key.startswith("rewards."):
            floor = stage.config.get(f"{table_key}.canaries.floor")
            return float(floor.value) if floor is not None and isinstance(floor.value, int | float) else None
    return None


def _last_value(stage: RunData, key: str) -> float | None:
    values = stage.metrics.values.get(key)
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None


# --------------------------------------------------------------------------------------------------- preference section


CHOSEN, REJECTED = "preference/chosen_nats", "preference/rejected_nats"
DISTANCE = "preference/kl_to_start_nats"

"""Steps at the end whose means are told."""
_PREFERENCE_FIGURES = (
    (CHOSEN, "chosen answers", "log-ratio to the reference in nats; without a reference, the log-probability"),
    (REJECTED, "rejected answers", "the same"),
    ("preference/margin_nats", "margin", "chosen less rejected, in nats"),
    ("preference/accuracy", "accuracy", "share of the pairs that the policy orders as the data do"),
    (DISTANCE, "distance from the start", "KL in nats per answer, on the policy's own samples"),
)


def preference_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without preferences."""
    values, steps = stage.metrics.values, stage.metrics.steps.astype(np.float64)
    if CHOSEN not in values or REJECTED not in values:
        return EMPTY
    names = {CHOSEN: "chosen", REJECTED: "rejected", DISTANCE: "distance from the start, on samples"}
    curves = [
        _curve(names[name], colour, steps, values[name])
        for colour, name in enumerate(names)
        if name in values and np.isfinite(values[name]).any()
    ]
    words = "Mean log-ratio of the answers by step, in nats. A margin can grow while both fall."
    rows = [
        [text(title), text(format_number(_preference_last(values[name]))), text(meaning)]
        for name, title, meaning in _PREFERENCE_FIGURES
        if name in values and np.isfinite(values[name]).any()
    ]
    heads = ("figure", f"last {LAST} steps", "meaning")
    card = styled(
        "div",
        "card",
        styled("p", "note", text(words)),
        legend([one.name for one in curves]),
        band_plot(curves, x_label="step"),
        table(heads, rows, style="fit", numeric=(1,)),
    )
    return join([element(level, text("Preferences")), card])


def _preference_last(values: Floats) -> float:
    """Mean over the last steps; of a figure that is measured more seldom, the last value."""
    late = values[-LAST:]
    known = late[np.isfinite(late)] if np.isfinite(late).any() else values[np.isfinite(values)][-1:]
    return float(known.mean())


# ------------------------------------------------------------------------------------------------------- search section


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
    best = {plan.plan for plan in frontier(found.plans)}
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
        for plan in found.plans
    ]
    heads = ("plan", "accuracy (95% interval)", "tokens drawn", "tokens scored", "seconds", "on the frontier")
    return join(
        [
            element(level, text("Search at test time")),
            *(styled("p", "bad", text(f"{note}.")) for note in found.notes),
            styled("div", "card", styled("p", "note", text(words)), legend(families), _accuracy_plot(found.plans)),
            collapsible("As a table", table(heads, rows, style="fit", numeric=(2, 3, 4))),
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
        parts.append(_search_curve(some, colour % _COLOURS, x, y))
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


def _search_curve(plans: Sequence[PlanScore], colour: int, x: LinearScale, y: LinearScale) -> Html:
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


def _interval(plan: PlanScore) -> str:
    return f"{plan.mean:.3f} ({plan.low:.3f} to {plan.high:.3f})"


def _known(value: float) -> bool:
    return math.isfinite(value)


# ------------------------------------------------------------------------------------------------- survivorship section


def survivorship_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run that learnt from every answer as it ended."""
    record = stage.survivorship
    if record is None or record.total(FATES[1:]).answers == 0:
        return EMPTY
    warnings = [styled("p", "bad", text(f"{line[0].upper()}{line[1:]}")) for line in record.warnings()]
    bias, all_ = record.length_bias_tokens, record.total()
    line = (
        f"The answers that were learnt from are {abs(bias):.3g} tokens {'longer' if bias > 0 else 'shorter'} on "
        f"average than all {all_.answers:,} answers ({bias * all_.answers / max(all_.tokens, 1):+.1%})."
    )
    deciles = record.deciles()
    note = (
        "Each lane is about a tenth of all answers, the shortest first; answers of one length stay together. Kept and "
        "truncated answers were learnt from; unscored ones had no reward, stale ones were too old, and filtered ones "
        "were left out by the recipe's selection of groups."
    )
    fates = [fate for fate in FATES if any(fate in one.answers for one in deciles)]
    rows = [
        [
            text(_lengths(one)),
            *(text(f"{one.answers.get(fate, 0):,}") for fate in fates),
            text(_reward(one.reward_learnt)),
            text(_reward(one.reward_dropped)),
        ]
        for one in deciles
    ]
    heads = ("tokens", *fates, "mean reward, learnt from", "not learnt from")
    card = [
        styled("p", "note", text(note)),
        _picture(deciles),
        table(heads, rows, style="fit", numeric=tuple(range(1, len(heads)))),
    ]
    card += [styled("p", "note", text("All lengths together:")), _fates(record)]
    return join(
        [
            element(level, text("Answers by length")),
            *warnings,
            styled("p", "verdict", text(line)),
            styled("div", "card", *card),
        ]
    )


def _picture(deciles: list[LengthDecile]) -> Html:
    lanes: list[tuple[str, list[LaneBlock]]] = []
    for one in deciles:
        begin, blocks = 0.0, list[LaneBlock]()
        for place, fate in enumerate(FATES):
            count = one.answers.get(fate, 0)
            if count:
                style = part_style(fate, place)
                blocks.append(
                    LaneBlock(name=fate, start=begin, size=float(count), style=style, title=f"{fate}: {count:,}")
                )
                begin += count
        lanes.append((_lengths(one), blocks))
    return lane_plot(lanes, max(sum(one.answers.values()) for one in deciles), "answers")


def _fates(found: Survivorship) -> Html:
    whole = found.total().answers
    rows: list[list[Html]] = []
    for place, fate in enumerate(FATES):
        one = found.total([fate])
        if one.answers:
            swatch = element("span", attributes={"class": f"swatch {part_style(fate, place)}"})
            cells = [f"{one.answers:,}", f"{one.answers / whole:.1%}", format_number(one.tokens / one.answers)]
            reward = _reward(one.score_sum / one.scored if one.scored else math.nan)
            rows.append([join([swatch, text(fate)]), *map(text, [*cells, reward])])
    heads = ("what became of it", "answers", "share", "mean tokens", "mean reward")
    return table(heads, rows, style="fit", numeric=(1, 2, 3, 4))


def _lengths(one: LengthDecile) -> str:
    return f"{one.shortest:,}" if one.shortest == one.longest else f"{one.shortest:,} to {one.longest:,}"


def _reward(value: float) -> str:
    return MISSING if math.isnan(value) else format_number(value)
