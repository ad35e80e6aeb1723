"""Steps from robots to the store: each once, whatever is sent twice, late, torn, or dropped."""

import dataclasses
import itertools
import json
import math
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from fleet_parts import ARMS, fleet_in_process, play
from manual_clock import ManualClock

from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.robot_steps import RobotSchema, RobotStep, number_row, pack_step
from hone.decide.fleet.device import HttpCall, HttpTransport, Uploader
from hone.decide.fleet.store import FleetStore, open_fleet_store, read_batch

ROOT = Path(__file__).resolve().parents[3]


def stored(store: FleetStore) -> list[tuple[int, int]]:
    return store.connection.execute("select source, seq from records order by source, seq").fetchall()


def offline(call: HttpCall) -> tuple[int, bytes]:
    raise OSError("no network")


def test_the_layout_of_a_step_is_that_of_its_fields() -> None:
    schema = RobotSchema(observation=("x", "y"), action=("u",))
    step = RobotStep(3, 4, 5.0, -0.25, 1.5, 7, 2, [1.0, 2.0], [0.5], [3.0, 4.0])
    (row,) = np.frombuffer(pack_step(schema, schema.layout, 9, step), np.dtype(schema.fields))
    assert row.tolist()[:8] == (9, 3, 4, 5.0, -0.25, 1.5, 7, 2)
    assert [row[name].tolist() for name in ("observation", "action", "next_observation")] == [[1, 2], [0.5], [3, 4]]
    assert schema.layout.size == np.dtype(schema.fields).itemsize == 48 + 4 * 5
    assert RobotSchema.from_json(schema.as_json()) == schema


def test_numbers_of_lists_arrays_and_scalars_are_a_row() -> None:
    assert number_row([[1, 2.5], (3,)]) == [1.0, 2.5, 3.0]
    assert number_row(np.arange(4, dtype=np.float32).reshape(2, 2)) == [0.0, 1.0, 2.0, 3.0]
    assert number_row(np.float32(0.5)) == number_row(0.5) == number_row(np.array(0.5)) == [0.5]
    assert number_row(np.int64(3)) == [3.0]


def test_a_robot_without_network_keeps_its_steps_and_sends_each_once(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet:
        fleet.interfere = offline
        with fleet.robot() as robot:
            play(robot, 2)
            assert not robot.sync()
            assert (robot.status().waiting, robot.status().watermark) == (8, -1)
            assert "no network" in robot.status().faults[0]
        with fleet.robot() as robot:  # started again
            play(robot, 1)
            fleet.interfere = None
            assert robot.sync()
            assert (robot.status().waiting, robot.status().watermark, robot.status().faults) == (0, 11, ())
            play(robot, 1)
            assert robot.sync()
        assert stored(fleet.service.store) == [(1, seq) for seq in range(16)]
        assert fleet.service.store.counts() == (12, 4)


def test_an_answer_that_is_lost_stores_nothing_twice(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        play(robot, 2)

        def lose_the_answer(call: HttpCall) -> tuple[int, bytes]:
            fleet.interfere = None
            fleet.send(call)
            raise OSError("the answer did not arrive")

        fleet.interfere = lose_the_answer
        assert not robot.sync()
        assert robot.status().waiting == 8
        assert robot.sync()
        (row,) = fleet.service.store.robots()
        assert (row.watermark, row.repeated, fleet.service.store.counts()) == (7, 8, (6, 2))


def test_without_source_and_seq_the_same_uploads_are_stored_twice(tmp_path: Path) -> None:
    """The negative control: a store that does not know records by source and number."""
    with fleet_in_process(tmp_path) as fleet, fleet.robot(batch=3) as robot:
        play(robot, 3)
        assert robot.sync()
        bodies = [call.body for call in fleet.calls if call.method == "POST"]
        naive = [row.tobytes() for body in bodies * 2 for row in read_batch(body).rows]
        assert len(naive) - len(set(naive)) == 9
        for body in bodies:
            fleet.service.ingest("r1", read_batch(body))
        assert fleet.service.store.counts() == (9, 3)


@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_any_repetition_of_uploads_gives_one_store(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with fleet_in_process(tmp_path) as fleet:
        for name in ("r1", "r2"):
            with fleet.robot(name, batch=chance.randint(1, 5)) as robot:
                fleet.interfere = lambda call: (500, b"") if call.method == "POST" else None
                play(robot, 4)
                robot.sync()
                fleet.interfere = None
                robot.sync()
        bodies = [(call.headers["X-Robot"], call.body) for call in fleet.calls if call.method == "POST"]
        again = open_fleet_store(tmp_path / "again.db")
        sent = bodies * 2
        chance.shuffle(sent)
        for _, body in sent:
            ack = again.append(read_batch(body), now_s=1e9)
            assert not ack.refused
        assert sorted(
            again.connection.execute("select robot, seq, body from records r join sources s on s.id = r.source")
        ) == sorted(
            fleet.service.store.connection.execute(
                "select robot, seq, body from records r join sources s on s.id = r.source"
            )
        )
        assert [(row.watermark, row.missing) for row in again.robots()] == [(15, 0), (15, 0)]
        again.close()


def test_the_watermark_is_the_highest_number_without_a_gap_below(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot(batch=1) as robot:
        play(robot, 1)
        robot.sync()
        batches = [read_batch(call.body) for call in fleet.calls if call.method == "POST"]
    store = open_fleet_store(tmp_path / "other.db")
    for order in itertools.permutations(range(4)):
        there, instance = set[int](), "".join(map(str, order))
        for place in order:
            progress = store.append(dataclasses.replace(batches[place], instance=instance), now_s=1e9).progress
            there.add(place)
            below = next(number for number in range(5) if number not in there) - 1
            assert (progress.watermark, progress.highest) == (below, max(there))
            assert progress.missing == max(there) + 1 - len(there)
    store.close()


def test_a_full_spool_drops_its_oldest_records_and_the_service_knows(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot(capacity=8) as robot:
        play(robot, 2)  # 8 records: full, and nothing dropped
        assert (robot.status().waiting, robot.status().dropped) == (8, 0)
        play(robot, 1)
        assert (robot.status().waiting, robot.status().dropped) == (8, 4)
        assert robot.sync()
        (row,) = fleet.service.store.robots()
        assert (row.watermark, row.missing, row.lost) == (11, 0, 4)
        assert stored(fleet.service.store) == [(1, seq) for seq in range(4, 12)]


def test_a_record_that_was_counted_as_lost_and_comes_late_is_lost_no_more(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot(capacity=8) as robot:
        play(robot, 2)
        kept: list[bytes] = []

        def hold(call: HttpCall) -> tuple[int, bytes]:
            kept.append(call.body)
            raise OSError("on its way")

        fleet.interfere = hold
        robot.sync()
        play(robot, 1)
        fleet.interfere = None
        assert robot.sync()
        assert fleet.service.store.robots()[0].lost == 4
        fleet.service.ingest("r1", read_batch(kept[0]))
        (row,) = fleet.service.store.robots()
        assert (row.watermark, row.missing, row.lost) == (11, 0, 0)
        assert stored(fleet.service.store) == [(1, seq) for seq in range(12)]


def test_half_an_upload_stores_nothing_and_is_sent_again(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        play(robot, 2)

        def halve(call: HttpCall) -> tuple[int, bytes] | None:
            if call.method != "POST":
                return None
            fleet.interfere = None
            half = HttpCall(method="POST", path=call.path, body=call.body[:-10], headers=call.headers)
            status, body = fleet.send(half)
            assert "half of a batch" in body.decode()
            return status, body

        fleet.interfere = halve
        assert not robot.sync()
        assert fleet.service.store.counts() == (0, 0)
        assert "half of a batch" in robot.status().faults[0]
        assert robot.sync()
        assert fleet.service.store.counts() == (6, 2)


def test_a_damaged_upload_and_one_without_a_header_are_told(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        play(robot, 1)
        robot.sync()
        body = next(call.body for call in fleet.calls if call.method == "POST")
    with pytest.raises(DataError, match="check sum"):
        read_batch(body[:-1] + bytes([body[-1] ^ 1]))
    for damaged in (b"", b"\n", b"{}\n", b"\xff\n", body.replace(b'"steps":3', b'"steps":"x"')):
        with pytest.raises(DataError, match="no readable header"):
            read_batch(damaged)


def test_an_older_firmware_is_refused_by_its_difference_or_taken_if_it_is_named(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet:
        with fleet.robot(observation=("angle",)) as robot:
            robot.step([1.0], [0.1], -0.5, 1.0, True, next_observation=[1.0])
            assert robot.sync()
            status = robot.status()
            assert (status.waiting, status.refused) == (0, 2)
            assert "observation lacks speed" in status.faults[0]
            assert "[[fleet.older]]" in status.faults[0]
        with fleet.robot() as robot:  # updated: its numbers go on, the refused ones stay aside
            play(robot, 1)
            assert robot.sync()
            assert robot.status().watermark == 5
        (row,) = fleet.service.store.robots()
        assert (row.missing, row.lost) == (0, 2)  # the refused ones will not come
        assert stored(fleet.service.store) == [(1, seq) for seq in range(2, 6)]
    named = 'action = ["torque"]\nolder = [{observation = ["angle"], action = ["torque"]}]'
    older = ARMS.replace('action = ["torque"]', named)
    (tmp_path / "older").mkdir()
    with fleet_in_process(tmp_path / "older", older) as fleet, fleet.robot(observation=("angle",)) as robot:
        robot.step([1.0], [0.1], -0.5, 1.0, True, next_observation=[1.0])
        assert robot.sync()
        assert fleet.service.store.counts() == (1, 1)


def test_a_clock_in_the_future_is_told_and_its_episodes_count_from_their_arrival(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet:
        for name, ahead_s, told in (("r1", 300.0, 0.0), ("r2", 301.0, 301.0)):  # 300 is within the slack
            with fleet.robot(name, clock=ManualClock(1e9 + ahead_s)) as robot:
                play(robot, 1)
                assert robot.sync()
            assert fleet.service.store.robots()[-1].ahead_s == told
        assert [one.end.at_s for one in fleet.service.store.episodes(0, 10)] == [1e9, 1e9]
        records = [one.record for one in fleet.service.log.read()]
        assert {one.at_s for one in records} == {1e9}


def test_records_that_are_not_finite_never_leave_the_robot_and_are_refused_one_by_one(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path) as fleet, fleet.robot() as robot:
        for seen, action, reward, words in (
            ([math.nan, 0.0], [0.1], 1.0, "angle is nan"),
            ([1.0, 0.0], [math.inf], 1.0, "torque is inf"),
            ([1.0, 0.0], [0.1], math.nan, "reward is nan"),
            ([1.0], [0.1], 1.0, "observation has 1 numbers, the schema names 2"),
        ):
            with pytest.raises(DataError, match=words):
                robot.step(seen, action, -0.5, reward, False, next_observation=[0.0, 0.0])
        assert robot.status().waiting == 0
        play(robot, 1)
        robot.sync()
        body = next(call.body for call in fleet.calls if call.method == "POST")
        batch = read_batch(body)
        rows = batch.rows.copy()
        rows["seq"] += 100
        rows["reward"][1], rows["flags"][2], rows["at_s"][0] = math.inf, 4, -1.0
        spoiled = dataclasses.replace(batch, rows=rows, raw=rows.tobytes(), episodes=())
        ack = fleet.service.store.append(spoiled, now_s=1e9)
        assert dict(ack.refused) == {
            100: "at_s is no time since 1970", 101: "reward is not finite", 102: "flags are unknown",
        }  # fmt: skip
        rows["reward"][1], rows["flags"][2], rows["at_s"][0], rows["logp"] = 0.0, 3, 0.0, math.nan
        spoiled = dataclasses.replace(batch, rows=rows, raw=rows.tobytes(), episodes=())
        assert fleet.service.store.append(spoiled, now_s=1e9).stored == 3  # at the bounds, and an unknown density
        rows["reward"] += 1.0
        spoiled = dataclasses.replace(batch, rows=rows, raw=rows.tobytes(), episodes=())
        assert [words for _, words in fleet.service.store.append(spoiled, now_s=1e9).refused] == [
            f"seq {seq} is stored with other content, which stays; count on from there" for seq in (100, 101, 102)
        ]


def test_a_robot_shows_its_own_token_and_sends_in_its_own_name(tmp_path: Path) -> None:
    with fleet_in_process(tmp_path, ARMS.replace("\n\n[join]", "\ntokens = true\n\n[join]")) as fleet:
        with fleet.robot("r1") as robot, fleet.robot("r2") as other:
            play(robot, 1)
            play(other, 1)
            assert robot.sync()
            other.secret = robot.secret
            assert not other.sync()
            assert "has to show its token" in other.status().faults[0]
        call = next(one for one in fleet.calls if one.method == "POST")
        stolen = dict(call.headers) | {"X-Robot": "r3"}
        assert fleet.client.post(call.path, content=call.body, headers=stolen).status_code == 401
        assert fleet.client.get("/v1/fleet/manifest").status_code == 401


def test_a_spool_that_is_something_else_and_an_uploader_that_is_not_open_are_told(tmp_path: Path) -> None:
    (tmp_path / "r1.db").write_bytes(b"not a database, but a text of some length" * 100)
    with pytest.raises(DataError, match="no spool"):
        Uploader(tmp_path / "r1.db", to="http://nowhere").open()
    with pytest.raises(ResourceError, match="cannot"):
        Uploader("/proc/nothing/r1.db", to="http://nowhere").open()
    with pytest.raises(ConfigError, match="not open"):
        Uploader(tmp_path / "r2.db", to="http://nowhere").status()
    with pytest.raises(ConfigError, match="capacity 0"):
        Uploader(tmp_path / "r2.db", to="http://nowhere", capacity=0)


def test_a_kept_connection_that_the_service_closed_is_made_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}/base")
        heard: list[bytes] = []

        def answer_and_hang_up(times: int) -> None:
            for _ in range(times):
                connection, _ = listener.accept()
                heard.append(connection.recv(4096).split(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                connection.close()

        thread = threading.Thread(target=answer_and_hang_up, args=(2,))
        thread.start()
        call = HttpCall(method="GET", path="/live")
        assert [transport(call), transport(call)] == [(200, b"ok"), (200, b"ok")]
        thread.join()
        assert heard == [b"GET /base/live HTTP/1.1"] * 2
    with pytest.raises(OSError, match="Connection refused"):  # nobody listens any more
        transport(call)


def test_a_robot_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, hone.decide.fleet.device; "
        "print(sorted({'torch', 'numpy', 'pydantic', 'starlette', 'gymnasium'} & sys.modules.keys()))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout.replace("'", '"')) == []
