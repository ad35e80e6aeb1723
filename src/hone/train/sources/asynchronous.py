"""Collecting ahead of the learner: asynchrony as a source.

The batch of step n is begun under the policy that step n - 1 - k left behind (the first one, in the first k steps).
With `overlap` it is collected in a thread while the learner works. `publish` then waits for its end: the schedule is
fixed, a run does not depend on how fast anything is, and a resumed run is the same run. Or, with `midway`, it hands the
new policy to the batch that is being collected (partial rollouts): nobody waits for the longest answer, an episode may
be of several versions, and which of them decided what depends on time.
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

    `overlap` needs an actor whose weights change on `publish` only, and a source that one thread at a time may use;
    `midway` needs one whose `publish` may be called by another thread than the one that collects.

    A batch is begun when fewer than `most + 1` are begun and not handed out, so that none grows too old by waiting its
    turn; what is dropped all the same (by a source that is slower than that) is counted, with its length.
    """

    source: Source[P]
    most: int
    overlap: bool = False
    midway: bool = False
    version: int = -1
    """Of the policy that learns."""
    _ready: deque[_Batch] = field(default_factory=deque[_Batch])
    _told: Metrics = field(default_factory=dict[str, float])
    _threads: ThreadPoolExecutor | None = None
    _running: "deque[Future[None]]" = field(default_factory=deque["Future[None]"])
    _owed: int = 0
    """Batches that are begun, or will be, and not handed out."""

    def collect(self) -> Episodes:
        if not self.overlap:
            for _ in range(self._missing()):
                self._gather()
        dropped: list[NDArray[np.int64]] = []
        while True:
            if not self._owed:
                self._missing(least=1)
                self._gather()
            while not self._ready:
                self._running.popleft().result()
            self._owed -= 1
            batch = self._ready.popleft()
            fresh = self._fresh(batch.episodes)
            dropped.append(batch.episodes.lengths[~fresh])
            if fresh.any():
                episodes = batch.episodes if fresh.all() else batch.episodes.take(np.flatnonzero(fresh))
                self._told = {**batch.metrics, **self._figures(episodes, np.concatenate(dropped))}
                return episodes

    def publish(self, policy: P) -> None:
        """Waits for what is being collected, so that its policy does not change under it; with `midway` what is being
        collected goes on under the new one."""
        self._wait(done_only=self.midway)
        self.version += 1
        self.source.publish(policy)
        if self.overlap:
            self._threads = self._threads or ThreadPoolExecutor(1, thread_name_prefix="ahead")
            self._running.extend(self._threads.submit(self._gather) for _ in range(self._missing()))

    def metrics(self) -> Metrics:
        """What was told of the batch that was handed out last, and how old it was."""
        told, self._told = self._told, {}
        return told

    def state(self) -> State:
        """Waits for what is being collected: it is part of the state, so that no answer is asked for twice."""
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
        self._owed = len(self._ready)

    def close(self) -> None:
        """End the thread, once what it collects is there. Raises nothing: nobody will use what it collected."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = None
        self._running.clear()

    def _missing(self, *, least: int = 0) -> int:
        """How many batches are to be begun now; they count as owed from here on."""
        count = max(least, self.most + 1 - self._owed)
        self._owed += count
        return count

    def _gather(self) -> None:
        episodes = self.source.collect()
        self._ready.append(_Batch(episodes=episodes, metrics=self.source.metrics()))

    def _wait(self, *, done_only: bool = False) -> None:
        """Raises what went wrong in the thread."""
        while self._running and (not done_only or self._running[0].done()):
            self._running.popleft().result()

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
        if self.midway:
            turned = (episodes.version[1:] != episodes.version[:-1]) & (episodes.owner[1:] == episodes.owner[:-1])
            mixed = np.bincount(episodes.owner[1:][turned], minlength=len(kept)) > 0
            told["ahead/several_versions"] = float(mixed.mean())
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
