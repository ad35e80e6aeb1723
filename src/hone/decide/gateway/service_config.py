"""The service file: `[service] [policy] [log] [join] [rollout] [monitor] [shield]`, every table optional.

Belongs here: the tables of the gateway itself, and the file as a whole. The other tables' classes live with the parts
that they configure.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from hone.core.config import Config
from hone.decide.gateway.access import AccessScope
from hone.decide.gateway.policy_config import ServicePolicy, UniformServiceConfig
from hone.decide.joins.config import JoinConfig
from hone.decide.monitor.config import MonitorConfig
from hone.decide.rollout.config import StagedRolloutConfig
from hone.decide.shield.service import ShieldConfig

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ClientConfig(Config):
    """A caller over HTTP: its token, its tenant and what it may do."""

    name: str = Field(min_length=1, max_length=64)
    """Name in log lines."""
    tenant: str = Field(default="", max_length=64)
    """The tenant that it belongs to; empty: any tenant of the service."""
    token_env: str = ""
    """Environment variable that holds its token."""
    token_sha256: str = ""
    """sha256 of its token, in hexadecimal, in place of `token_env`."""
    scopes: list[AccessScope] = Field(default=["decide", "reward"], min_length=1)
    """Things it may do: `decide`, `reward`, `read` (metrics), `ship`, `administer`."""

    @model_validator(mode="after")
    def _check(self) -> "ClientConfig":
        if bool(self.token_env) == bool(self.token_sha256):
            raise ValueError("give exactly one of token_env and token_sha256")
        if self.token_sha256 and not _DIGEST.fullmatch(self.token_sha256):
            raise ValueError("token_sha256 must be 64 hexadecimal digits: printf TOKEN | sha256sum")
        return self


class RateLimitConfig(Config):
    """Limit of every tenant's requests."""

    per_s: float = Field(default=0.0, ge=0)
    """Requests a second of each tenant, on average; a batch counts its entries; 0: no limit."""
    burst: float = Field(default=100.0, ge=1)
    """Requests that may come at once."""


class ServiceTableConfig(Config):
    """The service: names of features, actions and tenants, deadline and limits."""

    name: str = ""
    """Name of the service and of its folder; empty: that of the file."""
    features: list[str] = []
    """Features of a context, in order; `country=de` is a category."""
    actions: list[str] = []
    """Actions; a request may offer some of them. Empty: requests name their actions, with features."""
    action_features: list[str] = []
    """Features that requests give with each action; empty: actions are told apart by their names."""
    safe_action: str = ""
    """Action that is taken where every version of the policy fails; empty: each with equal probability."""
    tenants: list[str] = Field(default=["default"], min_length=1)
    """Tenants; each has decisions, rewards, limits and a learner of its own."""
    clients: list[ClientConfig] = []
    """Callers; none: everybody may do everything, from this machine only."""
    limit: RateLimitConfig = RateLimitConfig()
    """Rate limit of each tenant."""
    deadline_s: float = Field(default=0.05, gt=0, le=60)
    """Seconds that a decision may take, unless its request says otherwise."""
    max_body_bytes: int = Field(default=1 << 20, ge=1024)
    """Longest body of a request."""
    remember: int = Field(default=20_000, ge=1)
    """Requests whose answer is kept, so that a repeated one gets the same."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""

    @field_validator("features", "actions", "action_features", "tenants")
    @classmethod
    def _distinct(cls, names: list[str]) -> list[str]:
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"names {', '.join(map(repr, twice))} twice")
        return names

    @field_validator("name")
    @classmethod
    def _a_folder(cls, name: str) -> str:
        if name and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} must be letters, digits, '.', '_' and '-': it names a folder")
        return name

    @model_validator(mode="after")
    def _check(self) -> "ServiceTableConfig":
        faults: list[str] = []
        if self.safe_action and self.actions and self.safe_action not in self.actions:
            faults.append(f"safe_action {self.safe_action!r} is not in actions ({', '.join(self.actions)})")
        faults += [
            f"client {client.name!r} belongs to the tenant {client.tenant!r}, which is not in tenants"
            for client in self.clients
            if client.tenant and client.tenant not in self.tenants
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return self


class LogTableConfig(Config):
    """The decision log."""

    address: str = "decisions.db"
    """A file in the service's folder, `postgresql://user@host/database` or `redis://host:6379/0`."""
    durable: Literal["before", "after"] = "before"
    """`before`: a record is in the log before its request is answered. `after`: behind it; a kill loses what waits."""
    buffer: int = Field(default=10_000, ge=1)
    """Records that may wait, of `after`; a full buffer refuses requests (503)."""
    full_sync: bool = False
    """Flush each commit of a file, so that it survives a loss of power too."""


class ServiceFileConfig(Config):
    """A service file."""

    service: ServiceTableConfig = ServiceTableConfig()
    """The service."""
    policy: Annotated[ServicePolicy, Field(discriminator="kind")] = UniformServiceConfig()
    """The policy, and how it learns."""
    log: LogTableConfig = LogTableConfig()
    """The decision log."""
    join: JoinConfig = JoinConfig()
    """How outcomes become rewards."""
    rollout: StagedRolloutConfig = StagedRolloutConfig()
    """Rollouts of new versions, begun by `hone ship`."""
    monitor: MonitorConfig | None = None
    """Watching for drift; without the table nothing is watched."""
    shield: ShieldConfig | None = None
    """Actions that are safe; without the table all are."""

    @model_validator(mode="after")
    def _check(self) -> "ServiceFileConfig":
        if self.policy.needs_actions and not self.service.actions and not self.service.action_features:
            raise ValueError(
                f'kind = "{self.policy.kind}" learns a model of each action: give [service] actions, or action_features'
            )
        return self
