"""A fleet over several servers from their config."""

from collections.abc import Callable
from pathlib import Path

from hone.engine.clients.config import ServerEngine
from hone.engine.clients.connect import open_protocol, open_weight_transfer
from hone.engine.clients.remote import RemoteEngine
from hone.engine.fleet.flat_weights import layout_of
from hone.engine.fleet.fleet_engine import FleetEngine, FleetRules
from hone.engine.fleet.fleet_records import FleetLimits
from hone.engine.fleet.replica import ReplicaSettings
from hone.engine.fleet.server_transport import ServerTransport
from hone.engine.protocol import GenerationModel
from hone.engine.stops import TokenizerRules

_LEAST_PATIENCE_S = 1.0


def open_server_fleet(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> FleetEngine:
    """Build an engine over the servers of `config`, with `slots` answers at a time on each, for the weights of `model`
    as `save` writes them. Sends no request yet. Raises ConfigError for an invalid address."""
    protocols = {url: open_protocol(config, url) for url in config.urls}
    transfer = open_weight_transfer(config, model=model, save=save, vocab=text.vocab)

    def connect(url: str) -> RemoteEngine:
        return RemoteEngine(
            protocols.pop(url, None) or open_protocol(config, url),  # a client that was ended is not used again
            text,
            slots=slots,
            seed=seed,
            weight_transfer=transfer,
            on_publish=config.on_publish,
            reconnect_timeout_s=0.0,
        )

    patience_s = max(_LEAST_PATIENCE_S, config.reconnect_timeout_s)
    limits = FleetLimits(
        replicas=len(config.urls),
        slots=slots,
        patience_s=patience_s,
        start_s=float("inf"),  # the transport knows how long a server may be away
        exact=False,
    )
    settings = ReplicaSettings(
        layout=layout_of({}),  # weights go by the folder
        runner="auto",
        vocab=text.vocab,
        eos=tuple(text.eos),
        decodes=text.decode is not None,
        slots=slots,
        sequence_tokens=model.config.max_positions,
        seed=seed,
        threads=1,
        on_publish=config.on_publish,
    )
    transport = ServerTransport(config.urls, connect, transfer, wait_s=config.reconnect_timeout_s)
    return FleetEngine(transport, settings, dict, rules=FleetRules(limits=limits, mixed=True))
