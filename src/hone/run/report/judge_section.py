"""Report section about judges: agreement with canaries over the run, biases, missing verdicts and costs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.run.report.html import EMPTY, Html, element, format_number, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg_lines import CurveSeries, band_plot
from hone.run.store.metrics import CLOCK_PREFIX

_NAME = re.compile(r"judge/(.+)/missing")


@dataclass(frozen=True, slots=True)
class HealthRow:
    """One measurement of a judge's health, with the range in which it is no cause for concern."""

    key: str
    name: str
    meaning: str
    lowest: float = -np.inf
    highest: float = np.inf


ROWS = (
    HealthRow(
        "agreement",
        "agreement with canaries",
        "known-good answers that win; a tie counts against the judge",
        lowest=0.7,
    ),
    HealthRow("self_consistency", "self-consistency", "repeated questions with the same outcome", lowest=0.7),
    HealthRow("first_preferred", "answer shown first wins", "0.5 without bias of position", 0.4, 0.6),
    HealthRow("order_consistency", "same winner in both orders", "1 for a judge that reads", lowest=0.6),
    HealthRow("length_bias", "longer canary preferred too often", "0 without bias of length", -0.15, 0.15),
    HealthRow("length_correlation", "correlation of score and length", "within the answers to one prompt"),
    HealthRow("missing", "answers without a verdict", "missing scores, never 0", highest=0.05),
)
"""Measurements in the order of the table."""


def judge_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run without judges."""
    names = [found[1] for key in stage.metrics.values if (found := _NAME.fullmatch(key))]
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
    agreement = _last(stage, f"judge/{name}/agreement")
    if agreement is None:
        return "no canaries, so that nobody knows whether it is right."
    low, high = (_last(stage, f"judge/{name}/agreement_{end}") for end in ("low", "high"))
    asked = _last(stage, f"judge/{name}/canaries") or 0.0
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


def _line(stage: RunData, name: str, row: HealthRow) -> Sequence[Html]:
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
    requests, money = (_last(stage, f"{CLOCK_PREFIX}judge/{name}/{key}") or 0.0 for key in ("requests", "money"))
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


def _last(stage: RunData, key: str) -> float | None:
    values = stage.metrics.values.get(key)
    known = np.zeros(0) if values is None else values[np.isfinite(values)]
    return float(known[-1]) if len(known) else None
