"""Time from the loss of one of two replicas in the middle of a round to the round's end: what the survivor needs beyond
the work that is left to it."""

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
from cluster_harm import replicas
from tables import Row

from hone.core.generation import Request, SamplingParams, generate
from hone.engine.fleet.fleet_engine import FleetEngine
from hone.engine.fleet.replica import ReplicaSettings, layout_of
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.parallel.config import ClusterConfig
from hone.text.fleet import open_fleet

PROMPTS, SAMPLES, TOKENS, SLOTS = 64, 8, 48, 32
PATIENCE_S = 5.0
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=160,
    layers=4,
    heads=5,
    kv_heads=5,
    head_dim=32,
    intermediate_size=426,
    max_positions=128,
)


def survivors(times: int) -> Iterator[Row]:
    """Rows for replicas that were killed, and that hang; the slowest of `times`."""
    for name, number, wait_s in (("kill -9", signal.SIGKILL, 0.0), ("SIGSTOP", signal.SIGSTOP, PATIENCE_S)):
        beyond = max(lost_round(number, seed) for seed in range(times))
        bar = wait_s + 1.0
        row = f"end of a round after {name} of one of 2 replicas, beyond the work left, slowest of {times}"
        yield Row(row=row, value=beyond, unit="s", bar=f"<= {bar:g}", met=beyond <= bar)


def lost_round(number: int, seed: int) -> float:
    """Seconds from the harm to the end of the round, less the time in which one replica does all that is left."""
    while replicas():  # of the turn before
        time.sleep(0.1)
    fleet = opened(2, seed)
    try:
        alone_s = answer_s(fleet, seed)
        fleet.submit(requests(seed), round=1)
        left = PROMPTS * SAMPLES
        while left > PROMPTS * SAMPLES * 2 // 3:
            fleet.next_completion()
            left -= 1
        os.kill(replicas()[seed % 2], number)
        began = time.monotonic()
        while fleet.next_completion() is not None:
            pass
        return time.monotonic() - began - left * alone_s
    finally:
        fleet.close()


def opened(count: int, seed: int) -> FleetEngine:
    """A fleet whose replicas have all answered something."""
    model = new_model(MODEL, seed=seed)
    settings = ReplicaSettings(
        layout=layout_of(model.stored_tensors()),
        runner="auto",
        vocab=MODEL.vocab_size,
        eos=(0,),
        slots=SLOTS,
        sequence_tokens=MODEL.max_positions,
        seed=seed,
        threads=1,
    )
    table = {"address": "auto", "patience_s": PATIENCE_S, "rollout": {"replicas": count, "cpus": 0.5}}
    fleet = open_fleet(ClusterConfig.model_validate(table), model, settings)
    fleet.publish(0)
    turn = 0
    while len(fleet.report.by_replica) < count:  # each has answered once it is ready
        turn -= 1
        list(generate(fleet, requests(seed)[:8], round=turn))
    return fleet


def answer_s(fleet: FleetEngine, seed: int) -> float:
    """Seconds that one replica needs for an answer, by a round of both before the harm."""
    began = time.monotonic()
    fleet.submit(requests(seed), round=0)
    while fleet.next_completion() is not None:
        pass
    return 2 * (time.monotonic() - began) / (PROMPTS * SAMPLES)


def requests(seed: int) -> list[Request]:
    """The requests of a round."""
    draws = np.random.default_rng(seed)
    sampling = SamplingParams(max_tokens=TOKENS)
    prompts = draws.integers(1, MODEL.vocab_size, (PROMPTS, 12)).astype(np.int32)
    return [
        Request(id=f"prompt {place}", prompt=prompt, samples=SAMPLES, sampling=sampling)
        for place, prompt in enumerate(prompts)
    ]
