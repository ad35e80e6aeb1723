"""Builds an engine from a server's config."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from hone.engine.canary import WeightCanary
from hone.engine.clients.config import ServerEngine
from hone.engine.clients.handover import WeightTransfer
from hone.engine.clients.http import HttpClient
from hone.engine.clients.remote import RemoteEngine
from hone.engine.clients.sglang import SglangProtocol
from hone.engine.clients.vllm import VllmProtocol
from hone.engine.clients.wire import ServerProtocol
from hone.engine.protocol import GenerationModel
from hone.engine.stops import TokenizerRules


def open_protocol(config: ServerEngine) -> ServerProtocol:
    """Return the protocol of a server. Raises ConfigError for an invalid address."""
    link = HttpClient(config.address())
    return VllmProtocol(link) if config.kind == "vllm" else SglangProtocol(link)


def connect_engine(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> RemoteEngine:
    """Build an engine for the weights of `model`, as `save` writes them. Sends no request yet."""
    own = config.weights_folder is None
    folder = Path(tempfile.mkdtemp(prefix="hone-weights-") if config.weights_folder is None else config.weights_folder)
    return RemoteEngine(
        open_protocol(config),
        text,
        slots=slots,
        seed=seed,
        weight_transfer=WeightTransfer(
            save=save,
            folder=folder,
            session=f"hone-{uuid4().hex[:12]}",  # an identity, no chance: no draw depends on it
            canary=WeightCanary(model, vocab=text.vocab, tolerance=config.canary_nats),
            keep_folder=not own,
        ),
        on_publish=config.on_publish,
        reconnect_timeout_s=config.reconnect_timeout_s,
    )
