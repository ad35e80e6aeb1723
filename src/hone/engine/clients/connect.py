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


def open_protocol(config: ServerEngine, url: str) -> ServerProtocol:
    """Return the protocol of one server. Raises ConfigError for an invalid address."""
    link = HttpClient(config.address(url))
    return VllmProtocol(link) if config.kind == "vllm" else SglangProtocol(link)


def open_weight_transfer(
    config: ServerEngine, *, model: GenerationModel, save: Callable[[Path], None], vocab: int
) -> WeightTransfer:
    """Build the transfer of the weights of `model`, as `save` writes them, to one server or several."""
    own = config.weights_folder is None
    folder = Path(tempfile.mkdtemp(prefix="hone-weights-") if config.weights_folder is None else config.weights_folder)
    return WeightTransfer(
        save=save,
        folder=folder,
        session=f"hone-{uuid4().hex[:12]}",  # an identity, no chance: no draw depends on it
        canary=WeightCanary(model, vocab=vocab, tolerance=config.canary_nats),
        keep_folder=not own,
    )


def connect_engine(
    config: ServerEngine,
    *,
    model: GenerationModel,
    save: Callable[[Path], None],
    text: TokenizerRules,
    slots: int,
    seed: int,
) -> RemoteEngine:
    """Build an engine over one server for the weights of `model`, as `save` writes them. Sends no request yet."""
    (url,) = config.urls
    return RemoteEngine(
        open_protocol(config, url),
        text,
        slots=slots,
        seed=seed,
        weight_transfer=open_weight_transfer(config, model=model, save=save, vocab=text.vocab),
        on_publish=config.on_publish,
        reconnect_timeout_s=config.reconnect_timeout_s,
    )
