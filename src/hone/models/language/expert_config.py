"""Settings of a mixture of experts, and their keys in a Hugging Face `config.json`: Qwen3-MoE, Mixtral and OLMoE.

Every layer of such a model has experts: configs with dense layers among them are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ErrorCollector

EXPERT_FAMILIES: Final = ("qwen3_moe", "mixtral", "olmoe")
"""Families whose MLPs are mixtures of experts."""
MAX_EXPERTS: Final = 65534
"""Largest number of experts: routes are stored in 16 bits, and one value means that none was recorded."""
SELECTION_BIAS: Final = "router_selection_bias"
"""Key of hone: true where the folder holds biases of the routers' choices (see `ExpertsConfig.selection_bias`)."""

_COUNT: Final = ("num_experts", "num_local_experts")
"""Both spellings mean the same in every family; transformers 5 writes either."""
_WRITTEN_COUNT: Final = {"qwen3_moe": "num_experts", "mixtral": "num_local_experts", "olmoe": "num_experts"}
_TRAINING: Final = ("router_aux_loss_coef", "output_router_logits", "router_jitter_noise")
"""Keys that change the training of transformers and no output."""
_DENSE_LAYERS: Final[Mapping[str, object]] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
"""Keys of Qwen3-MoE for dense layers among the others -> the value at which there are none."""
_READ: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen3_moe": ("moe_intermediate_size", "norm_topk_prob", *_DENSE_LAYERS),
    "mixtral": (),
    "olmoe": ("norm_topk_prob",),
}

WRITTEN_KEYS: Final = (*_COUNT, "num_experts_per_tok", SELECTION_BIAS, *_READ["qwen3_moe"])
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

    def add_faults(self, faults: ErrorCollector) -> None:
        """Add what does not make a mixture."""
        for name, value in (("count", self.count), ("per_token", self.per_token), ("width", self.width)):
            if value < 1:
                faults.add(f"model experts.{name} must be at least 1, got {value}")
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
        if "norm_topk_prob" in _READ[family]:
            written["norm_topk_prob"] = self.normalise_gates
        if family == "qwen3_moe":
            written |= {"moe_intermediate_size": self.width, **_DENSE_LAYERS}
        return {**written, **({SELECTION_BIAS: True} if self.selection_bias else {})}


class ExpertTrainingConfig(Config):
    """Training of a mixture of experts: routing replay, and the balance of load."""

    replay: bool = True
    """The trainer sends each token of an answer to the experts that the engine sent it to; its own router's
    probabilities weigh them."""
    balance: Literal["none", "loss", "bias"] = "none"
    """`loss`: a term that grows with the load of the busiest experts (Fedus et al., 2021). `bias`: a bias of the choice
    that is moved after each step, without a gradient (Wang et al., 2024); the saved folder holds it, and no other
    library reads it."""
    weight: float = Field(default=0.001, gt=0)
    """Weight of the term of `balance = "loss"`."""
    bias_rate: float = Field(default=0.001, gt=0)
    """Step of the biases of `balance = "bias"`, as a probability."""


def expert_keys(family: str) -> frozenset[str]:
    """Keys of a family that are followed here, or that change no output."""
    if family not in EXPERT_FAMILIES:
        return frozenset()
    return frozenset((*_COUNT, "num_experts_per_tok", *_READ[family], *_TRAINING, SELECTION_BIAS))


def expert_flags(family: str) -> tuple[str, ...]:
    """Keys that are true or false."""
    return tuple(key for key in ("norm_topk_prob", SELECTION_BIAS) if key in expert_keys(family))


def experts_from_hf(
    config: Mapping[str, object], family: str, *, where: str, faults: ErrorCollector
) -> ExpertsConfig | None:
    """The experts of a `config.json`; None for a dense family, or where something is wrong, which is added to `faults`.

    Every number has to be in the file: defaults of a family are those of one release of transformers.
    """
    if family not in EXPERT_FAMILIES:
        return None
    given = {key: config[key] for key in _COUNT if config.get(key) is not None}
    if len({repr(value) for value in given.values()}) > 1:
        both = " and ".join(f"{key} {value!r}" for key, value in given.items())
        faults.add(f"{where}: {both} disagree; keep the right one")
    width_key = "moe_intermediate_size" if family == "qwen3_moe" else "intermediate_size"
    numbers = {
        next(iter(given), "num_experts"): next(iter(given.values()), None),
        "num_experts_per_tok": config.get("num_experts_per_tok"),
        width_key: config.get(width_key),
    }
    wrong = {key: value for key, value in numbers.items() if not _is_count(value)}
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
    if wrong:
        return None
    count, per_token, width = (cast(int, value) for value in numbers.values())
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        width=width,
        normalise_gates=family == "mixtral" or bool(config.get("norm_topk_prob", False)),
        selection_bias=bool(config.get(SELECTION_BIAS, False)),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
