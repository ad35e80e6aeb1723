"""Timeline of a step, from the `time/*` metrics of a run: the order of its parts.

Belongs here: which part is inside, after or parallel to another. `wait_graph` says who waited for whom, `svg` draws,
`timing_section` makes the section of the report.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hone.run.store.metrics import CLOCK_PREFIX, MetricColumns

_LOOP: Final = ("collect", "values", "credit", "update", "publish", "distance", "evaluate", "save")
"""Parts of a step in their order; other timed parts follow them."""
_TOTALS: Final = ("step", "total", "elapsed", "at")
"""Totals of other times, and the clock: not parts of a step."""
_ENGINE_PREFIX: Final = "generate"
"""Prefix of the engine's times: parts of `collect`, or parallel to the loop if it collects ahead."""
_ROLLOUT_PREFIX: Final = "rollout_"
"""Prefix of the times that a rollout waited, or was waited for."""
HELD: Final = "held"
OTHER: Final = "other"
_WAITS: Final = ("tools", "rewards")
"""Waits of a rollout in which nothing is generated; runs of earlier versions have none."""
_MIN_SHARE: Final = 0.0005
"""Smallest share of a step that is shown."""
_OVERLAP_RATIO: Final = 1.05
"""Ratio of generation time to waiting time above which generation ran in parallel to the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """A part of the mean step."""

    name: str
    start_s: float
    seconds_s: float

    @property
    def end_s(self) -> float:
        """End of the part, in seconds from the start of the step."""
        return self.start_s + self.seconds_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The mean step of a run."""

    step_s: float
    steps: int
    loop: tuple[TimelineSpan, ...]
    """Consecutive parts, from 0 to `step_s`."""
    collect_parts: tuple[TimelineSpan, ...] = ()
    """Parts of `collect`, where known. Their order is arbitrary: model passes mix prefill and decoding."""
    overlapping: tuple[TimelineSpan, ...] = ()
    """Work of a parallel thread; not part of the step's own time."""
    tail_s: float = 0.0
    """Slot time of the generation without an answer, because only the longest answers were unfinished."""
    awaited_s: float | None = None
    """Time for which the learner waited for a rollout that ran in parallel; None if it was not measured."""

    @property
    def is_parallel(self) -> bool:
        """True if rollouts ran in parallel to the loop."""
        return bool(self.overlapping) or self.awaited_s is not None

    def finest_parts(self) -> list[tuple[str, float]]:
        """Name and seconds of the finest parts whose sum is the step, largest first."""
        parts: dict[str, float] = {}
        for span in self.loop:
            if self.collect_parts and span.name == "collect":
                continue
            name = "waiting" if self.is_parallel and span.name in {"collect", "publish"} else span.name
            parts[name] = parts.get(name, 0.0) + span.seconds_s
        if self.is_parallel and self.awaited_s is not None:
            waiting = parts.pop("waiting", 0.0)
            parts |= {"waiting": min(self.awaited_s, waiting), "publish": max(0.0, waiting - self.awaited_s)}
        parts |= {span.name: span.seconds_s for span in self.collect_parts}
        return sorted(parts.items(), key=lambda part: -part[1])


def step_timeline(metrics: MetricColumns) -> Timeline | None:
    """Mean step; None without times. Lines of metrics contain totals of times over their steps."""
    seconds = {
        name.removeprefix(CLOCK_PREFIX).removesuffix("_s"): float(np.nansum(values))
        for name, values in metrics.values.items()
        if name.startswith(CLOCK_PREFIX) and name.endswith("_s")
    }
    steps = int(metrics.steps[-1]) if len(metrics.steps) else 0
    parts = {name: spent for name, spent in seconds.items() if name not in _TOTALS and not _of_engine(name)}
    whole = max(seconds.get("step", 0.0), sum(parts.values()))
    if not steps or whole <= 0:
        return None
    step_s = whole / steps
    loop = _loop({name: spent / steps for name, spent in parts.items() if spent > _MIN_SHARE * whole}, step_s)
    engine = {name: spent / steps for name, spent in seconds.items() if _of_engine(name)}
    collect = next((span for span in loop if span.name == "collect"), None)
    made = _generation(engine)
    total = sum(spent for _, spent in made)
    tail_s = engine.get(f"{_ENGINE_PREFIX}_tail", 0.0)
    waits = [(name, engine[f"{_ROLLOUT_PREFIX}{name}"]) for name in _WAITS if f"{_ROLLOUT_PREFIX}{name}" in engine]
    awaited = engine.get(f"{_ROLLOUT_PREFIX}awaited")
    overlaps = collect is not None and total > _OVERLAP_RATIO * collect.seconds_s
    if not made or collect is None or awaited is not None or overlaps:
        held = engine.get(f"{_ROLLOUT_PREFIX}{HELD}", 0.0)
        beside = _chain([one for one in [*made, *waits, (HELD, held)] if one[1] > 0], 0.0)
        return Timeline(step_s=step_s, steps=steps, loop=loop, overlapping=beside, tail_s=tail_s, awaited_s=awaited)
    rest = max(0.0, collect.seconds_s - total - sum(spent for _, spent in waits))
    remainder = ("episodes" if waits else "rewards", rest)
    inside = _chain([*made, *(one for one in waits if one[1] > 0), remainder], collect.start_s)
    return Timeline(step_s=step_s, steps=steps, loop=loop, collect_parts=inside, tail_s=tail_s)


def is_loop_part(name: str) -> bool:
    """True if a metric is the time of a part of the loop: not a total, and not inside or parallel to a part."""
    short = name.removeprefix(CLOCK_PREFIX).removesuffix("_s")
    timed = name.startswith(CLOCK_PREFIX) and name.endswith("_s")
    return timed and short not in _TOTALS and not _of_engine(short)


def _of_engine(name: str) -> bool:
    return name == _ENGINE_PREFIX or name.startswith((f"{_ENGINE_PREFIX}_", _ROLLOUT_PREFIX, "fleet_"))


def _loop(parts: dict[str, float], step_s: float) -> tuple[TimelineSpan, ...]:
    known = [name for name in _LOOP if name in parts]
    ordered = [(name, parts[name]) for name in (*known, *(name for name in parts if name not in known))]
    rest = step_s - sum(parts.values())
    return _chain([*ordered, (OTHER, rest)] if rest > 0.005 * step_s else ordered, 0.0)


def _generation(engine: dict[str, float]) -> list[tuple[str, float]]:
    """Parts of `time/generate_s`: prefill, decoding and bookkeeping."""
    total, model = engine.get(_ENGINE_PREFIX, 0.0), engine.get(f"{_ENGINE_PREFIX}_model", 0.0)
    prefill = engine.get(f"{_ENGINE_PREFIX}_prefill", 0.0)
    parts = [("prefill", prefill), ("decode", model - prefill), ("bookkeeping", total - model)]
    return [(name, spent) for name, spent in parts if spent > 0]


def _chain(parts: Sequence[tuple[str, float]], start_s: float) -> tuple[TimelineSpan, ...]:
    spans: list[TimelineSpan] = []
    for name, spent in parts:
        spans.append(TimelineSpan(name=name, start_s=start_s, seconds_s=spent))
        start_s += spent
    return tuple(spans)
