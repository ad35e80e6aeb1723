"""The embedded engine: requests in, completions out as they finish, over a scheduler and a runner.

It orders planning, passes and results, and handles new versions of the weights. A completion depends only on its
request, the seed, the round and the weights, bit for bit where the runner is exact: random numbers are counter-based,
and a runner's results do not depend on the batch.

Streams of sampled tokens to listeners, during generation.

Maps the results of a pass to requests; the scheduler is not involved.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DivergedError
from hone.core.generation import OnPublish, Request, ScoreRequest, ScoreResult
from hone.core.random import key, keys, uniforms_from_keys
from hone.engine.canary import WeightCanary, WeightFingerprint
from hone.engine.grammar import GrammarState
from hone.engine.native.runner import NativeRunner
from hone.engine.protocol import RunnerChoice, UnmergedAdapter
from hone.engine.samples import (
    CachedUniforms,
    LikeliestRow,
    PassPlan,
    PrefillGroup,
    RunningBatch,
    SampleState,
    likeliest_row,
)
from hone.engine.scheduler import PassOutcome, RecordedVersions, Scheduler, SchedulerLimits
from hone.engine.session import (
    EngineSession,
    StopRules,
    TokenizerRules,
    check_adapters,
    check_requests,
    check_score_requests,
)
from hone.engine.torch_runner import TorchRunner
from hone.engine.work import SamplerOutput

# ------------------------------------------------------------------------------------------------------------ observers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnToken:
    """One token of an unfinished answer."""

    request_id: str
    sample_index: int
    position: int
    """Index of the token in its answer, from 0. A preempted answer may sample its last token again: the latest
    counts."""
    token: int
    logp: float
    """Nats, of the whole policy."""
    likeliest: LikeliestRow | None = None
    """Ids and log-probabilities of the likeliest tokens there, where the request asks for them."""


TokenObserver: TypeAlias = Callable[[Sequence[DrawnToken]], None]
"""Called in every pass with its tokens, before completions that end with them are returned. It must not call the
engine."""


def _drawn_tokens(plan: PassPlan, table: RunningBatch, drawn: SamplerOutput) -> list[DrawnToken]:
    """Tokens sampled in the pass of `plan`, before `table` records them, without scored tokens."""
    owners: list[tuple[SampleState, int, int]] = [
        *zip(table.samples[: plan.rows], table.drawn_tokens[: plan.rows].tolist(), range(plan.rows), strict=True),
    ]
    draw = plan.rows
    for chunk in plan.chunks:
        owners += [(sample, len(sample.tokens), draw + at) for at, sample in enumerate(chunk.drawing_samples)]
        draw += chunk.draws
    tokens, logp = drawn.token.tolist(), drawn.logp.tolist()
    return [
        DrawnToken(
            request_id=sample.request.id,
            sample_index=sample.number,
            position=place,
            token=tokens[draw],
            logp=logp[draw],
            likeliest=likeliest_row(drawn, draw, top) if (top := sample.request.sampling.top_logprobs) else None,
        )
        for sample, place, draw in owners
    ]


# -------------------------------------------------------------------------------------------------------------- streams


_WORD: Final = (1 << 64) - 1
_ZEROS: Final = np.zeros(4, np.uint64)
_FIRST: Final = 64
"""Numbers of a stream that are generated early."""
_MOST: Final = 1 << 18
"""Largest total of numbers generated early."""


class _SampleStreams:
    """Generators are reused: making a Philox generator takes three times as long as setting its key."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._bits = np.random.Philox(key=0)
        self._draws = np.random.Generator(self._bits)
        self._lock = threading.Lock()

    def uniforms(self, *ids: int | str, count: int) -> NDArray[np.float64]:
        """`core.random.uniforms(seed, "sample", *ids, count=count)`."""
        wide = key(self._seed, "sample", *ids)
        with self._lock:
            self._bits.state = {
                "bit_generator": "Philox",
                "state": {"counter": _ZEROS, "key": np.array([wide & _WORD, wide >> 64], np.uint64)},
                "buffer": _ZEROS,
                "buffer_pos": 4,
                "has_uint32": 0,
                "uinteger": 0,
            }
            return self._draws.random(count)

    def stream_of(self, *ids: int | str) -> Callable[[int], NDArray[np.float64]]:
        """Return one sample's stream: a function of the count, to `[count]` numbers."""
        return lambda count: self.uniforms(*ids, count=count)

    def prefetch(
        self, asked: Sequence[tuple[tuple[int | str, ...], range]], *, count: int
    ) -> list[NDArray[np.float64]]:
        """First numbers, `count` or as many as pay, of `stream_of(*ids, k)` for each (ids, samples) and k."""
        if not asked:
            return []
        words = np.concatenate(
            [keys(self._seed, "sample", *ids, count=some.stop)[some.start :] for ids, some in asked if some.stop]
        )
        return list(uniforms_from_keys(words, count=min(count, _FIRST, _MOST // len(words))))


# --------------------------------------------------------------------------------------------------------------- engine


_REMEMBERED: Final = 64
"""Number of versions whose fingerprints are kept."""


class EmbeddedEngine(EngineSession):
    """Implements `core.generation.GenerationEngine`. One thread at a time runs a pass. `publish` may come from another
    thread: it goes before the next pass, and returns once the weights were read, so that they may change again."""

    def __init__(
        self,
        chosen: RunnerChoice,
        text: TokenizerRules,
        *,
        limits: SchedulerLimits,
        seed: int,
        on_publish: OnPublish = "recompute",
        canary: WeightCanary | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`canary`: check after every publish that the runner has the trainer's weights.

        `on_publish = "finish"` needs a runner with weights of its own, or a `drain()` before they change.
        """
        self.runner, self.own_weights, self.note = chosen.runner, chosen.own_weights, chosen.note
        self.seed = seed
        self.on_publish: OnPublish = on_publish
        self._streams = _SampleStreams(seed)
        self.fingerprints: dict[int, WeightFingerprint] = {}
        """Fingerprints of the latest versions."""
        self.observer: TokenObserver | None = None
        """Listener of sampled tokens; without one there is no cost."""
        self.clock: Clock = clock or SystemClock()
        self._limits, self._text, self._canary = limits, text, canary
        self._ends = StopRules(text)
        self._scheduler = Scheduler(limits)
        self._scored: dict[int, PrefillGroup] = {}
        self._replay: RecordedVersions | None = None
        self._order = 0
        self._opened = self._sealed = False
        self._refused = ""
        """Reason for rejecting the last published weights, if any."""
        self._door = threading.Lock()
        """Taken before the lock: a thread that runs passes takes the lock again and again."""
        super().__init__(threading.RLock(), slots=limits.slots, pages=limits.pages)

    @property
    def exact(self) -> bool:
        """True if completions are bitwise independent of batch mates, as far as is known."""
        return self.runner.exact

    @property
    def version(self) -> int:
        """Version of the weights."""
        return self._scheduler.version

    def metrics(self) -> Metrics:
        """Share of the tokens that were sampled with a KV cache of older weights, where that is kept."""
        if self.on_publish != "keep":
            return {}
        return {"rollout/stale_keys": self.stats.stale_tokens / max(self.stats.tokens, 1)}

    # ----------------------------------------------------------------------------------------- asking

    def score(self, texts: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Compute log-probabilities of given tokens with the arithmetic of sampling. With an exact runner they equal
        the recorded ones bit for bit. Generation continues meanwhile.

        Raises DataError naming every text that cannot be run.
        """
        orders = self.submit_scores(texts)
        while any(order not in self._scored for order in orders):
            self._raise_if_paused()
            self.step()
        return [self._scored.pop(order).scores() for order in orders]

    def submit_scores(self, texts: Sequence[ScoreRequest]) -> list[int]:
        """Queue texts to be scored; returns a number for each, by which `poll_scores` finds its result.

        Raises DataError naming every text that cannot be run.
        """
        check_score_requests(texts, context=self._limits.sequence_tokens, vocab=self._text.vocab)
        check_adapters((text.adapter for text in texts), self._adapters)
        orders: list[int] = []
        with self._entering():
            for place, text in enumerate(texts):
                order = self._take_order(1)
                request = Request(
                    id=f"text {place}", prompt=text.prompt, samples=1, sampling=text.sampling, adapter=text.adapter
                )
                self._scheduler.add(PrefillGroup.to_score(order, text, request))
                orders.append(order)
        return orders

    def poll_scores(self, orders: Collection[int]) -> dict[int, ScoreResult]:
        """Take the results of these texts that are finished already, without running a pass."""
        with self._entering():
            return {order: self._scored.pop(order).scores() for order in orders if order in self._scored}

    def cancel_scores(self, orders: Collection[int]) -> None:
        """Drop these texts: queued, running, or finished and not taken."""
        with self._entering():
            self._scheduler.cancel(lambda sample: sample.order in orders)
            for order in orders:
                self._scored.pop(order, None)

    @property
    def held_pages(self) -> int:
        """Pages of the KV cache that requests in progress hold, beside those of the prefix cache."""
        with self._entering():
            return self._scheduler.held_pages

    def _entering(self) -> AbstractContextManager[object]:
        return _Entrance(self._door, self._lock)

    def _drop(self, request_ids: Collection[str] | None) -> None:
        self._scheduler.cancel(lambda sample: request_ids is None or sample.request.id in request_ids)

    # ---------------------------------------------------------------------------------------- weights

    def add_adapter(self, name: str, adapter: UnmergedAdapter) -> None:
        """Let requests name an unmerged adapter: those of several adapters share a pass. Raises ConfigError for a
        runner without adapters."""
        if not isinstance(self.runner, TorchRunner | NativeRunner) or not self.runner.takes_adapters:
            raise ConfigError(
                "adapters by request need a dense model and products in float32, compiled or by torch; this runner is "
                f"{self.runner.name}"
            )
        with self._entering():
            self._adapters[name] = adapter

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter that no request names any more."""
        with self._entering():
            del self._adapters[name]

    @property
    def _adapters(self) -> dict[str, UnmergedAdapter]:
        return self.runner.adapters if isinstance(self.runner, TorchRunner | NativeRunner) else {}

    def publish(self, version: int) -> None:
        """Sample with new weights, as `version`, from here on. With `on_publish = "finish"` running requests end first.
        Caches of older weights are not read by requests that begin later.

        Raises DivergedError when the runner's weights are not the trainer's: nothing is sampled until others are
        published. RuntimeError for `finish` while the engine is paused, or reads weights that have changed already.
        """
        with self._door, self._lock:
            if self.on_publish == "finish" and self._scheduler.has_active:
                if not self.own_weights:
                    raise RuntimeError(
                        "running answers cannot finish under replaced weights: call drain() before they change, or "
                        'choose on_publish = "recompute"'
                    )
                self._finish()
            self._scheduler.admitting = True
            self._scheduler.publish(version, keep=self.on_publish == "keep")
            self._load()

    def release_memory(self) -> None:
        """Free the runner's pages and packed weights until the next pass or publication; nothing where requests are in
        progress, or weights are sealed. The next answers have the same bits."""
        with self._door, self._lock:
            if not self._scheduler.busy and not self._sealed:
                self._scheduler.clear()
                self.runner.release()
                self._opened = False

    def seal(self) -> None:
        """Keep the published weights for good, and read the model's no more, so that they may be freed. Raises
        RuntimeError for an engine that computes with the model's own."""
        if not self.own_weights:
            raise RuntimeError("this engine computes with the model's own weights: they have to stay")
        with self._door, self._lock:
            self._sealed = True

    def replay(self, recorded: RecordedVersions) -> None:
        """Draw every token of the requests from now on by its recorded version. `publish` is then not called: weights
        are fetched as they are needed."""
        self._replay = recorded
        self._scheduler.replay, self._scheduler.version = self.on_publish, -1

    def drain(self) -> None:
        """Start nothing new, and finish running requests, whose completions wait to be fetched. For weights that are
        about to change in place; after `publish` the rest starts.
        """
        with self._door, self._lock:
            self._finish()

    def pause(self) -> None:
        """Start no further pass until `resume`; the current pass ends first."""
        with self._door, self._lock:
            self._paused = True

    def resume(self) -> None:
        """Continue after `pause`."""
        with self._lock:
            self._paused = False

    def _finish(self) -> None:
        self._scheduler.admitting = False
        while self._scheduler.has_active:
            self._pass()

    # ------------------------------------------------------------------------------------------ passes

    def _check(self, requests: Sequence[Request]) -> None:
        check_requests(requests, context=self._limits.sequence_tokens, vocab=self._text.vocab)
        check_adapters((request.adapter for request in requests), self._adapters)
        if self._text.decode is None and any(request.sampling.stop for request in requests):
            raise ValueError("stop strings need a decode function; give one in TextRules")
        for grammar in dict.fromkeys(one.sampling.grammar for one in requests if one.sampling.grammar is not None):
            if self._text.grammars is None:
                raise ConfigError("this engine knows no grammars of answers; use one in the process of the run")
            self._text.grammars.start(grammar)

    def _queue(self, requests: Sequence[Request], number: int) -> None:
        most = max((request.sampling.max_tokens for request in requests), default=0)
        keys = [(number, *request.draw_key) for request in requests]
        samples = [range(request.first_sample, request.first_sample + request.samples) for request in requests]
        known = iter(self._streams.prefetch(list(zip(keys, samples, strict=True)), count=most))
        for request, ids, places in zip(requests, keys, samples, strict=True):
            order = self._take_order(1 + 2 * request.samples)
            members = [
                SampleState(
                    order + 1 + place,
                    request,
                    sample,
                    CachedUniforms(self._streams.stream_of(*ids, sample), row),
                    grammar=self._grammar_state(request),
                )
                for place, (sample, row) in enumerate(zip(places, islice(known, request.samples), strict=True))
            ]
            groups = [members] if self._replay is None else self._replay.split(members)
            for number, group in enumerate(groups):
                first = order if not number else order + request.samples + number
                self._scheduler.add(PrefillGroup(first, np.ascontiguousarray(request.prompt, np.int32), group))

    def _grammar_state(self, request: Request) -> GrammarState | None:
        grammar, compiler = request.sampling.grammar, self._text.grammars
        return None if grammar is None or compiler is None else compiler.start(grammar)

    def step(self) -> None:
        """Run a pass, if there is work and the engine is not paused; `poll` and `poll_scores` find what it finished.

        Raises as `next_completion` does.
        """
        with self._door:  # whoever waits for the lock goes first
            pass
        with self._lock:
            if not self._paused:
                self._pass()

    def _step(self) -> None:
        self.step()

    def _pass(self) -> None:
        self._raise_if_paused()
        if self._refused:
            raise DivergedError(self._refused)
        if not self._scheduler.busy:
            return
        began = self.clock.monotonic_s()
        if not self._opened:
            self._load()
        plan = self._scheduler.plan(began)
        while plan is None and self._replay is not None and self._scheduler.held:
            self._fetch_weights(self._replay)
            plan = self._scheduler.plan(began)
        if plan is None:
            raise RuntimeError("nothing can run; after drain(), publish() lets the rest begin")
        if len(plan.copy_sources):
            self.runner.copy(plan.copy_sources, plan.copy_targets)
        start = self.clock.monotonic_s()
        drawn = self.runner.run(plan.batch)
        spent = self.clock.monotonic_s() - start
        if not np.isfinite(drawn.logp).all():
            self._fail(plan, drawn.logp)
        if self.observer is not None:
            self.observer(_drawn_tokens(plan, self._scheduler.table, drawn))
        outcome = self._scheduler.apply_results(plan, drawn, self._ends)
        self._hand_out(outcome)
        self._count(plan.rows, len(plan.batch.tokens), spent)
        self._stats.total_s += self.clock.monotonic_s() - began

    def _fetch_weights(self, replay: RecordedVersions) -> None:
        """Go on with the version that the answers of a replay wait for: nothing is left for the present one."""
        if self._scheduler.has_waiting:
            raise RuntimeError("held answers leave no pages for others; replay with more pages")
        version = self._scheduler.held.next_version
        replay.load(version)
        self._scheduler.publish(version, keep=self.on_publish == "keep")
        self._load()

    def _hand_out(self, outcome: PassOutcome) -> None:
        for sample, finish in outcome.finished:
            behind = (self._ends.trailing_characters(sample) or 0) if finish == "stop" else 0
            self._done.append(sample.completion(finish, behind))
        for fill in outcome.scored_groups:
            self._scored[fill.order] = fill

    def _count(self, rows: int, tokens: int, spent_s: float) -> None:
        stats, scheduler, counts = self._stats, self._scheduler, self._scheduler.counts
        stats.runner_s += spent_s
        stats.prefill_s += spent_s * (1 - rows / tokens)
        if rows:
            stats.steps += 1
            stats.row_steps += rows
            stats.page_steps += self._limits.pages - scheduler.pool.free
            idle = (self._limits.slots - rows) * spent_s
            stats.idle_slot_s += idle
            stats.tail_slot_s += 0.0 if scheduler.has_waiting else idle
        stats.tokens += counts.drawn_tokens
        stats.prefill_tokens += counts.prefill_tokens
        stats.cached_tokens += counts.cached_tokens
        stats.scored_tokens += counts.scored_tokens
        stats.preempted += counts.preempted
        stats.stale_tokens += counts.stale_tokens
        counts.reset()

    def _fail(self, plan: PassPlan, logp: np.ndarray) -> None:
        """Requests with non-finite logits. Non-finite keys would corrupt the next requests with these pages."""
        asked = plan.request_ids(self._scheduler.table, np.flatnonzero(~np.isfinite(logp)))
        names, version = map(repr, asked), self.version
        self._scheduler.clear()
        self._forget()
        self._opened = False
        raise DivergedError(f"the model's logits are not finite (version {version}, requests {', '.join(names)})")

    def _load(self) -> None:
        """Publish the weights to the runner, and check its fingerprint; sealed weights are there already."""
        if not self._sealed:
            self.runner.publish()
        if not self._opened:
            self.runner.reserve(self._limits.pages + 1)  # the last page is the canary's
            self._opened = True
        if self._canary is not None and not self._sealed:
            try:
                result = self._canary.check(self.version, self.runner, page=self._limits.pages)
            except DivergedError as error:
                self._refused = str(error)
                raise
            self._refused = ""
            self.fingerprints[self.version] = result
            while len(self.fingerprints) > _REMEMBERED:
                del self.fingerprints[next(iter(self.fingerprints))]

    def _take_order(self, count: int) -> int:
        self._order += count
        return self._order - count


class _Entrance(AbstractContextManager[None]):
    """A lock that is taken behind a door: a thread that runs passes and takes the lock again and again waits there."""

    def __init__(self, door: threading.Lock, lock: AbstractContextManager[bool]) -> None:
        self._door, self._lock = door, lock

    def __enter__(self) -> None:
        with self._door:
            self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(None, None, None)
