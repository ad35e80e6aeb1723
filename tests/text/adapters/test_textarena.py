"""Games of TextArena as worlds: on a stand-in of its interface, and (slow) on the package itself."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import textarena_standin

from hone.core.dialogue import PolicyTurn
from hone.core.errors import ConfigError, ResourceError, UserCodeError
from hone.text.adapters import textarena
from hone.text.adapters.textarena import TextArenaWorld

ROOT = Path(__file__).resolve().parents[3]
MOVES = [f"[{pile} {count}]" for pile in range(3) for count in range(1, 6)]


@pytest.fixture(autouse=True)
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textarena, "textarena", textarena_standin)


def nim(**options) -> TextArenaWorld:
    return TextArenaWorld("Nim-v0", **{"opponent": {"use": "random", "moves": MOVES}, **options})


def say(world: TextArenaWorld, text: str):
    turn = world.answer(PolicyTurn(text=text))
    return turn, "".join(str(one["content"]) for one in turn.messages)


def test_the_policy_reads_every_message_once_and_not_its_own_moves() -> None:
    world = nim(seat=0)
    begun = world.begin({}, 3)
    assert begun.messages[0]["content"] == (
        "[GAME] Welcome, Player 0!\n[GAME] Current Pile:\n  pile 0: 3\n  pile 1: 4\n  pile 2: 5\n"
    )
    _, text = say(world, "I take [2 5]")
    assert "[2 5]" not in text
    assert text.startswith("[GAME] Current Pile:\n  pile 0: 3\n  pile 1: 4\n  pile 2: 0\n[Player 1] [")
    assert text.count("Current Pile") == 2


def test_the_latest_board_alone() -> None:
    world = nim(seat=0, show=["latest_board"])
    assert str(world.begin({}, 3).messages[0]["content"]).count("pile 0") == 1
    assert say(world, "[2 5]")[1].count("Current Pile") == 1


def test_parts_of_the_messages() -> None:
    world = nim(seat=0, show=["latest_board"], read=r"pile \d: (\d)")
    assert world.begin({}, 3).messages[0]["content"] == "3 4 5\n"
    assert len(say(world, "[2 5]")[1]) == 6


def test_the_other_player_may_begin() -> None:
    (message,) = nim(seat=1).begin({}, 0).messages
    assert "[Player 0] [" in str(message["content"])
    seats = {("Player 1!" in str(nim().begin({}, seed).messages)) for seed in range(10)}
    assert seats == {False, True}, "without a seat it is drawn"


def test_an_invalid_move_is_forgiven_once_then_the_game_is_lost() -> None:
    world = nim(seat=0)
    world.begin({}, 0)
    turn, text = say(world, "[0 9]")
    assert not turn.done
    assert "invalid move" in text
    turn, _ = say(world, "nothing")
    assert (turn.done, turn.reward) == (True, 0.0)
    assert turn.facts == {"won": 0.0, "drawn": 0.0, "invalid_moves": 2.0}


def test_rewards_are_the_games_own_or_from_0_to_1() -> None:
    world = nim(seat=0, rewards="game")
    world.begin({}, 0)
    say(world, "nothing")
    assert say(world, "nothing")[0].reward == -1.0


def play(seed: int) -> list[str]:
    """All texts of a game in which the policy takes the first legal move; it has a winning one at the end."""
    world, texts = nim(), []
    turn = world.begin({}, seed)
    while not turn.done:
        texts.append(str(turn.messages))
        piles = world._env.piles
        pile = next(place for place, count in enumerate(piles) if count)
        turn = world.answer(PolicyTurn(text=f"[{pile} {piles[pile] if sum(map(bool, piles)) == 1 else 1}]"))
    assert turn.reward == turn.facts["won"]
    return [*texts, str(turn)]


def test_a_game_is_a_function_of_its_seed_and_leaves_pythons_random_numbers_alone() -> None:
    random.seed(1)
    before = random.getstate()
    games = [play(seed) for seed in range(8)]
    assert random.getstate() == before
    random.seed(2)
    assert [play(seed) for seed in range(8)] == games
    assert len({str(game) for game in games}) > 1


def test_the_random_player_draws_among_legal_moves_evenly() -> None:
    first = []
    for seed in range(600):
        (message,) = nim(seat=1).begin({}, seed).messages
        first.append(str(message["content"]).partition("[Player 0] ")[2][:5])
    legal = {f"[{pile} {count}]" for pile, size in enumerate([3, 4, 5]) for count in range(1, size + 1)}
    assert set(first) == legal
    assert all(20 < first.count(move) < 90 for move in legal)  # 50 expected, sd 7


def test_another_player_may_play(tmp_path: Path) -> None:
    (tmp_path / "players.py").write_text(
        "def first(seen, pile='0'):\n    assert 'Welcome, Player 0!' in seen\n    return f'[{pile} 1]'\n"
        "class Second:\n    def __init__(self, pile):\n        self.pile = pile\n"
        "    def __call__(self, seen):\n        return f'[{self.pile} 2]'\n"
    )
    for name, move in (("first", "[1 1]"), ("Second", "[1 2]")):
        opponent = f"{tmp_path / 'players.py'}:{name}"
        (message,) = nim(seat=1, opponent={"use": opponent, "pile": "1"}).begin({}, 0).messages
        assert f"[Player 0] {move}" in str(message["content"])


def test_faults_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as refused:
        TextArenaWorld("Nim-v1", seat=2, show=["board"], rewards="own", opponent={"pile": 1}, read="(").begin({}, 0)
    words = "\n".join(refused.value.messages)
    assert len(refused.value.messages) == 6
    assert "did you mean Nim-v0?" in words
    assert "opponent names no player" in words
    assert "rewards = 'own'" in words
    assert "read = '('" in words
    assert "seat = 2 is none of 2 players" in words
    assert "show has the kind 'board'" in words
    with pytest.raises(ConfigError, match="takes `moves`"):
        nim(opponent="random").begin({}, 0)
    with pytest.raises(UserCodeError, match="no move of"):
        nim(opponent={"use": "random", "moves": ["[7 7]"]}, seat=1).begin({}, 0)
    monkeypatch.setattr(textarena, "textarena", None)
    with pytest.raises(ResourceError, match="pip install textarena"):
        nim().begin({}, 0)


@pytest.mark.slow  # makes an environment with TextArena and MiniGrid
def test_the_packages_themselves() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from peers import require_peer

    python = require_peer("text_worlds")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests' / 'support'}"}
    command = [str(python), str(ROOT / "tests" / "support" / "real_text_worlds.py")]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert answer.returncode == 0, answer.stdout[-2000:] + answer.stderr[-4000:]
    found = json.loads(answer.stdout)
    assert found["best_wins"] == 1.0
    assert 0.35 < found["random_wins"] < 0.65
    assert found["standin_equals_package"]
    assert found["guesses"] == 1.0
    assert found["three_players"]
    assert found["minigrid"] == 1.0
