"""Policies on their way to robots: signed, whole, tried on a part of the fleet, and taken back by evidence."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from fleet_parts import ARMS, FleetInProcess, fleet_in_process, play, policy_folder

from hone.api import fleet as fleet_api
from hone.core.decisions import Decision
from hone.core.errors import ConfigError, DataError
from hone.decide.fleet.device import HttpCall, Uploader
from hone.decide.fleet.http_app import fleet_plan_lines
from hone.decide.fleet.manifest import (
    FleetManifest,
    PolicyFile,
    PolicyTrial,
    manifest_signature,
    robot_secret,
    robot_token,
)
from hone.decide.fleet.page import fleet_page, read_fleet
from hone.decide.fleet.service import FleetService, publish_policy
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.rollout.controller import ROLLED_BACK

SECRET = "ab" * 32
MANIFEST = FleetManifest(
    service="arms", robot="r1", number=3, live="a1", salt="s", numbers={"a1": 7, "b2": 8},
    files={"a1": (PolicyFile(path="p", sha256="0" * 64, size_bytes=1),), "b2": ()},
    trial=PolicyTrial(rollout="r", stage="5%", version="b2", exposed=True, episodes=5),
)  # fmt: skip


def published(fleet: FleetInProcess, name: str, number: int | None = None) -> str:
    policy = policy_folder(fleet.file.parent, name)
    version = publish_policy(fleet.file, policy, number=number, clock=fleet.clock)
    fleet.settle()
    return version


def shipped(fleet: FleetInProcess, name: str) -> str:
    with open_rollouts(fleet.file, fleet.clock) as rollouts:
        version = rollouts.add(policy_folder(fleet.file.parent, name), "").id
        rollouts.start(rollouts.plan(version)).step()
    fleet.settle()
    return version


def test_a_manifest_is_read_as_it_was_written_and_only_with_its_own_signature() -> None:
    text = MANIFEST.to_text()
    secret = robot_secret(SECRET, "r1")
    assert FleetManifest.from_signed(secret, text, manifest_signature(secret, text)) == MANIFEST
    for changed, by in ((text.replace('"a1"', '"b2"'), secret), (text, robot_secret(SECRET, "r2"))):
        with pytest.raises(DataError, match="not signed for this robot"):
            FleetManifest.from_signed(by, changed, manifest_signature(secret, text))
    assert len({secret, robot_token(secret), robot_secret(SECRET, "r2"), manifest_signature(secret, text)}) == 4
    with pytest.raises(ConfigError, match="64 hexadecimal"):
        robot_secret("no secret", "r1")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../weights", "a/../../b", "a\\b"])
def test_a_manifest_whose_files_leave_their_folder_is_refused(path: str) -> None:
    text = MANIFEST.to_text().replace('["p"', json.dumps([path])[:-1])
    with pytest.raises(DataError, match="is no file of a version"):
        FleetManifest.from_text(text)


def test_the_coin_of_an_episode_is_fair_and_always_the_same() -> None:
    def tossed(salt: str) -> list[bool]:
        robots = [dataclasses.replace(MANIFEST, robot=f"r{number}", salt=salt) for number in range(50)]
        return [one.tries_in(episode) for one in robots for episode in range(100)]

    first = tossed("salt")
    assert first == tossed("salt") != tossed("other")
    assert abs(sum(first) - 2500) < 5 * 35  # five standard deviations
    assert first[:100] != first[100:200]


def test_a_published_policy_reaches_a_robot_whole_and_its_number_goes_with_the_steps(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        assert (robot.begin().version, robot.begin().folder) == ("", None)
        first = published(fleet, "first", number=40)
        assert robot.sync()
        policy = robot.begin()
        assert (policy.version, policy.number, policy.route) == (first, 40, "")
        assert policy.folder is not None
        assert (policy.folder / "weights" / "w.bin").read_bytes() == b"first" * 100
        play(robot, 1)
        robot.sync()
        (row,) = fleet.service.store.episodes(0, 10)
        assert (row.end.version, row.end.steps, row.end.total, row.end.first) == (first, 3, 3.0, (0.0, 0.5))
        second = published(fleet, "second")
        assert robot.sync()
        assert (robot.begin().version, robot.begin().number) == (second, 40)  # nobody said that it learnt more
        assert [path.name for path in policy.folder.parent.iterdir()] == [second]


def test_a_torn_or_changed_download_is_refused_and_the_old_policy_stays(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        first = published(fleet, "first")
        assert robot.sync()
        published(fleet, "second")
        for spoil, words in ((lambda body: body[:-7], "593 bytes of 600"), (lambda body: b"x" + body[1:], "sha256")):

            def torn(call: HttpCall, spoil: object = spoil) -> tuple[int, bytes] | None:
                if not call.path.endswith("w.bin"):
                    return None
                reply = fleet.client.get(call.path, headers=dict(call.headers))
                return reply.status_code, spoil(reply.content)  # type: ignore[operator]

            fleet.interfere = torn
            assert not robot.sync()
            assert words in robot.status().faults[0]
            assert "policies stay as they are" in robot.status().faults[0]
            assert robot.begin().version == first
        fleet.interfere = None
        assert robot.sync()
        assert robot.begin().version != first


def test_a_forged_an_old_and_another_robots_manifest_are_refused(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        first = published(fleet, "first")
        old = fleet.client.get("/v1/fleet/manifest", headers={"X-Robot": "r1"}).content
        second = published(fleet, "second")
        assert robot.sync()
        other = fleet.client.get("/v1/fleet/manifest", headers={"X-Robot": "r2"}).content
        forged = json.loads(old) | {"manifest": json.loads(old)["manifest"].replace(first, second)}
        changed = json.dumps(forged).encode()
        for body, words in ((old, "an older one"), (other, "not signed"), (changed, "not signed"), (b"{", "policies")):

            def answer(call: HttpCall, body: bytes = body) -> tuple[int, bytes] | None:
                return (200, body) if call.path == "/v1/fleet/manifest" else None

            fleet.interfere = answer
            assert not robot.sync()
            assert words in robot.status().faults[0]
            assert robot.begin().version == second
        with fleet.robot("r1", spool="bare.db", secret="") as bare:  # without a secret it checks files alone
            fleet.interfere = lambda call: (200, other) if call.path == "/v1/fleet/manifest" else None
            assert not bare.sync()
            assert "is for robot 'r2'" in bare.status().faults[0]


def exposed_robots(fleet: FleetInProcess, count: int) -> tuple[list[str], list[str]]:
    """Robots that the rollout exposes, and the others."""
    router = fleet.service.routers.router()
    names = [f"r{number}" for number in range(count)]
    inside = [name for name in names if router.route("default", name).arm != "live"]
    return inside, [name for name in names if name not in inside]


def test_a_trial_needs_a_live_version_to_be_compared_with(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, pytest.raises(ConfigError, match="publish a first one"):
        shipped(fleet, "first")


def test_a_trial_runs_half_of_the_episodes_of_the_exposed_robots_and_none_of_the_others(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path, ARMS.replace("trial_episodes", "")) as fleet:
        first = published(fleet, "first")
        second = shipped(fleet, "second")
        inside, outside = exposed_robots(fleet, 40)
        assert 10 <= len(inside) <= 30  # the stage 25% exposes half of the robots
        with fleet.robot(inside[0]) as robot:
            chosen = []
            for _ in range(24):
                assert robot.sync()
                chosen.append(robot.begin())
            assert {one.version for one in chosen} == {first, second}
            assert {one.route for one in chosen} == {"r1:canary:25%", "r1:control:25%"}
            assert all((one.version == second) == ("canary" in one.route) for one in chosen)
        with fleet.robot(outside[0]) as robot:
            assert robot.sync()
            assert {(robot.begin().version, robot.begin().route) for _ in range(20)} == {(first, "")}


def test_a_robot_without_word_from_the_service_ends_a_trial_by_itself(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path, ARMS.replace("\n\n[join]", "\ntrial_episodes = 3\n\n[join]")) as fleet:
        published(fleet, "first")
        second = shipped(fleet, "second")
        inside, _ = exposed_robots(fleet, 40)
        with fleet.robot(inside[0]) as robot:
            assert robot.sync()
            assert sum(robot.begin().version == second for _ in range(60)) == 3
            assert robot.begin().route == ""
            assert robot.sync()
            assert sum(robot.begin().version == second for _ in range(60)) == 3


def episodes_of_both(robot: Uploader, other: Uploader, live: str) -> int:
    """Four episodes of each robot; those of another version than the live one are 30% worse -> their number."""
    harmed = 0
    for one in (robot, other) * 4:
        is_live = one.begin().version == live
        harmed += not is_live
        play(one, 1, reward=2.0 if is_live else 1.4)
    assert robot.sync()
    assert other.sync()
    return harmed


def test_a_worse_version_goes_back_by_evidence_and_every_robot_runs_the_live_one(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path, ARMS.replace("[rollout]", "[rollout]\nwatch = true\nlook_every_s = 1.0")) as fleet:
        first = published(fleet, "first")
        second = shipped(fleet, "second")
        inside, _ = exposed_robots(fleet, 40)
        harmed, rounds = 0, 0
        with fleet.robot(inside[0]) as robot, fleet.robot(inside[1]) as other:
            assert robot.sync()
            assert other.sync()
            while fleet.service.registry.stage("arms", second) != "retired" and rounds < 30:
                rounds += 1
                harmed += episodes_of_both(robot, other, first)
                fleet.settle()
            assert robot.sync()
            assert (robot.begin().version, robot.begin().route) == (first, "")
        view = read_fleet(fleet.service)
        assert "went back to" in view.rollouts[0]
        assert harmed == view.harmed
        assert 0 < harmed <= 100
        decisions = [one.record for one in fleet.service.log.read() if isinstance(one.record, Decision)]
        assert {one.executed_logp for one in decisions} == {-math.log(2.0)}
        page = fleet_page(view)
        for words in ("Robots by watermark and version", "Episodes on trial", "Staleness", f"{harmed}"):
            assert words in page
        assert fleet.client.get("/").text.startswith("<!doctype html>")
        assert fleet.client.get("/v1/fleet/status").json()["harmed"] == harmed


def test_a_service_killed_between_store_and_log_goes_on_without_a_gap_or_a_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        play(robot, 3)
        patched.setattr(FleetService, "project", lambda self: 0)  # the kill comes before it
        assert robot.sync()
        assert fleet.service.log.counts().decisions == 0
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        assert fleet.service.log.counts().decisions == 3
        play(robot, 2)
        assert robot.sync()
        assert (fleet.service.log.counts().decisions, fleet.service.log.counts().outcomes) == (5, 5)
    with fleet_in_process(tmp_path) as fleet:
        assert (fleet.service.log.counts().decisions, fleet.service.log.counts().repeated) == (5, 0)
        assert ROLLED_BACK not in fleet.service.registry.rollouts("arms")


def test_the_secret_of_a_fleet_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "arms.toml").write_text(ARMS)
    secret = {name: fleet_api.robot_secret(tmp_path / "arms.toml", name) for name in ("r1", "r2")}
    assert secret["r1"] == fleet_api.robot_secret(str(tmp_path / "arms.toml"), "r1") != secret["r2"]
    assert (tmp_path / "arms" / "fleet.key").stat().st_mode & 0o077 == 0


def test_a_fleet_file_names_its_faults(tmp_path: Path) -> None:
    for change, words in (
        (("[join]", '[policy]\nkind = "uniform"\n\n[join]'), r"leave out \[policy\]"),
        (('"angle", "speed"', '"angle", "angle"'), "names 'angle' twice"),
        (('action = ["torque"]', 'action = ["a", "b"]\nchoices = 3'), "needs one number in action"),
    ):
        (tmp_path / "arms.toml").write_text(ARMS.replace(*change))
        with pytest.raises(ConfigError, match=words):
            fleet_plan_lines(tmp_path / "arms.toml")
    (tmp_path / "arms.toml").write_text(ARMS)
    plan = "\n".join(fleet_plan_lines(tmp_path / "arms.toml"))
    assert "68 bytes a step" in plan
    assert "0.5 of the robots, 1 of the robots" in plan


def test_an_uploader_sends_by_itself(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet:
        with Uploader(
            tmp_path / "r1.db", to="", robot="r1", observation=("angle", "speed"), action=("torque",),
            transport=fleet.send, every_s=0.01, batch=2,
        ) as robot:  # fmt: skip
            play(robot, 3)
            waits = 0
            while robot.status().waiting and waits < 3000:
                waits += 1
                robot._stop.wait(0.01)
        assert fleet.service.store.counts() == (9, 3)
