"""A world model beside a policy: a network of its own that learns what the environment says in every batch."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, substate
from hone.credit.grouping import DecisionColumn
from hone.learner.adam import restore_weights, stored_weights
from hone.learner.gradient import GradientLearner
from hone.learner.share import ParameterStore
from hone.models.language.token_policy import TokenPolicy
from hone.text.tasks.world_tokens import environment_means, environment_only
from hone.text.token_batch import TokenBatch


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
        said = environment_only(episodes)
        nats = -self.logp(said) if said.decisions else np.zeros(0)
        return environment_means(nats, episodes)

    def update(self, episodes: Episodes) -> Metrics:
        """Learn what the environment said; metrics as `world_model/...`."""
        said = environment_only(episodes)
        if not said.decisions:
            if not self.is_silent:
                self.is_silent = True
                self.notes.append(
                    "the environment says nothing after the policy's first turn: there is nothing to be curious "
                    "about; take a task with dialogues, or a recipe without curiosity such as grpo"
                )
            return {"world_model/tokens": 0.0}
        found = self.learner.update(said, Credits(advantage=said.reward))
        return {
            "world_model/tokens": float(said.decisions),
            "world_model/nll_nats": found["policy/nll_nats"],
            "world_model/lr": found["learner/lr"],
            "learner/tokens": found["learner/tokens"],
            "learner/flops": found["learner/flops"],
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
class CuriousLearner:
    """A policy's learner and a world model's, on the same episodes. Implements `Learner`."""

    actor: GradientLearner[TokenPolicy, TokenBatch]
    world_model: WorldModel

    @property
    def policy(self) -> TokenPolicy:
        return self.actor.policy

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
