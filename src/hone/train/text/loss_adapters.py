"""From functions of tensors to losses on tokens: which columns of a view a function is given, and what is added to it.

Belongs here: adapters that several recipes need. What only one recipe does stands in its file.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

from pydantic import Field, field_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.objectives.entropy import entropy_bonus
from hone.objectives.kl import distance_called, kl_penalty
from hone.objectives.policy import clipped, importance, reinforce
from hone.objectives.terms import Terms, added
from hone.objectives.weights import Scheme
from hone.train.text.loss import Loss, TokenView

Objective: TypeAlias = Callable[[TokenView], Terms]
Estimator = Literal["k2", "k3", "weighted_k3", "k3_valued_k2"]


def policy_gradient(view: TokenView) -> Terms:
    """-A log pi of each token: right for answers of the policy as it stands, and for one step on them."""
    return reinforce(view.now, view.advantage)


def weighed(view: TokenView) -> Terms:
    """-r A of each token."""
    return importance(view.now, view.then, view.advantage)


def on_tokens(loss: Callable[[Tensor, Tensor, Tensor], Terms]) -> Objective:
    """`loss(now, then, advantage)` on views."""
    return lambda view: loss(view.now, view.then, view.advantage)


def on_sequences(loss: Callable[[Tensor, Tensor, Tensor, Tensor], Terms]) -> Objective:
    """`loss(now, then, advantage, sequence)` on views."""
    return lambda view: loss(view.now, view.then, view.advantage, view.sequence)


def on_selected(loss: Callable[[Tensor, Tensor, Tensor, Tensor], Terms]) -> Objective:
    """`loss(now, then, advantage, factor)` on views: the factor is what `Loss.select` chose."""

    def objective(view: TokenView) -> Terms:
        assert view.factor is not None
        return loss(view.now, view.then, view.advantage, view.factor)

    return objective


class Penalties(Config):
    """What may be added to a recipe's loss: distance to the reference policy, and the policy's own entropy."""

    kl: float = Field(default=0.0, ge=0)
    """Weight of the distance to the policy that the run started from; 0 keeps no reference."""
    kl_estimator: Estimator = "weighted_k3"
    """What is differentiated; k1 is refused, because its gradient is 0 in expectation."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy, which is kept up; 0 is off, as in most papers on language models."""

    @field_validator("kl_estimator", mode="before")
    @classmethod
    def _with_a_gradient(cls, value: object) -> object:
        if value == "k1":
            try:
                distance_called("k1")
            except ConfigError as fault:
                raise ValueError(str(fault)) from None
        return value


class Clip(Penalties):
    """Clip widths around a ratio of 1, and penalties."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """A token's ratio is clipped below 1 - clip_low where its advantage is negative."""
    clip_high: float = Field(default=0.2, gt=0)
    """A token's ratio is clipped above 1 + clip_high where its advantage is positive."""


def penalised(loss: Loss, penalties: Penalties) -> Loss:
    """loss + kl * distance - entropy * H; the same loss where both weights are 0."""
    distance = distance_called(penalties.kl_estimator)

    def objective(view: TokenView) -> Terms:
        terms = loss.objective(view)
        if view.anchor is not None:
            penalty = kl_penalty(view.now, view.anchor, view.then, distance=distance)
            terms = added(terms, penalty, weight=penalties.kl)
        if penalties.entropy and view.entropy is not None:
            terms = added(terms, entropy_bonus(view.entropy), weight=penalties.entropy)
        return terms

    return replace(
        loss,
        objective=objective,
        proportional=loss.proportional and penalties.kl == 0 and penalties.entropy == 0,
        reference=loss.reference or penalties.kl > 0,
        entropy=loss.entropy or penalties.entropy > 0,
    )


def clip_loss(clip: Clip, scheme: Scheme) -> Loss:
    """PPO's clipped surrogate on tokens, with its penalties."""
    objective = on_tokens(partial(clipped, low=clip.clip_low, high=clip.clip_high))
    return penalised(Loss(objective=objective, scheme=scheme, proportional=True), clip)
