"""A rollout as it went: its rungs, the evidence at every look, and the judgement in words. Read from the journal."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from hone.core.strict_json import Json
from hone.decide.registry import PolicyVersion, VersionRegistry
from hone.decide.rollout.controller import (
    ROLLED_BACK,
    EffectReport,
    RolloutState,
    StageTransition,
    format_e_value,
)
from hone.decide.rollout.driver import RecordedRollout, read_rollout, state_from_json, transition_from_json
from hone.decide.rollout.plan import RolloutPlan
from hone.run.report.html import EMPTY, Html, element, format_number, join, page, styled, table, text
from hone.run.report.svg import Attributes, CurveSeries, LinearScale, axes, band_plot, label, legend, polyline
from hone.run.store.durable import replace_file


@dataclass(frozen=True, slots=True, kw_only=True)
class _RolloutLook:
    """Evidence at one entry of the journal."""

    at_s: float
    stage: str
    units: int
    """Exposed units, both arms together."""
    log_e: float
    """nats: the guardrails together, now."""
    peak: float
    """nats: their largest value so far."""
    effects: tuple[EffectReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LadderRung:
    """One stage of a rollout."""

    stage: str
    needed: int
    """Units, or requests of the shadow, after which it has done its part."""
    seen: int
    begun_s: float | None
    """None: not reached."""
    left: StageTransition | None
    """The transition that ended it; None: not ended."""
    log_e: float
    """nats: e-value at its end, or now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RolloutHistory:
    """A rollout with everything that its journal tells."""

    plan: RolloutPlan
    state: RolloutState
    begun_s: float
    rungs: tuple[_LadderRung, ...]
    looks: tuple[_RolloutLook, ...]
    transitions: tuple[StageTransition, ...]

    @property
    def words(self) -> str:
        """The judgement in one sentence."""
        name = f"rollout {self.plan.name} of version {self.plan.version}"
        if self.state.stage == ROLLED_BACK:
            last = self.transitions[-1]
            return f"{name} went back to {self.plan.control or 'the service'} at {last.before}: {last.words}"
        if self.state.stage == "100%":
            return f"{name} reached 100%: the version is live"
        needed = self.plan.units_needed(self.state.stage)
        what = "requests scored" if self.state.stage == "shadow" else "units exposed"
        return f"{name} is at {self.state.stage}, {self.state.in_stage:,} of {needed:,} {what}; no alarm"

    def json(self) -> dict[str, Json]:
        """The history as JSON, for programs; null stands for numbers that are not known."""
        table = {
            "words": self.words,
            "plan": asdict(self.plan),
            "stage": self.state.stage,
            "since_s": self.state.since_s,
            "in_stage": self.state.in_stage,
            "units": self.state.evidence.count,
            "both_arms": self.state.evidence.both_arms,
            "e_value": math.exp(min(self.state.evidence.log_e, 700.0)),
            "limit": 1 / self.plan.guardrail_alpha,
            "effects": [asdict(one) for one in self.looks[-1].effects],
            "transitions": [asdict(one) for one in self.transitions],
        }
        return cast("dict[str, Json]", _finite(table))

    def write_page(self, path: Path, lineage: Sequence[PolicyVersion], *, file: Path) -> None:
        """Write the page of a rollout in the service of `file`. Raises ResourceError."""
        plan = self.plan
        headline = "rolled back" if self.state.stage == ROLLED_BACK else f"at {self.state.stage}"
        moves = [
            [text(_moment(one.at_s)), text(one.before), text(one.after), text(one.words)] for one in self.transitions
        ]
        parts = [
            styled("p", "kicker", text(f"rollout of service {plan.service}, begun {_moment(self.begun_s)}")),
            element("h1", text(f"{plan.name}: {headline}")),
            styled("p", "verdict", text(f"{self.words}.")),
            styled("p", "note", text(f"To go back to the version before: hone ship {file} --back")),
            _tiles(self),
            element("h2", text("Stages")),
            styled("div", "card", _ladder_plot(self)),
            table(("when", "from", "to", "reason"), moves, style="fit"),
            element("h2", text("Evidence that the new version is worse")),
            styled("div", "card", _e_value_plot(self)),
            *(_effect(self, number) for number in range(len(plan.guardrails))),
            element("h2", text("Lineage")),
            _lineage(lineage, plan.control),
        ]
        replace_file(path, page(f"rollout {plan.name}", *parts).encode())


def read_history(registry: VersionRegistry, service: str, name: str) -> _RolloutHistory:
    """Read a rollout's journal. Raises DataError for an unknown rollout or a damaged journal."""
    recorded = read_rollout(registry, service, name)
    entries = registry.entries(service, name)
    where = f"the journal of rollout {name!r} of service {service!r}"
    states = [state_from_json(entry, where) for entry in entries]
    looks = [
        _look(recorded.plan, state, cast("float", entry["at_s"])) for state, entry in zip(states, entries, strict=True)
    ]
    transitions = tuple(one for one in map(transition_from_json, entries) if one is not None)
    return _RolloutHistory(
        plan=recorded.plan,
        state=recorded.state,
        begun_s=recorded.begun_s,
        rungs=_rungs(recorded, looks, transitions),
        looks=tuple(looks),
        transitions=transitions,
    )


def _look(plan: RolloutPlan, state: RolloutState, at_s: float) -> _RolloutLook:
    evidence = state.evidence
    return _RolloutLook(
        at_s=at_s, stage=state.stage, units=evidence.count, log_e=evidence.log_e, peak=evidence.peak,
        effects=evidence.effects(plan),
    )  # fmt: skip


def _rungs(
    recorded: RecordedRollout, looks: Sequence[_RolloutLook], transitions: Sequence[StageTransition]
) -> tuple[_LadderRung, ...]:
    """One rung for each stage of the plan, reached or not."""
    begun = {"candidate": recorded.begun_s} | {one.after: one.at_s for one in transitions}
    left = {one.before: one for one in transitions}
    rungs: list[_LadderRung] = []
    for stage in recorded.plan.ladder[1:]:
        inside = [one for one in looks if one.stage == stage]
        # the entry of a transition holds the next stage already, with the evidence of the one that ends
        ends = [two for one, two in pairwise(looks) if one.stage == stage != two.stage]
        last = (ends or inside or looks[:1])[-1]
        seen = left[stage].seen if stage in left else recorded.state.in_stage if stage in begun else 0
        rungs.append(
            _LadderRung(
                stage=stage, needed=recorded.plan.units_needed(stage), seen=seen, begun_s=begun.get(stage),
                left=left.get(stage), log_e=last.log_e,
            )
        )  # fmt: skip
    return tuple(rungs)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in cast("dict[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("list[object]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ----------------------------------------------------------------------------------------------------------------- page


_WIDTH = 960.0


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _tiles(history: _RolloutHistory) -> Html:
    evidence, plan = history.state.evidence, history.plan
    control, new = evidence.ratio.counts
    tiles = [
        (f"{new:,} / {control:,}", "units of canary / control"),
        (format_e_value(evidence.log_e), f"e-value now; limit {1 / plan.guardrail_alpha:.3g}"),
        (format_e_value(evidence.ratio_peak), f"sample ratio, largest e; limit {1 / plan.ratio_alpha:g}"),
        (f"{evidence.both_arms:,}", "units in both arms"),
        (f"{plan.alpha:g}", "probability of a false rollback, at most"),
    ]
    boxes = [styled("div", "tile", element("b", text(value)), element("span", text(name))) for value, name in tiles]
    return styled("div", "tiles", *boxes)


def _ladder_plot(history: _RolloutHistory) -> Html:
    """One row a stage: how far it came, and the e-value at its end."""
    rows, height, left = history.rungs, 34.0, 120.0
    x = LinearScale(0.0, 1.0, left, 620.0)
    parts: list[Html] = []
    for number, rung in enumerate(rows):
        top = 6 + height * number
        parts.append(label(left - 14, top + 15, rung.stage, "label end"))
        part = _done(rung)
        whole: Attributes = {"x": x.start, "y": top, "width": x.end - x.start, "height": 22, "rx": 3}
        parts.append(element("rect", attributes=whole | {"class": "p7", "opacity": 0.22}))
        if part > 0:
            style = "p4" if rung.left and rung.left.after == ROLLED_BACK else "p0"
            done: Attributes = {"x": x.start, "y": top, "width": x.at(part) - x.start, "height": 22, "rx": 3}
            parts.append(element("rect", attributes=done | {"class": style}))
        parts.append(label(x.end + 14, top + 15, _rung_words(rung), "label"))
    box: Attributes = {"viewBox": f"0 0 {_WIDTH:.0f} {height * len(rows) + 8:.0f}", "class": "wide", "role": "img"}
    return element("svg", *parts, attributes=box)


def _done(rung: _LadderRung) -> float:
    """Part of a stage that is done."""
    if rung.begun_s is None:
        return 0.0
    passed = rung.left is not None and rung.left.after != ROLLED_BACK
    return 1.0 if passed or not rung.needed else min(1.0, rung.seen / rung.needed)


def _rung_words(rung: _LadderRung) -> str:
    if rung.begun_s is None:
        return "not reached"
    if rung.stage == "100%":
        return "live"
    e = "" if rung.stage == "shadow" else f", e = {format_e_value(rung.log_e)}"
    return f"{rung.seen:,} of {rung.needed:,}{e}"


def _e_value_plot(history: _RolloutHistory) -> Html:
    """The e-value over exposed units on a logarithmic axis, and the limit 1/alpha that stops the rollout."""
    looks = _distinct(history.looks)
    if len(looks) < 2:
        return styled("p", "note", text("No unit has been exposed yet."))
    limit = -math.log10(history.plan.guardrail_alpha)
    values = [one.log_e / math.log(10) for one in looks]
    low, high = math.floor(min(0.0, *values)), math.ceil(max(limit, *values) + 0.1)
    x = LinearScale(0.0, float(looks[-1].units), 64.0, _WIDTH - 16)
    y = LinearScale(low, high, 280.0, 10.0)
    step = max(1, (high - low) // 6)
    ticks = [(float(power), f"{10.0**power:g}") for power in range(low, high + 1, step)]
    parts = axes(x, y, "exposed units, both arms", y_ticks=ticks)
    level: Attributes = {"x1": x.start, "x2": x.end, "y1": y.at(limit), "y2": y.at(limit), "class": "level"}
    parts.append(element("line", attributes=level))
    words = f"limit {1 / history.plan.guardrail_alpha:.3g}: roll back"
    parts.append(label(x.end - 4, y.at(limit) - 6, words, "tick end"))
    for before, after in pairwise(looks):
        if before.stage != after.stage:
            at = x.at(after.units)
            line: Attributes = {"x1": at, "x2": at, "y1": y.start, "y2": y.end, "class": "grid"}
            parts += [element("line", attributes=line), label(at - 4, y.end + 12, before.stage, "tick end")]
    points = [(float(one.units), value) for one, value in zip(looks, values, strict=True)]
    parts.append(polyline(x, y, points, {"class": "line"}))
    box: Attributes = {"viewBox": f"0 0 {_WIDTH:.0f} 322", "class": "wide", "role": "img"}
    return element("svg", *parts, attributes=box)


def _distinct(looks: Sequence[_RolloutLook]) -> list[_RolloutLook]:
    """Looks at which units were added, each with the last entry of its number of units."""
    by_units = {one.units: one for one in looks}
    return [by_units[units] for units in sorted(by_units)]


def _effect(history: _RolloutHistory, number: int) -> Html:
    """Effect on one outcome with both confidence sequences, over exposed units."""
    guardrail = history.plan.guardrails[number]
    looks = [one for one in _distinct(history.looks) if one.effects[number].count >= 2]
    if not looks:
        return EMPTY
    reports = [one.effects[number] for one in looks]
    last, width = reports[-1], guardrail.high - guardrail.low
    units = np.array([float(one.units) for one in looks])
    middle = np.array([one.effect for one in reports])
    names = ("asymptotic", "empirical Bernstein")
    ends = [
        np.array([(max(one.low, -width), min(one.high, width)) for one in reports]),
        np.array([(one.bounded_low, one.bounded_high) for one in reports]),
    ]
    series = [
        CurveSeries(name=name, colour=colour, x=units, middle=middle, low=pair[:, 0], high=pair[:, 1])
        for colour, (name, pair) in enumerate(zip(names, ends, strict=True))
    ]
    interval = f"{format_number(last.effect)} ({format_number(last.low)} to {format_number(last.high)})"
    words = (
        f"Mean of the new version minus the control's, with both 95% confidence sequences: {interval} after "
        f"{last.count:,} units; {last.clipped:,} values beyond {guardrail.low:g} to {guardrail.high:g} were clipped, "
        f"{last.missing:,} missing."
    )
    parts = [element("h3", text(f"Effect on {guardrail.kind}")), styled("p", "note", text(words))]
    if len(looks) > 1:
        plot = band_plot(series[::-1], x_label="exposed units, both arms", floor=0.0)
        parts += [legend(names), styled("div", "card", plot)]
    return join(parts)


def _lineage(lineage: Sequence[PolicyVersion], control: str) -> Html:
    rows = [
        [
            text(one.id + (" (control)" if one.id == control else "")),
            text(_moment(one.at_s)),
            text(one.origin.code or "-"),
            text(one.origin.view or "-"),
            text(one.made_by),
        ]
        for one in lineage
    ]
    return table(("version", "added", "code", "view", "by"), rows, style="fit")
