"""Numbers of a decoder that memory and time follow from, and the parameters that they make.

Read from a Hugging Face `config.json` without the rules of `hone.models`: a family that hone does not run can be
planned too, and is said to be a guess.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from hone.core.errors import DataError, ErrorCollector

PLANNED_FAMILIES: Final = (
    "llama", "mistral", "ministral3", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3", "olmo2", "olmo3",
    "granite", "glm", "glm4", "cohere", "cohere2", "youtu", "minicpm3", "qwen3_5_text", "qwen3_moe",
    "mixtral", "olmoe", "deepseek_v3",
)  # fmt: skip
"""Families whose shapes hone runs; others are planned as the nearest of them."""
QK_NORM_FAMILIES: Final = ("qwen3", "qwen3_5_text", "qwen3_moe", "gemma3_text", "olmo2", "olmo3", "olmoe")
"""Families that normalise queries and keys."""
_WHOLE_NORM_FAMILIES: Final = ("olmo2", "olmo3", "olmoe")
"""Families among them whose norm is over all heads together."""
_LAYER_NORMS: Final[Mapping[str, tuple[int, int]]] = {
    "gemma2": (2, 2), "gemma3_text": (2, 2), "glm4": (2, 2), "olmo2": (0, 2), "olmo3": (0, 2), "cohere": (1, 0),
    "cohere2": (1, 0),
}  # fmt: skip
"""Norms before and after attention and MLP, where they are not two before."""
_LATENT_SIZES: Final = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_LATENTS: Final[Mapping[str, tuple[int, int, int, int, int]]] = {
    "youtu": (1536, 512, 128, 64, 128), "minicpm3": (768, 256, 64, 32, 0), "deepseek_v3": (1536, 512, 128, 64, 128),
}  # fmt: skip
"""Families with latent attention -> its `_LATENT_SIZES` where `config.json` does not say; 0: hidden size over heads."""
_TIED_FAMILIES: Final = ("gemma2", "gemma3_text", "smollm3", "cohere", "cohere2", "youtu", "minicpm3")
"""Families whose output projection is the embedding, where `config.json` does not say."""
_HEAD_DIMS: Final[Mapping[str, int]] = {
    "qwen3": 128, "qwen3_moe": 128, "ministral3": 128, "glm": 128, "glm4": 128, "gemma2": 256, "gemma3_text": 256,
    "qwen3_5_text": 256,
}  # fmt: skip
"""Features of a head where `config.json` does not say and they are not its width over the heads."""
_DELTA_SIZES: Final[Mapping[str, int]] = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
"""Sizes of layers of linear attention (`qwen3_5_text`), where `config.json` does not say."""
_SIZES: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_MOST: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDecoder:
    """Sizes of a decoder."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Inner features of a layer's MLP, or of each expert."""
    vocab: int
    tied: bool
    """The output projection is the embedding."""
    qk_norm: bool = False
    qkv_bias: bool = False
    experts: int = 0
    """Experts of a layer; 0: dense."""
    experts_per_token: int = 0
    shared: int = 0
    """Inner features of the experts that every token goes to."""
    dense_layers: int = 0
    """The first so many layers have an MLP in the place of experts."""
    dense: int = 0
    """Inner features of their MLP."""
    latent: int = 0
    """Features of the latent that keys and values of latent attention are made of; 0: they are heads. Then `kv_heads`
    is 1, and `head_dim` has the latent and the rotary key."""
    query_latent: int = 0
    """Features of the latent that its queries are made of; 0: they are made of the stream."""
    plain: int = 0
    """Features of a head's query that do not turn."""
    value: int = 0
    """Features of a head's value."""
    linear_layers: int = 0
    """Layers of linear attention, which have a state in the place of keys and values; the others have a gate then."""
    groups: int = 0
    """Heads of their queries and keys."""
    states: int = 0
    """Heads of their values, each with a state."""
    state_key: int = 0
    """Features of their keys."""
    state_value: int = 0
    """Features of their values."""
    inputs: int = 0
    """Tokens that the convolution before their states sees."""

    @property
    def is_linear(self) -> bool:
        """Whether all layers are of linear attention."""
        return self.linear_layers == self.layers > 0

    @property
    def state_values(self) -> int:
        """Features of all values of a layer of linear attention."""
        return self.states * self.state_value

    @property
    def channels(self) -> int:
        """Features of all its queries, keys and values."""
        return 2 * self.groups * self.state_key + self.state_values

    @property
    def state_numbers(self) -> int:
        """Numbers of the states of a text: the last inputs of each convolution, and a matrix for each head; and how
        many tokens they have seen."""
        kept = self.inputs * self.channels + self.state_key * self.state_values
        return 1 + self.linear_layers * kept if self.linear_layers else 0

    @property
    def turned(self) -> int:
        """Features of the rotary key of latent attention."""
        return self.head_dim - self.latent

    @property
    def latent_projections(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the projections of latent attention; empty where keys and values are heads."""
        if not self.latent:
            return {}
        queries, before = self.heads * (self.plain + self.turned), self.query_latent
        first = {"q_proj": (queries, self.hidden)}
        if before:
            first = {"q_a_proj": (before, self.hidden), "q_b_proj": (queries, before)}
        return first | {
            "kv_a_proj_with_mqa": (self.head_dim, self.hidden),
            "kv_b_proj": (self.heads * (self.plain + self.value), self.latent),
            "o_proj": (self.hidden, self.heads * self.value),
        }

    @property
    def layer_norms(self) -> tuple[int, int]:
        """Norms of a layer before attention and MLP, and after."""
        return _LAYER_NORMS.get(self.family, (2, 0))

    @property
    def bounds_scores(self) -> bool:
        """Whether the scores of attention are bounded."""
        return self.family == "gemma2"

    @property
    def fits_kernels(self) -> bool:
        """Whether the compiled kernels of training compute such layers; not bounded scores, latents, nor states."""
        return not self.bounds_scores and not self.latent and not self.states

    @property
    def norms_whole(self) -> bool:
        """Whether queries and keys are normalised over all heads together."""
        return self.family in _WHOLE_NORM_FAMILIES

    @property
    def query_width(self) -> int:
        """Features of all queries."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Features of all keys."""
        return self.kv_heads * self.head_dim

    @property
    def attention_weights(self) -> int:
        """Weights of a layer's linear projections around attention."""
        if self.latent:
            return sum(rows * columns for rows, columns in self.latent_projections.values())
        if self.is_linear:
            return self.hidden * (self.channels + 2 * self.state_values + 2 * self.states)
        gates = self.query_width if self.states else 0
        return self.hidden * (2 * (self.query_width + self.key_width) + gates)

    @property
    def mlp_weights(self) -> int:
        """Weights of a layer's MLP, or of all its experts."""
        return 3 * self.hidden * (self.intermediate * max(1, self.experts) + self.shared)

    @property
    def kinds_of_layers(self) -> tuple[tuple[int, "PlannedDecoder"], ...]:
        """Numbers of layers of each kind, and a decoder of that kind alone; the last layer's is the last."""
        if 0 < self.linear_layers < self.layers:
            rest = self.layers - self.linear_layers
            linear = replace(self, layers=self.linear_layers)
            return (self.linear_layers, linear), (rest, replace(self, layers=rest, linear_layers=0))
        if not self.dense_layers:
            return ((self.layers, self),)
        mlps = replace(self, experts=0, experts_per_token=0, shared=0, dense_layers=0, intermediate=self.dense)
        return (self.dense_layers, mlps), (self.layers - self.dense_layers, replace(self, dense_layers=0))

    @property
    def layer_weights(self) -> int:
        """Weights of a layer's linear projections, the router's aside."""
        return self.attention_weights + self.mlp_weights

    @property
    def vocabulary_weights(self) -> int:
        """Weights of the embedding."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters in all: projections, norms, biases, routers, embedding and output projection."""
        norms = sum(self.layer_norms) * self.hidden + self.query_latent + self.latent
        layers = sum(
            count * (one.layer_weights + norms + one.head_numbers + self.hidden * one.experts)
            for count, one in self.kinds_of_layers
        )
        return layers + self.vocabulary_weights * (1 if self.tied else 2) + self.hidden

    @property
    def head_numbers(self) -> int:
        """Parameters of a layer beside its projections and the norms of the stream: norms of heads, biases, filters."""
        if self.is_linear:
            return self.channels * self.inputs + 2 * self.states + self.state_value
        biased = self.qkv_bias and not self.latent
        return (self._norm_of_heads() if self.qk_norm else 0) + (self.query_width + 2 * self.key_width) * biased

    def coded_bytes(self, bits: int) -> int:
        """Bytes of the weights with linear layers, embedding and head in codes of `bits`: a scale of 16 bits for 32
        inputs, outputs in blocks of 32; the rest in float32."""
        outputs = [(self.vocab, self.hidden)] * (1 if self.tied else 2)
        for count, one in self.kinds_of_layers:
            gates = one.query_width if one.states else 0
            own = [(one.query_width + gates + 2 * one.key_width, one.hidden), (one.hidden, one.query_width)]
            if one.is_linear:
                own = [(one.channels + one.state_values, one.hidden), (one.hidden, one.state_values)]
            own = [*one.latent_projections.values()] or own
            outputs += [*own, (2 * one.intermediate, one.hidden), (one.hidden, one.intermediate)] * count
        coded = sum(-(-rows // 32) * columns * (4 * bits + 2) for rows, columns in outputs)
        return coded + 4 * (self.parameters - sum(rows * columns for rows, columns in outputs))

    def update_numbers(self, rank: int, layers: Collection[str], *, multiples: tuple[int, int] = (1, 1)) -> int:
        """Numbers of a layer's low-rank updates beside codes, A and B of the linear layers with one input together,
        with the zeros between them. `multiples`: paddings of A's and B's ranks."""
        joint, gates = self.query_width + 2 * self.key_width, 2 * self.intermediate
        heads = ((("q_proj", "k_proj", "v_proj"), self.hidden, joint), (("o_proj",), self.query_width, self.hidden))
        latents = tuple(((name,), inputs, rows) for name, (rows, inputs) in self.latent_projections.items())
        stacks = (
            *(latents or heads),
            (("gate_proj", "up_proj"), self.hidden, gates), (("down_proj",), self.intermediate, self.hidden),
        )  # fmt: skip
        ranks = ((rank * len({*names} & {*layers}), inputs, outputs) for names, inputs, outputs in stacks)
        of_a, of_b = multiples
        return sum(-(-r // of_a) * of_a * inputs + -(-r // of_b) * of_b * outputs for r, inputs, outputs in ranks)

    @property
    def active_parameters(self) -> int:
        """Parameters that a token is multiplied by: of the experts, those that it goes to."""
        idle = max(0, self.experts - self.experts_per_token)
        return self.parameters - (self.layers - self.dense_layers) * 3 * self.hidden * self.intermediate * idle

    @property
    def matmul_weights(self) -> int:
        """Weights that a token is multiplied by: `active_parameters` without the embedding's rows, which are read."""
        return self.active_parameters - (0 if self.tied else self.vocabulary_weights)

    def part(self, ranks: int) -> "PlannedDecoder":
        """The decoder of one of `ranks` that compute each layer together: a part of its heads and MLP columns."""
        if ranks == 1:
            return self
        return replace(
            self, heads=self.heads // ranks, kv_heads=self.kv_heads // ranks, intermediate=self.intermediate // ranks
        )

    def _norm_of_heads(self) -> int:
        return self.query_width + self.key_width if self.norms_whole else 2 * self.head_dim


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The keys of the decoder: those of `text_config`, where a model of text and pictures has its sizes there."""
    inner = config.get("text_config")
    if "hidden_size" in config or not isinstance(inner, dict):
        return config
    return {**config, **cast("dict[str, object]", inner)}


def shape_from_hf(config: Mapping[str, object], *, where: str = "config.json") -> PlannedDecoder:
    """Shape of a Hugging Face config. Raises DataError with every missing or impossible size."""
    config = text_config(config)
    faults = ErrorCollector(DataError)
    sizes = {name: _size(config, name, where, faults) for name in _SIZES}
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    family = str(config.get("model_type", "unknown"))
    default_dim = _HEAD_DIMS.get(family, hidden // heads)
    experts = _first(config, ("num_experts", "num_local_experts", "n_routed_experts"), 0, where, faults)
    deepseek = {"shared": "n_shared_experts", "dense_layers": "first_k_dense_replace"}
    few = {
        name: _first(config, (key,), 0, where, faults) if family == "deepseek_v3" and config.get(key) else 0
        for name, key in deepseek.items()
    }
    width = _first(config, ("moe_intermediate_size",), sizes["intermediate_size"], where, faults)
    query_latent, latent, plain, turned, value = _latent_sizes(config, family, hidden // heads, where, faults)
    shape = PlannedDecoder(
        family=family,
        layers=sizes["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=1 if latent else _first(config, ("num_key_value_heads",), heads, where, faults),
        head_dim=latent + turned if latent else _first(config, ("head_dim",), default_dim, where, faults),
        intermediate=width if experts else sizes["intermediate_size"],
        shared=few["shared"] * width,
        dense_layers=few["dense_layers"],
        dense=sizes["intermediate_size"] if few["dense_layers"] else 0,
        vocab=sizes["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", family in _TIED_FAMILIES)),
        qk_norm=family in QK_NORM_FAMILIES,
        qkv_bias=family == "qwen2" or bool(config.get("attention_bias", family in ("glm", "glm4"))),
        experts=experts,
        experts_per_token=_first(config, ("num_experts_per_tok",), 1 if experts else 0, where, faults),
        latent=latent, query_latent=query_latent, plain=plain, value=value,
        **_delta_sizes(config, family, sizes["num_hidden_layers"], where, faults),
    )  # fmt: skip
    if not faults.messages:
        faults.extend(_contradictions(shape, where))
    faults.raise_if_any()
    return shape


def _latent_sizes(
    config: Mapping[str, object], family: str, head_width: int, where: str, faults: ErrorCollector
) -> list[int]:
    """The `_LATENT_SIZES` of a family that has them, else zeros. Queries without a latent have the key, and null."""
    if family not in _LATENTS:
        return [0] * len(_LATENT_SIZES)
    usual = [default or head_width for default in _LATENTS[family]]
    usual[0] = 0 if config.get("q_lora_rank", 0) is None else usual[0]
    return [_first(config, (key,), size, where, faults) for key, size in zip(_LATENT_SIZES, usual, strict=True)]


def _delta_sizes(
    config: Mapping[str, object], family: str, layers: int, where: str, faults: ErrorCollector
) -> dict[str, int]:
    """Sizes of linear attention, by the names of `PlannedDecoder`; none for a family without it."""
    if family != "qwen3_5_text":
        return {}
    sizes = [_first(config, (key,), usual, where, faults) for key, usual in _DELTA_SIZES.items()]
    kinds, every = config.get("layer_types"), sizes.pop()
    linear = layers - layers // every
    if isinstance(kinds, list):
        linear = cast("list[object]", kinds)[:layers].count("linear_attention")
    names = ("groups", "states", "state_key", "state_value", "inputs")
    return {"linear_layers": linear, **dict(zip(names, sizes, strict=True))}


def _contradictions(shape: PlannedDecoder, where: str) -> list[str]:
    """Sizes that no decoder has beside each other."""
    heads, groups, faults = shape.heads, shape.kv_heads, list[str]()
    if heads % groups:
        faults.append(f"{where}: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({groups})")
    if not shape.head_dim:
        faults.append(f"{where}: hidden_size ({shape.hidden}) must be at least num_attention_heads ({heads})")
    if shape.experts_per_token > shape.experts:
        faults.append(
            f"{where}: num_experts_per_tok ({shape.experts_per_token}) must be at most the experts ({shape.experts})"
        )
    return faults


def _size(config: Mapping[str, object], name: str, where: str, faults: ErrorCollector) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MOST:
        most = " and below 2^40" if isinstance(value, int) and value >= _MOST else ""
        faults.add(f"{where}: {name} must be a whole number of at least 1{most}, got {value!r}")
        return 1
    return value


def _first(
    config: Mapping[str, object], names: tuple[str, ...], default: int, where: str, faults: ErrorCollector
) -> int:
    """The first of these keys that is given, or the default."""
    present = [name for name in names if config.get(name) is not None]
    return _size(config, present[0], where, faults) if present else default
