"""Opening of a token policy or scorer: from a folder, a run, or a new network; and export of a policy out of a run."""

import shutil
from pathlib import Path
from typing import ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.errors import ConfigError, DataError
from hone.models.language.config import ModelConfig, ModelFamily
from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import (
    EXPERT_FAMILIES,
    MAX_EXPERTS,
    BiasBalance,
    ExpertsConfig,
    ExpertTrainingConfig,
    LossBalance,
)
from hone.models.language.hf_checkpoint import (
    load_model,
    load_with_adapter,
    model_folder,
    read_config,
    round_weights,
    stored_type,
)
from hone.models.language.init import new_model
from hone.models.language.lora import LoraConfig, new_adapter
from hone.models.language.peft_folder import is_adapter, read_peft_folder
from hone.models.language.quantised_linear import BITS
from hone.models.language.scalar_head import (
    ScalarHeadModel,
    ScoredTokens,
    TokenScorer,
    load_scalar_head,
    new_scalar_head,
    scored_tokens,
)
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import (
    DEFAULT_CHAT_TEMPLATE,
    ROLE_TOKENS,
    Tokenizer,
    byte_tokenizer,
    character_tokenizer,
    load_tokenizer,
)
from hone.process.hub import is_hub_name
from hone.run.saved_config import is_control, policy_folder
from hone.run.store.durable import remove_tree, sync_path, writing, writing_tensors

PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))


class NewExpertsConfig(Config):
    """Mixture of experts of a new network."""

    count: int = Field(default=8, ge=2, le=MAX_EXPERTS)
    """Experts of each layer."""
    per_token: int = Field(default=2, ge=1)
    """Experts that each token goes to."""
    width: int = Field(default=0, ge=0)
    """Inner features of one expert; 0: `intermediate_size`."""

    @model_validator(mode="after")
    def _enough_experts(self) -> "NewExpertsConfig":
        if self.per_token > self.count:
            raise ValueError(
                f"experts.per_token = {self.per_token} is above experts.count = {self.count}: a token cannot go to "
                "more experts than there are"
            )
        return self


class NewModelConfig(Config):
    """New network with random weights."""

    family: ModelFamily = "qwen3"
    """Architecture; other tools load the saved folder as this model family."""
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
    experts: NewExpertsConfig | None = None
    """Mixture of experts in place of each MLP, for the families qwen3_moe, mixtral and olmoe."""
    max_positions: int = Field(default=512, ge=8)
    """Longest context, in tokens."""
    tokenizer: Literal["characters", "bytes"] = "characters"
    """One token per character of `alphabet`, or per byte; and one per role if the data hold conversations."""
    alphabet: str = PRINTABLE
    """Characters that have a token (default: printable ASCII and the newline)."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "NewModelConfig":
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if (self.family in EXPERT_FAMILIES) == (self.experts is None):
            raise ValueError(
                f"family = {self.family!r} {'has no experts' if self.experts else 'needs a table experts'}; families "
                f"with experts: {', '.join(EXPERT_FAMILIES)}"
            )
        return self


class ModelSource(Config):
    """Initial policy of a run: exactly one of `path` and `new`."""

    trained: ClassVar[bool] = True
    """Codes hold what is not trained: a base, which then needs an adapter."""
    path: str | None = None
    """A Hugging Face folder, a GGUF file, an adapter's folder of PEFT, a run of hone (its newest checkpoint), one of
    its checkpoints, a model of the Hub (`org/name`, `org/name@revision`), or one of `hone fetch`: `hone:smollm2`."""
    new: NewModelConfig | None = None
    """Start from random weights."""
    experts: ExpertTrainingConfig | None = None
    """Training of a mixture of experts; only for a model that has them."""
    lora: LoraConfig | None = None
    """Train a low-rank adapter in place of all weights: a new one, or that of `path` if it is an adapter's folder."""
    optimizer: bool = False
    """Also start from the optimizer's state of the checkpoint `path`, saved by a recipe with the same optimizer; the
    learning-rate schedule begins anew."""
    weights: Literal["float32", "bfloat16", "int8", "int4"] = "float32"
    """Data type of the weights. In bfloat16 an update at a usual learning rate rounds to zero for most of them. `int8`
    and `int4`: the frozen base of an adapter in codes of 8 or 4 bits, with a scale of 16 bits for 32 of them."""
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the trainer's matrix products, accumulated in float32; `auto` is bfloat16 if the processor has
    instructions for it. The weights keep their type."""
    exactness: Literal["parity", "bitwise"] = "parity"
    """`bitwise`: the trainer reproduces the log-probabilities recorded during generation to the last bit, in float32 on
    a CPU, with generation by torch, slower. `parity` agrees to about 1e-6 nats."""
    activations: Literal["keep", "round_again", "recompute", "offload"] = "keep"
    """Memory between the passes: `keep` activations, and the bfloat16 copies of the weights of mixed precision;
    `round_again` keeps activations only and rounds the weights again in the backward pass, 2 bytes less for each; the
    others do so too, and `recompute` activations (activation checkpointing), or `offload` them to the host's memory
    (GPU only; copies take time). The bits are the same."""

    @model_validator(mode="after")
    def _one_of_two(self) -> "ModelSource":
        if (self.path is None) == (self.new is None):
            raise ValueError("give exactly one of model.path and model.new")
        if self.optimizer and self.path is None:
            raise ValueError("model.optimizer = true needs model.path, a checkpoint or run of hone")
        if self.experts is not None and self.new is not None and self.new.experts is None:
            raise ValueError(f"model.experts trains a mixture of experts; model.new is a dense {self.new.family}")
        if self.experts is not None and isinstance(self.experts.balance, BiasBalance) and self.lora is not None:
            raise ValueError("model.experts.balance.bias with model.lora: an adapter's folder holds no biases")
        if self.lora is not None and self.new is not None:
            raise ValueError("model.lora adapts a trained model: give model.path; a new one has nothing to keep")
        if self.lora is not None and self.weights == "bfloat16":
            raise ValueError(
                'model.lora with model.weights = "bfloat16": merging would round the adapter away; keep model.weights '
                '= "float32" (model.compute = "bfloat16" is as fast)'
            )
        if self.weights in BITS and self.lora is None and self.trained:
            raise ValueError(
                f'model.weights = "{self.weights}" is for a base that is not trained: add model.lora, such as '
                'model.lora = { rank = 16 }, or keep model.weights = "float32"'
            )
        if self.weights == "bfloat16" and self.compute == "float32":
            raise ValueError('model.weights = "bfloat16" cannot be computed in float32; remove model.compute')
        low = {"weights": self.weights, "compute": self.compute}
        low = [f'model.{key} = "{value}"' for key, value in low.items() if value not in ("auto", "float32")]
        if self.exactness == "bitwise" and low:
            raise ValueError(f'model.exactness = "bitwise" is computed in float32; remove {" and ".join(low)}')
        return self

    def refuse_codes(self, why: str) -> None:
        """Raise ValueError, which says `why`, for a base in codes."""
        if self.weights in BITS:
            raise ValueError(f'model.weights = "{self.weights}": {why}; keep model.weights = "float32"')

    def require_device(self, device: str) -> None:
        """Raise ConfigError for activations that are to leave a device which has no memory of its own, and for codes
        on a GPU."""
        if self.weights in BITS and not device.startswith("cpu"):
            raise ConfigError(f'model.weights = "{self.weights}" is for a CPU, not run.device = {device!r}; remove it')
        if self.activations == "offload" and not device.startswith("cuda"):
            raise ConfigError(
                f'model.activations = "offload" needs a GPU; with run.device = {device!r} activations are in the '
                'host\'s memory anyway: remove it, or set model.activations = "recompute"'
            )

    def resolved_compute(self, device: str) -> str:
        """Data type of the trainer's products: `auto` follows the processor's instructions, not a measurement, so that
        runs are reproducible."""
        if self.compute != "auto":
            return self.compute
        if self.weights == "bfloat16" or self.exactness == "bitwise":
            return self.weights
        return "bfloat16" if has_fast_bfloat16(device) else "float32"


class ServedModelSource(ModelSource):
    """A model that nobody trains: its weights may be in codes without an adapter."""

    trained = False


def open_policy(
    source: ModelSource, *, seed: int, device: str, temperature: float, tokenizer: Tokenizer | None = None
) -> TokenPolicy:
    """Load or make the policy, with `tokenizer` where it was loaded before. Raises DataError naming the folder and the
    problem."""
    adapter = None
    if source.new is not None:
        tokenizer = tokenizer or _new_tokenizer(source.new, chat=False)
        decoder = new_model(
            _architecture(source.new, tokenizer),
            seed=seed,
            dtype=source.weights,
            checkpoint_activations=source.activations == "recompute",
        ).to(device)
    else:
        assert source.path is not None
        folder = policy_folder(Path(source.path))
        tokenizer = tokenizer or load_policy_tokenizer(folder)
        recompute = source.activations == "recompute"
        if source.lora is None:
            decoder = load_model(folder, device=device, dtype=source.weights, checkpoint_activations=recompute)
        else:
            # A run stands for its newest checkpoint, which another program does not know.
            name = source.path if is_hub_name(source.path) or folder == Path(source.path) else str(folder.absolute())
            adapter = load_with_adapter(
                folder,
                source.lora,
                seed=seed,
                device=device,
                dtype=source.weights,
                checkpoint_activations=recompute,
                base_name=name,
            )
            decoder = adapter.decoder
        tokenizer.check_fits(decoder.config.vocab_size, where=str(folder))
    _set_arithmetic(decoder, source, device)
    if source.exactness == "bitwise":
        if not device.startswith("cpu"):
            raise ConfigError(f'model.exactness = "bitwise" needs run.device = "cpu"; it is {device!r}')
        decoder.use_bitwise_arithmetic()
    if source.experts is not None and isinstance(source.experts.balance, BiasBalance):
        decoder.add_selection_bias()
    return TokenPolicy(decoder, tokenizer, temperature, adapter=adapter, expert_training=source.experts)


def _set_arithmetic(decoder: Decoder, source: ModelSource, device: str) -> None:
    """Give a decoder the products' type and the memory settings of its config. Raises as `require_device`."""
    source.require_device(device)
    decoder.set_compute_dtype(source.resolved_compute(device))
    decoder.rounds_weights_again = source.activations != "keep"
    decoder.offloads_activations = source.activations == "offload"


def has_fast_bfloat16(device: str) -> bool:
    """True if the device has instructions for bfloat16 products."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    able = torch.cpu.get_capabilities()
    return bool(able.get("amx_bf16") or able.get("avx512_bf16") or able.get("bf16"))


def open_tokenizer(source: ModelSource, *, chat: bool = False) -> tuple[Tokenizer, int]:
    """Open the tokenizer and the context length of the policy without its weights, to check data first. `chat`: the
    data hold conversations, so that a new tokenizer needs a chat template and tokens for the roles."""
    if source.new is not None:
        return _new_tokenizer(source.new, chat=chat), source.new.max_positions
    assert source.path is not None
    folder = policy_folder(Path(source.path))
    config = read_config(folder)
    if source.experts is not None and config.experts is None:
        raise ConfigError(f"model.experts trains a mixture of experts; {folder} holds a dense {config.family}")
    balance = None if source.experts is None else source.experts.balance
    if isinstance(balance, LossBalance) and config.experts and config.experts.sigmoid:
        raise ConfigError(
            f"model.experts.balance.loss is for routers whose probabilities are a softmax, and those of {folder} "
            f"({config.family}) are sigmoids: set balance = {{ bias = 0.001 }}, as such models were trained, or "
            "leave it out"
        )
    tokenizer = load_policy_tokenizer(folder)
    tokenizer.check_fits(config.vocab_size, where=str(folder))
    return tokenizer, config.max_positions


def check_weights(path: str) -> None:
    """Check that a policy or a scorer can be loaded, by the headers of its files: only numbers are not read.

    Raises DataError with every fault at once, as loading does.
    """
    folder = model_folder(policy_folder(Path(path)))
    load = load_model if scored_tokens(folder) is None else load_scalar_head
    with torch.device("meta"):
        load(folder, device="meta")


def load_policy_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder, or of an adapter's: its own, or else that of its base. Raises DataError."""
    return load_tokenizer(folder if (folder / "tokenizer.json").is_file() else model_folder(folder))


def model_config(source: ModelSource, tokenizer: Tokenizer) -> ModelConfig:
    """Architecture of a policy, without its weights. Raises DataError."""
    if source.new is not None:
        return _architecture(source.new, tokenizer)
    assert source.path is not None
    return read_config(policy_folder(Path(source.path)))


def _new_tokenizer(new: NewModelConfig, *, chat: bool) -> Tokenizer:
    template, tokens = (DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS) if chat else (None, ())
    if new.tokenizer == "bytes":
        return byte_tokenizer(chat_template=template, chat_tokens=tokens)
    return character_tokenizer([new.alphabet], chat_template=template, chat_tokens=tokens)


def _architecture(new: NewModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    experts, intermediate = None, new.intermediate_size
    if new.experts is not None:
        width = new.experts.width or intermediate
        experts = ExpertsConfig(count=new.experts.count, per_token=new.experts.per_token, width=width)
        intermediate = width
    return ModelConfig(
        family=new.family,
        experts=experts,
        vocab_size=tokenizer.size,  # no padding: other tools sample from every row
        hidden_size=new.hidden_size,
        intermediate_size=intermediate,
        layers=new.layers,
        heads=new.heads,
        kv_heads=new.kv_heads,
        head_dim=new.head_dim,
        max_positions=new.max_positions,
    )


# --------------------------------------------------------------------------------------------------------------- export
def export_policy(
    policy: Path, target: Path, *, adapter: bool, gguf: str = "", dtype: str = "float32", reason: str = ""
) -> str:
    """Write the model in `policy` into a new folder, and return a sentence about it: whole, an adapter merged into its
    base, or with `adapter` the PEFT folder as it is; with `gguf`, a type of weights, a GGUF file. Weights of a whole
    model are rounded to `dtype` unless that is float32; `reason` follows the type in the sentence. The target is
    complete, or it is not there. Raises ConfigError for a target that is in the way, a control policy, and `adapter` of
    a whole model; DataError for a damaged folder; ResourceError where the target cannot be written."""
    if is_control(policy):
        raise ConfigError(
            f"{policy} is a control policy, which is complete as it is: copy the folder, or write an ONNX file with "
            "--onnx FILE"
        )
    _check_target(policy, target, adapter=adapter, gguf=gguf)
    part = target.absolute().with_name(f".{target.absolute().name}.part")
    if part.exists():
        remove_tree(part)
    source = ModelSource(path=str(policy))
    with writing_tensors(target):
        part.parent.mkdir(parents=True, exist_ok=True)
        if gguf:
            from hone.models.language.gguf_export import write_gguf  # noqa: PLC0415 - needs an extra

            opened = open_policy(source, seed=0, device="cpu", temperature=1.0)
            write_gguf(
                opened.decoder, opened.tokenizer, part, cast(Literal["F16", "BF16", "Q8_0"], gguf), name=target.stem
            )
        elif (is_adapter(policy) and not adapter) or policy.is_file():
            open_policy(source, seed=0, device="cpu", temperature=1.0).save_merged(part)
        else:
            shutil.copytree(policy, part)
        stored = "" if adapter or gguf else stored_type(part)
        if stored and dtype not in ("float32", stored):
            round_weights(part, dtype)
            stored = dtype
    for file in (part,) if part.is_file() else part.iterdir():
        sync_path(file)
    with writing(target):
        part.replace(target)
    sync_path(target.absolute().parent)
    base = read_peft_folder(policy).base if is_adapter(policy) else None
    if adapter:
        return f"wrote {target}: the adapter, for PEFT; its base is {base}"
    merged = "" if base is None else f", the adapter merged into {base}"
    own = f", in {stored}{reason}"
    if gguf:
        return f"wrote {target}: the whole model in {gguf} with its tokenizer, for llama.cpp{merged}"
    if base is None:
        return f"wrote {target}: the whole model, for transformers and vLLM{own}"
    return f"wrote {target}: the whole model for transformers and vLLM{merged}{own}"


def _check_target(policy: Path, target: Path, *, adapter: bool, gguf: str) -> None:
    """Raise ConfigError for a target that is in the way, and options that do not fit."""
    if gguf and target.exists():
        raise ConfigError(f"{target} exists; name a new file")
    if not gguf and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder; name a new one")
    if gguf not in ("", "F16", "BF16", "Q8_0"):
        raise ConfigError(f"--gguf {gguf}: no such type of weights; known: F16, BF16, Q8_0")
    if gguf and target.suffix != ".gguf":
        raise ConfigError(f"--gguf writes one file; name it {target}.gguf")
    if gguf and adapter:
        raise ConfigError("--gguf writes the whole model, the adapter merged; leave --adapter out")
    if adapter and not is_adapter(policy):
        raise ConfigError(f"{policy} holds all weights and no adapter; leave --adapter out")


# ---------------------------------------------------------------------------------------------------------- open scorer
def open_scorer(
    source: ModelSource, *, reads: ScoredTokens, seed: int, device: str, tokenizer: Tokenizer | None = None
) -> TokenScorer:
    """Load a scorer's folder, or put a new head on a policy or on a new network. With `source.lora` the head is trained
    in full and the decoder by an adapter, which is saved merged. A head for other tokens than `reads` is kept: a reward
    model of answers is a good start for one of steps. Raises DataError naming the folder and the problem; ConfigError
    for `exactness = "bitwise"`, which is a policy's."""
    if source.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" is for policies whose answers are sampled; remove it')
    folder = None if source.path is None else policy_folder(Path(source.path))
    if folder is None or scored_tokens(folder) is None:
        policy = open_policy(source, seed=seed, device=device, temperature=1.0, tokenizer=tokenizer)
        policy.decoder.head = None
        model = new_scalar_head(policy.decoder, seed=seed, reads=reads).to(device)
        return TokenScorer(model, policy.tokenizer, adapter=policy.adapter)
    model = load_scalar_head(
        folder, device=device, dtype=source.weights, checkpoint_activations=source.activations == "recompute"
    )
    model.train()
    tokenizer = tokenizer or load_tokenizer(folder)
    tokenizer.check_fits(model.decoder.config.vocab_size, where=str(folder))
    _set_arithmetic(model.decoder, source, device)
    adapter = None if source.lora is None else new_adapter(model.decoder, source.lora, folder, seed=seed)
    return TokenScorer(_with_head_for(model, reads), tokenizer, adapter=adapter)


def load_scorer(folder: Path | str, *, device: str = "cpu", dtype: str = "float32") -> TokenScorer:
    """The scorer of a folder with a scalar head and its tokenizer. Raises DataError."""
    place = policy_folder(Path(folder))
    model = load_scalar_head(place, device=device, dtype=dtype)
    tokenizer = load_tokenizer(place)
    tokenizer.check_fits(model.decoder.config.vocab_size, where=str(place))
    return TokenScorer(model, tokenizer)


def _with_head_for(model: ScalarHeadModel, reads: ScoredTokens) -> ScalarHeadModel:
    """The same network with a head for the tokens `reads`: of steps with a bias, 0 at first, of answers without. Raises
    DataError where a bias would be lost."""
    if model.reads == reads:
        return model
    if model.score.bias is not None and float(model.score.bias.abs().max()) > 0:
        raise DataError(
            "a head of steps has a bias, which a sequence classifier of transformers has not: its scores would shift; "
            "start from the policy, or from a reward model of answers"
        )
    changed = ScalarHeadModel(model.decoder, reads).to(model.score.weight.device)
    with torch.no_grad():
        changed.score.weight.copy_(model.score.weight)
    return changed
