"""The seam between a fleet and its processes: commands to replicas, and events from them."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import HoneError
from hone.core.fleet import AskAnswers, GenerationAsk, PublishedWeights, RunnerArithmetic
from hone.engine.fleet.replica import TakenWeights


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
        """Offer weights; `flat` may change afterwards, and older weights need not be kept. Raises ResourceError."""
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
