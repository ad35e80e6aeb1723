"""A job of the queue as a `batch/v1` Job of Kubernetes that Kueue admits.

Kueue decides when the pod starts, by the local queue that is named after the tenant. The pod then claims this job,
under a lease and a number like every worker's, so that shares, fencing and the ledger stay the queue's. Preemption
suspends the Job: the worker gets SIGTERM, the run saves a checkpoint, and the pod of the next admission resumes it.
Source: Kubernetes API reference, Job v1 batch; Kueue documentation, "Run a Kubernetes Job".
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hone.core.errors import ConfigError
from hone.core.strict_json import Json
from hone.run.queue.job_queue import QueuedRun

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_SECRET: Final = "hone-queue"
_VARIABLE: Final = "HONE_QUEUE"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_GRACE_S: Final = 600
"""Seconds that a run has to save its checkpoint."""
_TRIES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Where the pods of a queue's jobs run."""

    image: str
    claim: str
    """A persistent volume claim."""
    mount: Path
    """Folder where the claim is mounted in a pod, and here: configs and runs stand in it."""
    runs: Path
    memory_gib: float
    cores: int

    def check(self, job: QueuedRun) -> None:
        """Raises ConfigError with every fault."""
        config = Path(job.command[2] if job.serves else job.command[0])
        faults = [
            f"{path} is not in {self.mount}, where the volume {self.claim} is mounted: the pod would not see it"
            for path in (config, self.runs)
            if not path.is_relative_to(self.mount)
        ]
        if not (self.memory_gib > 0 and self.cores > 0):
            faults.append("a pod needs --memory and --cores above 0: Kueue admits by what is asked for")
        if not _LABEL.fullmatch(job.tenant):
            faults.append(f"tenant {job.tenant!r} cannot name a local queue: lower-case letters, digits and '-' only")
        if faults:
            raise ConfigError(*faults)


def kueue_job(job: QueuedRun, place: PodPlace) -> dict[str, Json]:
    """The manifest. The queue's address comes from the key `address` of the Secret `hone-queue`. Raises ConfigError as
    `PodPlace.check`."""
    place.check(job)
    name = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:40].strip("-")
    labels: dict[str, Json] = {"app.kubernetes.io/name": "hone", "hone/tenant": job.tenant, "hone/job": str(job.id)}
    size: dict[str, Json] = {"cpu": str(place.cores), "memory": f"{round(place.memory_gib * 1024)}Mi"}
    work = ["queue", "work", "--until-empty", "--only", str(job.id), "--queue", f"$({_VARIABLE})"]
    work += ["--runs", str(place.runs), "--cores", str(place.cores)]
    secret: dict[str, Json] = {"name": _SECRET, "key": "address"}
    container: dict[str, Json] = {
        "name": "hone",
        "image": place.image,
        "command": ["hone"],
        "args": list[Json](work),
        "workingDir": str(place.mount),
        "env": [{"name": _VARIABLE, "valueFrom": {"secretKeyRef": secret}}],
        "resources": {"requests": size, "limits": size},
        "volumeMounts": [{"name": "shared", "mountPath": str(place.mount)}],
    }
    if job.serves:
        container["ports"] = [{"containerPort": int(job.command[job.command.index("--port") + 1])}]
    pod: dict[str, Json] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [container],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": place.claim}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"hone-{job.id}-{name}".strip("-"),
            "labels": {**labels, QUEUE_LABEL: job.tenant},
        },
        "spec": {
            "suspend": True,
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": _TRIES,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
