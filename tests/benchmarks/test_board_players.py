"""The scripted players of OpenSpiel's board games see a win, and the threat of the other."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pyspiel = pytest.importorskip("pyspiel", reason="needs open-spiel, of the extra envs")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("board_players")


@pytest.mark.parametrize(
    ("game", "moves", "best"),
    [
        ("tic_tac_toe", [0, 3, 1, 4], 2),  # crosses 0 and 1, and it is theirs: they win, and block nothing
        ("tic_tac_toe", [0, 3, 1], 2),  # noughts block
        ("connect_four", [4, 5, 4, 5, 4, 5], 4),  # three high: the first seat wins
        ("connect_four", [4, 5, 4, 5, 4], 4),  # the second seat blocks
        ("connect_four", [6, 0, 6, 1, 5, 2, 5], 3),  # a row of the second seat
    ],
)
def test_they_win_or_block(players: ModuleType, game: str, moves: list[int], best: int) -> None:
    state = pyspiel.load_game(game).new_initial_state()
    for move in moves:
        state.apply_action(move)
    seat = state.current_player()
    seen = np.array(state.observation_tensor(seat), np.float32)
    mask = np.array(state.legal_actions_mask(), np.bool_)
    play = {"tic_tac_toe": players.tic_tac_toe, "connect_four": players.connect_four}[game]
    assert {play(seen, mask, seat, np.random.default_rng(seed)) for seed in range(20)} == {best}
