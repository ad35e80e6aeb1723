"""Records of a fleet's bookkeeping: limits, work that waits, asks that are out, and replicas."""

from dataclasses import dataclass, field
from enum import Enum, auto

from hone.core.fleet import GenerationAsk
from hone.core.generation import Request, ScoreRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """Limits of a fleet."""

    replicas: int
    """Number of replicas that are given work at the same time; further ones are spares."""
    spares: int = 0
    """Number of replicas that have the weights and are given work only in the place of another."""
    slots: int
    """Answers that one replica generates at the same time."""
    patience_s: float = 120.0
    """Silence after which a replica's asks are also given to another one; after twice as long it is to be ended."""
    start_s: float = 300.0
    """Longest time from the start of a replica to its first word."""
    losses_allowed: int = 20
    """Number of replicas that may be lost per 100 versions."""
    exact: bool = True
    """Replicas give equal bits: two answers to one ask are compared."""
    losses_of_work: int = 3
    """Number of replicas lost one after the other after which their common prompt is taken for the cause."""


class ReplicaPhase(Enum):
    """Phase of a replica."""

    STARTING = auto()
    """Its process starts."""
    LOADING = auto()
    """It was not heard to have the current weights."""
    READY = auto()
    """It has the current weights."""
    AWAY = auto()
    """It cannot be reached; it may come back."""


@dataclass(slots=True, eq=False)
class ReplicaRecord:
    """Record of a replica."""

    name: str
    heard_s: float
    """Last sign of life, or the time at which it was first given something to do."""
    phase: ReplicaPhase = ReplicaPhase.STARTING
    asks: set[int] = field(default_factory=set[int])
    passes: int = -1
    """Forward passes that it was last heard to have run."""
    silent: bool = False
    """True if it was not heard of for the patience: it gets nothing more until it is."""


@dataclass(slots=True, eq=False)
class WorkItem:
    """A request, or texts to score together: what is given out and given back as one."""

    order: int
    round: int
    request: Request | None = None
    texts: tuple[ScoreRequest, ...] = ()
    losses: int = 0
    """Number of replicas that were lost one after the other while they held it."""
    returned: bool = False
    """True if it was given out before; it then goes first."""

    @property
    def answers(self) -> int:
        """Number of answers and scores that it asks for."""
        return len(self.texts) if self.request is None else self.request.samples

    @property
    def name(self) -> str:
        """Name for a person."""
        return f"{len(self.texts)} texts to score" if self.request is None else f"request {self.request.id!r}"

    @property
    def priority(self) -> tuple[bool, int, int]:
        """Sort key: work that was given back first, then the longest expected answers."""
        return not self.returned, 0 if self.request is None else -self.request.expected_tokens, self.order


@dataclass(slots=True, eq=False)
class AskRecord:
    """An ask that is out, and the replicas that hold it."""

    ask: GenerationAsk
    items: list[WorkItem]
    holders: set[str] = field(default_factory=set[str])
    wants_another: bool = False
    """True if its holders are silent: the next replica with room gets it as well."""
    digest: str = ""
    """That of the first answer; empty before there is one."""

    @property
    def alone(self) -> bool:
        """True for work that two replicas did not survive: its next replica gets nothing else meanwhile."""
        return any(item.losses >= 2 for item in self.items)
