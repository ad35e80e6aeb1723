"""The file of `hone serve training FILE`: the base model, limits, and tenants with their tokens and scopes."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.errors import ConfigError, variable_name
from hone.parallel.config import ClusterConfig

Scope: TypeAlias = Literal["train", "sample", "read", "publish", "administer"]
ALL_SCOPES: Final[tuple[Scope, ...]] = ("train", "sample", "read", "publish", "administer")
LOCAL: Final = "local"
"""The tenant of a service without tenants."""
_NOT_SERVED: Final = ("device", "tensor", "virtual_ranks")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class ServedBaseConfig(Config):
    """The base model, which is held once."""

    path: str = Field(min_length=1)
    """Folder of Hugging Face, GGUF file, run of hone, or model of the Hub."""
    names: list[str] = Field(default_factory=list[str])
    """Names under which clients ask for it; empty: its path."""
    context: int = Field(default=0, ge=0)
    """Most tokens of a row, or of a prompt and its answer; 0: the model's positions."""
    whole: bool = False
    """Train all weights in place of adapters: the base is then one tenant's at a time."""


class TenantConfig(Config):
    """A team."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Its name in records and metrics."""
    token_sha256: str = ""
    """sha256 of its key, 64 hexadecimal digits; or `token_env`."""
    token_env: str = ""
    """Environment variable that holds its key."""
    scopes: list[Scope] = Field(default_factory=lambda: list(ALL_SCOPES))
    """Purposes of the key."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the work, relative to the others'."""
    max_models: int = Field(default=64, ge=1)
    """Models in training, of sessions that are not finished."""
    max_waiting: int = Field(default=1024, ge=1)
    """Requests that may wait; a sample above that gets 429, and a step waits at the client."""

    @model_validator(mode="after")
    def _one_token(self) -> "TenantConfig":
        if bool(self.token_sha256) == bool(self.token_env):
            raise ValueError(f"tenant {self.name!r}: give exactly one of token_sha256 and token_env")
        if self.token_sha256 and not _DIGEST.fullmatch(self.token_sha256):
            raise ValueError(f"tenant {self.name!r}: token_sha256 must be 64 hexadecimal digits")
        return self

    def digest(self) -> str:
        """sha256 of the key. Raises ConfigError for an empty variable."""
        if self.token_sha256:
            return self.token_sha256
        key = os.environ.get(self.token_env, "")
        if not key:
            raise ConfigError(f"tenants: {variable_name(self.token_env)} is empty; put {self.name}'s key into it")
        return key_digest(key)


class ServiceLimitsConfig(Config):
    """Limits of the service."""

    slots: int = Field(default=16, ge=1)
    """Answers that are sampled at the same time, by each replica."""
    pass_tokens: int = Field(default=512, ge=1)
    """Tokens of the rows of one training pass; a longer row has a pass of its own."""
    resident_models: int = Field(default=64, ge=1)
    """Models in memory; others wait on the disk."""
    max_body: int = Field(default=32 << 20, ge=1024)
    """Longest body, bytes."""
    poll_s: float = Field(default=25.0, gt=0, le=40)
    """Seconds for which a call for a result is held until there is one."""
    keep_results_s: float = Field(default=86_400.0, gt=0)
    """Seconds for which results can be fetched again."""


class ServiceRunConfig(Config):
    """The table `[run]` of `hone train`, as far as a service has it."""

    ranks: int = Field(default=1, ge=1)
    """Processes that share the rows of every pass, with the bits of one; the base is held by each."""
    patience_s: float = Field(default=120.0, gt=0)
    """Longest wait for another rank, seconds; afterwards this process goes on alone."""

    @model_validator(mode="before")
    @classmethod
    def _other_keys(cls, given: object) -> object:
        if isinstance(given, Mapping) and (others := [f"run.{key}" for key in given if key in _NOT_SERVED]):
            raise ValueError(f"{', '.join(others)}: a service shares out whole rows of float32 on CPUs; leave it out")
        return given


class TrainingServiceConfig(Config):
    """A training service."""

    folder: str = Field(default="training_service", min_length=1)
    """Where it keeps models, checkpoints and its ledger."""
    seed: int = Field(default=0, ge=0)
    """Seed of samples that name none."""
    threads: int = Field(default=1, ge=1)
    """Threads of a product."""
    runner: Literal["auto", "native", "torch"] = "auto"
    """The sampler: compiled code, which packs the base a second time, or torch, which reads the trainer's weights and
    gives log-probabilities of a forward pass to the bit; `auto`: compiled code where it can be built."""
    model: ServedBaseConfig
    """The base."""
    run: ServiceRunConfig = ServiceRunConfig()
    """Ranks of the trainer."""
    cluster: ClusterConfig | None = None
    """A Ray cluster for replicas that sample (`[cluster.rollout]`) and for ranks (`[cluster.learner]`), with the keys
    of `hone train`; absent: this process samples, and ranks are child processes."""
    limits: ServiceLimitsConfig = ServiceLimitsConfig()
    """Limits."""
    tenants: list[TenantConfig] = Field(default_factory=list[TenantConfig])
    """Teams; empty: everybody on this machine is one tenant, and others are not served."""

    @model_validator(mode="after")
    def _names_differ(self) -> "TrainingServiceConfig":
        names = [one.name for one in self.tenants]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"tenants: {', '.join(doubled)} stands twice; names are unique")
        return self

    @model_validator(mode="after")
    def _ranks_fit(self) -> "TrainingServiceConfig":
        faults = list[str]()
        if self.model.whole and self.run.ranks > 1:
            faults.append("run.ranks with model.whole: all weights are trained in one process; leave one of them out")
        if self.cluster is not None:
            faults += _cluster_faults(self.cluster, self.run)
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def names(self) -> list[str]:
        """Names of the base for clients."""
        return self.model.names or [self.model.path]


def _cluster_faults(cluster: ClusterConfig, run: ServiceRunConfig) -> list[str]:
    faults = list[str]()
    if cluster.learner is not None and run.ranks == 1:
        faults.append("cluster.learner places the ranks of the trainer: give run.ranks of 2 or more, or leave it out")
    for table, place in (("learner", cluster.learner), ("rollout", cluster.rollout)):
        if place is not None and place.gpus:
            faults.append(f"cluster.{table}.gpus: the service computes on CPUs; leave it out")
    if cluster.rollout.mixed:
        faults.append("cluster.rollout.mixed: answers of a service have the same bits from every replica; leave it out")
    return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A tenant behind a request."""

    tenant: str
    scopes: frozenset[str]
    max_models: int = 1 << 30
    max_waiting: int = 1 << 30


class TenantKeys:
    """Tenants by the sha256 of their keys: how long a look-up takes tells nothing of a key."""

    def __init__(self, tenants: Sequence[TenantConfig]) -> None:
        """Raises ConfigError with every tenant whose key is missing, and for a key that two have."""
        self._callers: dict[str, Caller] = {}
        for one in tenants:
            digest = one.digest()
            if digest in self._callers:
                raise ConfigError(f"tenants: {one.name} and {self._callers[digest].tenant} have the same key")
            self._callers[digest] = Caller(
                tenant=one.name, scopes=frozenset(one.scopes), max_models=one.max_models, max_waiting=one.max_waiting
            )

    @property
    def open(self) -> bool:
        """Whether everybody is one tenant."""
        return not self._callers

    def caller(self, key: str) -> Caller | None:
        """The tenant of a key; None for an unknown one."""
        if not self._callers:
            return Caller(tenant=LOCAL, scopes=frozenset(ALL_SCOPES))
        return self._callers.get(key_digest(key))


def key_digest(key: str) -> str:
    """sha256 of a key."""
    return hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()
