"""The log of a fleet as a source: steps that robots sent, in the order of their arrival.

Every iteration takes the same number of steps, so what is learnt is a function of the log, whatever the time, the kills
and the pauses: where the log is short, the learner waits (samples per insert are bounded from above), and where robots
are faster, the log grows and their steps grow stale. The file is that of the service that stores the steps: table
`records`, layout `hone.core.robot_steps`. Steps of schemas other than the environment's are left out.
"""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DataError, LostResourceError
from hone.core.robot_steps import TERMINATED, TRUNCATED, RobotSchema
from hone.core.state import State, integer

P = TypeVar("P")
_LOOK_S: Final = 0.05
"""Seconds between two looks at a log that is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetLog:
    """A fleet's log with one schema."""

    path: Path
    id: str
    """Drawn when the log was made: a resumed run refuses another log."""
    schema: RobotSchema
    schema_number: int

    def read(self, after: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.void]]:
        """Up to `count` steps above a position -> positions, robots and steps `[n]`. Raises DataError.

        A robot with a new spool is the same robot.
        """
        statement = (
            "select r.position, (select min(o.id) from sources o where o.robot = s.robot), r.body from records r "
            "join sources s on s.id = r.source where r.position > ? and r.kind = 0 and r.schema = ? "
            "order by r.position limit ?"
        )
        rows = _query(self.path, statement, (after, self.schema_number, count))
        kind = np.dtype(self.schema.fields)
        wrong = next((row[0] for row in rows if len(row[2]) != kind.itemsize), None)
        if wrong is not None:
            raise DataError(f"{self.path}: the record at position {wrong} is damaged; restore the log from a copy")
        steps = np.frombuffer(b"".join(row[2] for row in rows), kind)
        positions, robots = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
        return positions, robots, steps


def open_fleet_log(path: Path, *, observation: int, action: int, choices: int) -> _FleetLog:
    """Open the log of a fleet whose steps have so many numbers. Raises DataError that names what it has instead."""
    if not path.is_file():
        raise DataError(f"{path}: no log of a fleet; `hone serve FILE.toml` with a table [fleet] writes one")
    meta = dict(_query(path, "select name, value from meta", ()))
    rows = _query(path, "select id, body from schemas order by id desc", ())
    known = [(int(number), RobotSchema.from_json(body)) for number, body in rows]
    for number, schema in known:
        if (len(schema.observation), len(schema.action), schema.choices) == (observation, action, choices):
            return _FleetLog(path=path, id=str(meta["id"]), schema=schema, schema_number=number)
    held = "; ".join(f"{len(one.observation)} seen, {len(one.action)} done, {one.choices} choices" for _, one in known)
    raise DataError(
        f"{path}: no robot sends steps of this environment ({observation} numbers seen, {action} done, {choices} "
        f"choices); the log has: {held or 'none yet, so let a robot send its first steps'}"
    )


def _query(path: Path, statement: str, values: tuple[int, ...]) -> list[Any]:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise DataError(f"{path}: cannot read the log of a fleet: {error}") from error


def no_metrics() -> Metrics:
    """No figures: the default of `measured`."""
    return {}


@dataclass(kw_only=True)
class FleetSource(Generic[P]):
    """Source of the steps of a fleet's log, `count` at a time."""

    log: _FleetLog
    count: int
    """Steps of an iteration."""
    observation_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    first_choice: int = 0
    """Number of the first action, of numbered ones."""
    patience_s: float = 60.0
    """Seconds to wait for robots; then the run ends, and can be resumed."""
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep
    measured: Callable[[], Metrics] = no_metrics
    """Figures of the replay buffer behind this source."""
    position: int = 0
    collected: int = 0

    def collect(self) -> Episodes:
        """The next `count` steps, each an episode of one decision whose group is its robot.

        Raises LostResourceError where the log has not grown for too long, DataError for a damaged one.
        """
        begun_s, held = self.clock.monotonic_s(), -1
        while True:
            positions, robots, steps = self.log.read(self.position, self.count)
            if len(steps) == self.count:
                break
            if len(steps) > held:
                begun_s, held = self.clock.monotonic_s(), len(steps)
            if self.clock.monotonic_s() - begun_s > self.patience_s:
                raise LostResourceError(
                    f"{self.log.path}: no new step for {self.patience_s:g} s, {len(steps)} of {self.count} are there; "
                    "resume the run when robots send again, or set fleet.patience_s"
                )
            self.pause(_LOOK_S)
        self.position, self.collected = int(positions[-1]), self.collected + self.count
        return self._episodes(robots, steps)

    def publish(self, policy: P) -> None:
        """Robots get policies from the registry, not from here."""

    def metrics(self) -> Metrics:
        return self.measured()

    def state(self) -> State:
        return {"position": self.position, "collected": self.collected, "log": self.log.id}

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another log."""
        if state["log"] != self.log.id:
            raise DataError(
                f"{self.log.path}: this is another log than the saved run's ({self.log.id}, {state['log']})"
            )
        self.position, self.collected = integer(state, "position"), integer(state, "collected")

    def _episodes(self, robots: NDArray[np.int64], steps: NDArray[np.void]) -> Episodes:
        count = len(steps)
        terminated = (steps["flags"] & TERMINATED) != 0
        chosen: NDArray[np.generic] = steps["action"].reshape(count, *self.action_shape)
        if self.log.schema.choices:
            chosen = steps["action"][:, 0].astype(np.int64) + self.first_choice
        shape = (count, *self.observation_shape)
        return Episodes(
            offsets=np.arange(count + 1, dtype=np.int64),
            seen=steps["observation"].reshape(shape).astype(np.float32),
            chosen=chosen.copy(),
            logp=steps["logp"].astype(np.float32),
            version=steps["version"].astype(np.int32),
            reward=steps["reward"].astype(np.float32),
            group=robots,
            terminated=terminated,
            truncated=((steps["flags"] & TRUNCATED) != 0) & ~terminated,
            final=steps["next_observation"].reshape(shape).astype(np.float32),
            score=steps["reward"].astype(np.float64),
        )
