"""Findings about a cluster, from reports that no machine made."""

import socket
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from hone.cli.main import main
from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig, NodeRoom
from hone.parallel.connect import _require_listener
from hone.parallel.doctor import ClusterFinding, NodeReport, _findings_of, _inspect_node, inspect_cluster

HERE = NodeReport(node="driver", versions={"python": "3.11", "torch": "2.13"}, kernels="runner-abc")
ROOMS = [NodeRoom(name=name, cpus=2, gpus=0, store_bytes=mib << 20) for name, mib in (("a", 100), ("b", 50))]


def findings(*reports: NodeReport, config: ClusterConfig | None = None, weights_bytes: int = 0) -> list[ClusterFinding]:
    written = [one.node for one in reports if not one.folder_fault]
    return _findings_of(
        HERE, reports, ROOMS, written=written, folder=Path("/runs"), config=config, weights_bytes=weights_bytes
    )


def test_equal_machines_are_fine_but_for_a_small_store() -> None:
    found = findings(replace(HERE, node="a"), replace(HERE, node="b"))
    assert [(one.subject, one.verdict) for one in found if one.verdict != "ok"] == [("object store", "warn")]
    assert "less than 75 MiB on b" in found[-1].observed and "/dev/shm" in found[-1].fix
    assert "one build: runner-abc" in [one.observed for one in found]


def test_each_difference_is_named_with_its_machine_and_a_fix() -> None:
    other = replace(
        HERE, node="b", versions={"python": "3.12", "torch": "2.12"}, kernels="runner-xyz", folder_fault="no"
    )
    found = {one.subject: one for one in findings(replace(HERE, node="a"), other) if one.verdict == "fail"}
    assert found["torch"].observed == "2.13 here, 2.12 on b" and "pip install torch==2.13" in found["torch"].fix
    assert found["python"].observed == "3.11 here, 3.12 on b"
    assert found["shared folder"].observed == "b: no" and "mount the same volume at /runs" in found["shared folder"].fix
    assert found["kernels"].observed == "runner-abc on a; runner-xyz on b"
    mixed = ClusterConfig.model_validate({"rollout": {"mixed": True}})
    kernels = next(one for one in findings(replace(HERE, node="a"), other, config=mixed) if one.subject == "kernels")
    assert kernels.verdict == "warn"


def test_a_machine_whose_token_is_not_seen_here_shares_no_folder() -> None:
    found = _findings_of(HERE, [replace(HERE, node="a")], ROOMS, written=[], folder=Path("/runs"))
    assert any(one.observed == "a: what it wrote is not seen here" and one.verdict == "fail" for one in found)


def test_the_plan_must_have_room() -> None:
    config = ClusterConfig.model_validate({"rollout": {"replicas": 2}})
    fits = findings(replace(HERE, node="a"), config=config)
    assert [one.verdict for one in fits if one.subject == "plan"] == ["fail"]  # the store of b
    large = [one for one in findings(HERE, config=config, weights_bytes=1 << 30) if one.subject == "plan"]
    assert [one.observed[:29] for one in large] == ["the object store of a holds 1", "the object store of b holds 5"]
    assert all("--object-store-memory" in one.fix for one in large)
    small = [NodeRoom(name="a", cpus=1, gpus=0, store_bytes=1 << 30)]
    (full,) = [one for one in _findings_of(HERE, [], small, written=[], folder=Path("/r"), config=config)
               if one.subject == "plan"]  # fmt: skip
    assert full.verdict == "fail" and "there is room for 1" in full.fix


def test_a_node_reads_and_writes_the_token(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("t")
    report = _inspect_node("a b", str(tmp_path), "t")
    assert report.folder_fault == "" and (tmp_path / "t-a-b").read_text() == "t"
    assert set(report.versions) == {"python", "hone-rl", "torch", "numpy", "ray"}
    assert "No such file" in _inspect_node("a", str(tmp_path / "elsewhere"), "t").folder_fault
    (tmp_path / "t").write_text("other")
    assert "other contents" in _inspect_node("a", str(tmp_path), "t").folder_fault


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:1", "no Ray cluster at '127.0.0.1:1'"),
        ("127.0.0.1:99999", "no Ray cluster at '127.0.0.1:99999'"),
        ("ray://head:10001", "an address of Ray Client, which is not used"),
    ],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, told: str) -> None:
    with pytest.raises(ResourceError, match=told):
        _require_listener(address)
    _require_listener("auto")
    _require_listener("local")


@pytest.mark.parametrize("word", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_port_that_another_program_holds_is_refused(word: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1000)
                link.sendall(word)

        thread = Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ResourceError, match=f"no Ray cluster at '{address}': something else than Ray listens"):
            _require_listener(address)
        thread.join()


def test_a_cluster_that_is_not_there_is_the_only_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(address: str) -> None:
        raise ResourceError(f"no Ray cluster at {address!r}: it is not running; start one with `ray start --head`")

    (found,) = inspect_cluster("auto", tmp_path, connect=refuse)
    assert (found.subject, found.verdict) == ("Ray", "fail") and "ray start --head" in found.fix
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("hone.cli.commands.doctor_cluster.inspect_cluster", lambda *_, **__: [found])
    assert main(["doctor", "--cluster"]) == 5
    out = capsys.readouterr().out
    assert "Ray: it is not running; start one" in out and "a run cannot start there" in out
