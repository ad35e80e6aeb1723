"""Time of a run's phases by a roofline: the larger of arithmetic and memory traffic, at the device's own rates.

A bound from below, not a forecast: a phase cannot be faster. Symbols: P weights that a token is multiplied by, L
layers, a heads of d features, S tokens of a text.
"""

from dataclasses import dataclass

from hone.planner.devices import DeviceSpec
from hone.planner.run_memory import RunDimensions, cache_bytes_per_token
from hone.planner.training_step import NUMBER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTime:
    """Least seconds of a phase, and which rate sets them."""

    seconds: float
    bound: str
    """`arithmetic` or `memory`."""


def flops_per_token(run: RunDimensions) -> float:
    """Multiplications and additions of a forward and a backward pass for a token: 6 P + 6 L a d S (causal attention,
    half of the square), and a third more where activations are computed again."""
    shape = run.shape
    forward = 2.0 * shape.matmul_weights + 2.0 * shape.layers * shape.query_width * run.step.text_tokens
    return forward * (4.0 if run.step.checkpointing else 3.0)


def learning_time(run: RunDimensions, device: DeviceSpec, tokens: int) -> PhaseTime | None:
    """Least time to learn from `tokens`, over all ranks; None where the device's rates are not known."""
    rate = device.bfloat16_flops if run.step.compute == "bfloat16" else device.float32_flops
    if not rate or not device.bandwidth_bytes:
        return None
    arithmetic = tokens * flops_per_token(run) / rate
    traffic = run.trained * (2 + 2 * run.moments) * 4.0 / device.bandwidth_bytes  # the optimizer reads and writes all
    bound = "arithmetic" if arithmetic >= traffic else "memory"
    return PhaseTime(seconds=(arithmetic + traffic) / run.ranks.count, bound=bound)


def generation_time(run: RunDimensions, device: DeviceSpec, answers: int) -> PhaseTime | None:
    """Least time to write `answers` of the full length, which rank 0 does alone: a step reads the weights once, and
    the keys of every answer."""
    generation = run.generation
    if generation is None or not device.bandwidth_bytes or not device.bfloat16_flops:
        return None
    shape, tokens = run.shape, generation.answer_tokens
    width = generation.weights_bytes or NUMBER_BYTES[run.step.weights]
    rounds = -(-answers // generation.concurrent)
    steps = rounds * tokens
    at_once = min(answers, generation.concurrent)
    context = generation.prompt_tokens + tokens / 2
    keys = at_once * context * cache_bytes_per_token(shape, generation.cache)
    read = (shape.matmul_weights * width + keys) / device.bandwidth_bytes
    rate = device.bfloat16_flops if width == 2 else device.float32_flops
    arithmetic = at_once * (2.0 * shape.matmul_weights + 4.0 * shape.layers * shape.query_width * context) / rate
    bound = "arithmetic" if arithmetic > read else "memory"
    return PhaseTime(seconds=steps * max(read, arithmetic), bound=bound)
