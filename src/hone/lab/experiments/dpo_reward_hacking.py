"""DPO's implicit reward keeps rising while the true preference falls, and two remedies.

Answers differ in one trait that is preferred up to a point, and in four that do not matter. The pairs come from the
reference policy, which is rarely beyond that point, so in the data more is always better.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from hone.core.random import generator
from hone.lab.exact import minimise
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, plot_by_step
from hone.lab.policies import sample_rows
from hone.objectives.preference import dpo, ipo
from hone.objectives.terms import LossTerms
from hone.run.report.html import format_number

_ANSWERS, _IDLE, _PAIRS = 120, 4, 400
_TURN = 1.5
"""Value of the trait above which more is worse."""
_Loss = Callable[[Tensor, Tensor], LossTerms]
LOSSES: dict[str, _Loss] = {
    "DPO, beta 0.1": partial(dpo, beta=0.1),
    "DPO, beta 1": partial(dpo, beta=1.0),
    "cDPO, smoothing 0.2": partial(dpo, beta=0.1, smoothing=0.2),
    "IPO, beta 0.5": partial(ipo, beta=0.5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreferenceProblem:
    """Answers, reference policy, true preference, and pairs."""

    traits: Tensor
    """`[ANSWERS, 1 + IDLE]`."""
    reference: Tensor
    """`[ANSWERS]` nats."""
    worth: Tensor
    """`[ANSWERS]` true utility of each answer."""


class _TiltedPolicy(nn.Module):
    """log pi(y) = log reference(y) + theta * traits(y) - log Z."""

    def __init__(self, place: _PreferenceProblem) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(place.traits.shape[1], dtype=torch.float64))
        self.place = place

    def forward(self) -> Tensor:
        """s = log pi - log reference `[ANSWERS]`, the implicit reward of each answer before beta."""
        logp = torch.log_softmax(self.place.reference + self.place.traits @ self.theta, dim=0)
        return logp - self.place.reference


def _win_rate(place: _PreferenceProblem, score: Tensor) -> float:
    """Exact probability that an answer of the policy is preferred to one of the reference."""
    reference = place.reference.exp()
    policy = (place.reference + score).exp()
    wins = torch.sigmoid(place.worth[:, None] - place.worth[None])
    return float(policy @ wins @ reference)


def _train_pairs(loss: _Loss, place: _PreferenceProblem, *, seed: int, steps: int) -> tuple[list[float], list[float]]:
    """Mean margin of the implicit reward on the pairs, and held-out preference, over the steps."""
    draws = generator(seed, "lab/pairs")
    chance = place.reference.exp().numpy()
    first, second = (sample_rows(np.broadcast_to(chance, (_PAIRS, _ANSWERS)), draws.random(_PAIRS)) for _ in range(2))
    likes = torch.sigmoid(place.worth[first] - place.worth[second]).numpy() > draws.random(_PAIRS)
    won = torch.from_numpy(np.where(likes, first, second))
    lost = torch.from_numpy(np.where(likes, second, first))
    policy = _TiltedPolicy(place)
    margins: list[float] = []
    held: list[float] = []

    def watch() -> None:
        with torch.no_grad():
            score = policy()
            margins.append(float((score[won] - score[lost]).mean()))
            held.append(_win_rate(place, score))

    def total() -> Tensor:
        score = policy()
        return loss(score[won], score[lost]).loss.mean()

    minimise(total, list(policy.parameters()), steps=steps, rate=0.03, watch=watch)
    return margins, held


def claims_of(
    margins: dict[str, list[float]], peak: int, best: dict[str, float], last: dict[str, float]
) -> list[BoundedClaim]:
    """Claims on margins by step, the step of the `peak`, and the best and last preference, by loss."""
    plain, firm, smooth, bounded = LOSSES
    return [
        at_least(
            "margin on the pairs, final over that at the best preference",
            margins[plain][-1] / margins[plain][peak],
            1.5,
        ),
        at_least("best held-out preference, DPO", best[plain], 0.6),
        at_most("final held-out preference, DPO", last[plain], 0.3),
        at_least("final held-out preference, ten times beta", last[firm], 0.6),
        at_least("final held-out preference, IPO", last[bounded], 0.52),
        at_most("label smoothing: final over best preference", last[smooth] / best[smooth], 0.7),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps = 400 if quick else 1000
    draws = generator(seed, "lab/dpo")
    traits = np.column_stack([np.linspace(-3, 5, _ANSWERS), draws.standard_normal((_ANSWERS, _IDLE))])
    x = traits[:, 0]
    reference = torch.log_softmax(torch.from_numpy(-(x**2) / (2 * 0.8**2)), dim=0)
    worth = np.where(x < _TURN, x, _TURN - 1.5 * (x - _TURN))
    place = _PreferenceProblem(traits=torch.from_numpy(traits), reference=reference, worth=torch.from_numpy(2 * worth))
    result = {name: _train_pairs(loss, place, seed=seed, steps=steps) for name, loss in LOSSES.items()}
    plain, firm, smooth, bounded = LOSSES
    best = {name: max(held) for name, (_, held) in result.items()}
    last = {name: held[-1] for name, (_, held) in result.items()}
    margins = {name: path for name, (path, _) in result.items()}
    peak = int(np.argmax(result[plain][1]))
    return ExperimentResult(
        header=("loss", "best preference", "at step", "final preference", "margin at the best", "final margin"),
        rows=[
            (
                name,
                f"{best[name]:.0%}",
                str(int(np.argmax(held)) + 1),
                f"{last[name]:.0%}",
                format_number(path[int(np.argmax(held))]),
                format_number(path[-1]),
            )
            for name, (path, held) in result.items()
        ],
        panels=[
            plot_by_step(title, {name: pair[k] for name, pair in result.items()})
            for k, title in enumerate(("implicit reward's margin on the pairs, nats", "preferred over the reference"))
        ],
        verdict=(
            f"With DPO and beta 0.1 the margin on the training pairs rises from {margins[plain][peak]:.1f} to "
            f"{margins[plain][-1]:.1f} nats while the true preference for the policy falls from {best[plain]:.0%} to "
            f"{last[plain]:.0%}. Label smoothing does not prevent this ({last[smooth]:.0%}); beta 1 ends at "
            f"{last[firm]:.0%}, and IPO, with a target for the margin, at {last[bounded]:.0%}."
        ),
        claims=claims_of(margins, peak, best, last),
    )


EXPERIMENT = Experiment(
    title="DPO's implicit reward",
    question="Can the implicit reward rise while the true preference falls, and which remedies help?",
    run=_run,
    source="Rafailov et al., 2023 and 2024",
)
