"""The critic of a language model: a network of its own with its own optimizer steps, beside the policy's learner.

Belongs here: values of decisions, the critic's rows and steps, its warm-up, and what is told about it. Does not:
advantages (`credit.decoupled_gae`), how a value is represented (`value_losses`).
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.ragged import ranges
from hone.core.state import State, integer, number, substate
from hone.learner.adam import restore_weights, stored_weights
from hone.learner.gradient import ComputeCost, GradientLearner
from hone.learner.share import ParameterStore
from hone.models.language.scalar_head import ValueNetwork
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.text.flops import forward_flops
from hone.text.rows import TokenBatch, TokenLayout, TokenRows
from hone.text.value_losses import CriticLossConfig

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

    def values(self, network: ValueNetwork, episodes: Episodes) -> Values:
        """Values `[N]` of the text before each decision, and 0 beyond every episode's end.

        An answer that a limit cut is scored as it stands, and nothing can follow it: it is not bootstrapped.
        """
        value = self._ask(network, episodes)
        return Values(value=value.astype(np.float32), final=np.zeros(len(episodes), np.float32))

    def rows(self, network: ValueNetwork, episodes: Episodes, credits: Credits) -> TokenRows:
        """Rows of the episodes that have a score, with targets and, for a clipped loss, the critic's values before the
        update."""
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


def critic_compute_cost(network: ValueNetwork, batch: TokenBatch, *, epochs: int) -> ComputeCost:
    """A forward and a backward pass over `batch`, and its share of the passes for values before the update: for the
    advantages, and for a clipped loss."""
    tokens = len(batch.packed.tokens)
    pairs = batch.packed.positions.sum().double() + tokens
    forward = forward_flops(network.decoder.config, tokens=tokens, logits=0, pairs=pairs)
    before = (1 + (batch.old_value is not None)) / epochs
    return ComputeCost(tokens=tokens * (1 + before), flops=forward * (3 + before))


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
class ActorCriticLearner:
    """A policy's learner and a critic's, each with its own optimizer, on the same episodes.

    In the first `warmup_steps` iterations only the critic learns. Implements `Learner`.
    """

    actor: GradientLearner[TokenPolicy, TokenBatch]
    critic: GradientLearner[ValueNetwork, TokenBatch]
    view: CriticView
    warmup_steps: int = 0
    iterations: int = 0
    watch: CriticWatch = field(default_factory=CriticWatch)

    @property
    def policy(self) -> TokenPolicy:
        return self.actor.policy

    def values(self, episodes: Episodes) -> Values:
        return self.view.values(self.critic.policy, episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Metrics of both: the policy's under its names, the critic's as `critic/...` and `value/...`."""
        learned = self.critic.update(episodes, credits)
        rate, tokens, flops = (learned.pop(name, 0.0) for name in ("learner/lr", "learner/tokens", "learner/flops"))
        self.iterations += 1
        warming = self.iterations <= self.warmup_steps
        told = {**learned, "critic/lr": rate, "critic/warming_up": float(warming)}
        if warming:
            return {**told, "learner/tokens": tokens, "learner/flops": flops}
        stepped = self.actor.update(episodes, credits)
        own = stepped.get("learner/flops", 0.0)
        self.watch.observe(learned, 1.0 + flops / own if own else math.inf)
        stepped["learner/tokens"] = stepped.get("learner/tokens", 0.0) + tokens
        return {**told, **stepped, "learner/flops": own + flops}

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
