"""Memory of a learner that is spread over ranks: by hand, against the update of one rank without numbers, bad input."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from torch import distributed as dist

from hone.cli.main import main
from hone.core.errors import ResourceError
from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles, widens_half_products
from hone.parallel.group import fake_ranks
from hone.planner.devices import DEVICES
from hone.planner.fixes import search_fit
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import PlannedRanks, held_by_rank, rank_step
from hone.planner.run_memory import (
    GenerationSettings,
    RunDimensions,
    machine_parts,
    other_rank,
    resident_parts,
    run_memory,
)
from hone.planner.run_settings import adapter_copies, adapter_sizes
from hone.planner.training_step import StepSettings, gathered_weights, step_memory
from hone.recipes.recipe_step import take_recipe_step
from hone.recipes.registry import load_recipe

SMALL = PlannedDecoder(
    family="qwen3", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=192, vocab=128, tied=True,
    qk_norm=True,
)  # fmt: skip
TOKENS, LONGEST = 512, 64
STEP = StepSettings(tokens=TOKENS, text_tokens=LONGEST, chosen_tokens=48, step_tokens=2 * TOKENS)
ANSWERS = GenerationSettings(concurrent=4, prompt_tokens=16, answer_tokens=48, weights_bytes=0)


def planned(ranks: PlannedRanks, shape: PlannedDecoder = SMALL, **more: Any) -> RunDimensions:
    path = "torch" if available_kernels() is None else "compiled"
    step = replace(
        STEP,
        path=path,
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens_half_products(),
        **more,
    )
    return RunDimensions(shape=shape, step=step, generation=ANSWERS, ranks=ranks)


def counted(run: RunDimensions, rank: int = 0) -> tuple[int, int]:
    """Bytes of a rank before and during an update of GRPO, or of an adapter, of tensors without numbers."""
    lora = {"lora": {"rank": rank}} if rank else {}
    config = load_recipe("grpo").config.model_validate({
        "name": "small", "recipe": "grpo", "steps": 1, "model": {"path": "nowhere", **lora},
        "task": {"source": "prompts.jsonl"},
        "learner": {"lr": 1e-4, "micro_batch_tokens": run.own_step.tokens},
        "rewards": {"functions": [{"use": "exact_match"}]},
        "rollout": {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": 48},
    })  # fmt: skip
    found = take_recipe_step(config, run, clock=ManualClock())
    return found.resident_bytes, found.working_bytes


def test_a_rank_holds_its_part_and_rank_0_a_whole_copy_by_hand() -> None:
    """4 bytes of each parameter: a quarter of weights and gradients, half of them in moments, and 4 on rank 0."""
    count = SMALL.parameters
    held = held_by_rank(SMALL, STEP, PlannedRanks(count=4), moments=2, moment_bytes=4)
    assert held == {"weights": count, "whole copy of rank 0": 4 * count, "gradients": count, "optimizer": 2 * count}
    other = held_by_rank(SMALL, STEP, PlannedRanks(count=4, is_driver=False), moments=2, moment_bytes=4)
    assert sum(held.values()) - sum(other.values()) == 4 * count


def test_gathered_weights_by_hand() -> None:
    """A layer: 64 x (2 x 64 + 2 x 32) of attention, 3 x 64 x 192 of the MLP, norms of 2 x 64 + 2 x 16; 4 bytes each."""
    found = gathered_weights(SMALL, replace(STEP, shards=2))
    assert found.layer == 4 * (2 * 64 * (64 + 32) + 3 * 64 * 192 + 160)
    assert found.rest == 4 * (128 * 64 + 64)
    assert found.whole == 4 * SMALL.parameters
    assert found.sent(1000) == 2000
    assert replace(found, virtual_shares=2).sent(1000) == 3500
    assert replace(found, virtual_shares=4).partial_sums == 2 * found.gradients


def test_a_rank_takes_its_share_of_the_rows() -> None:
    assert rank_step(STEP, PlannedRanks(count=2)) == replace(STEP, shards=2)
    assert rank_step(STEP, PlannedRanks(count=4)) == replace(STEP, tokens=256, shards=4)
    assert rank_step(STEP, PlannedRanks(count=4, tensor=2)) == replace(STEP, shards=2, tensor=2)
    assert rank_step(STEP, PlannedRanks(count=64)) == replace(STEP, tokens=LONGEST, shards=64)
    virtual = rank_step(STEP, PlannedRanks(count=1, virtual=4))
    assert virtual == replace(STEP, tokens=256, virtual_shares=4, accumulates=True)
    assert rank_step(STEP, PlannedRanks()) is STEP


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (PlannedRanks(count=2, is_driver=False), {"compute": "bfloat16", "tokens": 128, "checkpointing": True}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [
            (PlannedRanks(count=2), {}),
            (PlannedRanks(count=2), {"tokens": 64}),
            (PlannedRanks(count=4), {"step_tokens": 4 * TOKENS}),
            (PlannedRanks(count=8, is_driver=False), {"tokens": 64, "step_tokens": 512}),
            (PlannedRanks(count=4, tensor=2), {}),
            (PlannedRanks(count=2, tensor=2), {}),
            (PlannedRanks(count=2, virtual=4), {}),
            (PlannedRanks(count=2, virtual=8), {"tokens": 128}),
        ]),
    ],
)  # fmt: skip
def test_the_update_of_one_rank_takes_what_the_closed_form_says(ranks: PlannedRanks, changes: dict[str, Any]) -> None:
    """Within 2% of all of its bytes; a rank that sends nothing stands for a real one."""
    run = planned(ranks, replace(SMALL, hidden=128, heads=8, kv_heads=4, intermediate=384, vocab=512), **changes)
    resident, working = counted(run)
    parts = resident_parts(run)
    closed = step_memory(run.shape, run.own_step).peak
    assert resident == pytest.approx(sum(parts.values()) - parts["gradients"], rel=5e-3)
    assert resident + closed == pytest.approx(resident + working, rel=0.02)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_gradients_that_are_not_written_in_place_are_counted(compute: str) -> None:
    """Few tokens, where a layer's gradients are the peak: in place by tiles, and beside it by any other processor."""
    shape = replace(SMALL, hidden=256, heads=8, kv_heads=4, intermediate=768, vocab=2048)
    run = planned(PlannedRanks(), shape, compute=compute, tokens=128, checkpointing=True)
    _, working = counted(run)
    assert step_memory(run.shape, run.own_step).peak == pytest.approx(working, rel=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [PlannedRanks(count=2), PlannedRanks(count=4, tensor=2)])
def test_the_weights_below_an_adapter_are_cut(ranks: PlannedRanks) -> None:
    plain = planned(ranks, replace(SMALL, hidden=128, intermediate=384), trained_vocabulary=False)
    trained, adapted = adapter_sizes(plain.shape, 8, "all")
    run = replace(plain, trained_parameters=trained, copies=adapter_copies(trained, adapted, "float32"))
    resident, working = counted(run, rank=8)
    assert resident == pytest.approx(sum(resident_parts(run).values()), rel=5e-3)
    assert step_memory(run.shape, run.own_step).peak == pytest.approx(working, rel=0.02)


def test_ranks_of_one_machine_are_counted_together() -> None:
    alone = planned(PlannedRanks(count=3))
    together = planned(PlannedRanks(count=3, beside=2))
    other = run_memory(other_rank(alone))
    assert run_memory(together).phases["learn"] == run_memory(alone).phases["learn"] + 2 * other.phases["learn"]
    assert run_memory(together).components["other ranks of this machine"] == 2 * other.peak_bytes
    assert machine_parts(together)["other ranks of this machine"] == 2 * sum(resident_parts(other_rank(alone)).values())
    assert "other ranks of this machine" not in machine_parts(alone)


@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(1, 20), st.sampled_from([64, 512, 4096]))
def test_more_ranks_never_take_more_of_each(count: int, tied: bool, layers: int, tokens: int) -> None:
    shape = replace(SMALL, tied=tied, layers=layers)
    step = replace(STEP, tokens=tokens, step_tokens=64 * 4096)
    few = RunDimensions(shape=shape, step=step, ranks=PlannedRanks(count=2 * count))
    more = replace(few, ranks=PlannedRanks(count=4 * count))
    assert run_memory(more).peak_bytes <= run_memory(few).peak_bytes
    assert run_memory(other_rank(more)).peak_bytes <= run_memory(more).peak_bytes


def test_a_search_takes_the_ranks_that_there_are() -> None:
    step = replace(STEP, tokens=16384, text_tokens=1024, compute="bfloat16", path="fused", step_tokens=1 << 17)
    shape = PlannedDecoder(
        family="qwen3", layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=12288, vocab=151936,
        tied=False, qk_norm=True,
    )  # fmt: skip
    found = search_fit(RunDimensions(shape=shape, step=step), replace(DEVICES["h100"], count=8))
    assert "run.ranks=8" in found.settings
    assert found.missing_bytes == 0
    one = search_fit(RunDimensions(shape=shape, step=step), DEVICES["h100"])
    assert not any(setting.startswith("run.ranks") for setting in one.settings)


def test_one_process_group_at_a_time() -> None:
    with fake_ranks(2, rank=1) as group, pytest.raises(ResourceError, match="in a process group of torch already"):
        assert (group.rank, group.is_driver, group.data.size()) == (1, False, 2)
        with fake_ranks(2):
            pass
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run.ranks=0"], "run.ranks in command line must be a whole number of at least 1, got 0"),
        (["run.ranks=3", "run.tensor=2"], "run.ranks = 3 must be a multiple of run.tensor = 2"),
        (["run.ranks=2", "run.virtual_ranks=3"], "run.virtual_ranks = 3 must be a power of two that run.ranks = 2"),
        (["run.ranks=512"], "run.ranks = 512: an optimizer step has 128 sequences, fewer than 512 shares"),
        (["run.ranks=16", "run.tensor=16"], "run.tensor = 16: the model has 8 key and value heads, which it must div"),
        (["run.ranks=2", "run.virtual_ranks=4", "model.lora.rank=8"], "it is for all weights, and model.lora trains"),
        (["run.ranks=4", "--device", "h100x2"], "--device h100x2 with run.ranks = 4: a rank takes a GPU of its own"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(
        'recipe = "grpo"\nsteps = 2\ntask.source = "prompts.jsonl"\nrewards.functions = [{ use = "exact_match" }]\n'
        'rollout = { prompts_per_step = 16, samples_per_prompt = 8, max_tokens = 512 }\nmodel.path = "Qwen3-1.7B"\n',
        encoding="utf-8",
    )
    assert main(["plan", "run.toml", "--memory", *words]) == 2
    assert part in capsys.readouterr().err
