"""One optimizer step of a decoder under a tracker of every tensor: its memory, without a closed form. That of a recipe
is in `hone.recipes.recipe_step`.

Of fake tensors, which have sizes and no numbers, the step takes seconds for a model of any size. Compiled kernels make
their results then and compute nothing.
"""

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import torch

from hone.core.clock import Clock
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.models.language.config import FAMILIES, ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import ExpertsConfig
from hone.models.packing import PackedBatch
from hone.models.tensor_memory import TensorMemory, without_numbers
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.run_memory import RunDimensions
from hone.planner.training_step import StepSettings

_RATE = 1e-6
_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedStep:
    """Memory of a step, as counted."""

    resident_bytes: int
    """Weights, gradients and moments."""
    working_bytes: int
    """Most bytes beyond these."""
    operation: str
    """What made the last tensor of the peak."""
    seconds: float
    """Wall time of the second step."""


def why_not_tracked(run: RunDimensions) -> str:
    """Reason for which a step of fake tensors cannot stand for a run's; empty where it can."""
    if run.shape.family not in FAMILIES:
        return f"hone does not run the family {run.shape.family!r}"
    if run.step.path == "fused":
        return "a step on a GPU is not repeated by fake tensors on a CPU, whose attention is another"
    return ""


def decoder_config(shape: PlannedDecoder) -> ModelConfig:
    """The config of a decoder of these sizes."""
    experts = None
    if shape.experts:
        experts = ExpertsConfig(
            count=shape.experts, per_token=shape.experts_per_token, width=shape.intermediate,
            shared=shape.shared // shape.intermediate, dense_layers=shape.dense_layers,
            sigmoid=shape.family == "deepseek_v3", selection_bias=shape.family == "deepseek_v3",
        )  # fmt: skip
    latents = {
        "q_lora_rank": shape.query_latent or None, "kv_lora_rank": shape.latent, "qk_nope_head_dim": shape.plain,
        "qk_rope_head_dim": shape.turned, "v_head_dim": shape.value,
    }  # fmt: skip
    if shape.states:
        full = shape.layers - shape.linear_layers
        latents = {
            "linear_num_key_heads": shape.groups, "linear_num_value_heads": shape.states,
            "linear_key_head_dim": shape.state_key, "linear_value_head_dim": shape.state_value,
            "linear_conv_kernel_dim": shape.inputs,
            "layer_types": ["linear_attention"] * shape.linear_layers + ["full_attention"] * full,
        }  # fmt: skip
    return ModelConfig(
        family=shape.family,  # type: ignore[arg-type]
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.dense or shape.intermediate,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_embeddings=shape.tied,
        experts=experts,
        extra=latents if shape.latent or shape.states else {},
    )


def tracked_step(shape: PlannedDecoder, settings: StepSettings, *, clock: Clock, fake: bool = True) -> TrackedStep:
    """Memory of a step on texts of `settings.text_tokens` tokens each. `fake`: of tensors without numbers."""
    batch = _texts(settings)
    with ExitStack() as stack:
        if fake:
            stack.enter_context(without_numbers())
        model = Decoder(decoder_config(shape), dtype=settings.weights, checkpoint_activations=settings.checkpointing)
        if not fake:
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=_SPREAD)
        model.set_compute_dtype(settings.compute)
        model.rounds_weights_again = settings.rounds_again
        parameters = FlatParameters(model.parameters())
        adam = Adam(parameters)
        memory = stack.enter_context(TensorMemory())
        memory.add([parameters.data.detach(), parameters.gradient, *adam.means, *adam.squares])
        resident = memory.live_bytes
        memory.add([batch.tokens, batch.positions])
        before, begin = memory.live_bytes, clock.monotonic_s()
        for _ in range(1 if fake else 2):
            begin = clock.monotonic_s()
            _update(model, parameters, adam, batch, entropy=settings.entropy)
    return TrackedStep(
        resident_bytes=resident,
        working_bytes=memory.peak_bytes - before,
        operation=memory.peak_operation,
        seconds=clock.monotonic_s() - begin,
    )


def _update(model: Decoder, parameters: FlatParameters, adam: Adam, batch: PackedBatch, *, entropy: bool) -> None:
    """Forward pass, loss, backward pass, norm of the gradient, optimizer."""
    with parameters.collect_gradients():
        logprobs = model.token_logprobs(model.hidden(batch), batch.tokens, entropy=entropy)
        loss = -logprobs.logp.mean() if logprobs.entropy is None else logprobs.entropy.mean() - logprobs.logp.mean()
        del logprobs
        loss.backward()
        del loss
    parameters.gradient_norm()
    adam.step(_RATE)


def _texts(settings: StepSettings) -> PackedBatch:
    """Packed texts of one length; the last is what is left."""
    length, total = min(settings.text_tokens, settings.tokens), settings.tokens
    offsets = np.append(np.arange(0, total, length), total).astype(np.int64)
    positions = np.arange(total) - np.repeat(offsets[:-1], np.diff(offsets))
    return PackedBatch(
        tokens=torch.zeros(total, dtype=torch.int64), positions=torch.from_numpy(positions), offsets=offsets
    )
