"""Self-play: a pool of earlier policies, of which one is drawn as the opponent of a match.

A snapshot of the policy that learns is saved as a policy folder in the run's folder every few iterations. In a part of
the matches the learner has one seat, which changes from match to match, and a snapshot has the others; in the rest it
plays itself. When the pool is full every second snapshot goes and the time between two of them doubles, so that the
pool stays spread over the whole run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.seats.match_blocks import PlayerSpec
from hone.control.seats.players import Player, PolicyPlayer
from hone.control.seats.world import LEARNER
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.errors import DataError
from hone.core.random import uniforms
from hone.core.state import State, array, integer
from hone.run.store.durable import sha256

EXPLOITER = 1_000_000
"""Snapshots from this number on are of exploiters: k * EXPLOITER + iteration for the k-th (`league.py`)."""
_FORGETTING = 0.99
"""Weight that a result keeps with each later match against the same snapshot: the learner changes."""


class GateConfig(Config):
    """A test that a new snapshot must pass before it joins the pool: that it beats the newest one in it."""

    matches: int = Field(default=400, ge=2)
    """Matches of the test at most, in every seat alike; it stops earlier when it has decided."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Probability at most that a snapshot which is no better passes, although the test looks after every match."""


class SelfOpponents(Config):
    """The policy that learns plays every seat."""

    kind: Literal["self"]
    """Names this alternative."""


class PastOpponents(Config):
    """Opponents are drawn uniformly from the pool of snapshots."""

    kind: Literal["past"]
    """Names this alternative."""
    latest: float = Field(default=0.5, ge=0, le=1)
    """Share of the matches that the learner plays against itself."""
    every: int = Field(default=10, ge=1)
    """Iterations between snapshots; doubled whenever the pool is full."""
    size: int = Field(default=32, ge=2)
    """Snapshots in the pool at most."""
    gate: GateConfig | None = None
    """Test of new snapshots; unset: all join the pool."""


class PfspOpponents(PastOpponents):
    """Prioritised fictitious self-play (Vinyals et al., 2019): a snapshot is drawn by the chance to beat it, p."""

    kind: Literal["pfsp"]  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Names this alternative."""
    weights: Literal["hard", "even"] = "hard"
    """`hard`: (1 - p)^2, those who are hard to beat; `even`: p (1 - p), those who are about as strong."""


class FixedOpponents(Config):
    """Opponents that do not learn, drawn uniformly: the policy becomes the best answer to them."""

    kind: Literal["fixed"]
    """Names this alternative."""
    players: list[str] = Field(min_length=1)
    """`random`, `mcts:SIMULATIONS`, `file.py:function`, or the folder of a policy or of a run."""


OpponentsConfig: TypeAlias = Annotated[
    SelfOpponents | PastOpponents | PfspOpponents | FixedOpponents, Field(discriminator="kind")
]
Gate: TypeAlias = Callable[[Player, Player, int], float]
"""New player, champion and number of the test -> e-value of "the new one is no better"."""


def match_scores(returns: NDArray[np.float64], seat: int) -> float:
    """Score of a seat by the returns `[S]` of a match: 1 for more than every other seat, 1/2 for as much as the best of
    the others, 0 for less."""
    others = np.delete(returns, seat).max()
    return 0.5 + 0.5 * float(np.sign(returns[seat] - others))


def pfsp_weights(chances: NDArray[np.float64], kind: Literal["hard", "even"]) -> NDArray[np.float64]:
    """Probabilities of opponents by the chances `[k]` to beat them: (1 - p)^2 or p (1 - p), normalised; uniform where
    all weights are 0."""
    weights = (1 - chances) ** 2 if kind == "hard" else chances * (1 - chances)
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(chances), 1 / len(chances))


@dataclass(slots=True)
class Snapshot:
    """A policy of the pool, and the learner's results against it."""

    version: int
    won: float = 0.0
    played: float = 0.0

    @property
    def chance(self) -> float:
        """Estimated chance to beat it, from one win and one loss on."""
        return (self.won + 1) / (self.played + 2)


@dataclass(kw_only=True)
class OpponentPool:
    """Snapshots of the policy that learns; decides who plays which seat (see `hone.control.seats.world.Seating`)."""

    seats: int
    seed: int
    config: PastOpponents | FixedOpponents
    fixed: Sequence[Player] = ()
    """Players of `FixedOpponents`."""
    gate: Gate | None = None
    folder: Path | None = None
    """Where snapshots are saved; named before the first one is."""
    snapshots: list[Snapshot] = field(default_factory=list[Snapshot])
    every: int = 0
    """Iterations between snapshots now."""
    considered: int = 0
    """Version that was last considered."""
    accepted: float | None = None
    """Whether the last snapshot passed the gate."""
    digests: dict[int, str] = field(default_factory=dict[int, str])
    """sha256 of the weights of every snapshot; one that left the pool may still be in a match."""
    loaded: dict[int, Player] = field(default_factory=dict[int, Player])
    scores: list[float] = field(default_factory=list[float])
    """Results against others since they were told."""
    notices: list[str] = field(default_factory=list[str])
    """Notices for the user since they were told."""

    def __post_init__(self) -> None:
        if isinstance(self.config, PastOpponents):
            self.every = self.config.every

    # -------------------------------------------------------------------------------------------------- matches

    def draw(self, match: int) -> Sequence[int]:
        """Player of each seat: a snapshot's version, the place among `fixed`, or the learner."""
        chance, pick = uniforms(self.seed, "opponents", match, count=2)
        if isinstance(self.config, FixedOpponents):
            other = min(int(pick * len(self.fixed)), len(self.fixed) - 1)
        elif not self.snapshots or chance < self.config.latest:
            return (LEARNER,) * self.seats
        else:
            below = np.cumsum(self._weights()) <= pick
            other = self.snapshots[min(int(below.sum()), len(self.snapshots) - 1)].version
        return [LEARNER if seat == match % self.seats else other for seat in range(self.seats)]

    def _weights(self) -> NDArray[np.float64]:
        if isinstance(self.config, PfspOpponents):
            return pfsp_weights(np.array([snapshot.chance for snapshot in self.snapshots]), self.config.weights)
        return np.full(len(self.snapshots), 1 / len(self.snapshots))

    def player(self, number: int) -> Player:
        if self.fixed:
            return self.fixed[number]
        if number not in self.loaded:
            self.loaded[number] = PolicyPlayer(self._load(number).numpy_policy())
        return self.loaded[number]

    def member_weights(self) -> NDArray[np.float64] | None:
        """Weights `[n]` of the snapshots in the average that is evaluated beside the policy; None: all alike, the
        policy among them."""
        return None

    def spec(self, number: int) -> PlayerSpec:
        """A snapshot as a worker opens it."""
        return PlayerSpec(folder=str(self._place(number)), sha256=self.digests[number])

    def retire(self, number: int, fault: str) -> None:
        """Draw a snapshot no more, because its folder cannot be read; its results stay in the record."""
        kept = [snapshot for snapshot in self.snapshots if snapshot.version != number]
        if len(kept) < len(self.snapshots):
            self.notices.append(f"opponent {number} is drawn no more: {fault}")
        self.snapshots = kept

    def policies(self) -> list[ControlPolicy]:
        """All snapshots of the pool, oldest first."""
        return [self._load(snapshot.version) for snapshot in self.snapshots]

    def record(self, players: Sequence[int], returns: NDArray[np.float64]) -> None:
        """Take note of the result against another player."""
        others = [player for player in players if player != LEARNER]
        if not others:
            return
        score = match_scores(returns, list(players).index(LEARNER))
        self.scores.append(score)
        for snapshot in self.snapshots:
            if snapshot.version == others[0] and not self.fixed:
                snapshot.won = _FORGETTING * snapshot.won + score
                snapshot.played = _FORGETTING * snapshot.played + 1

    def metrics(self) -> Metrics:
        scores, self.scores = self.scores, []
        metrics: Metrics = {"opponents/pool": float(len(self.snapshots) + len(self.fixed))}
        if scores:
            metrics["opponents/score"] = float(np.mean(scores))
        if self.accepted is not None:
            metrics["opponents/accepted"] = self.accepted
        return metrics

    # ------------------------------------------------------------------------------------------------- snapshots

    def consider(self, policy: ControlPolicy, version: int) -> None:
        """Add a snapshot of the policy of iteration `version` when it is time, and it passes the gate."""
        if not isinstance(self.config, PastOpponents) or version <= self.considered or version % self.every:
            return
        self.considered = version
        earlier = [one.version for one in self.snapshots if one.version < EXPLOITER]
        if self.gate is not None and self.config.gate is not None and earlier:
            champion = self.player(max(earlier))
            evidence = self.gate(PolicyPlayer(policy.numpy_policy()), champion, version)
            self.accepted = float(evidence >= 1 / self.config.gate.alpha)
            if not self.accepted:
                return
        self.add(policy, version)
        if len(self.snapshots) >= self.config.size:
            self.snapshots, self.every = self.snapshots[1::2], 2 * self.every

    def add(self, policy: ControlPolicy, version: int) -> None:
        """Save a policy as a snapshot, and draw it from now on."""
        place = self._place(version)
        save_policy(policy, place)
        self.snapshots.append(Snapshot(version))
        self.digests[version] = sha256(place / "model.safetensors")

    def _place(self, version: int) -> Path:
        assert self.folder is not None, "the folder of the run was not named (TrainingJob.open_folder)"
        return self.folder / f"{version:08d}"

    def _load(self, version: int) -> ControlPolicy:
        """Raises DataError for a snapshot that is missing or was changed."""
        place = self._place(version)
        policy = load_policy(place)
        if sha256(place / "model.safetensors") != self.digests[version]:
            raise DataError(f"{place}: this opponent's weights are not those that the run saved")
        return policy

    def state(self) -> State:
        return {
            "every": self.every,
            "considered": self.considered,
            "versions": np.array([one.version for one in self.snapshots], np.int64),
            "saved": np.array(list(self.digests), np.int64),
            "digests": list(self.digests.values()),
            "results": np.array([[one.won, one.played] for one in self.snapshots]).reshape(-1, 2),
        }

    def restore(self, state: State) -> None:
        self.every, self.considered = integer(state, "every"), integer(state, "considered")
        digests = state["digests"]
        assert isinstance(digests, list)
        self.digests = dict(zip(array(state, "saved").tolist(), map(str, digests), strict=True))
        versions, results = array(state, "versions").tolist(), array(state, "results").tolist()
        self.snapshots = [Snapshot(version, *result) for version, result in zip(versions, results, strict=True)]
        self.loaded.clear()
