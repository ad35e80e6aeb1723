"""Warehouses from Python: `from hone.api import warehouse`.

`warehouse.train(config)` trains a dispatcher or a skill, `warehouse.load(file)` opens the dispatcher of a file with the
versions of its skills, whose `assign(robots, tasks)` says what each robot does next, and `warehouse.play(file, seed=1)`
plays an episode and records the versions that it used. `warehouse.open_library(folder)` opens the skills: versions,
champions, trials, the way back.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, cast

from hone.api.commands import train as train_run
from hone.api.python_config import ConfigInput, document_of
from hone.api.results import TrainingResult
from hone.config.resolve import load as load_config
from hone.control.warehouse.dispatcher import (
    Assignment,
    Dispatcher,
    DispatcherConfig,
    RobotReport,
    SkillsConfig,
    play_floor,
)
from hone.control.warehouse.floor import Floor
from hone.control.warehouse.skills import (
    VERSIONED,
    SkillExecution,
    SkillPolicy,
    SkillRunner,
    planned_skill,
    read_skill,
    require_skill,
    write_skill,
)
from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, HoneError
from hone.core.strict_json import Json
from hone.decide.rollout.controller import StageTransition
from hone.decide.skills import SkillLibrary, SkillOutcome, open_skill_library
from hone.run.store.durable import replace_file, to_json

__all__ = [
    "Assignment",
    "Dispatcher",
    "DispatcherConfig",
    "RobotReport",
    "SkillExecution",
    "SkillLibrary",
    "WarehouseEpisode",
    "load",
    "open_library",
    "play",
    "train",
    "write_skill",
]

LOGGER: Final = logging.getLogger("hone.warehouse")
_LOOK: Final = 100
"""Executions after which the trials are looked at."""
_TRAINED: Final = ("hone/Warehouse-v0", "hone/WarehouseSkill-v0", "hone/WarehouseFlat-v0")


def train(config: ConfigInput, overrides: Sequence[str] = (), *, runs: str | Path = "runs") -> TrainingResult:
    """Train the dispatcher of `hone/Warehouse-v0` (`recipe = "dispatch"`) or a skill of `hone/WarehouseSkill-v0` (any
    recipe for numbered actions), as `hone.api.train` does. Its `policy` is the folder that a dispatcher's file names,
    or that `write_skill` makes a version of. Raises ConfigError for another environment, HoneError as the command."""
    env = document_of(config, overrides, Path(runs)).values.get("env")
    name = env.get("id") if isinstance(env, dict) else None
    if name not in _TRAINED:
        raise ConfigError(f"env.id = {name!r}: a warehouse trains in {', '.join(_TRAINED)}; others: hone.api.train")
    return train_run(config, overrides, runs=runs)


@contextmanager
def open_library(folder: str | Path, *, clock: Clock | None = None) -> Iterator[SkillLibrary]:
    """Open or make a library of the warehouse's skills, for the block.

    `library.add(skill, folder)` adds a version from a folder of `write_skill`, `library.publish` makes one the champion
    at once, `library.begin_trial` tries one on a part of the executions of `play`, and `library.rollback` goes back to
    the champion before. Raises DataError for a damaged library, ResourceError.
    """
    with open_skill_library(
        Path(folder), VERSIONED, clock=clock or SystemClock(), check=read_skill,
        tell=lambda code, words: LOGGER.warning("%s: %s", code, words),
    ) as library:  # fmt: skip
        yield library


def load(file: str | Path, *, clock: Clock | None = None) -> Dispatcher:
    """The dispatcher of a file, with the version of each skill: the one that the file names, else the library's
    champion, else the planned way. `dispatcher.skills` has them.

    Raises ConfigError with all faults: of the file, and of each skill with a version that the library lacks, or with
    files of another digest.
    """
    config = load_config(DispatcherConfig, file).config
    with ExitStack() as opened:
        library = _library(opened, config.skills, Path(file).parent, clock)
        return Dispatcher(config, {} if library is None else _versions(library, config.skills))


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseEpisode:
    """An episode of a floor, with the versions that it used."""

    seed: int
    policy: str
    """Policy of the assignments: `greedy`, or a folder."""
    deliveries: int
    collisions: int
    failures: int
    """Skills that failed: by the world, or by their version."""
    versions: Mapping[str, Mapping[str, int]]
    """Skill -> version -> executions."""
    executions: Sequence[SkillExecution] = field(repr=False)
    transitions: Sequence[StageTransition] = ()
    """Verdicts of the trials meanwhile."""

    def write(self, path: str | Path) -> None:
        """Write everything as JSON. Raises ResourceError."""
        replace_file(Path(path), to_json(cast("Json", asdict(self))) + b"\n")


def play(file: str | Path, *, seed: int, clock: Clock | None = None) -> WarehouseEpisode:
    """Play an episode of the floor of a file, and record each execution of a skill in its library.

    Executions under trial are drawn by their names; every hundred executions the trials are judged, and the next
    executions follow the verdict. Raises as `load`.
    """
    config = load_config(DispatcherConfig, file).config
    with ExitStack() as opened:
        library = _library(opened, config.skills, Path(file).parent, clock)
        return _played(config, library, seed)


def _played(config: DispatcherConfig, library: SkillLibrary | None, seed: int) -> WarehouseEpisode:
    pinned = {} if library is None else _versions(library, config.skills, named_only=True)
    loaded: dict[tuple[str, str], SkillPolicy] = {}
    first = 0 if library is None else library.recorded
    transitions: list[StageTransition] = []

    def select(skill: str, number: int) -> tuple[SkillPolicy, str]:
        if library is None or skill in pinned:
            return pinned.get(skill) or planned_skill(skill), ""
        route = library.route(skill, _unit(first, number))
        if not route.version:
            return planned_skill(skill), ""
        if (skill, route.version) not in loaded:
            folder = library.version_folder(skill, route.version)
            loaded[skill, route.version] = read_skill(folder, skill, route.version)
        return loaded[skill, route.version], route.label

    floor = Floor(config.spec())
    runner = SkillRunner(floor=floor, select=select)
    waiting: set[int] = set()
    looked = 0

    def record() -> None:
        if library is None:
            return
        ended = [runner.executions[number] for number in sorted(waiting) if runner.executions[number].end]
        library.record([
            SkillOutcome(unit=_unit(first, one.number), version=one.version, route=one.route, score=one.score,
                         features=(float(one.way),))
            for one in ended
        ])  # fmt: skip
        waiting.difference_update(one.number for one in ended)
        transitions.extend(library.look())

    def step(now: Floor) -> int:
        nonlocal looked
        delivered = runner.step(now)
        if len(runner.executions) - looked >= _LOOK:
            waiting.update(range(looked, len(runner.executions)))
            looked = len(runner.executions)
            record()
        return delivered

    play_floor(floor, config.chooser(), seed=seed, step=step)
    runner.close()
    waiting.update(range(looked, len(runner.executions)))
    record()
    counts = {skill: Counter(one.version for one in runner.executions if one.skill == skill) for skill in VERSIONED}
    return WarehouseEpisode(
        seed=seed, policy=config.policy, deliveries=int(floor.state["deliveries"]),
        collisions=int(floor.state["collisions"]), failures=int(floor.state["failures"]),
        versions={skill: dict(count) for skill, count in counts.items() if count}, executions=runner.executions,
        transitions=transitions,
    )  # fmt: skip


def _unit(first: int, number: int) -> str:
    """Name of an execution: the record that its episode began at, and its number there."""
    return f"{first}/{number}"


def _library(opened: ExitStack, config: SkillsConfig, beside: Path, clock: Clock | None) -> SkillLibrary | None:
    """The library that a file names, beside it; None: it names none. Raises ConfigError for versions without one."""
    if config.library:
        folder = beside / config.library
        if not (folder / "registry").is_dir():
            raise ConfigError(f"skills.library {config.library!r} is no library of skills: {folder}")
        return opened.enter_context(open_library(folder, clock=clock))
    if config.versions:
        raise ConfigError("skills.versions needs a library that has them: name its folder in skills.library")
    return None


def _versions(library: SkillLibrary, config: SkillsConfig, *, named_only: bool = False) -> dict[str, SkillPolicy]:
    """The versions that a file names, and the champions of the other skills. Raises ConfigError with all faults."""
    champions = {} if named_only else {skill: library.champion(skill) for skill in VERSIONED}
    versions: dict[str, SkillPolicy] = {}
    faults: list[str] = []
    for skill, version in (champions | config.versions).items():
        if not version:
            continue
        try:
            require_skill(skill)
            versions[skill] = read_skill(library.version_folder(skill, version), skill, version)
        except HoneError as error:
            faults += [f"skills.versions: {message}" for message in error.messages]
    if faults:
        raise ConfigError(*faults)
    return versions
