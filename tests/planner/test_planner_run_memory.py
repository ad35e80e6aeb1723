"""Memory of a run: by hand, what fits, the ladder of fixes, devices, and the least time."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import ConfigError
from hone.engine.native.runner import NativeRunner
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.models.language.decoder import Decoder
from hone.models.native.library import available_kernels
from hone.planner.devices import DEVICES, GIB, cpu_device, find_device
from hone.planner.fixes import first_changes, propose_fixes
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.run_memory import (
    CacheType,
    GenerationSettings,
    RunDimensions,
    cache_bytes_per_token,
    engine_copy_bytes_of,
    flops_per_token,
    generation_time,
    largest_micro_batch,
    learning_time,
    most_concurrent,
    on_device,
    page_bytes,
    run_memory,
    saved_copies,
)
from hone.planner.training_step import KernelPath, NumberType, StepSettings, step_memory
from hone.run.memory_plan import MemoryPlan, planned_words, readable_bytes
from hone.text.tracked_step import decoder_config

QWEN3_17B = shape_from_hf(
    {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "tie_word_embeddings": True,
    }
)  # fmt: skip
GRPO = RunDimensions(
    shape=QWEN3_17B,
    step=StepSettings(
        tokens=16384, text_tokens=2048, compute="bfloat16", path="fused", tile_scratch=False, step_tokens=1 << 17
    ),
    generation=GenerationSettings(
        concurrent=64, prompt_tokens=256, answer_tokens=1792, weights_bytes=2, cache="bfloat16", page_tokens=256
    ),
)
H100 = DEVICES["h100"]


def gib(count: int) -> float:
    return count / GIB


def test_a_run_of_grpo_by_hand() -> None:
    """1.72 billion parameters: 6.4 GiB of weights and gradients each, 12.8 of moments, 35.1 of activations."""
    found = run_memory(GRPO)
    assert QWEN3_17B.parameters == 1_720_574_976
    assert {name: round(gib(size), 1) for name, size in found.components.items()} == {
        "weights": 6.4, "gradients": 6.4, "optimizer": 12.8, "engine's weights": 3.2, "keys and values": 15.8,
        "activations": 35.3, "rounded weights": 2.6, "backward pass": 2.3,
    }  # fmt: skip
    assert found.peak_phase == "learn"
    assert found.largest == "activations"
    assert found.phases["learn"] == sum(found.components.values())
    assert found.phases["save"] == found.phases["update"], "the copies of a GPU's run are in the host's memory"


@pytest.mark.parametrize(("weights", "number"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("adapter", [None, 1000])
def test_copies_of_a_checkpoint_by_hand(weights: NumberType, number: int, adapter: int | None) -> None:
    """Two moments of 4 bytes for each trained number, and what is written of the weights; a large model's in files of
    5 GB."""
    step = StepSettings(tokens=64, text_tokens=16, weights=weights, compute=weights)
    run = RunDimensions(shape=CODED, step=step, trained_parameters=adapter)
    trained = adapter or CODED.parameters
    memory = run_memory(run)
    assert saved_copies(run) == (8 + number) * trained
    assert memory.phases["save"] - memory.phases["update"] == int(1.08 * (8 + number) * trained)
    share = 0.15 if adapter else 0.27
    assert memory.phases["learn"] - memory.phases["update"] == memory.step.peak + int(share * memory.step.peak)
    large = replace(run, shape=QWEN3_17B)
    copied = 8 * (adapter or QWEN3_17B.parameters) + min(5_000_000_000, number * (adapter or QWEN3_17B.parameters))
    assert saved_copies(large) == copied


def test_a_state_to_be_saved_has_a_copy_of_each_moment() -> None:
    parameters = FlatParameters([torch.nn.Parameter(torch.zeros(1 << 18)) for _ in range(3)])
    adam = Adam(parameters)
    tracemalloc.start()
    state = adam.state()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert state
    assert 2 * 3 * (1 << 20) <= taken < 2 * 3 * (1 << 20) + (1 << 14)


def test_keys_and_values_by_hand() -> None:
    """2 x 28 layers x 8 heads x 128 x 2 bytes = 114,688 a token; 8 pages of 256 for each of 64 + 8 slots, and one."""
    assert cache_bytes_per_token(QWEN3_17B, "bfloat16") == 114_688
    assert GRPO.generation is not None
    assert page_bytes(QWEN3_17B, GRPO.generation) == (8 * 72 + 1) * 256 * 114_688


def test_the_fixes_of_a_run_that_does_not_fit() -> None:
    assert run_memory(GRPO).peak_bytes > H100.usable_bytes
    ladder = propose_fixes(GRPO, H100)
    first = ladder.fixes[0]
    assert ladder.enough == 0
    assert ladder.missing_bytes == 0
    assert first.setting == "learner.micro_batch_tokens=8192"
    assert first.keeps == "rounding"
    assert first.memory.peak_bytes <= H100.usable_bytes
    assert ladder.fixes[-1].setting == "model.lora.rank=16"
    rest = [fix.setting for fix in ladder.fixes[1:]]
    assert rest == ["run.ranks=2", "", "model.lora.rank=16"], "the rest needs another machine, or makes another run"


def test_a_small_card_takes_more_steps_of_the_ladder() -> None:
    ladder = propose_fixes(GRPO, DEVICES["rtx4090"])
    assert [fix.setting for fix in ladder.fixes] == [
        "learner.micro_batch_tokens=2048",
        "model.activations=round_again",
        "rollout.sleep=true",
        "rollout.max_concurrent=1",
        "model.activations=recompute",
        "run.ranks=8",
        "",
        "model.lora.rank=16",
    ]
    assert ladder.enough is None
    assert ladder.missing_bytes == 0, "two ranks would be enough, on another machine"
    ranks, _, adapter = ladder.fixes[-3:]
    usable = DEVICES["rtx4090"].usable_bytes
    assert ranks.memory.peak_bytes <= usable
    assert adapter.memory.peak_bytes <= usable
    # The merged weights of an adapter have a gradient as before, and a base beside them; moments are what it saves.
    assert adapter.memory.peak_bytes < ladder.fixes[3].memory.peak_bytes


def test_a_model_that_cannot_fit_is_missing_bytes() -> None:
    tiny = cpu_device(8 * GIB)
    ladder = propose_fixes(GRPO, tiny)
    assert ladder.enough is None
    least = min(fix.memory.peak_bytes for fix in ladder.fixes)
    assert ladder.missing_bytes == least - tiny.usable_bytes > 0


def test_what_fits_is_the_most_that_fits() -> None:
    device = replace(H100, memory_bytes=120 * GIB)
    tokens = largest_micro_batch(GRPO, device)
    assert run_memory(replace(GRPO, step=replace(GRPO.step, tokens=tokens))).peak_bytes <= device.usable_bytes
    assert run_memory(replace(GRPO, step=replace(GRPO.step, tokens=tokens + 1))).peak_bytes > device.usable_bytes
    assert GRPO.generation is not None
    count = most_concurrent(GRPO, device)
    more = replace(GRPO, generation=replace(GRPO.generation, concurrent=count + 1))
    assert count >= 64
    assert run_memory(more).peak_bytes > device.usable_bytes
    assert most_concurrent(replace(GRPO, generation=None), device) == 0
    assert largest_micro_batch(GRPO, cpu_device(GIB)) == 0


def test_a_run_whose_memory_ran_out_is_told_its_plan() -> None:
    """The peak, what makes it, and two changes that keep the run, each with the peak that it leads to."""
    plan = MemoryPlan(parameters=1, parts={}, run=GRPO)
    said = planned_words(plan)
    peak = readable_bytes(run_memory(GRPO).peak_bytes)
    assert said.startswith(f"planned were {peak} of tensors in learn, most of it activations; first try learner.m")
    assert all(fix.keeps != "algorithm" for fix in first_changes(GRPO, 2))
    assert planned_words(None) == planned_words(MemoryPlan(parameters=1, parts={})) == ""
    small = replace(GRPO, step=replace(GRPO.step, tokens=GRPO.step.text_tokens), generation=None)
    told = planned_words(MemoryPlan(parameters=1, parts={}, run=small))
    assert "first try model.activations=round_again (" in told
    assert ", then model.activations=recompute (" in told


sizes = st.builds(
    PlannedDecoder,
    family=st.sampled_from(["qwen3", "llama"]),
    layers=st.integers(1, 6),
    hidden=st.sampled_from([64, 128, 512]),
    heads=st.sampled_from([4, 8]),
    kv_heads=st.sampled_from([1, 2, 4]),
    head_dim=st.sampled_from([16, 64]),
    intermediate=st.sampled_from([128, 1024]),
    vocab=st.sampled_from([100, 5000]),
    tied=st.booleans(),
    qk_norm=st.booleans(),
)
steps = st.builds(
    StepSettings,
    tokens=st.integers(1, 5000),
    text_tokens=st.integers(1, 512),
    compute=st.sampled_from(["float32", "bfloat16"]),
    path=st.sampled_from(["compiled", "torch", "fused"]),
    checkpointing=st.booleans(),
    entropy=st.booleans(),
)


@given(sizes, steps, st.integers(1, 500))
def test_more_tokens_never_take_less(shape: PlannedDecoder, settings: StepSettings, more: int) -> None:
    now, then = step_memory(shape, settings), step_memory(shape, replace(settings, tokens=settings.tokens + more))
    assert then.peak >= now.peak > 0
    assert then.activations > now.activations


@given(sizes, steps)
def test_recomputing_keeps_less_where_there_are_layers_to_save(shape: PlannedDecoder, settings: StepSettings) -> None:
    plain = step_memory(shape, replace(settings, checkpointing=False))
    again = step_memory(shape, replace(settings, checkpointing=True))
    if shape.layers >= 3:
        assert again.activations <= plain.activations
    assert again.recomputed >= 0 and plain.recomputed == 0


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("h100", "h100", 1),
        ("H100x8", "h100", 8),
        ("rtx4090", "rtx4090", 1),
        ("rtx5090x2", "rtx5090", 2),
        ("cpu", "cpu", 1),
    ],
)
def test_devices_by_name(text: str, name: str, count: int) -> None:
    found = find_device(text, cpu_bytes=4 * GIB)
    assert (found.name, found.count) == (name, count)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("h10", "did you mean h100?"),
        ("h100x0", "'0' is no number of devices"),
        ("h100xx", "'x' is no number of devices"),
        ("h100x99999999", "'99999999' is no number of devices"),
        ("", "no such device"),
        ("missing.toml", "cannot read the device"),
    ],
)
def test_unknown_devices_are_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match="--device"):
        find_device(text, cpu_bytes=0)
    with pytest.raises(ConfigError) as raised:
        find_device(text, cpu_bytes=0)
    assert part in str(raised.value)


def test_a_device_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("memory_gib = 48\nbandwidth_gb_s = 900\nbfloat16_tflops = 150\ncount = 2\n", encoding="utf-8")
    found = find_device(str(path), cpu_bytes=0)
    assert (found.name, found.memory_bytes, found.count, found.bandwidth_bytes) == ("card", 48 * GIB, 2, 9e11)
    path.write_text("memory = 48\nusable = -1\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        find_device(str(path), cpu_bytes=0)
    assert len(raised.value.messages) == 3, raised.value.messages
    path.write_text('memory_gib = 0\nusable = 1.5\ncount = 0\ngpu = "no"\nname = 7\n', encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        find_device(str(path), cpu_bytes=0)
    said = str(raised.value)
    for part in (
        "memory_gib must be 0.0001 to 100000, got 0", "usable must be 0.01 to 1, got 1.5",
        "count must be 1 to 1e+06, got", "gpu must be true or false, got 'no'", "name must be text, got 7",
    ):  # fmt: skip
        assert part in said


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("memory_gib = nan", "memory_gib must be a number of at least 0, got nan"),
        ("memory_gib = 8\nbandwidth_gb_s = nan", "bandwidth_gb_s must be a number of at least 0, got nan"),
        ("memory_gib = 8\nbfloat16_tflops = inf", "bfloat16_tflops must be a number of at least 0, got inf"),
        ("memory_gib = 8\ncount = 2.5", "count must be a whole number of devices, got 2.5"),
        ("memory_gib = 8\ncount = nan", "count must be a number of at least 0, got nan"),
        ("memory_gib = 8\nusable = nan", "usable must be a number of at least 0, got nan"),
        ("memory_gib = 8\ncontext_gib = 9", "context_gib = 9 leaves nothing of memory_gib x usable = 7.6"),
        ("memory_gib = 8\ncontext_gib = -inf", "context_gib must be a number of at least 0, got -inf"),
        ('memory_gib = "8"', "memory_gib must be a number of at least 0, got '8'"),
        ('memory_gib = 8\nname = ""', "name must be text, got ''"),
    ],
)
def test_figures_of_a_device_that_are_none(lines: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        find_device(str(path), cpu_bytes=0)
    assert part in str(raised.value)


def test_a_whole_number_of_devices_may_be_written_with_a_point(tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    path.write_text("memory_gib = 8.5\ncount = 2.0\ncontext_gib = 0.5\n", encoding="utf-8")
    found = find_device(str(path), cpu_bytes=0)
    assert (found.count, found.memory_bytes, found.context_bytes) == (2, int(8.5 * GIB), GIB // 2)


def test_the_least_time_by_hand() -> None:
    """6 P + 6 L a d S operations a token at 989e12 a second, and 24 bytes a parameter of the optimizer at 3.35e12."""
    per_token = 6 * QWEN3_17B.matmul_weights + 6 * 28 * 16 * 128 * 2048
    assert flops_per_token(GRPO) == per_token
    found = learning_time(GRPO, H100, 16384)
    assert found is not None
    assert found.bound == "arithmetic"
    assert found.seconds == pytest.approx(16384 * per_token / 989e12 + QWEN3_17B.parameters * 24 / 3.35e12)
    written = generation_time(GRPO, H100, 128)
    assert written is not None
    keys = 64 * (256 + 896) * 114_688
    assert written.seconds == pytest.approx(2 * 1792 * (QWEN3_17B.matmul_weights * 2 + keys) / 3.35e12)
    assert written.bound == "memory"
    assert learning_time(GRPO, cpu_device(GIB), 1) is None
    assert generation_time(GRPO, cpu_device(GIB), 1) is None


def test_a_run_moves_to_another_device() -> None:
    here = replace(
        GRPO, step=replace(GRPO.step, path="compiled", compute="float32"),
        generation=GenerationSettings(concurrent=8, prompt_tokens=10, answer_tokens=20, weights_bytes=4),
    )  # fmt: skip
    moved = on_device(here, H100)
    assert (moved.step.path, moved.step.compute) == ("fused", "bfloat16")
    assert moved.generation is not None
    assert (moved.generation.cache, moved.generation.weights_bytes, moved.generation.page_tokens) == (
        "bfloat16",
        2,
        256,
    )
    assert on_device(here, cpu_device(GIB)) is here


CODED = PlannedDecoder(
    family="qwen3", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128, vocab=256, tied=True,
    qk_norm=True,
)  # fmt: skip


def test_an_engine_in_codes_by_hand() -> None:
    """A layer has 64 x (64 + 32 + 32) + 64 x 64 + 3 x 64 x 128 = 36,864 weights and 128 + 64 + 256 + 64 = 512 outputs;
    the output projection 64 x 256 weights of 2 bytes and 256 outputs; the embedding 64 x 256 weights of 4 bytes."""
    answers = GenerationSettings(concurrent=4, prompt_tokens=8, answer_tokens=8, weights_bytes=2, layout="codes")
    coded = 2 * (36_864 + 8 * 512) + 2 * 16_384 + 12 * 256 + 4 * 16_384
    assert engine_copy_bytes_of(CODED, answers, "float32") == coded
    assert engine_copy_bytes_of(CODED, answers, "bfloat16") == coded - 2 * 16_384
    packed = replace(answers, layout="packed")
    assert engine_copy_bytes_of(CODED, packed, "float32") == 2 * (CODED.parameters + 16_384)
    assert engine_copy_bytes_of(replace(CODED, tied=False), packed, "float32") == 2 * (CODED.parameters + 16_384)


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "int8"])
def test_keys_and_values_are_those_of_the_compiled_runner(cache: CacheType) -> None:
    if available_kernels() is None:
        pytest.skip("no compiler here")
    shape = replace(CODED, head_dim=32)  # a head's features are padded to 32
    model = Decoder(decoder_config(shape))
    runner = NativeRunner(model, vocab_used=shape.vocab, threads=1, dtype="float32", cache=cache)
    assert runner.page_bytes == runner.page_tokens * cache_bytes_per_token(shape, cache)


def test_a_sleeping_engine_is_in_no_phase_but_generation() -> None:
    """Its pages and packed weights; a plain copy of the weights stays."""
    answers = GenerationSettings(concurrent=4, prompt_tokens=8, answer_tokens=8, weights_bytes=4, layout="packed")
    run = RunDimensions(shape=CODED, step=StepSettings(tokens=64, text_tokens=16), generation=answers)
    awake, asleep = run_memory(run), run_memory(replace(run, generation=replace(answers, sleeps=True)))
    pages, weights = page_bytes(CODED, answers), engine_copy_bytes_of(CODED, answers, "float32")
    assert awake.phases["learn"] - asleep.phases["learn"] == pages + weights
    assert awake.phases["generate"] == asleep.phases["generate"]
    plain = replace(answers, layout="plain", sleeps=True)
    kept = run_memory(replace(run, generation=plain)).phases["update"] - asleep.phases["update"]
    assert kept == 4 * CODED.parameters


@pytest.mark.parametrize(("field", "phase"), [("drawing", "measure"), ("evaluation", "evaluate")])
@pytest.mark.parametrize(("path", "before"), [("compiled", "learn"), ("fused", "update")])
def test_an_engine_between_the_steps_is_in_no_phase_but_its_own(
    path: KernelPath, before: str, field: str, phase: str
) -> None:
    """On a CPU it stands beside what a step has freed, which stays with the process."""
    drawing = GenerationSettings(concurrent=4, prompt_tokens=0, answer_tokens=16, weights_bytes=4, layout="packed")
    step = StepSettings(tokens=64, text_tokens=16, path=path)
    run = RunDimensions(shape=CODED, step=step)
    found, without = run_memory(replace(run, **{field: drawing})), run_memory(run)
    logits = 8 * 64 * CODED.vocab
    drawn = page_bytes(CODED, drawing) + engine_copy_bytes_of(CODED, drawing, "float32") + logits
    assert found.phases[phase] == found.phases[before] + drawn
    assert {**without.phases, phase: found.phases[phase]} == found.phases
    assert found.components == without.components
