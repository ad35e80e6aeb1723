"""Memory of a text run in closed form, from its config: what `hone.planner` is asked, before a model is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hone.core.episodes import Episodes
from hone.engine.clients.http import ServerEngine
from hone.learner.config import LearnerConfig
from hone.models.language.config import ModelConfig
from hone.models.native.library import available_kernels, uses_amx_tiles, widens_half_products
from hone.parallel.config import ClusterConfig
from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.planned_ranks import PlannedRanks
from hone.planner.run_memory import GenerationSettings, RunDimensions
from hone.planner.run_settings import cache_type, engine_layout
from hone.planner.training_step import COMPILED_TEXT_TOKENS, KernelPath, NumberType, StepSettings
from hone.run.job import RunConfig
from hone.text.evaluate.open_policy import ModelSource
from hone.text.rollout_config import RolloutConfig

_PAGE_TOKENS = {"cpu": 16, "cuda": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLengths:
    """Lengths of the longest texts of a run, in tokens."""

    prompt: int
    """Longest prompt; 0: nothing is asked."""
    whole: int
    """Longest prompt with its answer, or longest example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDimensions:
    """Sizes of a run's batches."""

    micro_batch_tokens: int
    """Most tokens of a forward pass."""
    rows: int
    """Texts of an optimizer step."""
    longest_tokens: int
    """Tokens of the longest text."""
    texts_together: int = 1
    """Texts that no micro-batch parts: 2 of a pair."""
    longest_prompt: int = 0
    """Tokens of the longest prompt, for the engine's pages."""
    entropy: bool = False
    """The loss has an entropy term."""
    predicts_tokens: bool = True
    """The loss has logits of the vocabulary; not that of a reward model."""
    rollout: RolloutConfig | None = None
    """Settings of the engine that writes the answers; None: nothing is written."""

    @property
    def tokens(self) -> int:
        """Most tokens of a forward pass: those of all texts, where they are fewer than a micro-batch."""
        least, most = self.texts_together * self.longest_tokens, self.rows * self.longest_tokens
        return max(least, min(self.micro_batch_tokens, most))


def logged_batch(learner: LearnerConfig, batch: int, lengths: TextLengths, *, together: int = 1) -> BatchDimensions:
    """Batches of a run that learns from a log, with `batch` texts per iteration, or sets of `together` texts each."""
    return BatchDimensions(
        micro_batch_tokens=learner.micro_batch_tokens,
        rows=max(1, together * batch // learner.minibatches),
        longest_tokens=lengths.whole,
        texts_together=together,
    )


def text_lengths(episodes: Episodes) -> TextLengths:
    """Lengths of the token sequences of episodes."""
    return TextLengths(prompt=0, whole=int(np.diff(episodes.transcript.offsets).max(initial=1)))


def planned_decoder(config: ModelConfig) -> PlannedDecoder:
    """The sizes of a model's config."""
    experts = config.experts
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
    )


def planned_dimensions(
    config: ModelConfig,
    source: ModelSource,
    batch: BatchDimensions,
    *,
    device: str,
    moments: int,
    copies: Mapping[str, int],
    engine_bytes: int,
) -> RunDimensions:
    """What a run's memory depends on. `copies`: bytes of further networks; `engine_bytes`: bytes per parameter of the
    engine's own weights."""
    sizes = planned_decoder(config)
    weights: NumberType = source.weights
    compute: NumberType = "bfloat16" if source.resolved_compute(device) == "bfloat16" else "float32"
    settings = None if source.lora is None else source.lora.settings(config)
    return RunDimensions(
        shape=sizes,
        step=StepSettings(
            tokens=batch.tokens,
            texts_together=batch.texts_together,
            step_tokens=batch.rows * batch.longest_tokens,
            text_tokens=batch.longest_tokens,
            chosen_tokens=batch.longest_tokens - batch.longest_prompt if batch.longest_prompt else 0,
            weights=weights,
            compute=compute,
            path=_kernel_path(source, config, device, batch.longest_tokens),
            checkpointing=source.activation_checkpointing,
            rounds_again=source.round_weights_again,
            offload=source.activation_offload,
            entropy=batch.entropy,
            trained_vocabulary=settings is None,
            predicts_tokens=batch.predicts_tokens,
            tile_scratch=device == "cpu" and uses_amx_tiles(),
            widens=device == "cpu" and widens_half_products(),
        ),
        generation=_generation(batch, source, device, engine_bytes),
        trained_parameters=None if settings is None else settings.count(config),
        moments=moments,
        moment_bytes=2 if weights == "bfloat16" else 4,
        copies=copies,
    )


def planned_ranks(config: RunConfig) -> PlannedRanks:
    """Ranks of a run's learner. Those of one machine without GPUs have the same memory."""
    run, cluster = config.run, dict(config).get("cluster")
    apart = isinstance(cluster, ClusterConfig) and cluster.learner is not None
    alone = apart or run.device.startswith("cuda")
    return PlannedRanks(
        count=run.ranks, tensor=run.tensor, virtual=run.virtual_ranks, beside=0 if alone else run.ranks - 1
    )


def _kernel_path(source: ModelSource, config: ModelConfig, device: str, longest: int) -> KernelPath:
    if device.startswith("cuda"):
        return "fused"
    fits = source.exactness == "parity" and not config.qk_norm_whole and longest <= COMPILED_TEXT_TOKENS
    return "compiled" if fits and available_kernels() is not None else "torch"


def _generation(
    batch: BatchDimensions, source: ModelSource, device: str, engine_bytes: int
) -> GenerationSettings | None:
    """Settings of the embedded engine; None where a server writes, or nothing is written."""
    rollout = batch.rollout
    if rollout is None or isinstance(rollout.runner, ServerEngine):
        return None
    runner: str = rollout.runner
    return GenerationSettings(
        concurrent=rollout.max_concurrent,
        prompt_tokens=batch.longest_prompt,
        answer_tokens=batch.longest_tokens - batch.longest_prompt,
        weights_bytes=engine_bytes,
        layout=engine_layout(device=device, exactness=source.exactness, runner=runner),
        cache=cache_type(device=device, runner=runner, weights=source.weights, kv_cache=rollout.kv_cache),
        sleeps=rollout.sleep,
        may_sleep=rollout.asynchrony.steps == 0,
        page_tokens=_PAGE_TOKENS["cuda" if device.startswith("cuda") else "cpu"],
    )
