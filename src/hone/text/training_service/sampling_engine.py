"""The engine that a training service samples with: in its own process, or replicas in a Ray cluster.

An answer has the same bits either way: it depends on the weights, the adapter, the draws and the request alone.
"""

from typing import TypeAlias

from hone.core.errors import ConfigError, ResourceError
from hone.engine.engine import EmbeddedEngine
from hone.engine.fleet.fleet_engine import FleetEngine
from hone.engine.fleet.replica import ReplicaSettings, layout_of
from hone.engine.open_engine import EngineSize, choose_runner, open_engine
from hone.engine.protocol import RunnerKind, UnmergedAdapter
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter
from hone.models.language.token_policy import TokenPolicy
from hone.parallel.config import ClusterConfig
from hone.run.store.codec import state_bytes
from hone.text.evaluate.engine_actor import tokenizer_rules
from hone.text.fleet import open_fleet
from hone.text.training_service.rows import RowModel
from hone.text.training_service.service_config import TrainingServiceConfig

SamplingEngine: TypeAlias = EmbeddedEngine | FleetEngine
"""Both take requests and texts of several unmerged adapters, a step at a time."""


def unmerged(adapter: LoraAdapter) -> UnmergedAdapter:
    """An adapter beside the base, as an engine takes it; its numbers must not change meanwhile."""
    return UnmergedAdapter(
        product=adapter.added_product,
        factors=adapter.stacked_factors,
        packed=lambda: state_bytes(adapter.packed()),
    )


def open_sampling_engine(
    config: TrainingServiceConfig, policy: TokenPolicy, rows: RowModel, context: int
) -> tuple[SamplingEngine, Decoder]:
    """The engine that samples and the decoder whose weights it publishes, and the base ready for training. Raises
    ConfigError and ResourceError where `native` or the replicas cannot be had."""
    decoder, kind = policy.decoder.twin({}) if config.model.whole else policy.decoder, config.runner
    if kind == "auto":
        try:
            choose_runner("native", decoder, vocab_used=tokenizer_rules(policy).vocab)
        except (ConfigError, ResourceError):
            kind = "torch"
        else:
            kind = "native"
    if kind == "torch":  # the trainer's arithmetic is then the sampler's; compiled code has products of its own
        rows.prepare(context, exact=True)
        decoder = policy.decoder.twin({}) if config.model.whole else policy.decoder
    cluster = config.cluster
    if cluster is None or not cluster.rollout.replicas:
        size = EngineSize(slots=config.limits.slots, sequence_tokens=context)
        engine = open_engine(decoder, tokenizer_rules(policy), size=size, seed=config.seed, runner=kind)
    else:
        engine = open_fleet(cluster, decoder, _replicas(config, cluster, policy, decoder, kind, context))
    if kind == "native":
        rows.prepare(context)
    engine.publish(0)
    if isinstance(engine, FleetEngine):
        engine.wait_arithmetic()  # a replica that cannot be opened is told before the service listens
    return engine, decoder


def _replicas(
    config: TrainingServiceConfig,
    cluster: ClusterConfig,
    policy: TokenPolicy,
    decoder: Decoder,
    kind: RunnerKind,
    context: int,
) -> ReplicaSettings:
    text = tokenizer_rules(policy)
    return ReplicaSettings(
        layout=layout_of(decoder.stored_tensors()),
        runner=kind,
        vocab=text.vocab,
        eos=tuple(text.eos),
        tokenizer_json=policy.tokenizer.backend.to_str(),
        slots=config.limits.slots,
        sequence_tokens=context,
        seed=config.seed,
        threads=cluster.rollout.replica_threads,
    )
