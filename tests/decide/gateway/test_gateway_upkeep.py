"""The drill: a backup of a service that serves, its check, its restore; and pruning of versions."""

import json
import os
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.cli.main import main
from hone.core.decisions import Decision
from hone.core.errors import ConfigError, DataError, HoneError
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.requests import RequestError
from hone.decide.gateway.upkeep import backup_service, prune_versions, restore_service, verify_backup
from hone.decide.log.opening import open_decision_log

SHOP = """
[service]
features = ["age", "country=de"]
actions = ["banner", "mail", "none"]

[policy]
kind = "linucb"
publish_every = 10

[join]
rule = "first"
"""
NOW_S = 1_700_000_000.0


def opened(path: Path, clock: ManualClock | None = None) -> OpenedService:
    return open_service(path, clock=clock or ManualClock(NOW_S), tell=lambda line: None)


def decide(shop: OpenedService, first: int, count: int) -> None:
    for number in range(first, first + count):
        decided = shop.decide(f"u{number}", {"age": number % 7 / 7, "country": "de"}, id=f"d{number}")
        shop.reward(decided.id, float(decided.action == "mail"), key=f"r{number}")


@pytest.fixture
def shop_file(tmp_path: Path) -> Path:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "shop.toml").write_text(SHOP)
    return tmp_path / "live" / "shop.toml"


def test_a_service_that_is_lost_comes_back_from_its_backup_as_it_was(shop_file: Path, tmp_path: Path) -> None:
    """The drill, as the page for operators describes it."""
    shop, backup = opened(shop_file), tmp_path / "backup"
    decide(shop, 0, 60)
    going, stop = threading.Event(), threading.Event()

    def serve_on() -> None:
        number = 60
        while not stop.is_set():
            decide(shop, number, 1)
            number += 1
            going.set()

    serving = threading.Thread(target=serve_on)
    serving.start()
    assert going.wait(300)
    manifest = backup_service(shop_file, backup, ManualClock(NOW_S))
    stop.set()
    serving.join()
    shop.close()
    assert verify_backup(backup) == manifest
    held = manifest["log"]["decisions"]
    assert held >= 60
    before = shutil.move(shop_file.parent, tmp_path / "lost")
    assert restore_service(backup, shop_file) == manifest
    again = opened(shop_file)
    assert shop_file.read_text() == SHOP
    decisions = [one.record for one in pages(again.log) if isinstance(one.record, Decision)]
    assert len(decisions) == held and again.log.counts().outcomes == manifest["log"]["outcomes"]
    with closing(open_decision_log(Path(before) / "shop" / "decisions.db")) as lost:
        first = [one.record for one in pages(lost) if isinstance(one.record, Decision)][:held]
    assert [one.id for one in decisions] == [one.id for one in first]
    for one in decisions:  # every version that the log names came with it
        choice = again.service.replay(one)
        assert (choice.action, choice.logp) == (one.executed, one.executed_logp)
    sources = {one.source for one in decisions}
    answer = again.decide("u5", {"age": 5 / 7, "country": "de"}, id="d5")
    assert answer.logp == decisions[5].executed_logp, "a repeated id gets the same answer"
    with pytest.raises(RequestError, match="used for another request"):
        again.decide("other", {"age": 0.0, "country": "de"}, id="d5")
    decide(again, 10_000, 1)
    latest = [one.record for one in pages(again.log) if isinstance(one.record, Decision)][-1]
    assert latest.source not in sources, "numbers that were given out after the backup are not given out again"
    again.close()


def test_what_a_restored_service_has_learnt_is_what_its_log_teaches(shop_file: Path, tmp_path: Path) -> None:
    shop = opened(shop_file)
    decide(shop, 0, 80)
    live = shop.policies.tenants["default"].live.name
    shop.close()
    backup_service(shop_file, tmp_path / "b", ManualClock(NOW_S))
    shutil.rmtree(shop_file.parent)
    restore_service(tmp_path / "b", shop_file)
    again = opened(shop_file)
    assert again.policies.tenants["default"].live.name == live
    again.close()


@pytest.mark.parametrize("fault", ["damaged", "missing", "more", "format"])
def test_a_backup_that_is_not_whole_is_refused_by_the_file(shop_file: Path, tmp_path: Path, fault: str) -> None:
    shop = opened(shop_file)
    decide(shop, 0, 20)
    shop.close()
    backup = tmp_path / "b"
    backup_service(shop_file, backup, ManualClock(NOW_S))
    log = backup / "folder" / "decisions.db"
    words = {"damaged": "decisions.db is damaged", "missing": "decisions.db is missing"}.get(fault, fault)
    if fault == "damaged":
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        log.write_bytes(content)
    elif fault == "missing":
        log.unlink()
    elif fault == "more":
        (backup / "more").write_text("x")
    else:
        manifest = json.loads((backup / "backup.json").read_text())
        (backup / "backup.json").write_text(json.dumps({**manifest, "backup": 9}))
    shutil.rmtree(shop_file.parent)
    with pytest.raises(DataError, match=words):
        restore_service(backup, shop_file)
    assert not shop_file.parent.exists(), "nothing was restored"


def test_nothing_is_overwritten(shop_file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder of this service yet"):
        backup_service(shop_file, tmp_path / "b", ManualClock(NOW_S))
    shop = opened(shop_file)
    decide(shop, 0, 5)
    backup_service(shop_file, tmp_path / "b", ManualClock(NOW_S))
    with pytest.raises(ConfigError, match="never changes"):
        backup_service(shop_file, tmp_path / "b", ManualClock(NOW_S))
    shop.close()
    with pytest.raises(ConfigError, match="is not empty"):
        restore_service(tmp_path / "b", shop_file)
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0, "others do not read it"


def test_a_backup_that_fails_leaves_nothing(shop_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(shop_file).close()
    (shop_file.parent / "shop" / "decisions.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    with pytest.raises(HoneError):
        backup_service(shop_file, tmp_path / "b", ManualClock(NOW_S))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live"]


def test_versions_that_no_recent_decision_was_made_by_are_pruned(shop_file: Path) -> None:
    clock = ManualClock(NOW_S)
    shop = opened(shop_file, clock)
    decide(shop, 0, 60)
    clock.advance(1000.0)
    decide(shop, 60, 30)
    decisions = [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]
    versions = shop_file.parent / "shop" / "versions"
    every = {path.name for path in versions.iterdir()}
    recent = {one.version for one in decisions if one.at_s >= NOW_S + 500.0}
    assert prune_versions(shop_file, before_s=NOW_S + 500.0, clock=clock).removed == (), (
        "of the last hour: all are kept"
    )
    for path in versions.iterdir():
        os.utime(path, (NOW_S, NOW_S))
    clock.advance(3700.0)
    pruned = prune_versions(shop_file, before_s=NOW_S + 500.0, clock=clock)
    assert set(pruned.removed) == every - recent and pruned.kept == len(recent)
    assert {path.name for path in versions.iterdir()} == recent
    with pytest.raises(DataError, match="is not kept"):
        shop.replay(decisions[0])
    assert shop.replay(decisions[-1]).logp == decisions[-1].executed_logp
    last = decisions[-1].version
    assert prune_versions(shop_file, before_s=NOW_S + 10**6, clock=clock).kept == 1, "that of the latest decision stays"
    assert [path.name for path in versions.iterdir()] == [last]
    decide(shop, 90, 30)  # the service goes on
    shop.close()


def test_the_command_says_what_it_did(shop_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = opened(shop_file)
    decide(shop, 0, 12)
    shop.close()
    backup = str(tmp_path / "b")
    assert main(["service", str(shop_file), "--backup", backup]) == 0
    assert main(["service", str(shop_file), "--verify", backup]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "12 decisions and 12 outcomes in decisions.db" in told and "is whole: service shop" in told
    shutil.rmtree(shop_file.parent / "shop")
    assert main(["service", str(shop_file), "--restore", backup]) == 0
    assert main(["service", str(shop_file), "--prune", "2020-01-01"]) == 0
    assert "removed 0 versions" in capsys.readouterr().out
    assert main(["service", str(shop_file)]) == 2
    assert main(["service", str(shop_file), "--backup", "a", "--verify", "b"]) == 2
