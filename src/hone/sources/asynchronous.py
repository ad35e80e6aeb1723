"""Collecting ahead of the learner: asynchrony as a source.

The batch of step n is begun under the policy that step n - 1 - k left behind (the first one, in the first k steps).
With `find_overlap` it is collected in a thread while the learner works. `publish` then waits for its end: the schedule
is fixed, a run does not depend on how fast anything is, and a resumed run is the same run. Or, with `midway`, it hands
the new policy to the batch that is being collected (partial rollouts): nobody waits for the longest answer, an episode
may be of several versions, and which of them decided what depends on time.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, pack_episodes, unpack_episodes
from hone.core.errors import DataError, DivergedError
from hone.core.state import State, integer, substate
from hone.run.loop import Source

P = TypeVar("P")
_ABSENT: Final[State] = {"final": None, "components": None, "baseline": None}
"""Leaves for absent columns, as in the checkpoints of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CollectedBatch:
    episodes: Episodes
    metrics: Metrics
    """What its source told of it."""


@dataclass
class AsyncSource(Generic[P]):
    """Hands out batches that are at most `most` versions old: an episode in which any decision is older is dropped.

    `find_overlap` needs an actor whose weights change on `publish` only, and a source that one thread at a time may
    use;
    `midway` needs one whose `publish` may be called by another thread than the one that collects.

    A batch is begun when fewer than `most + 1` are begun and not handed out, so that none grows too old by waiting its
    turn; what is dropped all the same (by a source that is slower than that) is counted, with its length.
    """

    source: Source[P]
    max_staleness: int
    in_background: bool = False
    partial_rollouts: bool = False
    on_drop: Callable[[Episodes], None] = lambda _: None
    """Called with the episodes that are dropped for their age."""
    clock: Clock = field(default_factory=SystemClock)
    on_demand: bool = False
    """Begin a batch when it is asked for, not ahead: in a replay, where its later versions are there only then."""
    version: int = -1
    """Version of the policy that learns."""
    _ready: deque[_CollectedBatch] = field(default_factory=deque[_CollectedBatch])
    _last_metrics: Metrics = field(default_factory=dict[str, float])
    _executor: ThreadPoolExecutor | None = None
    _futures: "deque[Future[None]]" = field(default_factory=deque["Future[None]"])
    _outstanding: int = 0
    """Batches that are begun, or will be, and not handed out."""
    _waited_s: float = 0.0
    """Seconds that the learner waited for batches since they were last told."""
    _idle_since_s: float | None = None
    """Time since which the thread has had no batch to begin."""

    def collect(self) -> Episodes:
        if not self.in_background:
            for _ in range(self._reserve_batches()):
                self._collect_batch()
        dropped: list[NDArray[np.int64]] = []
        while True:
            if not self._outstanding:
                self._reserve_batches(minimum=1)
                self._collect_batch()
            while not self._ready:
                self._await_batch()
            self._outstanding -= 1
            batch = self._ready.popleft()
            fresh = self._is_fresh(batch.episodes)
            dropped.append(batch.episodes.lengths[~fresh])
            if not fresh.all():
                self.on_drop(batch.episodes.take(np.flatnonzero(~fresh)))
            if fresh.any():
                episodes = batch.episodes if fresh.all() else batch.episodes.take(np.flatnonzero(fresh))
                self._last_metrics = {**batch.metrics, **self._staleness_metrics(episodes, np.concatenate(dropped))}
                return episodes

    def publish(self, policy: P) -> None:
        """Waits for what is being collected, so that its policy does not change under it; with `midway` what is being
        collected goes on under the new one."""
        self._wait_for_batches(done_only=self.partial_rollouts)
        self.version += 1
        self.source.publish(policy)
        if self.in_background:
            self._executor = self._executor or ThreadPoolExecutor(1, thread_name_prefix="ahead")
            self._futures.extend(self._executor.submit(self._collect_batch) for _ in range(self._reserve_batches()))

    def require_fresh(self, episodes: Episodes) -> None:
        """Check the bound where episodes are learnt from. Raises DivergedError with the age of those beyond it: dropped
        episodes reached the learner, or the weights changed between the two."""
        fresh = self._is_fresh(episodes)
        if not fresh.all():
            age = self.version - episodes.version
            raise DivergedError(
                f"{int((~fresh).sum())} of {len(episodes)} episodes are up to {int(age.max())} versions old, and "
                f"{self.max_staleness} are allowed at most: nothing was learnt from this batch"
            )

    def metrics(self) -> Metrics:
        """Metrics of the last returned batch, and its age."""
        metrics, self._last_metrics = self._last_metrics, {}
        if self.in_background:
            metrics["time/rollout_awaited_s"], self._waited_s = self._waited_s, 0.0
        return metrics

    def state(self) -> State:
        """Waits for what is being collected: it is part of the state, so that no answer is asked for twice."""
        self._wait_for_batches()
        batches: State = {
            str(place): {"episodes": {**_ABSENT, **pack_episodes(batch.episodes)}, "metrics": {**batch.metrics}}
            for place, batch in enumerate(self._ready)
        }
        return {"version": self.version, "count": len(batches), "batches": batches, "source": self.source.state()}

    def restore(self, state: State) -> None:
        self._wait_for_batches()
        self.version = integer(state, "version") - 1  # the loop publishes the restored policy before its first step
        self.source.restore(substate(state, "source"))
        batches = substate(state, "batches") if integer(state, "count") else {}
        self._ready = deque()
        for place in range(integer(state, "count")):
            batch = substate(batches, str(place))
            figures: object = batch.get("metrics")
            if not isinstance(figures, dict):
                raise DataError("a batch that was collected ahead has no metrics in the saved state")
            metrics = {name: float(value) for name, value in cast("dict[str, float]", figures).items()}
            self._ready.append(_CollectedBatch(episodes=unpack_episodes(substate(batch, "episodes")), metrics=metrics))
        self._outstanding = len(self._ready)

    def close(self) -> None:
        """End the thread, once what it collects is there. Raises nothing: nobody will use what it collected."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None
        self._futures.clear()

    def _reserve_batches(self, *, minimum: int = 0) -> int:
        """Reserve the batches to start now, and return their number."""
        count = max(minimum, 0 if self.on_demand else self.max_staleness + 1 - self._outstanding)
        self._outstanding += count
        return count

    def _collect_batch(self) -> None:
        held_s = 0.0 if self._idle_since_s is None else self.clock.monotonic_s() - self._idle_since_s
        episodes = self.source.collect()
        held = {"time/rollout_held_s": held_s} if self.in_background else {}
        self._ready.append(_CollectedBatch(episodes=episodes, metrics={**self.source.metrics(), **held}))
        self._idle_since_s = self.clock.monotonic_s()

    def _wait_for_batches(self, *, done_only: bool = False) -> None:
        """Raises what went wrong in the thread."""
        while self._futures and (not done_only or self._futures[0].done()):
            self._await_batch()

    def _await_batch(self) -> None:
        """Wait for the next batch of the thread."""
        began = self.clock.monotonic_s()
        self._futures.popleft().result()
        self._waited_s += self.clock.monotonic_s() - began

    def _is_fresh(self, episodes: Episodes) -> NDArray[np.bool_]:
        """`[E]` whether no decision of the episode is too old, nor any of another row of the same dialogue."""
        old = episodes.version < self.version - self.max_staleness
        dialogue = np.append(0, np.cumsum(episodes.last_rows)[:-1])
        stale = np.bincount(dialogue[episodes.owner[old]], minlength=len(episodes)) > 0
        return ~stale[dialogue]

    def _staleness_metrics(self, episodes: Episodes, dropped: NDArray[np.int64]) -> Metrics:
        age = self.version - episodes.version
        kept = episodes.lengths
        metrics: Metrics = {
            "async/staleness": float(age.mean()),
            "async/staleness_max": float(age.max()),
            "async/dropped": len(dropped) / (len(dropped) + len(kept)),
        }
        if self.partial_rollouts:
            turned = (episodes.version[1:] != episodes.version[:-1]) & (episodes.owner[1:] == episodes.owner[:-1])
            mixed = np.bincount(episodes.owner[1:][turned], minlength=len(kept)) > 0
            metrics["async/several_versions"] = float(mixed.mean())
        if len(dropped):
            # Dropping by age selects by length: long answers take long to write.
            everything = np.concatenate([kept, dropped])
            metrics["async/length_bias_tokens"] = float(kept.mean() - everything.mean())
        return metrics
