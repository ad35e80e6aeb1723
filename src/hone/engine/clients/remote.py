"""A server as an engine: concurrent requests, weights through a folder, and recovery when the server is restarted.

Each answer is a request of its own, so that it can be repeated alone. Requests wait in threads of a pool; the calling
thread (`generate`, `stream`) processes their replies.

Partial completions of a server: tokens so far, the next request, and validation of replies.

Pure bookkeeping. An answer interrupted by new weights or a server's restart is continued from its tokens so far; the
seed of each piece is a function of (run seed, round, request, sample, tokens so far), so that a repeated request gives
the same tokens on a reproducible server.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, ErrorCollector
from hone.core.generation import Completion, FinishReason, OnPublish, Request, SamplingParams, ScoreRequest, ScoreResult
from hone.core.random import key
from hone.engine.canary import WeightCanary, WeightFingerprint
from hone.engine.clients.handover import ForeignWeightsError, WeightTransfer
from hone.engine.clients.http import (
    RequestCancelledError,
    ServerEngine,
    ServerError,
    UnreachableError,
)
from hone.engine.clients.servers import open_protocol
from hone.engine.clients.wire import (
    FEATURE_DESCRIPTIONS,
    MOST_SEED,
    GenerateRequest,
    GenerateResponse,
    ServerFeature,
    ServerFeatures,
    ServerProtocol,
)
from hone.engine.protocol import GenerationModel
from hone.engine.session import EngineSession, StopRules, TokenizerRules, check_requests, check_score_requests

# --------------------------------------------------------------------------------------------------------------- checks


def _check_sampling_supported(samplings: Iterable[SamplingParams], abilities: ServerFeatures) -> None:
    """Raise ConfigError with every setting under which the server could not report the policy's log-probabilities."""
    faults = ErrorCollector(ConfigError)
    for sampling in dict.fromkeys(samplings):
        if sampling.top_logprobs:
            faults.add(f"{abilities.server}: hone's clients ask for no top_logprobs, got {sampling.top_logprobs}")
        if sampling.stop_tokens is not None:
            faults.add(f"{abilities.server}: stop_tokens need the embedded engine; leave them out")
        if sampling.grammar is not None:
            faults.add(
                f"{abilities.server}: a grammar of answers needs the embedded engine, which records the tokens that it "
                "left for the trainer; leave the grammar out, or rollout.runner"
            )
        elif sampling.truncates:
            faults.add(
                f"{abilities.server} does not support top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = "
                f"{sampling.min_p}: it reports one log-probability, and truncated sampling needs two (the policy's and "
                "the truncated one); leave these keys out, or use the embedded engine"
            )
        if sampling.temperature == 1:
            continue
        if sampling.greedy:
            faults.add(
                f"{abilities.server} reports greedy answers at temperature 1, not {sampling.temperature}; leave the "
                "temperature out"
            )
        elif "temperature" not in abilities.supported:
            faults.add(
                f"temperature = {sampling.temperature}: {abilities.missing(['temperature'])[0]}; start it with flags "
                "under which it does (docs/howto/servers.md)"
            )
    faults.raise_if_any()


def _check_scoring_supported(texts: Iterable[ScoreRequest], abilities: ServerFeatures) -> None:
    """Raise ConfigError with all unsupported settings of scoring."""
    faults = ErrorCollector(ConfigError)
    if "score" not in abilities.supported:
        faults.extend(abilities.missing(["score"]))
    for sampling in dict.fromkeys(text.sampling for text in texts):
        if sampling.temperature != 1 or sampling.truncates or sampling.greedy:
            faults.add(
                f"{abilities.server} scores given tokens at temperature 1 and untruncated, not with temperature = "
                f"{sampling.temperature}, top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = "
                f"{sampling.min_p}, greedy = {str(sampling.greedy).lower()}"
            )
    faults.raise_if_any()


# -------------------------------------------------------------------------------------------------- partial completions


@dataclass(slots=True, eq=False)
class PartialCompletion:
    """Sample `number` of `request` in `round`."""

    request: Request
    number: int
    round: int
    tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    logp: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    version: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def name(self) -> str:
        """Name of the answer in messages."""
        return f"request {self.request.id!r}, sample {self.number}"

    def next_request(self, seed: int, eos: tuple[int, ...]) -> GenerateRequest:
        """Request for the rest of the answer."""
        name, *turn = self.request.draw_key
        drawn = len(self.tokens)
        return GenerateRequest(
            name=self.name,
            prefix=np.concatenate([self.request.prompt, self.tokens]).astype(np.int32),
            max_tokens=self.request.sampling.max_tokens - drawn,
            sampling=self.request.sampling,
            seed=key(seed, "sample", self.round, name, self.number, drawn, *turn) % MOST_SEED,
            eos=eos,
        )

    def append_response(self, response: GenerateResponse, version: NDArray[np.int32]) -> None:
        """Append a reply that `check` accepted; `version` `[n]`."""
        self.tokens = np.concatenate([self.tokens, response.tokens])
        self.logp = np.concatenate([self.logp, response.logp])
        self.version = np.concatenate([self.version, version])

    def completion(self, finish: FinishReason, behind: int) -> Completion:
        """The completion of a finished answer."""
        logp = np.minimum(self.logp, 0.0)
        return Completion(
            request_id=self.request.id,
            sample_index=self.number,
            tokens=self.tokens,
            logp=logp,
            sampled_logp=np.zeros_like(logp) if self.request.sampling.greedy else logp,
            version=self.version,
            finish_reason=finish,
            trailing_characters=behind,
            turn=self.request.turn,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A running request."""

    partial: PartialCompletion
    request: GenerateRequest
    version: int
    """Version at the time of the request."""


class ResponseRules:
    """Stopping conditions by hone's own rules; the server's are only compared."""

    def __init__(self, text: TokenizerRules) -> None:
        self.text = text
        self._eos = frozenset(text.eos)
        self._rules = StopRules(text)

    def finish_of(self, writing: PartialCompletion) -> tuple[FinishReason, int] | None:
        """Reason for the end, and the characters after its stop string; None while the answer is unfinished."""
        if not len(writing.tokens):
            return None
        sampling = writing.request.sampling
        if int(writing.tokens[-1]) in self._eos:
            return "eos", 0
        if sampling.stop:
            behind = self._rules.characters_after_stop(sampling.stop, lambda _, count: writing.tokens[-count:], 0)
            if behind is not None:
                return "stop", behind
        return ("length", 0) if len(writing.tokens) >= sampling.max_tokens else None

    def check_response(self, ask: GenerateRequest, response: GenerateResponse, place: str) -> None:
        """Raise ServerError for an invalid reply, naming the request and the first fault."""
        count, most, vocab = len(response.tokens), ask.max_tokens, self.text.vocab
        message = f"{place}: {ask.name}"
        if len(response.logp) != count:
            raise ServerError(f"{message}: {count} tokens came with {len(response.logp)} log-probabilities")
        if count > most:
            raise ServerError(f"{message}: {count} tokens came, at most {most} were requested")
        if not count and response.finish_reason != "abort":
            raise ServerError(f"{message}: no token came, and the server gives the reason {response.finish_reason!r}")
        if count and int(response.tokens.max()) >= vocab:
            raise ServerError(
                f"{message}: it sampled token {int(response.tokens.max())}, and the tokenizer has 0 to {vocab - 1}; "
                "the served model has rows without a token, or is another model: give both the same vocabulary"
            )
        ends = [token in self._eos for token in response.tokens[:-1].tolist()]
        if any(ends):
            raise ServerError(
                f"{message}: it continued after token {int(response.tokens[ends.index(True)])}, which ends an answer"
            )


# --------------------------------------------------------------------------------------------------------------- remote


T = TypeVar("T")

_POLL_S: Final = 0.02
_LOSSES: Final = 5
"""Largest number of disconnects without a finished answer in between."""


class RemoteEngine(EngineSession):
    """Implements `core.generation.GenerationEngine` over a `ServerProtocol`. The server is asked nothing before the
    first use."""

    own_weights = True
    """True: the weights change on `publish` only."""
    exact = False
    """False: a server's arithmetic may depend on its batch."""

    def __init__(
        self,
        wire: ServerProtocol,
        text: TokenizerRules,
        *,
        slots: int,
        seed: int,
        weight_transfer: WeightTransfer | None = None,
        on_publish: OnPublish = "finish",
        reconnect_timeout_s: float = 300.0,
    ) -> None:
        """`slots`: largest number of concurrent requests. Without `weight_transfer` weights cannot be published."""
        self.protocol, self.seed, self.on_publish, self.weight_transfer = wire, seed, on_publish, weight_transfer
        self.clock: Clock = SystemClock()
        self.disconnects = 0
        """Number of disconnects."""
        self._text, self._slots, self._patience_s = text, slots, reconnect_timeout_s
        self._ends, self._eos = ResponseRules(text), tuple(text.eos)
        self._version = 0
        self._abilities: ServerFeatures | None = None
        self._waiting: deque[PartialCompletion] = deque()
        self._under_way: dict[Future[GenerateResponse], InFlight] = {}
        self._landed: deque[Future[GenerateResponse]] = deque()
        self._turn = threading.Condition(threading.RLock())
        self._pool: ThreadPoolExecutor | None = None
        self._losses, self._why = 0, ""
        self._taken = 0
        """Number of processed replies."""
        super().__init__(self._turn, slots=slots)

    @property
    def version(self) -> int:
        return self._version

    @property
    def fingerprints(self) -> dict[int, WeightFingerprint]:
        """Fingerprints of the latest published versions."""
        return {} if self.weight_transfer is None else self.weight_transfer.fingerprints

    @property
    def note(self) -> str:
        """Notes for the user: missing features, and the number of restarts."""
        notes = [] if self._abilities is None else self._abilities.missing(FEATURE_DESCRIPTIONS)
        if self.disconnects:
            notes.append(f"it was unreachable {self.disconnects} times, the last time: {self._why}")
        return "; ".join(notes)

    def features(self) -> ServerFeatures:
        """Return the features of the server, requested once. Raises ServerError, and ConfigError for a missing one."""
        with self._turn:
            if self._abilities is None:
                result = self._patiently(self.protocol.probe)
                wanted: list[ServerFeature] = ["tokens"]
                if self.weight_transfer is not None:
                    wanted.append("load")
                if self.on_publish == "keep":
                    wanted.append("spans")
                if lacking := result.missing(wanted):
                    raise ConfigError(*lacking, *([self.protocol.refusal] if self.protocol.refusal else []))
                self._abilities = result
            return self._abilities

    # --------------------------------------------------------------------------------------- requests

    def score(self, texts: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Compute log-probabilities of given tokens at temperature 1. Raises as `submit` does."""
        abilities = self.features()
        check_score_requests(texts, context=self._context(abilities), vocab=self._text.vocab)
        _check_scoring_supported(texts, abilities)
        try:
            result = list(self._executor().map(self.protocol.score, texts))
        except UnreachableError as error:
            with self._turn:
                self._recover(error)
            result = list(self._executor().map(self.protocol.score, texts))
        self._stats.scored_tokens += sum(len(text.tokens) for text in texts)
        return [ScoreResult(logp=np.minimum(logp, 0), sampled_logp=np.minimum(logp, 0)) for logp in result]

    def _queue(self, requests: Sequence[Request], number: int) -> None:
        self._waiting.extend(
            PartialCompletion(request, request.first_sample + place, number)
            for request in requests
            for place in range(request.samples)
        )

    def _drop(self, request_ids: Collection[str] | None) -> None:
        """Drop these requests (None: all). Running answers of other requests are aborted too, and requested again."""

        def dropped(one: PartialCompletion) -> bool:
            return request_ids is None or one.request.id in request_ids

        if any(dropped(here.partial) for here in self._under_way.values()):
            while self._under_way:
                self.protocol.link.cancel_all()
                self._turn.wait(_POLL_S)
                while self._landed:
                    self._again(self._under_way.pop(self._landed.popleft()).partial)
        self._waiting = deque(one for one in self._waiting if not dropped(one))

    def close(self) -> None:
        """End all requests and threads, and remove the published weights."""
        self.disconnect()
        if self.weight_transfer is not None:
            self.weight_transfer.close()

    def disconnect(self) -> None:
        """End all requests and threads."""
        self.protocol.link.close()
        self.cancel()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    # ---------------------------------------------------------------------------------------- weights

    def publish(self, version: int) -> None:
        """Publish the policy's weights: tokens from here on are sampled by `version`, except for answers that
        `on_publish = "finish"` finishes first.

        Raises ServerError if the server does not load them, DivergedError if its weights still differ, and
        RuntimeError for `finish` while answers are frozen by `pause`.
        """
        if self.weight_transfer is None:
            raise ConfigError("this server has weights of its own: publishing to it is not supported")
        self.features()
        with self._turn:
            if self._paused and self._under_way and self.on_publish == "finish":
                raise RuntimeError('answers that are frozen cannot end: resume first, or on_publish = "recompute"')
            self.weight_transfer.save_weights(version)
            self.take_saved(version)

    def take_saved(self, version: int) -> None:
        """Make the server load the weights of `version`, which are in the folder already. Raises as `publish`."""
        abilities = self.features()
        with self._turn:
            stopped = self._hold_back(abilities)
            self._patiently(partial(self._hand_over, stopped=stopped))
            self._version = version
            if self._paused and self._under_way:
                self.protocol.freeze()

    def pause(self) -> None:
        """Start nothing until `resume`, and freeze running answers where the server can."""
        with self._turn:
            self._paused = True
            if self._under_way and "freeze" in self.features().supported:
                self.protocol.freeze()

    def resume(self) -> None:
        with self._turn:
            self._paused = False
            if self._under_way and "freeze" in self.features().supported:
                self.protocol.resume()

    def _hold_back(self, abilities: ServerFeatures) -> bool:
        """Apply `on_publish` to running answers; returns True if the server starts none until `resume`."""
        if not self._under_way:
            return False
        if self.on_publish == "keep":
            self.protocol.freeze()
            return True
        if self.on_publish == "recompute" and "abort" in abilities.supported:
            self.protocol.abort()
            self._settle(interrupt=False)
            return True
        self._settle(interrupt=self.on_publish == "recompute")
        return False

    def _hand_over(self, *, stopped: bool = False) -> None:
        if self.weight_transfer is not None and self.weight_transfer.saved_version is not None:
            self.weight_transfer.send(self.protocol, self.features(), stopped=stopped)

    # ---------------------------------------------------------------------------------------- replies

    def _check(self, requests: Sequence[Request]) -> None:
        abilities = self.features()
        check_requests(requests, context=self._context(abilities), vocab=self._text.vocab)
        _check_sampling_supported((request.sampling for request in requests), abilities)
        if named := sorted({request.adapter for request in requests} - {""}):
            raise ConfigError(f"{abilities.server}: adapters by request ({', '.join(named)}) need the embedded engine")
        if self._text.decode is None and any(request.sampling.stop for request in requests):
            raise ValueError("stop strings need a decode function; give one to the engine")

    def _context(self, abilities: ServerFeatures) -> int:
        return 2**31 - 1 if abilities.context is None else abilities.context

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._slots + 4, thread_name_prefix="hone-engine-client")
        return self._pool

    def _step(self) -> None:
        """Send requests up to the limit, wait for a reply, and process it."""
        with self._turn:
            if self._paused:
                return
            began = self.clock.monotonic_s()
            try:
                self._fill()
                running, waits = len(self._under_way), bool(self._waiting)
                taken = self._taken
                while self._under_way and not self._landed and self._taken == taken and not self._has_room():
                    self._turn.wait(_POLL_S)
                self._take_all()
            except BaseException:
                self.cancel()
                raise
            finally:
                spent = self.clock.monotonic_s() - began
                self._stats.total_s += spent
            self._stats.runner_s += spent
            self._stats.idle_slot_s += (self._slots - running) * spent
            self._stats.tail_slot_s += 0.0 if waits else (self._slots - running) * spent

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._under_way) < self._slots and not self._paused

    def _fill(self) -> None:
        while self._has_room():
            writing = self._waiting.popleft()
            ask = writing.next_request(self.seed, self._eos)
            self._stats.prefill_tokens += len(ask.prefix)
            future = self._executor().submit(self.protocol.write, ask)
            self._under_way[future] = InFlight(partial=writing, request=ask, version=self._version)
            future.add_done_callback(self._arrived)

    def _arrived(self, future: Future[GenerateResponse]) -> None:
        with self._turn:
            self._landed.append(future)
            self._turn.notify_all()

    def _take_all(self) -> None:
        while self._landed:
            future = self._landed.popleft()
            here = self._under_way.pop(future)
            try:
                self._take(future.result(), here)
            except (UnreachableError, ForeignWeightsError) as error:
                self._again(here.partial)
                if not isinstance(error, RequestCancelledError):
                    self._recover(error)

    def _take(self, response: GenerateResponse, here: InFlight) -> None:
        writing, place = here.partial, self.protocol.link.url
        self._taken += 1
        self._ends.check_response(here.request, response, place)
        if self.weight_transfer is None:
            version = np.full(len(response.tokens), here.version, np.int32)
        else:
            version = self.weight_transfer.token_versions(response, here.version, f"{place}: {writing.name}")
        writing.append_response(response, version)
        self._stats.tokens += len(response.tokens)
        end = self._ends.finish_of(writing)
        if end is not None:
            self._losses = 0
            self._done.append(writing.completion(*end))
        elif response.finish_reason == "abort":
            self._again(writing)
        else:
            raise ServerError(
                f"{place}: {writing.name}: it ended by {response.finish_reason!r} after {len(writing.tokens)} of "
                f"{writing.request.sampling.max_tokens} tokens, without a requested end"
            )

    def _again(self, writing: PartialCompletion) -> None:
        """Request the rest of this answer before any new one."""
        self._waiting.appendleft(writing)
        self._stats.preempted += 1

    def _settle(self, *, interrupt: bool) -> None:
        """Wait until no request is running: finished answers are kept, aborted ones wait to be sent again."""
        while self._under_way:
            if interrupt:
                self.protocol.link.cancel_all()
            self._turn.wait(_POLL_S)
            while self._landed:
                future = self._landed.popleft()
                here = self._under_way.pop(future)
                try:
                    self._take(future.result(), here)
                except (UnreachableError, ForeignWeightsError):
                    self._again(here.partial)

    # ------------------------------------------------------------------------------------ reconnection

    def _recover(self, error: ServerError) -> None:
        """Wait for the server and publish the weights again; unfinished answers are sent again."""
        self._settle(interrupt=True)
        while True:
            self.disconnects, self._losses, self._why = self.disconnects + 1, self._losses + 1, str(error)
            if self._losses > _LOSSES:
                message = f"it was unreachable {_LOSSES} times without finishing an answer in between"
                raise type(error)(*error.messages, message)
            self._await_server(error)
            try:
                return self._hand_over()
            except UnreachableError as again:
                error = again

    def _patiently(self, call: Callable[[], T]) -> T:
        """Run `call`, and run it again after an unreachable server is back."""
        try:
            return call()
        except RequestCancelledError:
            raise
        except UnreachableError as error:
            if self._abilities is not None:  # the server was reachable before
                self.disconnects, self._why = self.disconnects + 1, str(error)
            self._await_server(error)
        return call()

    def _await_server(self, error: ServerError) -> None:
        began, wait = self.clock.monotonic_s(), 0.05
        while not self.protocol.alive():
            waited = self.clock.monotonic_s() - began
            if waited >= self._patience_s:
                raise type(error)(
                    *error.messages,
                    f"{self.protocol.link.url} did not answer for {waited:.0f} s (reconnect_timeout_s); "
                    f"{len(self._done)} answers were finished but not returned, {len(self._waiting)} unfinished",
                )
            time.sleep(min(wait, self._patience_s - waited))
            wait = min(2 * wait, 5.0)


# -------------------------------------------------------------------------------------------------------------- connect


def open_weight_transfer(
    config: ServerEngine, *, model: GenerationModel, save: Callable[[Path], None], vocab: int
) -> WeightTransfer:
    """Build the transfer of the weights of `model`, as `save` writes them, to one server or several."""
    own = config.weights_folder is None
    folder = Path(tempfile.mkdtemp(prefix="hone-weights-") if config.weights_folder is None else config.weights_folder)
    return WeightTransfer(
        save=save,
        folder=folder,
        session=f"hone-{uuid4().hex[:12]}",  # an identity, no chance: no draw depends on it
        canary=WeightCanary(model, vocab=vocab, tolerance=config.canary_nats),
        keep_folder=not own,
    )


def connect_engine(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> RemoteEngine:
    """Build an engine over one server for the weights of `model`, as `save` writes them. Sends no request yet."""
    (url,) = config.urls
    return RemoteEngine(
        open_protocol(config, url),
        text,
        slots=slots,
        seed=seed,
        weight_transfer=open_weight_transfer(config, model=model, save=save, vocab=text.vocab),
        on_publish=config.on_publish,
        reconnect_timeout_s=config.reconnect_timeout_s,
    )
