"""Self-correction in two stages on chains of sums: the second answer against the first, and the first against the base.

The base imitates the hurried teacher, who stops after the first step of most problems, in first answers and in
second ones after the nudge alike. All figures are of 512 held-out problems, answered twice at temperature 1; whole
chains count. The second stage is short: with a longer one the first answer loses the hurry as well, catches up with the
second, and leaves little to correct.
"""

import tempfile
from pathlib import Path

from text_runs import MODEL, run_recipe, write_rows

from demonstrations import Bar
from hone.core.credit import Metrics
from hone.core.random import uniforms
from hone.lab.tasks.chain_of_sums import ALPHABET, HURRY, SEPARATOR, SumProblem, make_problems

TITLE = "Self-correction (SCoRe's two stages), chains of sums"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="second answer above the first", at_least=0.05),
    Bar(figure="wrong to right per right to wrong", at_least=3.0),
    Bar(figure="first answer above the base", at_least=0.0, over="mean"),
)
NUDGE = "?"
END = "\n"
"""End of an answer: the stop string."""
REWARDS = {"functions": [{"use": "hone.lab.tasks.chain_of_sums:right_chain"}]}


def hurried_answer(problem: SumProblem, turn: int) -> str:
    """The hurried teacher's answer in a turn; whether he hurries is drawn for each turn."""
    in_a_hurry = uniforms(0, "hurried teacher", problem.prompt, turn, count=1)[0] < HURRY
    return (problem.steps[0] + SEPARATOR if in_a_hurry else problem.solution) + END


def taught_rows(problems: list[SumProblem]) -> list[dict[str, object]]:
    """Both turns of each problem, to be imitated."""
    rows: list[dict[str, object]] = []
    for problem in problems:
        first, second = (hurried_answer(problem, turn) for turn in (0, 1))
        rows.append({"prompt": problem.prompt, "completion": first})
        rows.append({"prompt": problem.prompt + first + NUDGE, "completion": second})
    return rows


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Scores of both answers before and after, and shares of the problems that became right and wrong."""
    count, imitated, steps = (200, 20, 4) if quick else (5000, 1000, 30)
    problems = make_problems(count + 1512, seed=seed, terms=(3, 5), largest=5)
    held_out, practice, taught = problems[:512], problems[512:1512], problems[1512:]
    found: list[Metrics] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        imitation = {
            "steps": imitated, "seed": seed, "model": {"new": {**MODEL, "alphabet": ALPHABET + NUDGE}},
            "task": {"source": write_rows(folder / "taught.jsonl", taught_rows(taught))}, "batch": 64,
            "learner": {"lr": 3e-3, "lr_decay": "cosine"},
        }  # fmt: skip
        run_recipe("sft", imitation, folder / "base")
        asked = {
            part: write_rows(folder / f"{part}.jsonl", [{"prompt": one.prompt} for one in own])
            for part, own in (("practice", practice), ("held_out", held_out))
        }
        correction = {
            "steps": steps, "seed": seed, "model": {"path": str(folder / "base")},
            "task": {"source": asked["practice"]}, "rewards": REWARDS, "user_code": {"workers": 1},
            "rollout": {"prompts_per_step": 16, "samples_per_prompt": 8, "max_tokens": 40, "stop": [END]},
            "learner": {"lr": 3e-4, "warmup_steps": 5, "lr_decay": "linear"},
            "algorithm": {"correction": {
                "nudge": NUDGE, "first_stage_steps": steps - max(1, steps // 7), "first_stage_kl": 2.0,
                "progress_weight": 2.0,
            }},
            "evaluation": {
                "task": {"source": asked["held_out"]}, "rewards": REWARDS, "max_tokens": 40, "stop": [END],
                "temperature": 1.0, "max_concurrent": 128,
            },
        }  # fmt: skip
        run_recipe("self_correction", correction, folder / "corrected", evaluations=found)
    before, after = found
    mended, spoilt = after["eval/wrong_to_right"], after["eval/right_to_wrong"]
    return {
        "second answer above the first": after["eval/score"] - after["eval/first_score"],
        "wrong to right per right to wrong": mended / max(spoilt, 1 / 512),
        "first answer above the base": after["eval/first_score"] - before["eval/first_score"],
        "first answer": after["eval/first_score"], "second answer": after["eval/score"],
        "wrong to right": mended, "right to wrong": spoilt,
        "first answer, base": before["eval/first_score"], "second answer, base": before["eval/score"],
        "wrong to right, base": before["eval/wrong_to_right"], "right to wrong, base": before["eval/right_to_wrong"],
    }  # fmt: skip
