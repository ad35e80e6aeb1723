"""KL divergence, cross-entropy and likelihood: one identity, checked, and the fit by each direction of the KL."""

import numpy as np
import torch
from torch import Tensor, nn

from hone.core.random import generator
from hone.lab.exact import gradient, minimise, relative_distance
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, error_bound, line_plot
from hone.objectives.offline import behaviour_cloning
from hone.run.report.html import format_number

_POINTS = 61


class _UnimodalModel(nn.Module):
    """A unimodal model: softmax of -(x - centre)^2 / (2 width^2)."""

    def __init__(self, centre: float) -> None:
        super().__init__()
        self.shape = nn.Parameter(torch.tensor([centre / 10, 1.5], dtype=torch.float64))

    def forward(self) -> Tensor:
        x = torch.arange(_POINTS, dtype=torch.float64)
        return torch.log_softmax(-((x - 10 * self.shape[0]) ** 2) / (2 * torch.exp(2 * self.shape[1])), dim=0)

    @property
    def width(self) -> float:
        return float(self.shape.detach()[1].exp())


def _identity_errors(seed: int, data: Tensor) -> tuple[float, float, float]:
    """|cross-entropy - entropy - KL| in nats; mean negative log-likelihood of exactly counted data minus the
    cross-entropy; and the relative difference of both gradients.
    """
    logits = torch.from_numpy(generator(seed, "lab/model").standard_normal(_POINTS)).requires_grad_(True)
    model = torch.log_softmax(logits, dim=0)
    entropy, divergence = -(data * data.log()).sum(), (data * (data.log() - model)).sum()
    cross = -(data * model).sum()
    likelihood = (data * behaviour_cloning(model).loss).sum()
    off = float((cross - entropy - divergence).abs().detach())
    by_kl = gradient(divergence, logits)
    model = torch.log_softmax(logits, dim=0)
    by_likelihood = gradient((data * behaviour_cloning(model).loss).sum(), logits)
    return off, float((likelihood - cross).abs().detach()), relative_distance(by_likelihood, by_kl)


def claims_of(
    off: float, off_likelihood: float, off_gradient: float, width: dict[str, float], held: dict[str, float]
) -> list[BoundedClaim]:
    """Claims on the errors of the identities, and on the width and the probability of the valley of each fit."""
    forward, reverse = held
    return [
        at_most("cross-entropy minus entropy minus KL, nats", off, 1e-12),
        at_most("mean negative log-likelihood minus cross-entropy, nats", off_likelihood, 1e-12),
        at_most("gradients of likelihood and KL apart by", off_gradient, 1e-9),
        at_least("width of the likelihood fit over the reward fit", width[forward] / width[reverse], 2.0),
        at_least("probability of the valley, likelihood fit", held[forward], 0.1),
        at_most("probability of the valley, reward fit", held[reverse], 0.05),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps = 250 if quick else 1000
    # Probabilities `[POINTS]` of data with two modes of unequal weight.
    draws = generator(seed, "lab/hills")
    left, right = draws.uniform(14, 20), draws.uniform(40, 46)
    x = np.arange(_POINTS)
    hills = 0.6 * np.exp(-((x - left) ** 2) / 18) + 0.4 * np.exp(-((x - right) ** 2) / 18)
    data = torch.from_numpy(hills / hills.sum())
    off, off_likelihood, off_gradient = _identity_errors(seed, data)
    likely, greedy = _UnimodalModel(25.0), _UnimodalModel(25.0)
    minimise(lambda: (data * behaviour_cloning(likely()).loss).sum(), list(likely.parameters()), steps=steps, rate=0.02)

    def reverse_kl() -> Tensor:
        model = greedy()
        return (model.exp() * (model - data.log())).sum()

    minimise(reverse_kl, list(greedy.parameters()), steps=steps, rate=0.02)
    fits = {"likelihood: KL(data || model)": likely, "reward: KL(model || data)": greedy}
    valley = slice(27, 34)
    chances = {name: fit().detach().exp() for name, fit in fits.items()}
    held = {name: float(chance[valley].sum()) for name, chance in chances.items()}
    return ExperimentResult(
        header=("one mode fitted by", "width", "probability of the valley between the modes"),
        rows=[(name, format_number(fit.width), format_number(held[name])) for name, fit in fits.items()],
        panels=[
            line_plot(
                "fit by each direction of the KL",
                "outcome",
                range(_POINTS),
                {"data": data.numpy()} | {name: chance.numpy() for name, chance in chances.items()},
            )
        ],
        verdict=(
            f"Cross-entropy is entropy plus KL(data || model) to less than {error_bound(off)} nats, so maximum "
            "likelihood, cross-entropy and that KL have the same gradient (difference below "
            f"{error_bound(off_gradient)}). This direction covers both modes, with width {likely.width:.1f}. The "
            f"reverse direction, that of RL with a KL penalty, fits one mode, with width {greedy.width:.1f}."
        ),
        claims=claims_of(off, off_likelihood, off_gradient, {name: fit.width for name, fit in fits.items()}, held),
    )


EXPERIMENT = Experiment(
    title="KL divergence, cross-entropy and maximum likelihood",
    question="How are the three related, and which fit does each direction of the KL give?",
    run=_run,
)
