"""Scores of trials: the figures of `hone compare`, with one group of runs for each trial."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hone.core.errors import DataError
from hone.evaluate.comparison import IGNORED_KEYS, compare
from hone.run.store.comparison import Comparison, GroupSummary
from hone.run.store.sweep import TrialScore


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRuns:
    """A trial's runs, or the reason why it has no score."""

    trial: int
    label: str
    runs: Sequence[Path]
    failure: str = ""


def uncompared_keys(keys: Sequence[str]) -> list[str]:
    """Keys in which runs of one group may differ, so that a comparison cannot tell their values apart."""
    return [key for key in keys if IGNORED_KEYS.match(key)]


def judge(trials: Sequence[TrialRuns], *, root: Path, metric: str) -> tuple[dict[int, TrialScore], Comparison | None]:
    """Score every trial, and compare those that did not fail; None if all failed. Raises DataError without scores."""
    scores = {one.trial: _failed(one.trial, one.failure) for one in trials if one.failure}
    sound = [one for one in trials if not one.failure]
    if not sound:
        return scores, None
    found = compare([str(path) for one in sound for path in one.runs], root=root, metric=metric)
    if len(found.groups) != len(sound):
        raise DataError(
            f"{root}: {len(sound)} trials make {len(found.groups)} groups of runs: some trials do the same under "
            "different settings; leave those values out"
        )
    names = {group.name: one.label for one, group in zip(sound, found.groups, strict=True)}
    scores |= {one.trial: _score(one.trial, group) for one, group in zip(sound, found.groups, strict=True)}
    return scores, _renamed(found, names)


def best(scores: Mapping[int, TrialScore], count: int) -> tuple[int, ...]:
    """The `count` trials with the highest scores, the best first; of equal ones the earlier."""
    known = [one for one in scores.values() if math.isfinite(one.mean)]
    return tuple(one.trial for one in sorted(known, key=lambda one: (-one.mean, one.trial))[:count])


def _score(trial: int, group: GroupSummary) -> TrialScore:
    seeds = [run.score for run in group.runs]
    if any(math.isnan(score) for score in seeds):
        return _failed(trial, "a run has no score")
    return TrialScore(trial=trial, mean=group.iqm.mean, low=group.iqm.low, high=group.iqm.high, worst=min(seeds))


def _failed(trial: int, why: str) -> TrialScore:
    nan = math.nan
    return TrialScore(trial=trial, mean=nan, low=nan, high=nan, worst=nan, failure=why)


def _renamed(comparison: Comparison, names: Mapping[str, str]) -> Comparison:
    """The comparison with the trials' labels in place of the names of groups."""

    def text(note: str) -> str:
        old = next((name for name in names if note.startswith(f"{name}: ")), None)
        return note if old is None else names[old] + note[len(old) :]

    return replace(
        comparison,
        groups=tuple(replace(group, name=names[group.name]) for group in comparison.groups),
        improvements=tuple(
            replace(one, before=names[one.before], after=names[one.after]) for one in comparison.improvements
        ),
        paired=tuple(replace(one, before=names[one.before], after=names[one.after]) for one in comparison.paired),
        notes=tuple(map(text, comparison.notes)),
    )
