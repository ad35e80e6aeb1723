"""Policies on the strings of letter pairs: a base after imitation, its answers with their true rewards, runs from it.

Everything of a seed derives from it: weights, strings to imitate, answers, labels.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.generation import Request, SamplingParams, generate
from hone.lab.tasks.letter_pairs import LETTERS, first_is_preferred, strings_to_imitate, true_reward
from hone.models.language.token_policy import TokenPolicy
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.text.evaluate.engine_actor import make_engine

MAX_TOKENS = 24
SHAPE = {"hidden_size": 48, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 12, "intermediate_size": 128}
NEW = {**SHAPE, "max_positions": 32, "alphabet": LETTERS}
THREADS = {"threads": 1}


@dataclass(frozen=True, kw_only=True)
class LetterAnswers:
    """Answers of a policy, `n` in all."""

    prompts: Sequence[str]
    texts: Sequence[str]
    rewards: NDArray[np.float64]
    """`[n]` true rewards."""


def run_recipe(settings: Mapping[str, Any]) -> tuple[TokenPolicy, list[Metrics]]:
    """Train by a config given as tables -> the policy, and the metrics of each step."""
    entry = load_recipe(str(settings["recipe"]))
    job = entry.build(entry.config.model_validate({"name": "letters", "run": THREADS, **settings}))
    told: list[Metrics] = []

    def report(_step: int, _episodes: object, _credits: object, metrics: Metrics) -> None:
        told.append({**metrics, **job.recipe.source.metrics()})

    policy = train(job.recipe, steps=int(settings["steps"]), callback=report)
    job.close()
    assert isinstance(policy, TokenPolicy)
    return policy, told


def base_policy(folder: Path, *, seed: int, steps: int = 300) -> TokenPolicy:
    """A policy after imitation of uneven strings, saved as `folder / "base"`."""
    rows = [{"prompt": text[0], "completion": text[1:]} for text in strings_to_imitate(8000, seed=seed)]
    settings = {
        "recipe": "sft",
        "steps": steps,
        "batch": 64,
        "seed": seed,
        "model": {"new": NEW, "compute": "float32"},
        "task": {"source": write_rows(folder / "strings.jsonl", rows)},
        "learner": {"lr": 3e-3, "warmup_steps": 20, "lr_decay": "cosine"},
    }
    policy, _ = run_recipe(settings)
    (folder / "base").mkdir()
    policy.save(folder / "base")
    return policy


def answers_of(policy: TokenPolicy, count: int, *, seed: int, name: str, each: int = 1) -> LetterAnswers:
    """`each` answers to each of `count` prompts, which are the letters in turn; in the order of the prompts."""
    prompts = [LETTERS[place % len(LETTERS)] for place in range(count)]
    engine = make_engine(policy, slots=256, longest_prompt=2, max_tokens=MAX_TOKENS, seed=seed)
    sampling = SamplingParams(max_tokens=MAX_TOKENS)
    requests = [
        Request(id=f"{name} {place}", prompt=policy.tokenizer.encode(prompt), samples=each, sampling=sampling)
        for place, prompt in enumerate(prompts)
    ]
    found = {(one.request_id, one.sample_index): one for one in generate(engine, requests)}
    texts = [found[request.id, sample].text(policy.tokenizer.decode) for request in requests for sample in range(each)]
    asked = [prompt for prompt in prompts for _ in range(each)]
    rewards = [true_reward(prompt + text) for prompt, text in zip(asked, texts, strict=True)]
    return LetterAnswers(prompts=asked, texts=texts, rewards=np.array(rewards))


def preference_rows(base: TokenPolicy, pairs: int, *, seed: int) -> list[dict[str, str]]:
    """Pairs of the base's answers, labelled by noisy comparisons of their true rewards; pairs of one text are left
    out."""
    drawn = answers_of(base, pairs, seed=seed, name="pair", each=2)
    first, second = np.arange(0, 2 * pairs, 2), np.arange(1, 2 * pairs, 2)
    won = first_is_preferred(drawn.rewards[first], drawn.rewards[second], seed=seed)
    chosen, rejected = np.where(won, first, second), np.where(won, second, first)
    rows = [
        {"prompt": drawn.prompts[one], "chosen": drawn.texts[one], "rejected": drawn.texts[other]}
        for one, other in zip(chosen.tolist(), rejected.tolist(), strict=True)
    ]
    return [row for row in rows if row["chosen"] != row["rejected"] and row["chosen"] and row["rejected"]]


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """Write JSON lines; returns the path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def share_of_wins(answers: LetterAnswers, others: LetterAnswers) -> float:
    """Share of the prompts whose answer has the higher true reward than the other policy's; ties count half."""
    return float((0.5 * (1.0 + np.sign(answers.rewards - others.rewards))).mean())
