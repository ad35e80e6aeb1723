"""Dimensions of a run from the settings of its config alone, by their dotted keys: no data is read, nothing is loaded.

`hone.text.planned_memory` does the same from a checked config and the lengths of its data; tests hold the two
together for every recipe.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

from hone.core.errors import ConfigError, ErrorCollector
from hone.planner.planned_adapter import adapter_copies, adapter_sizes
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import PlannedRanks, rank_faults
from hone.planner.run_memory import CacheType, GenerationSettings, RunDimensions, WeightLayout
from hone.planner.training_step import COMPILED_TEXT_TOKENS, NUMBER_BYTES, KernelPath, NumberType, StepSettings

PLANNED_KEYS: Final = (
    "algorithm.batch", "algorithm.correction.first_stage_steps", "algorithm.critic.path", "algorithm.entropy",
    "algorithm.kl", "algorithm.kl_in_reward.weight", "algorithm.restart", "batch", "evaluation", "learner.lr",
    "learner.micro_batch_tokens", "learner.minibatches", "model.activation_checkpointing", "model.activation_offload",
    "model.compute", "model.exactness", "model.lora.alpha", "model.lora.layers", "model.lora.rank", "model.path",
    "model.round_weights_again", "model.weights", "rollout.context", "rollout.kv_cache", "rollout.max_concurrent",
    "rollout.max_staleness", "rollout.max_staleness.steps", "rollout.max_tokens", "rollout.prompts_per_step",
    "rollout.runner", "rollout.samples_per_prompt", "rollout.sleep", "run.device", "run.ranks", "run.tensor",
    "run.virtual_ranks", "samples.prompts",
)  # fmt: skip
"""Keys of a config that memory depends on; those of a new network aside."""
PLANNED_RECIPES: Final = Path(__file__).with_name("recipes.json")
"""Defaults of the planned keys and shape of the batches, of each recipe."""
ASSUMED_PROMPT_TOKENS: Final = 512
"""Tokens of the longest prompt where nobody says."""
MIN_LR_WITHOUT_MASTER_WEIGHTS: Final = 1e-4
"""Smallest learning rate with weights in bfloat16 (`hone.learner.config`)."""
_CPU_PAGE: Final = 16
_GPU_PAGE: Final = 256
_MOST: Final = 1 << 40
_TYPES: Final = ("float32", "bfloat16")
_EXACTNESS: Final = ("parity", "bitwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """A recipe as far as memory depends on it."""

    rows: Sequence[str]
    """Keys whose product is the number of texts of an iteration."""
    factor: int = 1
    """Texts of each of them: 2 for pairs."""
    writes: bool = False
    """The policy writes answers."""
    predicts_tokens: bool = True
    """The loss has logits of the vocabulary; not that of a reward model."""
    entropy: bool = False
    """The loss reads the entropy of every token, without an entropy bonus as well."""
    answers: int = 1
    """Answers to a prompt in one conversation."""
    moments: int = 2
    networks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Further networks of the policy's size: copies of the weights in each, by name."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Defaults of the keys that are planned with."""
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """What a preset sets of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorTraits:
    """What a CPU can do, as far as memory depends on it."""

    compiled: bool
    """hone's kernels can be compiled here."""
    bfloat16: bool
    """It multiplies bfloat16 numbers."""
    tiles: bool
    """It multiplies by tiles (AMX)."""
    widens: bool = False
    """It multiplies bfloat16 by float32 matrices (x86 without AVX-512)."""


class PlannedSettings:
    """Settings by dotted key, read with their types; every fault is collected with the place of its key."""

    def __init__(self, values: Mapping[str, object], where: Callable[[str], str]) -> None:
        self._values = values
        self._where = where
        self.faults = ErrorCollector(ConfigError)
        """Everything wrong so far."""

    def count(self, key: str, *, least: int = 1, default: int = 1) -> int:
        """A whole number."""
        value = self._values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _MOST:
            too_large = isinstance(value, int) and value >= _MOST
            self._refuse(key, f"a whole number {'below 2^40' if too_large else f'of at least {least}'}", value)
            return max(least, default)
        return value

    def number(self, key: str, default: float = 0.0) -> float:
        """A number of at least 0."""
        value = self._values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < _MOST:
            too_large = isinstance(value, int | float) and value >= _MOST
            self._refuse(key, "a number below 2^40" if too_large else "a number of at least 0", value)
            return default
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            self._refuse(key, "true or false", value)
        return value is True

    def choice(self, key: str, known: Sequence[str]) -> str:
        """One of these words; the first where the key is missing."""
        value = self._values.get(key, known[0])
        if value not in known:
            self._refuse(key, f"one of {', '.join(known)}", value)
            return known[0]
        return str(value)

    def words(self, key: str) -> str | Sequence[str]:
        """A word, or a list of words."""
        value = self._values.get(key, "all")
        if isinstance(value, str):
            return value
        return [str(one) for one in value] if isinstance(value, list) else "all"  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    def given(self, key: str) -> bool:
        """True if the key, or a key of a table of that name, has a value."""
        return self._values.get(key) is not None or any(one.startswith(f"{key}.") for one in self._values)

    def _refuse(self, key: str, wanted: str, value: object) -> None:
        self.faults.add(f"{key} in {self._where(key)} must be {wanted}, got {value!r}")


def engine_weight_bytes(
    *, device: str, exactness: str, runner: str, weights: str, compute: str, is_stale: bool = False
) -> int:
    """Bytes per parameter of an embedded engine's own copy of the weights; 0 where it reads the trainer's.

    `is_stale`: it generates while the trainer updates. With `native_int8` at most 2: its embedding and head take 2,
    the layers 1.
    """
    if device != "cpu" or exactness == "bitwise" or runner.startswith("torch"):
        own = NUMBER_BYTES[weights] if is_stale else 0
        mixed = weights == "float32" and compute != "float32" and runner != "torch_compiled"
        return own + (NUMBER_BYTES["bfloat16"] if device.startswith("cuda") and mixed else 0)
    return 2 if runner in ("native_bfloat16", "native_int8") else NUMBER_BYTES[weights]


def engine_layout(*, device: str, exactness: str, runner: str) -> WeightLayout:
    """Layout of an embedded engine's own copy of the weights."""
    if device != "cpu" or exactness == "bitwise" or runner.startswith("torch"):
        return "plain"
    return "codes" if runner == "native_int8" else "packed"


def cache_type(*, device: str, runner: str, weights: str, kv_cache: str) -> CacheType:
    """Type of an embedded engine's keys and values; `auto`: that of its products, and bfloat16 for INT8."""
    if kv_cache != "auto":
        return "int8" if kv_cache == "int8" else "bfloat16"
    half = device.startswith("cuda") or runner in ("native_bfloat16", "native_int8") or weights == "bfloat16"
    return "bfloat16" if half else "float32"


def dimensions_from_settings(
    recipe: PlannedRecipe,
    settings: PlannedSettings,
    shape: PlannedDecoder,
    *,
    processor: ProcessorTraits,
    context: int,
    longest: int | None = None,
) -> RunDimensions:
    """Dimensions of a run. `context`: tokens that the model reads at most; `longest`: tokens of the longest text.

    Raises ConfigError with all faults of the settings, each with its key and value.
    """
    device = "cuda" if str(settings.words("run.device")).startswith("cuda") else "cpu"
    weights = _weights(settings)
    compute = _compute(settings, weights, device, processor)
    whole, prompt = _lengths(recipe, settings, context, longest)
    texts = recipe.factor * prod(settings.count(key) for key in recipe.rows)
    rows = max(1, texts // settings.count("learner.minibatches"))
    micro = settings.count("learner.micro_batch_tokens")
    trained, copies = _trained_and_copies(recipe, settings, shape, weights, device)
    ranks = _ranks(settings, device)
    if not settings.faults.messages:
        settings.faults.extend(rank_faults(shape, ranks, rows=rows // recipe.factor, adapter=trained is not None))
    dimensions = RunDimensions(
        shape=shape,
        step=StepSettings(
            tokens=max(recipe.factor * whole, min(micro, rows * whole)),
            texts_together=recipe.factor,
            step_tokens=rows * whole,
            text_tokens=whole,
            chosen_tokens=whole - prompt if recipe.writes else 0,
            weights=weights,
            compute=compute,
            path=_path(settings, shape, device, processor, whole),
            checkpointing=settings.flag("model.activation_checkpointing"),
            rounds_again=settings.flag("model.round_weights_again"),
            offload=settings.flag("model.activation_offload"),
            entropy=recipe.entropy or settings.number("algorithm.entropy") > 0,
            trained_vocabulary=trained is None,
            predicts_tokens=recipe.predicts_tokens,
            tile_scratch=device == "cpu" and processor.tiles,
            widens=device == "cpu" and processor.widens,
        ),
        generation=_generation(settings, prompt, whole, weights, device) if recipe.writes else None,
        trained_parameters=trained,
        moments=recipe.moments,
        moment_bytes=NUMBER_BYTES[weights],
        copies=copies,
        ranks=ranks,
    )
    settings.faults.raise_if_any()
    return dimensions


def _ranks(settings: PlannedSettings, device: str) -> PlannedRanks:
    """Ranks of the learner; those of one machine without GPUs have the same memory."""
    count, virtual = settings.count("run.ranks"), settings.count("run.virtual_ranks", least=0, default=0)
    apart = device != "cpu" or settings.given("cluster.learner")
    return PlannedRanks(
        count=count, tensor=settings.count("run.tensor"), virtual=virtual, beside=0 if apart else count - 1
    )


def _lengths(recipe: PlannedRecipe, settings: PlannedSettings, context: int, longest: int | None) -> tuple[int, int]:
    """Tokens of the longest text, and those of its prompt."""
    if longest is not None and not 1 <= longest <= context:
        settings.faults.add(f"--longest-text {longest}: the model reads texts of 1 to {context:,} tokens")
    if not recipe.writes:
        return longest or context, 0
    answer = settings.count("rollout.max_tokens")
    if answer >= context:
        settings.faults.add(
            f"rollout.max_tokens = {answer}: the model reads {context:,} tokens, and none is left for a prompt; lower "
            "it, or use a model with more positions"
        )
    answers = recipe.answers * answer
    if longest is not None and answers >= longest:
        settings.faults.add(
            f"--longest-text {longest} with rollout.max_tokens = {answer}: no token is left for the prompt; "
            "a longest text is a prompt with its answer"
        )
    whole = longest or min(context, settings.count("rollout.context", default=ASSUMED_PROMPT_TOKENS + answers))
    return whole, max(1, whole - answers)


def _weights(settings: PlannedSettings) -> NumberType:
    """Type of the weights; training refuses the same beside those in bfloat16."""
    if settings.choice("model.weights", _TYPES) == "float32":
        return "float32"
    beside = 'with model.weights = "bfloat16"'
    if settings.given("model.lora"):
        settings.faults.add(f'model.lora {beside}: merging would round the adapter away; keep "float32"')
    if settings.choice("model.compute", ("auto", *_TYPES)) == "float32":
        settings.faults.add(f'model.compute = "float32" {beside}: products keep the type of the weights; remove it')
    lr = settings.number("learner.lr", default=MIN_LR_WITHOUT_MASTER_WEIGHTS)
    if lr < MIN_LR_WITHOUT_MASTER_WEIGHTS:
        settings.faults.add(
            f'learner.lr = {lr:g} {beside}: most weights would round such steps away; keep "float32", or take at least '
            f"{MIN_LR_WITHOUT_MASTER_WEIGHTS:g}"
        )
    return "bfloat16"


def _compute(settings: PlannedSettings, weights: NumberType, device: str, processor: ProcessorTraits) -> NumberType:
    """Type of the products' numbers; `auto` is resolved by what the processor can do."""
    asked = settings.choice("model.compute", ("auto", *_TYPES))
    if asked != "auto":
        return "bfloat16" if asked == "bfloat16" else "float32"
    if weights == "bfloat16" or settings.choice("model.exactness", _EXACTNESS) == "bitwise":
        return weights
    return "bfloat16" if device == "cuda" or processor.bfloat16 else "float32"


def _path(
    settings: PlannedSettings, shape: PlannedDecoder, device: str, processor: ProcessorTraits, longest: int
) -> KernelPath:
    if device == "cuda":
        return "fused"
    whole = shape.family == "olmoe"  # its norm is over all heads together
    parity = settings.choice("model.exactness", _EXACTNESS) == "parity"
    fits = parity and not whole and longest <= COMPILED_TEXT_TOKENS
    return "compiled" if fits and processor.compiled else "torch"


def _trained_and_copies(
    recipe: PlannedRecipe, settings: PlannedSettings, shape: PlannedDecoder, weights: NumberType, device: str
) -> tuple[int | None, dict[str, int]]:
    """Trained numbers (None: all), and the bytes of everything else."""
    count, size = shape.parameters, NUMBER_BYTES[weights]
    found: dict[str, int] = {}
    trained = None
    if settings.given("model.lora"):
        rank = settings.count("model.lora.rank")
        trained, adapted = adapter_sizes(shape, rank, settings.words("model.lora.layers"))
        found |= adapter_copies(trained, adapted, weights)
    nudged = settings.number("algorithm.kl") > 0 or settings.number("algorithm.kl_in_reward.weight") > 0
    nudged = nudged or settings.number("algorithm.correction.first_stage_steps") > 0
    if recipe.writes and nudged and trained is None:
        found["reference policy"] = count * size
    if settings.flag("algorithm.restart"):
        found["first policy"] = count * size
    if settings.given("evaluation"):
        found["copy of the evaluation's engine"] = count * _engine_bytes(settings, device, runner="auto")
    if settings.number("samples.prompts") > 0:
        found["start, while the distance from it is measured"] = count * size
    for name, copies in recipe.networks.items():
        of_a_folder = name == "critic" and settings.given("algorithm.critic.path")
        found[name] = count * size * (copies - of_a_folder)
    return trained, {name: each for name, each in found.items() if each}


def _generation(
    settings: PlannedSettings, prompt: int, whole: int, weights: NumberType, device: str
) -> GenerationSettings | None:
    """The embedded engine; None where a server writes."""
    runner = settings.words("rollout.runner") if settings.given("rollout.runner") else "auto"
    if not isinstance(runner, str) or settings.given("rollout.runner.kind"):
        return None
    exactness = settings.choice("model.exactness", _EXACTNESS)
    kv_cache = settings.choice("rollout.kv_cache", ("auto", "bfloat16", "int8"))
    table = settings.given("rollout.max_staleness.steps")
    steps = settings.count("rollout.max_staleness.steps" if table else "rollout.max_staleness", least=0, default=0)
    return GenerationSettings(
        concurrent=settings.count("rollout.max_concurrent"),
        prompt_tokens=prompt,
        answer_tokens=whole - prompt,
        weights_bytes=_engine_bytes(settings, device, runner=runner, is_stale=steps > 0),
        layout=engine_layout(device=device, exactness=exactness, runner=runner),
        cache=cache_type(device=device, runner=runner, weights=weights, kv_cache=kv_cache),
        page_tokens=_GPU_PAGE if device == "cuda" else _CPU_PAGE,
        sleeps=settings.flag("rollout.sleep"),
        may_sleep=steps == 0,
    )


def _engine_bytes(settings: PlannedSettings, device: str, *, runner: str, is_stale: bool = False) -> int:
    return engine_weight_bytes(
        device=device,
        exactness=settings.choice("model.exactness", _EXACTNESS),
        runner=runner,
        weights=settings.choice("model.weights", _TYPES),
        compute=settings.choice("model.compute", ("auto", *_TYPES)),
        is_stale=is_stale,
    )
