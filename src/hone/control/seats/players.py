"""Players of a game beside the learner: random, scripted, Monte Carlo tree search, and saved policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import BoxActions
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.seats.adapters import OpenSpielGame
from hone.control.seats.game import Array
from hone.control.seats.matches import SeatLayout, Turn
from hone.core.errors import ConfigError, DataError
from hone.process.user_files import check_reference, load_reference
from hone.run.store.checkpoints import CheckpointFolder


class Player(ABC):
    """Chooses the actions of seats that it plays, in any number of matches at a time."""

    @abstractmethod
    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        """Actions `[m, *action]` of the decisions of `turn`, in the form of its layout."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomPlayer(Player):
    """Chooses uniformly among the legal actions, or in the box."""

    layout: SeatLayout

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        actions, count = self.layout.actions, len(turn.seats)
        if isinstance(actions, BoxActions):
            unit = draws.uniform(-1.0, 1.0, (count, actions.size)).astype(np.float32)
            return (actions.middle + actions.reach * unit).reshape(count, *actions.shape)
        if turn.mask is None:
            return draws.integers(actions.count, size=count)
        return np.where(turn.mask, draws.random(turn.mask.shape), -1.0).argmax(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class PolicyPlayer(Player):
    """Plays a policy: samples its actions, or takes its mode."""

    policy: NumpyPolicy
    greedy: bool = False

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        if self.greedy:
            return self.policy.best(turn.seen, turn.mask)
        return self.policy.decide(turn.seen, self.policy.noise(draws, (len(turn.seats),)), turn.mask)[0]


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedPlayer(Player):
    """Plays by a function `play(seen, mask, seat, draws) -> action` of the user's, in the game's own observations and
    actions; `draws` is a numpy generator."""

    layout: SeatLayout
    play: Callable[..., Any]

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        chosen: list[Array] = []
        for game, seat in zip(turn.games, turn.seats.tolist(), strict=True):
            view = game.observe(seat)
            action = self.play(view.seen, view.mask, seat, draws)
            if not self.layout.action_spaces[seat].contains(action):
                legal = isinstance(action, int | np.integer) and isinstance(
                    self.layout.action_spaces[seat], spaces.Discrete
                )
                if not legal or not self.layout.action_spaces[seat].contains(np.int64(action)):
                    raise ConfigError(
                        f"the scripted player chose {action!r}, outside {self.layout.action_spaces[seat]}"
                    )
            chosen.append(self.layout.to_policy(seat, action))
        return np.stack(chosen)


@dataclass(frozen=True, slots=True, eq=False)
class MctsPlayer(Player):
    """OpenSpiel's Monte Carlo tree search with random rollouts, in games of perfect information."""

    simulations: int

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        import pyspiel  # noqa: PLC0415 - optional; the games are OpenSpiel's

        chosen: list[int] = []
        for game in turn.games:
            assert isinstance(game, OpenSpielGame)
            evaluator = pyspiel.RandomRolloutEvaluator(1, int(draws.integers(2**31)))
            bot = pyspiel.MCTSBot(
                game.game, evaluator, 2.0, self.simulations, 64, True, int(draws.integers(2**31)), False
            )
            chosen.append(int(bot.step(game.position)))
        return np.array(chosen)


def open_player(name: str, layout: SeatLayout, game: object) -> Player:
    """The player that a config names: `random`, `mcts:SIMULATIONS`, `file.py:function`, or the folder of a saved policy
    or of a run. Raises ConfigError, DataError."""
    if name == "random":
        return RandomPlayer(layout)
    if name.startswith("mcts:"):
        return _mcts_player(name, game)
    if Path(name).is_dir():
        return PolicyPlayer(load_player_policy(Path(name), layout))
    if ".py:" not in name and ":" not in name:
        raise ConfigError(
            f"player {name!r}: write random, mcts:SIMULATIONS, file.py:function, or the folder of a policy (there is "
            "no such folder)"
        )
    check_reference(name, kind="player")
    play = load_reference(name, kind="player")
    if not callable(play):
        raise ConfigError(f"player {name!r} is no function")
    return ScriptedPlayer(layout, play)


def _mcts_player(name: str, game: object) -> Player:
    number = name.removeprefix("mcts:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(f"player {name!r}: write the number of simulations, as in mcts:100")
    if not isinstance(game, OpenSpielGame):
        raise ConfigError(f"player {name!r}: tree search needs a game of OpenSpiel (env.id = 'openspiel:...')")
    if game.hidden or len(game.seats) < 1 or game.game.get_type().chance_mode.name == "SAMPLED_STOCHASTIC":
        raise ConfigError(f"player {name!r}: tree search needs a game of perfect information")
    return MctsPlayer(int(number))


def load_player_policy(folder: Path, layout: SeatLayout) -> NumpyPolicy:
    """The policy in a folder that `save_policy` wrote, or in the newest checkpoint of a run. Raises DataError where it
    reads or chooses otherwise than this game's seats."""
    is_run = (folder / "checkpoints").is_dir()
    place = CheckpointFolder(folder=folder / "checkpoints").newest_policy().policy_folder if is_run else folder
    policy = load_policy(place)
    if policy.spaces.inputs.size != layout.row_size or policy.spaces.actions != layout.actions:
        mine, theirs = layout.policy_spaces, policy.spaces
        raise DataError(
            f"{place}: this policy reads {theirs.inputs.size} numbers and has {theirs.actions}; the seats of this game "
            f"have {mine.inputs.size} and {mine.actions}"
        )
    return policy.numpy_policy()
