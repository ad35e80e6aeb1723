"""Learning of bandits: rewards of logged decisions into the model of a policy, in closed form."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.decisions import ActionSet, Decision, DecisionTable, Floats, Ints
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, array, integer, substate
from hone.decide.bandits.models import BanditModel, BetaBernoulliPosterior, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy, PolicyContents
from hone.decide.bandits.saving import copy_policy


class OnlineLearner(Protocol):
    """Learner of a service: it takes the rewards of logged decisions, one after another."""

    @property
    def actions(self) -> ActionSet:
        """The declared actions."""
        ...

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part of the policy, by its name; empty: the policy has no parts."""
        ...

    def learn(self, decision: Decision, reward: float) -> None:
        """Take the reward of a decision. Raises DataError for one that there is no room for."""
        ...

    def snapshot(self) -> BanditPolicy:
        """The policy as it is now, which later rewards do not change."""
        ...

    def state(self) -> State:
        """Everything to go on from, to the bit. Its arrays may change with the next reward."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a state. Raises DataError for one that does not fit."""
        ...


def declared_action(decision: Decision, declared: ActionSet) -> tuple[int, ActionSet]:
    """The executed action's number among the actions that a model numbers, and these: the decision's own where they
    have features, else the declared ones. Raises DataError for an action that is not declared."""
    if decision.actions.features is not None:
        return decision.executed, decision.actions
    if decision.actions.names == declared.names:
        return decision.executed, declared
    name = decision.actions.names[decision.executed]
    if name not in declared.names:
        raise DataError(f"the action {name!r:.60} is not declared")
    return declared.names.index(name), declared


@dataclass
class BanditLearner:
    """Learner of a policy's reward model. `policy` decides by what was learnt so far; a `snapshot` stays as it is."""

    policy: BanditPolicy
    model: BanditModel
    """The model that `policy` decides by."""
    actions: ActionSet
    """The actions of the decisions, unless `observe` is told others."""
    observed: int = 0

    def observe(
        self,
        contexts: Floats,
        actions: Ints,
        rewards: Floats,
        weights: Floats | None = None,
        *,
        action_set: ActionSet | None = None,
    ) -> None:
        """Learn from n decisions: contexts `[n, d]`, actions `[n]`, rewards `[n]`, weights `[n]` (1 unless given).

        Raises DataError for a row that the model has no room for; then nothing was learnt.
        """
        weights = np.ones(len(actions)) if weights is None else weights
        self.model.observe(contexts, actions, rewards, weights, self.actions if action_set is None else action_set)
        self.observed += len(actions)

    @property
    def shares(self) -> dict[str, float]:
        return {}

    def learn(self, decision: Decision, reward: float) -> None:
        number, actions = declared_action(decision, self.actions)
        self.observe(decision.context[None], np.array([number]), np.array([reward]), action_set=actions)

    def observe_table(self, table: DecisionTable) -> int:
        """Learn from the rows of a joined log whose reward is known, in their order -> the number of them."""
        place = np.flatnonzero(table.known)
        breaks = np.flatnonzero(np.diff(table.action_set[place])) + 1
        for rows in np.split(place, breaks):
            if len(rows):
                own = table.action_sets[int(table.action_set[rows[0]])]
                self.observe(table.contexts[rows], table.executed[rows], table.reward[rows], action_set=own)
        return len(place)

    def snapshot(self) -> BanditPolicy:
        """Copy of the policy as it is now."""
        return copy_policy(self.policy)

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn from every scored decision; a missing reward teaches nothing."""
        known = episodes.scored[episodes.owner]
        contexts = episodes.observations[known].astype(np.float64)
        self.observe(contexts, episodes.chosen[known].astype(np.int64), credits.advantage[known].astype(np.float64))
        return {**credits.metrics, "bandit/observed": float(self.observed)}

    def state(self) -> State:
        arrays: State = dict(self.model.contents().arrays)
        return {"observed": self.observed, "model": arrays}

    def restore(self, state: State) -> None:
        """Take up a saved state; that of a run of hone 0.1 leaves the model to the policy's file."""
        self.observed = integer(state, "observed")
        if "model" in state:
            saved = substate(state, "model")
            arrays = {name: array(saved, name).astype(np.float64) for name in saved}
            self.model.load_contents(PolicyContents(settings=self.model.contents().settings, arrays=arrays))


@dataclass
class PolicyActor:
    """Actor that draws each action from the policy's distribution."""

    policy: BanditPolicy
    actions: ActionSet
    version: int = 0

    def publish(self, policy: BanditPolicy, version: int) -> None:
        self.policy, self.version = policy, version

    def choose(self, context: Floats, draws: np.random.Generator) -> tuple[Ints, NDArray[np.float32]]:
        """Actions `[n]` for contexts `[n, d]`, and their log-probabilities `[n]` in nats."""
        logp = self.policy.logp_rows(context, self.actions)
        cumulative = np.exp(logp).cumsum(axis=1)
        wanted = draws.random(len(context)) * cumulative[:, -1]
        chosen = (cumulative <= wanted[:, None]).sum(axis=1).astype(np.int64)
        return chosen, logp[np.arange(len(chosen)), chosen].astype(np.float32)


@dataclass
class ThompsonActor:
    """Actor that pulls the arm whose drawn reward is greatest, which is a draw from the policy's distribution."""

    policy: BanditPolicy
    posterior: BetaBernoulliPosterior | LinearGaussianPosterior
    """The model of `policy`."""
    actions: ActionSet
    version: int = 0

    def publish(self, policy: BanditPolicy, version: int) -> None:
        self.policy, self.version = policy, version

    def choose(self, context: Floats, draws: np.random.Generator) -> tuple[Ints, NDArray[np.float32]]:
        """Actions `[n]` for contexts `[n, d]`, and their log-probabilities `[n]` in nats."""
        chosen = self.posterior.draw(context, draws).argmax(axis=1).astype(np.int64)
        logp = self.policy.logp_rows(context, self.actions)
        return chosen, logp[np.arange(len(chosen)), chosen].astype(np.float32)
