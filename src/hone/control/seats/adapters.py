"""Adapters of PettingZoo and OpenSpiel, and the constructor of a game from its config.

PettingZoo (1.27): an agent's reward is what `last()` gives at its next turn, which is the sum since its previous one;
an agent that has ended gets one more turn, whose action must be None. Masks are a key `action_mask` of the observation
or of `info`. OpenSpiel (2.0): rewards are the differences of `returns()`, chance nodes are drawn here.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from hone.control.environments.make import call_user_code
from hone.control.environments.padding import padded_space, padded_value, require_sequences, sequence_paths
from hone.control.seats.compiled_games import CompiledGame
from hone.control.seats.game import Array, SeatGame, SeatsConfig, SeatStep, SeatView, Space
from hone.core.errors import ConfigError, did_you_mean
from hone.core.random import generator
from hone.process.user_files import check_reference, load_reference

_MASK, _SEEN = "action_mask", "observation"

# ----------------------------------------------------------------------------------------------------------- pettingzoo


class _PettingZooGame(SeatGame):
    """Seats, spaces and views that both forms of a PettingZoo environment have."""

    def __init__(self, env: Any) -> None:  # noqa: ANN401 - of PettingZoo, which is optional
        self.env = env
        self.seats = tuple(env.possible_agents)
        self.number = {name: seat for seat, name in enumerate(self.seats)}
        shown = [env.observation_space(name) for name in self.seats]
        self.observation_spaces = tuple(map(_without_mask, shown))
        self.action_spaces = tuple(env.action_space(name) for name in self.seats)
        self.views: dict[int, SeatView] = {}
        """The last view of each seat."""
        self.has_state = True

    def observe(self, seat: int) -> SeatView:
        return self.views[seat]

    def state(self) -> Array | None:
        if not (self.has_state and callable(self.env.unwrapped.state)):
            return None
        try:
            return np.asarray(self.env.state(), np.float32).ravel()
        except (NotImplementedError, AttributeError):  # the author wrote none
            self.has_state = False
            return None

    def close(self) -> None:
        self.env.close()


class PettingZooTurns(_PettingZooGame):
    """An AEC environment of PettingZoo: one agent moves at a time."""

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)
        self.views.clear()
        self._settle()

    def to_move(self) -> Sequence[int]:
        return [self.number[self.env.agent_selection]] if self.env.agents else []

    def observe(self, seat: int) -> SeatView:
        name = self.seats[seat]
        waits = name in self.env.agents and name != self.env.agent_selection
        return _view(self.env.observe(name), {}) if waits else self.views[seat]

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        (action,) = actions.values()
        self.env.step(action)
        return self._settle()

    def _settle(self) -> SeatStep:
        """Take the turns of agents that have ended, and read the view and the reward of the agent that is to move."""
        rewards: dict[int, float] = {}
        ended: dict[bool, list[int]] = {True: [], False: []}
        while self.env.agents:
            seat = self.number[self.env.agent_selection]
            seen, reward, terminated, truncated, info = self.env.last()
            rewards[seat] = rewards.get(seat, 0.0) + float(reward)
            self.views[seat] = _view(seen, info)
            if not (terminated or truncated):
                break
            ended[bool(terminated)].append(seat)
            self.env.step(None)
        return SeatStep(rewards=rewards, terminated=ended[True], truncated=ended[False])


class PettingZooParallel(_PettingZooGame):
    """A parallel environment of PettingZoo: all live agents move at once."""

    def reset(self, seed: int) -> None:
        seen, info = self.env.reset(seed=seed)
        self.views = {self.number[name]: _view(seen[name], info.get(name, {})) for name in seen}

    def to_move(self) -> Sequence[int]:
        return [self.number[name] for name in self.env.agents]

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        acted = {self.seats[seat]: action for seat, action in actions.items()}
        seen, rewards, terminated, truncated, info = self.env.step(acted)
        self.views |= {self.number[name]: _view(seen[name], info.get(name, {})) for name in seen}
        return SeatStep(
            rewards={self.number[name]: float(reward) for name, reward in rewards.items()},
            terminated=[self.number[name] for name, flag in terminated.items() if flag],
            truncated=[self.number[name] for name, flag in truncated.items() if flag and not terminated.get(name)],
        )


def _without_mask(space: Space) -> Space:
    """The space of what the network sees: without the mask, and without the Dict that held it."""
    if not isinstance(space, spaces.Dict) or _MASK not in space.spaces:
        return space
    rest = {name: part for name, part in space.spaces.items() if name != _MASK}
    return rest[_SEEN] if set(rest) == {_SEEN} else spaces.Dict(rest)


def _view(seen: Any, info: Mapping[str, Any]) -> SeatView:  # noqa: ANN401 - of any space
    mask = info.get(_MASK)
    if isinstance(seen, Mapping) and _MASK in seen:
        mask = seen[_MASK]
        rest = {name: part for name, part in seen.items() if name != _MASK}
        seen = rest[_SEEN] if set(rest) == {_SEEN} else rest
    return SeatView(seen=seen, mask=None if mask is None else np.asarray(mask, np.bool_))


# ------------------------------------------------------------------------------------------------------------ openspiel


class OpenSpielGame(SeatGame):
    """A game of OpenSpiel: information states where information is imperfect, observations where it is perfect."""

    def __init__(self, game: Any) -> None:  # noqa: ANN401 - of OpenSpiel, which is optional
        self.game = game
        kind, count = game.get_type(), game.num_players()
        self.seats = tuple(f"player_{seat}" for seat in range(count))
        hidden = kind.information == kind.Information.IMPERFECT_INFORMATION and kind.provides_information_state_tensor
        if not hidden and not kind.provides_observation_tensor:
            raise ConfigError(f"OpenSpiel's {kind.short_name} gives no tensor of numbers that a network could read")
        if kind.dynamics == kind.Dynamics.MEAN_FIELD:
            raise ConfigError(f"OpenSpiel's {kind.short_name} is a mean-field game, which has no seats")
        self.hidden = hidden
        shape = game.information_state_tensor_shape() if hidden else game.observation_tensor_shape()
        seen = spaces.Box(-np.inf, np.inf, (int(np.prod(shape)),), np.float32)
        self.observation_spaces = (seen,) * count
        self.action_spaces = (spaces.Discrete(game.num_distinct_actions()),) * count
        self.position: Any = None
        """State of the match."""

    def reset(self, seed: int) -> None:
        self.draws = generator(seed, "chance")
        self.position = self.game.new_initial_state()
        self.paid = np.zeros(len(self.seats))
        self._chance()

    def to_move(self) -> Sequence[int]:
        position = self.position
        if position.is_terminal():
            return []
        if position.is_simultaneous_node():
            return [seat for seat in range(len(self.seats)) if position.legal_actions(seat)]
        return [position.current_player()]

    def observe(self, seat: int) -> SeatView:
        position = self.position
        numbers = position.information_state_tensor(seat) if self.hidden else position.observation_tensor(seat)
        mask = None if position.is_terminal() else np.asarray(position.legal_actions_mask(seat), np.bool_)
        return SeatView(seen=np.asarray(numbers, np.float32), mask=mask)

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        position = self.position
        if position.is_simultaneous_node():
            # A seat without a legal action has the action 0 there, which the game ignores.
            position.apply_actions([int(actions.get(seat, 0)) for seat in range(len(self.seats))])
        else:
            (action,) = actions.values()
            position.apply_action(int(action))
        self._chance()
        paid = np.asarray(position.returns(), np.float64)
        rewards, self.paid = paid - self.paid, paid
        ended = range(len(self.seats)) if position.is_terminal() else ()
        return SeatStep(rewards=dict(enumerate(rewards.tolist())), terminated=ended)

    def _chance(self) -> None:
        """Draw at chance nodes until a seat is to move."""
        while self.position.is_chance_node():
            outcomes, chances = zip(*self.position.chance_outcomes(), strict=True)
            below = np.cumsum(chances) <= self.draws.random() * sum(chances)
            self.position.apply_action(outcomes[min(int(below.sum()), len(outcomes) - 1)])


# -------------------------------------------------------------------------------------------------------------- opening


class _PaddedGame(SeatGame):
    """A game whose seats see sequences, filled up."""

    def __init__(self, game: SeatGame, lengths: Mapping[str, int]) -> None:
        self.game, self.seats, self.action_spaces = game, game.seats, game.action_spaces
        self.lengths = lengths
        require_sequences([path for space in game.observation_spaces for path in sequence_paths(space)], lengths)
        self.observation_spaces = tuple(padded_space(space, lengths) for space in game.observation_spaces)

    def reset(self, seed: int) -> None:
        self.game.reset(seed)

    def to_move(self) -> Sequence[int]:
        return self.game.to_move()

    def observe(self, seat: int) -> SeatView:
        view = self.game.observe(seat)
        return replace(view, seen=padded_value(self.game.observation_spaces[seat], self.lengths, view.seen))

    def step(self, actions: Mapping[int, Any]) -> SeatStep:
        return self.game.step(actions)

    def state(self) -> Array | None:
        return self.game.state()

    def close(self) -> None:
        self.game.close()


def game_maker(config: SeatsConfig) -> Callable[[], SeatGame]:
    """Constructor of the game that a config names, with its sequences filled up. Raises ConfigError for an unknown id
    and a package that is not installed, UserCodeError for code that fails."""
    make = _game_maker(config)
    return (lambda: _PaddedGame(make(), config.pad)) if config.pad else make


def _game_maker(config: SeatsConfig) -> Callable[[], SeatGame]:
    place, _, name = config.id.partition(":")
    if place == "compiled":
        return lambda: CompiledGame(name)
    if place == "pettingzoo":
        return _registered_pettingzoo(config, name)
    if place == "openspiel":
        return _registered_openspiel(config, name)
    check_reference(config.id, kind="env.id")
    made = load_reference(config.id, kind="env.id")
    if not callable(made):
        raise ConfigError(f"env.id = {config.id!r}: {name} is no class or function that makes a game")
    return lambda: as_seat_game(call_user_code(config.id, lambda: made(**config.kwargs)), config.id)


def as_seat_game(made: object, name: str) -> SeatGame:
    """A game of seats from one, from a PettingZoo environment or from an OpenSpiel game. Raises ConfigError."""
    if isinstance(made, SeatGame):
        return made
    if importlib.util.find_spec("pettingzoo") is not None:
        from pettingzoo import AECEnv, ParallelEnv  # noqa: PLC0415 - optional, and slow to import

        if isinstance(made, ParallelEnv):
            return PettingZooParallel(made)
        if isinstance(made, AECEnv):
            return PettingZooTurns(made)
    if type(made).__module__.startswith("pyspiel"):
        return OpenSpielGame(made)
    raise ConfigError(
        f"env.id = {name!r} made a {type(made).__name__}; it must make a hone.control.seats.game.SeatGame, a "
        "PettingZoo environment (AECEnv, ParallelEnv) or an OpenSpiel game"
    )


def _require_package(module: str, package: str, what: str) -> None:
    """Raises ConfigError where an optional package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{what} needs the package {package}: pip install 'hone-rl[envs]', or pip install {package}")


def _registered_pettingzoo(config: SeatsConfig, name: str) -> Callable[[], SeatGame]:
    _require_package("pettingzoo", "pettingzoo", f"env.id = {config.id!r}")
    import pettingzoo  # noqa: PLC0415 - optional, and slow to import
    from pettingzoo import aec_registry, parallel_registry  # noqa: PLC0415

    known = {"parallel": parallel_registry, "aec": aec_registry}
    apis: list[Any] = [api for api, registry in known.items() if name in registry and config.api in {"auto", api}]
    if not apis:
        hint = did_you_mean(name, sorted({*aec_registry, *parallel_registry}))
        form = "" if config.api == "auto" else f" of the form env.api = {config.api!r}"
        raise ConfigError(f"env.id = {config.id!r}: PettingZoo has no environment {name!r}{form}{hint}")
    api, adapter = apis[0], PettingZooParallel if apis[0] == "parallel" else PettingZooTurns
    kwargs: dict[str, Any] = dict(config.kwargs)
    return lambda: adapter(call_user_code(config.id, lambda: pettingzoo.make(api, name, **kwargs)))


def _registered_openspiel(config: SeatsConfig, name: str) -> Callable[[], SeatGame]:
    _require_package("pyspiel", "open-spiel", f"env.id = {config.id!r}")
    import pyspiel  # noqa: PLC0415 - optional

    short = name.partition("(")[0]
    if short not in (names := pyspiel.registered_names()):
        raise ConfigError(f"env.id = {config.id!r}: OpenSpiel has no game {short!r}{did_you_mean(short, names)}")

    def load() -> Any:  # noqa: ANN401 - of OpenSpiel
        return pyspiel.load_game(name, dict(config.kwargs)) if config.kwargs else pyspiel.load_game(name)

    return lambda: OpenSpielGame(call_user_code(config.id, load))
