"""Record good and bad runs, and count the alarms that each raises.

Twenty good runs of five families (language models by reward and by imitation, actor-critics, a replay buffer, bandits)
must raise none; thirteen bad ones must each raise the alarm of their fault. Faults are made by a config where one can
make them (a reward that can be exploited, a policy that never learnt its end token), and otherwise planted into this
process (an engine whose weights are not published any more, values with the wrong sign, a reader to which the machine's
memory or disk runs out). The machine is read at every line, in place of once a second.

    python benchmarks/alarms.py FOLDER                    # run, judge, and write FOLDER/alarm_runs.json.gz
    python benchmarks/alarms.py FOLDER --only NAME ...    # these runs only

The file keeps the metrics that the alarms look at, in six digits. `tests/fixtures/alarm_runs.json.gz` is such a file,
and `tests/run/test_run_alarms.py` judges it anew.
"""

import argparse
import gzip
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import count as counting
from pathlib import Path
from typing import Any

import numpy as np
from tables import processor

import hone.api
import hone.control.on_policy as on_policy
import hone.learner.config as learner_config
from hone.control.networks.actor_critic import ActorCritic
from hone.core.credit import Values
from hone.core.episodes import Episodes
from hone.core.errors import HoneError
from hone.estimators.means import wilson_interval
from hone.run.alarms import RULES, WATCHED, replay_alarms
from hone.run.machine import MachineReader
from hone.run.store.metrics import tail_metrics
from hone.sources.asynchronous import AsyncSource
from hone.text.evaluate.engine_actor import EngineActor

Settings = dict[str, Any]

REWARDS = '''
import math

def right(completions, answer, **columns):
    return [float(text == wanted) for text, wanted in zip(completions, answer)]

def near(completions, answer, **columns):
    """Characters that are right, less a little for length."""
    return [sum(a == b for a, b in zip(text, wanted)) - 0.1 * len(text) for text, wanted in zip(completions, answer)]

def ones(completions, **columns):
    """Pays for a digit, whatever was asked: a reward that can be exploited."""
    return [text.count("1") / 4 for text in completions]

def long(completions, **columns):
    return [len(text) / 12 for text in completions]

def never(completions, **columns):
    return [0.0 for text in completions]

def broken(completions, answer, **columns):
    """NaN for answers that begin with an odd digit."""
    odd = [text[:1] in set("13579") for text in completions]
    return [math.nan if one else float(text == wanted) for one, text, wanted in zip(odd, completions, answer)]
'''
WORLD = '''
import time

from hone.core.dialogue import WorldTurn

class Letters:
    """Asks for letters; where it is stuck, it never answers in half of its dialogues."""

    def __init__(self, stuck=False):
        self.stuck = stuck

    def begin(self, columns, seed):
        self.letter, self.heard = "ab"[(columns["seed"] + seed) % 2], 0
        self.hangs = self.stuck and seed % 2 == 0
        return WorldTurn(messages=[{"role": "user", "content": self.letter}])

    def answer(self, said):
        if self.hangs:
            time.sleep(60)
        self.heard += 1
        good = said.text.count(self.letter) / max(1, len(said.text))
        return WorldTurn(messages=[{"role": "user", "content": self.letter}], reward=good, done=self.heard >= 2)

    def close(self): ...
'''
SHAPE = {
    "hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 16, "intermediate_size": 64,
    "max_positions": 48, "alphabet": "0123456789+=",
}  # fmt: skip
QUIET: Settings = {"run": {"threads": 1, "certify": False, "rollouts_every": 0, "checkpoint_every": 0}}


def write_data(folder: Path) -> None:
    """Sums of two numbers, those with long answers, held-out ones, rewards and the world."""
    pairs = [(a, b) for a in range(10) for b in range(8)]
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b), "answer": str(a + b)} for a, b in pairs]
    held = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in (8, 9)]
    long = [{**row, "completion": row["completion"] * 12} for row in rows]
    for name, lines in (("sums", rows), ("held", held), ("long", long)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    (folder / "world.py").write_text(WORLD, encoding="utf-8")


def imitation(steps: int = 60, source: str = "sums.jsonl", **more: object) -> Settings:
    return QUIET | {
        "recipe": "sft", "steps": steps, "batch": 20, "model": {"compute": "float32", "new": SHAPE},
        "task": {"source": source}, "learner": {"lr": 1e-2}, "user_code": {"workers": 1},
    } | more  # fmt: skip


def reward(reward: str = "near", base: str = "base", *, held_out: bool = False, **more: object) -> Settings:
    """GRPO from a policy that imitated a little."""
    settings = QUIET | {
        "recipe": "grpo", "steps": 80, "model": {"compute": "float32", "path": f"runs/{base}"},
        "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": f"rewards.py:{reward}"}]},
        "user_code": {"workers": 1}, "learner": {"lr": 1e-3},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 6, "max_tokens": 4, "max_concurrent": 48},
    }  # fmt: skip
    if held_out:
        settings["evaluation"] = {
            "max_tokens": 4, "every": 4, "task": {"source": "sums.jsonl"},
            "rewards": {"functions": [{"use": "rewards.py:right"}]},
        }  # fmt: skip
    for key, value in more.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) and key in settings else value
    return settings


def control(recipe: str, env: str, steps: int, *, clip_actions: bool | None = None, **more: object) -> Settings:
    clip = {} if clip_actions is None else {"clip_actions": clip_actions}
    return QUIET | {"recipe": recipe, "steps": steps, "env": {"id": env, "num_envs": 4, **clip}} | more


def dialogue(*, stuck: bool = False, deadline_s: float = 30.0) -> Settings:
    shape = {**SHAPE, "alphabet": "ab", "max_positions": 64}
    return QUIET | {
        "recipe": "grpo", "steps": 40, "model": {"compute": "float32", "new": shape},
        "task": {"source": "dialogue:world.py:Letters", "size": 8, "turns": 2, "options": {"stuck": stuck}},
        "rollout": {"prompts_per_step": 4, "samples_per_prompt": 4, "max_tokens": 6, "max_concurrent": 16},
        "learner": {"lr": 1e-3},
        "user_code": {"workers": 1, "deadline_s": deadline_s, "missing_allowed": 1.0},
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- faults


@contextmanager
def stopped_publication(after: int) -> Iterator[None]:
    """The engine keeps its weights after some publications, and says that it has the new ones."""
    publish, count = EngineActor.publish, 0

    def once(actor: EngineActor, policy: Any, version: int) -> None:  # noqa: ANN401 - the engine's own
        nonlocal count
        count += 1
        if count <= after:
            publish(actor, policy, version)

    EngineActor.publish = once  # type: ignore[method-assign]
    try:
        yield
    finally:
        EngineActor.publish = publish  # type: ignore[method-assign]


@contextmanager
def raised_rate(after: int, factor: float) -> Iterator[None]:
    """A learning rate that is multiplied from some update on."""
    schedule = learner_config.learning_rate_schedule

    def raised(config: Any, total: int) -> Callable[[int], float]:  # noqa: ANN401 - as the original
        rate = schedule(config, total)
        return lambda update: rate(update) * (factor if update >= after else 1.0)

    on_policy.learning_rate_schedule = raised
    try:
        yield
    finally:
        on_policy.learning_rate_schedule = schedule


@contextmanager
def slow_replica(after: int) -> Iterator[None]:
    """From some batch on every third answer comes from weights that are ten versions older."""
    collect, count = AsyncSource._collect_batch, 0

    def late(source: AsyncSource[Any]) -> None:
        nonlocal count
        collect(source)
        count += 1
        if count > after:
            batch = source._ready.pop()
            episodes = batch.episodes
            age = np.where(episodes.owner % 3 == 0, 10, 0).astype(np.int32)
            source._ready.append(replace(batch, episodes=replace(episodes, version=episodes.version - age)))

    AsyncSource._collect_batch = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncSource._collect_batch = collect  # type: ignore[method-assign]


@contextmanager
def wrong_values() -> Iterator[None]:
    """Values of the critic with the wrong sign."""
    right = on_policy.predict_values

    def wrong(policy: ActorCritic, episodes: Episodes) -> Values:
        values = right(policy, episodes)
        return Values(value=-values.value, final=-values.final)

    on_policy.predict_values = wrong
    try:
        yield
    finally:
        on_policy.predict_values = right


@contextmanager
def machine(resident: Callable[[int], int] | None = None, free: Callable[[int], int] | None = None) -> Iterator[None]:
    """The machine is read at every line; a fault is given the number of the reading, from 1."""
    of_run = MachineReader.of_run

    def often(folder: Path, clock: Any, watch: Any, plan: Any) -> MachineReader:  # noqa: ANN401 - as the original
        reader = replace(of_run(folder, clock, watch, plan), every_s=0.0)
        numbers = counting(1)
        if resident is not None:
            reader = replace(reader, resident=lambda: resident(next(numbers)), limit_bytes=64 << 30)
        return reader if free is None else replace(reader, free=lambda _: free(next(numbers)))

    MachineReader.of_run = often  # type: ignore[method-assign]
    try:
        yield
    finally:
        MachineReader.of_run = of_run  # type: ignore[method-assign]


# ----------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run to record."""

    settings: Settings
    alarm: str = ""
    """Alarm that it must raise; empty: none."""
    fault: Callable[[], Any] | None = None
    """Plants its fault."""


CARTPOLE = control("ppo", "CartPole-v1", 60, rollout_steps=64)
REPLAY = control("dqn", "CartPole-v1", 600, run=QUIET["run"] | {"log_every": 15})
ARMS = {"kind": "bernoulli", "rates": [0.2, 0.5, 0.8]}
SHORT = {"rollout": {"max_tokens": 4}}


def all_runs() -> Mapping[str, RecordedRun]:
    """Runs by name; those that others start from stand first."""
    runs = {f"sft_{seed}": RecordedRun(settings=imitation(seed=seed)) for seed in range(4)}
    runs |= {
        "base": RecordedRun(settings=imitation(25)),
        "endless": RecordedRun(settings=imitation(60, "long.jsonl")),
    }
    good = {
        "grpo_near": reward(), "grpo_right": reward("right", held_out=True), "grpo_seed": reward(seed=7),
        "grpo_epochs": reward(learner={"epochs": 2, "minibatches": 2, "lr": 5e-4}), "dapo": reward(recipe="dapo"),
        "grpo_dialogue": dialogue(),
        "ppo_0": CARTPOLE, "ppo_1": CARTPOLE | {"seed": 1},
        "ppo_pendulum": control("ppo", "Pendulum-v1", 60, rollout_steps=64, clip_actions=True),
        "ppo_2": CARTPOLE | {"seed": 2},
        "dqn_0": REPLAY, "dqn_1": REPLAY | {"seed": 1},
        "double_dqn": REPLAY | {"recipe": "double_dqn"},
        "thompson": QUIET | {"recipe": "thompson", "steps": 1500, "arms": ARMS},
        "epsilon_greedy": QUIET | {"recipe": "epsilon_greedy", "steps": 1500, "arms": ARMS},
        "boltzmann": QUIET | {"recipe": "boltzmann", "steps": 1500, "arms": ARMS},
    }  # fmt: skip
    runs |= {name: RecordedRun(settings=settings) for name, settings in good.items()}
    bad: dict[str, tuple[str, Settings, Callable[[], Any] | None]] = {
        "bad_entropy": ("entropy_collapse", reward("right", learner={"lr": 0.5, "max_grad_norm": 0.0}), None),
        "bad_exploited": ("reward_hacking", reward("ones", held_out=True), None),
        "bad_template": ("no_end", reward("near", "endless", learner={"lr": 1e-5}), None),
        "bad_engine": ("mismatch", reward(learner={"lr": 1e-2}), lambda: stopped_publication(15)),
        "bad_tool": ("tools", dialogue(stuck=True, deadline_s=1.0) | {"steps": 15}, None),
        "bad_nan": ("missing_rewards", reward("broken", user_code={"missing_allowed": 1.0}), None),
        "bad_groups": ("dead_groups", reward("never"), None),
        "bad_stale": ("stale", reward(rollout={"max_staleness": {"steps": 2}}), lambda: slow_replica(20)),
        "bad_kl": ("kl", CARTPOLE | {"seed": 3}, lambda: raised_rate(480, 100.0)),
        "bad_value": ("value", CARTPOLE | {"seed": 4}, wrong_values),
        "bad_memory": (
            "memory",
            CARTPOLE | {"seed": 5},
            lambda: machine(resident=lambda reading: (20 << 30) + reading * (900 << 20)),
        ),
        "bad_disk": (
            "disk",
            CARTPOLE | {"seed": 6},
            lambda: machine(free=lambda reading: max(0, (40 << 30) - reading * (1 << 30))),
        ),
        "bad_length": ("length", reward("long", rollout={"max_tokens": 12}), None),
    }
    runs |= {
        name: RecordedRun(settings=settings, alarm=alarm, fault=fault) for name, (alarm, settings, fault) in bad.items()
    }
    return runs


def recorded_lines(run: Path) -> list[tuple[int, dict[str, float | None]]]:
    """Lines of a run, with the metrics that alarms look at, in six digits; None for what is not finite."""
    wanted = WATCHED | {"eval/score", "eval/low", "eval/high", "time/at_s"}

    def digits(name: str, value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return round(value, 2) if name == "time/at_s" else float(f"{value:.6g}")

    return [
        (step, {name: digits(name, value) for name, value in line.items() if name in wanted})
        for step, line in tail_metrics(run / "metrics.jsonl", 0)[0]
    ]


def record(name: str, run: RecordedRun) -> dict[str, Any]:
    """Carry a run out, and return what is kept of it."""
    began_s, ending = time.process_time(), "finished"
    with machine(), run.fault() if run.fault is not None else nullcontext():
        try:
            hone.api.train(run.settings | {"name": name}, yes=True)
        except HoneError as fault:
            ending = str(fault.messages[0])[:120]
    lines = recorded_lines(Path("runs") / name)
    print(f"{name:16}{len(lines):5} lines {time.process_time() - began_s:6.1f} s  {ending}")
    return {"recipe": run.settings["recipe"], "steps": run.settings["steps"], "alarm": run.alarm, "lines": lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    write_data(Path())
    runs = {name: run for name, run in all_runs().items() if not options.only or name in options.only}
    kept = {name: record(name, run) for name, run in runs.items()}
    Path("alarm_runs.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode(), 9, mtime=0))
    raised: dict[str, set[str]] = {}
    for name, one in kept.items():
        lines = [(step, {k: math.nan if v is None else v for k, v in line.items()}) for step, line in one["lines"]]
        changes = replay_alarms(lines, steps=one["steps"])
        changed = [(step, change.name, change.level if change.is_raised else "ended") for step, change in changes]
        raised[name] = {change.name for _, change in changes}
        print(f"{name}: expected {one['alarm'] or 'none'}, raised {changed or 'none'}")
    good = [name for name, one in kept.items() if not one["alarm"]]
    bad = {name: one["alarm"] for name, one in kept.items() if one["alarm"]}
    lines = sum(len(kept[name]["lines"]) for name in good)
    for alarm in RULES:
        false = wilson_interval(sum(alarm in raised[name] for name in good), len(good))
        row, interval = (
            f"{alarm}: share of {len(good)} good runs ({lines} lines) that raise it",
            [false.low, false.high],
        )
        print_row(row, false.mean, interval=interval)
    missed = [name for name, alarm in bad.items() if alarm not in raised[name]]
    print_row(f"bad runs of {len(bad)} that do not raise their alarm", len(missed), names=missed)


def print_row(row: str, value: float, **more: object) -> None:
    own = {"row": row, "value": value, "bar": "0", "met": not value, "cpu_s": round(time.process_time(), 1)}
    print(json.dumps(own | more | {"cpu": processor()}), flush=True)


if __name__ == "__main__":
    main()
