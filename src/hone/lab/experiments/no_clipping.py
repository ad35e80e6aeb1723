"""PPO's clip: its effect when a batch is reused, and the reason for taking the minimum of two terms."""

import torch

from hone.lab.exact import gradient
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.training import Objective, PuzzleTraining, clipped_objective, final_accuracy, train_seeds
from hone.objectives.policy import clipped_surrogate, importance_weighted
from hone.objectives.ratios import ratio
from hone.run.report.html import format_number

_WIDTH = 0.2
_EPOCHS, _RATE = 8, 0.004


_OBJECTIVES: dict[str, Objective] = {
    "clipped at 0.2": clipped_objective,
    "no clip": lambda policy, batch: importance_weighted(batch.logp(policy), batch.old_logp, batch.advantage),
}


def _surrogate_gradients(log_ratio: float, advantage: float) -> tuple[float, float]:
    """Gradient at a log-probability moved by `log_ratio`: of the clipped surrogate, and of the clipped term without the
    minimum, which is not a usable loss.
    """
    now = torch.tensor([log_ratio], requires_grad=True)
    then, credit = torch.zeros(1), torch.tensor([advantage])
    smaller = gradient(clipped_surrogate(now, then, credit, low=_WIDTH, high=_WIDTH).loss.sum(), now)
    bare = -credit * ratio(now, then).clamp(1 - _WIDTH, 1 + _WIDTH)
    return -float(smaller), -float(gradient(bare.sum(), now))


def claims_of(
    kl: dict[str, float], most: dict[str, float], last: dict[str, float], wrong_way: float, bare: float
) -> list[BoundedClaim]:
    """Claims on the figures of trainings by objective, and on two gradients of the surrogate."""
    kept, free = _OBJECTIVES
    return [
        at_least("KL of an update, no clip over clipped", kl[free] / kl[kept], 1.5),
        at_least("largest ratio, no clip over clipped", most[free] / most[kept], 1.0),
        at_least("questions solved, clipped minus no clip", last[kept] - last[free], -0.02),
        at_least("gradient of a bad token that became more likely, with the minimum", -wrong_way, 1.0),
        at_most("the same, clipped term alone", abs(bare), 1e-6),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs = (20, 1) if quick else (40, 3)
    result = {
        name: train_seeds(
            PuzzleTraining(objective=objective, steps=steps, epochs=_EPOCHS, learning_rate=_RATE, max_grad_norm=None),
            seed=seed,
            runs=runs,
        )
        for name, objective in _OBJECTIVES.items()
    }
    kept, free = _OBJECTIVES
    last = {name: final_accuracy(each) for name, each in result.items()}
    kl = {name: float(each["policy/kl_nats"].mean()) for name, each in result.items()}
    most = {name: float(each["policy/ratio_max"].max()) for name, each in result.items()}
    entropy = {name: float(each["entropy_nats"][:, steps // 2].mean()) for name, each in result.items()}
    wrong_way, bare = _surrogate_gradients(0.5, -1.0)
    return ExperimentResult(
        header=("objective", "solved", "KL of an update, nats", "largest ratio", "entropy half-way, nats"),
        rows=[(name, *map(format_number, (last[name], kl[name], most[name], entropy[name]))) for name in result],
        panels=[
            plot_by_step(title, {name: each[metric] for name, each in result.items()}, log_y=log)
            for title, metric, log in (
                ("share of additions solved", "solved", False),
                ("largest ratio of an update", "policy/ratio_max", True),
                ("entropy, nats", "entropy_nats", False),
            )
        ],
        verdict=(
            f"With {_EPOCHS} passes over each batch, an update without the clip moves the policy "
            f"{kl[free] / kl[kept]:.1f} times as far (ratios up to {most[free]:.0f} against {most[kept]:.1f}) and ends "
            f"at {last[free]:.1%} solved against {last[kept]:.1%}. Without the minimum, a token with negative "
            f"advantage that became 1.65 times as likely gets no gradient ({bare:.0f} against {wrong_way:.2f})."
        ),
        claims=claims_of(kl, most, last, wrong_way, bare),
    )


EXPERIMENT = Experiment(
    title="Without PPO's clip",
    question="How do ratios, entropy and reward change without the clip, and is the minimum needed?",
    run=_run,
    source="Schulman et al., 2017",
)
