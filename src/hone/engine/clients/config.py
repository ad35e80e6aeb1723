"""Config of a server that generates the answers of a run."""

from typing import Literal

from pydantic import Field

from hone.core.config import Config
from hone.core.generation import OnPublish
from hone.engine.clients.http import ServerAddress


class ServerEngine(Config):
    """A server in place of the embedded engine; it loads the policy's weights from a folder after every step."""

    kind: Literal["vllm", "sglang"]
    """The server's protocol; `docs/howto/servers.md` describes how to start each."""
    url: str
    """`http://host:port`."""
    api_key_env: str | None = None
    """Environment variable that holds the server's key."""
    weights_folder: str | None = None
    """Folder for the weights. The trainer writes it and the server reads it under the same path (default: a
    temporary folder, for a server on this machine).
    """
    on_publish: OnPublish = "finish"
    """Treatment of unfinished answers when new weights are published."""
    canary_nats: float | None = Field(default=None, gt=0)
    """Mean difference of log-probabilities, relative to 1 + their mean, above which the server's weights count as
    different from the trainer's. By default that of the trainer's dtype; a server in bfloat16 with a float32 trainer
    needs about 0.1.
    """
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one answer."""
    reconnect_timeout_s: float = Field(default=300.0, ge=0)
    """Seconds to wait for an unreachable server; unfinished answers are then requested again."""

    def address(self) -> ServerAddress:
        """Address with the key's variable and deadlines."""
        return ServerAddress(url=self.url, api_key_env=self.api_key_env, timeout_s=self.timeout_s)
