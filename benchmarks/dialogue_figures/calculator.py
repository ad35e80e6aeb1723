"""Learning to call a calculator: only right answers pay, and calls pay nothing.

The cold start calls in 30% of the demonstrations, half of the time with a wrong operand, and answers the others from
its head. Accuracy is of 300 held-out sums, each answered 8 times at temperature 1; a call is `[34+58]`, answered by the
tool `hone:calculator` in the format `bracket`.
"""

import tempfile
from pathlib import Path

from demonstrations import Bar
from dialogue_runs import imitate, pass_at, reinforce, repeated
from text_runs import write_rows

from hone.text.games.calculator import ALPHABET, STOPS, imitation_rows, sum_rows

TITLE = "Calculator, sums of two-digit numbers"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="accuracy after RL", at_least=0.95),
    Bar(figure="accuracy before", at_most=0.35),
    Bar(figure="dialogues with a call after RL", at_least=0.95),
    Bar(figure="accuracy after RL, mean", at_least=0.98, over="mean"),
)
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,:;'\"*/%()_<>"
"""Characters of the tool's words on calls that it cannot read."""
HELD_OUT, PRACTICE = 300, 1000


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Accuracy, calls and faults before and after, and pass@n of the cold start."""
    taught, imitated, steps = (200, 30, 4) if quick else (3000, 900, 100)
    sums = sum_rows(HELD_OUT + PRACTICE + taught, seed=seed)
    held_out, practice, shown = sums[:HELD_OUT], sums[HELD_OUT:][:PRACTICE], sums[HELD_OUT + PRACTICE :]
    attempts = 2 if quick else 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demonstrations = imitation_rows(shown, seed=seed)
        base = imitate(folder, demonstrations, alphabet=ALPHABET + LETTERS, steps=imitated, seed=seed, positions=128)
        files = {
            "practice": write_rows(folder / "practice.jsonl", practice),
            "held out": write_rows(folder / "held_out.jsonl", repeated(held_out, attempts)),
        }
        found = reinforce(folder / "calling", base, _tables(files, steps=steps, seed=seed))
    before, after = found.before, found.after
    return {
        "accuracy before": before["eval/score"],
        "accuracy after RL": after["eval/score"],
        "accuracy after RL, mean": after["eval/score"],
        f"pass@{attempts} before": pass_at(found.answers_before, attempts),
        "dialogues with a call before": before["eval/tools/called"],
        "dialogues with a call after RL": after["eval/tools/called"],
        "dialogues with an unreadable call before": before["eval/tools/invalid"],
        "dialogues with an unreadable call after RL": after["eval/tools/invalid"],
    }


def _tables(files: dict[str, str], *, steps: int, seed: int) -> dict[str, object]:
    task = {
        "turns": 4,
        "tools": {"use": ["hone:calculator"], "format": "bracket"},
        "message_tokens": 16,
    }
    rewards = {"functions": [{"use": "exact_match"}]}
    sampling = {"max_tokens": 10, "stop": list(STOPS), "max_concurrent": 128}
    return {
        "steps": steps,
        "seed": seed,
        "task": {**task, "source": files["practice"]},
        "rewards": rewards,
        "user_code": {"workers": 1},
        "rollout": {"prompts_per_step": 24, "samples_per_prompt": 12, **sampling},
        "learner": {"lr": 6e-4},
        "evaluation": {
            "task": {**task, "source": files["held out"]},
            "rewards": rewards,
            "temperature": 1.0,
            **sampling,
        },
    }
