"""The chain of sums of the demonstrations: a base that imitates a hurried teacher, its answers, and scorers of them.

Everything is trained by hone's own recipes, from files in a folder of one seed.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hone.core.generation import Request, SamplingParams, generate
from hone.lab.tasks.chain_of_sums import ALPHABET, SumProblem, right_chain, split_steps, step_labels
from hone.models.language.token_policy import TokenPolicy
from hone.recipes.reward_models import reward_outcome, reward_steps
from hone.recipes.text import sft
from hone.rewards.config import UserCodeConfig
from hone.run.job import RecipeSpec
from hone.run.loop import train
from hone.run.store.records import SearchRecord
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.reward_members import load_reward_scorer, reward_scorer
from hone.text.evaluate.search_eval import OpenedSearch
from hone.text.evaluate.text_eval import EvaluationConfig, prepare_evaluation

MODEL = {"hidden_size": 64, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate_size": 192}
POSITIONS = 96
TASK = "hone.lab.tasks.chain_of_sums"


def write_rows(path: Path, rows: Sequence[dict[str, object]]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def trained(spec: RecipeSpec, folder: Path, table: dict[str, object], *, steps: int) -> Path:
    """Train a recipe for `steps`, and save its model in `folder`."""
    config = spec.config.model_validate({"name": folder.name, "steps": steps, **table})
    job = spec.build(config)
    try:
        train(job.recipe, steps=steps, callback=lambda *_: None)
        folder.mkdir(parents=True)
        job.save_policy(folder)
    finally:
        job.close()
    return folder


def base(
    folder: Path,
    problems: Sequence[SumProblem],
    solution: Callable[[SumProblem], str],
    *,
    steps: int,
    seed: int,
    batch: int = 64,
) -> TokenPolicy:
    """A new model that imitates `solution`, the last separator left out."""
    rows = [{"prompt": one.prompt, "completion": solution(one).rstrip(";")} for one in problems]
    table: dict[str, object] = {
        "recipe": "sft",
        "seed": seed,
        "batch": batch,
        "task": {"source": str(write_rows(folder / "worked.jsonl", rows))},
        "model": {"new": {**MODEL, "max_positions": POSITIONS, "alphabet": ALPHABET}, "compute": "float32"},
        "learner": {"lr": 3e-3, "warmup_steps": 30, "lr_decay": "cosine"},
    }
    return opened(trained(sft.ENTRY, folder / "base", table, steps=steps), seed=seed)


def opened(folder: Path, *, seed: int) -> TokenPolicy:
    """The policy of a folder."""
    return open_policy(ModelSource(path=str(folder), compute="float32"), seed=seed, device="cpu", temperature=1.0)


def answers(
    policy: TokenPolicy, problems: Sequence[SumProblem], *, samples: int, temperature: float, max_tokens: int, seed: int
) -> list[tuple[SumProblem, str]]:
    """`samples` answers to each problem."""
    tokens = [policy.tokenizer.encode(one.prompt) for one in problems]
    engine = make_engine(policy, slots=128, longest_prompt=max(map(len, tokens)), max_tokens=max_tokens, seed=seed)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    asked = [Request(id=str(n), prompt=prompt, samples=samples, sampling=sampling) for n, prompt in enumerate(tokens)]
    drawn = sorted(generate(engine, asked), key=lambda one: (int(one.request_id), one.sample_index))
    return [(problems[int(one.request_id)], one.text(policy.tokenizer.decode)) for one in drawn]


def outcome_scorer(
    folder: Path, name: str, labelled: Sequence[tuple[SumProblem, str]], *, steps: int, seed: int, start: str = "base"
) -> Path:
    """A verifier of whole answers, right where every step is; it starts from the base."""
    rows: list[dict[str, object]] = [
        {"prompt": one.prompt, "completion": text, "label": bool(right_chain([one.prompt], [text])[0])}
        for one, text in labelled
    ]
    source = write_rows(folder / f"{name}.jsonl", rows)
    return _scorer(reward_outcome.ENTRY, folder, name, source, steps=steps, seed=seed, start=start)


def step_scorer(
    folder: Path, name: str, labelled: Sequence[tuple[SumProblem, str]], *, steps: int, seed: int, start: str = "base"
) -> Path:
    """A verifier of steps. The last step's label stands at the end of the answer: it says that the answer is whole."""
    rows: list[dict[str, object]] = []
    for one, text in labelled:
        pieces = split_steps(text)
        if pieces:
            labels = step_labels(one, text)
            labels[-1] = bool(right_chain([one.prompt], [text])[0])
            rows.append({"prompt": one.prompt, "completions": pieces, "labels": labels})
    source = write_rows(folder / f"{name}.jsonl", rows)
    return _scorer(reward_steps.ENTRY, folder, name, source, steps=steps, seed=seed, start=start)


def _scorer(spec: RecipeSpec, folder: Path, name: str, source: Path, *, steps: int, seed: int, start: str) -> Path:
    table: dict[str, object] = {
        "recipe": name,
        "seed": seed,
        "batch": 64,
        "task": {"source": str(source), **({"answers": {"separator": ";"}} if spec is reward_steps.ENTRY else {})},
        "model": {"path": str(folder / start), "compute": "float32"},
        "learner": {"lr": 1e-3, "warmup_steps": 20, "lr_decay": "cosine"},
    }
    return trained(spec, folder / name, table, steps=steps)


def searched(
    folder: Path,
    policy: TokenPolicy,
    held_out: Sequence[SumProblem],
    search: dict[str, object],
    *,
    max_tokens: int,
    seed: int,
) -> SearchRecord:
    """Accuracy of plans on whole chains, as the evaluation of a run finds it."""
    rows: list[dict[str, object]] = [{"prompt": one.prompt, "answer": str(one.answer)} for one in held_out]
    config = EvaluationConfig.model_validate(
        {
            "task": {"source": str(write_rows(folder / "held_out.jsonl", rows))},
            "rewards": {"functions": [{"use": f"{TASK}:right_chain"}]},
            "user_code": {"workers": 1, "deadline_s": 120.0},
            "max_tokens": max_tokens,
            "max_concurrent": 128,
            "seed": seed,
            "search": {"step": ";", "answer": r"-?\d+", **search},
        }
    )
    assert config.search is not None
    load = partial(load_reward_scorer, device="cpu", tokenizer=policy.tokenizer)
    exam = prepare_evaluation(
        config,
        policy.tokenizer,
        context=POSITIONS,
        scorer=reward_scorer(config.rewards, limits=UserCodeConfig(workers=1), load=load),
    )
    opened_search = OpenedSearch(config=config.search, exam=exam, load=load, limits=UserCodeConfig(workers=1))
    try:
        return opened_search.run(policy)
    finally:
        opened_search.close()
        exam.close()
