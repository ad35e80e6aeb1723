"""Settings of a mixture of experts, and their keys in a Hugging Face `config.json`: Qwen3-MoE, Mixtral, OLMoE and
DeepSeek-V3.

Every layer of such a model has experts, but for the first ones of a DeepSeek: configs with dense layers among the
others are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ErrorCollector
from hone.models.language.rope import is_number

EXPERT_FAMILIES: Final = ("qwen3_moe", "mixtral", "olmoe", "deepseek_v3")
"""Families whose MLPs are mixtures of experts."""
MAX_EXPERTS: Final = 65534
"""Largest number of experts: routes are stored in 16 bits, and one value means that none was recorded."""
SELECTION_BIAS: Final = "router_selection_bias"
"""Key of hone: true where the folder holds biases of the routers' choices (see `ExpertsConfig.selection_bias`)."""

_COUNT: Final = ("num_experts", "num_local_experts")
"""Both spellings mean the same in every family; transformers 5 writes either."""
_DEEPSEEK_COUNT: Final = "n_routed_experts"
"""A third one, of DeepSeek alone."""
_WRITTEN_COUNT: Final = {
    "qwen3_moe": "num_experts", "mixtral": "num_local_experts", "olmoe": "num_experts",
    "deepseek_v3": _DEEPSEEK_COUNT,
}  # fmt: skip
_EXPERT_TRAINING: Final = ("router_aux_loss_coef", "output_router_logits", "router_jitter_noise")
"""Keys that change the training of transformers and no output."""
_DENSE_LAYERS: Final[Mapping[str, object]] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
"""Keys of Qwen3-MoE for dense layers among the others -> the value at which there are none."""
_EXPERT_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen3_moe": ("moe_intermediate_size", "norm_topk_prob", *_DENSE_LAYERS),
    "mixtral": (),
    "olmoe": ("norm_topk_prob",),
    "deepseek_v3": (
        _DEEPSEEK_COUNT, "moe_intermediate_size", "norm_topk_prob", "n_shared_experts", "n_group", "topk_group",
        "routed_scaling_factor",
        "first_k_dense_replace", "scoring_func", "topk_method", "moe_layer_freq",
    ),
}  # fmt: skip
_DEEPSEEK_NUMBERS: Final = {
    "shared": "n_shared_experts", "groups": "n_group", "groups_used": "topk_group",
    "dense_layers": "first_k_dense_replace",
}  # fmt: skip
"""Fields of `ExpertsConfig` that are whole numbers -> their keys."""
_DEEPSEEK_FIXED: Final[Mapping[str, object]] = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1,
}  # fmt: skip
"""Keys of DeepSeek's files -> the value that is computed, as transformers does."""

WRITTEN_KEYS: Final = (
    *_COUNT, _DEEPSEEK_COUNT, "num_experts_per_tok", SELECTION_BIAS, *_EXPERT_READ["qwen3_moe"],
    *_DEEPSEEK_NUMBERS.values(), "routed_scaling_factor",
)  # fmt: skip
"""Keys that a saved `config.json` has from the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Mixture of experts in place of each MLP: a router chooses `per_token` of `count` gated MLPs for each token, and
    adds their outputs, weighted by its probabilities of them (Shazeer et al., 2017)."""

    count: int
    per_token: int
    width: int
    """Inner features of one expert."""
    normalise_gates: bool = True
    """Divide the weights of a token's experts by their sum."""
    selection_bias: bool = False
    """The choice adds a bias to each expert's probability, the weights do not (Wang et al., 2024)."""
    sigmoid: bool = False
    """An expert's probability is the sigmoid of its score, whatever the others' are (DeepSeek-V3, 2024); else a softmax
    makes them."""
    groups: int = 1
    """Experts are in so many groups of neighbours."""
    groups_used: int = 1
    """A token's experts are of so many groups: those whose two best experts have the largest sum."""
    factor: float = 1.0
    """Factor on the weights of a token's experts."""
    shared: int = 0
    """Experts that every token goes to, unweighted, beside the others."""
    dense_layers: int = 0
    """The first so many layers have an MLP in the place of experts."""

    def add_faults(self, faults: ErrorCollector) -> None:
        """Add what does not make a mixture."""
        for name, value in (("count", self.count), ("per_token", self.per_token), ("width", self.width)):
            if value < 1:
                faults.add(f"model experts.{name} must be at least 1, got {value}")
        if self.groups < 1 or self.count % self.groups or (self.groups > 1 and self.count // self.groups < 2):
            faults.add(
                f"model experts.groups {self.groups} (n_group) must cut experts.count {self.count} into equal groups "
                "of at least 2"
            )
        elif not 1 <= self.groups_used <= self.groups:
            faults.add(
                f"model experts.groups_used {self.groups_used} (topk_group) must be 1 to {self.groups} (n_group)"
            )
        elif self.per_token > self.groups_used * (self.count // self.groups) and self.per_token <= self.count:
            faults.add(
                f"model experts.per_token {self.per_token} (num_experts_per_tok) is above the "
                f"{self.groups_used * (self.count // self.groups)} experts of {self.groups_used} groups (topk_group)"
            )
        if self.per_token > self.count:
            faults.add(
                f"model experts.per_token {self.per_token} (num_experts_per_tok) is above experts.count {self.count} "
                "(num_experts): a token cannot go to more experts than there are"
            )
        if self.count > MAX_EXPERTS:
            faults.add(f"model experts.count {self.count} is above {MAX_EXPERTS}, the most that a route can name")

    def to_hf(self, family: str) -> dict[str, object]:
        """Keys of a `config.json`."""
        written: dict[str, object] = {_WRITTEN_COUNT[family]: self.count, "num_experts_per_tok": self.per_token}
        if "norm_topk_prob" in _EXPERT_READ[family]:
            written["norm_topk_prob"] = self.normalise_gates
        if family == "qwen3_moe":
            written |= {"moe_intermediate_size": self.width, **_DENSE_LAYERS}
        if family == "deepseek_v3":
            whole = {"shared": self.shared, "groups": self.groups, "groups_used": self.groups_used,
                     "dense_layers": self.dense_layers}  # fmt: skip
            written |= {_DEEPSEEK_NUMBERS[name]: value for name, value in whole.items()}
            return {**written, "moe_intermediate_size": self.width, "routed_scaling_factor": self.factor}
        return {**written, **({SELECTION_BIAS: True} if self.selection_bias else {})}


class LossBalance(Config):
    """A loss that grows with the load of the busiest experts."""

    loss: float = Field(gt=0)
    """Weight of the term."""


class BiasBalance(Config):
    """Biases of the choice that are moved after each step."""

    bias: float = Field(gt=0)
    """Step of the biases, as a probability."""


class ExpertTrainingConfig(Config):
    """Training of a mixture of experts: routing replay, and the balance of load."""

    replay: bool = True
    """The trainer sends each token of an answer to the experts that the engine sent it to; its own router's
    probabilities weigh them."""
    balance: LossBalance | BiasBalance | None = None
    """What evens out the load: `{ loss = 0.001 }`, a term that grows with the load of the busiest experts (Fedus et
    al., 2021), or `{ bias = 0.001 }`, a bias of the choice that is moved after each step, without a gradient (Wang et
    al., 2024); the saved folder holds it, and no other library reads it."""


def expert_keys(family: str) -> frozenset[str]:
    """Keys of a family that are followed here, or that change no output."""
    if family not in EXPERT_FAMILIES:
        return frozenset()
    return frozenset((*_COUNT, "num_experts_per_tok", *_EXPERT_READ[family], *_EXPERT_TRAINING, SELECTION_BIAS))


def experts_from_hf(
    config: Mapping[str, object], family: str, *, where: str, faults: ErrorCollector
) -> ExpertsConfig | None:
    """The experts of a `config.json`; None for a dense family, or where something is wrong, which is added to `faults`.

    Every number has to be in the file: defaults of a family are those of one release of transformers.
    """
    if family not in EXPERT_FAMILIES:
        return None
    spellings = (_DEEPSEEK_COUNT, *_COUNT) if family == "deepseek_v3" else _COUNT
    counts = {key: config[key] for key in spellings if config.get(key) is not None}
    if len({repr(value) for value in counts.values()}) > 1:
        both = " and ".join(f"{key} {value!r}" for key, value in counts.items())
        faults.add(f"{where}: {both} disagree; keep the right one")
    width_key = "moe_intermediate_size" if "moe_intermediate_size" in _EXPERT_READ[family] else "intermediate_size"
    numbers = {
        next(iter(counts), spellings[0]): next(iter(counts.values()), None),
        "num_experts_per_tok": config.get("num_experts_per_tok"),
        width_key: config.get(width_key),
    }
    wrong = {
        key: value
        for key, value in numbers.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    }
    faults.extend(
        f"{where}: {key} must be a whole number of at least 1, got {value!r}"
        for key, value in wrong.items()
        if key != "intermediate_size"
    )
    for key, off in _DENSE_LAYERS.items() if family == "qwen3_moe" else ():
        if config.get(key) is not None and config[key] != off:
            faults.add(
                f"{where}: {key} {config[key]!r} is not supported: every layer must have experts; known: {off!r}"
            )
    deepseek = _deepseek_experts(config, where, faults) if family == "deepseek_v3" else {}
    if wrong or faults.messages:
        return None
    count, per_token, width = (cast(int, value) for value in numbers.values())
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        width=width,
        normalise_gates=family == "mixtral" or bool(config.get("norm_topk_prob", False)),
        selection_bias=family == "deepseek_v3" or bool(config.get(SELECTION_BIAS, False)),
        **deepseek,  # type: ignore[arg-type]
    )


def _deepseek_experts(config: Mapping[str, object], where: str, faults: ErrorCollector) -> dict[str, object]:
    """Fields that DeepSeek alone has. Every number has to be in the file."""
    whole = {name: config.get(key) for name, key in _DEEPSEEK_NUMBERS.items()}
    for name, value in whole.items():
        least = 0 if name == "dense_layers" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            faults.add(f"{where}: {_DEEPSEEK_NUMBERS[name]} must be a whole number of at least {least}, got {value!r}")
    factor = config.get("routed_scaling_factor")
    if not is_number(factor) or not cast(float, factor) > 0:
        faults.add(f"{where}: routed_scaling_factor must be a number > 0, got {factor!r}")
    faults.extend(
        f"{where}: {key} {config[key]!r} is not supported; known: {only!r}"
        for key, only in _DEEPSEEK_FIXED.items()
        if config.get(key) is not None and config[key] != only
    )
    return {"sigmoid": True, "factor": factor, **whole}
