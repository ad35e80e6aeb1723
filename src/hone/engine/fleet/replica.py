"""A generation replica: hone's engine over weights that arrive as bytes, and answers that leave in columns.

Knows nothing of Ray, of the run's data or of its rewards; `hone.parallel` puts one into each actor, and tests run
several in one process.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as TokenizerBackend
from torch import Tensor

from hone.core.errors import DivergedError, HoneError
from hone.core.fleet import (
    ALIGNMENT_BYTES,
    AskAnswers,
    GenerationAsk,
    PublishedWeights,
    RunnerArithmetic,
    WeightLayout,
    pack_answers,
    weights_digest,
)
from hone.core.generation import Completion, GenerationEngine, GenerationStats, OnPublish, Request
from hone.engine.canary import WeightFingerprint
from hone.engine.engine import EmbeddedEngine
from hone.engine.native.library import build
from hone.engine.open_engine import EngineGuarantees, EngineSize, open_engine
from hone.engine.protocol import GenerationModel, KvCache, RunnerKind, UnmergedAdapter
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.native.build import is_disabled

# ----------------------------------------------------------------------------------------------------------------- asks


class AskRefusedError(Exception):
    """The replica has other weights than those that were asked for, or the ask was cancelled; it has no answer."""


class AskSession:
    """Asks under way in one engine. `answer` may be called by several threads."""

    def __init__(self, engine: GenerationEngine) -> None:
        self.engine = engine
        self.passes = 0
        """Number of completed waits for a pass; it grows while the engine works."""
        self._asks: dict[int, frozenset[str]] = {}
        self._turns: dict[tuple[str, int], str] = {}
        """(Request, sample) -> name here of the request that last answered it, for the turn after."""
        self._stats_lock = threading.Lock()

    def answer(self, ask: GenerationAsk) -> AskAnswers:
        """Answer an ask.

        Raises AskRefusedError for another version than the engine's, DivergedError and DataError as the engine does.
        """
        if self.engine.version != ask.version:
            raise AskRefusedError(f"version {ask.version} was asked for, and this replica has {self.engine.version}")
        here = replace(ask, requests=tuple(self._named(ask, place) for place in range(len(ask.requests))))
        ids = self._asks[ask.number] = frozenset(request.id for request in here.requests)
        self.engine.cancel(ids)  # the same ask was given here before, and its answer was lost on its way
        scores = self.engine.score(ask.texts) if ask.texts else []
        done: list[Completion] = []
        self.engine.submit(here.requests, round=ask.round)
        while (completion := self.engine.next_completion(ids, wake=self._count_pass)) is not None:
            done.append(completion)
        self._asks.pop(ask.number, None)
        if len(done) != sum(request.samples for request in ask.requests):
            raise AskRefusedError(f"ask {ask.number} was cancelled")
        return pack_answers(here, done, stats=self._take_stats(), scores=scores)

    def cancel(self, number: int) -> None:
        """Drop an ask, whose `answer` then raises AskRefusedError."""
        if (ids := self._asks.pop(number, None)) is not None:
            self.engine.cancel(ids)

    def forget_turns(self) -> None:
        """Forget which request answered which turn: new weights read every text anew."""
        self._turns.clear()

    def _named(self, ask: GenerationAsk, place: int) -> Request:
        """A request under a name of its own: turns of one conversation share an id, and may be here at the same time.
        Its draws are keyed as before."""
        request = ask.requests[place]
        name = f"{request.id} (ask {ask.number}.{place})"
        after = None if request.after is None else self._turns.get((request.after, request.first_sample))
        for sample in range(request.first_sample, request.first_sample + request.samples):
            if request.keep_s:
                self._turns[request.id, sample] = name
        return replace(request, id=name, draw_id=request.draw_id or request.id, after=after)

    def _count_pass(self) -> bool:
        self.passes += 1
        return False

    def _take_stats(self) -> GenerationStats:
        with self._stats_lock:
            stats = self.engine.stats
            self.engine.reset_stats()
        return stats


# ----------------------------------------------------------------------------------------------------- weights as bytes


def layout_of(tensors: Mapping[str, Tensor]) -> WeightLayout:
    """Places of `tensors`, in their order."""
    offsets, end = list[int](), 0
    for tensor in tensors.values():
        offsets.append(end)
        end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return WeightLayout(
        names=tuple(tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors.values()),
        dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()),
        offsets=tuple(offsets),
        nbytes=end,
    )


def pack_weights(tensors: Mapping[str, Tensor], layout: WeightLayout, out: NDArray[np.uint8]) -> None:
    """Copy the tensors into `out` `[layout.nbytes]`; the gaps between them are left alone."""
    for place, name in enumerate(layout.names):
        tensor = tensors[name].detach().contiguous()
        start = layout.offsets[place]
        target = torch.from_numpy(out[start : start + tensor.numel() * tensor.element_size()])
        target.copy_(tensor.reshape(-1).view(torch.uint8))


@torch.no_grad()
def _unpack_weights(flat: NDArray[np.uint8], layout: WeightLayout, tensors: Mapping[str, Tensor]) -> None:
    """Copy the bytes `[layout.nbytes]` into the memory of `tensors`. `flat` may be read-only.

    Raises DivergedError, before anything is copied, for tensors of other names, shapes or types.
    """
    own = layout_of(tensors)
    if own != layout or len(flat) != layout.nbytes:
        other = [name for name in layout.names if name not in own.names] or ["sizes or types"]
        raise DivergedError(f"published weights do not fit this replica's model: {', '.join(other[:5])} differ")
    for place, name in enumerate(layout.names):
        tensor, start = tensors[name], layout.offsets[place]
        source = flat[start : start + tensor.numel() * tensor.element_size()]
        target = tensor.reshape(-1).view(torch.uint8)
        if tensor.device.type == "cpu":
            np.copyto(target.numpy(), source)
        else:
            target.copy_(torch.from_numpy(source.copy()))


# -------------------------------------------------------------------------------------------------------------- replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Settings of a replica's engine; they name no data, no rewards and no run."""

    layout: WeightLayout
    runner: RunnerKind
    vocab: int
    """Ids from there on are never sampled."""
    eos: tuple[int, ...]
    tokenizer_json: str = ""
    """Text of `tokenizer.json`, for stop strings; empty: there are none."""
    decodes: bool = False
    """Replicas know stop strings without `tokenizer_json`."""
    slots: int
    sequence_tokens: int
    """Most tokens of a prompt and its answer."""
    seed: int
    threads: int
    batch_invariant: bool = False
    on_publish: OnPublish = "recompute"
    kv_cache: KvCache = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenWeights:
    """Receipt of a replica that has new weights."""

    version: int
    digest: str
    fingerprint: WeightFingerprint | None
    """None: a server that scores no given tokens."""


_UNUSED_ADAPTERS: Final = 16
"""Adapters that a replica keeps although no ask uses them at present."""

ReadAdapter: TypeAlias = Callable[[GenerationModel, NDArray[np.uint8]], UnmergedAdapter]
"""A model, and bytes of `UnmergedAdapter.packed`, to the adapter beside that model's weights."""


class GenerationReplica:
    """An engine that answers asks. `answer` may be called by several threads, and `load` by another one meanwhile."""

    def __init__(
        self, model: GenerationModel, settings: ReplicaSettings, read_adapter: ReadAdapter | None = None
    ) -> None:
        """`model`: its weights are written to. `read_adapter`: for asks that name adapters."""
        self.model, self.settings = model, settings
        self.engine = _engine(model, settings)
        self.asks = AskSession(self.engine)
        self._read_adapter = read_adapter
        self._adapter_uses: dict[str, int] = {}
        """Asks that use each adapter of the engine, by its name there; the one that was used last at the end."""
        self._adapter_lock = threading.Lock()
        self._counted_s = time.process_time()

    def arithmetic(self) -> RunnerArithmetic:
        """Identity of the replica's arithmetic. Raises ResourceError where the compiled runner cannot be built."""
        name = self.engine.runner.name
        kernels = "torch's kernels"
        if name.startswith("native") and not is_disabled():
            kernels = build().path.stem
        versions = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
        return RunnerArithmetic(runner=name, device=self.model.device.type, build=f"{kernels}, {versions}")

    def load(self, version: int, flat: NDArray[np.uint8], digest: str) -> TakenWeights:
        """Take up weights. Raises DivergedError when the bytes are not those that were sent, or the runner does not
        sample from them."""
        arrived = weights_digest(flat)
        if arrived != digest:
            raise DivergedError(
                f"the weights of version {version} arrived damaged: digest {arrived}, and {digest} was sent"
            )
        _unpack_weights(flat, self.settings.layout, self.model.stored_tensors())
        self.engine.publish(version)
        self.asks.forget_turns()
        return TakenWeights(version=version, digest=arrived, fingerprint=self.engine.fingerprints[version])

    def answer(self, ask: GenerationAsk, fetch: Callable[[PublishedWeights], NDArray[np.uint8]]) -> AskAnswers:
        """Answer an ask, whose adapters are read from what `fetch` gives. Raises as `AskSession.answer`, DivergedError
        for an adapter that arrived damaged, and ConfigError for a runner without adapters."""
        torch.set_num_threads(self.settings.threads)  # each thread of a process has a number of its own
        names = {name: f"{name} ({-offer.version})" for name, offer in ask.adapters}
        with self._adapters({names[name]: offer for name, offer in ask.adapters}, fetch):
            answers = self.asks.answer(
                replace(
                    ask,
                    requests=tuple(replace(one, adapter=names.get(one.adapter, "")) for one in ask.requests),
                    texts=tuple(replace(one, adapter=names.get(one.adapter, "")) for one in ask.texts),
                )
            )
        with self._adapter_lock:
            before_s, self._counted_s = self._counted_s, time.process_time()
            return replace(answers, core_s=self._counted_s - before_s)

    @contextmanager
    def _adapters(
        self, offers: Mapping[str, PublishedWeights], fetch: Callable[[PublishedWeights], NDArray[np.uint8]]
    ) -> Iterator[None]:
        """Have adapters in the engine meanwhile, under names that no other content ever has."""
        uses = self._adapter_uses
        with self._adapter_lock:
            for name, offer in offers.items():
                if name not in uses:
                    self.engine.add_adapter(name, self._opened_adapter(name, offer, fetch(offer)))
                    uses[name] = 0
            for name in offers:
                uses[name] = uses.pop(name) + 1
        try:
            yield
        finally:
            with self._adapter_lock:
                for name in offers:
                    uses[name] -= 1
                for name in [name for name, count in uses.items() if not count][:-_UNUSED_ADAPTERS]:
                    self.engine.remove_adapter(name)
                    del uses[name]

    def _opened_adapter(self, name: str, offer: PublishedWeights, flat: NDArray[np.uint8]) -> UnmergedAdapter:
        if (arrived := weights_digest(flat)) != offer.digest:
            raise DivergedError(f"adapter {name} arrived damaged: digest {arrived}, and {offer.digest} was sent")
        runner = self.engine.runner
        model = runner.model if isinstance(runner, TorchRunner) else self.model
        assert self._read_adapter is not None
        return self._read_adapter(model, flat)


def _engine(model: GenerationModel, settings: ReplicaSettings) -> EmbeddedEngine:
    backend = TokenizerBackend.from_str(settings.tokenizer_json) if settings.tokenizer_json else None
    decode = None if backend is None else lambda ids: backend.decode([int(one) for one in ids])
    # The engine has weights of its own in any case: new ones are copied into the model while answers are drawn.
    return open_engine(
        model,
        TokenizerRules(eos=settings.eos, vocab=settings.vocab, decode=decode),
        size=EngineSize(slots=settings.slots, sequence_tokens=settings.sequence_tokens, threads=settings.threads),
        seed=settings.seed,
        runner=settings.runner,
        guarantees=EngineGuarantees(
            batch_invariant=settings.batch_invariant, on_publish=settings.on_publish, kv_cache=settings.kv_cache
        ),
    )


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaJoined:
    """A replica runs, and has no weights yet."""

    replica: str
    node: str
    """Name of its machine, for a person."""
    arithmetic: RunnerArithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoaded:
    """A replica has taken up weights."""

    replica: str
    taken: TakenWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswered:
    """A replica has answered an ask."""

    replica: str
    number: int
    answers: AskAnswers


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRefused:
    """A replica has other weights than the ask names, or lost it: it is to be asked again."""

    replica: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAlive:
    """A replica told how many passes it has run."""

    replica: str
    passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUnreachable:
    """A replica cannot be reached at present; it may be healthy."""

    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLost:
    """A replica is gone for good."""

    replica: str
    cause: str
    """Place and reason, for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFailed:
    """A replica raised an error that is not its process's: damaged weights, logits that are not finite, bad input."""

    replica: str
    error: HoneError
    number: int | None = None
    """The ask that it was answering; None: it was starting or taking up weights."""


FleetEvent: TypeAlias = (
    ReplicaJoined
    | ReplicaLoaded
    | AskAnswered
    | AskRefused
    | ReplicaAlive
    | ReplicaUnreachable
    | ReplicaLost
    | ReplicaFailed
)


class FleetTransport(Protocol):
    """Processes of replicas. No command waits for a replica; `poll` tells what they did."""

    def open(self) -> None:
        """Connect. Raises ResourceError with all faults: no cluster, no room for the replicas."""
        ...

    def start(self) -> str:
        """Begin a replica, and return its name, which is never used again."""
        ...

    def put(self, version: int, flat: NDArray[np.uint8], digest: str) -> PublishedWeights:
        """Offer weights, or an adapter (`version` < 0); `flat` may change afterwards. Raises ResourceError."""
        ...

    def drop(self, weights: PublishedWeights) -> None:
        """Nobody is to read them any more; some may be reading them still."""
        ...

    def load(self, replica: str, weights: PublishedWeights) -> None:
        """Let a replica take up weights."""
        ...

    def ask(self, replica: str, ask: GenerationAsk) -> None:
        """Ask a replica."""
        ...

    def cancel(self, replica: str, number: int) -> None:
        """Tell a replica that nobody waits for the ask any more."""
        ...

    def ping(self, replica: str) -> None:
        """Ask a replica for a sign of life."""
        ...

    def end(self, replica: str) -> None:
        """End a replica, also one that does not react; nothing more is heard of it."""
        ...

    def poll(self, timeout_s: float) -> list[FleetEvent]:
        """Events since the last call; waits for the first one up to `timeout_s`."""
        ...

    def close(self) -> None:
        """End all replicas and the connection; may be called twice."""
        ...
