"""The adapters of TextArena and MiniGrid on the packages themselves, as JSON; run in their own environment."""

import json
import random
from functools import reduce
from operator import xor

import textarena
import textarena_standin

from hone.core.dialogue import PolicyTurn
from hone.text.adapters import textarena as adapter
from hone.text.adapters.gymnasium_text import GymnasiumTextWorld
from hone.text.adapters.textarena import TextArenaWorld

MOVES = [f"[{pile} {count}]" for pile in range(3) for count in range(1, 6)]
GAMES = 200


def best(piles: list[int]) -> str:
    """A move after which the piles' exclusive or is 0, where there is one."""
    legal = [(pile, count) for pile in range(3) for count in range(1, piles[pile] + 1)]
    after = {move: reduce(xor, [n - move[1] * (place == move[0]) for place, n in enumerate(piles)]) for move in legal}
    pile, count = min(legal, key=lambda move: after[move] != 0)
    return f"[{pile} {count}]"


def nim(seed: int, player) -> tuple[float, list[str]]:
    world, texts = (
        TextArenaWorld(
            "Nim-v0", opponent={"use": "random", "moves": MOVES}, seat=0, show=["latest_board", "player_action"]
        ),
        [],
    )
    turn = world.begin({}, seed)
    while not turn.done:
        texts.append(turn.messages[0]["content"])
        piles = [int(line.rpartition(" ")[2]) for line in texts[-1].split("\n")[-4:-1]]
        turn = world.answer(PolicyTurn(text=player(piles)))
    return turn.facts["won"], texts


def random_player(seed: int):
    draws = random.Random(seed)
    return lambda piles: draws.choice([f"[{p} {n}]" for p in range(3) for n in range(1, piles[p] + 1)])


def guess(seed: int) -> float:
    """A player who halves wins GuessTheNumber (20 numbers, 10 turns)."""
    world, low, high = TextArenaWorld("GuessTheNumber-v0", players=1), 1, 20
    turn = world.begin({}, seed)
    while not turn.done:
        middle = (low + high) // 2
        turn = world.answer(PolicyTurn(text=f"[{middle}]"))
        text = "".join(one["content"] for one in turn.messages).lower()
        low, high = (middle + 1, high) if "higher" in text else (low, middle - 1)
    return turn.facts["won"]


def three_players() -> bool:
    world = TextArenaWorld(
        "ThreePlayerTicTacToe-v0", opponent={"use": "random", "moves": [f"[{n}]" for n in range(25)]}, players=3
    )
    turn, draws = world.begin({}, 5), random.Random(0)
    while not turn.done:
        turn = world.answer(PolicyTurn(text=f"[{draws.randrange(25)}]"))
    return turn.reward in (0.0, 0.5, 1.0)


def minigrid() -> float:
    """Walk through the empty room: forward, right, forward."""
    world = GymnasiumTextWorld(
        "MiniGrid-Empty-5x5-v0",
        actions=["left", "right", "forward", "pickup", "drop", "toggle", "done"],
        module="minigrid",
        describe="hone.text.adapters.gymnasium_text:minigrid_text",
    )
    text = world.begin({}, 0).messages[0]["content"]
    assert text.startswith("Mission: get to the green goal square\nDirection: right\n"), text
    assert text.rstrip().split("\n")[-1].split(" ")[3] == "A", text
    words = ("forward", "forward", "right", "forward", "forward")
    turns = [world.answer(PolicyTurn(text=word)) for word in words]
    assert "G" in turns[2].messages[0]["content"], turns[2].messages[0]["content"]
    return float(turns[-1].done and (turns[-1].reward or 0) > 0)


def main() -> None:
    found = {
        "best_wins": sum(nim(seed, best)[0] for seed in range(GAMES)) / GAMES,
        "random_wins": sum(nim(seed, random_player(seed))[0] for seed in range(GAMES)) / GAMES,
        "guesses": sum(guess(seed) for seed in range(20)) / 20,
        "three_players": three_players(),
        "minigrid": minigrid(),
    }
    theirs = [nim(seed, random_player(seed)) for seed in range(20)]
    adapter.textarena = textarena_standin
    found["standin_equals_package"] = theirs == [nim(seed, random_player(seed)) for seed in range(20)]
    assert textarena.GAME_ID == textarena_standin.GAME_ID
    print(json.dumps(found))


if __name__ == "__main__":
    main()
