"""A game of TextArena, unchanged: Nim against its random player, with the policy in a seat that is drawn for each game.

The cold start imitates a player who draws any legal move in 40% of its turns, and a winning one, if there is one, in
the others. Wins are of 512 games at temperature 1; a game that is cut is none. TextArena stands in an environment of
its own (`peers.py text_worlds`).
"""

import random
import site
import tempfile
from functools import reduce
from operator import xor
from pathlib import Path

from demonstrations import Bar
from dialogue_runs import imitate, reinforce
from peers import require_peer

from hone.core.dialogue import PolicyTurn

TITLE = "TextArena: Nim against its random player"
SEEDS = (100, 101, 102)
BARS = (Bar(figure="wins after RL", at_least=0.80), Bar(figure="wins before", at_most=0.70))
CAREFUL = 0.6
MOVES = [f"[{pile} {count}]" for pile in range(3) for count in range(1, 6)]
GAME = {
    "game": "Nim-v0",
    "opponent": {"use": "random", "moves": MOVES},
    "show": ["latest_board"],
    "read": r"pile \d: (\d)",
}
ALPHABET = "0123456789[] \n"


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Wins before and after, and moves against the rules."""
    packages = next((require_peer("text_worlds").parents[1] / "lib").glob("python3*/site-packages"))
    site.addsitedir(str(packages))  # behind hone's own packages
    games, imitated, steps = (50, 30, 3) if quick else (2500, 300, 60)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = imitate(
            folder, careless_turns(games, seed), alphabet=ALPHABET, steps=imitated, seed=seed, positions=160, layers=2
        )
        found = reinforce(folder / "playing", base, _tables(seed, steps=steps, games=32 if quick else 512))
    return {
        "wins after RL": found.after["eval/score"],
        "wins before": found.before["eval/score"],
        "moves against the rules, a game, before": found.before["eval/world/invalid_moves"],
        "moves against the rules, a game, after RL": found.after["eval/world/invalid_moves"],
    }


def careless_turns(games: int, seed: int) -> list[dict[str, object]]:
    """Turns of a careless player against the random one: the dialogue so far, and the move."""
    from hone.text.adapters.textarena import TextArenaWorld  # noqa: PLC0415 - imports TextArena, which is there by now

    rows: list[dict[str, object]] = []
    draws = random.Random(seed)
    for game in range(games):
        world = TextArenaWorld(**GAME)
        turn = world.begin({}, seed * 100_003 + game)
        said: list[dict[str, object]] = []
        while not turn.done:
            said += [dict(message) for message in turn.messages]
            move = _careless_move([int(count) for count in str(said[-1]["content"]).split()], draws)
            answer = {"role": "assistant", "content": move}
            rows.append({"prompt": list(said), "completion": [answer]})
            said.append(answer)
            turn = world.answer(PolicyTurn(text=move))
    return rows


def _careless_move(piles: list[int], draws: random.Random) -> str:
    legal = [(pile, count) for pile in range(3) for count in range(1, piles[pile] + 1)]
    winning = [
        (pile, count)
        for pile, count in legal
        if reduce(xor, [size - count * (place == pile) for place, size in enumerate(piles)]) == 0
    ]
    pile, count = draws.choice(winning if winning and draws.random() < CAREFUL else legal)
    return f"[{pile} {count}]"


def _tables(seed: int, *, steps: int, games: int) -> dict[str, object]:
    task = {
        "source": "dialogue:hone.text.adapters.textarena:TextArenaWorld",
        "turns": 8,
        "options": GAME,
    }
    sampling = {"max_tokens": 6, "stop": ["]"], "max_concurrent": 128}
    return {
        "steps": steps,
        "seed": seed,
        "task": {**task, "size": 2000, "seed": seed},
        "rollout": {"prompts_per_step": 12, "samples_per_prompt": 16, **sampling},
        "learner": {"lr": 8e-4, "warmup_steps": 8, "minibatches": 2},
        "evaluation": {"task": {**task, "size": games, "seed": seed + 7}, "temperature": 1.0, **sampling},
    }
