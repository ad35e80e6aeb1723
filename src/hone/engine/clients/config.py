"""A server that writes the answers of a run."""

from typing import Literal

from pydantic import Field

from hone.core.config import Config
from hone.core.generation import OnPublish
from hone.engine.clients.http import ServerAddress


class ServerEngine(Config):
    """A server in the place of the embedded engine; it takes up the policy's weights from a folder after every step."""

    kind: Literal["vllm", "sglang"]
    """The protocol that it speaks; `docs/howto/servers.md` says how each is started."""
    url: str
    """`http://host:port`."""
    key_from: str | None = None
    """Environment variable that holds the server's key."""
    weights_folder: str | None = None
    """Where weights are handed over: a folder that this machine writes and the server reads by the same name (default:
    a temporary one, for a server on this machine)."""
    on_publish: OnPublish = "finish"
    """What becomes of answers that are being written when new weights are published."""
    canary_nats: float | None = Field(default=None, gt=0)
    """Mean difference of log-probabilities, relative to 1 + their mean, above which the server is held to have other
    weights than the trainer. By default that of the trainer's number format; a server that computes in bfloat16 under a
    float32 trainer needs about 0.1."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer."""
    patience_s: float = Field(default=300.0, ge=0)
    """How long a server that went away is waited for; what it was writing is asked for again."""

    def address(self) -> ServerAddress:
        return ServerAddress(url=self.url, api_key_env=self.key_from, timeout_s=self.timeout_s)
