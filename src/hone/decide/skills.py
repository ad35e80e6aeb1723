"""Library of skills: each has versions, a champion, trials and the way back, in one registry.

FOLDER/
  registry/         versions of all skills, and the journals of their trials
  decisions.db      executions: a decision for each, and its score as the outcome

A skill is a service of the registry: its champion is the live version, and a trial is a rollout whose units are single
executions, drawn by their names. So the stages, the evidence and the way back are those of every service. A version's
name is the digest of its files, its skill and its parent.

Belongs here: names, versions and evidence. What a version does is unknown here: whoever opens the library says how a
version's folder is checked.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

import hone
from hone.core.clock import Clock
from hone.core.errors import ConfigError, DataError, did_you_mean
from hone.decide.gateway.shipped_versions import read_router
from hone.decide.joins.view import JoinConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog
from hone.decide.registry import PolicyVersion, StageMove, VersionOrigin, VersionRegistry, open_registry
from hone.decide.rollout.controller import StageTransition
from hone.decide.rollout.driver import RolloutDriver, RolloutTools, running_rollouts
from hone.decide.rollout.plan import GuardrailConfig, RolloutPlan, StagedRolloutConfig
from hone.decide.rollout.router import RolloutRouter, TrialUnit, UnitRoute

TENANT: Final = "skills"
SOURCE: Final = "skills"
KIND: Final = "score"
INTERRUPTED: Final = "interrupted"
"""Kind of the outcome of an execution without a score: it counts in the sample ratio, and nothing is staked on it."""
_JOIN: Final = JoinConfig(window_s=1e-3)
"""An execution is recorded when it has ended, so that its score is known at once."""
TRIAL: Final = StagedRolloutConfig(
    stages=[0.1, 0.5], requests=500, shadow_requests=0, guardrails=[GuardrailConfig(kind=KIND)]
)
"""Stages of a trial unless given: a tenth of the executions, then half of them, beside as large a control slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillOutcome:
    """Result of one execution of a skill."""

    unit: str
    """Its name, by which its version was chosen; no other execution has it."""
    version: str
    route: str
    """Label of its route; empty: it was on no trial."""
    score: float | None
    """0, a failure, to 1; None: something else ended it."""
    features: tuple[float, ...] = ()
    """Numbers that were known before the version was chosen, such as the length of the way."""


@dataclass(slots=True, kw_only=True, eq=False)
class SkillLibrary:
    """An opened library. Made by `open_skill_library`; for one thread."""

    skills: tuple[str, ...]
    registry: VersionRegistry
    log: DecisionLog
    clock: Clock
    check: Callable[[Path, str], object]
    """Takes a version's folder and its skill; raises for a folder that is none."""
    tell: Callable[[str, str], None]
    """Takes the code and the words of transitions and faults."""
    recorded: int = 0
    """Executions that the log has."""
    _routers: dict[str, RolloutRouter] = field(default_factory=dict[str, RolloutRouter])
    _drivers: dict[str, RolloutDriver] = field(default_factory=dict[str, RolloutDriver])

    # ------------------------------------------------------------------------------------------ versions

    def add(self, skill: str, folder: str | Path, *, parent: str = "", made_by: str = "a program") -> PolicyVersion:
        """Add a version; the one that is there already is returned. Raises ConfigError for an unknown skill, and what
        `check` raises."""
        self._require(skill)
        self.check(Path(folder), skill)
        origin = VersionOrigin(code=f"hone {hone.__version__}", config=f"skill = {skill}", parent=parent)
        return self.registry.add(Path(folder), origin, at_s=self.clock.now_s(), made_by=made_by)

    def versions(self, skill: str) -> tuple[PolicyVersion, ...]:
        """Versions of a skill, oldest first."""
        self._require(skill)
        return tuple(one for one in self.registry.versions() if one.origin.config == f"skill = {skill}")

    def version_folder(self, skill: str, version: str) -> Path:
        """Folder of a version, each file verified by its digest. Raises ConfigError for a version that the skill has
        not, DataError for a damaged one."""
        known = [one.id for one in self.versions(skill)]
        if version not in known:
            others = [name for name in self.skills if version in {one.id for one in self.versions(name)}]
            owner = f", it is one of {others[0]!r}" if others else "" if known else ": none was added"
            raise ConfigError(f"skill {skill!r} has no version {version!r}{owner}{did_you_mean(version, known)}")
        return self.registry.policy_folder(version)

    def champion(self, skill: str) -> str:
        """The live version of a skill; empty: none was published."""
        self._require(skill)
        return self.registry.live(skill)

    def publish(self, skill: str, version: str, reason: str) -> None:
        """Make a version the champion at once, without a trial. Raises as `version_folder`."""
        self.check(self.version_folder(skill, version), skill)
        move = StageMove(version=version, stage="live", reason=reason)
        self.registry.move(skill, move, at_s=self.clock.now_s(), made_by="skill library")
        self._routers.clear()

    def rollback(self, skill: str, reason: str) -> str:
        """Make the champion before the present one champion again -> its version. Raises ConfigError if there is
        none, DataError if it is damaged: the present one stays."""
        self._require(skill)
        past = [move.replaced for move in self.registry.moves(skill) if move.version == self.registry.live(skill)]
        if past and past[-1]:
            self.version_folder(skill, past[-1])
        move = self.registry.rollback(skill, at_s=self.clock.now_s(), made_by="skill library", reason=reason)
        self._routers.clear()
        return move.version

    # ------------------------------------------------------------------------------------------ trials

    def begin_trial(self, skill: str, version: str, *, rollout: StagedRolloutConfig = TRIAL) -> RolloutPlan:
        """Begin to try a version on a part of the skill's executions. Raises ConfigError with everything that is in
        its way: no champion to compare with, another trial, missing evidence."""
        self.check(self.version_folder(skill, version), skill)
        champion = self.champion(skill)
        if not champion:
            raise ConfigError(f"skill {skill!r} has no champion to compare with: publish a first version")
        name = f"{skill}-r{len(self.registry.rollouts(skill)) + 1}"
        plan = rollout.plan(name=name, service=skill, version=version, control=champion, shadow=False)
        self._tools().start(plan)
        self._routers.clear()
        return plan

    def route(self, skill: str, unit: str) -> UnitRoute:
        """The version of an execution, and the label of its trial. Raises DataError and ResourceError."""
        router = self._routers.get(skill)
        if router is None:
            self._require(skill)
            router = self._routers[skill] = read_router(self.registry, skill, f"skill {skill}")
        return router.route(TENANT, unit)

    def record(self, outcomes: Sequence[SkillOutcome]) -> None:
        """Write executions into the log. Raises what the log raises."""
        at_s = self.clock.now_s()
        units = [
            TrialUnit(
                tenant=TENANT, name=one.unit, version=one.version, route=one.route,
                value=0.0 if one.score is None else one.score, kind=INTERRUPTED if one.score is None else KIND,
                context=np.array(one.features, np.float64), at_s=at_s,
            )
            for one in outcomes
        ]  # fmt: skip
        numbered = enumerate(units, start=self.recorded)
        self.log.append([record for number, unit in numbered for record in unit.records(SOURCE, number)])
        self.recorded += len(units)

    def look(self) -> list[StageTransition]:
        """Look at every trial once -> the transitions that its evidence asked for; they act on executions that begin
        afterwards. Evidence that is missing is told, and the trial stays. Raises ResourceError where another process
        looks at the same trials."""
        done: list[StageTransition] = []
        for trial in [one for skill in self.skills for one in running_rollouts(self.registry, skill)]:
            name = trial.plan.name
            driver = self._drivers.get(name)
            if driver is None or driver.behind():
                driver = self._drivers[name] = self._tools().resume(trial.plan.service, name)
            try:
                done += driver.step()
            except ConfigError as error:
                self.tell("trial_stays", f"trial {name}: {error}")
        for one in done:
            self.tell("trial", f"{one.before} -> {one.after}: {one.words}")
        self._routers.clear()
        return done

    def _tools(self) -> RolloutTools:
        return RolloutTools(registry=self.registry, log=self.log, clock=self.clock, join=_JOIN, made_by="skill library")

    def _require(self, skill: str) -> None:
        if skill not in self.skills:
            raise ConfigError(f"no skill {skill!r} in the library{did_you_mean(skill, self.skills)}")


@contextmanager
def open_skill_library(
    folder: Path,
    skills: Sequence[str],
    *,
    clock: Clock,
    check: Callable[[Path, str], object],
    tell: Callable[[str, str], None],
    create: bool = True,
) -> Iterator[SkillLibrary]:
    """Open or make the library in a folder, for the block. Raises DataError for a damaged one, and without `create` for
    one that does not exist; ResourceError."""
    if not create and not (folder / "registry").is_dir():
        raise DataError(f"no library of skills at {folder}: make it with `warehouse.open_library`, or name its folder")
    folder.mkdir(parents=True, exist_ok=True)
    registry = open_registry(folder / "registry", create=True)
    log = open_decision_log(folder / "decisions.db")
    try:
        marks = [one.highest for one in log.watermarks() if (one.tenant, one.source) == (TENANT, SOURCE)]
        library = SkillLibrary(
            skills=tuple(skills), registry=registry, log=log, clock=clock, check=check, tell=tell,
            recorded=(marks[0] + 1) // 2 if marks else 0,
        )  # fmt: skip
        yield library
    finally:
        log.close()
