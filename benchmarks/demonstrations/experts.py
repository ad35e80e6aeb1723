"""Routing replay: a mixture of experts whose engine computes with rounded weights.

A Qwen3-MoE with 4 layers of 16 experts, two for a token, imitates a hurried teacher on chains of sums. Its engine
rounds matrices to int8 and computes in bfloat16, the trainer in float32: some tokens go to other experts, and a few
of them have probabilities that differ by nats. Told are the gaps of the trainer's log-probabilities to the engine's on
512 answers, with and without replay; then GRPO trains with that engine, with and without.
"""

import json
import tempfile
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demonstrations import Bar
from hone.core.credit import Credits
from hone.core.episodes import Episodes, routing_coverage
from hone.engine.native.runner import NativeRunner
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, hurried_solution, make_problems
from hone.models.language.decoder import Decoder
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import token_mean
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.sources.live import LiveSource
from hone.text.evaluate.engine_actor import EngineActor
from hone.text.loss import own_logp
from hone.text.rows import TokenLayout

TITLE = "routing replay, int8 engine"
SEEDS = (100, 101, 102)
BARS = (
    Bar(figure="k3 without replay", at_least=1e-2),
    Bar(figure="k3 with replay", at_most=1e-4),
    Bar(figure="largest gap with replay, nats", at_most=0.2),
    Bar(figure="coverage", at_least=1.0),
    Bar(figure="change by replay, shared float32 weights, nats", at_most=0.0),
)
HELD_OUT = 512


class RoundedRunner(NativeRunner):
    """The compiled runner in bfloat16, over a copy of the weights in which the matrices of attention and experts are
    rounded to int8 row by row; embedding and routers are not, as in quantised engines."""

    def __init__(self, model: Decoder, *, vocab_used: int) -> None:
        self.source, self.copy_of = model, deepcopy(model)
        super().__init__(self.copy_of, vocab_used=vocab_used, threads=1, dtype="bfloat16")

    @torch.no_grad()
    def publish(self) -> None:
        exact = dict(self.source.named_parameters())
        for name, mine in self.copy_of.named_parameters():
            kept = mine.ndim < 2 or not name.startswith("layers.") or "router" in name
            mine.copy_(exact[name] if kept else int8_rounded(exact[name]))
        super().publish()


def int8_rounded(weight: torch.Tensor) -> torch.Tensor:
    """Each row as whole multiples, -127 to 127, of a 127th of its largest element."""
    step = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    return torch.round(weight / step) * step


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Gaps of one seed with and without replay, and accuracies on held-out problems."""
    steps, imitation = (2, 30) if quick else (40, 300)
    with tempfile.TemporaryDirectory(prefix="hone-experts-") as name:
        folder = Path(name)
        held_out = make_problems(64 if quick else HELD_OUT, seed=10_000, terms=(3, 4))
        _write(folder / "held.jsonl", held_out)
        _write(folder / "train.jsonl", make_problems(8000, seed=seed, terms=(3, 4), exclude=held_out))
        before = _run(_job("sft", seed, imitation, folder, {"new": _model()}), imitation, folder / "base")
        path = {"path": str(folder / "base")}
        found = _gaps(partial(_job, "grpo", seed, steps, folder, path))
        found["accuracy before RL"] = before
        for replay, told in ((True, "with"), (False, "without")):
            job = _job("grpo", seed, steps, folder, path | {"experts": {"replay": replay}})
            _round(job)
            found[f"accuracy after RL {told} replay"] = _run(job, steps)
    return found


def _gaps(make: Callable[..., TrainingJob[Any]]) -> dict[str, float]:
    exact, rounded = make(runner="torch"), make()
    _round(rounded)
    try:
        shared, told = exact.recipe.source.collect(), rounded.recipe.source.collect()
        policy: TokenPolicy = exact.recipe.learner.policy
        with_replay, without = (_gap(policy, told, replay=replay) for replay in (True, False))
        change = _gap(policy, shared, replay=True) - _gap(policy, shared, replay=False)
        own = _routes_of(policy, told)
    finally:
        exact.close()
        rounded.close()
    seen = told.transcript
    last = seen.at[told.offsets[1:] - 1]
    assert seen.routing is not None
    read = seen.at - 1
    return {
        "places routed otherwise": float((own != np.sort(seen.routing[read], axis=2)).any(axis=2).mean()),
        "largest gap without replay, nats": float(np.abs(without).max()),
        "largest gap with replay, nats": float(np.abs(with_replay).max()),
        "k3 without replay": _k3(without),
        "k3 with replay": _k3(with_replay),
        "coverage": routing_coverage(seen.routing, seen.offsets, last),
        "change by replay, shared float32 weights, nats": float(np.abs(change).max()),
    }


def _gap(policy: TokenPolicy, episodes: Episodes, *, replay: bool) -> np.ndarray:
    """`[N]` the trainer's log-probabilities minus the engine's, nats."""
    layout = TokenLayout(scheme=token_mean, replay_routing=replay)
    rows = layout(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32)))
    (logp,) = rows.evaluate(partial(own_logp, policy), 1 << 14)
    return logp.astype(np.float64) - rows.episodes.logp


def _routes_of(policy: TokenPolicy, episodes: Episodes) -> np.ndarray:
    """`[N, L, k]` the trainer's own choice for each decision, ascending."""
    layout = TokenLayout(scheme=token_mean, replay_routing=False)
    rows = layout(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32)))
    (found,) = rows.evaluate(lambda batch: (policy.decoder.states(batch.packed).routing.chosen()[batch.at],), 1 << 14)
    return np.sort(found, axis=2)


def _k3(gap: np.ndarray) -> float:
    """KL(engine || trainer) by the k3 estimator: mean of r - 1 - ln r, r = trainer / engine."""
    return float((np.exp(gap) - 1 - gap).mean())


def _round(job: TrainingJob[Any]) -> None:
    """Give the job's engine rounded weights."""
    source = job.recipe.source
    assert isinstance(source, LiveSource) and isinstance(source.actor, EngineActor)
    policy: TokenPolicy = job.recipe.learner.policy
    source.actor.engine.runner = RoundedRunner(policy.decoder, vocab_used=policy.tokenizer.size)


def _model() -> dict[str, Any]:
    return {
        "family": "qwen3_moe", "hidden_size": 64, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16,
        "experts": {"count": 16, "per_token": 2, "width": 48}, "max_positions": 64, "alphabet": ALPHABET,
    }  # fmt: skip


def _write(file: Path, problems: list[SumProblem]) -> None:
    rows = [{"prompt": one.prompt, "completion": hurried_solution(one)} for one in problems]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _job(
    recipe: str, seed: int, steps: int, folder: Path, model: dict[str, Any], *, runner: str = "native_bfloat16"
) -> TrainingJob[Any]:
    rewards = {"functions": [{"use": "hone.lab.tasks.chain_of_sums:right_chain"}]}
    tables: dict[str, Any] = {
        "recipe": recipe, "name": recipe, "seed": seed, "steps": steps, "run": {"threads": 1},
        "model": {"compute": "float32", **model}, "task": {"source": str(folder / "train.jsonl")},
        "evaluation": {
            "max_tokens": 24, "task": {"source": str(folder / "held.jsonl")}, "rewards": rewards,
        },
    }  # fmt: skip
    if recipe == "sft":
        tables |= {"batch": 64, "learner": {"lr": 3e-3, "lr_decay": "linear"}}
    else:
        tables |= {
            "rewards": rewards, "user_code": {"workers": 1},
            "learner": {"lr": 3e-4, "ratio": {"denominator": "recorded"}},
            "rollout": {"prompts_per_step": 64, "samples_per_prompt": 8, "max_tokens": 24, "runner": runner},
        }  # fmt: skip
    entry = load_recipe(recipe)
    return entry.build(entry.config.model_validate(tables))


def _run(job: TrainingJob[Any], steps: int, folder: Path | None = None) -> float:
    """Train, save the policy where `folder` is given, and return its accuracy."""
    try:
        train(job.recipe, steps=steps, callback=lambda *_: None)
        if folder is not None:
            folder.mkdir()
            job.save_policy(folder)
        assert job.evaluate is not None
        return job.evaluate().estimate.mean
    finally:
        job.close()
