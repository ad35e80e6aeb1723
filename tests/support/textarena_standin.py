"""The part of TextArena's interface that its adapter uses, with one game of its own: Nim, as the package has it.

A slow test runs the adapter on the package itself.
"""

import random
import re
from enum import Enum, auto
from types import SimpleNamespace

GAME_ID = -1
PILES = [3, 4, 5]


class ObservationType(Enum):
    PROMPT = auto()
    PLAYER_ACTION = auto()
    GAME_ACTION_DESCRIPTION = auto()
    GAME_MESSAGE = auto()
    GAME_BOARD = auto()
    GAME_ADMIN = auto()


class NimState:
    """State of two players, one of whose invalid moves is forgiven."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)
        self.current_player_id, self.error_count, self.done, self.rewards = 0, 0, False, None
        self.role_mapping = {0: "Player 0", 1: "Player 1"}
        self.observations: dict[int, list] = {0: [], 1: []}
        self.game_info = {seat: {"invalid_move": False} for seat in (0, 1)}


class NimGame:
    def reset(self, num_players: int, seed: int) -> None:
        assert num_players == 2
        self.state, self.piles = NimState(seed), list(PILES)
        for seat in (0, 1):
            self.state.observations[seat].append((GAME_ID, f"Welcome, Player {seat}!", ObservationType.PROMPT))
        self._tell(GAME_ID, self._board(), ObservationType.GAME_BOARD)

    def step(self, action: str):
        seat, state = self.state.current_player_id, self.state
        self._tell(seat, action, ObservationType.PLAYER_ACTION)
        found = re.search(r"\[(\d) (\d)\]", action)
        pile, count = (int(found[1]), int(found[2])) if found else (9, 0)
        if not (pile < len(self.piles) and 0 < count <= self.piles[pile]):
            if state.error_count:
                state.error_count, state.done, state.rewards = 0, True, {seat: -1, 1 - seat: 1}
                state.game_info[seat]["invalid_move"] = True
            else:
                state.error_count = 1
                state.observations[seat].append((GAME_ID, "An invalid move.", ObservationType.GAME_ADMIN))
            return state.done, {}
        self.piles[pile] -= count
        state.error_count = 0
        self._tell(GAME_ID, self._board(), ObservationType.GAME_BOARD)
        if not any(self.piles):
            state.done, state.rewards = True, {seat: 1, 1 - seat: -1}
        else:
            state.current_player_id = 1 - seat
        return state.done, {}

    def close(self):
        return self.state.rewards, self.state.game_info

    def _tell(self, sender: int, message: str, kind: ObservationType) -> None:
        for seat in (0, 1):
            self.state.observations[seat].append((sender, message, kind))

    def _board(self) -> str:
        return "Current Pile:\n" + "\n".join(f"  pile {place}: {count}" for place, count in enumerate(self.piles))


def make(game: str) -> NimGame:
    assert game == "Nim-v0"
    return NimGame()


envs = SimpleNamespace(registration=SimpleNamespace(ENV_REGISTRY={"Nim-v0": None}))
