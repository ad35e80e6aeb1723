"""Memory of a language model's run, counted from the model's config: no weights are made or read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hone.engine.clients.http import ServerEngine
from hone.engine.protocol import RunnerKind
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import read_config
from hone.models.language.lora import LoraSettings, suggested_rate_factor
from hone.models.language.peft_folder import is_adapter
from hone.models.language.tokenizers import Tokenizer
from hone.planner.planned_ranks import PlannedRanks
from hone.planner.run_memory import machine_parts
from hone.planner.run_settings import engine_weight_bytes
from hone.run.memory_plan import MemoryPlan
from hone.run.saved_config import policy_folder
from hone.text.evaluate.open_policy import ModelSource, model_config
from hone.text.planned_memory import BatchDimensions, planned_dimensions
from hone.text.rollout_config import RolloutConfig

ENGINE_COPY = "copy of the engine"
_OWN_PARTS = ("weights", "gradients", "optimizer state")
WEIGHT_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}


def _parameter_count(config: ModelConfig) -> int:
    """Number of parameters of a decoder."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Decoder(config).parameters())


def engine_copy_bytes(
    model: ModelSource, device: str, runner: RunnerKind | ServerEngine = "auto", *, is_stale: bool = False
) -> int:
    """Bytes per parameter of an engine's own copy of the weights, as `engine.choose` makes it; 0 where it reads the
    trainer's. `is_stale`: it generates while the trainer updates."""
    if isinstance(runner, ServerEngine):
        return 0
    return engine_weight_bytes(
        device=device, exactness=model.exactness, runner=runner, weights=model.weights, compute=model.compute,
        is_stale=is_stale,
    )  # fmt: skip


def generation_copies(
    model: ModelSource,
    rollout: RolloutConfig,
    device: str,
    algorithm: Mapping[str, Any],
    *,
    in_replicas: bool = False,
) -> dict[str, int]:
    """Copies of the weights that a run with rollouts holds: name -> bytes per parameter. `algorithm` is the recipe's
    table, whose `kl` and `kl_in_reward` need the initial policy. `in_replicas`: the engine is in other processes, and
    the weights that are sent to it are here."""
    penalty: Mapping[str, Any] = algorithm.get("kl_in_reward") or {"weight": 0.0}
    reads_reference = algorithm.get("kl", 0.0) > 0 or penalty.get("weight", 1.0) > 0
    replayed = 0 if rollout.asynchrony.replay_interleaving is None else rollout.asynchrony.steps + 1
    engine = engine_copy_bytes(model, device, rollout.runner, is_stale=rollout.asynchrony.steps > 0)
    return {
        ENGINE_COPY: 0 if in_replicas else engine,
        "weights to publish": WEIGHT_BYTES[model.weights] if in_replicas else 0,
        "versions of a replay": WEIGHT_BYTES[model.weights] * replayed,
        "reference policy": WEIGHT_BYTES[model.weights] if reads_reference and _reads_loaded_reference(model) else 0,
    }


def text_memory(
    model: ModelSource,
    tokenizer: Tokenizer,
    *,
    moments: int,
    copies: Mapping[str, int],
    others: Sequence[str],
    device: str,
    batch: BatchDimensions | None = None,
) -> MemoryPlan:
    """The memory plan of a policy: weights, gradients, `moments` of the optimizer, `copies` of the weights (bytes per
    parameter), and the folders of `others`, policies that are only read; with `batch` also what the whole run depends
    on. Raises DataError for a damaged folder, ConfigError for settings that the device has no use for."""
    model.require_own_memory(device)
    config, size = model_config(model, tokenizer), WEIGHT_BYTES[model.weights]
    count = _parameter_count(config)
    parts = {"weights": count * size, "gradients": count * size, "optimizer state": moments * count * size}
    parts |= {name: count * each for name, each in copies.items()}
    notes: dict[str, str] = {}
    if model.lora is not None:
        settings = model.lora.settings(config)
        trained, adapted = settings.count(config), settings.adapted_weights(config)
        parts |= {
            "gradients": 0,
            "base of the adapted weights": adapted * size,
            "adapter with its gradients": 2 * trained * size,
            "optimizer state": moments * trained * size,
        }
        notes = _adapter_notes(settings, config)
    for path in others:
        parts[path] = _parameter_count(read_config(policy_folder(Path(path)))) * size
    held = {name: each for name, each in parts.items() if each}
    run = None
    if batch is not None:
        engine = copies.get(ENGINE_COPY, 0)
        further = {name: each for name, each in held.items() if name not in (*_OWN_PARTS, ENGINE_COPY)}
        run = planned_dimensions(
            config, model, batch, device=device, moments=moments, copies=further, engine_bytes=engine
        )
    return MemoryPlan(parameters=count, parts=held, device=device, notes=notes, run=run)


def spread_plan(plan: MemoryPlan, ranks: PlannedRanks) -> MemoryPlan:
    """The plan of a run whose learner is that of several ranks, from the place of rank 0."""
    if plan.run is None or not ranks.are_several:
        return plan
    run = replace(plan.run, ranks=ranks)
    engine = {name: size for name, size in plan.parts.items() if name == ENGINE_COPY}
    return replace(plan, parts=machine_parts(run) | engine, run=run)


def _adapter_notes(settings: LoraSettings, config: ModelConfig) -> dict[str, str]:
    """The size of an adapter, and the learning rate that fits it, for `hone plan`."""
    trained, width = settings.count(config), config.hidden_size
    return {
        "LoRA": f"rank {settings.rank} on {len(settings.layers)} linear layers: {trained:,} trained numbers "
        f"({trained / _parameter_count(config):.2%} of the model), scale {settings.scale:g}",
        "LoRA's learning rate": f"about {suggested_rate_factor(width):.2g} times that of a run that trains all weights "
        f"(max(1, sqrt(width) / 6) at alpha 32; width {width})",
    }


def _reads_loaded_reference(model: ModelSource) -> bool:
    """Whether the run's initial policy is one more copy of the weights; that of a new adapter is its base."""
    return model.lora is None or (model.path is not None and is_adapter(policy_folder(Path(model.path))))
