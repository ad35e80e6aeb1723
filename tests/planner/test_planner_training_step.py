"""Memory of an optimizer step: the closed form against a tracker of every tensor, over shapes that vary each size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fast_share import fast_share
from manual_clock import ManualClock

from hone.learner.adam import Adam
from hone.learner.flat_parameters import MIN_PARAMETERS_TO_RECEIVE, FlatParameters
from hone.models.language import packed_attention
from hone.models.language.decoder import Decoder, _offloading_activations
from hone.models.language.token_logprobs import (
    BLOCK_ELEMENTS,
    BLOCK_ROWS,
    CHUNK_ELEMENTS,
    CUDA_CHUNK_ELEMENTS,
    token_logprobs,
)
from hone.models.native import library as products
from hone.models.native.library import (
    MAX_POSITIONS,
    available_kernels,
    multiplies_half,
    uses_amx_tiles,
    widens_half_products,
)
from hone.models.packing import PackedBatch
from hone.models.tensor_memory import TensorMemory
from hone.planner import step_settings
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.run_memory import RunDimensions
from hone.planner.training_step import (
    COMPILED_TEXT_TOKENS,
    HALF_BLOCK,
    LEAST_RECEIVED,
    LOGITS_AT_ONCE,
    StepSettings,
    saved_per_token,
    step_memory,
)
from hone.text.tracked_step import decoder_config, tracked_step, why_not_tracked

TEXTS = 4
BASE = PlannedDecoder(
    family="qwen3", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=160, vocab=64, tied=True,
    qk_norm=True,
)  # fmt: skip
STEP = StepSettings(tokens=512, text_tokens=128)


def decoder(shape: PlannedDecoder, settings: StepSettings) -> Decoder:
    config = decoder_config(shape)
    model = Decoder(config, checkpoint_activations=settings.checkpointing)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    model.set_compute_dtype(settings.compute)
    return model


def measured_peak(
    shape: PlannedDecoder, settings: StepSettings, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int, int]:
    """Peak of one update beyond the resident tensors, the resident bytes, and the number of parameters."""
    model = decoder(shape, settings)
    if settings.path == "torch":
        monkeypatch.setattr(model, "_kernel_texts", lambda _: None)
    parameters = FlatParameters(model.parameters())
    adam = Adam(parameters)
    tokens = torch.randint(0, shape.vocab, (settings.tokens,))
    length = settings.tokens // TEXTS
    batch = PackedBatch(
        tokens=tokens,
        positions=torch.arange(length).repeat(TEXTS),
        offsets=np.arange(0, settings.tokens + 1, length, dtype=np.int64),
    )
    memory = TensorMemory()
    with memory:
        memory.add([parameters.data.detach(), parameters.gradient, *adam.means, *adam.squares])
        resident = memory.live_bytes
        memory.add([batch.tokens, batch.positions])
        before = memory.live_bytes
        for _ in range(2):
            with parameters.collect_gradients():
                found = model.token_logprobs(model.hidden(batch), tokens, entropy=settings.entropy)
                loss = -found.logp.mean() if found.entropy is None else found.entropy.mean() - found.logp.mean()
                del found
                loss.backward()
                del loss
            parameters.gradient_norm()
            adam.step(1e-3)
    return memory.peak_bytes - before, resident, parameters.data.numel()


CASES: dict[str, tuple[PlannedDecoder, StepSettings]] = {
    "as it is": (BASE, STEP),
    "vocabulary": (replace(BASE, vocab=512), STEP),
    "several chunks of logits": (replace(BASE, vocab=8192, layers=1), replace(STEP, tokens=1024, text_tokens=256)),
    "wide": (replace(BASE, hidden=128, intermediate=512), STEP),
    "many heads": (replace(BASE, heads=8, head_dim=32, intermediate=64), STEP),
    "grouped queries": (replace(BASE, heads=8, kv_heads=1, intermediate=384), STEP),
    "attention wider than the MLP": (replace(BASE, heads=16, kv_heads=16, head_dim=64, intermediate=32), STEP),
    "the same, no norm of heads": (
        replace(BASE, family="llama", qk_norm=False, heads=16, kv_heads=4, head_dim=64, intermediate=32),
        STEP,
    ),
    "no norm of heads": (replace(BASE, family="llama", qk_norm=False), STEP),
    "wide MLP": (replace(BASE, intermediate=1024), STEP),
    "one layer": (replace(BASE, layers=1, intermediate=700), STEP),
    "untied": (replace(BASE, tied=False, vocab=256), STEP),
    "long": (replace(BASE, intermediate=256), replace(STEP, tokens=2048, text_tokens=512)),
    "checkpointing": (replace(BASE, layers=6), replace(STEP, checkpointing=True)),
    "checkpointing, wide": (replace(BASE, layers=6, intermediate=512), replace(STEP, checkpointing=True)),
    "a million parameters": (replace(BASE, hidden=160, intermediate=640), STEP),
    "entropy": (replace(BASE, vocab=512), replace(STEP, entropy=True)),
}


PATHS = ("compiled", "torch")
FAR = {"compiled": 1e-3, "torch": 0.02}
"""Largest difference, as a share: the compiled kernels are ours."""


@pytest.mark.parametrize(("name", "path", "compute"), fast_share(CASES, PATHS, ("float32", "bfloat16"), one_of=4))
def test_the_closed_form_is_what_a_tracker_counts(
    name: str, path: str, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "compiled" and available_kernels() is None:
        pytest.skip("no compiler here")
    shape, settings = CASES[name]
    settings = replace(
        settings,
        path=path,
        compute=compute,
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens_half_products(),
    )  # type: ignore[arg-type]
    peak, resident, parameters = measured_peak(shape, settings, monkeypatch)
    assert parameters == shape.parameters
    assert resident == 16 * parameters
    planned = step_memory(shape, settings).peak
    assert planned == pytest.approx(peak, rel=FAR[path])


def mixed_step(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[PlannedDecoder, StepSettings]:
    """A case in mixed precision on one path; skips the test where nothing can be compiled."""
    if path == "compiled" and available_kernels() is None:
        pytest.skip("no compiler here")
    if path == "torch":
        monkeypatch.setattr(Decoder, "_kernel_texts", lambda *_: None)
    shape, settings = CASES[name]
    settings = replace(
        settings,
        path=path,
        compute="bfloat16",
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens_half_products(),
    )  # type: ignore[arg-type]
    return shape, settings


@pytest.mark.parametrize("path", ["compiled", "torch"])
@pytest.mark.parametrize("name", ["grouped queries", "checkpointing", "several chunks of logits"])
def test_a_step_of_fake_tensors_takes_what_a_real_one_does(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, but for the texts' indices, of which a fake pass holds two."""
    shape, settings = mixed_step(name, path, monkeypatch)
    fake = tracked_step(shape, settings, clock=ManualClock())
    real = tracked_step(shape, settings, clock=ManualClock(), fake=False)
    assert fake.resident_bytes == real.resident_bytes == 16 * shape.parameters
    assert fake.working_bytes == pytest.approx(real.working_bytes, abs=8 * settings.tokens + 64)
    assert step_memory(shape, settings).peak == pytest.approx(fake.working_bytes, rel=0.02)


@pytest.mark.parametrize("path", ["compiled", "torch"])
@pytest.mark.parametrize("name", ["wide", "one layer", "checkpointing, wide"])
def test_weights_rounded_again_keep_the_bits_and_take_less(
    name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 bytes less for each weight of a layer where the peak is in the loss, at most that elsewhere."""
    shape, settings = mixed_step(name, path, monkeypatch)
    again = replace(settings, rounds_again=True)
    kept = tracked_step(shape, settings, clock=ManualClock(), fake=False)
    rounded = tracked_step(shape, again, clock=ManualClock(), fake=False)
    assert rounded.working_bytes < kept.working_bytes
    assert step_memory(shape, again).peak == pytest.approx(rounded.working_bytes, rel=0.02)
    first, second = (one_gradient(shape, each) for each in (settings, again))
    assert torch.equal(first, second)


def one_gradient(shape: PlannedDecoder, settings: StepSettings, *, offload: bool = False) -> torch.Tensor:
    """The whole gradient of one batch."""
    torch.manual_seed(1)
    model = decoder(shape, settings)
    model.rounds_weights_again = settings.rounds_again
    parameters = FlatParameters(model.parameters())
    tokens = torch.randint(0, shape.vocab, (256,))
    offsets = np.arange(0, 257, 64, dtype=np.int64)
    batch = PackedBatch(tokens=tokens, positions=torch.arange(64).repeat(4), offsets=offsets)
    with parameters.collect_gradients():
        if offload:
            with _offloading_activations(model, from_host=True) as moved:
                hidden = model.hidden(batch)
            layers = shape.layers * 256 * saved_per_token(shape, settings)
            assert layers < moved.moved_bytes < 1.1 * layers + 256 * 16 * shape.hidden
        else:
            hidden = model.hidden(batch)
        model.token_logprobs(hidden, tokens).logp.sum().backward()
    return parameters.gradient


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_activations_in_the_host_s_memory_keep_the_bits(compute: str) -> None:
    """What a layer keeps is moved, and no weight is."""
    if available_kernels() is None:
        pytest.skip("no compiler here")
    settings = replace(STEP, compute=compute, rounds_again=True)  # type: ignore[arg-type]
    shape = CASES["wide"][0]
    assert torch.equal(one_gradient(shape, settings), one_gradient(shape, settings, offload=True))


def test_what_cannot_be_counted_says_why() -> None:
    run = RunDimensions(shape=BASE, step=STEP)
    assert why_not_tracked(run) == ""
    assert "family 'gemma9'" in why_not_tracked(replace(run, shape=replace(BASE, family="gemma9")))
    assert "a step on a GPU" in why_not_tracked(replace(run, step=replace(STEP, path="fused")))


def test_attention_takes_texts_of_these_lengths() -> None:
    """The compiled kernel, and torch's matrix products."""
    assert COMPILED_TEXT_TOKENS == MAX_POSITIONS
    assert step_settings.FUSED_MIN_KEYS == packed_attention.FUSED_MIN_KEYS


def test_an_unused_end_of_the_vocabulary_takes_no_second_gradient() -> None:
    """The gradient of the used rows is a part of the whole one, to the bit, and nothing is copied."""
    model = decoder(replace(BASE, vocab=512), replace(STEP, compute="float32"))
    hidden, tokens = torch.randn(64, 64, requires_grad=True), torch.randint(0, 400, (64,))
    peaks: list[int] = []
    for used in (512, 400):
        model.embedding.weight.grad = None
        with TensorMemory() as memory:
            model.token_logprobs(hidden, tokens, vocab_size_used=used).logp.sum().backward()
        peaks.append(memory.peak_bytes)
    whole, model.embedding.weight.grad = model.embedding.weight.grad, None
    logp = token_logprobs(hidden, model.embedding.weight[:400], tokens, 1.0).logp
    logp.sum().backward()
    again = model.embedding.weight.grad
    assert whole is not None and again is not None
    assert torch.equal(whole, again)
    assert not whole[400:].any()
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize(("name", "path", "widens"), fast_share(CASES, PATHS, (False, True), one_of=4))
def test_weights_in_bfloat16_are_what_a_tracker_counts(
    name: str, path: str, widens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stream, gradients and moments have 2 bytes a number. On a processor that multiplies them, and one that widens."""
    if path == "compiled" and available_kernels() is None:
        pytest.skip("no compiler here")
    if widens and uses_amx_tiles():
        pytest.skip("a processor with tiles multiplies bfloat16 itself: no processor has tiles and widens")
    monkeypatch.setattr(products, "widens_half_products", lambda: widens)
    if path == "torch":
        monkeypatch.setattr(Decoder, "_kernel_texts", lambda *_: None)
    shape, settings = CASES[name]
    settings = replace(
        settings,
        path=path,
        weights="bfloat16",
        compute="bfloat16",
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens,
    )  # type: ignore[arg-type]
    found = tracked_step(shape, settings, clock=ManualClock())
    assert found.resident_bytes == 8 * shape.parameters
    assert step_memory(shape, settings).peak == pytest.approx(found.working_bytes, rel=FAR[path])


MIXTURE = replace(BASE, family="qwen3_moe", experts=8, experts_per_token=2, intermediate=96)
MIXTURES: dict[str, tuple[PlannedDecoder, StepSettings]] = {
    "as it is": (MIXTURE, STEP),
    "wide": (replace(MIXTURE, hidden=128, intermediate=256), STEP),
    "four of sixteen": (replace(MIXTURE, experts=16, experts_per_token=4), STEP),
    "vocabulary": (replace(MIXTURE, vocab=512, tied=False), STEP),
    "attention wider than the experts": (replace(MIXTURE, heads=16, head_dim=64, intermediate=32), STEP),
    "Mixtral": (replace(MIXTURE, family="mixtral", qk_norm=False, intermediate=320), STEP),
    "checkpointing": (replace(MIXTURE, layers=6, intermediate=320), replace(STEP, checkpointing=True)),
}


NUMBERS = ("float32 float32", "float32 bfloat16", "bfloat16 bfloat16")
"""Of weights, and of products."""


@pytest.mark.parametrize(("name", "path", "numbers"), fast_share(MIXTURES, PATHS, NUMBERS, one_of=4))
def test_mixtures_of_experts_are_what_a_tracker_counts(
    name: str, path: str, numbers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, compute = numbers.split()
    if path == "compiled" and available_kernels() is None:
        pytest.skip("no compiler here")
    if path == "torch":
        monkeypatch.setattr(Decoder, "_kernel_texts", lambda *_: None)
    shape, settings = MIXTURES[name]
    settings = replace(
        settings,
        path=path,
        weights=weights,
        compute=compute,
        tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(),
        widens=widens_half_products(),
    )  # type: ignore[arg-type]
    found = tracked_step(shape, settings, clock=ManualClock(), fake=False)
    assert found.resident_bytes == (16 if weights == "float32" else 8) * shape.parameters
    assert step_memory(shape, settings).peak == pytest.approx(found.working_bytes, rel=0.02)


def test_a_layer_of_experts_by_hand() -> None:
    """h 64, a 4, g 2, d 16, f 96, 2 of 8, float32: 4*64*4 + 8 + 4*(8+4)*16 + 32 + 8*2*64 + 12*2*96 + 96 + 48 + 4."""
    assert saved_per_token(MIXTURE, STEP) == 1024 + 8 + 768 + 32 + 1024 + 2304 + 96 + 48 + 4


def saved_bytes(shape: PlannedDecoder, settings: StepSettings, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once and the parameters left out."""
    model = decoder(shape, settings)
    if settings.path == "torch":
        monkeypatch.setattr(model, "_kernel_texts", lambda _: None)
    length = settings.text_tokens
    batch = PackedBatch(
        tokens=torch.zeros(settings.tokens, dtype=torch.int64),
        positions=torch.arange(length).repeat(settings.tokens // length),
        offsets=np.arange(0, settings.tokens + 1, length, dtype=np.int64),
    )
    own = {id_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if id_of(tensor) not in own:
            kept[id_of(tensor)] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(batch)
    del hidden
    return sum(storage.nbytes() for storage in kept.values())


def id_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", ["compiled", "torch"])
@pytest.mark.parametrize(
    "name", ["as it is", "wide", "many heads", "grouped queries", "no norm of heads", "wide MLP", "experts"]
)
def test_what_a_layer_keeps_is_exact_to_the_byte(
    name: str, path: str, compute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three layers less two: one layer's bytes."""
    if path == "compiled" and available_kernels() is None:
        pytest.skip("no compiler here")
    shape = replace(MIXTURE if name == "experts" else CASES[name][0], layers=2)
    settings = replace(STEP, tokens=256, text_tokens=64, path=path, compute=compute, widens=widens_half_products())  # type: ignore[arg-type]
    two = saved_bytes(shape, settings, monkeypatch)
    three = saved_bytes(replace(shape, layers=3), settings, monkeypatch)
    rounded = 2 * (shape.attention_weights if shape.experts else shape.layer_weights) if compute == "bfloat16" else 0
    assert three - two == 256 * saved_per_token(shape, settings) + rounded


def test_a_layer_by_hand() -> None:
    """h 64, a 4, g 2, d 16, f 160, float32: 8*64 + 8*64 + 4*(8 + 4)*16 + 8*4 + 12*160 + 8 = 3752 bytes a token."""
    assert saved_per_token(BASE, STEP) == 3752
    assert saved_per_token(BASE, replace(STEP, compute="bfloat16")) == 2152


def test_the_chunks_of_logits_are_those_of_the_policy() -> None:
    assert LOGITS_AT_ONCE == {"cpu": CHUNK_ELEMENTS, "gpu": CUDA_CHUNK_ELEMENTS}
    assert HALF_BLOCK == (BLOCK_ROWS, BLOCK_ELEMENTS)
    assert LEAST_RECEIVED == MIN_PARAMETERS_TO_RECEIVE


QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_70B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_06B = {**QWEN3_8B, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "tie_word_embeddings": True}  # fmt: skip
QWEN3_30B_A3B = {
    **QWEN3_8B, "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        (QWEN3_8B, 8_190_735_360, 8_190_735_360),
        (LLAMA_70B, 70_553_706_496, 70_553_706_496),
        (QWEN3_06B, 596_049_920, 596_049_920),
        (QWEN3_30B_A3B, 30_532_122_624, 3_353_032_704),
    ],
)
def test_parameters_of_published_models(config: dict[str, object], parameters: int, active: int) -> None:
    shape = shape_from_hf(config)
    assert (shape.parameters, shape.active_parameters) == (parameters, active)


def test_every_impossible_size_is_named() -> None:
    from hone.core.errors import DataError

    with pytest.raises(DataError) as raised:
        shape_from_hf({**QWEN3_8B, "hidden_size": -1, "vocab_size": "many", "num_key_value_heads": 0}, where="x.json")
    assert len(raised.value.messages) == 3
    assert all(message.startswith("x.json: ") for message in raised.value.messages)
