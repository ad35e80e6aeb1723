"""Where a token policy comes from: a folder, a run, or a new network with a tokenizer made on the spot."""

from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator

from hone.core.clock import SystemClock
from hone.core.config import Config
from hone.core.errors import ConfigError, DataError
from hone.models.language.config import ModelConfig, ModelFamily
from hone.models.language.hf_checkpoint import load_model, read_config
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, byte_tokenizer, character_tokenizer, load_tokenizer
from hone.store.folder import open_run

PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))


class NewModelConfig(Config):
    """A network to start from nothing."""

    family: ModelFamily = "qwen3"
    """Architecture; the saved folder is one of this family to every other tool."""
    hidden_size: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    layers: int = Field(default=4, ge=1)
    """Number of blocks."""
    heads: int = Field(default=4, ge=1)
    """Query heads."""
    kv_heads: int = Field(default=2, ge=1)
    """Key and value heads; divides `heads`."""
    head_dim: int = Field(default=32, ge=2)
    """Width of a head; even."""
    intermediate_size: int = Field(default=384, ge=8)
    """Width of the gated MLP."""
    max_positions: int = Field(default=512, ge=8)
    """Longest context, in tokens."""
    tokenizer: Literal["characters", "bytes"] = "characters"
    """One token a character of `alphabet`, or a byte."""
    alphabet: str = PRINTABLE
    """Characters that have a token (default: printable ASCII and the newline)."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "NewModelConfig":
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        return self


class ModelSource(Config):
    """The policy that a run starts from: exactly one of `path` and `new`."""

    path: str | None = None
    """A Hugging Face folder, a run of hone (its newest checkpoint), or one of its checkpoints."""
    new: NewModelConfig | None = None
    """Start from random weights."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """What weights are kept in. In bfloat16 a step at a usual learning rate rounds to nothing for most of them."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """What the trainer multiplies in, with sums in float32; `auto` is bfloat16 where the processor has instructions
    for it, and the weights stay what they are."""
    exactness: Literal["parity", "bitwise"] = "parity"
    """`bitwise`: the trainer finds, to the last bit, the log-probabilities that were recorded when answers were drawn.
    float32 on a CPU, generation by torch, slower; `parity` agrees to about 1e-6 nats."""
    activation_checkpointing: bool = False
    """Compute each layer twice instead of keeping what the backward pass needs."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "ModelSource":
        if (self.path is None) == (self.new is None):
            raise ValueError("give exactly one of model.path and model.new")
        if self.weights == "bfloat16" and self.compute == "float32":
            raise ValueError('model.weights = "bfloat16" cannot be computed in float32; leave model.compute out')
        low = [f"model.{key}" for key in ("weights", "compute") if self.model_dump()[key] == "bfloat16"]
        if self.exactness == "bitwise" and low:
            raise ValueError(
                f'model.exactness = "bitwise" is computed in float32; leave out {" and ".join(low)} = "bfloat16"'
            )
        return self


def open_policy(source: ModelSource, *, seed: int, device: str, temperature: float) -> TokenPolicy:
    """Load or make the policy. Raises DataError, naming the folder and what is wrong with it."""
    if source.new is not None:
        tokenizer = _new_tokenizer(source.new)
        decoder = new_model(
            _architecture(source.new, tokenizer),
            seed=seed,
            dtype=source.weights,
            checkpoint_activations=source.activation_checkpointing,
        ).to(device)
    else:
        assert source.path is not None
        folder = policy_folder(Path(source.path))
        tokenizer = load_tokenizer(folder)
        decoder = load_model(
            folder, device=device, dtype=source.weights, checkpoint_activations=source.activation_checkpointing
        )
        tokenizer.check_fits(decoder.config.vocab_size)
    decoder.set_compute_dtype(_compute(source, device))
    if source.exactness == "bitwise":
        if not device.startswith("cpu"):
            raise ConfigError(f'model.exactness = "bitwise" needs run.device = "cpu"; it is {device!r}')
        decoder.use_bitwise_arithmetic()
    return TokenPolicy(decoder, tokenizer, temperature)


def _compute(source: ModelSource, device: str) -> str:
    """What `compute` comes to: by what the processor can do, not by a measurement, so that every run is the same."""
    if source.compute != "auto":
        return source.compute
    if source.weights == "bfloat16" or source.exactness == "bitwise":
        return source.weights
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def has_fast_bfloat16(device: str) -> bool:
    """Whether the device has instructions that multiply bfloat16."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities()
    return bool(able.get("amx_bf16") or able.get("avx512_bf16") or able.get("bf16"))


def open_tokenizer(source: ModelSource) -> tuple[Tokenizer, int]:
    """The tokenizer and the longest context of the policy, without its weights: data are checked first."""
    if source.new is not None:
        return _new_tokenizer(source.new), source.new.max_positions
    assert source.path is not None
    folder = policy_folder(Path(source.path))
    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    try:
        tokenizer.check_fits(config.vocab_size)
    except DataError as fault:
        raise DataError(f"{folder}: {fault}") from None
    return tokenizer, config.max_positions


def policy_folder(path: Path) -> Path:
    """The folder of weights that `path` means: itself, a checkpoint's, or that of a run's newest whole checkpoint."""
    if (path / "policy").is_dir():
        return path / "policy"
    if (path / "checkpoints").is_dir():
        return open_run(path, clock=SystemClock()).checkpoints().newest_intact().policy_folder
    return path


def _new_tokenizer(new: NewModelConfig) -> Tokenizer:
    return byte_tokenizer() if new.tokenizer == "bytes" else character_tokenizer([new.alphabet])


def _architecture(new: NewModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    return ModelConfig(
        family=new.family,
        vocab_size=tokenizer.size,  # no padding: other tools draw from every row that there is
        hidden_size=new.hidden_size,
        intermediate_size=new.intermediate_size,
        layers=new.layers,
        heads=new.heads,
        kv_heads=new.kv_heads,
        head_dim=new.head_dim,
        max_positions=new.max_positions,
    )
