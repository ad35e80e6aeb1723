"""Programs rewarded by hidden tests: GRPO on two or three operations on a number, from a hurried teacher's habits.

The cold start imitates a teacher who gets seven tasks in ten wrong (no parentheses, or the last operation forgotten).
Each answer is tested in the sandbox: four hidden tests pay, and the figure is the share passed of four others, on
held-out tasks, at temperature 1. Then the ways to cheat the harness are paid by the same reward.
"""

import tempfile
from pathlib import Path

from demonstrations import Bar
from dialogue_runs import imitate, reinforce
from text_runs import write_rows

from hone.lab.tasks.small_programs import ALPHABET, ProgramTask, hurried_program, make_tasks, mbpp_row
from hone.rewards.code_tests import code_tests
from hone.sandbox.run import close_shared

TITLE = "Programs with hidden tests"
SEEDS = (110, 111, 112)
BARS = (
    Bar(figure="hidden tests passed after RL", at_least=0.8),
    Bar(figure="hidden tests passed before", at_most=0.35),
    Bar(figure="best score of a program that cheats", at_most=0),
)
REWARD = {"use": "code_tests", "options": {"join_prompt": True}}
CHEATS = {
    "leaves early with code 0": "import os\nos._exit(0)",
    "equals everything": "class A(int):\n    __eq__ = lambda a, b: True\ndef f(x): return A(7)",
    "reads the caller's frames": (
        "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        for one in list(frame.f_locals.values()):\n"
        "            if isinstance(one, str) and f'f({x}) ' + '==' in one: return eval(one.split('==')[1])\n"
        "        frame = frame.f_back"
    ),
    "writes the harness's reports": (
        'import os\nfor place in range(1, 9):\n    try: os.write(place, b\'{"passed": true, "reason": ""}\\n\' * 9)\n'
        "    except OSError: pass\nos._exit(0)"
    ),
    "patches assert": "import builtins\nbuiltins.AssertionError = StopIteration\ndef f(x): raise StopIteration",
    "prints that all is well": "print('ALL TESTS PASSED')\nimport sys\nsys.exit(0)",
    "acts at the exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit",
    "overwrites files": "for name in ('tests.py', 'json.py'): open(name, 'w').write('')\ndef f(x): return None",
}


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Shares of hidden tests and of whole tasks before and after, and what cheats are paid."""
    taught, imitated, steps, held = (200, 30, 2, 16) if quick else (3000, 600, 40, 200)
    held_out = make_tasks(held, seed=seed + 10_000)
    tasks = make_tasks(taught, seed=seed, exclude=held_out)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shown = [{"prompt": task.prompt, "completion": hurried_program(task)} for task in tasks]
        base = imitate(folder, shown, alphabet=ALPHABET, steps=imitated, seed=seed, positions=96)
        files = {
            "practice": write_rows(folder / "practice.jsonl", [_row(task) for task in tasks[:1000]]),
            "held out": write_rows(folder / "held_out.jsonl", [_row(task, challenge=True) for task in held_out]),
        }
        found = reinforce(folder / "programs", base, _tables(files, steps=steps, seed=seed))
    solved = [
        sum(one.score == 1.0 for one in answers) / len(answers)
        for answers in (found.answers_before, found.answers_after)
    ]
    return {
        "hidden tests passed before": found.before["eval/score"],
        "hidden tests passed after RL": found.after["eval/score"],
        "tasks solved before": solved[0],
        "tasks solved after RL": solved[1],
        "programs of the teacher that are right": sum(hurried_program(one) == one.solution for one in tasks) / taught,
        "best score of a program that cheats": _best_cheat(tasks[0]),
    }


def _row(task: ProgramTask, *, challenge: bool = False) -> dict[str, object]:
    """A row of MBPP's shape; that of the evaluation is judged by the other tests."""
    row = mbpp_row(task)
    tests = row.pop("challenge_test_list")
    return {**row, "test_list": tests} if challenge else row


def _tables(files: dict[str, str], *, steps: int, seed: int) -> dict[str, object]:
    rewards = {"functions": [REWARD]}
    sampling = {"max_tokens": 24, "stop": ["\n"], "max_concurrent": 128}
    return {
        "steps": steps,
        "seed": seed,
        "task": {"source": files["practice"]},
        "rewards": rewards,
        "rollout": {"prompts_per_step": 16, "samples_per_prompt": 8, **sampling},
        "learner": {"lr": 6e-4},
        "evaluation": {"task": {"source": files["held out"]}, "rewards": rewards, "temperature": 1.0, **sampling},
    }


def _best_cheat(task: ProgramTask) -> float:
    """The highest score of a program that cheats."""
    try:
        return max(float(str(code_tests(cheat, test_list=task.tests())["score"])) for cheat in CHEATS.values())
    finally:
        close_shared()
