"""A loss summed over ranks once too often, so eight times too large: settings that hide it and settings that do not."""

from functools import partial

import torch
from torch import nn

from hone.lab.finding import BarPlot, BoundedClaim, Experiment, ExperimentResult, at_least, at_most
from hone.lab.policies import answer_paths, frozen_copy, kl_between, pretrained_network, puzzle_metrics
from hone.lab.puzzles import addition
from hone.lab.training import PuzzleBatch, PuzzleTraining, train_policy
from hone.objectives.kl import kl_loss_estimator, kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms, add_terms, scale_terms
from hone.objectives.weights import token_mean
from hone.run.report.html import format_number

_RANKS = 8.0
_PULL = 0.3
"""Weight of the KL term, if any."""
_NORM = 0.5
"""Gradient clipping norm, if any."""
CASES = ("Adam", "Adam, gradients clipped", "gradient descent", "Adam, the KL term reduced once")
_LABELS = ("Adam", "with clipped norm", "gradient descent", "KL term once")


def _objective(policy: nn.Module, batch: PuzzleBatch, *, reference: nn.Module, pull: float, times: float) -> LossTerms:
    """The clipped surrogate, `times` too large, and a KL term that is not."""
    now = batch.logp(policy)
    terms = scale_terms(clipped_surrogate(now, batch.old_logp, batch.advantage), torch.full_like(now.detach(), times))
    if not pull:
        return terms
    penalty = kl_penalty(now, batch.logp(reference), batch.old_logp, estimator=kl_loss_estimator("k3"))
    return add_terms(terms, penalty, weight=pull)


def _train_case(case: str, times: float, *, seed: int, steps: int) -> tuple[torch.Tensor, dict[str, float]]:
    """Distance of the weights from their start, and final accuracy, with the loss `times` too large."""
    puzzle = addition()
    policy = pretrained_network(puzzle, seed=seed)
    start = frozen_copy(policy)
    partly = case == CASES[3]
    plan = PuzzleTraining(
        puzzle=puzzle,
        objective=partial(_objective, reference=start, pull=_PULL if partly else 0.0, times=times if partly else 1.0),
        scheme=lambda lengths: (1.0 if partly else times) * token_mean(lengths),
        steps=steps,
        learning_rate=0.5 if case == CASES[2] else 0.003,
        max_grad_norm=_NORM if case == CASES[1] else None,
        gradient_descent=case == CASES[2],
    )
    metrics = train_policy(policy, plan, seed=seed)
    moved = [now.detach() - then for now, then in zip(policy.parameters(), start.parameters(), strict=True)]
    return torch.cat([piece.flatten() for piece in moved]), {
        "solved": puzzle_metrics(policy, puzzle)["solved"],
        "drift": kl_between(policy, start, answer_paths(puzzle)[0]),
        "shortened": float((metrics["policy/grad_norm"] > _NORM).mean()),
    }


def claims_of(
    apart: dict[str, float],
    wrong: dict[str, float],
    right: dict[str, float],
    ends: dict[str, tuple[dict[str, float], dict[str, float]]],
) -> list[BoundedClaim]:
    """Claims on the differences of the weights and the final figures (once, eight times), by case."""
    adam, cut, descent, partly = CASES
    return [
        at_most("weight difference, Adam", apart[adam], 0.05),
        at_least("weight difference, gradients clipped, over Adam", apart[cut] / apart[adam], 2.0),
        at_least("weight difference, gradient descent", apart[descent], 0.3),
        at_least("weight difference, KL term reduced once, over Adam", apart[partly] / apart[adam], 5.0),
        at_least("drift, KL term reduced once, over the correct loss", wrong["drift"] / right["drift"], 1.02),
        at_least(
            "share of clipped steps, eight times minus once", ends[cut][1]["shortened"] - ends[cut][0]["shortened"], 0.5
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps = 25 if quick else 60
    apart: dict[str, float] = {}
    ends: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for case in CASES:
        once, right = _train_case(case, 1.0, seed=seed, steps=steps)
        often, wrong = _train_case(case, _RANKS, seed=seed, steps=steps)
        apart[case] = float((often - once).norm() / once.norm())
        ends[case] = (right, wrong)
    adam, cut, descent, partly = CASES
    right, wrong = ends[partly]
    return ExperimentResult(
        header=("optimizer", "weight difference", "solved, once", "eight times", "drift, once", "eight times"),
        rows=[
            (
                case,
                f"{apart[case]:.1%}",
                *(f"{end['solved']:.1%}" for end in ends[case]),
                *(format_number(end["drift"]) for end in ends[case]),
            )
            for case in CASES
        ],
        panels=[
            BarPlot(
                title="difference of the trained weights, share of the distance trained",
                labels=_LABELS,
                values=[apart[case] for case in CASES],
            )
        ],
        verdict=(
            f"Adam hides a loss that is eight times too large: after {steps} steps the weights differ by "
            f"{apart[adam]:.1%} of the distance trained. Clipping gradients at {_NORM} reveals it ({apart[cut]:.1%}, "
            f"and {ends[cut][1]['shortened']:.0%} of the steps are clipped instead of "
            f"{ends[cut][0]['shortened']:.0%}). For gradient descent it is "
            f"another learning rate ({apart[descent]:.0%}). A KL term that is reduced only once counts an eighth "
            f"({apart[partly]:.0%}, drift {wrong['drift']:.3f} against {right['drift']:.3f} nats)."
        ),
        claims=claims_of(apart, wrong, right, ends),
    )


EXPERIMENT = Experiment(
    title="A loss that is reduced twice",
    question="Which settings hide a loss that is summed over eight ranks once too often?",
    run=_run,
)
