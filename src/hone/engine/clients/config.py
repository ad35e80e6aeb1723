"""Config of a server that generates the answers of a run."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.generation import OnPublish
from hone.engine.clients.http import ServerAddress


class ServerEngine(Config):
    """A server in place of the embedded engine; it loads the policy's weights from a folder after every step."""

    kind: Literal["vllm", "sglang"]
    """The server's protocol; `docs/howto/servers.md` describes how to start each."""
    url: str | Annotated[list[str], Field(min_length=1)]
    """`http://host:port`; or a list of addresses, of servers of one kind that share the answers out."""
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
    """Seconds to wait for an unreachable server; unfinished answers are then requested again. With several servers the
    others are asked at once, and this is the longest time in which none of them answers."""

    @model_validator(mode="after")
    def _are_different(self) -> "ServerEngine":
        if twice := sorted({url for url in self.urls if self.urls.count(url) > 1}):
            raise ValueError(f"url names {', '.join(twice)} more than once; each server is one address")
        return self

    @property
    def urls(self) -> list[str]:
        """All addresses, without a slash at the end."""
        return [url.rstrip("/") for url in ([self.url] if isinstance(self.url, str) else self.url)]

    def address(self, url: str) -> ServerAddress:
        """One address with the key's variable and deadlines."""
        return ServerAddress(url=url, api_key_env=self.api_key_env, timeout_s=self.timeout_s)

    def derive(self) -> dict[str, str]:
        """Places where answers are generated, for `hone plan`."""
        urls = self.urls
        shown = urls if len(urls) < 5 else [*urls[:3], "...", urls[-1]]
        return {
            "servers" if len(urls) > 1 else "server": f"{self.kind} at {', '.join(shown)}",
            "weights": f"to {'each server' if len(urls) > 1 else 'the server'} through "
            + (self.weights_folder or "a temporary folder of this machine"),
        }
