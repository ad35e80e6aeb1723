"""The page of a fleet: robots by watermark and version, episodes of trials, staleness, the learner's use of steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from hone.core.errors import HoneError
from hone.decide.fleet.service import FleetService
from hone.decide.fleet.store import RobotRow
from hone.decide.rollout.controller import ROLLED_BACK
from hone.decide.rollout.history import read_history
from hone.decide.rollout.router import split_label
from hone.run.report.html import (
    EMPTY,
    Html,
    collapsible,
    element,
    format_duration,
    format_number,
    join,
    page,
    styled,
    table,
    text,
)
from hone.run.report.svg import Attributes, CurveSeries, LabelledBar, band_plot, horizontal_bars, label, part_style
from hone.run.store.metrics import read_metrics

_LATE_S: Final = 60.0
"""Seconds without an upload after which a robot counts as offline."""
_COLUMNS: Final = 10
_CELL: Final = (92.0, 44.0)
_LEARNER: Final = ("robots/samples_per_insert", "robots/staleness_mean", "robots/staleness_max")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """A fleet as its page shows it."""

    name: str
    now_s: float
    live: str
    robots: tuple[RobotRow, ...]
    steps: int
    episodes: int
    returns: tuple[tuple[str, str, int, float], ...]
    """Version, route, episodes and mean return."""
    staleness: Mapping[int, int]
    """Steps by the updates, or versions, between the newest version and the one that acted."""
    rollouts: tuple[str, ...]
    """Judgement of every rollout, in words, oldest first."""
    harmed: int
    """Episodes that versions ran which were rolled back."""
    learner: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
    """Steps and values of the learner's own figures of the fleet."""


def read_fleet(service: FleetService) -> FleetView:
    """Read a fleet. Raises DataError and ResourceError of its store and registry."""
    store, registry, name = service.store, service.registry, service.folder.name
    histories = [read_history(registry, name, one) for one in registry.rollouts(name)]
    steps, episodes = store.counts()
    returns = tuple(store.returns())
    run = service.fleet.learner
    back = {one.plan.name for one in histories if one.state.stage == ROLLED_BACK}
    labels = [(split_label(route), count) for _, route, count, _ in returns]
    return FleetView(
        name=name, now_s=service.clock.now_s(), live=registry.live(name), robots=tuple(store.robots()), steps=steps,
        episodes=episodes, returns=returns, staleness=store.staleness(), rollouts=tuple(one.words for one in histories),
        harmed=sum(count for (rollout, arm, _), count in labels if arm == "canary" and rollout in back),
        learner=_learner_figures(service.folder.parent / run) if run else {},
    )  # fmt: skip


def _learner_figures(run: Path) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Figures of the learner's run; none where it has not begun, or cannot be read."""
    try:
        columns = read_metrics(run / "metrics.jsonl")
    except HoneError:
        return {}
    figures: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}
    for name in _LEARNER:
        values = columns.values.get(name)
        if values is not None:
            known = np.isfinite(values)
            figures[name] = (
                tuple(columns.steps[known].astype(float).tolist()), tuple(values[known].astype(float).tolist())
            )  # fmt: skip
    return figures


def fleet_page(view: FleetView) -> Html:
    """The page as an HTML document."""
    late = sum(view.now_s - one.contact_s > _LATE_S for one in view.robots)
    lost, ahead = sum(one.lost for one in view.robots), sum(one.ahead_s > 0 for one in view.robots)
    title = f"{view.name}: {len(view.robots)} robots, {late} offline"
    moment = datetime.fromtimestamp(view.now_s, UTC)
    steps = sum(view.staleness.values())
    stale = sum(lag * count for lag, count in view.staleness.items()) / steps if steps else 0.0
    tiles = [
        (f"{view.steps:,}", "steps stored, each once"),
        (f"{view.episodes:,}", "episodes ended"),
        (f"{sum(one.missing for one in view.robots):,}", "numbers missing: not here yet"),
        (f"{lost:,}", "dropped by full spools"),
        (f"{sum(one.repeated for one in view.robots):,}", "sent again, stored once"),
        (f"{view.harmed:,}", "episodes harmed by versions that went back"),
        (format_number(stale), "mean staleness at arrival"),
    ]
    notes = [f"The clocks of {ahead} robots are ahead: their episodes count from their arrival."] if ahead else []
    return page(
        title,
        styled("p", "kicker", text(f"fleet, {moment:%Y-%m-%d %H:%M:%S UTC}, live version {view.live or 'none'}")),
        element("h1", text(title)),
        *(styled("p", "verdict", text(f"{words}.")) for words in view.rollouts[-1:]),
        *(styled("p", "note", text(words)) for words in notes),
        styled("div", "tiles", *(
            styled("div", "tile", element("b", text(value)), element("span", text(f" {name}"))) for value, name in tiles
        )),
        _map(view), _trials(view), _staleness(view), _learner(view), _table(view),
    )  # fmt: skip


def _map(view: FleetView) -> Html:
    """Robots as cells: coloured by version, faint while offline, with the watermark and what is missing below it."""
    if not view.robots:
        return styled("p", "note", text("No robot has sent anything yet."))
    versions = sorted({one.version for one in view.robots}, key=lambda name: (name != view.live, name))
    wide, high = _CELL
    parts: list[Html] = []
    for place, one in enumerate(view.robots):
        row, column = divmod(place, _COLUMNS)
        x, y = column * wide + 2, row * high + 2
        box: Attributes = {"x": x, "y": y, "width": wide - 6, "height": high - 6, "rx": 4}
        style: Attributes = {"class": part_style(one.version, versions.index(one.version))}
        if view.now_s - one.contact_s > _LATE_S:
            style |= {"opacity": 0.35}
        words = (
            f"{one.robot}: watermark {one.watermark:,}, {one.missing:,} missing, {one.lost:,} dropped, version "
            f"{one.version or 'none'}, heard {format_duration(max(view.now_s - one.contact_s, 0.0))} ago"
        )
        parts.append(element("rect", element("title", text(words)), attributes=box | style))
        parts.append(label(x + 6, y + 15, one.robot[-12:], "on-part"))
        gap = f" ({one.missing:,} open)" if one.missing else ""
        parts.append(label(x + 6, y + 30, f"{one.watermark + 1:,}{gap}", "on-part"))
    rows = -(-len(view.robots) // _COLUMNS)
    frame: Attributes = {"viewBox": f"0 0 {_COLUMNS * wide:.0f} {rows * high:.0f}", "class": "wide", "role": "img"}
    bars = [
        LabelledBar(name=version[:8] or "none", value=count, words=f"{count} robots", style=part_style(version, place))
        for place, version in enumerate(versions)
        if (count := sum(one.version == version for one in view.robots))
    ]  # fmt: skip
    note = (
        "One cell a robot: the colour is the version of its last episode, the number the records that are stored "
        "without a gap; faint cells have not been heard for a minute."
    )
    return join([
        element("h2", text("Robots by watermark and version")),
        styled("div", "card", styled("p", "note", text(note)), element("svg", *parts, attributes=frame),
               horizontal_bars(bars)),
    ])  # fmt: skip


def _trials(view: FleetView) -> Html:
    rows = [one for one in view.returns if one[1]]
    if not rows:
        return EMPTY
    cells = [
        [text(route), text(version[:8]), text(f"{count:,}"), text(format_number(mean))]
        for version, route, count, mean in rows
    ]
    return join([
        element("h2", text("Episodes on trial")),
        *(styled("p", "", text(f"{words}.")) for words in view.rollouts),
        table(("rollout, arm, stage", "version", "episodes", "mean return"), cells, style="fit", numeric=(2, 3)),
    ])  # fmt: skip


def _staleness(view: FleetView) -> Html:
    total = sum(view.staleness.values())
    shown = sorted(view.staleness.items())[:12]
    if not total:
        return EMPTY
    bars = [LabelledBar(name=f"{lag}", value=steps, words=f"{steps / total:.1%} of steps") for lag, steps in shown]
    note = "Steps by their staleness at arrival: the newest version's number less that of the one that acted."
    return join([
        element("h2", text("Staleness")), styled("div", "card", styled("p", "note", text(note)), horizontal_bars(bars))
    ])  # fmt: skip


def _learner(view: FleetView) -> Html:
    parts: list[Html] = []
    for place, (name, (steps, values)) in enumerate(view.learner.items()):
        if values:
            curve = np.array(values)
            series = CurveSeries(name=name, colour=place, x=np.array(steps), middle=curve, low=curve, high=curve)
            parts += [element("h3", text(f"{name}, now {format_number(values[-1])}")),
                      styled("div", "card", band_plot([series], x_label="iteration of the learner"))]  # fmt: skip
    return join([element("h2", text("Learner")), *parts]) if parts else EMPTY


def _table(view: FleetView) -> Html:
    heads = ("robot", "watermark", "missing", "dropped", "sent again", "refused", "clock ahead, s", "version")
    cells = [
        [text(f"{one.robot}.{one.instance}"), *(text(f"{number:,}") for number in (
            one.watermark, one.missing, one.lost, one.repeated, one.refused)), text(f"{one.ahead_s:.0f}"),
         text(one.version[:8])]
        for one in view.robots
    ]  # fmt: skip
    return collapsible("Robots as a table", table(heads, cells, style="fit", numeric=(1, 2, 3, 4, 5, 6)))
