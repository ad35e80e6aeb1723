"""Drift with and without recall: two regimes by turns, served by one version, by a learner, and under a monitor."""

from collections.abc import Mapping

import numpy as np

from hone.core.decisions import Floats
from hone.decide.monitor.config import MonitorConfig
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes
from hone.lab.drifting_service import serve_continually, serve_plainly
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot

_REGIMES = (0, 1, 0, 1, 0)
_PHASE = 1800
"""Rounds of each regime."""
_BLOCK = 100
FROZEN, LEARNER, ANEW, RECALL = "one version", "a learner", "starting anew", "recall"
_WITHIN = 300


def claims_of(shares: Mapping[str, Floats], early: Mapping[str, float], recalled: float) -> list[BoundedClaim]:
    """Claims on the shares of the best arm `[runs]`, on those after a return, and on the returns recalled."""
    mean = {name: float(values.mean()) for name, values in shares.items()}
    return [
        at_most("share of the best of one version", mean[FROZEN], 0.85),
        at_least("gain of starting anew over a learner", mean[ANEW] - mean[LEARNER], 0.01),
        at_least("gain of recall over starting anew, after a return", early[RECALL] - early[ANEW], 0.01),
        at_least("share of the returns that are recalled", recalled, 0.5),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    rounds = _PHASE * len(_REGIMES)
    phases = abrupt_changes(rounds, _REGIMES)
    worlds = [
        DriftingArms(rounds=rounds, phases=phases, seed=1000 * seed + run, arms=10, features=10, spread=3.0)
        for run in range(1 if quick else 6)
    ]
    served = [
        {
            FROZEN: serve_plainly(world, freeze=_PHASE),
            LEARNER: serve_plainly(world),
            ANEW: serve_continually(world, MonitorConfig()),
            RECALL: serve_continually(world, MonitorConfig(act="recall")),
        }
        for world in worlds
    ]
    names = (FROZEN, LEARNER, ANEW, RECALL)
    shares = {name: np.array([one[name].share for one in served]) for name in names}
    paths = {name: np.array([one[name].shares.reshape(-1, _BLOCK).mean(axis=1) for one in served]) for name in names}
    returns = [_PHASE * place // _BLOCK + np.arange(600 // _BLOCK) for place in range(2, len(_REGIMES))]
    early = {name: float(path[:, np.concatenate(returns)].mean()) for name, path in paths.items()}
    count = 0  # of returns of a regime that a recall answers
    for one, world in zip(served, worlds, strict=True):
        learner = one[RECALL].learner
        assert learner is not None
        recalls = [action.evidence.at_s for action in learner.actions if action.kind == "recall"]
        count += sum(any(phase.start < at <= phase.start + _WITHIN for at in recalls) for phase in world.phases[2:])
    recalled = count / (len(worlds) * (len(_REGIMES) - 2))
    return ExperimentResult(
        header=("service", "share of the best", "worst run", "600 rounds after a return"),
        rows=[
            (name, f"{shares[name].mean():.3f}", f"{shares[name].min():.3f}", f"{early[name]:.3f}") for name in names
        ],
        panels=[
            line_plot(
                "share of the best arm's reward", "round", _BLOCK * np.arange(1, 1 + paths[RECALL].shape[1]),
                {name: paths[name].mean(axis=0) for name in names},
            )
        ],
        verdict=(
            f"Two regimes take turns of {_PHASE} rounds. The first version served on has {shares[FROZEN].mean():.1%} "
            f"of the best reward, a learner without a monitor {shares[LEARNER].mean():.1%}, one that starts anew at "
            f"each alarm {shares[ANEW].mean():.1%}, and one that recalls {shares[RECALL].mean():.1%}. {recalled:.0%} "
            f"of the returns are recalled within {_WITHIN} rounds; in the 600 rounds after a return, recall has "
            f"{early[RECALL]:.1%}, starting anew {early[ANEW]:.1%}."
        ),
        claims=claims_of(shares, early, recalled),
        figures={"returns recalled": recalled},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Drift, with and without recall",
    question="Regimes come back: is it worth to keep old versions, or is it enough to learn anew?",
    run=_run,
    source="Gama et al., A survey on concept drift adaptation, 2014",
)
