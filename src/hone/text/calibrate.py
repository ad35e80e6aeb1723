"""Measurement of the present machine for plans: products, memory traffic, and a step at two sizes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import torch

from hone.core.clock import Clock
from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles, widens_half_products
from hone.native.build import keep_freed_memory
from hone.planner.calibration import MachineCalibration
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.run_memory import RunDimensions, flops_per_token
from hone.planner.training_step import StepSettings
from hone.process.machine_memory import peak_resident_bytes, reset_peak_resident, resident_bytes
from hone.text.tracked_step import tracked_step

_SHAPE: Final = PlannedDecoder(
    family="qwen3", layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, intermediate=768, vocab=2048, tied=True,
    qk_norm=True,
)  # fmt: skip
_TOKENS: Final = (2048, 8192)
_TEXT: Final = 256
_PRODUCT: Final = 1024
_COPIED_BYTES: Final = 1 << 28
_REPEATS: Final = 5


def calibrate_cpu(clock: Clock, *, processor: str) -> MachineCalibration:
    """Measure this machine's CPU, for some seconds."""
    settings = StepSettings(
        tokens=_TEXT, text_tokens=_TEXT, path="torch" if available_kernels() is None else "compiled",
        tile_scratch=uses_amx_tiles(),
        widens=widens_half_products(),
        halves_head=multiplies_half(),
    )  # fmt: skip
    keep_freed_memory()  # as every training run does
    tracked_step(_SHAPE, settings, clock=clock, fake=False)  # libraries are loaded at their first use
    context = resident_bytes()
    taken: list[tuple[int, int]] = []
    seconds, flops = 1.0, 0.0
    for tokens in _TOKENS:
        sized = replace(settings, tokens=tokens)
        reset_peak_resident()
        step = tracked_step(_SHAPE, sized, clock=clock, fake=False)
        taken.append((step.resident_bytes + step.working_bytes, peak_resident_bytes() - context))
        seconds, flops = step.seconds, tokens * flops_per_token(RunDimensions(shape=_SHAPE, step=sized))
    ratio, rest = line_through(*taken)
    rates: dict[torch.dtype, float] = {}  # operations a second of square products
    for dtype in (torch.float32, torch.bfloat16):
        product = partial(torch.mm, *torch.randn(2, _PRODUCT, _PRODUCT).to(dtype))
        rates[dtype] = 2 * _PRODUCT**3 / _best_s(product, clock)
    source = torch.zeros(_COPIED_BYTES, dtype=torch.uint8)
    copy = partial(torch.ones_like(source).copy_, source)  # no cache holds it; bytes are read and written
    return MachineCalibration(
        device="cpu",
        processor=processor,
        day=datetime.fromtimestamp(clock.now_s(), UTC).date().isoformat(),
        context_bytes=context + rest,
        allocator_ratio=round(ratio, 4),
        float32_flops=rates[torch.float32],
        bfloat16_flops=rates[torch.bfloat16],
        bandwidth_bytes=2 * _COPIED_BYTES / _best_s(copy, clock),
        step_share=round(flops / seconds / rates[torch.float32], 4),
    )


def line_through(small: tuple[int, int], large: tuple[int, int]) -> tuple[float, int]:
    """Ratio r >= 1 and rest c >= 0 of `memory = r tensors + c`, from (tensors, memory) of two sizes, in bytes."""
    ratio = max(1.0, (large[1] - small[1]) / (large[0] - small[0]))
    return ratio, max(0, large[1] - int(ratio * large[0]))


def _best_s(work: Callable[[], object], clock: Clock) -> float:
    """Least seconds of some repetitions, after one that makes threads and pages ready."""
    work()
    best = float("inf")
    for _ in range(_REPEATS):
        begin = clock.monotonic_s()
        work()
        best = min(best, clock.monotonic_s() - begin)
    return max(best, 1e-9)
