"""Short runs of text recipes for the demonstrations: rows of data, training by a config, answers of a policy."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hone.core.credit import Metrics
from hone.core.generation import Request, SamplingParams, generate
from hone.models.language.token_policy import TokenPolicy
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.run.store.evaluations import AnswerRow
from hone.text.evaluate.engine_actor import make_engine

MODEL = {
    "hidden_size": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 192,
    "max_positions": 256,
}  # fmt: skip
"""Shape of a small decoder, of about 130,000 parameters."""


class EnoughTokensError(Exception):
    """A run has sampled as many tokens as it may."""


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """Write JSON lines; returns their path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def run_recipe(
    name: str,
    tables: Mapping[str, Any],
    folder: Path,
    *,
    after_step: Callable[[Metrics], None] | None = None,
    tokens: float | None = None,
    evaluations: list[Metrics] | None = None,
    answers: list[Sequence[AnswerRow]] | None = None,
) -> TokenPolicy:
    """Train a recipe and save its policy in a new `folder`. `after_step` is told the metrics of each step; a run ends
    after the step in which it has sampled `tokens`. `evaluations` takes the config's, before and after, and
    `answers` the answers of these."""
    entry = load_recipe(name)
    config = entry.config.model_validate({"recipe": name, "name": name, "run": {"threads": 1}, **tables})
    job = entry.build(config)
    sampled = 0.0

    def told(_step: int, _episodes: object, _credits: object, metrics: Metrics) -> None:
        nonlocal sampled
        every = {**metrics, **job.recipe.source.metrics()}
        sampled += every.get("rollout/tokens", 0.0)
        if after_step is not None:
            after_step(every)
        if tokens is not None and sampled >= tokens:
            raise EnoughTokensError

    def evaluate() -> None:
        if evaluations is not None and job.evaluate is not None:
            result = job.evaluate()
            evaluations.append(result.metrics)
            if answers is not None:
                answers.append(result.answers)

    with contextlib.closing(job):
        evaluate()
        with contextlib.suppress(EnoughTokensError):
            train(job.recipe, steps=config.steps, callback=told)
        evaluate()
    policy: TokenPolicy = job.recipe.learner.policy
    folder.mkdir(parents=True)
    policy.save(folder)
    return policy


def sample_answers(policy: TokenPolicy, prompts: Sequence[str], *, max_tokens: int, seed: int) -> list[str]:
    """One answer to each prompt at temperature 1."""
    tokens = [policy.tokenizer.encode(prompt) for prompt in prompts]
    engine = make_engine(policy, slots=128, longest_prompt=max(map(len, tokens)), max_tokens=max_tokens, seed=seed)
    sampling = SamplingParams(max_tokens=max_tokens)
    requests = [
        Request(id=str(place), prompt=prompt, samples=1, sampling=sampling) for place, prompt in enumerate(tokens)
    ]
    found = [""] * len(prompts)
    for completion in generate(engine, requests):
        found[int(completion.request_id)] = completion.text(policy.tokenizer.decode)
    return found
