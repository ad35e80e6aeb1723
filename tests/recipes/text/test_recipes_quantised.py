"""Runs of an adapter on a base in codes: bits of a resume, micro-batches, the reference, export, the plan, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from recipe_runs import MODEL, files, job_of, lay_out, restored, saved, settings

from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError
from hone.models.language.hf_checkpoint import load_model, stored_type
from hone.models.language.lora import weights_sha256
from hone.models.language.quantised_linear import BITS
from hone.planner.run_memory import run_memory
from hone.planner.run_settings import CODE_BITS
from hone.recipes.recipe_step import take_recipe_step
from hone.recipes.registry import load_recipe
from hone.run.loop import train
from hone.text.evaluate.open_policy import export_policy

NEW = {**MODEL["new"], "hidden_size": 64, "heads": 2, "head_dim": 32, "intermediate_size": 32, "layers": 2}
SFT = {
    "recipe": "sft", "name": "sft", "batch": 4, "run": {"threads": 1}, "task": {"source": "pairs.jsonl"},
    "learner": {"lr": 0.02, "minibatches": 2},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with questions, and `base` with weights in bfloat16."""
    lay_out(tmp_path, monkeypatch)
    rows = [{"prompt": a, "completion": b} for a, b in ("ab", "bc", "cd", "de")]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    new = {"new": NEW, "weights": "bfloat16", "compute": "bfloat16"}
    (tmp_path / "base").mkdir()
    tables = settings("grpo", steps=1, full=False) | {"model": new}
    job_of("grpo", tables).save_policy(tmp_path / "base")
    return tmp_path


def tables_of(
    name: str, weights: str = "int4", *, steps: int = 3, path: str = "base", **changes: Any
) -> dict[str, Any]:
    model = {"path": path, "weights": weights, "compute": "float32", "lora": {"rank": 2}}
    return (SFT | {"steps": steps} if name == "sft" else settings(name, steps=steps)) | {"model": model} | changes


def run(job, *, steps: int, first: int = 1):
    train(job.recipe, steps=steps, callback=lambda *_: None, first_step=first)
    return job


def policy_of(job):
    return job.recipe.learner.policy


@pytest.mark.parametrize(("name", "weights"), [("sft", "int4"), ("grpo", "int8"), ("grpo", "int4")])
def test_a_resume_is_the_same_run_to_the_bit_and_the_base_is_not_saved(name: str, weights: str, place: Path) -> None:
    tables = tables_of(name, weights)
    straight = run(job_of(name, tables), steps=3)
    saved(straight, place / "straight")
    saved(run(job_of(name, tables), steps=2), place / "halfway")
    resumed = run(restored(job_of(name, tables), place / "halfway"), steps=3, first=3)
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight") != files(place / "halfway")
    assert policy_of(resumed).fingerprint() == policy_of(straight).fingerprint()
    assert not [file for file in (place / "straight").rglob("*") if file.name.startswith("model")]


def test_micro_batches_do_not_change_the_update(place: Path) -> None:
    found = []
    for tokens in (64, 5):
        learner = {"lr": 0.02, "minibatches": 1, "micro_batch_tokens": tokens}
        job = run(job_of("sft", tables_of("sft", learner=learner)), steps=2)
        found.append(torch.cat([factor.detach().flatten() for _, factor in policy_of(job).adapter.factors()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("weights", list(BITS))
def test_it_learns_from_its_own_answers_and_the_reference_takes_no_second_copy(weights: str, place: Path) -> None:
    learner = {"lr": 0.02, "ratio": {"denominator": "recomputed", "diagnostics": True}}
    job = job_of("grpo", tables_of("grpo", weights, steps=12, learner=learner))
    policy = policy_of(job)
    base = policy.adapter.base_decoder()
    before = weights_sha256(base)
    told: list[float] = []
    train(job.recipe, steps=12, callback=lambda _s, _e, _c, metrics: told.append(metrics["mismatch/value_max"]))
    assert 0 < max(told) < 2e-3, "nats between a token's log-probability by the engine and by the trainer"
    assert list(job.recipe.learner.fingerprints.values()) == [before] == [weights_sha256(base)]
    codes = {name: one for name, one in policy.decoder.named_parameters() if one.dtype == torch.uint8}
    shared = dict(base.named_parameters())
    assert len(codes) == 9 and all(shared[name].data_ptr() == one.data_ptr() for name, one in codes.items())


def test_it_imitates(place: Path) -> None:
    model = {"path": "base", "weights": "int4", "compute": "bfloat16", "lora": {"rank": 8}}
    told: list[float] = []
    job = job_of("sft", tables_of("sft", steps=30) | {"model": model})
    train(job.recipe, steps=30, callback=lambda _s, _e, _c, metrics: told.append(metrics["policy/nll_nats"]))
    assert told[-1] < 0.2 * told[0]


def test_the_export_is_the_decoded_base_with_the_adapter_in_the_type_of_the_base(place: Path) -> None:
    job = run(job_of("sft", tables_of("sft")), steps=3)
    job.save_policy(place / "adapter")
    export_policy(place / "adapter", place / "merged", adapter=False, dtype="bfloat16")
    export_policy(place / "adapter", place / "peft", adapter=True)
    assert stored_type(place / "merged") == stored_type(place / "base") == "bfloat16"
    merged, trained = load_model(place / "merged"), policy_of(job).adapter.dense_decoder()
    for (name, found), expected in zip(merged.named_parameters(), trained.parameters(), strict=True):
        assert torch.equal(found, expected.bfloat16().float()), name
    assert (place / "peft" / "adapter_model.safetensors").is_file()
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    dense = transformers.AutoModelForCausalLM.from_pretrained(place / "base")
    peft.PeftModel.from_pretrained(dense, place / "peft")


def opened(tables: dict[str, Any]) -> Any:
    found = load_recipe(tables["recipe"]).config.model_validate(tables).open()
    found.close()
    return found


@pytest.mark.parametrize("name", ["sft", "grpo"])
def test_the_plan_counts_the_codes_and_no_second_copy(name: str, place: Path) -> None:
    assert CODE_BITS == BITS
    tables = tables_of(name)
    plan = opened(tables).memory
    policy = policy_of(job_of(name, tables))
    held = sum(one.nbytes for key, one in policy.decoder.named_parameters() if ".lora_" not in key)
    assert plan.parts["weights"] == held
    assert "base of the adapted weights" not in plan.parts and "gradients" not in plan.parts
    assert "reference policy" not in plan.parts
    if name == "sft":
        config = load_recipe(name).config.model_validate(tables)
        tracked = take_recipe_step(config, plan.run, clock=SystemClock())
        assert run_memory(plan.run).step.peak == pytest.approx(tracked.working_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"path": "base", "weights": "int4"}},
            r'model.weights = "int4" is for a base that is not trained: add',
        ),
        (
            {"model": {"path": "base", "weights": "int8", "lora": {"rank": 2}, "exactness": "bitwise"}},
            r'computed in float32; remove model.weights = "int8"',
        ),
    ],
)
def test_configs_that_cannot_be_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe("sft").config.model_validate(tables_of("sft", **changes))


def test_networks_that_take_no_codes_are_refused_by_name(place: Path) -> None:
    for name, why in (("ppo_text", "the critic trains all of its weights"), ("reward_pairs", "adapter merged")):
        with pytest.raises((ValidationError, ConfigError), match=f'model.weights = "int4": .*{why}'):
            opened(tables_of(name) if name == "ppo_text" else tables_of("sft", recipe=name))
    with pytest.raises(HoneError, match=r'model.weights = "int4": codes are not shared out among run.ranks'):
        opened(tables_of("sft", run={"threads": 1, "ranks": 2}))
    with pytest.raises(HoneError, match=r'model.weights = "int4" is for a CPU, not run.device = .cuda'):
        opened(tables_of("sft", run={"threads": 1, "device": "cuda"}))
    with pytest.raises(ValidationError, match="weights are not sent to replicas in codes"):
        load_recipe("grpo").config.model_validate(tables_of("grpo", cluster={"rollout": {"replicas": 1}}))
    config = place / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 40}))
    with pytest.raises(DataError, match="for every 32 inputs of a linear layer, and the model has one with 40"):
        opened(tables_of("sft"))
