"""Sessions of one training step: who may ask, who still owes a report, and who stayed silent for too long."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hone.core.dialogue import PlannedSession, SessionReport, StopReason
from hone.core.episodes import ScoreStatus
from hone.text.serving.capture.dialogue_tree import DialogueTree

Admission = Literal["now", "later", "unknown", "ended"]
"""`later`: the session belongs to a later step."""


@dataclass(slots=True, eq=False, kw_only=True)
class CapturedSession:
    """One dialogue of an agent."""

    id: str
    planned: PlannedSession | None = None
    tree: DialogueTree = field(default_factory=DialogueTree)
    report: SessionReport | None = None
    timed_out: bool = False
    requests: int = 0
    abandoned: int = 0
    """Answers whose agent had gone."""
    in_flight: int = 0
    """Requests that wait for their answers."""
    heard_s: float
    """Time of the latest request, answer or report."""

    @property
    def ended(self) -> bool:
        """True once it was reported, or is no longer waited for."""
        return self.timed_out or self.report is not None

    @property
    def group(self) -> str:
        """Name of the question that it is about: as planned, as reported, or by its first request."""
        if self.planned is not None:
            return self.planned.group
        return (self.report.group if self.report is not None else "") or self.tree.opening

    @property
    def failure(self) -> str:
        """Why it has no score; empty where nothing failed."""
        if self.timed_out:
            return "the agent neither asked nor reported in time"
        return "" if self.report is None else self.report.error

    @property
    def stop(self) -> StopReason:
        """Reason of its end."""
        return "deadline" if self.timed_out else "world_died" if self.failure else "done"

    @property
    def without_roles(self) -> frozenset[str]:
        """Roles that do not learn."""
        return frozenset() if self.report is None else self.report.without_roles

    @property
    def status(self) -> ScoreStatus:
        """SCORED, unless it failed."""
        if self.timed_out:
            return ScoreStatus.TIMEOUT
        return ScoreStatus.ERROR if self.failure else ScoreStatus.SCORED


@dataclass(slots=True, eq=False, kw_only=True)
class CaptureStep:
    """The sessions of a step: those that were planned, or the first `count` that come."""

    count: int
    deadline_s: float
    planned: Sequence[PlannedSession] = ()
    sessions: dict[str, CapturedSession] = field(default_factory=dict[str, CapturedSession])
    began_s: float

    def __post_init__(self) -> None:
        for one in self.planned:
            self.sessions[one.id] = CapturedSession(id=one.id, planned=one, heard_s=self.began_s)

    @property
    def complete(self) -> bool:
        """True once every session has begun and ended."""
        return len(self.sessions) == self.count and all(one.ended for one in self.sessions.values())

    @property
    def heard_s(self) -> float:
        """Time at which a session was last heard of."""
        return max((one.heard_s for one in self.sessions.values()), default=self.began_s)

    @property
    def missing(self) -> int:
        """Number of sessions that are yet to begin."""
        return self.count - len(self.sessions)

    def admit(self, session: str, now_s: float, *, asks: bool) -> Admission:
        """Let a session take part, at its first request; `asks`: it is one, and not a report."""
        found = self.sessions.get(session)
        if found is not None and not found.ended:
            found.heard_s = now_s
            return "now"
        if self.planned:
            return "unknown" if found is None else "ended"
        if not asks:
            return "unknown" if found is None else "ended"
        if found is not None or not self.missing:
            return "later"
        self.sessions[session] = CapturedSession(id=session, heard_s=now_s)
        return "now"

    def expire(self, now_s: float) -> list[CapturedSession]:
        """End the sessions that neither asked nor reported for `deadline_s` seconds, and return them."""
        late = [
            one
            for one in self.sessions.values()
            if not one.ended and not one.in_flight and now_s - one.heard_s > self.deadline_s
        ]
        for one in late:
            one.timed_out = True
        return late

    def ordered(self) -> list[CapturedSession]:
        """The sessions in an order that does not depend on time: as planned, else by id."""
        found = list(self.sessions.values())
        return found if self.planned else sorted(found, key=lambda one: one.id)
