"""The manifests for KubeRay: their schema, their volumes, room for the fleet of their config, and the entrypoint."""

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from hone.cli.commands.train import planned_runs
from hone.config.toml import ConfigDocument, parse_toml
from hone.parallel.config import ClusterConfig, NodeRoom, placement_faults

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((ROOT / "deploy/kuberay").glob("*.yaml"))
SCHEMA = json.loads((ROOT / "tests/fixtures/rayjob_schema.json").read_text())
PARAMETERS = {"Qwen/Qwen2.5-0.5B-Instruct": 494_032_768, "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304}
SIZES = {"Gi": 2**30, "Mi": 2**20}

pytestmark = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)


def documents(path: Path) -> tuple[str, dict[str, Any]]:
    """The config of the runs, and the RayJob."""
    config, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    assert config["kind"] == "ConfigMap" and config["metadata"]["name"] == job["metadata"]["name"]
    return config["data"]["run.toml"], job


def groups(job: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = job["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def in_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * SIZES[quantity[-2:]]


def test_a_manifest_fits_the_schema_and_starts_again_three_times(path: Path) -> None:
    _, job = documents(path)
    assert [f"{fault.json_path}: {fault.message}" for fault in Draft202012Validator(SCHEMA).iter_errors(job)] == []
    assert job["spec"]["backoffLimit"] == 3 and job["spec"]["shutdownAfterJobFinishes"] is True
    job["spec"]["backofLimit"] = 3
    assert not Draft202012Validator(SCHEMA).is_valid(job)


def test_every_pod_has_the_runs_and_room_for_its_object_store(path: Path) -> None:
    _, job = documents(path)
    for group in groups(job):
        pod = group["template"]["spec"]
        mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        assert volumes[mounts["/runs"]]["persistentVolumeClaim"] == {"claimName": "hone-runs"}
        shm = volumes[mounts["/dev/shm"]]["emptyDir"]
        assert shm["medium"] == "Memory"
        store = int(group["rayStartParams"]["object-store-memory"])
        assert store < in_bytes(shm["sizeLimit"]) < in_bytes(pod["containers"][0]["resources"]["limits"]["memory"])


def test_the_config_is_planned_and_its_fleet_has_room(path: Path) -> None:
    text, job = documents(path)
    (stage,) = planned_runs(ConfigDocument.from_file(parse_toml(text, name="run.toml")))
    assert stage.resolved.config.name == job["metadata"]["name"]
    cluster = ClusterConfig.model_validate(tomllib.loads(text)["cluster"])
    rooms: list[NodeRoom] = []
    for group in groups(job)[1:]:
        if group["groupName"] == "rollout":
            limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
            room = NodeRoom(
                name="rollout",
                cpus=limits["cpu"],
                gpus=limits.get("nvidia.com/gpu", 0),
                store_bytes=int(group["rayStartParams"]["object-store-memory"]),
            )
            rooms += [room] * group["replicas"]
    assert placement_faults(rooms, cluster.rollout, 4 * PARAMETERS[tomllib.loads(text)["model"]["path"]]) == []


def test_the_entrypoint_begins_a_run_and_goes_on_with_one(path: Path, tmp_path: Path) -> None:
    _, job = documents(path)
    program = tmp_path / "bin/hone"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    command = job["spec"]["entrypoint"].replace("/runs", f"{tmp_path}/runs")
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def said() -> str:
        return subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, check=True).stdout

    assert said() == f"train /config/run.toml --runs {tmp_path}/runs\n"
    folder = tmp_path / "runs" / job["metadata"]["name"]
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    assert said() == f"train /config/run.toml --runs {tmp_path}/runs --resume\n"
