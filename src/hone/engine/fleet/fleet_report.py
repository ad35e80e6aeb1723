"""What a fleet did, for people: who served what, losses, waits."""

from dataclasses import dataclass, field

from hone.core.credit import Metrics
from hone.core.fleet import AskAnswers


@dataclass(slots=True, kw_only=True)
class ServedCounts:
    """Counts of one replica over the whole run."""

    asks: int = 0
    answers: int = 0
    tokens: int = 0


@dataclass(slots=True)
class FleetReport:
    """Counts of a fleet in this rollout, and over the run."""

    wait_s: float = 0.0
    """Time of this rollout in which requests waited and no replica worked."""
    publish_s: float = 0.0
    """Duration of the latest publication."""
    by_replica: dict[str, ServedCounts] = field(default_factory=dict[str, ServedCounts])
    """Over the run."""
    losses: list[str] = field(default_factory=list[str])
    """Lost replicas of the run, with cause."""
    _places: dict[str, str] = field(default_factory=dict[str, str])
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _lost: int = 0
    notes: list[str] = field(default_factory=list[str])
    """Notes of the run for the user."""

    def reset(self) -> None:
        """Begin the counts of a rollout."""
        self.wait_s = 0.0
        self._tokens.clear()

    def joined(self, replica: str, node: str) -> None:
        """Record the machine of a replica."""
        self._places[replica] = node

    def served(self, replica: str, answers: AskAnswers) -> None:
        """Record answers that were taken."""
        counts = self.by_replica.setdefault(replica, ServedCounts())
        counts.asks += 1
        counts.answers += len(answers.request)
        counts.tokens += len(answers.tokens)
        self._tokens[replica] = self._tokens.get(replica, 0) + len(answers.tokens)

    def lost(self, replica: str, cause: str) -> None:
        """Record the loss of a replica."""
        self._lost += 1
        self.losses.append(f"{self.place_of(replica)}: {cause}")
        self.notes.append(f"{self.losses[-1]}; its work is asked of others, and another replica starts")

    def place_of(self, replica: str) -> str:
        """`replica 3 on node`."""
        node = self._places.get(replica)
        return replica if node is None else f"{replica} on {node}"

    def metrics(self, *, replicas: int, asked_again: int) -> Metrics:
        """Metrics of this rollout; `replicas` have the current weights. Losses, and requests
        that were `asked_again`, are counted since the last call."""
        total, lost, self._lost = sum(self._tokens.values()), self._lost, 0
        return {
            "fleet/replicas": float(replicas),
            "fleet/lost": float(lost),
            "fleet/asked_again": float(asked_again),
            "fleet/largest_share": max(self._tokens.values(), default=0) / total if total else 0.0,
            "fleet/wait_s": self.wait_s,
            "fleet/publish_s": self.publish_s,
        }

    def summary(self) -> str:
        """One sentence on the run."""
        shares = ", ".join(_share(self.place_of(name), counts) for name, counts in sorted(self.by_replica.items()))
        lost = f"; {len(self.losses)} replicas were lost" if self.losses else ""
        return f"fleet: {shares or 'nothing was asked'}{lost}"


def _share(place: str, counts: ServedCounts) -> str:
    return f"{place} gave {counts.answers} answers of {counts.tokens} tokens"
