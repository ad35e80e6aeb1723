"""k1, k2 and k3 as estimates and as losses: bias, variance, and direction of the gradient. Exact."""

import numpy as np
import torch
from torch import Tensor

from hone.core.random import generator
from hone.lab.exact import gradient, relative_distance
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, error_bound, line_plot
from hone.objectives.kl import k1, k2, k3, weighted_k3
from hone.objectives.policy import reinforce_loss

_TOKENS = 8
_VALUES = {"k1": k1, "k2": k2, "k3": k3}


def _policy_and_reference(seed: int, distance: float) -> tuple[Tensor, Tensor]:
    """Logits of a policy, and the log-probabilities of its reference, `distance` away. Both `[TOKENS]`, float64."""
    draws = generator(seed, "lab/kl")
    start = torch.from_numpy(draws.standard_normal(_TOKENS))
    move = torch.from_numpy(draws.standard_normal(_TOKENS))
    return (start + distance * move).requires_grad_(True), torch.log_softmax(start, dim=0)


def _value_errors(seed: int, distance: float) -> tuple[float, dict[str, tuple[float, float]]]:
    """KL(policy || reference), and of each estimator the bias and the standard deviation, as shares of it."""
    logits, reference = _policy_and_reference(seed, distance)
    now = torch.log_softmax(logits.detach(), dim=0)
    chance = now.exp()
    true = float((chance * (now - reference)).sum())
    result: dict[str, tuple[float, float]] = {}
    for name, estimator in _VALUES.items():
        value = estimator(now, reference)
        mean = float((chance * value).sum())
        spread = float((chance * (value - mean) ** 2).sum().sqrt())
        result[name] = (mean / true - 1, spread / true)
    return true, result


def _gradient_directions(seed: int, distance: float) -> dict[str, tuple[float, float, float]]:
    """Each estimator as a loss: size of its expected gradient relative to that of KL(policy || reference), and its
    relative distance to the gradients of KL(policy || reference) and KL(reference || policy).
    """
    logits, reference = _policy_and_reference(seed, distance)
    now = torch.log_softmax(logits, dim=0)
    chance = now.detach().exp()  # samples are data: no gradient through the sampling
    backward = gradient((now.exp() * (now - reference)).sum(), logits)
    now = torch.log_softmax(logits, dim=0)
    forward = gradient((reference.exp() * (reference - now)).sum(), logits)
    losses = {
        # hone's k1 has no gradient; differentiating it would equal log-probability with advantage -1
        "k1": lambda now: reinforce_loss(now, -torch.ones_like(now)).loss,
        "k2": lambda now: k2(now, reference),
        "k3": lambda now: k3(now, reference),
        "ratio * k3": lambda now: weighted_k3(now, reference, logp_old=now.detach()),
    }
    result: dict[str, tuple[float, float, float]] = {}
    for name, loss in losses.items():
        slope = gradient((chance * loss(torch.log_softmax(logits, dim=0))).sum(), logits)
        result[name] = (
            float(slope.norm() / backward.norm()),
            relative_distance(slope, backward),
            relative_distance(slope, forward),
        )
    return result


def claims_of(
    errors: list[tuple[float, dict[str, tuple[float, float]]]],
    near: dict[str, tuple[float, float]],
    slopes: dict[str, tuple[float, float, float]],
) -> list[BoundedClaim]:
    """Claims on the errors as estimates, those at a small KL, and the gradients as losses, by estimator."""
    return [
        at_most("largest bias of k3 as an estimate", max(abs(each["k3"][0]) for _, each in errors), 1e-9),
        at_least("largest bias of k2 as an estimate", max(abs(each["k2"][0]) for _, each in errors), 0.02),
        at_most("noise of k3 over k1 at a small KL", near["k3"][1] / near["k1"][1], 0.5),
        at_most("expected gradient of k1 as a loss", slopes["k1"][0], 1e-9),
        at_most("gradient of k2 as a loss, difference from KL(policy || reference)", slopes["k2"][1], 1e-9),
        at_most("gradient of k3 as a loss, difference from KL(reference || policy)", slopes["k3"][2], 1e-9),
        at_least("gradient of k3 as a loss, difference from KL(policy || reference)", slopes["k3"][1], 0.05),
        at_most(
            "gradient of ratio * k3 as a loss, difference from KL(policy || reference)", slopes["ratio * k3"][1], 1e-9
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    distances = np.array([0.1, 0.3, 1.0, 2.0]) if quick else np.linspace(0.05, 2.0, 40)
    errors = [_value_errors(seed, float(distance)) for distance in distances]
    kls = [true for true, _ in errors]
    slopes = _gradient_directions(seed, 1.0)
    _, near = _value_errors(seed, 0.1)
    far_kl, far = _value_errors(seed, 1.5)
    return ExperimentResult(
        header=(
            "as a loss",
            "size of the gradient",
            "distance to grad KL(policy || ref)",
            "distance to grad KL(ref || policy)",
        ),
        rows=[(name, *(f"{figure:.3f}" for figure in figures)) for name, figures in slopes.items()],
        panels=[
            line_plot(
                title,
                "KL(policy || reference), nats",
                kls,
                {name: [each[name][column] for _, each in errors] for name in _VALUES},
                log_y=column == 1,
            )
            for column, title in enumerate(
                ("bias of the estimate, share of the KL", "noise of one sample, share of the KL")
            )
        ],
        verdict=(
            f"As an estimate k3 is unbiased, with {near['k3'][1] / near['k1'][1]:.2f} times the noise of k1 at a small "
            f"KL; k2 is biased by {far['k2'][0]:+.0%} at {far_kl:.2f} nats. As a loss k1 has no expected gradient "
            f"(less than {error_bound(slopes['k1'][0])} of it), k2 and ratio-weighted k3 have exactly the gradient of "
            f"KL(policy || reference), and plain k3 that of KL(reference || policy), {slopes['k3'][1]:.0%} away."
        ),
        claims=claims_of(errors, near, slopes),
        figures={"far_kl_nats": far_kl},
    )


EXPERIMENT = Experiment(
    title="Estimators of the KL divergence",
    question="Are k1, k2 and k3 unbiased as estimates, and which divergence do they minimise as a loss?",
    run=_run,
    source="Schulman, 2020; DeepSeek-V3.2, 2025",
)
