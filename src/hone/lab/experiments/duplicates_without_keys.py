"""Duplicates without keys: rewards that are sent again favour the version whose connection is worse."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome
from hone.core.random import generator
from hone.decide.joins.join import build_view
from hone.decide.joins.view import JoinConfig
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot

_RATES = (0.30, 0.34)
"""Rates of clicks under the old version and under the new one."""
_LOST = (0.25, 0.02)
"""Share of the acknowledgements that are lost, after which a client sends the click again: the old version's pages are
heavy, and its users' connections break."""
_DECISIONS = 4000
KEYS, SUM, LAST = "a key a click", "no keys, sum", "no keys, last"
_WAYS = (KEYS, SUM, LAST)
_ACTIONS = ActionSet(names=("old", "new"))


def _clicks_sent_again(seed: int, run: int) -> tuple[list[Decision], list[Outcome]]:
    """Decisions of two versions, and every click as often as its client sent it, under its own number each time."""
    chance = generator(seed, "duplicates", run)
    arms = chance.integers(2, size=_DECISIONS)
    clicked = chance.random(_DECISIONS) < np.take(_RATES, arms)
    sent = chance.geometric(1 - np.take(_LOST, arms))
    decisions = [
        Decision(
            id=f"d{number}", tenant="shop", unit=f"u{number}", at_s=float(number), context=np.zeros(0),
            actions=_ACTIONS, choice=Choice(action=int(arm), logp=math.log(0.5)), executed=int(arm),
            executed_logp=math.log(0.5), version=_ACTIONS.names[arm], source="gateway", seq=number,
        )
        for number, arm in enumerate(arms)
    ]  # fmt: skip
    clicks = [
        Outcome(decision_id=f"d{number}", tenant="shop", value=1.0, at_s=number + 1.0, source="clicks", seq=number)
        for number in np.flatnonzero(clicked).tolist()
        for _ in range(int(sent[number]))
    ]
    return decisions, clicks


def _means(records: Sequence[DecisionRecord], join: JoinConfig) -> tuple[float, float]:
    """Mean reward of the old version and of the new one."""
    view = build_view(list(records), as_of_s=2.0 * _DECISIONS, join=join)
    new = view.table.executed == 1
    return float(view.table.reward[~new].mean()), float(view.table.reward[new].mean())


def claims_of(errors: dict[str, Floats], preferred: dict[str, float]) -> list[BoundedClaim]:
    """Claims on errors of the old version's mean `[runs]`, and on the share of runs in which the new one looks
    better."""
    return [
        at_most("error of the mean, keys", abs(float(errors[KEYS].mean())), 0.01),
        at_least("error of the mean, no keys", float(errors[SUM].mean()), 0.07),
        at_least("share of runs that prefer the better version, keys", preferred[KEYS], 0.95),
        at_most("share of runs that prefer the better version, no keys", preferred[SUM], 0.1),
        at_least("share of runs that prefer the better version, last outcome of a decision", preferred[LAST], 0.95),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    means: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for number in range(8 if quick else 60):
        decisions, clicks = _clicks_sent_again(seed, number)
        apart = [replace(click, seq=place) for place, click in enumerate(clicks)]
        means[KEYS].append(_means([*decisions, *clicks], JoinConfig(window_s=10.0)))
        means[SUM].append(_means([*decisions, *apart], JoinConfig(window_s=10.0)))
        means[LAST].append(_means([*decisions, *apart], JoinConfig(window_s=10.0, rule="last")))
    old = {way: np.array([pair[0] for pair in pairs]) for way, pairs in means.items()}
    new = {way: np.array([pair[1] for pair in pairs]) for way, pairs in means.items()}
    preferred = {way: float(np.mean(new[way] > old[way])) for way in _WAYS}
    return ExperimentResult(
        header=("way", "mean of the old version", "mean of the new version", "prefers the better version"),
        rows=[(way, f"{old[way].mean():.3f}", f"{new[way].mean():.3f}", f"{preferred[way]:.0%}") for way in _WAYS],
        panels=[bar_plot(f"estimated reward of the old version, in truth {_RATES[0]:.2f}", old)],
        verdict=(
            f"Clients send a click again when its acknowledgement is lost: {_LOST[0]:.0%} of the old version's, "
            f"{_LOST[1]:.0%} of the new one's. Added up without keys, the worse version seems to have "
            f"{old[SUM].mean():.3f} in place of {_RATES[0]:.2f}, and the better one is preferred in "
            f"{preferred[SUM]:.0%} of the runs; with one key a click, in {preferred[KEYS]:.0%}. To count the last "
            f"outcome alone helps here ({preferred[LAST]:.0%}), where a decision has one click at most."
        ),
        claims=claims_of({way: values - _RATES[0] for way, values in old.items()}, preferred),
        figures={"true reward": _RATES[0]},
    )


EXPERIMENT = Experiment(
    title="Duplicates without keys",
    question="What do rewards do that arrive more than once?",
    run=_run,
    source="Helland, 2012",
)
