"""Room of machines for a fleet, and connections that fail: told before anything starts, with figures. Starts no Ray."""

import pytest

from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig, FleetRolloutConfig, NodeRoom, placement_faults
from hone.parallel.connect import connect_to_ray

MIB = 1 << 20


def node(name: str, *, cpus: float = 16, gpus: float = 0, store: int = 1024) -> NodeRoom:
    return NodeRoom(name=name, cpus=cpus, gpus=gpus, store_bytes=store * MIB)


def test_a_replica_stands_on_one_machine_and_machines_are_not_added_up() -> None:
    rollout = FleetRolloutConfig(replicas=2, cpus=10)
    assert placement_faults([node("a"), node("b")], rollout, MIB) == []
    (fault,) = placement_faults([node("a")], rollout, MIB)
    assert fault.startswith("cluster.rollout: 2 replicas of 10 CPUs and 0 GPUs each have no room; there is room for 1")
    assert "a: 16 CPUs, 0 GPUs" in fault


def test_spares_and_gpus_need_room_and_shares_of_a_cpu_add_up() -> None:
    both = FleetRolloutConfig(replicas=3, spares=1, cpus=2, gpus=1)
    assert placement_faults([node("a", gpus=4)], both, MIB) == []
    assert placement_faults([node("a", gpus=3)], both, MIB) != []
    assert placement_faults([node("a", cpus=7, gpus=4)], both, MIB) != []
    assert placement_faults([node("a", cpus=1)], FleetRolloutConfig(replicas=10, cpus=0.1), MIB) == []
    assert placement_faults([node("a", cpus=0)], FleetRolloutConfig(replicas=10, cpus=0), MIB) == []


def test_a_small_store_is_named_with_both_sizes_unless_weights_go_through_a_folder() -> None:
    nodes = [node("a", store=75), node("b", store=4096)]
    (fault,) = placement_faults(nodes, FleetRolloutConfig(), 100 * MIB)
    assert fault.startswith("the object store of a holds 75 MiB, and two versions of the weights (100 MiB each)")
    assert "need 264 MiB" in fault
    folder = FleetRolloutConfig(weights_folder="/shared")
    assert placement_faults(nodes, folder, 100 * MIB) == []


def test_all_faults_are_told_at_once() -> None:
    assert len(placement_faults([node("a", cpus=0, store=75)], FleetRolloutConfig(), 100 * MIB)) == 2


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"rollout": {"replicas": 0}}, "replicas"),
        ({"patience_s": 0.0}, "patience_s"),
    ],
)
def test_tables_that_do_not_hold_together_are_refused(table, told) -> None:
    with pytest.raises(ValueError, match=told):
        ClusterConfig.model_validate(table)


def test_threads_follow_cpus() -> None:
    assert [FleetRolloutConfig(cpus=cpus).replica_threads for cpus in (0, 0.5, 1, 7.9)] == [1, 1, 1, 7]


def test_a_cluster_of_another_version_is_told_with_both(monkeypatch) -> None:
    ray = pytest.importorskip("ray")

    def refused(*given, **options):
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.11.7\n")

    monkeypatch.setattr(ray, "init", refused)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ResourceError, match=rf"'auto': Version mismatch.*Ray: 2.50.0.*has Ray {ray.__version__}"):
        connect_to_ray("auto")
