"""The one description of a text run for its memory plan: from the settings by dotted key and the facts of its recipe.

`hone.text.memory` gives it a checked config and the lengths of its data; `hone.cli.closed_plan` the settings of a file
alone, of which nothing is imported, read or loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Final, cast

from hone.core.errors import ConfigError, ErrorCollector
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import PlannedRanks
from hone.planner.run_memory import CacheType, GenerationSettings, RunDimensions, WeightLayout
from hone.planner.training_step import COMPILED_TEXT_TOKENS, NUMBER_BYTES, KernelPath, NumberType, StepSettings

PLANNED_KEYS: Final = (
    "algorithm.batch", "algorithm.correction.first_stage_steps", "algorithm.critic.path", "algorithm.entropy",
    "algorithm.kl", "algorithm.kl_in_reward.weight", "algorithm.restart", "batch", "evaluation",
    "evaluation.max_concurrent", "learner.lr",
    "learner.micro_batch_tokens", "learner.minibatches", "model.activations",
    "model.compute", "model.exactness", "model.lora.alpha", "model.lora.layers", "model.lora.rank", "model.path",
    "model.weights", "rollout.context", "rollout.kv_cache", "rollout.max_concurrent",
    "rollout.max_staleness", "rollout.max_staleness.steps", "rollout.max_tokens", "rollout.prompts_per_step",
    "rollout.runner", "rollout.samples_per_prompt", "rollout.sleep", "run.device", "run.ranks", "run.tensor",
    "run.virtual_ranks", "samples.prompts",
)  # fmt: skip
"""Keys of a config that memory depends on; those of a new network aside."""
PLANNED_RECIPES: Final = Path(__file__).with_name("recipes.json")
"""Defaults of the planned keys and shape of the batches, of each recipe."""
_CPU_PAGE: Final = 16
_LONG_PAGE: Final = 256
"""On a GPU, and where a page has a state."""
_MOST: Final = 1 << 40
_EVALUATED_TOGETHER: Final = 64
"""Prompts that an evaluation answers at the same time by default (`hone.text.evaluate.text_eval`)."""
_ATTENTION_LAYERS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP_LAYERS: Final = ("gate_proj", "up_proj", "down_proj")
_LAYER_GROUPS: Final = {"all": (*_ATTENTION_LAYERS, *_MLP_LAYERS), "attention": _ATTENTION_LAYERS, "mlp": _MLP_LAYERS}
TYPES: Final = ("float32", "bfloat16")
CODE_BITS: Final = {"int8": 8, "int4": 4}
"""Bits of weights in codes (`hone.models.language.quantised_linear`); tests hold the two to be equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """A recipe as far as memory depends on it."""

    rows: Sequence[str] = ()
    """Keys whose product is the number of texts of an iteration; none: no step by gradient that could be planned."""
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
    greedy: bool = False
    """Each prompt is answered greedily as well."""
    moments: int = 2
    networks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Further networks of the policy's size: copies of the weights in each, by name."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Defaults of the keys that are planned with."""
    presets: Mapping[str, Mapping[str, object]] = field(default_factory=dict[str, Mapping[str, object]])
    """What a preset sets of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLengths:
    """Lengths of the longest texts of a run, in tokens."""

    prompt: int
    """Longest prompt; 0: nothing is asked."""
    whole: int
    """Longest prompt with its answer, or longest example."""
    prompts: int = _MOST
    """Most prompts that the data have for answers between the steps."""
    drawn: int | None = None
    """Longest such prompt with its answer; None: as `whole`."""
    held_out: "TextLengths | None" = None
    """Those of the evaluation's prompts; None: as these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorTraits:
    """What a machine can do, as far as memory depends on it."""

    compiled: bool
    """hone's kernels can be compiled here."""
    bfloat16: bool
    """The device of the run has products of bfloat16 numbers."""
    tiles: bool
    """It multiplies by tiles (AMX)."""
    widens: bool = False
    """It multiplies bfloat16 by float32 matrices (x86 without AVX-512)."""
    halves: bool = False
    """It multiplies numbers that are rounded to bfloat16 with float32 sums (AMX, or AVX-512 BF16 of AMD)."""


class PlannedSettings:
    """Settings by dotted key, read with their types; every fault is collected with the place of its key."""

    def __init__(self, values: Mapping[str, object], where: Callable[[str], str] = lambda _: "the config") -> None:
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
        message = f"{key} in {self._where(key)} must be {wanted}, got {value!r}"
        if message not in self.faults.messages:
            self.faults.add(message)

    def runs_on(self) -> str:
        """`cpu` or `cuda`."""
        return "cuda" if str(self.words("run.device")).startswith("cuda") else "cpu"

    def weights(self) -> NumberType:
        """Type of the weights; beside codes, of all else."""
        chosen = self.choice("model.weights", (*TYPES, *CODE_BITS))
        return "float32" if chosen in CODE_BITS else cast("NumberType", chosen)

    def code_bits(self) -> int:
        """Bits of the weights' codes; 0: numbers."""
        return CODE_BITS.get(self.choice("model.weights", (*TYPES, *CODE_BITS)), 0)

    def replays(self) -> bool:
        """Answers of a recorded run are drawn again."""
        return self._values.get("rollout.max_staleness.interleaving") not in (None, "record")

    def is_bitwise(self) -> bool:
        """The trainer's products are those of the engine, to the bit."""
        return self.choice("model.exactness", ("parity", "bitwise")) == "bitwise"


def setting_leaves(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Values of nested tables by dotted key, without those that are None."""
    leaves: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            leaves |= setting_leaves(cast("Mapping[str, object]", value), f"{prefix}{key}.")
        elif value is not None:
            leaves[f"{prefix}{key}"] = value
    return leaves


def step_rows(recipe: PlannedRecipe, settings: PlannedSettings) -> int:
    """Texts of an optimizer step."""
    return max(1, recipe.factor * prod(map(settings.count, recipe.rows)) // settings.count("learner.minibatches"))


def planned_ranks(settings: PlannedSettings) -> PlannedRanks:
    """Ranks of the learner; those of one machine without GPUs have the same memory."""
    count, virtual = settings.count("run.ranks"), settings.count("run.virtual_ranks", least=0, default=0)
    apart = settings.runs_on() != "cpu" or settings.given("cluster.learner")
    return PlannedRanks(
        count=count, tensor=settings.count("run.tensor"), virtual=virtual, beside=0 if apart else count - 1
    )


def describe_run(
    recipe: PlannedRecipe,
    settings: PlannedSettings,
    shape: PlannedDecoder,
    lengths: TextLengths,
    *,
    processor: ProcessorTraits,
    adapts_adapter: bool = False,
    others: Mapping[str, int] | None = None,
) -> RunDimensions:
    """What the memory of a run depends on; faults of the settings are left in `settings.faults`.

    `adapts_adapter`: the model is an adapter that is trained further. `others`: bytes of further networks by name.
    """
    on_cpu, weights, whole = settings.runs_on() == "cpu", settings.weights(), lengths.whole
    compute = settings.choice("model.compute", ("auto", *TYPES))
    if compute == "auto":
        half = weights == "bfloat16" or (processor.bfloat16 and not settings.is_bitwise())
        compute = "bfloat16" if half else "float32"
    compiled = processor.compiled and not settings.is_bitwise() and shape.fits_kernels
    path: KernelPath = "compiled" if compiled and whole <= COMPILED_TEXT_TOKENS else "torch"
    adapter, bits, rank = None, settings.code_bits(), settings.count("model.lora.rank")
    adapted = _adapted_layers(settings.words("model.lora.layers"))
    if settings.given("model.lora"):
        adapter = adapter_sizes(shape, rank, settings.words("model.lora.layers"))
    per_parameter = _copies(recipe, settings, loads_reference=adapter is None or adapts_adapter)
    copies = {name: shape.parameters * size for name, size in per_parameter.items() if size} | dict(others or {})
    if adapter is not None:
        copies |= adapter_copies(adapter[0], 0 if bits else adapter[1], weights)
    rows, (drawing, evaluation) = step_rows(recipe, settings), _passing_engines(recipe, settings, shape, lengths)
    activations = settings.choice("model.activations", ("keep", "round_again", "recompute", "offload"))
    return RunDimensions(
        shape=shape,
        step=StepSettings(
            tokens=max(recipe.factor * whole, min(settings.count("learner.micro_batch_tokens"), rows * whole)),
            texts_together=recipe.factor,
            step_tokens=rows * whole,
            text_tokens=whole,
            chosen_tokens=whole - lengths.prompt if recipe.writes else 0,
            weights=weights,
            code_bits=bits,
            update_rank=rank * len(adapted) if bits else 0,
            update_numbers=shape.update_numbers(rank, adapted) if bits else 0,
            compute=cast("NumberType", compute),
            path=path if on_cpu else "fused",
            checkpointing=activations == "recompute",
            rounds_again=activations != "keep",
            offload=activations == "offload",
            entropy=recipe.entropy or settings.number("algorithm.entropy") > 0,
            trained_vocabulary=adapter is None,
            predicts_tokens=recipe.predicts_tokens,
            tile_scratch=on_cpu and processor.tiles,
            widens=on_cpu and processor.widens,
            halves_head=on_cpu and processor.halves,
        ),
        generation=_generation(recipe, settings, shape, lengths),
        drawing=drawing,
        evaluation=evaluation,
        trained_parameters=None if adapter is None else adapter[0],
        moments=recipe.moments,
        moment_bytes=NUMBER_BYTES[weights],
        copies=copies,
        ranks=planned_ranks(settings),
    )


def _answers_apart(settings: PlannedSettings) -> bool:
    """Replicas of a cluster write the answers, unless a record of theirs is replayed here."""
    if not settings.given("cluster") or settings.replays():
        return False
    learns_alone = settings.given("cluster.learner") and not settings.given("cluster.rollout")
    return not learns_alone and settings.count("cluster.rollout.replicas", least=0) > 0


def _staleness(settings: PlannedSettings) -> int:
    """Steps that the answers' policy may be behind; above 0 the engine writes while the policy learns."""
    table = settings.given("rollout.max_staleness.steps")
    return settings.count("rollout.max_staleness.steps" if table else "rollout.max_staleness", least=0, default=0)


def _copies(recipe: PlannedRecipe, settings: PlannedSettings, *, loads_reference: bool) -> dict[str, int]:
    """Networks of the policy's shape beside it, in bytes per parameter. `loads_reference`: the initial policy is one
    more copy; that of a new adapter is its base."""
    size = NUMBER_BYTES[settings.weights()]
    replays = settings.replays()
    penalties = ("algorithm.kl", "algorithm.kl_in_reward.weight", "algorithm.correction.first_stage_steps")
    reads_reference = max(settings.number(key) for key in penalties) > 0
    networks = dict(recipe.networks)
    if settings.given("algorithm.critic.path") and "critic" in networks:
        networks["critic"] -= 1  # the weights of its folder are counted there
    return {
        "weights to publish": size * (recipe.writes and _answers_apart(settings)),
        "versions of a replay": size * (_staleness(settings) + 1) * replays,
        "reference policy": size * (recipe.writes and reads_reference and loads_reference),
        "first policy": size * settings.flag("algorithm.restart"),
        "start, which the distance is measured from": size * (settings.number("samples.prompts") > 0) * loads_reference,
        **{name: size * count for name, count in networks.items()},
    }


def _generation(
    recipe: PlannedRecipe, settings: PlannedSettings, shape: PlannedDecoder, lengths: TextLengths
) -> GenerationSettings | None:
    """The embedded engine; None where nothing is written, or not here."""
    runner = settings.words("rollout.runner") if settings.given("rollout.runner") else "auto"
    if not recipe.writes or _answers_apart(settings):
        return None
    if not isinstance(runner, str) or settings.given("rollout.runner.kind"):
        return None
    answers = settings.count("rollout.prompts_per_step") * (
        settings.count("rollout.samples_per_prompt") + recipe.greedy
    )
    stale = _staleness(settings)
    concurrent = min(settings.count("rollout.max_concurrent"), answers * (stale + 1))
    engine = _engine(settings, shape, lengths, runner, concurrent=concurrent, is_stale=stale > 0)
    return replace(engine, sleeps=settings.flag("rollout.sleep"), may_sleep=not stale)


def _passing_engines(
    recipe: PlannedRecipe, settings: PlannedSettings, shape: PlannedDecoder, lengths: TextLengths
) -> tuple[GenerationSettings | None, GenerationSettings | None]:
    """Engines that are made between the steps: one to measure the distance from the start, and the evaluation's."""
    drawing = evaluation = None
    if drawn := min(settings.count("samples.prompts", least=0, default=0), lengths.prompts):
        asked = lengths if lengths.drawn is None else replace(lengths, whole=lengths.drawn)
        drawing = _engine(settings, shape, asked, "auto", concurrent=drawn)
    if recipe.predicts_tokens and settings.given("evaluation"):
        asked = lengths if lengths.held_out is None else lengths.held_out
        most = settings.count("evaluation.max_concurrent", default=_EVALUATED_TOGETHER)
        evaluation = _engine(settings, shape, asked, "auto", concurrent=min(most, asked.prompts))
    return drawing, evaluation


def _engine(
    settings: PlannedSettings,
    shape: PlannedDecoder,
    lengths: TextLengths,
    runner: str,
    *,
    concurrent: int,
    is_stale: bool = False,
) -> GenerationSettings:
    on_gpu, half = settings.runs_on() != "cpu", runner in ("native_bfloat16", "native_int8")
    cache = settings.choice("rollout.kv_cache", ("auto", "bfloat16", "int8"))
    if cache == "auto":  # that of its products, and bfloat16 for INT8
        cache = "bfloat16" if on_gpu or half or settings.weights() == "bfloat16" else "float32"
    layout: WeightLayout = "codes" if runner == "native_int8" else "packed"
    beside = 0  # codes of the trainer's, which are read in place
    if settings.code_bits() and not _reads_plain_weights(settings, runner):
        adapted = _adapted_layers(settings.words("model.lora.layers"))
        packed = shape.update_numbers(settings.count("model.lora.rank"), adapted, multiples=(32, 16))
        layout, beside = "plain", 4 * shape.layers * packed
    return GenerationSettings(
        concurrent=concurrent,
        prompt_tokens=lengths.prompt,
        answer_tokens=lengths.whole - lengths.prompt,
        weights_bytes=_engine_weight_bytes(settings, runner, is_stale=is_stale),
        update_bytes=beside,
        layout="plain" if _reads_plain_weights(settings, runner) else layout,
        cache=cast("CacheType", cache),
        page_tokens=_LONG_PAGE if on_gpu or shape.states else _CPU_PAGE,
    )


def _reads_plain_weights(settings: PlannedSettings, runner: str) -> bool:
    return settings.runs_on() != "cpu" or settings.is_bitwise() or runner.startswith("torch")


def _engine_weight_bytes(settings: PlannedSettings, runner: str, *, is_stale: bool = False) -> int:
    """Bytes per parameter of an embedded engine's own copy of the weights; 0 where it reads the trainer's.

    `is_stale`: it generates while the trainer updates. With `native_int8` at most 2: its embedding and head take 2,
    the layers 1.
    """
    weights = settings.weights()
    if settings.code_bits():
        return 0
    if _reads_plain_weights(settings, runner):
        rounds = weights == "float32" and settings.choice("model.compute", ("auto", *TYPES)) != "float32"
        rounded = rounds and runner != "torch_compiled" and settings.runs_on() != "cpu"
        return (NUMBER_BYTES[weights] if is_stale else 0) + (NUMBER_BYTES["bfloat16"] if rounded else 0)
    return 2 if runner in ("native_bfloat16", "native_int8") else NUMBER_BYTES[weights]


def _adapted_layers(layers: str | Sequence[str]) -> set[str]:
    return set(_LAYER_GROUPS.get(layers, ()) if isinstance(layers, str) else layers)


def adapter_sizes(shape: PlannedDecoder, rank: int, layers: str | Sequence[str]) -> tuple[int, int]:
    """Trained numbers of a low-rank adapter, rank x (inputs + outputs) of each layer; and the weights of the decoder's
    parameters that hold adapted layers: queries, keys and values are one, and so are gate and up. Experts have none."""
    wanted = _adapted_layers(layers)
    hidden, query, key, inner = shape.hidden, shape.query_width, shape.key_width, shape.intermediate
    sides = {
        "q_proj": query + hidden, "k_proj": key + hidden, "v_proj": key + hidden, "o_proj": query + hidden,
    }  # fmt: skip
    held = hidden * (query + 2 * key) * bool(wanted & {"q_proj", "k_proj", "v_proj"})
    held += hidden * query * ("o_proj" in wanted)
    if not shape.experts:
        sides |= dict.fromkeys(_MLP_LAYERS, hidden + inner)
        held += 2 * hidden * inner * bool(wanted & {"gate_proj", "up_proj"}) + hidden * inner * ("down_proj" in wanted)
    return shape.layers * rank * sum(sides[name] for name in wanted if name in sides), shape.layers * held


def adapter_copies(trained: int, adapted: int, weights: NumberType) -> dict[str, int]:
    """Bytes of what is held beside the merged weights: those that they are merged from, and the factors with their
    gradients."""
    size = NUMBER_BYTES[weights]
    parts = {"base of the adapted weights": adapted * size, "adapter with its gradients": 2 * trained * size}
    return {name: held for name, held in parts.items() if held}
