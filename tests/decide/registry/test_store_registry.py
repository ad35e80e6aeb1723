"""The registry: identity by content, moves as transactions with evidence, append-only rows, the way back."""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hone.core.decisions import Evidence
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.registry import JournalEntry, StageMove, VersionOrigin, VersionRegistry, open_registry

MakeVersion = Callable[..., str]


@pytest.fixture
def registry(tmp_path: Path) -> VersionRegistry:
    return open_registry(tmp_path / "registry", create=True)


@pytest.fixture
def make(registry: VersionRegistry, tmp_path: Path) -> MakeVersion:
    def made(name: str, **origin) -> str:
        policy = tmp_path / name
        (policy / "deep").mkdir(parents=True, exist_ok=True)
        (policy / "policy.json").write_text(name)
        (policy / "deep" / "weights").write_bytes(name.encode() * 9)
        return registry.add(policy, VersionOrigin(**origin), at_s=1.0, made_by="a test").id

    return made


def move(registry: VersionRegistry, version: str, stage, needs=(), service="shop"):
    return registry.move(
        service, StageMove(version=version, stage=stage, needs=tuple(needs)), at_s=5.0, made_by="a test"
    )


def append(registry, rollout, content, *, service="shop", seq=0, moves=(), evidence=()) -> None:
    entry = JournalEntry(service=service, rollout=rollout, seq=seq, content=content, moves=moves, evidence=evidence)
    registry.append(entry, at_s=1.0, made_by="a test")


def evidence(kind="offline", verdict="ok", **values) -> Evidence:
    return Evidence(kind=kind, verdict=verdict, words="it is so", made_by="job 7", at_s=3.0, **values)


def test_the_same_content_is_the_same_version_and_any_other_is_another(make: MakeVersion, registry) -> None:
    first = make("a", code="1.0", config="x = 1", view="v", seeds=(1, 2))
    assert make("a", code="1.0", config="x = 1", view="v", seeds=(1, 2)) == first
    others = [
        make("b", code="1.0", config="x = 1", view="v", seeds=(1, 2)),
        make("a", code="1.1", config="x = 1", view="v", seeds=(1, 2)),
        make("a", code="1.0", config="x = 2", view="v", seeds=(1, 2)),
        make("a", code="1.0", config="x = 1", view="w", seeds=(1, 2)),
        make("a", code="1.0", config="x = 1", view="v", seeds=(2, 1)),
        make("a", code="1.0", config="x = 1", view="v", seeds=(1, 2), parent=first),
    ]
    assert len({first, *others}) == 7
    assert len(first) == 16
    assert {one.id for one in registry.versions()} == {first, *others}
    assert registry.version(first).origin.seeds == (1, 2)


def test_lineage_goes_to_the_first_version(make: MakeVersion, registry) -> None:
    first = make("a")
    second = make("b", parent=first)
    third = make("c", parent=second)
    assert [one.id for one in registry.lineage(third)] == [third, second, first]
    with pytest.raises(DataError, match="the parent of the new version"):
        make("d", parent="feed")


def test_a_version_is_read_back_whole_and_damage_is_named(make: MakeVersion, registry) -> None:
    number = make("a")
    folder = registry.policy_folder(number)
    assert (folder / "policy.json").read_text() == "a"
    (folder / "deep" / "weights").write_bytes(b"torn")
    with pytest.raises(DataError, match=f"version {number} is damaged.*deep/weights"):
        registry.policy_folder(number)
    with pytest.raises(DataError, match=f"did you mean {number}"):
        registry.policy_folder(number[:-1] + "x")


def test_policies_of_nothing_and_of_links_are_refused(registry, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "secret").symlink_to("/etc/hostname")
    for name, message in (("empty", "is empty"), ("linked", "links or special files"), ("none", "no policy folder")):
        with pytest.raises(DataError, match=message):
            registry.add(tmp_path / name, VersionOrigin(), at_s=0, made_by="x")


def test_a_move_holds_the_old_and_the_new_version(make: MakeVersion, registry) -> None:
    old, new = make("a"), make("b")
    assert registry.live("shop") == ""
    move(registry, old, "live")
    for stage in ("shadow", "canary", "live"):
        done = move(registry, new, stage)
    assert (done.before, done.after, done.replaced) == ("canary", "live", old)
    assert (registry.live("shop"), registry.stage("shop", old)) == (new, "retired")
    assert move(registry, new, "live") is None  # there already: nothing is written
    assert [(one.version, one.after) for one in registry.moves("shop")][-1] == (new, "live")
    assert len(registry.moves("shop")) == 4
    assert registry.live("other shop") == ""  # services are apart
    assert registry.stage("other shop", new) == "candidate"


def test_moves_that_no_stage_allows_are_refused(make: MakeVersion, registry) -> None:
    number = make("a")
    move(registry, number, "live")
    with pytest.raises(ConfigError, match="is live and cannot become shadow; from live it can become retired"):
        move(registry, number, "shadow")
    with pytest.raises(DataError, match="no version 'nothing'"):
        move(registry, "nothing", "live")


def test_a_move_without_its_evidence_is_refused_with_the_whole_list(make: MakeVersion, registry) -> None:
    number = make("a")
    needs = ("offline", "certificate", "load")
    registry.add_evidence(number, evidence("load", "weak"))
    move(registry, number, "shadow", needs)  # a shadow answers nobody
    with pytest.raises(ConfigError) as fault:
        move(registry, number, "canary", needs)
    assert fault.value.exit_code == 2
    assert fault.value.messages[:3] == (
        "evidence offline: none",
        "evidence certificate: none",
        "evidence load: weak (it is so; by job 7)",
    )
    assert f"version {number} stays shadow" in fault.value.messages[3]
    assert registry.stage("shop", number) == "shadow"
    for kind in needs:
        registry.add_evidence(number, evidence(kind))
    move(registry, number, "canary", needs)
    registry.add_evidence(number, evidence("offline", "refuse"))  # the latest row of a kind decides
    with pytest.raises(ConfigError, match="offline: refuse"):
        move(registry, number, "live", needs)


def test_evidence_is_kept_exactly_names_its_maker_and_cannot_be_changed(make: MakeVersion, registry) -> None:
    number = make("a")
    rows = (evidence(value=0.1 + 0.2, low=-1e-300, high=math.inf, count=7), evidence("certificate"))
    for row in rows:
        registry.add_evidence(number, row)
    first, second = registry.evidence(number)
    assert first == rows[0]
    assert math.isnan(second.value)
    with pytest.raises(DataError, match="its kind and its maker"):
        registry.add_evidence(number, Evidence(kind="offline", verdict="ok", words="", made_by="", at_s=0))
    move(registry, number, "shadow")
    append(registry, "r", {})
    columns = {"evidence": "verdict", "moves": "after", "versions": "parent", "journal": "entry", "files": "sha256"}
    for table, column in columns.items():
        for statement in (f"delete from {table}", f"update {table} set {column} = 'ok'"):
            with (
                closing(sqlite3.connect(registry.database)) as connection,
                pytest.raises(sqlite3.IntegrityError, match=f"{table} is append-only"),
            ):
                connection.execute(statement)


def test_the_way_back_is_a_pointer(make: MakeVersion, registry) -> None:
    one, two, three = make("a"), make("b"), make("c")
    for number in (one, two, three):
        move(registry, number, "live")
    done = registry.rollback("shop", at_s=9.0, made_by="a test", reason="worse")
    assert (done.version, done.replaced, done.reason) == (two, three, "worse")
    assert registry.live("shop") == two
    registry.recall("shop", one, at_s=9.0, made_by="a test", reason="winter is back")
    assert registry.live("shop") == one
    with pytest.raises(ConfigError, match="is live in service 'shop' already"):
        registry.recall("shop", one, at_s=9.0, made_by="a test", reason="again")
    with pytest.raises(ConfigError, match="was never live"):
        registry.recall("shop", make("d"), at_s=9.0, made_by="a test", reason="untried")
    with pytest.raises(ConfigError, match="no version to go back to"):
        registry.rollback("empty", at_s=9.0, made_by="a test", reason="worse")


def test_a_journal_has_one_writer_and_moves_with_its_entries(make: MakeVersion, registry) -> None:
    number = make("a")
    entry = {"to": "shadow", "at_s": 1.0}
    moved = (StageMove(version=number, stage="shadow"),)
    append(registry, "r1", entry, moves=moved)
    assert registry.entries("shop", "r1") == [entry]
    assert registry.stage("shop", number) == "shadow"
    with pytest.raises(ResourceError, match="has 1 entries, not 0: another controller"):
        append(registry, "r1", entry)
    needing = (StageMove(version=number, stage="canary", needs=("offline",)),)
    with pytest.raises(ConfigError, match="evidence offline: none"):
        append(registry, "r1", {"to": "1%"}, seq=1, moves=needing, evidence=[(number, evidence("load"))])
    assert len(registry.entries("shop", "r1")) == 1  # neither the entry nor the move nor the evidence
    assert registry.evidence(number) == ()
    assert registry.first_and_last("shop", "r1") == (entry, entry, 1)
    assert registry.first_and_last("shop", "none") is None
    append(registry, "r0", {"at_s": 0.5})
    assert registry.rollouts("shop") == ["r0", "r1"]
    assert registry.rollouts("none") == []


@pytest.mark.parametrize("text", ["'; drop table versions; --", "../../etc", "a\x00b", "ü", ""])
def test_hostile_names_are_only_names(make: MakeVersion, registry, text: str) -> None:
    number = make("a", code=text, config=text)
    move(registry, number, "live", service=text)
    append(registry, text, {"x": text}, service=text)
    assert registry.live(text) == number
    assert registry.version(number).origin.code == text
    assert registry.entries(text, text) == [{"x": text}]
    assert registry.rollouts(text) == [text]


def test_a_registry_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no registry at"):
        open_registry(tmp_path / "none")
    registry = open_registry(tmp_path / "registry", create=True)
    registry.database.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(DataError, match="is damaged"):
        registry.versions()
    registry.database.unlink()
    sqlite3.connect(registry.database).executescript("pragma user_version = 9").close()
    with pytest.raises(DataError, match="has format 9, this hone reads 1"):
        registry.versions()
    registry.database.unlink()
    registry.database.mkdir()
    with pytest.raises(DataError, match="no registry at"):
        registry.versions()
