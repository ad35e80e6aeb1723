"""Library of skills: champions, refused versions, trials by executions, the way back."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.core.errors import ConfigError, DataError
from hone.decide.rollout.driver import read_rollout
from hone.decide.skills import SkillLibrary, SkillOutcome, open_skill_library


def check(folder: Path, skill: str) -> None:
    if (folder / "skill").read_text() != skill:
        raise DataError(f"{folder} is no {skill}")


def version(folder: Path, skill: str, content: str) -> Path:
    (folder / skill / content).mkdir(parents=True, exist_ok=True)
    (folder / skill / content / "skill").write_text(skill)
    (folder / skill / content / "weights").write_text(content)
    return folder / skill / content


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def library(tmp_path: Path, clock: ManualClock, told: list[str]) -> Iterator[SkillLibrary]:
    with open_skill_library(
        tmp_path / "library", ("grip", "lift"), clock=clock, check=check, tell=lambda code, words: told.append(code)
    ) as opened:
        yield opened


@pytest.fixture
def pair(library: SkillLibrary, tmp_path: Path, clock: ManualClock) -> tuple[str, str]:
    """Two versions of a skill, the first of them the champion."""
    numbers = []
    for name in ("old", "new"):
        numbers.append(library.add("grip", version(tmp_path, "grip", name)).id)
        clock.advance(1.0)
    library.publish("grip", numbers[0], "the first")
    return numbers[0], numbers[1]


def execute(library: SkillLibrary, clock: ManualClock, score, count: int = 60) -> None:
    """So many executions; `score` takes the arm."""
    outcomes = []
    for number in range(count):
        unit = f"{library.recorded}/{number}"
        route = library.route("grip", unit)
        outcomes.append(
            SkillOutcome(unit=unit, version=route.version, route=route.label, score=score(route.arm), features=(9.0,))
        )
    library.record(outcomes)
    clock.advance(1.0)


def test_a_version_is_named_by_what_is_in_it_and_whose_it_is(
    library: SkillLibrary, tmp_path: Path, clock: ManualClock
) -> None:
    one = library.add("grip", version(tmp_path, "grip", "a"))
    clock.advance(1.0)
    assert library.add("grip", version(tmp_path / "copy", "grip", "a")).id == one.id
    other = library.add("grip", version(tmp_path, "grip", "b"), parent=one.id)
    assert [each.id for each in library.versions("grip")] == [one.id, other.id]
    assert library.versions("lift") == ()
    assert (library.champion("grip"), library.route("grip", "0/0").version) == ("", "")


def test_wrong_versions_are_refused_in_words(library: SkillLibrary, tmp_path: Path, pair: tuple[str, str]) -> None:
    with pytest.raises(DataError, match="is no lift"):
        library.add("lift", version(tmp_path, "grip", "old"))
    with pytest.raises(ConfigError, match="no skill 'lfit' in the library; did you mean lift"):
        library.add("lfit", version(tmp_path, "lift", "a"))
    with pytest.raises(ConfigError, match=f"skill 'lift' has no version '{pair[0]}', it is one of 'grip'"):
        library.publish("lift", pair[0], "?")
    with pytest.raises(ConfigError, match="skill 'grip' has no version '0123456789abcdef'"):
        library.version_folder("grip", "0123456789abcdef")
    (library.registry.folder / "versions" / pair[1] / "weights").write_text("changed")
    with pytest.raises(DataError, match=f"version {pair[1]} is damaged in .*: weights"):
        library.publish("grip", pair[1], "?")
    assert library.champion("grip") == pair[0]


def test_a_rollback_makes_the_champion_before_champion_again(library: SkillLibrary, pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="no version to go back to"):
        library.rollback("grip", "no")
    library.publish("grip", pair[1], "hoped")
    assert library.route("grip", "0/0").version == pair[1]
    assert library.rollback("grip", "worse") == pair[0]
    assert library.route("grip", "0/0").version == library.champion("grip") == pair[0]
    assert [move.reason for move in library.registry.moves("grip")] == ["the first", "hoped", "worse"]


def test_nobody_goes_back_to_a_damaged_version(library: SkillLibrary, pair: tuple[str, str]) -> None:
    library.publish("grip", pair[1], "hoped")
    (library.registry.folder / "versions" / pair[0] / "weights").unlink()
    with pytest.raises(DataError, match="damaged"):
        library.rollback("grip", "worse")
    assert library.champion("grip") == pair[1]


def test_a_bad_version_on_trial_goes_back_by_its_scores(
    library: SkillLibrary, clock: ManualClock, pair: tuple[str, str], told: list[str]
) -> None:
    library.begin_trial("grip", pair[1])
    draws = np.random.default_rng(1)
    stages = [one.after for one in library.look()]
    while stages[-1] not in ("rolled_back", "100%"):
        execute(library, clock, lambda arm: float(draws.random() < (0.3 if arm == "canary" else 0.95)))
        stages += [one.after for one in library.look()]
    assert stages[-1] == "rolled_back"
    assert told[-1] == "trial"
    assert library.registry.stage("grip", pair[1]) == "retired"
    assert {library.route("grip", f"z/{number}").version for number in range(200)} == {pair[0]}
    rows = library.registry.evidence(pair[1])
    assert (rows[-1].kind, rows[-1].verdict) == ("rollout", "refuse")


def test_a_good_version_becomes_the_champion_and_calls_off_count_without_a_stake(
    library: SkillLibrary, clock: ManualClock, pair: tuple[str, str]
) -> None:
    plan = library.begin_trial("grip", pair[1])
    draws = np.random.default_rng(2)
    library.look()
    for _ in range(30):
        execute(library, clock, lambda arm: None if draws.random() < 0.2 else 0.9)
        library.look()
    assert library.champion("grip") == pair[1]
    evidence = read_rollout(library.registry, "grip", plan.name).state.evidence
    (guardrail,) = evidence.guardrails
    assert guardrail.missing > 50
    assert guardrail.arms.count + guardrail.missing == evidence.count


def test_a_trial_needs_a_champion_and_no_other_trial(
    library: SkillLibrary, tmp_path: Path, pair: tuple[str, str]
) -> None:
    lift = library.add("lift", version(tmp_path, "lift", "a")).id
    with pytest.raises(ConfigError, match="skill 'lift' has no champion to compare with"):
        library.begin_trial("lift", lift)
    library.begin_trial("grip", pair[1])
    with pytest.raises(ConfigError, match="is at candidate in the same part"):
        library.begin_trial("grip", pair[1])


def test_a_reopened_library_goes_on_with_its_trial_and_its_numbers(
    library: SkillLibrary, tmp_path: Path, clock: ManualClock, pair: tuple[str, str]
) -> None:
    library.begin_trial("grip", pair[1])
    library.look()
    execute(library, clock, lambda arm: 1.0)
    library.look()
    counted = library.registry.first_and_last("grip", "grip-r1")
    with open_skill_library(
        tmp_path / "library", ("grip", "lift"), clock=clock, check=check, tell=lambda code, words: None, create=False
    ) as again:
        assert (again.recorded, library.recorded) == (60, 60)
        assert [again.route("grip", f"60/{n}") for n in range(50)] == [
            library.route("grip", f"60/{n}") for n in range(50)
        ]
        assert again.look() == []
        execute(again, clock, lambda arm: 1.0)
        again.look()
        assert again.registry.first_and_last("grip", "grip-r1") != counted
    assert library.look() == [], "the other one moved the trial: it is read again"


def test_a_folder_without_a_library_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(DataError, match="no library of skills at"), open_skill_library(
        tmp_path / "none", ("grip",), clock=clock, check=check, tell=lambda code, words: None, create=False
    ):  # fmt: skip
        pass
