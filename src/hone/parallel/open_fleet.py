"""A fleet of replicas as Ray actors, built from its config without starting a process."""

from hone.engine.fleet.fleet_book import FleetLimits
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
from hone.engine.fleet.replica import ReplicaSettings
from hone.models.language.decoder import Decoder
from hone.parallel.config import ClusterConfig, require_ray


def open_fleet(config: ClusterConfig, decoder: Decoder, settings: ReplicaSettings) -> FleetEngine:
    """The fleet as the engine of a run over the weights of `decoder`; its processes start at the first `publish`.

    Raises ResourceError where Ray is not installed.
    """
    require_ray()
    from hone.parallel.ray_transport import RayTransport, ReplicaSpec  # noqa: PLC0415 - Ray: an extra

    spec = ReplicaSpec(
        model=decoder.config,
        dtype=str(decoder.dtype).removeprefix("torch."),
        compute=str(decoder.compute).removeprefix("torch."),
        bitwise=decoder.exactness == "bitwise",
        device=config.rollout.device,
        settings=settings,
    )
    limits = FleetLimits(
        replicas=config.rollout.replicas,
        spares=config.rollout.spares,
        slots=settings.slots,
        patience_s=config.patience_s,
        losses_allowed=config.losses_allowed,
        exact=not config.rollout.mixed,
    )
    rules = FleetRules(limits=limits, mixed=config.rollout.mixed)
    return FleetEngine(RayTransport(config, spec), settings, decoder.stored_tensors, rules=rules)
