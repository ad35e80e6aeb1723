"""Metrics of a run in families of charts: what belongs on one chart, and what is said in words.

Belongs here: names only. A chart holds a metric with its interval (`eval/score` with `eval/low` and `eval/high`), with
its spread (`reward/mean` with `reward/std`), or its greatest (`answers/tokens_mean` with `answers/tokens_longest`).
The meaning and the unit come from the catalogue of metrics.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

from hone.run.report.timeline import is_loop_part
from hone.run.store.metrics import CLOCK_PREFIX, metric_catalogue

ChartKind = Literal["line", "interval", "spread", "stack"]
FAMILIES: Final[Mapping[str, Sequence[str]]] = {
    "Outcome": (
        "eval",
        "reward",
        "rewards",
        "score",
        "return",
        "episodes",
        "stops",
        "judge",
        "preference",
        "imitation",
    ),
    "Policy": ("policy", "loss", "kl", "entropy", "distill", "grad", "actor", "adapter", "exploration"),
    "Mismatch": ("mismatch", "async", "staleness", "rollout/canary_gap"),
    "Lengths": ("answers", "length", "tokens", "turns", "tools", "completion"),
    "Value": ("value", "values", "critic", "advantage", "q", "replay"),
    "Throughput": ("time", "rollout", "learner", "fleet", "world", "capture", "env"),
    "Memory": ("memory", "engine", "pages", "gpu", "machine"),
}
"""Families in their order, each with the beginnings of its metrics; a whole name goes before a beginning."""
OTHERS: Final = "Others"
_HIDDEN: Final = ("time/at_s", "time/total_s", "time/elapsed_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart: `main` is its line, `low` and `high` its band, `spread` half its width, `others` further lines."""

    title: str
    kind: ChartKind
    main: str
    low: str = ""
    high: str = ""
    spread: str = ""
    others: tuple[str, ...] = ()
    unit: str = ""
    meaning: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that is drawn."""
        return tuple(name for name in (self.main, self.low, self.high, self.spread, *self.others) if name)


@cache
def describe(name: str) -> tuple[str, str]:
    """Unit and meaning of a metric by the catalogue; empty for one that is not in it."""
    catalogue = metric_catalogue()
    entries = {one: entry for group in catalogue.groups.values() for one, entry in group.items()}
    if name in entries:
        return entries[name]
    fits = [one for one in entries if "{" in one and re.fullmatch(re.sub(r"\\\{\w+\\\}", ".+", re.escape(one)), name)]
    return entries[max(fits, key=len)] if fits else ("", "")


def family_of(name: str) -> str:
    """Family of a metric."""
    prefix = name.split("/", 1)[0]
    for family, starts in FAMILIES.items():
        if name in starts:
            return family
    return next((family for family, starts in FAMILIES.items() if prefix in starts), OTHERS)


def chart_families(names: Sequence[str], moves: Callable[[str], bool]) -> dict[str, list[Chart]]:
    """Charts of the metrics that `moves` accepts, by family; the parts of a step are one chart."""
    shown = [name for name in names if name not in _HIDDEN and moves(name)]
    there = set(shown)
    parts = [name for name in shown if is_loop_part(name)]
    taken: set[str] = set(parts) if len(parts) > 1 else set()
    charts: dict[str, list[Chart]] = {family: [] for family in (*FAMILIES, OTHERS)}
    for name in shown:
        if name in taken:
            continue
        companion = _with_companions(name, there)
        if companion is None:
            continue
        charts[family_of(name)].append(companion)
    if len(parts) > 1:
        stack = Chart(
            title="parts of a step", kind="stack", main=parts[0], others=tuple(parts[1:]), unit="s",
            meaning="seconds of each part of a step, one upon another",
        )  # fmt: skip
        charts["Throughput"].insert(0, stack)
    return {family: sorted(own, key=_order) for family, own in charts.items() if own}


def _order(chart: Chart) -> tuple[int, bool, str]:
    first = ("eval/score", "reward/mean", "episodes/return", "return/mean", "reward/zero_variance_groups")
    place = first.index(chart.main) if chart.main in first else len(first)
    return (-1 if chart.kind == "stack" else place, chart.main.startswith(CLOCK_PREFIX), chart.main)


def _with_companions(name: str, there: set[str]) -> Chart | None:
    """The chart of a metric; None for one that another chart shows."""
    unit, meaning = describe(name)
    folder, _, last = name.rpartition("/")
    base = f"{folder}/" if folder else ""
    if last in ("low", "high") and f"{base}score" in there:
        return None
    if last.endswith(("_low", "_high")) and f"{base}{last.rpartition('_')[0]}" in there:
        return None
    if last == "std" and f"{base}mean" in there:
        return None
    if last in ("longest", "max", "tokens_longest") and f"{base}{_mean_of(last)}" in there:
        return None
    plain = Chart(title=name, kind="line", main=name, unit=unit, meaning=meaning)
    lows = {"score": ("low", "high")}.get(last, (f"{last}_low", f"{last}_high"))
    if {f"{base}{lows[0]}", f"{base}{lows[1]}"} <= there:
        return replace(plain, kind="interval", low=f"{base}{lows[0]}", high=f"{base}{lows[1]}")
    if last == "mean" and f"{base}std" in there:
        return replace(plain, kind="spread", spread=f"{base}std")
    greatest = [f"{base}{one}" for one in ("longest", "max", "tokens_longest") if _mean_of(one) == last]
    return replace(plain, others=tuple(one for one in greatest if one in there))


def _mean_of(name: str) -> str:
    return "tokens_mean" if name == "tokens_longest" else "mean"
