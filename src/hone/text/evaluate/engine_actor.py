"""Generation with a token policy: prompts, and the engine as an actor."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Completion, GenerationEngine, Request
from hone.engine.canary import WeightFingerprint
from hone.engine.choose import RunnerKind
from hone.engine.clients.config import ServerEngine
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import NO_GUARANTEES, EngineGuarantees, EngineSize, open_engine
from hone.engine.stops import TokenizerRules
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.dataset import Example, ExampleDataset
from hone.text.tasks.files import MAX_FAULTS_SHOWN
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import Prompt


class PolicyEngine(GenerationEngine, Protocol):
    """An engine that samples from a policy in training: embedded, a server's client, or a fleet of replicas."""

    @property
    def own_weights(self) -> bool:
        """True if its weights change on `publish` only."""
        ...

    @property
    def note(self) -> str:
        """Notes for the user, one a line; empty if none."""
        ...

    @property
    def fingerprints(self) -> Mapping[int, WeightFingerprint]:
        """Fingerprints of the latest published versions."""
        ...

    def metrics(self) -> Metrics:
        """Metrics of its own since the last `reset_stats`."""
        ...

    def summary(self) -> str:
        """A sentence on the whole run; empty if there is nothing to say."""
        ...

    def close(self) -> None:
        """End what it has open elsewhere."""
        ...


@dataclass
class EngineActor:
    """Engine as an actor: one that the policy's weights are published to."""

    engine: PolicyEngine
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
        metrics |= self.engine.metrics()
        fingerprint = self.engine.fingerprints.get(self.engine.version)
        return metrics if fingerprint is None else {**metrics, "rollout/canary_gap": fingerprint.mean_gap_nats}

    def notes(self) -> list[str]:
        """Notes for the user about generation, each once; a server is known after its first publication."""
        fresh = set(self.engine.note.splitlines()) - self.reported_notes
        self.reported_notes |= fresh
        return sorted(fresh)

    def closing_lines(self) -> list[str]:
        """Lines on the whole run, for its end."""
        summary = self.engine.summary()
        return [summary] if summary else []

    def publish(self, policy: TokenPolicy, version: int) -> None:
        """Publish the trainer's current weights to the engine, and drop the KV cache of older weights."""
        del policy
        self.engine.publish(version)

    def close(self) -> None:
        """End what the engine has open elsewhere."""
        self.engine.close()


def make_engine(
    policy: TokenPolicy,
    *,
    slots: int,
    longest_prompt: int,
    max_tokens: int,
    seed: int,
    runner: RunnerKind = "auto",
    guarantees: EngineGuarantees = NO_GUARANTEES,
) -> EmbeddedEngine:
    """Make an engine over the policy's own module, with slots for the longest prompt and answer.

    Raises ConfigError or ResourceError if the requested `runner` is unavailable.
    """
    return open_engine(
        policy.decoder,
        tokenizer_rules(policy),
        size=EngineSize(slots=slots, sequence_tokens=longest_prompt + max_tokens),
        seed=seed,
        runner=runner,
        guarantees=guarantees,
    )


def tokenizer_rules(policy: TokenPolicy) -> TokenizerRules:
    """The tokenizer's part in an engine over the policy."""
    tokenizer = policy.tokenizer
    vocab = min(tokenizer.size, policy.decoder.config.vocab_size)
    return TokenizerRules(eos=tokenizer.eos_ids, vocab=vocab, decode=tokenizer.decode)


def make_client(policy: TokenPolicy, config: ServerEngine, *, slots: int, seed: int) -> PolicyEngine:
    """Make the client of a server, or of several, that receive the policy's weights. Raises ConfigError for an invalid
    address, and for a policy with `exactness = "bitwise"`."""
    if policy.decoder.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" needs the torch runner: server arithmetic differs')
    from hone.engine.clients.connect import connect_engine  # noqa: PLC0415 - the clients of other engines
    from hone.engine.fleet.open_servers import open_server_fleet  # noqa: PLC0415 - as above

    connect = connect_engine if len(config.urls) == 1 else open_server_fleet
    return connect(
        config,
        model=policy.decoder,
        save=policy.save_merged,
        text=tokenizer_rules(policy),
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
