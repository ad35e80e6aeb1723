"""Order: 64 dialogues whose worlds take 0 to 200 ms for an answer, against the same dialogues without delays.

A new model with random weights writes 8 turns. The episodes must be equal bit for bit. Turns of 3 tokens show the wall
time, against the slowest chain of delays of a dialogue; turns of 90 tokens, with twice as many dialogues as slots, show
how long slots wait for worlds. Both are times of the wall: they need a machine with little else to do.
"""

import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from demonstrations import Bar
from text_runs import write_rows

from hone.core.episodes import Episodes
from hone.core.random import key
from hone.recipes.registry import load_recipe
from hone.sources.live import LiveSource
from hone.text.games.guess import delay_s, secret_rows
from hone.text.tasks.conversation import Conversation
from hone.text.tasks.world import TextWorld

TITLE = "Order, 64 dialogues of 8 turns, delays of 0 to 200 ms"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="columns of the episodes that differ", at_most=0),
    Bar(figure="slots idle for worlds, twice as many dialogues as slots", at_most=0.2),
    Bar(figure="wall time over the slowest chain of delays", at_most=1.3, over="mean"),
)
TURNS, LONGEST_S = 8, 0.2
SMALL = {"hidden_size": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "intermediate_size": 32}
SHORT, LONG = [chr(code) for code in range(33, 127)], ["0", "1"]
"""Characters that end a turn."""
LARGE = {"hidden_size": 256, "layers": 4, "heads": 4, "kv_heads": 4, "head_dim": 64, "intermediate_size": 1024}


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Equality, wall time and idle slots of one seed."""
    turns = 2 if quick else TURNS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short = {"model": SMALL, "ends": SHORT, "slots": 64, "turns": turns, "seed": seed}
        plain, *_ = played(folder, delays=False, **short)
        slow, world, seconds, _ = played(folder, delays=True, **short)
        long = {"model": LARGE, "ends": LONG, "slots": 32, "turns": turns, "seed": seed}
        *_, idle = played(folder, delays=True, **long)
    chain = max(delay_of(one, seed) for one in world.conversations)
    return {
        "columns of the episodes that differ": differing(plain, slow),
        "wall time over the slowest chain of delays": seconds / chain,
        "slowest chain of delays, s": chain,
        "slots idle for worlds, twice as many dialogues as slots": idle,
    }


def played(
    folder: Path, *, model: Mapping[str, int], ends: list[str], slots: int, turns: int, seed: int, delays: bool
) -> tuple[Episodes, TextWorld, float, float]:
    """Episodes of 64 dialogues, the world with its conversations, seconds, and the share of slots idle for worlds."""
    game = "hone.text.games.guess:GuessingGame"
    task: dict[str, Any] = {
        "source": f"dialogue:{'hone.text.games.guess:DelayedWorld' if delays else game}",
        "rows": write_rows(folder / "rows.jsonl", secret_rows(15, turns)), "turns": turns,
        **({"options": {"world": game, "longest_s": LONGEST_S}} if delays else {}),
    }  # fmt: skip
    config = load_recipe("grpo").config.model_validate(
        {
            "recipe": "grpo",
            "name": "order",
            "steps": 2,
            "seed": seed,
            "run": {"threads": 1},
            "task": task,
            "model": {"new": {**model, "max_positions": 2048, "tokenizer": "bytes"}},
            "rollout": {
                "prompts_per_step": 8,
                "samples_per_prompt": 8,
                "max_tokens": 500,
                "max_concurrent": slots,
                "stop": ends,
            },
            "learner": {"lr": 1e-3},
        }
    )
    job = load_recipe("grpo").build(config)
    source = job.recipe.source
    assert isinstance(source, LiveSource)
    assert isinstance(source.world, TextWorld)
    try:
        source.publish(job.recipe.learner.policy)
        begun = time.perf_counter()
        episodes = source.collect()
        seconds = time.perf_counter() - begun
        return episodes, source.world, seconds, source.metrics()["rollout/idle_world"]
    finally:
        job.close()


def delay_of(one: Conversation, seed: int) -> float:
    """Sum of the delays of a dialogue's turns, seconds: the worlds' seeds are those of `DialogueEnvironment`."""
    own = key(seed, "world", one.request.id, one.sample) % 2**31
    return sum(delay_s(own, turn, LONGEST_S) for turn in range(one.turns))


def differing(one: Episodes, other: Episodes) -> int:
    """Number of columns that differ in a bit."""
    columns, others = dataclasses.asdict(one), dataclasses.asdict(other)
    return sum(not _equal(columns[name], others[name]) for name in columns)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return one == other
