"""Dynamic difficulty of a game: how strong each player is, how hard each level is, and the choice of the next level.

Belongs here: the bookkeeping around `TargetRatePolicy`. A round is a game between the player and the level, and moves
the ratings of both; the choice of a level is a draw with its log-probability.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.core.decisions import ActionSet, Choice, Floats
from hone.core.errors import DataError
from hone.core.random import key
from hone.core.state import State, array
from hone.decide.bandits.greedy import TargetRatePolicy
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.estimators.ratings import Rating, WengLin


@dataclass(slots=True, kw_only=True)
class Difficulty:
    """Levels for players, each at the target rate of success.

    >>> game = Difficulty(target=0.65, levels=9)
    >>> choice = game.choose("ada", round=0)
    >>> game.record("ada", choice.action, passed=True)
    >>> game.chance("ada", choice.action) > 0.5
    True
    """

    target: float = 0.65
    """Rate of success that levels are chosen for."""
    levels: int | Sequence[Rating] = 21
    """Ratings of the levels; or how many, at even distances over two deviations of new players on either side, half as
    uncertain as those."""
    spread: float = 0.02
    """Standard deviation about the target of the chances that levels are chosen at."""
    floor: float = 0.02
    """Probability of a uniform level: without it no other policy can be estimated from the log."""
    seed: int = 0
    """Seed of the draws."""
    system: WengLin = field(default_factory=lambda: WengLin(damped=False))
    """How ratings move."""
    players: dict[str, Rating] = field(default_factory=dict[str, Rating])
    _levels: list[Rating] = field(init=False)
    _actions: ActionSet = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.levels, int):
            means = self.system.mean + 2 * self.system.deviation * np.linspace(-1, 1, self.levels)
            self._levels = [Rating(mean, self.system.deviation / 2) for mean in means.tolist()]
        else:
            self._levels = list(self.levels)
        self._actions = numbered_actions(len(self._levels))

    @property
    def policy(self) -> BanditPolicy:
        """The policy of now, over contexts whose first two features are a player's mean and deviation. Raises
        ConfigError for settings that make none."""
        levels = np.array([level[:2] for level in self._levels], np.float64).reshape(-1, 2)
        inner = TargetRatePolicy(levels, target=self.target, spread=self.spread, beta=self.system.beta)
        return EpsilonFloor(inner, self.floor) if self.floor else inner

    def context(self, player: str) -> Floats:
        """Features `[2]` of a player: mean and deviation; those of a new one if nothing is known."""
        return np.array(self.players.get(player, self.system.initial)[:2])

    def choose(self, player: str, *, round: int) -> Choice:
        """Draw the level of a player's round; the same player and round draw the same, as long as the ratings stand."""
        return self.policy.act(self.context(player), self._actions, key(self.seed, "level", player, round))

    def chance(self, player: str, level: int) -> float:
        """Chance that the player passes the level."""
        return self.system.expected_score([self.players.get(player, self.system.initial)], [self._levels[level]])

    def record(self, player: str, level: int, *, passed: bool) -> None:
        """Take the result of a round. Raises DataError for a level that does not exist."""
        if not 0 <= level < len(self._levels):
            raise DataError(f"level {level} of {len(self._levels)}; the round of player {player!r} was not counted")
        before = self.players.get(player, self.system.initial)
        (after,), (level_after,) = self.system.rate([[before], [self._levels[level]]], [0, 1] if passed else [1, 0])
        self.players[player], self._levels[level] = after, level_after

    def state(self) -> State:
        """All ratings, to go on from."""
        return {
            "levels": np.array(self._levels, np.float64),
            "names": list(self.players),
            "players": np.array(list(self.players.values()), np.float64).reshape(-1, 3),
        }

    def restore(self, state: State) -> None:
        """Go on from a state: the next choices and ratings are those of the uninterrupted session, to the bit."""
        names = state["names"]
        assert isinstance(names, list)
        self._levels = [Rating(*level) for level in array(state, "levels").tolist()]
        ratings = (Rating(*player) for player in array(state, "players").tolist())
        self.players = dict(zip(map(str, names), ratings, strict=True))
