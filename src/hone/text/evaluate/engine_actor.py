"""Generation with a token policy: prompts, the engine as an actor, and text that is streamed while it is drawn."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Completion, GenerationEngine, Request, SamplingParams
from hone.engine.canary import WeightFingerprint
from hone.engine.clients.http import ServerEngine
from hone.engine.engine import DrawnToken, EmbeddedEngine
from hone.engine.grammar import GrammarCompiler
from hone.engine.open_engine import NO_GUARANTEES, EngineGuarantees, EngineSize, open_engine
from hone.engine.protocol import RunnerKind
from hone.engine.session import TokenizerRules
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.chat_rows import asked_row
from hone.text.tasks.dataset import Example, ExampleDataset
from hone.text.tasks.files import MAX_FAULTS_SHOWN
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import Prompt


class _PolicyEngine(GenerationEngine, Protocol):
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


@dataclass
class EngineActor:
    """Engine as an actor: one that the policy's weights are published to."""

    engine: _PolicyEngine
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

    def release_memory(self) -> None:
        """Free the memory of an embedded engine until it is needed."""
        if isinstance(self.engine, EmbeddedEngine):
            self.engine.release_memory()

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
    """Make an engine over the policy's own module, with slots for the longest prompt and answer. Raises ConfigError or
    ResourceError if the requested `runner` is unavailable."""
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
    grammars = GrammarCompiler(vocab, tokenizer.eos_ids, tokenizer.backend.to_str)
    return TokenizerRules(eos=tokenizer.eos_ids, vocab=vocab, decode=tokenizer.decode, grammars=grammars)


def check_grammar(sampling: SamplingParams, tokenizer: Tokenizer) -> None:
    """Raise ConfigError for a grammar that cannot be read, or that no token of the tokenizer begins."""
    if sampling.grammar is not None:
        GrammarCompiler(tokenizer.size, tokenizer.eos_ids, tokenizer.backend.to_str).start(sampling.grammar)


def make_client(policy: TokenPolicy, config: ServerEngine, *, slots: int, seed: int) -> _PolicyEngine:
    """Make the client of a server, or of several, that receive the policy's weights. Raises ConfigError for an invalid
    address, and for a policy with `exactness = "bitwise"`."""
    if policy.decoder.exactness == "bitwise":
        raise ConfigError('model.exactness = "bitwise" needs the torch runner: server arithmetic differs')
    if len(config.urls) == 1:
        from hone.engine.clients.remote import connect_engine as connect  # noqa: PLC0415 - for servers alone
    else:
        from hone.engine.fleet.server_transport import open_server_fleet as connect  # noqa: PLC0415 - as above
    return connect(
        config, model=policy.decoder, save=policy.save_merged, text=tokenizer_rules(policy), slots=slots, seed=seed
    )


def make_prompts(
    examples: ExampleDataset, task: TaskConfig, tokenizer: Tokenizer, *, room: int
) -> tuple[list[Prompt], list[str]]:
    """Tokenise prompts; returns them with warnings. Raises DataError naming the prompts with more than `room` tokens,
    unless `task.on_long_prompt` drops or truncates them, and ConfigError if there is no room at all."""
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
    asked = asked_row(task, example.prompt, example.columns, tokenizer)
    seen = task.fill_template(example.prompt, example.columns)
    return Prompt(id=example.id, content=seen, tokens=asked.tokens, columns=example.columns, asked=asked)


# ------------------------------------------------------------------------------------------------------------ streaming

Decode: TypeAlias = Callable[[NDArray[np.int32]], str]
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class StreamListener(Protocol):
    """Receiver of streamed text. Text is never retracted."""

    def on_prompts(self, prompts: Sequence[str]) -> None:
        """Begin: answer k belongs to `prompts[k]`; prompts may repeat."""

    def on_text(self, answer: int, text: str) -> None:
        """Receive more text of answer number `answer`."""

    def on_end(self, answer: int, text: str) -> None:
        """Receive the last text of answer number `answer`."""


@dataclass(slots=True)
class IncrementalDetokenizer:
    """Text of one answer. Its last token is held back: a stop string may end in it, or it may be sampled again."""

    decode: Decode
    emitted: str = ""
    tokens: list[int] = field(default_factory=list[int])
    _prefix_start: int = 0
    """Start of the context for decoding the next tokens, up to `_known`: a character may consist of several."""
    _prefix_end: int = 0

    def add(self, place: int, token: int) -> str:
        """Set token number `place` to `token`; returns the new text."""
        self.tokens[place:] = [token]
        end = len(self.tokens) - 1
        before = self._text(self._prefix_end)
        now = self._text(end)
        if now.endswith(INCOMPLETE_CHARACTER) or not now.startswith(before):
            return ""
        self._prefix_start, self._prefix_end = self._prefix_end, end
        piece = now[len(before) :]
        self.emitted += piece
        return piece

    def finish(self, whole: str) -> str:
        """Rest of the finished answer; the whole answer on a new line if its beginning changed."""
        return whole[len(self.emitted) :] if whole.startswith(self.emitted) else f"\n{whole}"

    def _text(self, end: int) -> str:
        return self.decode(np.array(self.tokens[self._prefix_start : end], np.int32))


@dataclass
class StreamingEngine:
    """Engine with streaming to a listener; implements `core.generation.GenerationSession`."""

    engine: EmbeddedEngine
    decode: Decode
    listener: StreamListener
    _texts: dict[tuple[str, int], tuple[int, IncrementalDetokenizer]] = field(
        default_factory=dict[tuple[str, int], tuple[int, IncrementalDetokenizer]]
    )

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Queue requests, and report their tokens from now on."""
        self.engine.submit(requests, round=round)
        for request in requests:
            for sample in range(request.first_sample, request.first_sample + request.samples):
                number = self._texts.get((request.id, sample), (len(self._texts), None))[0]
                self._texts[request.id, sample] = number, IncrementalDetokenizer(self.decode)
        self.engine.observer = self._observe

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """The engine's next completion, reported as ended."""
        try:
            completion = self.engine.next_completion(request_ids, wake=wake)
        finally:
            if not self.engine.has_requests():
                self.engine.observer = None
        if completion is None:
            return None
        number, text = self._texts[completion.request_id, completion.sample_index]
        self.listener.on_end(number, text.finish(completion.text(self.decode)))
        return completion

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop these requests, and report nothing more of them."""
        self.engine.cancel(request_ids)
        if not self.engine.has_requests():
            self.engine.observer = None

    def reset_stats(self) -> None:
        self.engine.reset_stats()

    def _observe(self, tokens: Sequence[DrawnToken]) -> None:
        for one in tokens:
            number, text = self._texts[one.request_id, one.sample_index]
            if piece := text.add(one.position, one.token):
                self.listener.on_text(number, piece)
