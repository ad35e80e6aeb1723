"""Runs that train a low-rank adapter: bits of a resume, the reference policy, continued adapters, the plan."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from recipe_runs import MODEL, files, job_of, lay_out, restored, saved, scores_of, settings, text_recipes

from hone.core.errors import DataError, HoneError
from hone.models.language.hf_checkpoint import load_model
from hone.models.language.lora import weights_sha256
from hone.models.language.scalar_head import TokenScorer
from hone.models.language.token_policy import TokenPolicy
from hone.planner.run_memory import run_memory
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.text.evaluate.open_policy import load_scorer

LORA = {"rank": 2}
SFT = {
    "recipe": "sft", "name": "sft", "steps": 3, "batch": 4, "run": {"threads": 1},
    "task": {"source": "pairs.jsonl"}, "learner": {"lr": 0.02, "minibatches": 2},
}  # fmt: skip
LOGGED: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {"task": {"source": "preference.jsonl"}, "samples": {"prompts": 3, "every": 2}},
    "reward_pairs": {"task": {"source": "preference.jsonl"}},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the questions and `base`, a model that some steps of GRPO made."""
    lay_out(tmp_path, monkeypatch)
    rows = [{"prompt": a, "completion": b} for a, b in ("ab", "bc", "cd", "de")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = [{"prompt": a, "chosen": b, "rejected": c} for a, b, c in ("abc", "bcd", "cda", "dab")]
    (tmp_path / "preference.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    job = job_of("grpo", settings("grpo", steps=1, full=False))
    (tmp_path / "base").mkdir()
    job.save_policy(tmp_path / "base")
    return tmp_path


def model(path: str = "base", **changes: Any) -> dict[str, Any]:
    return {"compute": MODEL["compute"], "path": path, "lora": LORA} | changes


def tables_of(name: str, *, steps: int = 3, **changes: Any) -> dict[str, Any]:
    if name in LOGGED:
        return SFT | {"recipe": name, "steps": steps, "model": model()} | LOGGED[name] | changes
    if name == "expert_iteration":
        rounds = {"learner": {"lr": 0.02}, "algorithm": {"collect_steps": 1, "learn_steps": 2, "batch": 8}}
        return settings("grpo", steps=steps) | {"recipe": name, "model": model()} | rounds | changes
    return {**settings(name, steps=steps), "model": model(), **changes}


def policy_of(job: TrainingJob[Any]) -> Any:
    policy = job.recipe.learner.policy
    assert isinstance(policy, TokenPolicy | TokenScorer) and policy.adapter is not None
    return policy


def run(job: TrainingJob[Any], *, steps: int, first: int = 1) -> TrainingJob[Any]:
    train(job.recipe, steps=steps, callback=lambda *_: None, first_step=first)
    return job


@pytest.mark.parametrize(
    "name", ["sft", "grpo", "dppo", "ppo_text", "online_dpo", "dpo", "reward_pairs", "expert_iteration"]
)
def test_a_resume_is_the_same_run_to_the_bit(name: str, place: Path) -> None:
    steps = 6 if name == "expert_iteration" else 3
    tables = tables_of(name, steps=steps)
    straight = run(job_of(name, tables), steps=steps)
    saved(straight, place / "straight")
    halfway = run(job_of(name, tables), steps=2)
    saved(halfway, place / "halfway")
    resumed = run(restored(job_of(name, tables), place / "halfway"), steps=steps, first=3)
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight")
    assert files(place / "halfway") != files(place / "straight")
    assert policy_of(resumed).fingerprint() == policy_of(straight).fingerprint()


@pytest.mark.slow
def test_every_other_recipe_takes_an_adapter(place: Path) -> None:
    """Two steps each: the base stays as it is, and the policy is it with the adapter merged."""
    (place / "teacher").mkdir()
    job_of("grpo", settings("grpo", steps=1, full=False)).save_policy(place / "teacher")
    base = weights_sha256(load_model("base"))
    for name in sorted(set(text_recipes()) - {"trpo_text"}):
        policy = policy_of(run(job_of(name, tables_of(name, steps=2)), steps=2))
        assert weights_sha256(policy.adapter.base_decoder()) == base, name
        before = policy.fingerprint()
        policy.adapter.merge()
        assert policy.fingerprint() == before, name


def test_a_scorer_trains_an_adapter_and_its_head(place: Path) -> None:
    job = job_of("reward_pairs", tables_of("reward_pairs"))
    scorer, base = policy_of(job), dict(load_model("base").named_parameters())
    head = scorer.model.score.weight.detach().clone()
    run(job, steps=3)
    assert not torch.equal(scorer.model.score.weight, head)
    moved = {name for name, now in scorer.decoder.named_parameters() if not torch.equal(now, base[name])}
    assert moved == set(scorer.adapter.weights)
    job.save_policy(place / "scorer")
    found = load_scorer(place / "scorer")
    assert found.fingerprint() == scorer.fingerprint()
    again = job_of("reward_pairs", tables_of("reward_pairs", model=model("scorer")))
    assert policy_of(again).fingerprint() == scorer.fingerprint() and policy_of(again).adapter.starts_at_base


def test_the_folder_holds_the_weights_of_the_trainer_to_the_bit(place: Path) -> None:
    job = run(job_of("grpo", tables_of("grpo")), steps=3)
    job.save_policy(place / "adapter")
    found = policy_of(job)
    assert weights_sha256(load_model(place / "adapter")) == found.fingerprint() != weights_sha256(load_model("base"))
    found.save_merged(place / "merged")
    assert weights_sha256(load_model(place / "merged")) == found.fingerprint()
    assert (place / "adapter" / "adapter_config.json").is_file() and not (place / "adapter" / "config.json").exists()


def test_only_adapted_layers_move_and_the_optimizer_keeps_a_and_b_alone(place: Path) -> None:
    job = run(job_of("sft", tables_of("sft", model=model(lora={"rank": 2, "layers": ["q_proj"]}))), steps=3)
    policy, before = policy_of(job), dict(load_model("base").named_parameters())
    moved = {name for name, now in policy.decoder.named_parameters() if not torch.equal(now, before[name])}
    assert moved == {"layers.0.qkv.weight"}
    query = policy.decoder.layers[0].qkv.weight[16:]
    assert torch.equal(query, before["layers.0.qkv.weight"][16:]), "keys and values are not adapted"
    adapter = policy.adapter
    assert adapter is not None
    optimizer = job.recipe.learner.phases[0].optimizer
    assert [moment.numel() for moment in optimizer.means] == [adapter.settings.count(policy.decoder.config)] == [64]


def test_the_reference_is_the_base_in_the_same_memory(place: Path) -> None:
    """The same run as with a reference that is loaded once more: KL and all."""
    tables = tables_of("grpo")
    job = job_of("grpo", tables)
    scores = scores_of(job, steps=3)
    assert tables["algorithm"]["kl"] > 0
    loaded = job_of("grpo", tables)
    adapter = policy_of(loaded).adapter
    assert adapter is not None and adapter.starts_at_base
    saved(job, place / "shared")
    fingerprints = job.recipe.learner.fingerprints
    assert list(fingerprints.values()) == [weights_sha256(load_model("base"))]
    again = job_of("grpo", tables)
    found = policy_of(again).adapter
    assert found is not None
    for name, parameter in found.base_decoder().named_parameters():
        held = found.base.get(name)
        own = dict(found.decoder.named_parameters())[name]
        assert parameter.data_ptr() == (own if held is None else held).data_ptr()
    assert scores_of(again, steps=3) == scores


def test_an_adapter_is_continued_and_its_reference_is_where_it_began(place: Path) -> None:
    first = run(job_of("sft", tables_of("sft")), steps=3)
    first.save_policy(place / "adapter")
    start = policy_of(first).fingerprint()
    tables = tables_of("grpo", model=model("adapter"))
    job = job_of("grpo", tables)
    assert policy_of(job).fingerprint() == start
    run(job, steps=2)
    assert list(job.recipe.learner.fingerprints.values()) == [start]
    job.save_policy(place / "more")
    now, before = (json.loads((place / one / "adapter_config.json").read_text()) for one in ("more", "adapter"))
    assert now == before and now["base_model_name_or_path"] == "base"  # as model.path named it
    assert weights_sha256(load_model(place / "more")) == policy_of(job).fingerprint() != start


def test_all_weights_can_be_trained_from_an_adapter(place: Path) -> None:
    first = run(job_of("sft", tables_of("sft")), steps=3)
    first.save_policy(place / "adapter")
    job = job_of("grpo", tables_of("grpo", model={"path": "adapter", "compute": "float32"}))
    policy = job.recipe.learner.policy
    assert policy.adapter is None and policy.fingerprint() == policy_of(first).fingerprint()
    run(job, steps=1).save_policy(place / "whole")
    assert (place / "whole" / "config.json").is_file()


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_it_learns(compute: str, place: Path) -> None:
    changed = {"model": model(compute=compute, lora={"rank": 8}), "learner": {"lr": 0.01}}
    scores = scores_of(job_of("grpo", settings("grpo", steps=25, full=False) | changed), steps=25)
    assert np.mean(scores[-3:]) - np.mean(scores[:3]) > 0.25


def test_bits_of_engine_and_trainer_agree(place: Path) -> None:
    """With `exactness = "bitwise"` the trainer reproduces what the engine recorded from the merged weights."""
    learner = {"lr": 0.02, "ratio": {"denominator": "recorded", "diagnostics": True}}
    job = job_of("grpo", tables_of("grpo", model=model(exactness="bitwise"), learner=learner))
    told: list[float] = []
    train(job.recipe, steps=3, callback=lambda _s, _e, _c, metrics: told.append(metrics["mismatch/value_max"]))
    assert told == [0.0] * 3


# ------------------------------------------------------------------------------------------------- the plan


def opened(tables: dict[str, Any]) -> Any:
    entry = load_recipe(tables["recipe"])
    found = entry.config.model_validate(tables).open()
    found.close()
    return found


def test_the_plan_counts_a_base_and_an_adapter_and_advises_on_the_rate(place: Path) -> None:
    plan, full = opened(tables_of("grpo")).memory, opened(tables_of("grpo") | {"model": {"path": "base"}}).memory
    policy = policy_of(job_of("grpo", tables_of("grpo")))
    adapter = policy.adapter
    assert adapter is not None
    adapted = 4 * sum(weight.numel() for weight in adapter.base.values())
    factors = 4 * sum(factor.numel() for _, factor in adapter.factors())
    assert plan.parts["base of the adapted weights"] == adapted
    assert "gradients" not in plan.parts, "those of the merged weights are freed as they come"
    assert plan.parts["adapter with its gradients"] == plan.parts["optimizer state"] == 2 * factors
    assert plan.run is not None
    assert "gradients" not in run_memory(plan.run).components
    assert "reference policy" in full.parts and "reference policy" not in plan.parts
    rows = plan.rows()
    assert rows["LoRA"].startswith("rank 2 on 7 linear layers: 464 trained numbers (")
    assert rows["LoRA's learning rate"].startswith("about 1 times that of a run that trains all weights")
    assert "LoRA" not in full.rows()


def test_the_plan_counts_a_reference_that_is_loaded_once_more(place: Path) -> None:
    run(job_of("sft", tables_of("sft")), steps=1).save_policy(place / "adapter")
    assert "reference policy" in opened(tables_of("grpo", model=model("adapter"))).memory.parts


def test_dropout_of_another_program_is_told(place: Path) -> None:
    run(job_of("sft", tables_of("sft")), steps=1).save_policy(place / "adapter")
    file = place / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_dropout": 0.1}))
    assert any("lora_dropout = 0.1 is not applied" in note for note in opened(tables_of("sft", model=model("adapter"))).warnings)  # fmt: skip # noqa: E501


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lora": {"rank": 0}}, "greater than or equal to 1"),
        ({"weights": "bfloat16", "compute": "auto"}, 'model.lora with model.weights = "bfloat16"'),
        ({"path": None, "new": MODEL["new"]}, "model.lora adapts a trained model: give model.path"),
    ],
)
def test_configs_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe("sft").config.model_validate(tables_of("sft", model=model(**changes)))


def test_a_trust_region_refuses_an_adapter() -> None:
    with pytest.raises(ValidationError, match=r"model.lora: trpo_text takes its natural gradient in all weights"):
        load_recipe("trpo_text").config.model_validate(tables_of("trpo_text"))


def test_faults_are_told_before_a_model_is_loaded(place: Path) -> None:
    (place / "base" / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model.lora.rank = 9 is above the smaller side of k_proj \(8 x 16\)"):
        opened(tables_of("grpo", model=model(lora={"rank": 9})))


def test_an_adapter_of_another_base_ends_the_run(place: Path) -> None:
    run(job_of("sft", tables_of("sft")), steps=1).save_policy(place / "adapter")
    other = job_of("grpo", settings("grpo", steps=1, full=False) | {"seed": 5})
    other.save_policy(place / "base")
    with pytest.raises(HoneError, match="is an adapter of a base with sha256"):
        job_of("sft", tables_of("sft", model=model("adapter")))
