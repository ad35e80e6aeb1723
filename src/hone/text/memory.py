"""Memory of a text run, from its checked config and the lengths of its data: no weights are made or read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from hone.core.episodes import Episodes
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.lora import suggested_rate_factor
from hone.models.language.peft_folder import is_adapter
from hone.models.language.tokenizers import Tokenizer
from hone.models.native.library import available_kernels, multiplies_half, uses_amx_tiles, widens_half_products
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import ONE_PROCESS
from hone.planner.run_memory import network_parts
from hone.planner.run_settings import (
    PlannedRecipe,
    PlannedSettings,
    ProcessorTraits,
    TextLengths,
    describe_run,
    setting_leaves,
)
from hone.planner.training_step import NUMBER_BYTES
from hone.run.memory_plan import MemoryPlan
from hone.run.saved_config import policy_folder
from hone.text.evaluate.open_policy import ModelSource, has_fast_bfloat16, model_config


def text_lengths(episodes: Episodes) -> TextLengths:
    """Lengths of the token sequences of episodes."""
    return TextLengths(prompt=0, whole=int(np.diff(episodes.transcript.offsets).max(initial=1)))


def config_settings(config: BaseModel) -> PlannedSettings:
    """The settings of a checked config."""
    return PlannedSettings(setting_leaves(config.model_dump()))


def planned_decoder(config: ModelConfig) -> PlannedDecoder:
    """The sizes of a model's config."""
    experts, latent, delta = config.experts, config.latent, config.delta
    return PlannedDecoder(
        family=config.family,
        layers=config.layers,
        hidden=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.mlp_width,
        vocab=config.vocab_size,
        tied=config.tie_embeddings,
        qk_norm=config.qk_norm,
        qkv_bias=config.qkv_bias,
        experts=0 if experts is None else experts.count,
        experts_per_token=0 if experts is None else experts.per_token,
        shared=0 if experts is None else experts.shared * experts.width,
        dense_layers=0 if experts is None else experts.dense_layers,
        dense=config.intermediate_size if experts is not None and experts.dense_layers else 0,
        latent=0 if latent is None else latent.rank,
        query_latent=0 if latent is None else latent.query_rank or 0,
        plain=0 if latent is None else latent.plain,
        value=0 if latent is None else latent.value,
        linear_layers=0 if delta is None else sum(delta.layers),
        groups=0 if delta is None else delta.groups,
        states=0 if delta is None else delta.heads,
        state_key=0 if delta is None else delta.key,
        state_value=0 if delta is None else delta.value,
        inputs=0 if delta is None else delta.inputs,
    )


def text_memory(
    settings: PlannedSettings,
    model: ModelSource,
    recipe: PlannedRecipe,
    tokenizer: Tokenizer,
    lengths: TextLengths,
    *,
    others: Sequence[str] = (),
) -> MemoryPlan:
    """The memory plan of a run with checked `settings`. `others`: folders of policies that are only read.

    Raises DataError for a damaged folder, ConfigError for settings that the device has no use for.
    """
    device = str(settings.words("run.device")) if settings.given("run.device") else "cpu"
    model.require_device(device)
    config = model_config(model, tokenizer)
    shape, size = planned_decoder(config), NUMBER_BYTES[settings.weights()]
    processor = ProcessorTraits(
        compiled=available_kernels() is not None,
        bfloat16=has_fast_bfloat16(device),
        tiles=uses_amx_tiles(),
        widens=widens_half_products(),
        halves=multiplies_half(),
    )
    run = describe_run(
        recipe,
        settings,
        shape,
        lengths,
        processor=processor,
        adapts_adapter=model.path is not None and is_adapter(policy_folder(Path(model.path))),
        others={one: size * planned_decoder(read_config(policy_folder(Path(one)))).parameters for one in others},
    )
    if not recipe.rows:
        run = replace(run, ranks=ONE_PROCESS)
    return MemoryPlan(
        parameters=shape.parameters, parts=network_parts(run), device=device, run=run if recipe.rows else None,
        notes={} if model.lora is None else _adapter_notes(model, config, shape.parameters),
    )  # fmt: skip


def _adapter_notes(model: ModelSource, config: ModelConfig, parameters: int) -> Mapping[str, str]:
    """The size of an adapter, and the learning rate that fits it, for `hone plan`."""
    assert model.lora is not None
    settings, width = model.lora.settings(config), config.hidden_size
    trained = settings.count(config)
    return {
        "LoRA": f"rank {settings.rank} on {len(settings.layers)} linear layers: {trained:,} trained numbers "
        f"({trained / parameters:.2%} of the model), scale {settings.scale:g}",
        "LoRA's learning rate": f"about {suggested_rate_factor(width):.2g} times that of a run that trains all weights "
        f"(max(1, sqrt(width) / 6) at alpha 32; width {width})",
    }
