"""Reward functions with faults, run by the worker processes of `test_cli_bad_input.py`."""

import os
import signal
from pathlib import Path

import numpy as np


def first_time(name):
    """Whether this is the first call that comes by here, in whatever process."""
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def by_length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def every_eighth(value, count):
    """Scores of which one in eight is `value`, however many calls the answers of a step come in."""
    return [value if index % 8 == 0 else float(index) for index in range(count)]


def some_nan(completions, **kwargs):
    return every_eighth(float("nan"), len(completions))


def some_infinite(completions, **kwargs):
    return every_eighth(float("inf"), len(completions))


def nothing_ever(completions, **kwargs):
    return [None] * len(completions)


def too_few(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


def scalar(completions, **kwargs):
    return 1.0


def text(completions, **kwargs):
    return "good"


def texts(completions, **kwargs):
    return ["good"] * len(completions)


def table(completions, **kwargs):
    return {"score": 1.0}


def numpy_and_bool(completions, **kwargs):
    values = [True, np.float32(0.5), np.array(2.0), np.int64(3)]
    return [values[index % 4] for index in range(len(completions))]


def huge(completions, **kwargs):
    return [1e30] * len(completions)


def raises(completions, **kwargs):
    raise ValueError("no digits in the answer")


def raises_once(prompt, completion):
    if first_time("raised"):
        raise ValueError("no digits in the answer")
    return float(len(completion))


def hangs_once(prompt, completion):
    if first_time("hung"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
    return float(len(completion))


def hangs(prompt, completion):
    while True:
        pass


def exits_once(prompt, completion):
    if first_time("left"):
        os._exit(3)
    return float(len(completion))


def wants_answer_key(prompt, completion, anser):
    return 1.0


def spoils_everything(prompts, completions, **kwargs):
    """Prints, moves away, changes what it was given."""
    print("\x1b[2J" * 1000)
    count = len(completions)
    prompts.clear()
    completions.clear()
    os.chdir("/")
    return [float(index) for index in range(count)]


NOT_A_FUNCTION = Path("score.txt")
