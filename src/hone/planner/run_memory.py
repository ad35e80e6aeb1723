"""Memory of a run by component and by phase, the largest settings that fit a device, and the least time of its phases.

A run of reinforcement learning has four phases in one process: `generate` (the engine's weights, keys and values, and
the logits of a pass), `learn` (activations and gradients), `update` (the optimizer) and `save` (the copies that are
written to a checkpoint). A run that draws answers between its steps has a fifth, `measure`. What is resident stays
through all of them: weights, gradients, moments, copies, and the engine's pages.

Time is a roofline: the larger of arithmetic and memory traffic at the device's own rates. A bound from below, not a
forecast. Symbols: P weights that a token is multiplied by, L layers, a heads of d features, S tokens of a text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from hone.planner.devices import DeviceSpec
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import (
    ONE_PROCESS,
    PlannedRanks,
    copies_of_rank,
    held_by_rank,
    rank_step,
)
from hone.planner.training_step import NUMBER_BYTES, NumberType, StepMemory, StepSettings, step_memory

CacheType = Literal["float32", "bfloat16", "int8"]
WeightLayout = Literal["plain", "packed", "codes"]
"""An engine's copy of the weights: `plain`: as the trainer's; `packed` for compiled products, where the output
projection has a copy even if it is the embedding; `codes`: packed in INT8."""
ENGINE_COPY: Final = "copy of the engine"
_SCALE_BYTES = 4
_CODED_OUTPUT_BYTES = 8
_CODED_HEAD_OUTPUT_BYTES = 12
"""Scale and offsets of an output feature; the output projection has two planes of codes."""
PASS_HOLES: Final = 0.27
"""Bytes that the C library's heap takes beside each byte of a pass: holes among tensors of many sizes. Measured with
SmolLM2-135M (`benchmarks/real_model.py`)."""
ADAPTER_PASS_HOLES: Final = 0.15
"""The same where an adapter is trained, whose pass has no gradients of the vocabulary: 0.09 to 0.19."""
HOLES: Final = "holes of the allocator"
_SAVE_HOLES = 0.08
"""The same of the copies of a checkpoint: 0.06 to 0.13."""
_ENGINE_LOGITS = 1 << 25
_SHARD_BYTES = 5_000_000_000
"""Bytes of a file of weights, which are copied to be written (`hone.models.language.hf_checkpoint`)."""
_GPU_PAGE_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """Settings of generation that memory depends on."""

    concurrent: int
    """Answers that are written at the same time."""
    prompt_tokens: int
    """Tokens of the longest prompt."""
    answer_tokens: int
    """Largest number of tokens of an answer, all turns of a dialogue included."""
    weights_bytes: int
    """Bytes per parameter of the engine's own copy; 0: it reads the trainer's weights, or is another machine."""
    update_bytes: int = 0
    """Bytes of a packed adapter beside weights in codes, which are the trainer's."""
    layout: WeightLayout = "plain"
    cache: CacheType = "float32"
    """Type of keys and values."""
    page_tokens: int = 16
    sleeps: bool = False
    """The engine frees its pages, and packed weights, while the policy learns."""
    may_sleep: bool = True
    """It writes nothing while the policy learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDimensions:
    """Everything that the memory of a run depends on."""

    shape: PlannedDecoder
    step: StepSettings
    generation: GenerationSettings | None = None
    """None: nothing is generated."""
    drawing: GenerationSettings | None = None
    """An engine that is made between the steps, and gone before the next; None: there is none."""
    evaluation: GenerationSettings | None = None
    """Such an engine, for held-out prompts."""
    trained_parameters: int | None = None
    """Numbers that are trained; None: all of them. Those of an adapter otherwise."""
    moments: int = 2
    """Numbers that the optimizer keeps for each trained one."""
    moment_bytes: int = 4
    copies: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes of further networks by role: reference, reward models, critic with its optimizer."""
    ranks: PlannedRanks = ONE_PROCESS
    """Ranks of the learner, from the place of the one that is planned."""

    @property
    def own_step(self) -> StepSettings:
        """The step as this rank takes it."""
        return rank_step(self.step, self.ranks)

    @property
    def trained(self) -> int:
        """Numbers that are trained."""
        return self.shape.parameters if self.trained_parameters is None else self.trained_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Bytes of a run on one device."""

    components: Mapping[str, int]
    """Bytes by component, largest life first; activations are those of the largest micro-batch."""
    phases: Mapping[str, int]
    """Most bytes of each phase."""
    step: StepMemory

    @property
    def peak_bytes(self) -> int:
        """Most bytes of the run."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """Phase of the peak."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def largest(self) -> str:
        """Component that takes most."""
        return max(self.components, key=lambda name: self.components[name])


def on_device(run: RunDimensions, device: DeviceSpec) -> RunDimensions:
    """The run as it would be on a device: a GPU takes fused attention, bfloat16 products, and keys and values of theirs
    in long pages, and a rank has one of its own; a CPU leaves it as it is."""
    if not device.is_gpu or run.step.path == "fused":
        return run
    run = replace(run, ranks=replace(run.ranks, beside=0))
    step = replace(run.step, path="fused", compute="bfloat16", tile_scratch=False, widens=False, halves_head=False)
    generation, drawing, evaluation = (
        one and replace(one, cache="bfloat16", page_tokens=_GPU_PAGE_TOKENS, weights_bytes=2, layout="plain")
        for one in (run.generation, run.drawing, run.evaluation)
    )
    return replace(run, step=step, generation=generation, drawing=drawing, evaluation=evaluation)


def cache_bytes_per_token(shape: PlannedDecoder, cache: CacheType) -> int:
    """Bytes of keys and values of a token, 2 L g d b; of codes 2 L g (d + 4), with a scale for each vector."""
    if cache == "int8":
        return 2 * shape.layers * shape.kv_heads * (shape.head_dim + _SCALE_BYTES)
    return 2 * (shape.layers - shape.linear_layers) * shape.key_width * NUMBER_BYTES[cache]


def engine_copy_bytes_of(shape: PlannedDecoder, generation: GenerationSettings, weights: NumberType) -> int:
    """Bytes of the engine's own copy of the weights, whose type in the trainer is `weights`.

    In codes a layer's weight takes 1 byte and each output 8 more, the output projection's 2 and 12; the embedding keeps
    the trainer's type.
    """
    if generation.layout == "codes":
        inner = 2 * shape.intermediate + shape.hidden
        outputs = shape.query_width + 2 * shape.key_width + shape.hidden + inner * max(1, shape.experts)
        layers = shape.layers * (shape.layer_weights + _CODED_OUTPUT_BYTES * outputs)
        head = 2 * shape.vocabulary_weights + _CODED_HEAD_OUTPUT_BYTES * shape.vocab
        return layers + head + NUMBER_BYTES[weights] * shape.vocabulary_weights
    twice = shape.vocabulary_weights if generation.layout == "packed" and shape.tied else 0
    return generation.weights_bytes * (shape.parameters + twice) + generation.update_bytes


def page_bytes(shape: PlannedDecoder, generation: GenerationSettings) -> int:
    """Bytes of the engine's pages: the longest sequence in every slot, and an eighth more for early prompts."""
    pages = -(-(generation.prompt_tokens + generation.answer_tokens) // generation.page_tokens)
    slots = generation.concurrent + max(1, generation.concurrent // 8)
    page = generation.page_tokens * cache_bytes_per_token(shape, generation.cache) + 4 * shape.state_numbers
    return (pages * slots + 1) * page


def run_memory(run: RunDimensions) -> RunMemory:
    """Memory of a run: components, and the most of each phase; with it that of the ranks in the same memory."""
    shape, ranks = run.shape, run.ranks
    step = step_memory(shape, run.own_step)
    resident = resident_parts(run)
    generation = run.generation
    engine: dict[str, int] = {}
    if generation is not None:
        engine["engine's weights"] = engine_copy_bytes_of(shape, generation, run.step.weights)
        engine["keys and values"] = page_bytes(shape, generation)
    held = sum(resident.values())
    awake = sum(engine.values())  # while the policy learns: all, or what the engine's sleep does not free
    if generation is not None and generation.sleeps:
        awake = engine["engine's weights"] if generation.layout == "plain" else 0
    on_cpu = run.step.path != "fused"
    share = PASS_HOLES if run.trained_parameters is None else ADAPTER_PASS_HOLES
    holes = int(share * step.peak) if on_cpu else 0
    copied = int((1 + _SAVE_HOLES) * saved_copies(run)) if on_cpu and ranks.is_driver else 0  # of a GPU: on the host
    grows = resident["gradients"] if ranks.are_several else 0  # those of cut weights grow in the backward pass
    gathered = 0  # the largest weight, for rank 0's copy after a step
    if ranks.are_several:
        largest = max(shape.vocabulary_weights, 2 * shape.hidden * shape.intermediate * max(1, shape.experts))
        gathered = NUMBER_BYTES[run.step.weights] * largest * (5 if ranks.tensor > 1 else 4) // 2
    phases = {
        "learn": held - grows + awake + step.peak + holes,
        "update": held + awake + gathered,
        "save": held + awake + copied,
    }
    if generation is not None:
        phases = {"generate": held + sum(engine.values()) + _logits_bytes(shape, generation)} | phases
    for name, one in {"measure": run.drawing, "evaluate": run.evaluation}.items():
        if one is not None and ranks.is_driver:
            made = engine_copy_bytes_of(shape, one, run.step.weights) + page_bytes(shape, one)
            # What a step has freed stays with a CPU's process, in pieces that are too small for an engine's tensors.
            freed = phases["learn"] if on_cpu else held + awake
            phases[name] = freed + made + _logits_bytes(shape, one)
    working = {
        "activations": step.activations + step.recomputed,
        "rounded weights": step.rounded_weights,
        "backward pass": max(0, step.peak - step.activations - step.recomputed - step.rounded_weights - grows),
        HOLES: holes,
    }
    other = run_memory(other_rank(run)) if ranks.beside else None
    if other is not None:
        working["other ranks of this machine"] = ranks.beside * other.peak_bytes
        rest = sum(resident_parts(other_rank(run)).values())
        rests = dict.fromkeys(("generate", "measure", "evaluate"), rest) | dict(other.phases)
        phases = {name: size + ranks.beside * rests[name] for name, size in phases.items()}
    components = {name: each for name, each in {**resident, **engine, **working}.items() if each > 0}
    return RunMemory(components=components, phases=phases, step=step)


def _logits_bytes(shape: PlannedDecoder, generation: GenerationSettings) -> int:
    return 8 * min(_ENGINE_LOGITS, max(generation.concurrent, 64) * shape.vocab)


def saved_copies(run: RunDimensions) -> int:
    """Bytes of the copies that a checkpoint is written from: the moments, in float32 whatever theirs is, and the
    weights, a file of them at a time; of an adapter its factors."""
    written = run.shape.parameters if run.trained_parameters is None else run.trained_parameters
    return 4 * run.moments * run.trained + min(_SHARD_BYTES, NUMBER_BYTES[run.step.weights] * written)


def other_rank(run: RunDimensions) -> RunDimensions:
    """The run from the place of a rank that only learns."""
    return replace(
        run, generation=None, drawing=None, evaluation=None, ranks=replace(run.ranks, beside=0, is_driver=False)
    )


def resident_parts(run: RunDimensions) -> dict[str, int]:
    """Bytes of the networks of a rank, gradients and moments with them, by what holds them."""
    shape, size, trained = run.shape, NUMBER_BYTES[run.step.weights], run.trained
    copies = copies_of_rank(run.copies, run.ranks)
    if run.ranks.are_several:
        held = held_by_rank(
            shape, run.step, run.ranks, moments=run.moments, moment_bytes=run.moment_bytes,
            adapter=run.trained_parameters,
        )  # fmt: skip
        return held | copies
    return {
        "weights": shape.coded_bytes(bits) if (bits := run.step.code_bits) else shape.parameters * size,
        "gradients": trained * size if run.trained_parameters is None else 0,
        "optimizer": run.moments * trained * run.moment_bytes,
        **copies,
    }


def machine_parts(run: RunDimensions) -> dict[str, int]:
    """Bytes of `resident_parts`, and of the other ranks that have the same memory."""
    others = run.ranks.beside * sum(resident_parts(other_rank(run)).values())
    parts = {**resident_parts(run), "other ranks of this machine": others}
    return {name: size for name, size in parts.items() if size}


def network_parts(run: RunDimensions) -> dict[str, int]:
    """Bytes of all networks that a run holds on a device, the engine's copy among them, by what holds them."""
    generation = run.generation
    copied = 0 if generation is None else engine_copy_bytes_of(run.shape, generation, run.step.weights)
    if run.ranks.are_several:
        parts = {**machine_parts(run), ENGINE_COPY: copied}
    else:
        held = resident_parts(run)
        parts = {"weights": held["weights"], "gradients": held["gradients"], "optimizer state": held["optimizer"],
                 ENGINE_COPY: copied, **run.copies}  # fmt: skip
    return {name: size for name, size in parts.items() if size}


def largest_micro_batch(run: RunDimensions, device: DeviceSpec) -> int:
    """Most tokens of a micro-batch that fit; 0 where not even one does."""
    return _largest(lambda tokens: replace(run, step=replace(run.step, tokens=tokens)), device, most=1 << 26)


def most_concurrent(run: RunDimensions, device: DeviceSpec) -> int:
    """Most answers at the same time that fit; 0 where not even one does, or nothing is generated."""
    generation = run.generation
    if generation is None:
        return 0
    return _largest(lambda count: replace(run, generation=replace(generation, concurrent=count)), device, most=1 << 20)


def _largest(changed: Callable[[int], RunDimensions], device: DeviceSpec, *, most: int) -> int:
    """The largest number whose run fits; memory grows with it."""
    low, high = 0, 1
    while high < most and run_memory(changed(high)).peak_bytes <= device.usable_bytes:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if run_memory(changed(middle)).peak_bytes <= device.usable_bytes:
            low = middle
        else:
            high = middle
    return low


# ----------------------------------------------------------------------------------------------------------- least time


@dataclass(frozen=True, slots=True, kw_only=True)
class _PhaseTime:
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


def learning_time(run: RunDimensions, device: DeviceSpec, tokens: int) -> _PhaseTime | None:
    """Least time to learn from `tokens`, over all ranks; None where the device's rates are not known."""
    rate = device.bfloat16_flops if run.step.compute == "bfloat16" else device.float32_flops
    if not rate or not device.bandwidth_bytes:
        return None
    arithmetic = tokens * flops_per_token(run) / rate
    traffic = run.trained * (2 + 2 * run.moments) * 4.0 / device.bandwidth_bytes  # the optimizer reads and writes all
    bound = "arithmetic" if arithmetic >= traffic else "memory"
    return _PhaseTime(seconds=(arithmetic + traffic) / run.ranks.count, bound=bound)


def generation_time(run: RunDimensions, device: DeviceSpec, answers: int) -> _PhaseTime | None:
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
    return _PhaseTime(seconds=steps * max(read, arithmetic), bound=bound)
