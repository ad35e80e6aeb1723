"""From what a config says of a server to an engine."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from hone.engine.canary import Canary
from hone.engine.clients.config import ServerEngine
from hone.engine.clients.handover import Handover
from hone.engine.clients.http import Link
from hone.engine.clients.remote import RemoteEngine
from hone.engine.clients.sglang import SglangWire
from hone.engine.clients.vllm import VllmWire
from hone.engine.clients.wire import Wire
from hone.engine.protocol import Model
from hone.engine.stops import TextRules


def wire_to(config: ServerEngine) -> Wire:
    """The protocol of a server. Raises ConfigError for an address that cannot be one."""
    link = Link(config.address())
    return VllmWire(link) if config.kind == "vllm" else SglangWire(link)


def connect(
    config: ServerEngine,
    *,
    model: Model,
    save: Callable[[Path], None],
    text: TextRules,
    slots: int,
    seed: int,
) -> RemoteEngine:
    """An engine whose weights are those of `model`, as `save` writes them. Nothing is asked of the server yet."""
    own = config.weights_folder is None
    folder = Path(tempfile.mkdtemp(prefix="hone-weights-") if config.weights_folder is None else config.weights_folder)
    return RemoteEngine(
        wire_to(config),
        text,
        slots=slots,
        seed=seed,
        handover=Handover(
            save=save,
            folder=folder,
            session=f"hone-{uuid4().hex[:12]}",  # an identity, no chance: no draw depends on it
            canary=Canary(model, vocab=text.vocab, tolerance=config.canary_nats),
            keep_folder=not own,
        ),
        on_publish=config.on_publish,
        patience_s=config.patience_s,
    )
