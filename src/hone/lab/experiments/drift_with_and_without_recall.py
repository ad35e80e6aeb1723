"""Drift with and without recall: two regimes by turns, served by one version, by a learner, and under a monitor."""

from collections.abc import Mapping

import numpy as np

from hone.core.decisions import Floats
from hone.decide.monitor.config import MonitorConfig
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes
from hone.lab.drifting_service import ServedRun, serve_continually, serve_plainly
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot

REGIMES = (0, 1, 0, 1, 0)
PHASE = 1800
"""Rounds of each regime."""
BLOCK = 100
FROZEN, LEARNER, ANEW, RECALL = "one version", "a learner", "starting anew", "recall"
WITHIN = 300


def drifting_world(seed: int, run: int) -> DriftingArms:
    """Ten arms, ten features, and two regimes by turns."""
    rounds = PHASE * len(REGIMES)
    return DriftingArms(
        rounds=rounds, phases=abrupt_changes(rounds, REGIMES), seed=1000 * seed + run, arms=10, features=10, spread=3.0
    )


def serve_each_way(world: DriftingArms) -> dict[str, ServedRun]:
    """The same rounds served in four ways."""
    return {
        FROZEN: serve_plainly(world, freeze=PHASE),
        LEARNER: serve_plainly(world),
        ANEW: serve_continually(world, MonitorConfig()),
        RECALL: serve_continually(world, MonitorConfig(act="recall")),
    }


def recalled_returns(run: ServedRun, world: DriftingArms) -> int:
    """Returns of a regime that are answered by a recall within 300 rounds."""
    assert run.learner is not None
    recalls = [action.evidence.at_s for action in run.learner.actions if action.kind == "recall"]
    return sum(any(phase.start < at <= phase.start + WITHIN for at in recalls) for phase in world.phases[2:])


def claims_of(shares: Mapping[str, Floats], early: Mapping[str, float], recalled: float) -> list[BoundedClaim]:
    """Claims on the shares of the best arm `[runs]`, on those after a return, and on the returns recalled."""
    mean = {name: float(values.mean()) for name, values in shares.items()}
    return [
        at_most("share of the best of one version", mean[FROZEN], 0.85),
        at_least("gain of starting anew over a learner", mean[ANEW] - mean[LEARNER], 0.01),
        at_least("gain of recall over starting anew, after a return", early[RECALL] - early[ANEW], 0.01),
        at_least("share of the returns that are recalled", recalled, 0.5),
    ]


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    worlds = [drifting_world(seed, run) for run in range(1 if quick else 6)]
    served = [serve_each_way(world) for world in worlds]
    names = (FROZEN, LEARNER, ANEW, RECALL)
    shares = {name: np.array([one[name].share for one in served]) for name in names}
    paths = {name: np.array([one[name].shares.reshape(-1, BLOCK).mean(axis=1) for one in served]) for name in names}
    returns = [PHASE * place // BLOCK + np.arange(600 // BLOCK) for place in range(2, len(REGIMES))]
    early = {name: float(path[:, np.concatenate(returns)].mean()) for name, path in paths.items()}
    count = sum(recalled_returns(one[RECALL], world) for one, world in zip(served, worlds, strict=True))
    recalled = count / (len(worlds) * (len(REGIMES) - 2))
    return ExperimentResult(
        header=("service", "share of the best", "worst run", "600 rounds after a return"),
        rows=[
            (name, f"{shares[name].mean():.3f}", f"{shares[name].min():.3f}", f"{early[name]:.3f}") for name in names
        ],
        panels=[line_plot("share of the best arm's reward", "round", BLOCK * np.arange(1, 1 + paths[RECALL].shape[1]), {
            name: paths[name].mean(axis=0) for name in names
        })],
        verdict=(
            f"Two regimes take turns of {PHASE} rounds. The first version served on has {shares[FROZEN].mean():.1%} of "
            f"the best reward, a learner without a monitor {shares[LEARNER].mean():.1%}, one that starts anew at each "
            f"alarm {shares[ANEW].mean():.1%}, and one that recalls {shares[RECALL].mean():.1%}. {recalled:.0%} of the "
            f"returns are recalled within {WITHIN} rounds; in the 600 rounds after a return, recall has "
            f"{early[RECALL]:.1%}, starting anew {early[ANEW]:.1%}."
        ),
        claims=claims_of(shares, early, recalled),
        figures={"returns recalled": recalled},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Drift, with and without recall",
    question="Regimes come back: is it worth to keep old versions, or is it enough to learn anew?",
    run=run,
    source="Gama et al., A survey on concept drift adaptation, 2014",
)
