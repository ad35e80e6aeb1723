"""A tenant's model: an adapter or all weights, the gradient since its last step, and its optimizer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor

from hone.core.errors import ConfigError, DataError
from hone.core.state import State, substate
from hone.learner.adam import Adam, restore_weights, stored_weights
from hone.learner.flat_parameters import FlatParameters
from hone.models.language.decoder import Decoder
from hone.models.language.lora import (
    ATTENTION_LAYERS,
    MLP_LAYERS,
    OUTPUT_LAYER,
    LoraAdapter,
    LoraSettings,
    adaptable_layers,
    linear_sizes,
    weights_sha256,
)
from hone.models.language.peft_folder import load_factors, read_peft_folder, save_adapter
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.process.hub import is_hub_name
from hone.run.saved_config import policy_folder
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.training_service.rows import RowModel, RowResult
from hone.text.training_service.service_config import TrainingServiceConfig

ALPHA: Final = 32.0
"""The protocol sends no alpha; its clients and their learning rates assume 32."""
_FUSED: Final = {"attn": ("qkv_proj",), "mlp": ("gate_up_proj",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """What a client asks of a model."""

    rank: int
    """0: all weights are trained, and there is no adapter."""
    attention: bool = True
    mlp: bool = True
    output: bool = True

    def settings(self, decoder: Decoder) -> LoraSettings:
        """The adapter on a decoder. Raises DataError for one that adapts nothing, and for a rank that none can have."""
        wanted = {
            *((*ATTENTION_LAYERS, *_FUSED["attn"]) if self.attention else ()),
            *((*MLP_LAYERS, *_FUSED["mlp"]) if self.mlp else ()),
            *((OUTPUT_LAYER,) if self.output else ()),
        }
        sides = linear_sizes(decoder.config)
        layers = tuple(name for name in adaptable_layers(decoder.config) if name.rpartition(".")[2] in wanted)
        if not layers:
            raise DataError("train_attn, train_mlp and train_unembed are all false: nothing would be trained")
        least = min(min(sides[name]) for name in layers)
        if not 1 <= self.rank <= least:
            raise DataError(
                f"lora_config.rank must be 1 to {least}, the smallest side of an adapted layer, got {self.rank}"
            )
        return LoraSettings(rank=self.rank, alpha=ALPHA, layers=layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """Settings of one step; all may change from step to step. The defaults are the protocol's."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Largest L2 norm of the gradient over the whole adapter; 0: not clipped."""

    @classmethod
    def read(cls, given: Mapping[str, object]) -> Self:
        """Raises DataError with every fault."""
        known = {name: float(cls.__dataclass_fields__[name].default) for name in cls.__dataclass_fields__}  # pyright: ignore[reportArgumentType]
        faults = [f"adam_params has no {name!r}; known: {', '.join(known)}" for name in given if name not in known]
        for name, value in given.items():
            if name not in known or value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                faults.append(f"adam_params.{name} must be a finite number, got {value!r}")
            elif value < 0 or (name.startswith("beta") and value >= 1):
                faults.append(f"adam_params.{name} = {value} is out of its range")
            else:
                known[name] = float(value)
        if faults:
            raise DataError(*faults)
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBase:
    """The base model that all adapters share."""

    rows: RowModel
    tokenizer: Tokenizer
    folder: Path
    fingerprint: str
    """sha256 of its weights."""
    name: str
    """As PEFT's folders name it."""

    def adapter(self, settings: LoraSettings) -> LoraAdapter:
        """An adapter beside the base, all 0."""
        return LoraAdapter(
            self.rows.decoder,
            settings,
            base_folder=self.folder,
            base_sha256=self.fingerprint,
            base_name=self.name,
            beside=True,
        )

    def read_adapter(self, folder: Path) -> LoraAdapter:
        """The adapter of a PEFT folder. Raises DataError for one of another base."""
        saved = read_peft_folder(folder)
        adapter = self.adapter(saved.settings(self.rows.decoder.config))
        load_factors(adapter, saved)
        return adapter

    def new_model(self, shape: AdapterShape, *, seed: int) -> "TrainedModel":
        """A model that computes what the base does, for now. `seed` draws an adapter's first factors."""
        if not shape.rank:
            return TrainedModel(self.rows.for_training(), None)
        adapter = self.adapter(shape.settings(self.rows.decoder)).initialise(seed=seed)
        return TrainedModel(self.rows, adapter)

    def write(self, trained: "TrainedModel", folder: Path) -> None:
        """Write a model with the tokenizer: PEFT's folder of an adapter, or one of Hugging Face."""
        if trained.adapter is None:
            TokenPolicy(trained.rows.decoder, self.tokenizer).save_merged(folder)
        else:
            save_adapter(trained.adapter, folder)
            self.tokenizer.save(folder)


def open_base(config: TrainingServiceConfig, beside: Path) -> tuple[TokenPolicy, ServedBase, int]:
    """The base of a service's file, whose paths are seen from the folder `beside`, as a policy and for training, and
    the most tokens of a row. Raises ConfigError, DataError and ResourceError."""
    path = config.model.path
    if not is_hub_name(path) or (beside / path).exists():
        path = str(beside / path)
    policy = open_policy(ModelSource(path=path, compute="float32"), seed=0, device="cpu", temperature=1.0)
    most = policy.decoder.config.max_positions
    context = config.model.context or most
    if not 2 <= context <= most:
        raise ConfigError(f"model.context must be 2 to {most}, the positions of the model, got {context}")
    folder = policy_folder(Path(path)).resolve()
    base = ServedBase(
        rows=RowModel(policy.decoder, min(policy.tokenizer.size, policy.decoder.config.vocab_size)),
        tokenizer=policy.tokenizer.for_threads(),
        folder=folder,
        fingerprint=weights_sha256(policy.decoder),
        name=path if is_hub_name(path) else str(folder),
    )
    return policy, base, context


@dataclass(slots=True, eq=False)
class TrainedModel:
    """A model in training. One thread uses it at a time."""

    rows: RowModel
    """What computes its rows."""
    adapter: LoraAdapter | None
    """None: all weights of `rows` are trained."""
    parameters: FlatParameters = field(init=False)
    optimizer: Adam = field(init=False)
    pending: bool = False
    """Whether there is a gradient that no step has taken; without one it has no memory."""

    def __post_init__(self) -> None:
        named = self.rows.decoder.named_parameters() if self.adapter is None else self.adapter.factors()
        names, parameters = zip(*named, strict=True)
        self.parameters = FlatParameters(parameters, names)
        self.optimizer = Adam(self.parameters)
        self.parameters.drop_gradients()

    @property
    def steps(self) -> int:
        return int(self.optimizer.steps)

    @torch.no_grad()
    def add_gradients(self, results: Sequence[RowResult]) -> None:
        """Add the gradients of rows, one after another: the sum does not depend on the calls that brought them."""
        for one in results:
            assert one.gradient is not None
            if not self.pending:
                self.parameters.zero_grad()
            self.pending = True
            at, total = 0, self.parameters.gradient
            for part in one.gradient:
                total[at : at + part.numel()].add_(part.reshape(-1))
                at += part.numel()

    def gradient(self) -> Tensor | None:
        """`[P]` a copy of the gradient since the last step; None where there is none."""
        return self.parameters.gradient.clone() if self.pending else None

    def restore_gradient(self, gradient: Tensor | None) -> None:
        """Put back what `gradient` gave: a call that failed adds nothing."""
        if gradient is None:
            self._drop_gradient()
        else:
            self.parameters.gradient.copy_(gradient)

    def _drop_gradient(self) -> None:
        self.parameters.drop_gradients()
        self.pending = False

    def step(self, asked: AdamStep) -> dict[str, float]:
        """One step of AdamW along the gradient, which is 0 afterwards; without any it is a step along 0. Returns
        metrics. Raises DataError, and changes nothing, for a gradient that is not finite."""
        if not self.pending:
            self.parameters.zero_grad()
        norm = float(self.parameters.gradient_norm())
        if not math.isfinite(norm):
            raise DataError(
                "the gradient since the last optim_step is not finite; load a checkpoint, or lower the rate"
            )
        if asked.grad_clip_norm and norm > asked.grad_clip_norm:
            self.parameters.gradient.mul_(asked.grad_clip_norm / norm)
        self.optimizer.betas, self.optimizer.eps = (asked.beta1, asked.beta2), asked.eps
        self.optimizer.weight_decay = asked.weight_decay
        self.optimizer.step(asked.learning_rate)
        self._drop_gradient()
        return {"grad_norm:mean": norm, "step:max": float(self.steps)}

    def state(self) -> State:
        """Weights and optimizer, to the bit; a gradient that no step has taken is not part of it."""
        optimizer = self.optimizer.state()
        if self.adapter is None:
            return {"weights": stored_weights(self.parameters), "optimizer": optimizer}
        return {"adapter": self.adapter.state(), "optimizer": optimizer}

    def restore(self, state: State, *, optimizer: bool = True) -> None:
        """Load a state; without `optimizer` its moments and steps stay as they are. Drops the gradient. Raises
        DataError for another model."""
        if self.adapter is None:
            remedy = "load a checkpoint of a model of which all weights were trained on this base"
            restore_weights(self.parameters, substate(state, "weights"), what="model", remedy=remedy)
        else:
            self.adapter.restore(substate(state, "adapter"))
        if optimizer:
            self.optimizer.restore(substate(state, "optimizer"))
        self._drop_gradient()
