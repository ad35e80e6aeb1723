"""A recipe's own update of fake tensors: its memory is that of a real one, and what the closed form says."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pytest
from manual_clock import ManualClock

from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles, widens_half_products
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.run_memory import GenerationSettings, RunDimensions
from hone.planner.run_settings import PLANNED_RECIPES, adapter_sizes
from hone.planner.training_step import StepSettings, step_memory
from hone.recipes.recipe_step import recipe_step, take_recipe_step
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig

DENSE = PlannedDecoder(
    family="qwen3", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=192, vocab=128, tied=True,
    qk_norm=True,
)  # fmt: skip
EXPERTS = replace(DENSE, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=96)
TOKENS, LONGEST = 512, 64


NEEDED: Mapping[str, object] = {
    "dro": {"beta": 0.1}, "passk": {"k": 2}, "pkpo": {"k": 2},
    "best_of_n_distillation": {"collect_steps": 1, "learn_steps": 1},
    "expert_iteration": {"collect_steps": 1, "learn_steps": 1},
    "on_policy_distillation": {"teacher": "teacher"}, "curious_grpo": {},
}  # fmt: skip
"""Keys of `algorithm` that have no default."""


ALL_RECIPES: Final = set(json.loads(PLANNED_RECIPES.read_text(encoding="utf-8"))["recipes"])
READS_DATA: Final = {"warm_grpo"}
"""Recipes whose learner is built with its data."""


@cache
def facts(recipe: str) -> dict[str, Any]:
    """What a plan knows of a recipe."""
    return json.loads(PLANNED_RECIPES.read_text(encoding="utf-8"))["recipes"][recipe]


def config_of(recipe: str, **more: object) -> RunConfig:
    """A small config; `model.path` is never opened."""
    data: dict[str, object] = {
        "name": "small", "recipe": recipe, "steps": 2, "task": {"source": "prompts.jsonl"},
        "model": {"path": "nowhere", **({"lora": more.pop("lora")} if "lora" in more else {})},
        "learner": {"lr": 1e-4, "micro_batch_tokens": TOKENS},
    }  # fmt: skip
    if facts(recipe).get("writes"):
        data["rewards"] = {"functions": [{"use": "exact_match"}]}
        data["rollout"] = {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 48}
    if recipe in NEEDED:
        data["algorithm"] = NEEDED[recipe]
    return load_recipe(recipe).config.model_validate({**data, **more})


def run_of(shape: PlannedDecoder, recipe: str, *, rank: int = 0) -> RunDimensions:
    path = "torch" if available_kernels() is None else "compiled"
    step = StepSettings(
        tokens=TOKENS,
        text_tokens=LONGEST,
        path=path,
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens_half_products(),
    )
    found = facts(recipe)
    writes = found.get("writes", False)
    answers = GenerationSettings(concurrent=4, prompt_tokens=16, answer_tokens=48, weights_bytes=0)
    trained = adapter_sizes(shape, rank, "all")[0] if rank else None
    step = replace(
        step, trained_vocabulary=not rank, predicts_tokens=found.get("predicts_tokens", True),
        chosen_tokens=48 if writes else 0, texts_together=found.get("factor", 1), entropy=found.get("entropy", False),
    )  # fmt: skip
    return RunDimensions(
        shape=shape, step=step, generation=answers if writes else None,
        trained_parameters=trained,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "shape", "rank"),
    [("grpo", DENSE, 0), ("grpo", DENSE, 4), ("ppo_text", DENSE, 0), ("reward_pairs", DENSE, 0), ("dpo", DENSE, 0),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in
       [("grpo", EXPERTS, 0), ("sft", DENSE, 0), ("kl_cov", DENSE, 0)])],
)  # fmt: skip
def test_an_update_without_numbers_takes_what_a_real_one_does(recipe: str, shape: PlannedDecoder, rank: int) -> None:
    """Within 1%, the indices of the texts; the closed form is within 2%."""
    config = config_of(recipe, lora={"rank": rank}) if rank else config_of(recipe)
    run = run_of(shape, recipe, rank=rank)
    fake = take_recipe_step(config, run, clock=ManualClock())
    real = take_recipe_step(config, run, clock=ManualClock(), fake=False)
    assert fake.resident_bytes == pytest.approx(real.resident_bytes, rel=1e-3)
    assert fake.working_bytes == pytest.approx(real.working_bytes, rel=0.01)
    assert step_memory(run.shape, run.step).peak == pytest.approx(real.working_bytes, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(ALL_RECIPES - READS_DATA))
def test_the_update_of_every_recipe_takes_what_the_closed_form_says(recipe: str) -> None:
    run = run_of(DENSE, recipe)
    found = recipe_step(config_of(recipe), run, clock=ManualClock())
    assert found.tracked is not None, found.reason
    assert step_memory(run.shape, run.step).peak == pytest.approx(found.tracked.working_bytes, rel=0.02)


def test_an_update_that_cannot_be_taken_says_why() -> None:
    other = RunConfig(name="small", recipe="my_recipe", steps=1)
    found = recipe_step(other, run_of(DENSE, "sft"), clock=ManualClock())
    assert found.tracked is None
    assert "my_recipe cannot be taken apart from its data" in found.reason
    gpu = run_of(DENSE, "grpo")
    gpu = replace(gpu, step=replace(gpu.step, path="fused"))
    assert "a step on a GPU" in recipe_step(config_of("grpo"), gpu, clock=ManualClock()).reason
