"""Staleness: versions that the behaviour policy may be behind the learner, with and without a clip."""

from torch import nn

from hone.lab.finding import Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.training import Objective, PuzzleBatch, PuzzleTraining, final_accuracy, train_seeds
from hone.objectives.policy import clipped_surrogate, importance_weighted, reinforce_loss
from hone.objectives.terms import LossTerms

DELAYS = (0, 2, 4, 8, 16)
RATE = 0.003


def with_clip(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
    """The ratio is against the behaviour policy."""
    return clipped_surrogate(batch.logp(policy), batch.behaviour_logp, batch.advantage)


def without_clip(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
    """The surrogate without clipping."""
    return importance_weighted(batch.logp(policy), batch.behaviour_logp, batch.advantage)


def without_ratio(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
    """The policy gradient without a ratio."""
    return reinforce_loss(batch.logp(policy), batch.advantage)


OBJECTIVES: dict[str, Objective] = {
    "clipped": with_clip,
    "ratio, no clip": without_clip,
    "ratio ignored": without_ratio,
}


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    steps, runs, delays = (40, 1, (0, 2, 16)) if quick else (60, 2, DELAYS)
    solved: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    for name, objective in OBJECTIVES.items():
        for delay in delays:
            plan = PuzzleTraining(objective=objective, steps=steps, learning_rate=RATE, delay=delay)
            solved[name].append(final_accuracy(train_seeds(plan, seed=seed, runs=runs)))
    fresh = solved["clipped"][0]
    share = {name: solved[name][-1] / fresh for name in OBJECTIVES}
    little = delays.index(2)
    claims = [
        at_most(
            f"solved with answers {delays[-1]} versions old over fresh, ratio ignored", share["ratio ignored"], 0.75
        ),
        at_least("the same, clipped", share["clipped"], 0.75),
        at_least("the same, ratio without clip", share["ratio, no clip"], 0.9),
        at_least(f"clipped, {delays[little]} versions old over fresh", solved["clipped"][little] / fresh, 0.9),
    ]
    return ExperimentResult(
        header=("objective", *(f"k = {delay}" for delay in delays)),
        rows=[(name, *(f"{value:.1%}" for value in values)) for name, values in solved.items()],
        panels=[line_plot(f"additions solved after {steps} steps", "age of the answers, versions", delays, solved)],
        verdict=(
            f"Answers {delays[-1]} versions old bring {solved['ratio ignored'][-1]:.0%} solved instead of {fresh:.0%} "
            "if the ratio is ignored. The clipped ratio against the behaviour policy keeps "
            f"{solved['clipped'][-1]:.0%} ({solved['clipped'][little]:.0%} at {delays[little]}), because the clip "
            f"discards more and more tokens; the unclipped ratio keeps {solved['ratio, no clip'][-1]:.0%}, on answers "
            "of two tokens."
        ),
        claims=claims,
    )


EXPERIMENT = Experiment(
    title="Staleness",
    question="How much reward is lost when answers are k versions old, with and without a clip?",
    run=run,
    source="AReaL, 2025",
)
