"""Memory of steps whose peak is a gradient of weights: few tokens, large vocabularies, many experts, narrow MLPs.

Of steps without numbers, on a processor with tiles, on one without, and on one that widens bfloat16, whichever this is.
"""

from dataclasses import replace

import pytest
from fast_share import fast_share
from manual_clock import ManualClock

from hone.models.native import library as products
from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles
from hone.planner.known_models import known_model
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.training_step import StepSettings, step_memory
from hone.text.tracked_step import tracked_step

BASE = PlannedDecoder(
    family="qwen3", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=160, vocab=64, tied=True,
    qk_norm=True,
)  # fmt: skip
MILLIONS = replace(BASE, layers=4, hidden=256, intermediate=1024)
"""Large enough for gradients that are written to the optimizer's memory, from the second step on."""
EXPERTS = replace(
    BASE, family="qwen3_moe", hidden=128, experts=32, experts_per_token=2, intermediate=96
)  # fmt: skip
STEP = StepSettings(tokens=128, text_tokens=64)
CASES: dict[str, tuple[PlannedDecoder, StepSettings]] = {
    "few tokens, checkpointing": (MILLIONS, replace(STEP, checkpointing=True)),
    "widths that are no multiples of a tile's": (replace(MILLIONS, hidden=240, intermediate=1000), STEP),
    "a vocabulary that outweighs the rest": (replace(BASE, vocab=16384), replace(STEP, checkpointing=True)),
    "a vocabulary of 64 words": (BASE, STEP),
    "attention wider than the MLP": (replace(BASE, heads=16, kv_heads=16, head_dim=64, intermediate=32), STEP),
    "the same, many tokens": (
        replace(BASE, heads=8, kv_heads=8, head_dim=64, intermediate=32), replace(STEP, tokens=2048)
    ),
    "a layer wider than its MLP, checkpointing": (
        replace(BASE, hidden=256, intermediate=96, tied=False), replace(STEP, tokens=2048, checkpointing=True)
    ),
    "one layer, checkpointing": (replace(BASE, layers=1, intermediate=320), replace(STEP, checkpointing=True)),
    "many experts": (EXPERTS, STEP),
    "four of many experts": (replace(EXPERTS, experts_per_token=4), replace(STEP, checkpointing=True)),
}  # fmt: skip


PROCESSORS = ("tiles", "no tiles", "widened")
NUMBERS = ("float32", "bfloat16", "bfloat16, rounded again", "bfloat16, weights too")


@pytest.fixture(params=PROCESSORS)
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What the processor says of itself; a step without numbers never asks it to use its tiles."""
    kernels = available_kernels()
    if kernels is None:
        pytest.skip("no compiler here")
    found = request.param == "tiles"
    monkeypatch.setitem(kernels.functions, "hone_has_tiles", lambda: int(found))
    assert uses_amx_tiles() == found
    widens = request.param == "widened"
    monkeypatch.setattr(products, "widens_half_products", lambda: widens)
    return {"tile_scratch": found, "halves_head": multiplies_half(), "widens": widens}


@pytest.mark.parametrize(
    ("name", "numbers", "processor"), fast_share(CASES, NUMBERS, PROCESSORS, one_of=5), indirect=["processor"]
)
def test_the_closed_form_counts_the_gradients_of_weights(name: str, numbers: str, processor: dict[str, bool]) -> None:
    """Within 0.5% of what works beside weights, gradients and moments."""
    shape, settings = CASES[name]
    compute, _, more = numbers.partition(", ")
    settings = replace(settings, compute=compute, rounds_again=more == "rounded again", **processor)  # type: ignore[arg-type]
    settings = replace(settings, weights="bfloat16" if more == "weights too" else "float32")
    found = tracked_step(shape, settings, clock=ManualClock())
    # A step without numbers gives an expert half of all pairs: of more than two a token, more than there are tokens.
    # Weights in bfloat16 take half of the rest, and what it makes too much is more of it.
    far = (0.06 if "weights" in numbers else 0.04) if settings.widens and shape.experts_per_token > 2 else 5e-3
    assert step_memory(shape, settings).peak == pytest.approx(found.working_bytes, rel=far)


@pytest.mark.parametrize(("layers", "tied"), [pytest.param(28, True, marks=pytest.mark.slow), (4, False)])
def test_a_published_model_with_weights_in_bfloat16(layers: int, tied: bool, processor: dict[str, bool]) -> None:
    """Half the bytes of the stream, of the vocabulary's gradients and of a layer's: 12 to 50% less than with
    float32 weights beside."""
    shape = replace(shape_from_hf(known_model("Qwen3-0.6B")), layers=layers, tied=tied)
    for more in ({}, {"checkpointing": True}):
        settings = StepSettings(
            tokens=4096, text_tokens=1024, weights="bfloat16", compute="bfloat16", **more, **processor
        )  # fmt: skip
        found, planned = tracked_step(shape, settings, clock=ManualClock()), step_memory(shape, settings)
        assert found.resident_bytes == 8 * shape.parameters
        assert planned.peak == pytest.approx(found.working_bytes, rel=1e-3)
        assert planned.peak < 0.88 * step_memory(shape, replace(settings, weights="float32")).peak


def test_a_published_model_at_few_tokens(processor: dict[str, bool]) -> None:
    """Qwen3-0.6B, 4,096 tokens, activations computed again: the peak is in a layer, beside one gradient of the
    vocabulary; where the head adds its own to the sum at once, it is there."""
    shape = shape_from_hf(known_model("Qwen3-0.6B"))
    settings = StepSettings(
        tokens=4096, text_tokens=1024, compute="bfloat16", checkpointing=True, **processor
    )  # fmt: skip
    found, planned = tracked_step(shape, settings, clock=ManualClock()), step_memory(shape, settings)
    assert planned.moment == ("logits" if multiplies_half() else "layer")
    assert planned.peak == pytest.approx(found.working_bytes, rel=1e-3)
    assert planned.peak < 3 * 4 * shape.vocabulary_weights
