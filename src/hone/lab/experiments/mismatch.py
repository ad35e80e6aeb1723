"""Mismatch of engine and trainer: tokens are sampled by a noisy copy of the policy. None, TIS, MIS and IcePop."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from hone.core.random import generator
from hone.lab.exact import gradient
from hone.lab.finding import BarPlot, BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.puzzles import Floats
from hone.lab.training import Objective, PuzzleBatch, PuzzleTraining, final_accuracy, train_seeds
from hone.objectives.mismatch import icepop, masked_is, truncated_is, with_mismatch_correction
from hone.objectives.policy import clipped_surrogate, reinforce_loss
from hone.objectives.terms import LossTerms
from hone.run.report.html import format_number

_TOKENS, _NOISE = 12, 1.5
"""Standard deviation of the engine's error on each logit, in nats: far above that of a real engine."""
_CorrectionWeight = Callable[[Tensor, Tensor], Tensor]


CORRECTIONS: dict[str, _CorrectionWeight] = {
    "none": lambda proximal, acted: torch.ones_like(proximal - acted),  # the engine's tokens count as the trainer's
    "truncated (TIS)": truncated_is,
    "masked (MIS)": masked_is,
    "IcePop": icepop,
}


def _gradient_errors(seed: int, *, cases: int) -> dict[str, tuple[float, float]]:
    """Squared bias and variance of each correction's expected gradient, relative to the true one's square.

    Exact for each of `cases` random policies, engines and rewards, and summed over them.
    """
    result: dict[str, list[tuple[float, float]]] = {name: [] for name in CORRECTIONS}
    size = 0.0
    for case in range(cases):
        draws = generator(seed, "lab/mismatch", case)
        logits = torch.from_numpy(1.5 * draws.standard_normal(_TOKENS)).requires_grad_(True)
        now = torch.log_softmax(logits, dim=0)
        acted = torch.log_softmax(logits.detach() + _NOISE * torch.from_numpy(draws.standard_normal(_TOKENS)), dim=0)
        reward = torch.from_numpy((draws.random(_TOKENS) < 0.3).astype(np.float64))
        advantage = reward - (acted.exp() * reward).sum()
        true = gradient((now.detach().exp() * reinforce_loss(now, advantage).loss).sum(), logits)
        slopes = torch.eye(_TOKENS, dtype=torch.float64) - now.detach().exp()
        for name, weigh in CORRECTIONS.items():
            each = -(weigh(now.detach(), acted) * advantage)[:, None] * slopes
            mean = (acted.exp()[:, None] * each).sum(dim=0)
            spread = (acted.exp() * ((each - mean) ** 2).sum(dim=1)).sum()
            result[name].append((float((mean - true) @ (mean - true)), float(spread)))
        size += float(true @ true)
    return {name: (sum(b for b, _ in x) / size, sum(v for _, v in x) / size) for name, x in result.items()}


def _noisy_engine(logits: Tensor, seen: Tensor, step: int) -> Tensor:
    """The trainer's logits with a random error per step, the same for equal observations."""
    draws = generator(step, "lab/engine", int(seen[0, -2]))
    error = torch.from_numpy(draws.standard_normal(logits.shape, dtype=np.float32))
    return logits + _NOISE * error


def _objective_with(weigh: _CorrectionWeight) -> Objective:
    """Loss with the given correction weight."""

    def objective(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
        terms = clipped_surrogate(batch.logp(policy), batch.old_logp, batch.advantage)
        return with_mismatch_correction(terms, weigh(batch.old_logp, batch.behaviour_logp))

    return objective


def _train_corrected(seed: int, *, steps: int, runs: int) -> dict[str, dict[str, Floats]]:
    """Curves of a training under each correction, with answers drawn by the noisy engine."""
    result: dict[str, dict[str, Floats]] = {}
    for name, weigh in CORRECTIONS.items():
        plan = PuzzleTraining(
            objective=_objective_with(weigh), steps=steps, learning_rate=0.003, minibatches=2, distort=_noisy_engine
        )
        result[name] = train_seeds(plan, seed=seed, runs=runs)
    return result


def claims_of(errors: dict[str, tuple[float, float]]) -> list[BoundedClaim]:
    """Claims on the squared bias and the variance of the gradient, by correction."""
    plain, tis, mis, pop = CORRECTIONS
    return [
        at_least("squared bias, none over TIS", errors[plain][0] / errors[tis][0], 1.8),
        at_least("squared bias, none over IcePop", errors[plain][0] / errors[pop][0], 1.3),
        at_most("variance, MIS over none", errors[mis][1] / errors[plain][1], 0.95),
        at_least("variance, IcePop over none", errors[pop][1] / errors[plain][1], 1.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, cases = (20, 1, 40) if quick else (60, 2, 300)
    errors = _gradient_errors(seed, cases=cases)
    result = _train_corrected(seed, steps=steps, runs=runs)
    solved = {name: final_accuracy(each) for name, each in result.items()}
    plain, tis, mis, pop = CORRECTIONS
    return ExperimentResult(
        header=("correction", "squared bias of the gradient", "its variance", "solved in training"),
        rows=[
            (name, format_number(errors[name][0]), format_number(errors[name][1]), f"{solved[name]:.1%}")
            for name in CORRECTIONS
        ],
        panels=[
            BarPlot(
                title="squared bias of the expected gradient, share of its squared norm",
                labels=list(errors),
                values=[bias for bias, _ in errors.values()],
            ),
            plot_by_step(
                "additions solved, sampled by the noisy engine",
                {name: each["solved"] for name, each in result.items()},
            ),
        ],
        verdict=(
            f"With engine logits off by {_NOISE} nats, the squared bias of the expected gradient is "
            f"{errors[plain][0]:.2f} of its squared norm without a correction, {errors[tis][0]:.2f} with truncated, "
            f"{errors[mis][0]:.2f} with masked and {errors[pop][0]:.2f} with IcePop weights. Answers of two tokens are "
            f"learned nevertheless ({solved[plain]:.0%}, {solved[tis]:.0%}, {solved[mis]:.0%} and {solved[pop]:.0%} "
            "solved)."
        ),
        claims=claims_of(errors),
    )


EXPERIMENT = Experiment(
    title="Engine and trainer disagree",
    question="How much bias do truncated, masked and IcePop weights remove when the engine's probabilities are wrong?",
    run=_run,
    source="Yao et al., 2025 (TIS); Ant Group, 2025 (IcePop)",
)
