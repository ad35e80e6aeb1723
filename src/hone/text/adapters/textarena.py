"""Games of TextArena as dialogue worlds: the policy plays one seat, another player all others.

Every message of the game reaches the policy once; the observation wrappers of TextArena, which repeat a game's history
in every observation, are for players without memory. The game's reward is paid at its end.
"""

import copy
import importlib
import importlib.util
import inspect
import random
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast, get_args

from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import ConfigError, ErrorCollector, ResourceError, UserCodeError, did_you_mean
from hone.core.random import key, permutation
from hone.process.user_files import load_reference

textarena: Any = importlib.import_module("textarena") if importlib.util.find_spec("textarena") else None
"""The package, imported here so that forked dialogues share it; None without it, which a game says when it begins."""
_GLOBAL_RANDOM = threading.Lock()
"""Held while a game runs: TextArena's games draw from Python's global random numbers."""
_ALL = ("prompt", "player_action", "game_action_description", "game_message", "game_board", "game_admin")
"""Kinds of a game's messages, in TextArena's words."""

RewardScale = Literal["unit", "game"]
Player = Callable[[str], str]
"""A player of TextArena: its observation -> its action."""


class TextArenaWorld:
    """One game of TextArena, by its id: `{game = "Nim-v0", opponent = {use = "random", moves = ["[0 1]", ...]}}`."""

    def __init__(
        self,
        game: str,
        *,
        opponent: str | Mapping[str, Any] = "",
        players: int = 2,
        seat: int | None = None,
        show: Sequence[str] = _ALL,
        read: str = "",
        rewards: RewardScale = "unit",
    ) -> None:
        """Describe a game.

        `opponent`: a table `{use = ..., NAME = ...}` of a player and its arguments. `random` draws legal moves among
        `moves`; `file.py:name` is a function from its observation to its action, or a class, such as an agent of
        `textarena.agents`. `players`: number of seats. `seat`: that of the policy; None draws it for each game.
        `show`: kinds of messages that the policy reads; `latest_board` in the place of `game_board` leaves out all
        boards but the latest. `read`: a regular expression of which the policy reads the matches (their first groups)
        in place of the messages. `rewards`: the game's own, or these from 0 to 1 (`unit`: 1 won, 0.5 drawn, 0 lost): a
        dialogue that a limit cuts has the reward 0, and with -1 for a loss a policy learns to be cut.
        """
        self._game, self._players, self._seat, self._show = game, players, seat, frozenset(show)
        table = {"use": opponent} if isinstance(opponent, str) else dict(opponent)
        self._opponent, self._options = str(table.pop("use", "")), table
        self._read_pattern, self._rewards = read, rewards

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin a game; a column `seed` fixes its chance moves, for games that several samples are to share."""
        self._check()
        self._seed, self._turn, self._invalid = seed, 0, 0
        self._place = key(seed, "textarena/seat") % self._players if self._seat is None else self._seat
        self._player = self._made_opponent()
        self._read: dict[int, str] = dict.fromkeys(range(self._players), "")
        self._random = random.Random(seed).getstate()
        with self._chance():
            self._env = textarena.make(self._game)
            self._env.reset(num_players=self._players, seed=int(columns.get("seed", seed)) % 2**32)
            return self._until_the_policys_turn(done=False)

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Play the policy's move, and those of the others until it is its turn again."""
        with self._chance():
            done, _ = self._env.step(said.text)
            self._invalid += not done and _was_invalid(self._env, self._place)
            return self._until_the_policys_turn(done=done)

    def close(self) -> None:
        """End the game."""

    def _until_the_policys_turn(self, *, done: bool) -> WorldTurn:
        state = self._env.state
        while not done and state.current_player_id != self._place:
            self._read[state.current_player_id] += self._news(state.current_player_id, _ALL)
            done, _ = self._env.step(self._player(self._read[state.current_player_id]))
        text = self._read_by_policy(self._news(self._place, self._show))
        messages = [{"role": "user", "content": text}] if text else []
        if not done:
            return WorldTurn(messages=messages)
        rewards, info = self._env.close()
        paid = float(rewards[self._place])
        invalid = self._invalid + info[self._place]["invalid_move"]
        facts = {"won": float(paid > 0), "drawn": float(paid == 0), "invalid_moves": float(invalid)}
        reward = paid if self._rewards == "game" else (paid + 1) / 2
        return WorldTurn(messages=messages, reward=reward, done=True, facts=facts)

    def _read_by_policy(self, text: str) -> str:
        if not self._read_pattern:
            return text
        matches = re.finditer(self._read_pattern, text)
        return " ".join(one[1] if one.groups() else one[0] for one in matches) + "\n"

    def _news(self, seat: int, kinds: Collection[str]) -> str:
        """Messages that a seat has not read yet, without its own moves."""
        state = self._env.state
        unread, state.observations[seat] = state.observations[seat], []
        names = {textarena.GAME_ID: "GAME", **state.role_mapping}
        named = [(sender, message, kind.name.lower()) for sender, message, kind in unread]
        if "latest_board" in kinds and (boards := [place for place, one in enumerate(named) if one[2] == "game_board"]):
            named[boards[-1]] = (*named[boards[-1]][:2], "latest_board")
        return "".join(
            f"[{names.get(sender, f'Player {sender}')}] {message}\n"
            for sender, message, kind in named
            if kind in kinds and sender != seat
        )

    def _random_move(self, _: str) -> str:
        """A legal move, each with the same chance: moves are tried on copies of the game."""
        self._turn += 1
        moves = list(self._options["moves"])
        order = permutation(self._seed, "textarena/random", self._turn, count=len(moves)).tolist()
        for place in order:
            tried, before = copy.deepcopy(self._env), random.getstate()
            seat = tried.state.current_player_id
            tried.step(moves[place])
            random.setstate(before)
            if not _was_invalid(tried, seat):
                return moves[place]
        raise UserCodeError(f"no move of {moves} is legal in {self._game}: name all its moves")

    def _made_opponent(self) -> Player:
        if self._opponent == "random" or self._players == 1:
            return self._random_move
        opponent = load_reference(self._opponent, kind="opponent")
        if inspect.isclass(opponent):
            return cast("Player", opponent(**self._options))
        return partial(cast("Callable[..., str]", opponent), **self._options)

    def _check(self) -> None:
        """Raise ResourceError without the package, and ConfigError with all faults of the options."""
        if textarena is None:
            raise ResourceError("TextArena is not installed where worlds run: pip install textarena")
        faults = ErrorCollector(ConfigError)
        if self._game not in textarena.envs.registration.ENV_REGISTRY:
            known = list(textarena.envs.registration.ENV_REGISTRY)
            faults.add(f"game = {self._game!r} is no game of TextArena{did_you_mean(self._game, known)}")
        if self._players > 1 and not self._opponent:
            faults.add(
                "opponent names no player: write opponent = { use = 'random', moves = [...] }, or a file.py:name"
            )
        if self._opponent == "random" and (set(self._options) != {"moves"} or not self._options["moves"]):
            faults.add("the random opponent takes `moves`, all moves of the game: it plays the legal ones among them")
        if self._rewards not in get_args(RewardScale):
            faults.add(f"rewards = {self._rewards!r} is none of {', '.join(get_args(RewardScale))}")
        try:
            re.compile(self._read_pattern)
        except re.error as error:
            faults.add(f"read = {self._read_pattern!r} is no regular expression: {error}")
        if self._seat is not None and not 0 <= self._seat < self._players:
            faults.add(f"seat = {self._seat} is none of {self._players} players; the first seat is 0")
        for kind in sorted(self._show - {*_ALL, "latest_board"}):
            faults.add(f"show has the kind {kind!r}{did_you_mean(kind, [*_ALL, 'latest_board'])}")
        faults.raise_if_any()

    @contextmanager
    def _chance(self) -> Iterator[None]:
        """Python's global random numbers are this game's within, and untouched after."""
        with _GLOBAL_RANDOM:
            outside = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outside)


def _was_invalid(env: Any, seat: int) -> bool:  # noqa: ANN401 - a game, of a package without types
    """Whether the last move, by `seat`, was against the rules: it is to be repeated, or has lost the game."""
    return bool(env.state.error_count or env.state.game_info[seat].get("invalid_move", False))
