"""Memory by hand: a GRPO step's bytes as a sum of seven lines, against a count of every tensor that the step makes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hone.core.clock import SystemClock
from hone.core.random import generator
from hone.engine.scheduler import default_limits
from hone.engine.torch_runner import TorchRunner
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    StackedBarPlot,
    at_least,
    at_most,
    line_plot,
)
from hone.models.language.decoder import Decoder
from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles, widens_half_products
from hone.models.tensor_memory import TensorMemory, without_numbers
from hone.planner.known_models import known_model
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.run_memory import HOLES, GenerationSettings, RunDimensions, run_memory
from hone.planner.run_settings import adapter_copies, adapter_sizes
from hone.planner.training_step import StepSettings
from hone.recipes.recipe_step import take_recipe_step
from hone.recipes.text.grpo import GrpoConfig
from hone.text.tracked_step import decoder_config

_MIB = 1 << 20
_TEXT, _PROMPT, _ANSWERS, _PAGE = 128, 32, 8, 16
"""Tokens of a text and of its prompt, answers that are written at once, and tokens of a page."""
_RANK = 8
_SIZES = (128, 256, 512, 1024, 2048)
"""Tokens of a micro-batch."""
_LINES: Final[Mapping[str, str]] = {
    "weights": "4 P",
    "gradients": "4 P",
    "moments": "8 P",
    "keys and values": "tokens in pages x 2 L g d x 4",
    "activations": "T L (8h + 2bh + 2b(a + g)d + 8a + 3bf + 8), and 8 T h outside of layers",
    "rounded weights": "2 for each weight of a layer",
    "loss or last layer": "8 for each logit at once, or gradients of a layer",
}
"""Lines of the sum. With checkpointing a layer keeps (4 + b) T h instead: its input, and what is still to be added to
it; and one layer's activations are there while it is computed again."""
_LETTERS = (
    "P parameters (that are trained), T tokens of a micro-batch, L layers, h hidden and f inner features, a and g "
    "heads of queries and keys of d features, b bytes of a number in products"
)
_PUBLISHED = "Qwen3-0.6B"
"""Model whose step is also taken, at its full size, with tensors that have sizes and no numbers."""
_COMPONENTS: Final = {
    "optimizer": "moments",
    "base of the adapted weights": "weights",
    "adapter with its gradients": "gradients",
    "backward pass": "loss or last layer",
}
"""The planner's names of components, where they are other ones."""
PLAIN, HALF, _AGAIN, CHECKPOINTING, _ADAPTER, SHORT = _SETTINGS = (
    "float32",
    "bfloat16 products",
    "weights rounded again",
    "checkpointing",
    f"adapter of rank {_RANK}",
    "short micro-batch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySum:
    """Bytes of a step: the sum, and what was counted."""

    lines: Mapping[str, int]
    """Bytes of each line."""
    measured: int
    """Most bytes of all tensors at once."""
    in_loss: tuple[bool, bool]
    """Whether the peak is in the loss, by the sum and as counted."""
    parameters: int

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self.lines.values())

    @property
    def error(self) -> float:
        """Size of the sum's relative error."""
        return abs(self.total / self.measured - 1)

    @property
    def over_rule(self) -> float:
        """What was counted over 16 bytes a parameter."""
        return self.measured / (16 * self.parameters)


def _draw_shape(seed: int, number: int) -> PlannedDecoder:
    """A small decoder of usual proportions."""
    draws = generator(seed, "lab/memory/shape", number)
    hidden, kv_heads, dim = (int(draws.choice(known)) for known in ((96, 128, 160, 192), (1, 2), (16, 32)))
    family = str(draws.choice(["llama", "qwen3"]))
    return PlannedDecoder(
        family=family,
        layers=int(draws.integers(3, 6)),
        hidden=hidden,
        heads=kv_heads * int(draws.integers(1, 4)),
        kv_heads=kv_heads,
        head_dim=dim,
        intermediate=hidden * int(draws.integers(2, 5)),
        vocab=int(draws.choice([128, 512, 2048])),
        tied=bool(draws.random() < 0.5),
        qk_norm=family == "qwen3",
    )


def _draw_run(seed: int, number: int) -> RunDimensions:
    """A drawn shape under drawn settings."""
    draws = generator(seed, "lab/memory/settings", number)
    shape = _draw_shape(seed, number)
    drawn = run_of(shape, tokens=int(draws.choice(_SIZES[1:])), rank=_RANK * int(draws.random() < 0.4))
    half, checkpointing, again = (draws.random(3) < (0.5, 0.4, 0.3)).tolist()
    step = replace(
        drawn.step,
        compute="bfloat16" if half else "float32",
        checkpointing=checkpointing,
        rounds_again=half and again,
    )
    return replace(drawn, step=step)


def run_of(shape: PlannedDecoder, *, tokens: int, rank: int = 0) -> RunDimensions:
    """GRPO in float32 with all weights, or with an adapter of a rank; the engine reads the learner's weights."""
    trained, adapted = adapter_sizes(shape, rank, "all")
    return RunDimensions(
        shape=shape,
        step=StepSettings(
            tokens=tokens,
            text_tokens=_TEXT,
            chosen_tokens=_TEXT - _PROMPT,
            path="torch" if available_kernels() is None else "compiled",
            trained_vocabulary=not rank,
            tile_scratch=uses_amx_tiles(),
            widens=widens_half_products(),
            halves_head=multiplies_half(),
        ),
        generation=GenerationSettings(
            concurrent=_ANSWERS,
            prompt_tokens=_PROMPT,
            answer_tokens=_TEXT - _PROMPT,
            weights_bytes=0,
            page_tokens=_PAGE,
        ),
        trained_parameters=trained if rank else None,
        copies=adapter_copies(trained, adapted, "float32") if rank else {},
    )


def _runs_by_setting(shape: PlannedDecoder) -> dict[str, RunDimensions]:
    """One shape under each of the settings."""
    plain = run_of(shape, tokens=1024)
    half = replace(plain.step, compute="bfloat16")
    return {
        PLAIN: plain,
        HALF: replace(plain, step=half),
        _AGAIN: replace(plain, step=replace(half, rounds_again=True)),
        CHECKPOINTING: replace(plain, step=replace(plain.step, checkpointing=True)),
        _ADAPTER: run_of(shape, tokens=1024, rank=_RANK),
        SHORT: run_of(shape, tokens=_SIZES[0]),
    }


def _grpo_config(run: RunDimensions) -> GrpoConfig:
    """GRPO on a micro-batch of that size; its model and its data are never opened."""
    return GrpoConfig.model_validate(
        {
            "name": "lab", "recipe": "grpo", "steps": 1, "task": {"source": "prompts.jsonl"},
            "rewards": {"functions": [{"use": "exact_match"}]},
            "model": {"path": "model"} | ({} if run.trained_parameters is None else {"lora": {"rank": _RANK}}),
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 4, "max_tokens": _TEXT - _PROMPT},
            "learner": {"lr": 1e-4, "micro_batch_tokens": run.step.tokens},
        }
    )  # fmt: skip


def _published_run(seed: int) -> RunDimensions:
    """GRPO of a published model with bfloat16 products, on a drawn micro-batch."""
    tokens = int(generator(seed, "lab/memory/published").choice([2048, 4096, 8192]))
    published = run_of(shape_from_hf(known_model(_PUBLISHED)), tokens=tokens)
    return replace(published, step=replace(published.step, compute="bfloat16"))


def lines_of(run: RunDimensions) -> dict[str, int]:
    """Bytes of each line, by the planner's formulas."""
    lines = dict.fromkeys(_LINES, 0)
    for name, size in run_memory(run).components.items():
        if name != HOLES:  # no tensors
            lines[_COMPONENTS.get(name, name)] += size
    return lines


def _memory_sum(run: RunDimensions, *, fake: bool = False) -> MemorySum:
    """The sum by the planner's formulas, and one step of GRPO whose tensors are counted. `fake`: they have sizes and no
    numbers."""
    with ExitStack() as stack:
        if fake:
            stack.enter_context(without_numbers())
        model = Decoder(decoder_config(run.shape))
        memory = stack.enter_context(TensorMemory())
        runner = TorchRunner(model, vocab_used=run.shape.vocab, page_tokens=_PAGE)
        limits = default_limits(slots=_ANSWERS, page_tokens=_PAGE, sequence_tokens=_TEXT, vocab=run.shape.vocab)
        runner.reserve(limits.pages)
        step = take_recipe_step(_grpo_config(run), run, clock=SystemClock(), fake=fake)
    return MemorySum(
        lines=lines_of(run),
        measured=memory.peak_bytes,
        in_loss=(run_memory(run).step.moment == "logits", "log_softmax" in step.operation),
        parameters=run.shape.parameters,
    )


def _largest_error(sums: Sequence[MemorySum]) -> float:
    """The largest relative error of some sums."""
    return max(one.error for one in sums)


def claims_of(
    drawn: Sequence[MemorySum], settings: Mapping[str, MemorySum], published: MemorySum
) -> list[BoundedClaim]:
    """Claims on the sums of drawn shapes, of settings of one shape and of a published model."""
    peaks = {name: one.measured for name, one in settings.items()}
    agree = float(np.mean([by_hand == counted for by_hand, counted in (one.in_loss for one in drawn)]))
    return [
        at_most("largest error of a sum", _largest_error([*drawn, *settings.values()]), 0.02),
        at_most(f"error of the sum of {_PUBLISHED}", published.error, 0.02),
        at_least("share of drawn shapes whose peak is where the sum has it", agree, 0.7),
        at_least("counted over 16 bytes a parameter, long micro-batch", settings[PLAIN].over_rule, 1.5),
        at_least("the same, over that of a short one", settings[PLAIN].over_rule / settings[SHORT].over_rule, 1.5),
        at_least("counted, bfloat16 products over float32: not half", peaks[HALF] / peaks[PLAIN], 0.6),
        at_most("counted, checkpointing over all activations", peaks[CHECKPOINTING] / peaks[PLAIN], 0.85),
    ]


def _mib_by_tokens(shape: PlannedDecoder) -> dict[str, list[float]]:
    """MiB over the tokens of a micro-batch, by the sum, as counted, and by the rule."""
    sums = [_memory_sum(run_of(shape, tokens=tokens)) for tokens in _SIZES]
    return {
        "by hand": [one.total / _MIB for one in sums],
        "counted": [one.measured / _MIB for one in sums],
        "16 bytes a parameter": [16 * one.parameters / _MIB for one in sums],
    }


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    shape = _draw_shape(seed, 0)
    runs = _runs_by_setting(shape)
    settings = {name: _memory_sum(one) for name, one in runs.items()}
    drawn = [_memory_sum(_draw_run(seed, number)) for number in range(1, 5 if quick else 17)]
    published, large = _published_run(seed), _memory_sum(_published_run(seed), fake=True)
    plain, short = settings[PLAIN], settings[SHORT]
    sums = list(settings.values())
    return ExperimentResult(
        header=("line, MiB", "bytes by hand", *_SETTINGS),
        rows=[
            *((line, form, *(f"{one.lines[line] / _MIB:.1f}" for one in sums)) for line, form in _LINES.items()),
            ("sum", "", *(f"{one.total / _MIB:.1f}" for one in sums)),
            ("counted", "", *(f"{one.measured / _MIB:.1f}" for one in sums)),
            ("letters", _LETTERS, *("" for _ in sums)),
        ],
        panels=[
            StackedBarPlot(
                title="MiB of a step by line; the mark is what was counted",
                labels=_SETTINGS,
                parts={line: [one.lines[line] / _MIB for one in sums] for line in _LINES},
                marks=[one.measured / _MIB for one in sums],
            ),
            line_plot("MiB over the micro-batch", "tokens", _SIZES, _mib_by_tokens(shape)),
        ],
        verdict=(
            f"Worked out by hand, a step of GRPO is within {_largest_error([*drawn, *sums]):.1%} of what its tensors "
            f"take, in {len(drawn)} drawn shapes and {len(settings)} settings of one. 16 bytes a parameter are "
            f"{1 / short.over_rule:.0%} of it with {runs[SHORT].step.tokens:,} tokens in a micro-batch and "
            f"{1 / plain.over_rule:.0%} with {runs[PLAIN].step.tokens:,}: what grows are activations and logits. "
            f"{_PUBLISHED} with {published.step.tokens:,} tokens takes {large.total / 2**30:.1f} GiB by hand and "
            f"{large.measured / 2**30:.1f} counted."
        ),
        claims=claims_of(drawn, settings, large),
    )


EXPERIMENT = Experiment(
    title="Memory by hand",
    question="What is in the memory of a training step, and can it be added up on paper?",
    run=_run,
    source="Korthikanti et al., 2022",
)
