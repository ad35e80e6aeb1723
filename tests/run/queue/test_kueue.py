"""A job as a manifest for Kubernetes: checked by the published schemas where they are installed, and by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from hone.core.errors import ConfigError
from hone.run.queue.job_queue import QueuedRun
from hone.run.queue.kueue import QUEUE_LABEL, PodPlace, kueue_job

JOB = QueuedRun(
    id=7, tenant="red", name="My run_1.5", command=("/shared/a.toml", "steps=3"), priority=0, state="queued", token=0,
    worker="", attempts=0, why="",
)  # fmt: skip
SERVICE = replace(JOB, command=("serve", "training", "/shared/s.toml", "--host", "0.0.0.0", "--port", "8123"))
PLACE = PodPlace(
    image="registry/hone:1", claim="shared", mount=Path("/shared"), runs=Path("/shared/runs"), memory_gib=1.5, cores=2
)


def test_a_manifest_starts_suspended_in_its_tenants_queue_and_claims_its_job_alone() -> None:
    made = kueue_job(JOB, PLACE)
    assert made["metadata"]["name"] == "hone-7-my-run-1-5" and made["metadata"]["labels"][QUEUE_LABEL] == "red"
    assert made["spec"]["suspend"] is True
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == [
        "queue", "work", "--until-empty", "--only", "7", "--queue", "$(HONE_QUEUE)", "--runs", "/shared/runs",
        "--cores", "2",
    ]  # fmt: skip
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "1536Mi"} and "ports" not in container
    (port,) = kueue_job(SERVICE, PLACE)["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert port == {"containerPort": 8123}


def test_the_published_strict_schema_accepts_it_and_refuses_a_wrong_key() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="the schemas: pip install kubernetes-validate")
    for job in (JOB, SERVICE):
        schemas.validate(kueue_job(job, PLACE), schemas.latest_version(), strict=True)
    wrong = kueue_job(JOB, PLACE)
    wrong["spec"]["suspended"] = True
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, schemas.latest_version(), strict=True)


def test_what_a_pod_would_not_see_is_refused_all_faults_at_once() -> None:
    place = replace(PLACE, mount=Path("/other"), cores=0)
    with pytest.raises(ConfigError) as refused:
        kueue_job(replace(JOB, tenant="Red_1"), place)
    assert len(refused.value.messages) == 4
    assert "/shared/a.toml is not in /other, where the volume shared is mounted" in refused.value.messages[0]
    assert "cannot name a local queue" in refused.value.messages[3]
