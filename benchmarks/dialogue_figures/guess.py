"""Guessing a number by listening: 15 numbers in 4 turns, beside a control in which the world says nothing.

The cold start imitates a player who does not listen in 60% of his turns. Wins are of 300 games at temperature 1, 20 for
each number; the deaf control learns from the same start for as many steps.
"""

import tempfile
from pathlib import Path

from demonstrations import Bar
from dialogue_runs import imitate, pass_at, reinforce, repeated
from text_runs import write_rows

from hone.text.games.guess import ALPHABET, END, imitation_rows, secret_rows

TITLE = "Guess, 15 numbers in 4 turns"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="wins after RL", at_least=0.88),
    Bar(figure="wins before", at_most=0.45),
    Bar(figure="wins of the deaf control", at_most=0.30),
    Bar(figure="wins after RL, mean", at_least=0.97, over="mean"),
)


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Wins before and after, hearing and deaf, and pass@n of the cold start."""
    return played(seed, numbers=15, turns=4, steps=2 if quick else 60, imitated=60 if quick else 1000, quick=quick)


def played(seed: int, *, numbers: int, turns: int, steps: int, imitated: int, quick: bool) -> dict[str, float]:
    """Figures of a game of `numbers`."""
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), secret_rows(numbers, turns)
        taught = imitation_rows(100 if quick else 4000, seed=seed, numbers=numbers, turns=turns)
        base = imitate(folder, taught, alphabet=ALPHABET, steps=imitated, seed=seed)
        files = {
            "asked": write_rows(folder / "asked.jsonl", rows),
            "judged": write_rows(folder / "judged.jsonl", repeated(rows, 4 if quick else 20)),
        }
        found = {
            world: reinforce(
                folder / world, base, _tables(world, files, prompts=2 * numbers, turns=turns, steps=steps, seed=seed)
            )
            for world in ("GuessingGame", "DeafGuessingGame")
        }
    hearing, deaf = found["GuessingGame"], found["DeafGuessingGame"]
    attempts = 4 if quick else 8
    return {
        "wins before": hearing.before["eval/score"],
        "wins after RL": hearing.after["eval/score"],
        "wins after RL, mean": hearing.after["eval/score"],
        "wins of the deaf control": deaf.after["eval/score"],
        "wins of the deaf control before": deaf.before["eval/score"],
        f"pass@{attempts} before": pass_at(hearing.answers_before, attempts),
        "turns of a game after RL": hearing.after["eval/turns/mean"],
    }


def _tables(world: str, files: dict[str, str], *, prompts: int, turns: int, steps: int, seed: int) -> dict[str, object]:
    task = {"source": f"dialogue:hone.text.games.guess:{world}", "turns": turns}
    return {
        "steps": steps,
        "seed": seed,
        "task": {**task, "rows": files["asked"]},
        "rollout": {
            "prompts_per_step": prompts, "samples_per_prompt": 8, "max_tokens": 4, "stop": [END], "max_concurrent": 128,
        },
        "learner": {"lr": 5e-4},
        "evaluation": {
            "task": {**task, "rows": files["judged"]}, "max_tokens": 4, "stop": [END], "temperature": 1.0,
            "max_concurrent": 128,
        },
    }  # fmt: skip
