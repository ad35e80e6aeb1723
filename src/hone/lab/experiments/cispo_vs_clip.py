"""CISPO against PPO's clip: decisions that still have a gradient after the policy has moved."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from hone.lab.exact import gradient
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    at_least,
    at_most,
    line_plot,
    plot_by_step,
)
from hone.lab.puzzles import Floats
from hone.lab.training import Objective, PuzzleBatch, PuzzleTraining, final_accuracy, train_seeds
from hone.objectives.policy import cispo, clipped_surrogate
from hone.objectives.terms import LossTerms

_RARE = 0.5
"""Tokens with a lower probability count as unlikely."""


def _with_silenced_shares(policy: nn.Module, batch: PuzzleBatch, *, loss: Callable[..., LossTerms]) -> LossTerms:
    """The loss, with the share of unlikely and likely tokens with A > 0 that have no gradient (numerators and
    denominators): the gradient of each token's loss is measured.
    """
    now = batch.logp(policy)
    terms = loss(now, batch.old_logp, batch.advantage)
    (slope,) = torch.autograd.grad(terms.loss.sum(), now, retain_graph=True)
    silent = (slope == 0).float()
    praised = (batch.advantage > 0).float()
    rare = praised * (batch.old_logp.exp() < _RARE)
    common = praised - rare

    def compute_metrics() -> dict[str, Tensor]:
        return {
            **terms.metrics,
            "lab/rare": rare,
            "lab/rare_silent": rare * silent,
            "lab/common": common,
            "lab/common_silent": common * silent,
        }

    return LossTerms(loss=terms.loss, compute_metrics=compute_metrics)


_LOSSES: dict[str, Callable[..., LossTerms]] = {"clipped at 0.2": clipped_surrogate, "CISPO, cap 5": cispo}
_OBJECTIVES: dict[str, Objective] = {name: partial(_with_silenced_shares, loss=loss) for name, loss in _LOSSES.items()}


def _gradient_multipliers(advantage: float, ratios: Tensor) -> dict[str, list[float]]:
    """Factor on A * grad log p at each ratio `[R]`: 1 is the plain policy gradient."""
    then, credit = torch.zeros_like(ratios), torch.full_like(ratios, advantage)
    result: dict[str, list[float]] = {}
    for name, loss in _LOSSES.items():
        now = ratios.log().requires_grad_(True)
        result[name] = (-gradient(loss(now, then, credit).loss.sum(), now) / credit).tolist()
    return result


def claims_of(
    praised: dict[str, list[float]], beyond: range, silent: dict[str, tuple[float, float]]
) -> list[BoundedClaim]:
    """Claims on the gradients of praised tokens at the ratios number `beyond` the clip, and on the shares of unlikely
    and of likely tokens without gradient.
    """
    clip, capped = _OBJECTIVES
    return [
        at_most("gradient beyond the clip, positive advantage", max(abs(praised[clip][k]) for k in beyond), 1e-6),
        at_least(
            "least gradient beyond the clip under CISPO, positive advantage",
            min(praised[capped][k] for k in beyond),
            1.0,
        ),
        at_least("share of unlikely tokens without gradient, clip", silent[clip][0], 0.1),
        at_most(
            "likely over unlikely tokens without gradient, clip", silent[clip][1] / max(silent[clip][0], 1e-6), 0.6
        ),
        at_most("share of unlikely tokens without gradient, CISPO", silent[capped][0], 0.01),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs = (15, 1) if quick else (40, 3)
    result = {
        name: train_seeds(
            PuzzleTraining(objective=objective, steps=steps, epochs=4, learning_rate=0.004), seed=seed, runs=runs
        )
        for name, objective in _OBJECTIVES.items()
    }
    clip, capped = _OBJECTIVES
    silent = {name: (_silent_share(each, "rare"), _silent_share(each, "common")) for name, each in result.items()}
    solved = {name: final_accuracy(each) for name, each in result.items()}
    ratios = torch.linspace(0.05, 8, 160)
    praised, blamed = _gradient_multipliers(1.0, ratios), _gradient_multipliers(-1.0, ratios)
    beyond = range(int((ratios <= 1.25).sum()), len(ratios))
    return ExperimentResult(
        header=("objective", "unlikely tokens without gradient", "likely tokens without gradient", "solved"),
        rows=[
            (name, f"{silent[name][0]:.1%}", f"{silent[name][1]:.1%}", f"{solved[name]:.1%}") for name in _OBJECTIVES
        ],
        panels=[
            line_plot("factor of the gradient, positive advantage", "ratio", ratios.tolist(), praised),
            line_plot("factor of the gradient, negative advantage", "ratio", ratios.tolist(), blamed),
            plot_by_step("additions solved", {name: each["solved"] for name, each in result.items()}),
        ],
        verdict=(
            f"Among tokens with positive advantage in the last of four passes, the clip leaves {silent[clip][0]:.0%} "
            f"of the unlikely ones (probability below {_RARE}) and {silent[clip][1]:.0%} of the likely ones without "
            f"gradient, CISPO {silent[capped][0]:.0%} and {silent[capped][1]:.0%}. On additions the clip ends at "
            f"{solved[clip]:.1%} solved and CISPO at {solved[capped]:.1%}."
        ),
        claims=claims_of(praised, beyond, silent),
        figures={"solved_clip": solved[clip], "solved_cispo": solved[capped]},
    )


def _silent_share(curves: dict[str, Floats], kind: str) -> float:
    """Share of the tokens of a kind without gradient, over all runs and steps."""
    return float(curves[f"lab/{kind}_silent"].sum() / curves[f"lab/{kind}"].sum())


EXPERIMENT = Experiment(
    title="CISPO against the clip",
    question="Which tokens still get a gradient once the policy has moved?",
    run=_run,
    source="MiniMax-M1, 2025",
)
