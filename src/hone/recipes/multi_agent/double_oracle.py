"""Double oracle: each seat's population grows by the best response to the equilibrium of the populations so far
(McMahan et al., 2003); with other mixtures, fictitious play and naive self-play.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from pydantic import Field

from hone.control.networks.seats import InformationSetPolicy
from hone.control.seats.training import evaluate_seats
from hone.control.seats.tree_play import Floats
from hone.control.seats.tree_training import (
    TreeMethod,
    TreePolicies,
    TreeRunConfig,
    TreeSource,
    infoset_episodes,
)
from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.state import State, array
from hone.credit.returns import reward_as_advantage
from hone.estimators.ratings import nash_mixture
from hone.run.job import RecipeParts, RecipeSpec

Mixture = Callable[[Floats], Floats]
"""Payoffs `[k, k]` of seat 0's policies (rows) against seat 1's -> the weights `[2, k]` of both populations."""
MIXTURES: Final[Mapping[str, Mixture]] = {
    "nash": lambda payoffs: np.stack([(solved := nash_mixture(payoffs)).row, solved.column]),
    "uniform": lambda payoffs: np.full((2, len(payoffs)), 1 / len(payoffs)),
    "latest": lambda payoffs: np.tile(np.eye(len(payoffs))[-1], (2, 1)),
}
"""By name: the equilibrium of the payoffs, every member alike (fictitious play; Brown, 1951), the newest member alone
(naive self-play)."""


@dataclass(kw_only=True)
class _BestResponseSource(TreeSource):
    """Best responses of each seat to the average of the others' population."""

    def episodes_of(self, seat: int) -> Episodes:
        play, average = self.policies.play, self.policies.average
        best, paid = play.best_response(average, seat)
        gain = paid - float(play.values(average)[0, seat])
        return infoset_episodes(play, seat, best, np.full(best.shape, gain), best > 0, self.version)


@dataclass(kw_only=True)
class _PopulationLearner:
    """A population of pure policies for each seat, which grows by best responses; the released policy draws one of
    them before the match, with the weights of `mixture` (double oracle: McMahan et al., 2003; PSRO: Lanctot et al.,
    2017)."""

    policies: TreePolicies
    mixture: Mixture
    members: list[Floats] = field(default_factory=list[Floats])
    """`[I, actions]` each, of both seats together."""
    payoffs: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """`[k, k]` of seat 0."""
    weights: Floats = field(default_factory=lambda: np.zeros((2, 0)))

    @property
    def policy(self) -> InformationSetPolicy:
        """The mixture, which is released."""
        return self.policies.released

    def values(self, episodes: Episodes) -> Values:
        del episodes
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Add a best response: one seat's part of a new member, then the other's."""
        del credits
        assert episodes.seat is not None
        play, seat = self.policies.play, int(episodes.seat[0])
        if seat == 0:
            self.policies.current = self.policies.average.copy()
        sets = episodes.group
        self.policies.current[sets] = 0.0
        self.policies.current[episodes.observations.astype(np.int64), episodes.chosen.astype(np.int64)] = 1.0
        if seat == play.seats - 1:
            self._add(self.policies.current.copy())
        return {"tree/gain": float(episodes.score[0]), "tree/members": float(len(self.members))}

    def _add(self, member: Floats) -> None:
        play, mine = self.policies.play, self.policies.play.tree.seat[:, None] == 0
        self.members.append(member)
        grown = np.zeros((len(self.members),) * 2)
        grown[:-1, :-1] = self.payoffs
        for place, other in enumerate(self.members):
            grown[-1, place] = play.values(np.where(mine, member, other))[0, 0]
            grown[place, -1] = play.values(np.where(mine, other, member))[0, 0]
        self.payoffs, self.weights = grown, self.mixture(grown)
        self.policies.release(play.mixture(self.members, self.weights))

    def state(self) -> State:
        shape = self.policies.current.shape
        return {
            "members": np.array(self.members).reshape(-1, *shape),
            "payoffs": self.payoffs.copy(),
            "weights": self.weights.copy(),
            "current": self.policies.current.copy(),
        }

    def restore(self, state: State) -> None:
        self.members = [member.astype(np.float64) for member in array(state, "members")]
        self.payoffs, self.weights = (array(state, name).astype(np.float64) for name in ("payoffs", "weights"))
        self.policies.current = array(state, "current").astype(np.float64)


class DoubleOracleAlgorithm(Config):
    """How the population's members are weighted."""

    mixture: Literal["nash", "uniform", "latest"] = Field(default="nash")
    """`nash`: the equilibrium of the populations' payoffs; `uniform`: fictitious play; `latest`: naive self-play."""


class DoubleOracleConfig(TreeRunConfig):
    """A population of best responses."""

    algorithm: DoubleOracleAlgorithm = DoubleOracleAlgorithm()
    """Weights of the members."""

    def method(self, policies: TreePolicies) -> TreeMethod:
        """Source, credit and learner of the recipe."""
        learner = _PopulationLearner(policies=policies, mixture=MIXTURES[self.algorithm.mixture])
        return TreeMethod(source=_BestResponseSource(policies=policies), credit=reward_as_advantage, learner=learner)


ENTRY = RecipeSpec(
    summary="poker: a population of exact best responses and the equilibrium of its payoffs",
    paper="McMahan et al., Planning in the Presence of Cost Functions Controlled by an Adversary, 2003",
    config=DoubleOracleConfig,
    parts=RecipeParts(source="Tree(game)", credit=[reward_as_advantage], loss=[nash_mixture]),
    evaluate=evaluate_seats,
    limitation="small games only; NashConv may rise on the way: it mixes over whole policies, not over behaviour.",
)
