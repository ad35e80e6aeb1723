"""A world model beside a policy: a network of its own that learns what the environment says in every batch.

It is a copy of the policy that the run starts from, with its own optimizer steps. It never answers, and the policy
never learns the environment's tokens; what surprises the model may be worth a bonus (curiosity).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.core.config import Config
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, substate
from hone.credit.grouping import DecisionColumn
from hone.learner.adam import restore_weights, stored_weights
from hone.learner.gradient import GradientLearner
from hone.learner.share import ParameterStore, shared_network
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import token_mean
from hone.text.learners import token_learner
from hone.text.loss import token_nll
from hone.text.reference_policies import TextPolicies
from hone.text.rl import TextGradientRunConfig
from hone.text.rows import TokenBatch, TokenLayout
from hone.text.saved_optimizer import TwoNetworkLearner
from hone.text.tasks.token_places import environment_means, environment_only


@dataclass
class WorldModel:
    """A model of what the environment says; it learns from every batch."""

    learner: GradientLearner[TokenPolicy, TokenBatch]
    logp: DecisionColumn
    """Episodes -> log-probability of each of their decisions under the model, nats."""
    notes: list[str] = field(default_factory=list[str])
    is_silent: bool = False
    """The user was told that the environment says nothing."""

    def surprise(self, episodes: Episodes) -> NDArray[np.float64]:
        """`[E]` nats: mean of -log p of what the environment said after the policy's first turn; 0 for nothing."""
        spoken = environment_only(episodes)
        nats = -self.logp(spoken) if spoken.decisions else np.zeros(0)
        return environment_means(nats, episodes)

    def update(self, episodes: Episodes) -> Metrics:
        """Learn what the environment said; metrics as `world_model/...`."""
        spoken = environment_only(episodes)
        if not spoken.decisions:
            if not self.is_silent:
                self.is_silent = True
                self.notes.append(
                    "the environment says nothing after the policy's first turn: there is nothing to be curious "
                    "about; take a task with dialogues, or a recipe without curiosity such as grpo"
                )
            return {"world_model/tokens": 0.0}
        metrics = self.learner.update(spoken, Credits(advantage=spoken.reward))
        return {
            "world_model/tokens": float(spoken.decisions),
            "world_model/nll_nats": metrics["policy/nll_nats"],
            "world_model/lr": metrics["learner/lr"],
            "learner/tokens": metrics["learner/tokens"],
            "learner/flops": metrics["learner/flops"],
        }

    def pop_notes(self) -> list[str]:
        """Notes for the user since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def state(self) -> State:
        """Weights and optimizer."""
        return {"weights": stored_weights(self._parameters), "learner": self.learner.state()}

    def restore(self, state: State) -> None:
        """Raises DataError for the weights of another network."""
        remedy = "a resumed run needs the model that it was started with; put model.path back"
        restore_weights(self._parameters, substate(state, "weights"), what="world model", remedy=remedy)
        self.learner.restore(substate(state, "learner"))

    @property
    def _parameters(self) -> ParameterStore:
        (phase,) = self.learner.phases
        return phase.parameters


@dataclass
class CuriousLearner(TwoNetworkLearner):
    """A policy's learner and a world model's, on the same episodes. Implements `Learner`."""

    world_model: WorldModel

    def values(self, episodes: Episodes) -> Values:
        return self.actor.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Metrics of both; work is the sum."""
        learned = self.world_model.update(episodes)
        stepped = self.actor.update(episodes, credits)
        work = {name: stepped.get(name, 0.0) + learned.get(name, 0.0) for name in ("learner/tokens", "learner/flops")}
        return {**learned, **stepped, **work}

    def state(self) -> State:
        return {**self.actor.state(), "world_model": self.world_model.state()}

    def restore(self, state: State) -> None:
        self.actor.restore(state)
        self.world_model.restore(substate(state, "world_model"))


# --------------------------------------------------------------------------------------------------------------- config


class CuriosityConfig(Config):
    """Bonus for what surprises a world model."""

    weight: float = Field(default=0.1, ge=0)
    """Score of a nat of surprise, the mean of -log p over what the environment said in a dialogue."""
    max_nats: float = Field(default=5.0, gt=0)
    """Surprise beyond this pays no more."""
    lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of the world model; unset: `learner.lr`."""
    epochs: int = Field(default=1, ge=1)
    """Its passes over each batch."""

    def open(self, config: TextGradientRunConfig, policies: TextPolicies) -> WorldModel:
        """The world model as it starts: a copy of the policy that the run starts from."""
        model = policies.open_frozen(None).requires_grad_(requires_grad=True)
        model.decoder.save_memory_like(policies.policy.decoder)
        model = shared_network(model)
        changes = {"lr": self.lr or config.learner.lr, "epochs": self.epochs, "minibatches": 1}
        mixed = model.decoder.is_mixed_precision
        learner = token_learner(
            config.learner.model_copy(update=changes),
            model,
            layout=TokenLayout(scheme=token_mean, pad_to_size=mixed, device=config.run.device),
            objective=token_nll,
            seed=config.seed,
            steps=config.steps,
        )
        return WorldModel(learner=learner, logp=policies.logp(model))
