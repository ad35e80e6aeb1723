"""Config of tasks whose dialogues are held by agents that call the policy by an address."""

from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, JsonValue

from hone.core.config import Config, is_loopback

VERIFIERS: Final = "verifiers:"
AGENTS: Final = "agents:"


class AgentSessionsConfig(Config):
    """Sessions of agents: the environment that holds them, and how long they are waited for."""

    environment: dict[str, JsonValue] = {}
    """Config of a verifiers environment, as verifiers takes it: `{agent = {harness = {id = "null"}}}`."""
    python: str = ""
    """Interpreter that has the package of the environment; empty: this one."""
    tool_format: Literal["hermes", "llama3_json", "qwen_xml", "bracket"] = "hermes"
    """Form in which the policy writes calls of the tools that agents offer."""
    deadline_s: float = Field(default=120.0, gt=0)
    """A session that neither asks nor reports for so many seconds has no score."""
    patience_s: float = Field(default=600.0, gt=0)
    """Seconds after which a run stops if its sessions do not begin."""


def is_captured(source: str) -> bool:
    """True for a `task.source` whose dialogues are held by agents."""
    return source.startswith((VERIFIERS, AGENTS))


def agent_address(source: str) -> tuple[str, int]:
    """Host and port of `agents:HOST:PORT`. Raises ValueError, also for a host that other machines can reach."""
    try:
        parts = urlsplit(f"//{source.removeprefix(AGENTS)}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    if not host or port is None:
        raise ValueError(f"source = {source!r}: expected {AGENTS}HOST:PORT, such as {AGENTS}127.0.0.1:8712")
    if not is_loopback(host):
        raise ValueError(
            f"source = {source!r}: {host} can be reached by other machines, and whoever asks there decides what is "
            f"learnt; listen at 127.0.0.1, and let agents of other machines in by a tunnel (ssh -R {port}:127.0.0.1:"
            f"{port})"
        )
    return host, port
