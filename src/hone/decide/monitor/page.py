"""The page of a monitor, from the state of the monitor and the versions that served."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hone.decide.estimators.drift.health import FeatureShift
from hone.decide.monitor.monitor import ServiceMonitor, SignalHistory
from hone.run.report.html import EMPTY, Html, element, format_number, join, page, styled, table, text
from hone.run.report.svg import Attributes, LinearScale, axes, label, labelled_ticks, polyline
from hone.run.store.durable import replace_file

# ----------------------------------------------------------------------------------------------------------- drift page


_WIDTH, _HEIGHT = 960.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 22.0, 44.0
_LANE = 34.0
_COLOURS = 7
_TITLE_ROOM = 110.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmMark:
    """An alarm on the axis of rewards."""

    count: int
    """Rewards that had been read."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPeriod:
    """Rewards during which one version served."""

    version: str
    first: int
    last: int
    reason: str
    """Reason why it came into service: `first`, `recall`, `retrained`, `started anew` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPageData:
    """Data of the page of one tenant."""

    tenant: str
    signal: str
    """Name of the watched number."""
    block: int
    """Rewards in one mean."""
    means: Sequence[float]
    alarms: Sequence[AlarmMark] = ()
    shifts: Sequence[FeatureShift] = field(default=())
    """Comparison of each feature with its reference in the last window."""
    served: Sequence[ServedPeriod] = ()

    def render(self) -> Html:
        """Render a tenant's monitor as an HTML document."""
        moved = [shift.feature for shift in self.shifts if shift.changed]
        count = len(self.alarms)
        title = "No drift" if not count else f"{count} alarm{'s' if count > 1 else ''} of the {self.signal}"
        title += f"; {', '.join(moved)} moved" if moved else ""
        kicker = f"monitor, tenant {self.tenant}"
        return page(
            title,
            element("header", styled("p", "kicker", text(kicker)), element("h1", text(title))),
            join(styled("p", "verdict", element("b", text(f"At {mark.count:,}: ")), text(mark.words))
                 for mark in self.alarms[-5:]),
            _signal(self),
            _versions(self),
            _features(self),
        )  # fmt: skip


def _signal(shown: DriftPageData) -> Html:
    if len(shown.means) < 2:
        return EMPTY
    values = np.asarray(shown.means)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.05 * (high - low) or 0.5
    x = LinearScale(0.0, float(len(values) * shown.block), _LEFT, _WIDTH - _RIGHT)
    y = LinearScale(low - room, high + room, _HEIGHT - _BOTTOM, _TOP)
    parts = axes(x, y, "rewards", y_ticks=labelled_ticks(y.low, y.high, 5))
    level: Attributes = {"x1": x.start, "x2": x.end, "y1": y.at(0.0), "y2": y.at(0.0), "class": "level"}
    parts.append(element("line", attributes=level))
    places = (np.arange(len(values)) + 0.5) * shown.block
    parts.append(polyline(x, y, zip(places.tolist(), values.tolist(), strict=True), {"class": "stroke s0"}))
    for number, mark in enumerate(shown.alarms, start=1):
        line: Attributes = {
            "x1": x.at(mark.count), "x2": x.at(mark.count), "y1": y.start, "y2": y.end, "class": "stroke s1"
        }  # fmt: skip
        parts.append(element("line", element("title", text(mark.words)), attributes=line))
        parts.append(label(x.at(mark.count), _TOP - 6, str(number), "tick middle"))
    words = (
        f"Mean {shown.signal} of blocks of {shown.block:,} rewards; numbered lines are alarms. A residual is the "
        "reward minus the score that the served model gave the executed action: it stays near 0 while the model is "
        "right."
    )
    return _card(f"Watched: {shown.signal}", words, _picture(_HEIGHT, parts))


def _versions(shown: DriftPageData) -> Html:
    """One track a version; a line between tracks where another one took over."""
    if not shown.served:
        return EMPTY
    tracks = {version: place for place, version in enumerate(dict.fromkeys(one.version for one in shown.served))}
    height = _TOP + _LANE * len(tracks) + _BOTTOM
    last = max(one.last for one in shown.served)
    x = LinearScale(0.0, float(max(last, 1)), _LEFT + _TITLE_ROOM, _WIDTH - _RIGHT)
    y = LinearScale(-0.5, len(tracks) - 0.5, _TOP, height - _BOTTOM)
    parts = [label(x.start - 10, y.at(place) + 4, name, "tick end") for name, place in tracks.items()]
    parts += [label(x.at(at), y.end + 16, words, "tick middle") for at, words in labelled_ticks(0.0, x.high, 6)]
    parts.append(label((x.start + x.end) / 2, y.end + 36, "rewards", "tick middle"))
    before: ServedPeriod | None = None
    for one in shown.served:
        place, style = float(tracks[one.version]), f"stroke s{tracks[one.version] % _COLOURS}"
        if before is not None:
            turn = [(float(one.first), float(tracks[before.version])), (float(one.first), place)]
            parts.append(polyline(x, y, turn, {"class": "level"}))
        hover = element("title", text(f"{one.version}, {one.reason}: {one.first:,} to {one.last:,}"))
        straight: Attributes = {
            "x1": x.at(one.first), "x2": x.at(one.last), "y1": y.at(place), "y2": y.at(place), "class": style,
            "style": "stroke-width: 5; stroke-linecap: round",
        }  # fmt: skip
        parts.append(element("line", hover, attributes=straight))
        before = one
    words = "Each version has a track; a dashed line is a handover. A track that is taken up again is a recall."
    rows = [[text(one.version), text(one.reason), text(f"{one.first:,}"), text(f"{one.last:,}")]
            for one in shown.served]  # fmt: skip
    heads = ("version", "came by", "from reward", "to reward")
    return _card("Versions in service", words, _picture(height, parts), table(heads, rows, style="fit", numeric=(2, 3)))


def _features(shown: DriftPageData) -> Html:
    if not shown.shifts:
        return EMPTY
    ordered = sorted(shown.shifts, key=lambda shift: shift.p_value)
    rows = [
        [
            element("b", text(shift.feature)) if shift.changed else text(shift.feature), text(f"{shift.ks:.3f}"),
            text(f"{shift.p_value:.1e}"), text(format_number(shift.psi)), text("moved" if shift.changed else ""),
        ]
        for shift in ordered
    ]  # fmt: skip
    words = (
        "The last window of decisions against the reference: Kolmogorov-Smirnov distance with its p-value, and the "
        "population stability index, where 0.1 is worth a look and 0.25 is a shift."
    )
    heads = ("feature", "distance", "p-value", "stability index", "")
    return _card("Features", words, table(heads, rows, style="fit", numeric=(1, 2, 3)))


def _picture(height: float, parts: Sequence[Html]) -> Html:
    box: Attributes = {"viewBox": f"0 0 {_WIDTH:.0f} {height:.0f}", "class": "wide", "role": "img"}
    return element("svg", *parts, attributes=box)


def _card(title: str, words: str, *parts: Html) -> Html:
    return join([element("h2", text(title)), styled("div", "card", styled("p", "note", text(words)), *parts)])


# ----------------------------------------------------------------------------------------------------------------- page


def write_monitor_page(
    path: Path, monitor: ServiceMonitor, tenant: str, *, served: Sequence[ServedPeriod] = ()
) -> None:  # fmt: skip
    """Write the page of a tenant. Raises ResourceError."""
    history = monitor.history.get(tenant, SignalHistory())
    shown = DriftPageData(
        tenant=tenant, signal=monitor.config.on, block=history.block, means=history.means,
        alarms=[AlarmMark(count=alarm.count, words=alarm.words) for alarm in history.alarms],
        shifts=monitor.shifts(tenant), served=served,
    )  # fmt: skip
    replace_file(path, shown.render().encode("utf-8", "replace"))
