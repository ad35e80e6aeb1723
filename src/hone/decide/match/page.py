"""HTML page of an evening of matches: quality against wait, ratings over time, and difficulty over a session."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hone.core.decisions import Floats
from hone.estimators.ratings import Rating
from hone.run.report.html import EMPTY, Html, element, format_duration, format_number, join, page, styled, text
from hone.run.report.svg import CurveSeries, band_plot, legend
from hone.run.store.durable import replace_file

_BINS = 8
_MOST_PLAYERS = 6


def write_match_page(
    path: Path,
    title: str,
    *,
    waits_s: Sequence[float],
    imbalances: Sequence[float],
    histories: Mapping[str, Sequence[tuple[float, Rating]]],
    chances: Sequence[Sequence[float]] = (),
    target: float = 0.65,
) -> None:
    """Write the page, atomically. Raises ResourceError.

    `waits_s` and `imbalances`: longest wait and |p - 1/2| of each match. `histories`: time in seconds and rating of
    some players after each game. `chances`: of each session the chance to pass the level of each round.
    """
    html = page(
        title,
        element("header", styled("p", "kicker", text("matchmaking")), element("h1", text(title))),
        _quality(np.array(waits_s), np.array(imbalances)),
        _drift(histories),
        _difficulty([np.array(session) for session in chances], target),
    )
    replace_file(path, html.encode("utf-8", "replace"))


def _section(head: str, words: str, plot: Html) -> Html:
    return join([element("h2", text(head)), styled("div", "card", styled("p", "note", text(words)), plot)])


def _quality(waits_s: Floats, imbalances: Floats) -> Html:
    """Mean imbalance by the wait, in bins of equal numbers of matches; the band is that of the middle half."""
    if not len(waits_s):
        return EMPTY
    groups = [group for group in np.array_split(np.argsort(waits_s, kind="stable"), _BINS) if len(group)]
    x = np.array([waits_s[group].mean() for group in groups])
    middle = np.array([imbalances[group].mean() for group in groups])
    quarters = [np.array([np.quantile(imbalances[group], q) for group in groups]) for q in (0.25, 0.75)]
    words = (
        f"{len(waits_s):,} matches. Half wait no longer than {format_duration(float(np.median(waits_s)))}, 95% no "
        f"longer than {format_duration(float(np.quantile(waits_s, 0.95)))}; the mean imbalance |p - 1/2| is "
        f"{format_number(float(imbalances.mean()))}. The longer a party waits, the wider its window; the band holds "
        "half of the matches."
    )
    series = CurveSeries(name="imbalance", colour=0, x=x, middle=middle, low=quarters[0], high=quarters[1])
    return _section("Quality against wait", words, band_plot([series], x_label="longest wait of the match, s"))


def _drift(histories: Mapping[str, Sequence[tuple[float, Rating]]]) -> Html:
    shown = [(name, history) for name, history in histories.items() if history][:_MOST_PLAYERS]
    if not shown:
        return EMPTY
    series: list[CurveSeries] = []
    for colour, (name, history) in enumerate(shown):
        x, mean, deviation = (np.array(column) for column in zip(*[(at, *one[:2]) for at, one in history], strict=True))
        series.append(
            CurveSeries(name=name, colour=colour, x=x, middle=mean, low=mean - deviation, high=mean + deviation)
        )
    words = (
        "Rating of some players after each of their games, with one deviation about it: it narrows as games tell more."
    )
    plot = join([legend([name for name, _ in shown]), band_plot(series, x_label="seconds since the first game")])
    return _section("Ratings over time", words, plot)


def _difficulty(chances: Sequence[Floats], target: float) -> Html:
    if not chances:
        return EMPTY
    longest = max(map(len, chances))
    table = np.array([[*session, *[np.nan] * (longest - len(session))] for session in chances])
    low, middle, high = (np.nanquantile(table, q, axis=0) for q in (0.25, 0.5, 0.75))
    distance = float(np.nanmean(np.abs(table[:, longest // 5 :] - target)))
    words = (
        f"Chance to pass the level that was chosen, in {len(chances)} sessions: the median, and the middle half. After "
        f"a fifth of the session the mean distance from the target of {target:.0%} is {distance:.3f}."
    )
    series = CurveSeries(
        name="chance", colour=0, x=np.arange(longest, dtype=np.float64), middle=middle, low=low, high=high
    )
    return _section("Difficulty over a session", words, band_plot([series], x_label="round", floor=target))
