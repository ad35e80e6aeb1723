"""Players of a game: random, scripted, Monte Carlo tree search, saved policies, and tree search with a policy."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from pydantic import Field

from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import BoxActions
from hone.control.networks.numpy_policies import NumpyPolicy
from hone.control.networks.seats import NumpyPolicyValue
from hone.control.seats.adapters import OpenSpielGame
from hone.control.seats.compiled_games import (
    CompiledGame,
    Floats,
    require_searchable,
    rollout_search,
    tree_search,
)
from hone.control.seats.game import Array
from hone.control.seats.matches import SeatLayout, Turn
from hone.core.config import Config
from hone.core.errors import ConfigError, DataError
from hone.process.user_files import check_reference, load_reference
from hone.run.store.checkpoints import CheckpointFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnDecisions:
    """Decisions of a turn, as a learner wants them."""

    chosen: Array
    """`[m, *action]`"""
    logp: Floats
    """`[m]` nats; NaN where the player does not know it."""
    search_policy: Floats | None = None
    """`[m, choices]` shares of a search's visits; None: nothing was searched."""


class Player(ABC):
    """Chooses the actions of seats that it plays, in any number of matches at a time."""

    @abstractmethod
    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        """Actions `[m, *action]` of the decisions of `turn`, in the form of its layout."""

    def decide(self, turn: Turn, draws: np.random.Generator) -> _TurnDecisions:
        """The same, with the log-probabilities of the actions."""
        return _TurnDecisions(chosen=self.choose(turn, draws), logp=np.full(len(turn.seats), np.nan, np.float32))


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
        return self.decide(turn, draws).chosen

    def decide(self, turn: Turn, draws: np.random.Generator) -> _TurnDecisions:
        chosen, logp = self.policy.decide(turn.seen, self.policy.noise(draws, (len(turn.seats),)), turn.mask)
        return _TurnDecisions(chosen=chosen, logp=logp)


class TreeSearchConfig(Config):
    """Tree search by which the policy plays."""

    simulations: int = Field(default=50, ge=2)
    """Lines of each search in training."""
    evaluation_simulations: int = Field(default=100, ge=0)
    """The same in evaluations; 0: the network alone."""
    prior_weight: float = Field(default=1.5, gt=0)
    """Weight of the priors against the values (c_puct)."""
    noise: float = Field(default=0.25, ge=0, le=1)
    """Share of Dirichlet noise in the priors at the root, in training."""
    concentration: float = Field(default=1.0, gt=0)
    """Concentration of the Dirichlet noise; small numbers put it on few actions."""
    drawn_plies: int = Field(default=12, ge=0)
    """Actions of a training match that are drawn in proportion to the visits; later ones are the most visited."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SearchPlayer(Player):
    """Tree search with a network's priors and values (AlphaZero; Silver et al., 2018), in all matches of a turn
    together. It takes the most visited action; where it `explores`, it mixes Dirichlet noise into the priors and draws
    the first actions of a match in proportion to the visits."""

    policy: NumpyPolicyValue
    search: TreeSearchConfig
    explores: bool = False

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        return self.decide(turn, draws).chosen

    def decide(self, turn: Turn, draws: np.random.Generator) -> _TurnDecisions:
        games, search = [game for game in turn.games if isinstance(game, CompiledGame)], self.search
        noise = None
        if self.explores and search.noise:
            noise = draws.dirichlet(np.full(games[0].actions, search.concentration), len(games))
        result = tree_search(
            games,
            self.policy.evaluate,
            simulations=search.simulations if self.explores else search.evaluation_simulations,
            weight=search.prior_weight,
            noise=noise,
            noise_share=search.noise,
        )
        shares = result.policy
        best = (shares + 1e-6 * draws.random(shares.shape)).argmax(axis=1)  # of equal ones, any
        below = np.cumsum(shares, axis=1) <= draws.random((len(games), 1))
        drawn = np.minimum(below.sum(axis=1), shares.shape[1] - 1)
        early = np.array([game.plies for game in games]) < (search.drawn_plies if self.explores else 0)
        chosen = np.where(early & (shares[np.arange(len(games)), drawn] > 0), drawn, best)
        taken = np.where(early, shares[np.arange(len(games)), chosen], 1.0)
        return _TurnDecisions(
            chosen=chosen, logp=np.log(taken).astype(np.float32), search_policy=shares.astype(np.float32)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _ScriptedPlayer(Player):
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
    """Monte Carlo tree search with random rollouts in games of perfect information: OpenSpiel's, and the same in C++
    for compiled games."""

    simulations: int

    def choose(self, turn: Turn, draws: np.random.Generator) -> Array:
        if isinstance(turn.games[0], CompiledGame):
            games = [game for game in turn.games if isinstance(game, CompiledGame)]
            seeds = draws.integers(2**63, size=len(games)).tolist()
            moves = zip(games, seeds, strict=True)
            return np.array([rollout_search(one, simulations=self.simulations, seed=seed)[0] for one, seed in moves])
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
        return PolicyPlayer(_load_player_policy(Path(name), layout))
    if ".py:" not in name and ":" not in name:
        raise ConfigError(
            f"player {name!r}: write random, mcts:SIMULATIONS, file.py:function, or the folder of a policy (there is "
            "no such folder)"
        )
    check_reference(name, kind="player")
    play = load_reference(name, kind="player")
    if not callable(play):
        raise ConfigError(f"player {name!r} is no function")
    return _ScriptedPlayer(layout, play)


def _mcts_player(name: str, game: object) -> Player:
    number = name.removeprefix("mcts:")
    if not number.isdigit() or int(number) < 1:
        raise ConfigError(f"player {name!r}: write the number of simulations, as in mcts:100")
    if isinstance(game, CompiledGame):
        require_searchable(game)
        return MctsPlayer(int(number))
    if not isinstance(game, OpenSpielGame):
        raise ConfigError(
            f"player {name!r}: tree search needs a game of OpenSpiel (env.id = 'openspiel:...') or "
            "compiled:connect_four"
        )
    if game.hidden or len(game.seats) < 1 or game.game.get_type().chance_mode.name == "SAMPLED_STOCHASTIC":
        raise ConfigError(f"player {name!r}: tree search needs a game of perfect information")
    return MctsPlayer(int(number))


def _load_player_policy(folder: Path, layout: SeatLayout) -> NumpyPolicy:
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
