"""Nouns of a fleet of generation replicas: weights in flat bytes, asks, answers in columns, and the arithmetic of a
replica.

They cross processes and machines, so that they hold arrays and plain values only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Routing
from hone.core.generation import (
    Completion,
    FinishReason,
    GenerationStats,
    LikeliestTokens,
    Request,
    ScoreRequest,
    ScoreResult,
)
from hone.core.ragged import Ints, RaggedArray, concatenate_rows, empty_rows, offsets_of

FINISH_REASONS: Final[tuple[FinishReason, ...]] = ("eos", "stop", "length")
ALIGNMENT_BYTES: Final = 64
"""Each tensor of a `WeightLayout` begins at a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    """Places of a model's tensors in one flat array of bytes; the same for the whole run."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    """Name of each tensor's type, such as `float32`."""
    offsets: tuple[int, ...]
    """First byte of each tensor."""
    nbytes: int
    """Length of the whole array, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """One version of the weights, or an adapter, on offer to replicas."""

    version: int
    """Below 0: of an unmerged adapter, each of which has a number of its own."""
    digest: str
    """`weights_digest` of the bytes as they were sent, hex."""
    parts: tuple[object, ...]
    """Handles by which a carrier finds the bytes: object references, file names. Nobody else reads them."""


def weights_digest(flat: NDArray[np.uint8]) -> str:
    """CRC-32 of the bytes, 8 hex digits: it tells damage, at the speed of memory."""
    return f"{crc32(flat.data):08x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerArithmetic:
    """Everything that fixes the bits of a replica's answers beside weights and draws. Equal ones give equal bits."""

    runner: str
    """Runner with its type and instruction set."""
    device: str
    build: str
    """Build of the compiled kernels, and version of torch."""

    def differences(self, other: "RunnerArithmetic") -> list[str]:
        """`runner: A here, B there` for each field that differs."""
        pairs = (
            ("runner", self.runner, other.runner),
            ("device", self.device, other.device),
            ("build of the kernels", self.build, other.build),
        )
        return [f"{name}: {mine} and {theirs}" for name, mine, theirs in pairs if mine != theirs]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationAsk:
    """Work given to one replica: some prompts with all their samples, or texts to score. Another replica may be given
    the same ask."""

    number: int
    """Name of the ask; never used twice in a run."""
    requests: tuple[Request, ...]
    round: int
    """Key of the draws, with the request's id."""
    version: int
    """Version of the weights that are to answer."""
    texts: tuple[ScoreRequest, ...] = ()
    adapters: tuple[tuple[str, PublishedWeights], ...] = ()
    """Unmerged adapters that its requests and texts name."""

    @property
    def answers(self) -> int:
        """Number of answers and scores that it asks for."""
        return sum(request.samples for request in self.requests) + len(self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAnswers:
    """n answers of m tokens to one ask, stored column-wise and in the order of (request, sample)."""

    request: NDArray[np.int32]
    """`[n]` place of the request in the ask."""
    sample: NDArray[np.int32]
    """`[n]`."""
    offsets: Ints
    """`[n+1]` tokens of answer i: `offsets[i]:offsets[i+1]`."""
    tokens: NDArray[np.int32]
    """`[m]`."""
    logp: NDArray[np.float32]
    """`[m]` nats, of the whole policy."""
    sampled_logp: NDArray[np.float32]
    """`[m]` nats, of the truncated distribution."""
    version: NDArray[np.int32]
    """`[m]` version of the policy that drew each token."""
    finish: NDArray[np.uint8]
    """`[n]` place of the reason in `FINISH_REASONS`."""
    trailing_characters: NDArray[np.int32]
    """`[n]`."""
    sampling_mask: RaggedArray | None = None
    """`[m]` rows; those of requests without truncation are empty. None: no request truncates."""
    routing: tuple[Routing | None, ...] = ()
    """`[n]` experts of each answer; empty: a dense model."""
    likeliest: tuple[LikeliestTokens | None, ...] = ()
    """`[n]` likeliest tokens of each answer; empty: nobody asked for them."""
    reread_at: tuple[tuple[int, ...], ...] = ()
    """`[n]` tokens of each answer before which its text was read again by newer weights; empty: no text was."""
    scores: tuple[ScoreResult, ...] = ()
    """Scores of the ask's texts."""
    stats: GenerationStats
    """Counters of the replica since its last answers."""
    core_s: float = 0.0
    """Processor seconds of the replica's process since its last answers."""

    @property
    def digest(self) -> str:
        """BLAKE2b of what was answered; two answers to one ask have the same one, whoever gave them."""
        hashed = blake2b(digest_size=16)
        columns = [self.request, self.sample, self.offsets, self.tokens, self.logp, self.sampled_logp]
        columns += [self.version, self.finish]
        for score in self.scores:
            columns += [score.logp, score.sampled_logp]
        for column in columns:
            hashed.update(np.ascontiguousarray(column).tobytes())
        return hashed.hexdigest()

    def completions(self, ask: GenerationAsk) -> list[Completion]:
        """The answers one by one, in arrays of their own."""
        return [self._completion(ask.requests[int(self.request[place])], place) for place in range(len(self.request))]

    def _completion(self, request: Request, place: int) -> Completion:
        start, end = int(self.offsets[place]), int(self.offsets[place + 1])
        masked = self.sampling_mask is not None and request.sampling.truncates
        return Completion(
            request_id=request.id,
            sample_index=int(self.sample[place]),
            tokens=self.tokens[start:end].copy(),
            logp=self.logp[start:end].copy(),
            sampled_logp=self.sampled_logp[start:end].copy(),
            version=self.version[start:end].copy(),
            finish_reason=FINISH_REASONS[int(self.finish[place])],
            sampling_mask=self.sampling_mask.take(np.arange(start, end)) if masked and self.sampling_mask else None,
            trailing_characters=int(self.trailing_characters[place]),
            turn=request.turn,
            routing=self.routing[place] if self.routing else None,
            likeliest=self.likeliest[place] if self.likeliest else None,
            reread_at=self.reread_at[place] if self.reread_at else (),
        )


def pack_answers(
    ask: GenerationAsk, completions: Sequence[Completion], *, stats: GenerationStats, scores: Sequence[ScoreResult] = ()
) -> AskAnswers:
    """All answers to an ask in columns, whatever the order in which they were finished."""
    places = {request.id: place for place, request in enumerate(ask.requests)}
    done = sorted(completions, key=lambda one: (places[one.request_id], one.sample_index))
    truncates = any(one.sampling_mask is not None for one in done)
    masks = [empty_rows(len(one.tokens)) if one.sampling_mask is None else one.sampling_mask for one in done]

    def column(rows: Sequence[NDArray[np.generic]], dtype: type[np.int32] | type[np.float32]) -> NDArray[np.generic]:
        return np.concatenate([np.zeros(0, dtype), *rows])

    return AskAnswers(
        request=np.array([places[one.request_id] for one in done], np.int32),
        sample=np.array([one.sample_index for one in done], np.int32),
        offsets=offsets_of(np.array([len(one.tokens) for one in done], np.int64)),
        tokens=column([one.tokens for one in done], np.int32).astype(np.int32),
        logp=column([one.logp for one in done], np.float32).astype(np.float32),
        sampled_logp=column([one.sampled_logp for one in done], np.float32).astype(np.float32),
        version=column([one.version for one in done], np.int32).astype(np.int32),
        finish=np.array([FINISH_REASONS.index(one.finish_reason) for one in done], np.uint8),
        trailing_characters=np.array([one.trailing_characters for one in done], np.int32),
        sampling_mask=concatenate_rows(masks) if truncates else None,
        routing=tuple(one.routing for one in done) if any(one.routing is not None for one in done) else (),
        likeliest=tuple(one.likeliest for one in done) if any(one.likeliest is not None for one in done) else (),
        reread_at=tuple(one.reread_at for one in done) if any(one.reread_at for one in done) else (),
        scores=tuple(scores),
        stats=stats,
    )
