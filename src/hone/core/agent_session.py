"""Sessions of agents that call a policy by its address: what is planned, what is reported, and who drives them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """A dialogue that a driver is to hold with the policy."""

    id: str
    """Key of its draws, and part of its address."""
    group: str
    """Sessions of one group answer the same question."""
    columns: Mapping[str, Any]
    """The row of the dataset that it is about."""
    seed: int
    """Derived from the row and the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """The end of a session, as an agent or its environment reports it."""

    session: str
    score: float | None
    """None: it has no score, or reward functions are to give it."""
    group: str = ""
    """Name of the question; empty: sessions with equal first requests answer the same one."""
    error: str = ""
    """What failed; the session has no score then."""
    without_roles: frozenset[str] = frozenset()
    """Roles that do not learn, such as a judge: their answers become no rows."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers that are averaged over sessions and logged as `world/NAME`."""


class SessionDriver(Protocol):
    """Holds sessions with the policy: starts agents, and reports how each ended."""

    def begin(
        self, sessions: Sequence[PlannedSession], address: Callable[[str], str], report: Callable[[SessionReport], None]
    ) -> None:
        """Start the sessions and return at once. `address`: a session's base URL by its id; `report` is called once for
        each, from any thread."""
        ...

    def check(self) -> None:
        """Raise HoneError if it cannot go on, such as a process that died."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...
