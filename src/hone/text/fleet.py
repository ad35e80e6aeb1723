"""Replicas that generate a run's answers, wired: the engine of a run with `[cluster]`."""

from typing import TYPE_CHECKING, Final

from hone.core.errors import ConfigError
from hone.engine.clients.http import ServerEngine
from hone.models.language.decoder import Decoder
from hone.models.language.token_policy import TokenPolicy
from hone.parallel.config import ClusterConfig, require_ray
from hone.text.evaluate.engine_actor import tokenizer_rules
from hone.text.rollout_config import RolloutConfig

if TYPE_CHECKING:
    from hone.engine.fleet.fleet_engine import FleetEngine
    from hone.engine.fleet.replica import ReplicaSettings

_TWO_ENGINES: Final = (
    "[cluster] starts replicas of hone's own engine, and rollout.runner names servers that run already; leave out one "
    "of them. Several servers are a list of addresses in rollout.runner.url"
)


def open_text_fleet(
    policy: TokenPolicy, rollout: RolloutConfig, cluster: ClusterConfig, longest: int, *, seed: int
) -> "FleetEngine":
    """The fleet of a run for prompts of at most `longest` tokens. Raises ConfigError for a server as `rollout.runner`,
    ResourceError where Ray is not installed."""
    if isinstance(rollout.runner, ServerEngine):
        raise ConfigError(_TWO_ENGINES)
    from hone.engine.fleet.replica import ReplicaSettings, layout_of  # noqa: PLC0415 - runs with replicas only

    decoder, text = policy.decoder, tokenizer_rules(policy)
    settings = ReplicaSettings(
        layout=layout_of(decoder.stored_tensors()),
        runner=rollout.runner,
        vocab=text.vocab,
        eos=tuple(text.eos),
        tokenizer_json=policy.tokenizer.backend.to_str(),
        slots=rollout.max_concurrent,
        sequence_tokens=min(longest + rollout.max_tokens, decoder.config.max_positions),
        seed=seed,
        threads=cluster.rollout.replica_threads,
        batch_invariant=rollout.deterministic == "batch",
        on_publish=rollout.mid_rollout_publish or "recompute",
        kv_cache=rollout.kv_cache,
    )
    return open_fleet(cluster, decoder, settings)


def open_fleet(config: ClusterConfig, decoder: Decoder, settings: "ReplicaSettings") -> "FleetEngine":
    """A fleet of replicas as Ray actors, for the weights of `decoder`; its processes start at the first `publish`.

    Raises ResourceError where Ray is not installed.
    """
    require_ray()
    from hone.engine.fleet.fleet_book import FleetLimits  # noqa: PLC0415 - runs with replicas only
    from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules  # noqa: PLC0415 - as above
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


def generating_cluster(rollout: RolloutConfig, cluster: ClusterConfig | None) -> ClusterConfig | None:
    """The cluster whose replicas generate. None: the process itself does, which also replays what replicas drew."""
    if cluster is None or cluster.rollout.replicas == 0 or rollout.asynchrony.replayed_run is not None:
        return None
    return cluster


def require_own_engine(rollout: RolloutConfig, cluster: ClusterConfig | None) -> None:
    """Raise ValueError for a config with replicas and a server, or with a record of replicas that compute unlike."""
    if cluster is None or cluster.rollout.replicas == 0:
        return
    if isinstance(rollout.runner, ServerEngine):
        raise ValueError(_TWO_ENGINES)
    if rollout.asynchrony.records and cluster.rollout.mixed:
        raise ValueError(
            "rollout.max_staleness.interleaving with cluster.rollout.mixed: no replay can repeat the answers of "
            "replicas with different kernels; leave out one of them"
        )
