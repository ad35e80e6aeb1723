"""Replicas as Ray actors on two nodes: equal answers, and a replica that is killed costs its own work only."""

import signal
import time

import pytest
from ray_fleets import (
    REQUESTS,
    busy_replica,
    embedded_answers,
    equal,
    harm,
    ray_fleet,
    ready_replicas,
    rest_of,
    step_until,
    tiny_model,
    transport_of,
)

from hone.core.errors import ResourceError
from hone.parallel.ray_transport import _end_process, start_ticks

pytestmark = pytest.mark.usefixtures("two_nodes")


def test_replicas_answer_as_the_embedded_engine_and_a_killed_one_is_replaced() -> None:
    model = tiny_model()
    expected = embedded_answers(model)
    with ray_fleet(model, replicas=2, patience_s=3600.0) as fleet:
        fleet.publish(0)
        step_until(fleet, lambda: len(ready_replicas(fleet)) == 2)
        assert len({hello.node_id for hello in transport_of(fleet)._hellos.values()}) == 2
        fleet.submit(REQUESTS, round=3)
        victim = busy_replica(fleet)
        killed = harm(fleet, victim, signal.SIGKILL)
        assert equal(rest_of(fleet), expected)
        (line,) = fleet.report.losses
        assert f"process {killed}" in line
        assert "silent" not in line, "nobody waited for the patience"
        fleet.publish(1)
        fleet.submit(REQUESTS, round=3)
        assert {name: one.tokens.tolist() for name, one in rest_of(fleet).items()} == {
            name: one.tokens.tolist() for name, one in expected.items()
        }
        assert set(fleet.fingerprints) == {0, 1}


@pytest.mark.slow  # a minute of starting processes
def test_a_stopped_replica_is_late_and_then_ended() -> None:
    model = tiny_model()
    expected = embedded_answers(model)
    with ray_fleet(model, replicas=2, patience_s=3.0) as fleet:
        fleet.publish(0)
        step_until(fleet, lambda: len(ready_replicas(fleet)) == 2)
        fleet.submit(REQUESTS, round=3)
        victim = busy_replica(fleet)
        pid = harm(fleet, victim, signal.SIGSTOP)
        began = start_ticks(pid)
        assert equal(rest_of(fleet), expected)
        step_until(fleet, lambda: bool(fleet.report.losses))
        assert "silent" in fleet.report.losses[0]
        end = time.monotonic() + 300
        while start_ticks(pid) == began:
            assert time.monotonic() < end, "the stopped process is still there"
            time.sleep(0.2)


@pytest.mark.slow  # another node is started
def test_a_lost_node_costs_nothing_but_its_work(two_nodes) -> None:
    model = tiny_model()
    expected = embedded_answers(model)
    with ray_fleet(model, replicas=2, cpus=1.0) as fleet:
        two_nodes.add_node(num_cpus=2, object_store_memory=128 << 20)
        two_nodes.wait_for_nodes()
        fleet.publish(0)
        step_until(fleet, lambda: len(ready_replicas(fleet)) == 2)
        fleet.submit(REQUESTS, round=3)
        busy_replica(fleet)
        used = {hello.node_id for hello in transport_of(fleet)._hellos.values()}
        lost = next(node for node in two_nodes.worker_nodes if node.node_id in used)
        two_nodes.remove_node(lost, allow_graceful=False)
        assert equal(rest_of(fleet), expected)
        fleet.publish(1)
        fleet.submit(REQUESTS, round=4)
        assert len(rest_of(fleet)) == len(expected)


@pytest.mark.slow  # processes of a second fleet
def test_weights_may_go_through_a_shared_folder(tmp_path, monkeypatch) -> None:
    model = tiny_model()
    expected = embedded_answers(model)
    with ray_fleet(model, replicas=1, weights_folder=str(tmp_path)) as fleet:
        fleet.publish(0)
        fleet.submit(REQUESTS, round=3)
        assert equal(rest_of(fleet), expected)
        for version in range(1, 4):
            fleet.publish(version)
        (folder,) = tmp_path.iterdir()
        assert sorted(path.name for path in folder.glob("weights-*")) == ["weights-2", "weights-3"]
    assert list(tmp_path.iterdir()) == []
    with ray_fleet(model, replicas=1, weights_folder=str(tmp_path)) as fleet:
        touch = type(tmp_path).touch
        monkeypatch.setattr(type(tmp_path), "touch", lambda path: None)
        fleet.publish(0)
        monkeypatch.setattr(type(tmp_path), "touch", touch)
        with pytest.raises(ResourceError, match="is not shared with"):
            step_until(fleet, lambda: False)


def test_a_fleet_without_room_says_what_there_is() -> None:
    with (
        ray_fleet(tiny_model(), replicas=9, cpus=1.0, patience_s=0.1) as fleet,
        pytest.raises(ResourceError, match=r"9 replicas of 1 CPUs.*room for 4 \(.*: 2 CPUs, 0 GPUs"),
    ):
        fleet.publish(0)


def test_a_process_is_known_by_its_start() -> None:
    assert _end_process(1, 123456789) is False
    assert _end_process(1, None) is False
