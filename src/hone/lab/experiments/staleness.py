"""Staleness: versions that the behaviour policy may be behind the learner, with and without a clip."""

import numpy as np

from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.lab.training import Objective, PuzzleTraining, train_seeds
from hone.objectives.policy import clipped_surrogate, importance_weighted, reinforce_loss

_DELAYS = (0, 2, 4, 8, 16)
_RATE = 0.003


_OBJECTIVES: dict[str, Objective] = {
    "clipped": lambda policy, batch: clipped_surrogate(batch.logp(policy), batch.behaviour_logp, batch.advantage),
    "ratio, no clip": lambda policy, batch: importance_weighted(
        batch.logp(policy), batch.behaviour_logp, batch.advantage
    ),
    "ratio ignored": lambda policy, batch: reinforce_loss(batch.logp(policy), batch.advantage),
}


def claims_of(solved: dict[str, list[float]], clipped: list[float], delays: tuple[int, ...]) -> list[BoundedClaim]:
    """Claims on the share solved by each objective, and on the share of clipped tokens, at each of `delays`."""
    fresh, little = solved["clipped"][0], delays.index(2)
    oldest = f"{delays[-1]} versions old over fresh"
    return [
        at_most(f"solved with answers {oldest}, ratio ignored", solved["ratio ignored"][-1] / fresh, 0.75),
        at_least("the same, clipped", solved["clipped"][-1] / fresh, 0.75),
        at_least("the same, ratio without clip", solved["ratio, no clip"][-1] / fresh, 0.9),
        at_least(f"clipped, {delays[little]} versions old over fresh", solved["clipped"][little] / fresh, 0.9),
        at_least(
            f"share of clipped tokens, {oldest.removesuffix(' over fresh')} minus fresh", clipped[-1] - clipped[0], 0.02
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, delays = (40, 1, (0, 2, 16)) if quick else (60, 3, _DELAYS)
    ends: dict[str, Floats] = {name: np.empty((runs, len(delays))) for name in _OBJECTIVES}
    clipped: list[float] = []
    for name, objective in _OBJECTIVES.items():
        for k, delay in enumerate(delays):
            plan = PuzzleTraining(objective=objective, steps=steps, learning_rate=_RATE, delay=delay)
            curves = train_seeds(plan, seed=seed, runs=runs)
            ends[name][:, k] = curves["solved"][:, -1]
            if name == "clipped":
                clipped.append(float(curves["policy/clip_fraction"].mean()))
    solved = {name: each.mean(axis=0).tolist() for name, each in ends.items()}
    little = delays.index(2)
    return ExperimentResult(
        header=("objective", *(f"k = {delay}" for delay in delays)),
        rows=[
            *((name, *(f"{value:.1%}" for value in values)) for name, values in solved.items()),
            ("clipped tokens", *(f"{value:.1%}" for value in clipped)),
        ],
        panels=[line_plot(f"additions solved after {steps} steps", "age of the answers, versions", delays, ends)],
        verdict=(
            f"Answers {delays[-1]} versions old bring {solved['ratio ignored'][-1]:.0%} solved instead of "
            f"{solved['clipped'][0]:.0%} if the ratio is ignored. The clipped ratio against the behaviour policy keeps "
            f"{solved['clipped'][-1]:.0%} ({solved['clipped'][little]:.0%} at {delays[little]}), and clips "
            f"{clipped[-1]:.1%} of the tokens instead of {clipped[0]:.1%}; the unclipped ratio keeps "
            f"{solved['ratio, no clip'][-1]:.0%}, on answers of two tokens."
        ),
        claims=claims_of(solved, clipped, delays),
    )


EXPERIMENT = Experiment(
    title="Staleness",
    question="How much reward is lost when answers are k versions old, with and without a clip?",
    run=_run,
    source="AReaL, 2025",
)
