"""Every loss beyond the policy family with columns to run it on: leaves carry the gradient, data does not.

Added here, a loss is held to the slow version, to partition invariance, and to the other promises of every loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import slow_losses as slow
import torch
from torch import Tensor

from hone.objectives import (
    constraint,
    distill,
    distributional,
    offline,
    preference,
    reward_model,
    td,
    value,
)
from hone.objectives import (
    preference as reference_free,
)
from hone.objectives import (
    preference as unpaired,
)
from hone.objectives import (
    td as soft,
)
from hone.objectives.distributional import ValueSupport
from hone.objectives.implicit import alpha_link, forward_kl_link, js_link, weighted_terms
from hone.objectives.terms import LossTerms

ROWS = 14
SUPPORT = ValueSupport(low=-2.0, high=3.0, size=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loss, how to draw its columns, and its slow version of one row (the arguments in the same order)."""

    name: str
    loss: Callable[..., LossTerms]
    slow: Callable[..., float]
    leaves: dict[str, Callable[[], Tensor]]
    data: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    shared: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    """Leaves of shape `[1]` that all rows share, such as a temperature."""
    order: tuple[str, ...] = ()
    """Of the slow version's arguments; by default leaves, data, shared."""
    bounded: bool = True
    """Whether it stays finite for any finite columns."""

    def columns(self, seed: int = 0) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return {name: draw() for group in (self.leaves, self.data, self.shared) for name, draw in group.items()}

    def row(self, columns: dict[str, Tensor], index: int) -> list:
        names = self.order or (*self.leaves, *self.data, *self.shared)
        return [columns[name][index if len(columns[name]) == ROWS else 0].tolist() for name in names]

    def take(self, columns: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        """These rows of every column; what has one row is everybody's."""
        return {name: column if len(column) == 1 else column[rows] for name, column in columns.items()}


def normal(*shape: int, scale: float = 2.0) -> Callable[[], Tensor]:
    return lambda: scale * torch.randn(ROWS, *shape, dtype=torch.float64)


def negative(low: float, high: float) -> Callable[[], Tensor]:
    return lambda: -(low + (high - low) * torch.rand(ROWS, dtype=torch.float64))


def log_distribution(size: int) -> Callable[[], Tensor]:
    return lambda: torch.log_softmax(torch.randn(ROWS, size, dtype=torch.float64), dim=1)


def flags() -> Tensor:
    return torch.rand(ROWS) < 0.5


def labels() -> Tensor:
    return torch.tensor([0, 1, -100, 1, 0, -100, 1, 1, 0, 1, -100, 0, 1, 0])


def soft_labels() -> Tensor:
    drawn = torch.rand(ROWS, dtype=torch.float64)
    return torch.where(labels() == -100, torch.nan, drawn)


def choices(size: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(size, (ROWS,))


def one(number: float) -> Callable[[], Tensor]:
    return lambda: torch.tensor([number], dtype=torch.float64)


PAIR = {"chosen": normal(scale=6.0), "rejected": normal(scale=6.0)}
MEANS = {"chosen": negative(0.05, 3.0), "rejected": negative(0.05, 3.0)}
SCORE = {"score": normal(scale=6.0)}
KIND = {"desirable": flags}


def paired(loss: Callable[..., LossTerms], **settings: float) -> Case:
    """A loss of two scores, under its own name, with settings that its slow version takes too."""
    name = " ".join((loss.__name__, *(f"{key}={number}" for key, number in settings.items())))
    return Case(
        name=name,
        loss=partial(loss, **settings),
        slow=partial(slow.__dict__[loss.__name__], **settings),
        leaves=PAIR,
    )


def linked(link: Callable[[Tensor], Tensor], slow_link: Callable[[float], float]) -> Case:
    """DPO under another f-divergence."""
    return Case(
        name=f"dpo {link.__name__}",
        loss=lambda chosen, rejected: preference.dpo(link(chosen), link(rejected)),
        slow=lambda chosen, rejected: slow.dpo(slow_link(chosen), slow_link(rejected)),
        leaves={"chosen": normal(), "rejected": normal()},
    )


def simple(loss: Callable[..., LossTerms], leaves: dict, data: dict | None = None, **more: object) -> Case:
    return Case(
        name=loss.__name__, loss=loss, slow=slow.__dict__[loss.__name__], leaves=leaves, data=data or {}, **more
    )


PREFERENCE = (
    paired(preference.dpo),
    paired(preference.dpo, smoothing=0.2, beta=0.3),
    paired(preference.robust_dpo),
    paired(preference.ipo),
    paired(preference.hinge, beta=0.2),
    paired(preference.nca_pair),
    paired(preference.sppo),
    paired(preference.sppo, probability=0.8),
    paired(preference.apo_zero),
    paired(preference.apo_down),
    paired(preference.exo_pair),
    paired(preference.exo_pair, smoothing=0.2),
    paired(preference.discopop),
    linked(forward_kl_link, slow.forward_kl_link),
    linked(js_link, slow.js_link),
    linked(alpha_link, slow.alpha_link),
    Case(
        name="dpo reweighted",
        loss=lambda chosen, rejected, weight: weighted_terms(preference.dpo(chosen, rejected), weight),
        slow=lambda chosen, rejected, weight: weight * slow.dpo(chosen, rejected),
        leaves=PAIR,
        data={"weight": normal()},
    ),
    simple(preference.bco_pair, PAIR, {"shift": normal()}),
    simple(preference.aot, {"margin": normal(scale=6.0)}, {"partner": normal(scale=6.0)}),
    simple(reference_free.simpo, MEANS),
    simple(reference_free.orpo, MEANS),
    simple(
        reference_free.cpo,
        {"chosen": negative(1.0, 40.0), "rejected": negative(1.0, 40.0)},
        {"chosen_length": lambda: torch.randint(1, 20, (ROWS,))},
    ),
    simple(unpaired.kto, SCORE, {**KIND, "baseline": normal()}),
    simple(unpaired.bco, SCORE, {**KIND, "shift": normal()}),
    simple(unpaired.apo_zero_unpaired, SCORE, KIND),
    Case(
        name="bradley_terry",
        loss=lambda chosen, rejected, margin: reward_model.bradley_terry(
            chosen, rejected, margin=margin, centring=0.01
        ),
        slow=slow.bradley_terry,
        leaves={"chosen": normal(), "rejected": normal()},
        data={"margin": normal()},
    ),
    simple(reward_model.step_classification, {"logits": normal(2)}, {"label": labels}),
    simple(reward_model.step_regression, {"logit": normal()}, {"label": soft_labels}),
    simple(reward_model.implicit_process_reward, SCORE, {"correct": flags}),
)

DISTILLATION = (
    simple(distill.forward_kl, {"student": log_distribution(5)}, {"teacher": log_distribution(5)}),
    simple(distill.reverse_kl, {"student": log_distribution(5)}, {"teacher": log_distribution(5)}),
    Case(
        name="generalised_jsd",
        loss=partial(distill.generalised_jsd, mixture=0.3),
        slow=slow.generalised_jsd,
        leaves={"student": log_distribution(5)},
        data={"teacher": log_distribution(5)},
    ),
)

CONTROL = (
    simple(value.squared_error, {"value": normal()}, {"target": normal()}),
    Case(
        name="huber",
        loss=partial(value.huber, delta=0.7),
        slow=slow.huber,
        leaves={"value": normal()},
        data={"target": normal()},
    ),
    simple(value.clipped_value, {"value": normal(scale=0.3)}, {"then": normal(scale=0.3), "target": normal(scale=0.5)}),
    Case(
        name="categorical_values",
        loss=partial(distributional.c51_loss, support=SUPPORT),
        slow=slow.cross_entropy,
        leaves={"logits": normal(6)},
        data={"target": lambda: log_distribution(6)().exp()},
    ),
    simple(distributional.quantile_huber_loss, {"quantiles": normal(3)}, {"target": normal(4)}),
    Case(
        name="quantile_values kappa=0",
        loss=partial(distributional.quantile_huber_loss, kappa=0.0),
        slow=partial(slow.quantile_huber_loss, kappa=0.0),
        leaves={"quantiles": normal(3)},
        data={"target": normal(4)},
    ),
    simple(td.ddpg_actor_loss, {"worth": normal()}),
    simple(offline.expectile_loss, {"value": normal()}, {"target": normal()}),
    simple(offline.advantage_weighted_regression, {"logp": negative(0.1, 5.0)}, {"advantage": normal(scale=1.0)}),
    simple(
        offline.td3_bc_actor_loss,
        {"worth": normal(), "action": normal(3)},
        {"logged": normal(3), "scale": normal()},
    ),
    simple(
        constraint.bcq_vae_loss,
        {"rebuilt": normal(3), "mean": normal(2), "log_std": normal(2, scale=0.5)},
        {"action": normal(3)},
        order=("rebuilt", "action", "mean", "log_std"),
        bounded=False,  # the network holds log_std within bounds
    ),
    Case(
        name="mmd",
        loss=lambda first, second: LossTerms(loss=constraint.mmd(first, second, width=1.5)),
        slow=partial(slow.mmd, width=1.5),
        leaves={"first": normal(3, 2)},
        data={"second": normal(4, 2)},
    ),
    Case(
        name="mmd gaussian",
        loss=lambda first, second: LossTerms(loss=constraint.mmd(first, second, width=1.5, kernel=constraint.gaussian)),
        slow=partial(slow.mmd, width=1.5, norm=2),
        leaves={"first": normal(3, 2)},
        data={"second": normal(4, 2)},
    ),
    simple(
        constraint.bear_actor_loss,
        {"worth": normal(), "distance": normal()},
        {"log_multiplier": one(0.4)},
        order=("worth", "distance", "log_multiplier"),
    ),
    simple(
        constraint.bear_multiplier_loss,
        {},
        {"distance": normal()},
        shared={"log_multiplier": one(0.4)},
        order=("log_multiplier", "distance"),
    ),
    simple(offline.cql_penalty, {"table": normal(4)}, {"chosen": choices(4)}),
    simple(
        offline.cql_penalty_sampled,
        {"worth": normal(4), "logged": normal()},
        {"log_density": normal(4, scale=1.0)},
        order=("worth", "log_density", "logged"),
    ),
    simple(soft.twin_critic_loss, {"first": normal(), "second": normal()}, {"target": normal()}),
    simple(
        soft.sac_actor_loss,
        {"logp": normal(), "first": normal(), "second": normal()},
        {"alpha": lambda: torch.full((ROWS,), 0.3, dtype=torch.float64)},
    ),
    Case(
        name="temperature",
        loss=partial(soft.temperature_loss, target_entropy=-1.0),
        slow=slow.temperature_loss,
        leaves={},
        data={"logp": normal()},
        shared={"log_alpha": one(0.3)},
        order=("log_alpha", "logp"),
    ),
)

CASES = (*PREFERENCE, *DISTILLATION, *CONTROL)
