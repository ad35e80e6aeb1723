"""Generation with a token policy: prompts, and the engine as an actor."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Completion, OnPublish, Request
from hone.engine.canary import WeightCanary
from hone.engine.choose import RunnerKind, choose_runner
from hone.engine.clients.config import ServerEngine
from hone.engine.clients.connect import connect_engine
from hone.engine.clients.remote import RemoteEngine
from hone.engine.engine import EmbeddedEngine
from hone.engine.limits import CUDA_PASS_TOKENS, PASS_TOKENS, default_limits
from hone.engine.stops import TokenizerRules
from hone.envs.text.dataset import Example, ExampleDataset
from hone.envs.text.files import MAX_FAULTS_SHOWN
from hone.envs.text.task import TaskConfig
from hone.envs.text.world import Prompt
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer

FIXED_TOKENS: Final = 512
"""Tokens of a pass with batch-invariant results."""


@dataclass
class EngineActor:
    """Engine as an actor: the embedded one with the trainer's weights, or a server that receives them."""

    engine: EmbeddedEngine | RemoteEngine
    reported_notes: set[str] = field(default_factory=set[str])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        self.engine.submit(requests, round=round)

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        return self.engine.next_completion(request_ids, wake=wake)

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.engine.cancel(request_ids)

    def reset_stats(self) -> None:
        self.engine.reset_stats()

    def metrics(self) -> Metrics:
        """Metrics of the latest rollout: times and engine figures that do not depend on slots or pages."""
        stats = self.engine.stats
        metrics: Metrics = {
            "time/generate_s": stats.total_s,
            "time/generate_model_s": stats.runner_s,
            "time/generate_prefill_s": stats.prefill_s,
            "time/generate_idle_s": stats.idle_slot_s / stats.slots,
            "time/generate_tail_s": stats.tail_slot_s / stats.slots,
            "rollout/tokens": float(stats.tokens),
        }
        if isinstance(self.engine, EmbeddedEngine) and self.engine.on_publish == "keep":
            metrics["rollout/stale_keys"] = stats.stale_tokens / max(stats.tokens, 1)
        fingerprint = self.engine.fingerprints.get(self.engine.version)
        return metrics if fingerprint is None else {**metrics, "rollout/canary_gap": fingerprint.mean_gap_nats}

    def notes(self) -> list[str]:
        """Notes for the user about generation, each once; a server is known after its first publication."""
        fresh = {self.engine.note} - self.reported_notes - {""}
        self.reported_notes |= fresh
        return sorted(fresh)

    def publish(self, policy: TokenPolicy, version: int) -> None:
        """Publish the trainer's current weights to the engine, and drop the KV cache of older weights."""
        del policy
        self.engine.publish(version)

    def close(self) -> None:
        """Cancel the open requests of a server."""
        if isinstance(self.engine, RemoteEngine):
            self.engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGuarantees:
    """Guarantees that a training run needs of its engine."""

    batch_invariant: bool = False
    """Batch-invariant answers on CUDA too; every pass then costs as much as the largest."""
    on_publish: OnPublish | None = None
    """Treatment of unfinished answers when weights are published; the engine then has its own copy of the weights, so
    that the trainer may update in parallel. None: there are no unfinished answers."""
    cache_bytes: int | None = None
    """Largest KV cache; None: room for the longest answer in every slot. Answers that do not fit wait, or are read
    again."""


def make_engine(
    policy: TokenPolicy,
    *,
    slots: int,
    longest_prompt: int,
    max_tokens: int,
    seed: int,
    runner: RunnerKind = "auto",
    guarantees: EngineGuarantees = EngineGuarantees(),
) -> EmbeddedEngine:
    """Make an engine over the policy's own module, with slots for the longest prompt and answer.

    Raises ConfigError or ResourceError if the requested `runner` is unavailable.
    """
    tokenizer, decoder = policy.tokenizer, policy.decoder
    vocab = min(tokenizer.size, decoder.config.vocab_size)
    fixed = max(FIXED_TOKENS, 2 * slots) if guarantees.batch_invariant else None
    apart = guarantees.on_publish is not None
    chosen = choose_runner(runner, decoder, vocab_used=vocab, fixed_tokens=fixed, copy_weights=apart)
    limits = default_limits(
        slots=slots,
        page_tokens=chosen.runner.page_tokens,
        sequence_tokens=min(longest_prompt + max_tokens, decoder.config.max_positions),
        vocab=vocab,
        pass_tokens=CUDA_PASS_TOKENS if decoder.device.type == "cuda" and fixed is None else PASS_TOKENS,
    )
    if guarantees.cache_bytes is not None:
        shape = decoder.config
        number_bytes = torch.finfo(chosen.dtype or decoder.dtype).bits // 8
        page = 2 * shape.layers * shape.kv_heads * shape.head_dim * limits.page_tokens * number_bytes
        pages = max(limits.least_pages, min(limits.pages, guarantees.cache_bytes // page))
        limits = replace(limits, pages=pages)
    return EmbeddedEngine(
        chosen,
        TokenizerRules(eos=tokenizer.eos_ids, vocab=vocab, decode=tokenizer.decode),
        limits=limits,
        seed=seed,
        on_publish=guarantees.on_publish or "recompute",
        canary=WeightCanary(decoder, vocab=vocab, dtype=chosen.dtype),
    )


def make_client(policy: TokenPolicy, config: ServerEngine, *, slots: int, seed: int) -> RemoteEngine:
    """Make the client of a server that receives the policy's weights. Raises ConfigError for an invalid address, and
    for a policy with `exactness = "bitwise"`."""
    if policy.decoder.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" needs the torch runner: server arithmetic differs')
    tokenizer = policy.tokenizer
    vocab = min(tokenizer.size, policy.decoder.config.vocab_size)
    return connect_engine(
        config,
        model=policy.decoder,
        save=policy.save_merged,
        text=TokenizerRules(eos=tokenizer.eos_ids, vocab=vocab, decode=tokenizer.decode),
        slots=slots,
        seed=seed,
    )


def make_prompts(
    examples: ExampleDataset, task: TaskConfig, tokenizer: Tokenizer, *, room: int
) -> tuple[list[Prompt], list[str]]:
    """Tokenise prompts; returns them with warnings.

    Raises DataError naming the prompts with more than `room` tokens, unless `task.on_long_prompt` drops or truncates
    them, and ConfigError if there is no room at all.
    """
    if room < 1:
        raise ConfigError(
            f"max_tokens fills the model's context and leaves {room} tokens for a prompt; lower max_tokens, or "
            "use a model with more positions"
        )
    prompts = examples.apply(lambda example: _prompt(example, task, tokenizer))
    long = [prompt for prompt in prompts if len(prompt.tokens) > room]
    if not long:
        return prompts, []
    shown = ", ".join(f"{prompt.id} ({len(prompt.tokens)} tokens)" for prompt in long[:MAX_FAULTS_SHOWN])
    message = (
        f"{examples.source}: {len(long)} of {len(prompts)} prompts are longer than the {room} tokens that the model's "
        f"context leaves for a prompt: {shown}{', ...' if len(long) > MAX_FAULTS_SHOWN else ''}"
    )
    if task.on_long_prompt == "truncate":
        return [replace(prompt, tokens=prompt.tokens[-room:]) for prompt in prompts], [
            f"{message} (their ends are kept)"
        ]
    if task.on_long_prompt == "error" or len(long) == len(prompts):
        raise DataError(
            f"{message}; shorten them, lower max_tokens, use a model with more positions, or set task.on_long_prompt = "
            '"drop" or "truncate"'
        )
    return [prompt for prompt in prompts if len(prompt.tokens) <= room], [f"{message} (dropped)"]


def _prompt(example: Example, task: TaskConfig, tokenizer: Tokenizer) -> Prompt:
    turns = task.fill_template(example.prompt, example.columns)
    tokens = tokenizer.encode(turns) if isinstance(turns, str) else tokenizer.apply_chat(turns)
    return Prompt(id=example.id, content=turns, tokens=tokens, columns=example.columns)
