"""A fleet from its config: checked before the run without Ray, and built without a process."""

import os
from importlib.util import find_spec

import torch

from hone.core.errors import ResourceError, run_all_checks
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
from hone.engine.fleet.fleet_records import FleetLimits
from hone.engine.fleet.fleet_transport import FleetTransport
from hone.engine.fleet.replica import ReplicaSettings
from hone.models.language.decoder import Decoder
from hone.parallel.config import ClusterConfig
from hone.parallel.placement import NodeRoom, needed_store_bytes, placement_faults


def machine_cpus() -> int:
    """CPUs of this machine that this process may use."""
    return len(os.sched_getaffinity(0))


def require_ray() -> None:
    """Raise ResourceError where Ray is not installed."""
    if find_spec("ray") is None:
        raise ResourceError("[cluster] needs Ray: pip install 'hone-rl[ray]', or leave the table out")


def check_room(config: ClusterConfig) -> list[str]:
    """Warnings of a cluster that is to be used; Ray is not started.

    Raises ResourceError with all faults: no Ray, and a fleet that this machine has no room for.
    """

    def require_room() -> None:
        here = NodeRoom(
            name="this machine",
            cpus=machine_cpus(),
            gpus=torch.cuda.device_count(),
            store_bytes=needed_store_bytes(0),
        )
        if config.address == "local" and (faults := placement_faults([here], config.rollout, 0)):
            raise ResourceError(*faults)

    run_all_checks({"ray": require_ray, "room": require_room})
    if not config.rollout.mixed:
        return []
    return ["cluster.rollout.mixed: replicas may compute by different kernels, so that this run cannot be repeated"]


def _make_transport(config: ClusterConfig, decoder: Decoder, settings: ReplicaSettings) -> FleetTransport:
    """Replicas as Ray actors; nothing is started yet. Raises ResourceError where Ray is not installed."""
    require_ray()
    from hone.parallel.ray_transport import RayTransport  # noqa: PLC0415 - an extra
    from hone.parallel.replica_actor import ReplicaSpec  # noqa: PLC0415 - it imports Ray

    spec = ReplicaSpec(
        model=decoder.config,
        dtype=str(decoder.dtype).removeprefix("torch."),
        compute=str(decoder.compute).removeprefix("torch."),
        bitwise=decoder.exactness == "bitwise",
        device=config.rollout.device,
        settings=settings,
    )
    return RayTransport(config, spec)


def open_fleet(config: ClusterConfig, decoder: Decoder, settings: ReplicaSettings) -> FleetEngine:
    """The fleet as the engine of a run over the weights of `decoder`; its processes start at the first `publish`."""
    limits = FleetLimits(
        replicas=config.rollout.replicas,
        spares=config.rollout.spares,
        slots=settings.slots,
        patience_s=config.patience_s,
        losses_allowed=config.losses_allowed,
        exact=not config.rollout.mixed,
    )
    return FleetEngine(
        _make_transport(config, decoder, settings),
        settings,
        decoder.stored_tensors,
        rules=FleetRules(limits=limits, mixed=config.rollout.mixed),
    )
