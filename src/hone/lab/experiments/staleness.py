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


OBJECTIVES: dict[str, Objective] = {"clipped": with_clip, "ratio, no clip": without_clip, "as if fresh": without_ratio}


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
        at_most(f"solved with answers {delays[-1]} versions old over fresh, as if fresh", share["as if fresh"], 0.75),
        at_least("the same, clipped", share["clipped"], 0.75),
        at_least("the same, ratio without clip", share["ratio, no clip"], 0.9),
        at_least(f"clipped, {delays[little]} versions old over fresh", solved["clipped"][little] / fresh, 0.9),
    ]
    return ExperimentResult(
        header=("objective", *(f"k = {delay}" for delay in delays)),
        rows=[(name, *(f"{value:.1%}" for value in values)) for name, values in solved.items()],
        panels=[line_plot(f"additions solved after {steps} steps", "age of the answers, versions", delays, solved)],
        verdict=(
            f"Answers {delays[-1]} versions old, learned from as if they were fresh, bring "
            f"{solved['as if fresh'][-1]:.0%} solved instead of {fresh:.0%}; the clipped ratio against "
            f"the behaviour policy keeps {solved['clipped'][-1]:.0%} "
            f"({solved['clipped'][little]:.0%} at {delays[little]}), "
            f"because the clip throws more and more away, and the bare ratio {solved['ratio, no clip'][-1]:.0%}, "
            "which two-token answers can afford."
        ),
        claims=claims,
    )


EXPERIMENT = Experiment(
    title="Staleness",
    question="How much does reward suffer when answers are k versions old, clipped and not?",
    run=run,
    source="AReaL, 2025",
)
