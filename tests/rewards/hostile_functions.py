"""Reward functions that hang, crash, lie and breed; run by workers only, never imported by a test."""

import asyncio
import ctypes
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np


def by_length(completions, **kwargs):
    return [float(len(c)) for c in completions]


def _loop():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def _raise():
    raise ValueError("no digits")


def _flood():
    for _ in range(2000):
        print("x" * 5000)
        sys.stderr.write("y" * 5000)
        os.write(1, b"z" * 5000)
    return 1.0


def _reseed():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global state is the point
    os.chdir("/")
    os.environ["HONE_SPOILED"] = "1"
    return 1.0


ACTS = {
    "loop": _loop,
    "gil": lambda: ctypes.PyDLL(None).sleep(1000),
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "raise": _raise,
    "flood": _flood,
    "memory": lambda: float(len(bytearray(4 << 30))),
    "read": lambda: float(len(sys.stdin.read())),
    "reseed": _reseed,
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "inf": lambda: np.float32("inf"),
}


def trouble(completion, flag):
    """Does what the completion says."""
    return ACTS[completion]() if completion in ACTS else float(flag)


def batch_trouble(completions, flag):
    return [trouble(c, f) for c, f in zip(completions, flag, strict=True)]


def daemon(completion, path):
    """A grandchild in a session of its own, orphaned on purpose."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with pathlib.Path(path).open("w") as file:
                file.write(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)
    while not pathlib.Path(path).exists() or not pathlib.Path(path).read_text():
        time.sleep(0.01)
    if completion == "leave":
        os._exit(0)
    if completion == "hang":
        time.sleep(1000)
    return 1.0


async def later(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [1.0 for _ in completions]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "dict":
        return {"score": solution_str == ground_truth, "reason": "compared", "acc": 1}
    return solution_str == ground_truth


def within_group(completions, **kwargs):
    return [float(len(set(completions)))] * len(completions)


def short(completions):
    return [1.0]


def scalar(completions):
    return 1.0


def text(completions):
    return "1" * len(completions)


def mapping(completions):
    return dict.fromkeys(completions, 1.0)


def words(completions):
    return ["good" for _ in completions]


def array(completions):
    return np.arange(len(completions))


def zero_d(completions):
    return [np.array(0.5), np.float32(0.25), True, 1][: len(completions)]


def pid(completion):
    return float(os.getpid())


def sees(completion, mine):
    mine.append(1)
    return float(len(mine))


def unlike(x, y):
    return 0.0


def always(completion):
    raise KeyError("gold")


def asks(completion, anwser):
    return 0.0


def chatty(prompts, completions, log_extra, log_metric, trainer_state, **kwargs):
    log_metric("x", 1.0)
    log_extra("words", [len(c) for c in completions])
    return [float(c[0]["content"] == p[-1]["content"]) for p, c in zip(prompts, completions, strict=True)]


def recorded(completions, log_metric, log_extra):
    """Records the mean length of its call, and of each completion its length, if that is a digit's."""
    if "fail" in completions and len(completions) > 1:
        log_metric("lost", 1.0)
        raise ValueError("cut me")
    log_metric("mean", sum(map(len, completions)) / len(completions))
    log_extra("length", [len(c) if c != "nan" else float("nan") for c in completions])
    log_extra("text", list(completions))
    return [0.0 for _ in completions]


def facts(completion):
    return {"score": 1.0, "size": len(completion), "even": len(completion) % 2 == 0, "text": completion}


def kinds(completion, odd):
    return float(odd == {1: (2, 3)} and type(odd[1]) is tuple)


def together(completion, folder):
    """Answers once two workers are at work and everything was submitted; they meet in a folder."""
    place = pathlib.Path(folder)
    (place / f"{os.getpid()}.pid").touch()
    while not (place / "go").exists() or len(list(place.glob("*.pid"))) < 2:
        time.sleep(0.01)
    return 1.0


def told_length(completions, path, **kwargs):
    """Lengths; a line a call."""
    with pathlib.Path(path[0]).open("a") as calls:
        calls.write(f"{len(completions)}\n")
    return by_length(completions)


def busy(completion, path):
    """Says who it is, and never gives the interpreter back."""
    pathlib.Path(path).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(1000)


def forks(completion):
    """Returns twice: in this process, and in a copy of it."""
    copy = os.fork()
    if copy == 0:
        return -1.0
    os.waitpid(copy, 0)
    return float(len(completion))


def forks_late(completions, **kwargs):
    """As `forks`; the copy is late, and comes back while a later call is answered."""
    if os.fork() == 0:
        time.sleep(0.05)
        return [-1.0] * len(completions)
    return by_length(completions)


def forks_and_ends(completions, **kwargs):
    """Leaves the scores to this process: the copy ends where it began."""
    copy = os.fork()
    if copy == 0:
        os._exit(0)
    os.waitpid(copy, 0)
    return by_length(completions)
