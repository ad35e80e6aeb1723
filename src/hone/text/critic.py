"""The critic of a language model: a network of its own with its own optimizer steps, beside the policy's learner.

Belongs here: values of decisions, the critic's rows and steps, its warm-up, and what is told about it. Does not:
advantages (`credit.decoupled_gae`), how both learners are wired (`actor_critic`).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.ragged import ranges
from hone.core.state import State, integer, number, substate
from hone.learner.adam import restore_weights, stored_weights
from hone.learner.gradient import GradientLearner
from hone.learner.share import ParameterStore
from hone.models.language.scalar_head import ValueNetwork
from hone.objectives.distributional import ValueSupport, c51_loss, hl_gauss, logits_mean, two_hot
from hone.objectives.terms import LossTerms
from hone.objectives.value import bounded_cross_entropy, clipped_value, squared_error
from hone.rewards.config import LearnableConfig
from hone.text.rows import TokenBatch, TokenLayout, TokenRows, learnable_answers
from hone.text.saved_optimizer import TwoNetworkLearner

# --------------------------------------------------------------------------------------------------------- value losses


class SquaredErrorLoss(Config):
    """The value is a number of any size, learned by half the squared error."""

    outputs: ClassVar[int] = 1
    """Numbers that the head gives for each decision."""

    kind: Literal["squared"] = "squared"
    """Names this alternative."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update (PPO2: 0.2), in units of the
    return: with returns far from 1 nearly every gradient is clipped to 0. Unset: no clipping."""

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return outputs[:, 0]

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """(V - target)^2 / 2, or its clipped form."""
        value = self.value(outputs)
        if self.clip_range is None or old_value is None:
            return squared_error(value, target)
        return clipped_value(value, old_value, target, clip_range=self.clip_range)


class SigmoidValueLoss(Config):
    """The value lies between two bounds, low + (high - low) * sigmoid, learned by cross-entropy: for scores."""

    outputs: ClassVar[int] = 1
    """Numbers that the head gives for each decision."""

    kind: Literal["sigmoid"]
    """Names this alternative."""
    low: float = 0.0
    """Lowest return."""
    high: float = 1.0
    """Highest return. Returns beyond the bounds count as the nearest; `value/target_clipped` tells their share."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update. Unset: no clipping."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return self.low + (self.high - self.low) * torch.sigmoid(outputs[:, 0])

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy against the target as a share of the range."""
        return bounded_cross_entropy(
            outputs[:, 0], old_value, target, low=self.low, high=self.high, clip_range=self.clip_range
        )


class BinnedValueLoss(Config):
    """The value is the mean of a distribution over bins, learned by classification (HL-Gauss, two-hot)."""

    clips: ClassVar[bool] = False
    """The loss does not look at the values before the update."""

    kind: Literal["bins"]
    """Names this alternative."""
    low: float
    """Centre of the lowest bin: the lowest return."""
    high: float
    """Centre of the highest bin: the highest return."""
    size: int = Field(default=51, ge=2, le=4096)
    """Number of bins."""
    spread: float = Field(default=0.75, ge=0)
    """Standard deviation, in bins, of the normal distribution around a target (HL-Gauss, Farebrother et al., 2024); 0
    splits a target between its two nearest bins (two-hot)."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each decision."""
        return self.size

    @property
    def support(self) -> ValueSupport:
        """The bins."""
        return ValueSupport(low=self.low, high=self.high, size=self.size)

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, size]` -> `[n]`."""
        return logits_mean(outputs, self.support)

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy of the bins against the target's distribution."""
        del old_value
        if self.spread == 0:
            return c51_loss(outputs, two_hot(target, self.support), support=self.support)
        return c51_loss(outputs, hl_gauss(target, self.support, spread=self.spread), support=self.support)


def _require_range(low: float, high: float) -> None:
    """Raises ValueError for an empty range of returns."""
    if not low < high:
        raise ValueError(f"low = {low:g} is not below high = {high:g}: they bound the returns; set both")


CriticLossConfig: TypeAlias = Annotated[
    SquaredErrorLoss | SigmoidValueLoss | BinnedValueLoss, Field(discriminator="kind")
]


# --------------------------------------------------------------------------------------------------------------- critic


JUDGED_STEPS: Final = 10
"""Steps after the warm-up over which a critic is judged."""
LEAST_EXPLAINED: Final = 0.1
"""Explained variance below which a critic is called useless."""


@dataclass(frozen=True, slots=True)
class CriticView:
    """Questions to a value network about decisions, in the representation of a loss."""

    form: CriticLossConfig
    layout: TokenLayout
    micro_batch_tokens: int
    learnable: LearnableConfig = field(default_factory=LearnableConfig)
    """Which answers the critic learns from, if they have a score."""

    def values(self, network: ValueNetwork, episodes: Episodes) -> Values:
        """Values `[N]` of the text before each decision, and 0 beyond every episode's end.

        An answer that a limit cut is scored as it stands, and nothing can follow it: it is not bootstrapped.
        """
        value = self._ask(network, episodes)
        return Values(value=value.astype(np.float32), final=np.zeros(len(episodes), np.float32))

    def rows(self, network: ValueNetwork, episodes: Episodes, credits: Credits) -> TokenRows:
        """Rows of the episodes that have a score, with targets and, for a clipped loss, the critic's values before the
        update."""
        episodes, credits = learnable_answers(episodes, credits, self.learnable)
        assert credits.target is not None, "a critic learns from the targets of a credit with values"
        kept = np.flatnonzero(episodes.scored)
        kept = kept if len(kept) else np.arange(len(episodes))
        where = ranges(episodes.offsets[:-1][kept], episodes.lengths[kept])
        episodes = episodes.take(kept)
        rows = self.layout(episodes, Credits(advantage=credits.advantage[where]))
        old = self._ask(network, episodes) if self.form.clips else None
        known = replace(rows.precomputed, value_target=credits.target[where], old_value=old)
        return replace(rows, precomputed=known)

    def objective(self, network: ValueNetwork, batch: TokenBatch) -> LossTerms:
        """The loss of the critic's values, `[n]`."""
        assert batch.value_target is not None
        return self.form.loss(network.outputs(batch.packed, batch.at), batch.old_value, batch.value_target)

    def _ask(self, network: ValueNetwork, episodes: Episodes) -> NDArray[np.generic]:
        def question(batch: TokenBatch) -> tuple[Tensor]:
            return (self.form.value(network.outputs(batch.packed, batch.at)),)

        rows = self.layout(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32)))
        return rows.evaluate(question, self.micro_batch_tokens)[0]


@dataclass
class CriticWatch:
    """Judges a critic by the variance that it explained in the first steps after its warm-up."""

    total: float = 0.0
    steps: int = 0
    notes: list[str] = field(default_factory=list[str])

    def observe(self, metrics: Metrics, cost: float) -> None:
        """Count a step after the warm-up; `cost` is the compute of an update with the critic, in updates without."""
        explained = metrics.get("critic/explained_variance")
        if explained is None or self.steps == JUDGED_STEPS:
            return
        self.total, self.steps = self.total + explained, self.steps + 1
        mean = self.total / self.steps
        if self.steps == JUDGED_STEPS and mean < LEAST_EXPLAINED:
            self.notes.append(
                f"the critic explains {max(mean, 0.0):.0%} of the variance of the returns (mean of the {self.steps} "
                f"steps after its warm-up): an update costs {cost:.1f} times as much as without it, and it steers with "
                "noise; raise algorithm.critic.warmup_steps, epochs or lr, or take a recipe without a critic such as "
                "grpo"
            )

    def pop_notes(self) -> list[str]:
        """Notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def state(self) -> State:
        return {"total": self.total, "steps": self.steps}

    def restore(self, state: State) -> None:
        self.total, self.steps = number(state, "total"), integer(state, "steps")


@dataclass
class ActorCriticLearner(TwoNetworkLearner):
    """A policy's learner and a critic's, each with its own optimizer, on the same episodes.

    In the first `warmup_steps` iterations only the critic learns. Implements `Learner`.
    """

    critic: GradientLearner[ValueNetwork, TokenBatch]
    view: CriticView
    warmup_steps: int = 0
    iterations: int = 0
    watch: CriticWatch = field(default_factory=CriticWatch)

    def values(self, episodes: Episodes) -> Values:
        return self.view.values(self.critic.policy, episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Metrics of both: the policy's under its names, the critic's as `critic/...` and `value/...`."""
        learned = self.critic.update(episodes, credits)
        rate, tokens, flops = (learned.pop(name, 0.0) for name in ("learner/lr", "learner/tokens", "learner/flops"))
        self.iterations += 1
        warming = self.iterations <= self.warmup_steps
        metrics = {**learned, "critic/lr": rate, "critic/warming_up": float(warming)}
        if warming:
            return {**metrics, "learner/tokens": tokens, "learner/flops": flops}
        stepped = self.actor.update(episodes, credits)
        own = stepped.get("learner/flops", 0.0)
        self.watch.observe(learned, 1.0 + flops / own if own else math.inf)
        stepped["learner/tokens"] = stepped.get("learner/tokens", 0.0) + tokens
        return {**metrics, **stepped, "learner/flops": own + flops}

    @property
    def _parameters(self) -> ParameterStore:
        (phase,) = self.critic.phases
        return phase.parameters

    def state(self) -> State:
        """The policy's learner as ever, and beside it the critic: weights, optimizer, and what is known about it."""
        critic: State = {"network": stored_weights(self._parameters), "learner": self.critic.state()}
        return {
            **self.actor.state(),
            "critic": {**critic, "watch": self.watch.state(), "iterations": self.iterations},
        }

    def restore(self, state: State) -> None:
        """Raises DataError where the state has no critic, or another one."""
        self.actor.restore(state)
        critic = substate(state, "critic")
        remedy = "a resumed run needs the critic that it was started with; put algorithm.critic back"
        restore_weights(self._parameters, substate(critic, "network"), what="critic", remedy=remedy)
        self.critic.restore(substate(critic, "learner"))
        self.watch.restore(substate(critic, "watch"))
        self.iterations = integer(critic, "iterations")
