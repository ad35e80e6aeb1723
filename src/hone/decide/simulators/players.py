"""Players of a game: skills that nobody tells, results of their games, levels that they pass, and when they give up.

Everything is a function of (seed, player, game), so that policies compared on one seed have common random numbers.
Skills are in units of one deviation of new players. Does not belong here: ratings, pairing, policies.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hone.core.decisions import Floats
from hone.core.random import generator, uniforms


@dataclass(frozen=True)
class PlayerWorld:
    """A population whose games follow P(win) = sigmoid(steepness * (difference of the summed skills))."""

    players: int
    seed: int
    steepness: float = 2.0
    """Effect of skill on a game: at 2, one deviation more of skill wins 88% of the games."""
    smurfs: int = 0
    """The last players are strong ones under a new name, two to three deviations above the mean."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the players."""
        return tuple(f"player{number}" for number in range(self.players))

    @cached_property
    def skills(self) -> Floats:
        """Skills `[players]`, standard normal but of the smurfs."""
        skills = generator(self.seed, "skills").standard_normal(self.players)
        if self.smurfs:
            skills[-self.smurfs :] = 2 + uniforms(self.seed, "smurfs", count=self.smurfs)
        return skills

    def chance(self, one: tuple[int, ...], other: tuple[int, ...]) -> float:
        """Chance that a team beats another; players by their numbers."""
        difference = float(self.skills[list(one)].sum() - self.skills[list(other)].sum())
        return 1 / (1 + math.exp(-self.steepness * difference))

    def wins(self, one: tuple[int, ...], other: tuple[int, ...], game: int) -> bool:
        """Whether the first team wins a game of that number."""
        return float(uniforms(self.seed, "game", game, *one, *other, count=1)[0]) < self.chance(one, other)


@dataclass(frozen=True)
class LevelWorld:
    """Levels of a game, and a player in a session who learns, passes or fails, and may give up for good.

    P(pass) = sigmoid(steepness * (skill + learning * round - difficulty)). After a round the player leaves with the
    probability boredom + frustration * (chance - target)^2: too easy bores, too hard frustrates.
    """

    levels: int
    seed: int
    steepness: float = 1.5
    learning: float = 0.005
    """Skill that a round adds."""
    boredom: float = 0.002
    frustration: float = 0.25
    target: float = 0.65
    """Chance at which players stay longest."""

    @cached_property
    def difficulties(self) -> Floats:
        """Difficulties `[levels]`: over two and a half deviations of skill on either side, ascending, uneven."""
        even = np.linspace(-2.5, 2.5, self.levels)
        gap = 5 / max(1, self.levels - 1)
        return np.sort(even + 0.4 * gap * generator(self.seed, "difficulties").uniform(-1, 1, self.levels))

    def skill(self, player: int) -> float:
        """Skill of a player at the first round."""
        return float(generator(self.seed, "skill", player).standard_normal())

    def chance(self, player: int, level: int, round: int) -> float:
        """Chance that the player passes the level in this round."""
        above = self.skill(player) + self.learning * round - self.difficulties[level]
        return 1 / (1 + math.exp(-self.steepness * above))

    def plays(self, player: int, level: int, round: int) -> tuple[bool, bool]:
        """Whether the player passes the level, and whether they leave for good after it."""
        chance = self.chance(player, level, round)
        passes, leaves = uniforms(self.seed, "round", player, round, count=2).tolist()
        return passes < chance, leaves < self.boredom + self.frustration * (chance - self.target) ** 2
