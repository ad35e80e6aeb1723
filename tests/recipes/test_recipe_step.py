"""A recipe's own update of fake tensors: its memory is that of a real one, and what the closed form says."""

from dataclasses import replace

import pytest
from manual_clock import ManualClock

from hone.models.native.library import available_kernels
from hone.models.native.products import uses_amx_tiles
from hone.planner.planned_adapter import adapter_sizes
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.run_memory import GenerationSettings, RunDimensions
from hone.planner.training_step import StepSettings, step_memory
from hone.recipes.recipe_step import recipe_step, take_recipe_step
from hone.recipes.registry import load_recipe
from hone.train.config import RunConfig

DENSE = PlannedDecoder(
    family="qwen3", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=192, vocab=128, tied=True,
    qk_norm=True,
)  # fmt: skip
EXPERTS = replace(DENSE, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=96)
TOKENS, LONGEST = 512, 64


def config_of(recipe: str, **more: object) -> RunConfig:
    """A small config; `model.path` is never opened."""
    data: dict[str, object] = {
        "name": "small", "recipe": recipe, "steps": 1, "task": {"source": "prompts.jsonl"},
        "model": {"path": "nowhere", **({"lora": more.pop("lora")} if "lora" in more else {})},
        "learner": {"lr": 1e-4, "micro_batch_tokens": TOKENS},
    }  # fmt: skip
    if recipe in ("grpo", "ppo_text", "kl_cov"):
        data["rewards"] = {"functions": [{"use": "exact_match"}]}
        data["rollout"] = {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 48}
    return load_recipe(recipe).config.model_validate({**data, **more})


def run_of(shape: PlannedDecoder, recipe: str, *, rank: int = 0) -> RunDimensions:
    path = "torch" if available_kernels() is None else "compiled"
    step = StepSettings(tokens=TOKENS, text_tokens=LONGEST, path=path, tile_scratch=uses_amx_tiles())
    writes = recipe in ("grpo", "ppo_text", "kl_cov")
    answers = GenerationSettings(concurrent=4, prompt_tokens=16, answer_tokens=48, weights_bytes=0)
    trained = adapter_sizes(shape, rank, "all")[0] if rank else None
    step = replace(step, trained_vocabulary=not rank, predicts_tokens=recipe != "reward_pairs")
    step = replace(step, chosen_tokens=48 if writes else 0)
    return RunDimensions(
        shape=shape, step=step, generation=answers if writes else None,
        trained_parameters=trained,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "shape", "rank"),
    [("grpo", DENSE, 0), ("grpo", DENSE, 4), ("ppo_text", DENSE, 0), ("reward_pairs", DENSE, 0),
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


def test_an_update_that_cannot_be_taken_says_why() -> None:
    found = recipe_step(config_of("dpo"), run_of(DENSE, "dpo"), clock=ManualClock())
    assert found.found is None
    assert "dpo cannot be taken apart from its data" in found.reason
    gpu = run_of(DENSE, "grpo")
    gpu = replace(gpu, step=replace(gpu.step, path="fused"))
    assert "a step on a GPU" in recipe_step(config_of("grpo"), gpu, clock=ManualClock()).reason
