"""The processor's rate of matrix products, measured once, for the share of it that a run uses."""

from functools import cache
from typing import Final

import torch

from hone.core.clock import Clock
from hone.models.language.scalar_head import LanguageNetwork
from hone.run.store.records import MatmulRate

MATMUL_MEASURE_S: Final = 0.1


_MATMUL_SIZE: Final = {"cpu": 1024, "cuda": 8192}


def matmul_rate(policy: LanguageNetwork, clock: Clock, *, seconds_s: float = MATMUL_MEASURE_S) -> MatmulRate:
    """Rate of large square matrix products on the policy's device and in its dtype: the best of the repetitions that
    fit in `seconds_s`, at least three. Later runs of a process on as many threads have the rate of the first."""
    return _measured(policy.decoder.device, policy.decoder.compute, torch.get_num_threads(), clock, seconds_s)


@cache
def _measured(device: torch.device, dtype: torch.dtype, threads: int, clock: Clock, seconds_s: float) -> MatmulRate:
    size = _MATMUL_SIZE.get(device.type, _MATMUL_SIZE["cpu"])
    left, right = torch.randn(2, size, size, device=device, dtype=torch.float32).to(dtype)
    best_s, spent_s, count = float("inf"), 0.0, 0
    with torch.inference_mode():
        torch.mm(left, right)  # threads and kernels are made ready
        _synchronise(device)
        while count < 3 or spent_s < seconds_s:
            start = clock.monotonic_s()
            torch.mm(left, right)
            _synchronise(device)
            took_s = clock.monotonic_s() - start
            best_s, spent_s, count = min(best_s, took_s), spent_s + max(took_s, 1e-6), count + 1
    return MatmulRate(
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=threads,
        matmul_flops_per_s=2 * size**3 / max(best_s, 1e-9),
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
