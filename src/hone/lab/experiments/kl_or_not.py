"""With and without a KL term: reward on the training questions, and drift on the others."""

from functools import partial

import numpy as np
from torch import nn

from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.policies import answer_paths, frozen_copy, kl_between, pretrained_network, puzzle_metrics
from hone.lab.puzzles import Floats, Puzzle, addition
from hone.lab.training import PuzzleBatch, PuzzleTraining, train_policy
from hone.objectives.kl import KlLossEstimator, kl_loss_estimator, kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms, add_terms
from hone.run.report.html import format_number

_WEIGHTS = (0.0, 0.1, 0.3)


def _split_questions(puzzle: Puzzle) -> tuple[Puzzle, Puzzle]:
    """Training questions, and held-out questions."""
    even = np.arange(len(puzzle.questions)) % 2 == 0
    parts = [
        Puzzle(questions=puzzle.questions[rows], answers=puzzle.answers[rows], vocab_size=puzzle.vocab_size)
        for rows in (even, ~even)
    ]
    return parts[0], parts[1]


def _objective(
    policy: nn.Module, batch: PuzzleBatch, *, reference: nn.Module, weight: float, distance: KlLossEstimator
) -> LossTerms:
    """Clipped surrogate, plus a KL penalty of `weight`."""
    now = batch.logp(policy)
    terms = clipped_surrogate(now, batch.old_logp, batch.advantage)
    if weight == 0:
        return terms
    return add_terms(terms, kl_penalty(now, batch.logp(reference), batch.old_logp, estimator=distance), weight=weight)


def _train_half(weight: float, *, seed: int, steps: int) -> tuple[nn.Module, Floats]:
    """A policy trained on half of the additions, and KL(policy || reference) on the others after each step."""
    trained, left = _split_questions(addition())
    policy = pretrained_network(addition(), seed=seed)
    reference, elsewhere = frozen_copy(policy), answer_paths(left)[0]
    plan = PuzzleTraining(
        puzzle=trained,
        objective=partial(_objective, reference=reference, weight=weight, distance=kl_loss_estimator("k3")),
        steps=steps,
        prompts=18,
        samples=16,
    )
    metrics = train_policy(policy, plan, seed=seed, watch=lambda now: {"drift": kl_between(now, reference, elsewhere)})
    return policy, metrics["drift"]


def claims_of(
    far: dict[float, float], tight: float, free: float, here: dict[float, float], there: dict[float, float]
) -> list[BoundedClaim]:
    """Claims on the drift, and the solved questions `here` (trained) and `there` (others), by weight of the KL term."""
    return [
        at_most("drift on other questions, with the KL term over without", far[tight] / far[free], 0.7),
        at_most("solved without the KL term minus with it", here[free] - here[tight], 0.1),
        at_least("other questions solved, with the KL term over without", there[tight] / there[free], 1.05),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, weights = (40, 1, (0.0, 0.3)) if quick else (80, 2, _WEIGHTS)
    whole = addition()
    trained, left = _split_questions(whole)
    before = float(
        np.mean([puzzle_metrics(pretrained_network(whole, seed=10 * seed + k), left)["solved"] for k in range(runs)])
    )
    solved: dict[float, list[float]] = {weight: [] for weight in weights}
    kept: dict[float, list[float]] = {weight: [] for weight in weights}
    drift: dict[float, list[np.ndarray]] = {weight: [] for weight in weights}
    for weight in weights:
        for run_seed in range(10 * seed, 10 * seed + runs):
            policy, path = _train_half(weight, seed=run_seed, steps=steps)
            drift[weight].append(path)
            solved[weight].append(puzzle_metrics(policy, trained)["solved"])
            kept[weight].append(puzzle_metrics(policy, left)["solved"])
    free, tight = weights[0], weights[-1]
    far = {weight: float(np.mean([path[-1] for path in paths])) for weight, paths in drift.items()}
    here = {weight: float(np.mean(values)) for weight, values in solved.items()}
    there = {weight: float(np.mean(values)) for weight, values in kept.items()}
    return ExperimentResult(
        header=("weight of KL", "training questions solved", "other questions solved", "drift on those, nats"),
        rows=[(format_number(w), f"{here[w]:.1%}", f"{there[w]:.1%}", format_number(far[w])) for w in weights],
        panels=[
            plot_by_step(
                "KL(policy || reference) on other questions, nats",
                {f"weight {w}" if w else "no KL term": np.stack(paths) for w, paths in drift.items()},
            )
        ],
        verdict=(
            f"A KL term of weight {tight} reduces the drift on questions outside the training set from {far[free]:.2f} "
            f"to {far[tight]:.2f} nats. {there[tight]:.0%} of them remain solved instead of {there[free]:.0%} "
            f"({before:.0%} before training), at {here[tight]:.1%} against {here[free]:.1%} on the training questions."
        ),
        claims=claims_of(far, tight, free, here, there),
    )


EXPERIMENT = Experiment(
    title="With and without a KL term",
    question="How much drift does GRPO's KL term prevent, and at which cost?",
    run=_run,
    source="Shao et al., 2024; Yu et al., 2025 (DAPO drops it)",
)
