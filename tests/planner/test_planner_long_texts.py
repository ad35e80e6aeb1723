"""Memory of steps on texts that are too long for the compiled attention, and for the scores of torch's products."""

import pytest
from manual_clock import ManualClock

from hone.models.language.decoder import Decoder
from hone.models.native import library as products
from hone.models.native.library import multiplies_half, uses_amx_tiles
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.step_settings import NumberType, StepSettings
from hone.planner.training_step import step_memory
from hone.text.tracked_step import tracked_step

BASE = PlannedDecoder(
    family="qwen3", layers=3, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=160, vocab=64, tied=True,
    qk_norm=True,
)  # fmt: skip


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_text_too_long_for_its_scores(
    weights: NumberType, widens: bool, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of 3,000 tokens take torch's fused attention on a CPU, too: no scores, but a mask that is kept."""
    monkeypatch.setattr(products, "widens_half_products", lambda: widens)
    monkeypatch.setattr(Decoder, "_kernel_texts", lambda *_: None)
    settings = StepSettings(
        tokens=3000, text_tokens=3000, path="torch", weights=weights, compute="bfloat16", checkpointing=checkpointing,
        tile_scratch=uses_amx_tiles(), halves_head=multiplies_half(), widens=widens,
    )  # fmt: skip
    found = tracked_step(BASE, settings, clock=ManualClock())
    assert step_memory(BASE, settings).peak == pytest.approx(found.working_bytes, rel=0.01)
