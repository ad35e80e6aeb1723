"""A shop for tests of rollouts: units arrive, the router assigns them, outcomes follow, everything is in a log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from manual_clock import ManualClock

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome
from hone.decide.gateway.shipped_versions import read_router
from hone.decide.joins.view import JoinConfig
from hone.decide.log.protocol import LoggedRecord
from hone.decide.registry import StageMove, VersionOrigin, VersionRegistry, open_registry
from hone.decide.rollout.driver import RolloutDriver, RolloutTools
from hone.decide.rollout.plan import RolloutPlan

ACTIONS = ActionSet(names=("a", "b"))
WINDOW_S = 10.0


@dataclass
class ListLog:
    """Decision log in memory: reading only, positions with holes."""

    records: list[LoggedRecord] = field(default_factory=list)

    def append(self, batch: Sequence[DecisionRecord]) -> None:
        for record in batch:
            self.records.append(LoggedRecord(3 * len(self.records) + 2, record))

    def read(self, after: int = 0, limit: int = 1000, *, tenant: str | None = None) -> list[LoggedRecord]:
        first = 0 if after < 2 else (after - 2) // 3 + 1
        return self.records[first : first + limit]


def decision(number: int, unit: str, at_s: float, *, route: str = "", tenant: str = "t") -> Decision:
    return Decision(
        id=f"d{number}", tenant=tenant, unit=unit, at_s=at_s, context=np.zeros(0), actions=ACTIONS,
        choice=Choice(action=0, logp=0.0), executed=0, executed_logp=0.0, version="v", route=route,
        source="gateway", seq=number,
    )  # fmt: skip


def outcome(number: int, value: float, at_s: float, *, kind: str = "reward", seq: int | None = None) -> Outcome:
    return Outcome(
        decision_id=f"d{number}", tenant="t", kind=kind, value=value, at_s=at_s, source="shop",
        seq=number if seq is None else seq,
    )  # fmt: skip


def add_versions(registry: VersionRegistry, folder: Path, *names: str) -> list[str]:
    """Add a version for each name, and make the first one live."""
    numbers = []
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "policy.json").write_text(name)
        numbers.append(registry.add(folder / name, VersionOrigin(), at_s=0.0, made_by="a test").id)
    registry.move("shop", StageMove(version=numbers[0], stage="live"), at_s=0.0, made_by="a test")
    return numbers


@dataclass
class Shop:
    """A service with a live version and a new one."""

    folder: Path
    log: ListLog = field(default_factory=ListLog)
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    served: int = 0
    labels: list[str] = field(default_factory=list)
    """Routes of the units, in order."""

    def __post_init__(self) -> None:
        self.registry = open_registry(self.folder / "registry", create=True)
        self.old, self.new = add_versions(self.registry, self.folder, "old", "new")

    def tools(self) -> RolloutTools:
        return RolloutTools(
            registry=self.registry, log=self.log, clock=self.clock, join=JoinConfig(window_s=WINDOW_S), made_by="a test"
        )

    def plan(self, **changes) -> RolloutPlan:
        settings = {"name": "r1", "service": "shop", "version": self.new, "control": self.old, "requests": 300}
        return RolloutPlan(**settings | {"stages": (0.1, 0.5), "shadow_requests": 50} | changes)

    def start(self, **changes) -> RolloutDriver:
        return self.tools().start(self.plan(**changes))

    def resume(self) -> RolloutDriver:
        return self.tools().resume("shop", "r1")

    def serve(self, count: int, rates: Callable[[str], float]) -> None:
        """Serve new units for `count` seconds, one a second; `rates` is the probability of a reward by arm."""
        router = read_router(self.registry, "shop", "shop")
        random = np.random.default_rng(self.served)
        batch: list[DecisionRecord] = []
        for _ in range(count):
            number = self.served
            self.served += 1
            self.clock.advance(1.0)
            route = router.route("t", f"u{number}")
            self.labels.append(route.label)
            batch.append(decision(number, f"u{number}", self.clock.now_s(), route=route.label))
            if random.random() < rates(route.arm):
                batch.append(outcome(number, 1.0, self.clock.now_s() + 2))
        self.log.append(batch)

    def run(
        self, driver: RolloutDriver, rates: Callable[[str], float], *, most: int = 100, each: int = 100
    ) -> list[str]:
        """Serve and step until the rollout ends -> the stages that it came to."""
        stages: list[str] = []
        for _ in range(most):
            stages += [transition.after for transition in driver.step()]
            if driver.state.finished:
                break
            self.serve(each, rates)
        return stages


def alike(_arm: str) -> float:
    """Both versions are equally good."""
    return 0.5


def worse(arm: str) -> float:
    """The new version is much worse."""
    return 0.1 if arm == "canary" else 0.6
