"""Processor time that a run spends on its events, histograms, rollouts, traces and alarms, as a share of its steps.

The parts are timed by themselves, within the run, in processor seconds of the process, so that other work on the
machine does not count. `--every N` sets `run.rollouts_every`; `--every 0` leaves rollouts out.

    python benchmarks/run_writes.py FOLDER [--every N] [--steps N]
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from digest_runs import REWARDS

import hone.api
from hone.run.reporter import RunReporter
from hone.run.store.events import EventLog
from hone.run.store.rollouts import AnswerRollouts, write_rollouts
from hone.text.update_trace import UpdateTrace

SPENT: dict[str, float] = defaultdict(float)
_DEPTH = [0]


def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """`work`, its processor seconds added to `name`, where it is not called by another timed part."""

    def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
        _DEPTH[0] += 1
        began_s = time.process_time()
        try:
            return work(*arguments, **options)
        finally:
            _DEPTH[0] -= 1
            if not _DEPTH[0]:
                SPENT[name] += time.process_time() - began_s

    return call


def runs(steps: int) -> dict[str, dict[str, Any]]:
    """Small runs: a language model whose step takes some 50 ms, and CartPole."""
    quiet = {"threads": 1, "certify": False, "checkpoint_every": 0}
    shape = {
        "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 128,
        "max_positions": 64, "alphabet": "0123456789+=",
    }  # fmt: skip
    grpo = {
        "recipe": "grpo", "steps": steps, "model": {"compute": "float32", "new": shape},
        "task": {"source": "sums.jsonl"}, "rewards": {"functions": [{"use": "rewards.py:close"}]},
        "user_code": {"workers": 1}, "learner": {"lr": 1e-3, "minibatches": 2},
        "rollout": {"prompts_per_step": 8, "samples_per_prompt": 8, "max_tokens": 16, "max_concurrent": 64},
        "run": quiet,
    }  # fmt: skip
    env = {"id": "CartPole-v1", "num_envs": 8}
    ppo = {"recipe": "ppo", "steps": steps, "env": env, "rollout_steps": 128, "run": quiet}
    arms = {"kind": "bernoulli", "rates": [0.2, 0.8]}
    bandit = {"recipe": "thompson", "steps": 20 * steps, "arms": arms, "run": quiet}
    return {"grpo": grpo, "ppo": ppo, "thompson": bandit | {"run": quiet | {"log_every": 20}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    rows = [f'{{"prompt": "{a}+{b}=", "answer": "{a + b}"}}\n' for a in range(10) for b in range(8)]
    Path("sums.jsonl").write_text("".join(rows), encoding="utf-8")
    RunReporter._write_rollouts = timed("rollouts, histograms", RunReporter._write_rollouts)  # type: ignore[method-assign]
    RunReporter._raise_alarms = timed("alarms", RunReporter._raise_alarms)  # type: ignore[method-assign]
    EventLog.append = timed("events", EventLog.append)  # type: ignore[method-assign]
    UpdateTrace.see = timed("trace", UpdateTrace.see)  # type: ignore[method-assign]
    UpdateTrace.see_clipped = timed("trace", UpdateTrace.see_clipped)  # type: ignore[method-assign]
    # At its first table pyarrow looks for pandas, which takes 0.2 s, once in a process.
    write_rollouts(Path("warm.parquet"), AnswerRollouts(rows=[]))
    for name, settings in runs(options.steps).items():
        SPENT.clear()
        whole: list[float] = []
        if name != "thompson":  # its own default is a file in 1,000 steps
            settings["run"] = settings["run"] | {"rollouts_every": options.every}
        hone.api.train(
            settings | {"name": f"{name}_{options.every}"},
            on_step=lambda _, whole=whole: whole.append(time.process_time()),
        )
        total = whole[-1] - whole[0]
        parts = ", ".join(f"{part} {spent / total:.2%}" for part, spent in SPENT.items())
        step_ms, share = total / (len(whole) - 1) * 1e3, sum(SPENT.values()) / total
        print(f"{name}: {step_ms:.2f} ms of processor time a step, {share:.2%} of it: {parts}")


if __name__ == "__main__":
    main()
