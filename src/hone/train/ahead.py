"""Collecting ahead of the learner: asynchrony as a source.

The batch of step n is decided by the policy that step n - 1 - k left behind (by the first one, in the first k steps):
a fixed schedule, so that a run does not depend on how fast anything is, and a resumed run is the same run. With
`overlap` the next batch is collected in a thread while the learner works; the schedule, and every bit, stay the same.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import DataError
from hone.core.ragged import Ragged
from hone.core.state import State, array, integer, substate
from hone.train.loop import Source

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    episodes: Episodes
    metrics: Metrics
    """What its source told of it."""


@dataclass
class Ahead(Generic[P]):
    """Hands out batches that are at most `most` versions old: an episode in which any decision is older is dropped.

    `overlap` needs an actor whose weights change on `publish` only, and a source that one thread at a time may use.
    """

    source: Source[P]
    most: int
    overlap: bool = False
    version: int = -1
    """Of the policy that learns."""
    _ready: deque[_Batch] = field(default_factory=deque[_Batch])
    _told: Metrics = field(default_factory=dict[str, float])
    _threads: ThreadPoolExecutor | None = None
    _running: "Future[None] | None" = None

    def collect(self) -> Episodes:
        if not self.overlap:
            self._gather(self._missing())
        dropped: list[NDArray[np.int64]] = []
        while True:
            if not self._ready:
                self._wait()
            if not self._ready:
                self._gather(1)
            batch = self._ready.popleft()
            fresh = self._fresh(batch.episodes)
            dropped.append(batch.episodes.lengths[~fresh])
            if fresh.any():
                episodes = batch.episodes if fresh.all() else batch.episodes.take(np.flatnonzero(fresh))
                self._told = {**batch.metrics, **self._figures(episodes, np.concatenate(dropped))}
                return episodes

    def publish(self, policy: P) -> None:
        """Waits for what is being collected: its policy must not change under it."""
        self._wait()
        self.version += 1
        self.source.publish(policy)
        if self.overlap:
            self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="ahead")
            self._running = self._threads.submit(self._gather, self._missing())

    def metrics(self) -> Metrics:
        """What was told of the batch that was handed out last, and how old it was."""
        told, self._told = self._told, {}
        return told

    def state(self) -> State:
        self._wait()
        batches: State = {
            str(place): {"episodes": pack(batch.episodes), "metrics": {**batch.metrics}}
            for place, batch in enumerate(self._ready)
        }
        return {"version": self.version, "count": len(batches), "batches": batches, "source": self.source.state()}

    def restore(self, state: State) -> None:
        self._wait()
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step
        self.source.restore(substate(state, "source"))
        batches = substate(state, "batches") if integer(state, "count") else {}
        saved = [substate(batches, str(place)) for place in range(integer(state, "count"))]
        self._ready = deque(
            _Batch(episodes=unpack(substate(one, "episodes")), metrics=_numbers(one.get("metrics"))) for one in saved
        )

    def close(self) -> None:
        """End the thread, once what it collects is there. Raises nothing: nobody will use what it collected."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = self._running = None

    def _missing(self) -> int:
        return max(0, self.most + 1 - len(self._ready))

    def _gather(self, count: int) -> None:
        for _ in range(count):
            episodes = self.source.collect()
            self._ready.append(_Batch(episodes=episodes, metrics=self.source.metrics()))

    def _wait(self) -> None:
        """Raises what went wrong in the thread."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _fresh(self, episodes: Episodes) -> NDArray[np.bool_]:
        """`[E]` whether no decision of the episode is too old."""
        old = episodes.version < self.version - self.most
        return np.bincount(episodes.owner[old], minlength=len(episodes)) == 0

    def _figures(self, episodes: Episodes, dropped: NDArray[np.int64]) -> Metrics:
        age = self.version - episodes.version
        kept = episodes.lengths
        told: Metrics = {
            "ahead/staleness": float(age.mean()),
            "ahead/staleness_max": float(age.max()),
            "ahead/dropped": len(dropped) / (len(dropped) + len(kept)),
        }
        if len(dropped):
            # Dropping by age selects by length: long answers take long to write.
            everything = np.concatenate([kept, dropped])
            told["ahead/length_bias_tokens"] = float(kept.mean() - everything.mean())
        return told


def pack(episodes: Episodes) -> State:
    """Every column, as a state tree."""
    seen = episodes.seen
    saved: State = {
        "offsets": episodes.offsets,
        "chosen": episodes.chosen,
        "logp": episodes.logp,
        "version": episodes.version,
        "reward": episodes.reward,
        "group": episodes.group,
        "terminated": episodes.terminated,
        "truncated": episodes.truncated,
        "final": episodes.final,
        "score": episodes.score,
        "status": episodes.status,
        "components": episodes.components,
        "baseline": episodes.baseline,
    }
    if not isinstance(seen, Transcript):
        return {**saved, "seen": seen}
    transcript: State = {"tokens": seen.tokens, "offsets": seen.offsets, "at": seen.at}
    if seen.kept is not None:
        transcript["kept"] = {"values": seen.kept.values, "offsets": seen.kept.offsets}
    return {**saved, "transcript": transcript}


def unpack(state: State) -> Episodes:
    """What `pack` packed. Raises DataError where a column is missing."""
    return Episodes(
        offsets=array(state, "offsets").astype(np.int64),
        seen=_transcript(substate(state, "transcript")) if "transcript" in state else array(state, "seen"),
        chosen=array(state, "chosen"),
        logp=array(state, "logp").astype(np.float32),
        version=array(state, "version").astype(np.int32),
        reward=array(state, "reward").astype(np.float32),
        group=array(state, "group").astype(np.int64),
        terminated=array(state, "terminated").astype(np.bool_),
        truncated=array(state, "truncated").astype(np.bool_),
        final=_optional(state, "final", lambda column: column),
        score=array(state, "score").astype(np.float64),
        status=array(state, "status").astype(np.uint8),
        components=_optional(state, "components", lambda column: column.astype(np.float64)),
        baseline=_optional(state, "baseline", lambda column: column.astype(np.float64)),
    )


C = TypeVar("C", bound=np.generic)


def _optional(
    state: State, name: str, made: Callable[[NDArray[np.generic]], NDArray[C]]
) -> NDArray[C] | None:  # fmt: skip
    return None if state.get(name) is None else made(array(state, name))


def _transcript(state: State) -> Transcript:
    kept = substate(state, "kept") if "kept" in state else None
    return Transcript(
        tokens=array(state, "tokens").astype(np.int32),
        offsets=array(state, "offsets").astype(np.int64),
        at=array(state, "at").astype(np.int64),
        kept=None
        if kept is None
        else Ragged(
            values=array(kept, "values").astype(np.int32),
            offsets=array(kept, "offsets").astype(np.int64),
        ),
    )


def _numbers(state: object) -> Metrics:
    if not isinstance(state, dict):
        raise DataError("a batch that was collected ahead has no metrics in the saved state")
    return {str(name): float(value) for name, value in state.items()}
