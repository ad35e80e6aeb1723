"""Checks of a cluster before a run: versions, a shared folder, builds of the kernels, sizes of the object stores.

Belongs here: what each machine is asked, and the findings from the answers. `hone doctor --cluster` shows them.
"""

import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal

from hone.core.errors import ResourceError
from hone.parallel.config import ClusterConfig, NodeRoom, needed_store_bytes, placement_faults
from hone.parallel.connect import connect_to_ray, last_line

LIBRARIES: Final = ("hone-rl", "torch", "numpy", "ray")
_SMALL_STORE_BYTES: Final = 75 << 20
_ANSWER_S: Final = 120.0

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFinding:
    """A finding, and what to do about it where it is not `ok`."""

    subject: str
    observed: str
    verdict: Verdict = "ok"
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What a machine of the cluster said of itself."""

    node: str
    """Name, with the beginning of Ray's number for it."""
    versions: Mapping[str, str]
    """Python's and the libraries'."""
    kernels: str
    """Name and hash of the compiled runner's build; the reason where there is none."""
    folder_fault: str = ""
    """Reason why the driver's token could not be read, or a token of its own not written."""


def _inspect_node(node: str, folder: str, token: str) -> NodeReport:
    """Report on this machine; reads the token `token` in `folder`, and writes one of its own."""
    from hone.engine.native.library import build  # noqa: PLC0415 - torch: not needed to show findings

    fault = ""
    try:
        if (Path(folder) / token).read_text(encoding="utf-8") != token:
            fault = f"{folder}/{token} has other contents here"
        else:
            (Path(folder) / f"{token}-{node.replace(' ', '-')}").write_text(token, encoding="utf-8")
    except OSError as error:
        fault = f"{folder}: {error.strerror or error}"
    try:
        kernels = build().path.stem
    except ResourceError as error:
        kernels = f"none: {error.messages[0]}"
    versions = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    return NodeReport(node=node, versions=versions, kernels=kernels, folder_fault=fault)


def _findings_of(
    here: NodeReport,
    there: Sequence[NodeReport],
    rooms: Sequence[NodeRoom],
    *,
    written: Sequence[str],
    folder: Path,
    config: ClusterConfig | None = None,
    weights_bytes: int = 0,
) -> list[ClusterFinding]:
    """Findings from the reports of the driver (`here`) and of each machine. `written` are the machines whose tokens the
    driver can read; with a `config` its fleet must have room."""
    findings = [_version_finding(name, here, there) for name in here.versions]
    for one in there:
        fault = one.folder_fault or ("" if one.node in written else "what it wrote is not seen here")
        findings.append(
            ClusterFinding(subject="shared folder", observed=f"{one.node} reads and writes {folder}")
            if not fault
            else ClusterFinding(
                subject="shared folder",
                observed=f"{one.node}: {fault}",
                verdict="fail",
                fix=f"mount the same volume at {folder} on every machine, or choose a folder that is (--runs)",
            )
        )
    findings.append(_kernels_finding(here, there, config))
    return [*findings, *_room_findings(rooms, config, weights_bytes)]


def _version_finding(name: str, here: NodeReport, there: Sequence[NodeReport]) -> ClusterFinding:
    """Whether every machine has the driver's version."""
    other = {one.node: one.versions.get(name, "none") for one in there if one.versions.get(name) != here.versions[name]}
    if not other:
        return ClusterFinding(subject=name, observed=f"{here.versions[name]} everywhere")
    differing = ", ".join(f"{text} on {node}" for node, text in other.items())
    return ClusterFinding(
        subject=name,
        observed=f"{here.versions[name]} here, {differing}",
        verdict="fail",
        fix=f"install one version everywhere: pip install {name}=={here.versions[name]}"
        if name != "python"
        else "use one image, or one Python, everywhere",
    )


def _kernels_finding(here: NodeReport, there: Sequence[NodeReport], config: ClusterConfig | None) -> ClusterFinding:
    """Whether every machine computes by the same build of the kernels."""
    builds: dict[str, list[str]] = {}
    for one in there or [here]:
        builds.setdefault(one.kernels, []).append(one.node)
    if len(builds) == 1:
        return ClusterFinding(subject="kernels", observed=f"one build: {next(iter(builds))}")
    mixed = config is not None and config.rollout.mixed
    return ClusterFinding(
        subject="kernels",
        observed="; ".join(f"{build} on {', '.join(nodes)}" for build, nodes in builds.items()),
        verdict="warn" if mixed else "fail",
        fix="install the same compiler everywhere, or share the folder of HONE_CACHE; cluster.rollout.mixed = true "
        "runs all the same, and gives up that the run can be repeated",
    )


def _room_findings(rooms: Sequence[NodeRoom], config: ClusterConfig | None, weights_bytes: int) -> list[ClusterFinding]:
    """Room of the machines, against the plan where there is one."""
    sizes = [f"{room.text}, store {room.store_bytes / 2**20:.0f} MiB" for room in rooms]
    findings = [ClusterFinding(subject="machine", observed=text) for text in sizes]
    if config is not None:
        faults = placement_faults(rooms, config.rollout, weights_bytes)
        need = (
            f"{needed_store_bytes(weights_bytes) / 2**20:.0f} MiB of store" if not config.rollout.weights_folder else ""
        )
        text = f"{config.rollout.replicas} replicas and {config.rollout.spares} spares have room; {need or 'a folder'}"
        if not faults:
            return [*findings, ClusterFinding(subject="plan", observed=text)]
        parts = [fault.partition("; ") for fault in faults]
        return [*findings, *(ClusterFinding(subject="plan", observed=a, verdict="fail", fix=b) for a, _, b in parts)]
    small = [room.name for room in rooms if room.store_bytes < _SMALL_STORE_BYTES]
    if small:
        fix = "start Ray with `--object-store-memory`, and in a container give /dev/shm the same size"
        text = f"less than {_SMALL_STORE_BYTES >> 20} MiB on {', '.join(small)}"
        findings.append(ClusterFinding(subject="object store", observed=text, verdict="warn", fix=fix))
    return findings


def inspect_cluster(
    address: str,
    folder: Path,
    *,
    config: ClusterConfig | None = None,
    weights_bytes: int = 0,
    connect: Callable[[str], object] = connect_to_ray,
) -> list[ClusterFinding]:
    """Ask every machine of the cluster at `address`; `folder` is the one that runs are written to.

    Without Ray or without the cluster that is the only finding. Raises ResourceError where `folder` cannot be written.
    """
    try:
        connect(address)
    except ResourceError as error:
        text, _, fix = error.messages[0].partition(": ")
        return [ClusterFinding(subject="Ray", observed=text, verdict="fail", fix=fix)]
    token = f".hone-doctor-{uuid.uuid4().hex[:12]}"
    place = folder.absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / token).write_text(token, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{place} cannot be written: {error.strerror}") from None
    try:
        rooms, reports, silent = _ask_nodes(place, token)
        written = [one.node for one in reports if (place / f"{token}-{one.node.replace(' ', '-')}").exists()]
        here = _inspect_node("driver", str(place), token)
    finally:
        for one in place.glob(f"{token}*"):
            one.unlink(missing_ok=True)
    findings = _findings_of(
        here, reports, rooms, written=written, folder=place, config=config, weights_bytes=weights_bytes
    )
    return [ClusterFinding(subject="Ray", observed=f"{len(rooms)} machines at {address}"), *findings, *silent]


def _ask_nodes(place: Path, token: str) -> tuple[list[NodeRoom], list[NodeReport], list[ClusterFinding]]:
    """The machines, their reports, and those that gave none."""
    import ray  # noqa: PLC0415 - an extra
    from ray.exceptions import GetTimeoutError, RayError  # noqa: PLC0415 - an extra
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = {node["NodeID"]: f"{node['NodeManagerHostname']} {node['NodeID'][:6]}" for node in nodes}
    task = ray.remote(_inspect_node)
    asked = {
        number: task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(number, soft=False)
        ).remote(name, str(place), token)
        for number, name in names.items()
    }
    reports: list[NodeReport] = []
    silent: list[ClusterFinding] = []
    for number, one in asked.items():
        try:
            reports.append(ray.get(one, timeout=_ANSWER_S))
        except (GetTimeoutError, RayError) as error:
            text = f"{names[number]} gave no report: {last_line(error)}"
            fix = "install hone there as here (one image), and look at the machine's Ray logs"
            silent.append(ClusterFinding(subject="machine", observed=text, verdict="fail", fix=fix))
    return [NodeRoom.of_node(node, names[node["NodeID"]]) for node in nodes], reports, silent
