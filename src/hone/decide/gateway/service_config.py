"""The service file: `[service] [policy] [log] [features] [join] [rollout] [monitor] [shield]`, every table optional.

Belongs here: the tables of the gateway itself, the kinds of `[policy]`, and the file as a whole. The
other tables' classes live with the parts that they configure.
"""

import re
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from hone.core.config import Config
from hone.decide.bandits.greedy import (
    BoltzmannPolicy,
    EpsilonGreedyPolicy,
    LinUcbPolicy,
    SquareCbPolicy,
    thompson_policy,
)
from hone.decide.bandits.models import BanditModel, JointLinearPosterior, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.gateway.access import AccessScope
from hone.decide.gateway.feature_store import FeaturesTableConfig
from hone.decide.joins.view import JoinConfig
from hone.decide.monitor.config import MonitorConfig
from hone.decide.rollout.plan import StagedRolloutConfig
from hone.decide.shield.service import ShieldConfig

# -------------------------------------------------------------------------------------------------------- policy config


class UniformServiceConfig(Config):
    """Every action with equal probability: the first data of a new service."""

    needs_actions: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    kind: Literal["uniform"] = "uniform"
    """Names this alternative."""


class FolderServiceConfig(Config):
    """A saved policy: a bandit's folder, or the checkpoint of a run. It does not learn while it serves."""

    needs_actions: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    kind: Literal["folder"]
    """Names this alternative."""
    path: str = Field(min_length=1)
    """The folder, or a run's name."""
    floor: float = Field(default=0.02, ge=0, le=1)
    """Probability of a uniform action; 0: the policy as it is."""
    guard: bool = True
    """Let it act on a thread of its own, so that a late answer falls back at the deadline."""


class TrafficServiceConfig(Config):
    """Traffic between versions of a policy by a bandit: each has the share with which it is the best, and a floor."""

    needs_actions: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    kind: Literal["traffic"]
    """Names this alternative."""
    versions: dict[str, str] = Field(min_length=2)
    """Folder of each version by its name, from the service file: a bandit's, saved by a run, a service or Python."""
    share_floor: float = Field(default=0.1, gt=0, le=1)
    """Share of the decisions that is divided evenly, whatever the rewards say."""
    spread: float = Field(default=1.0, gt=0)
    """Standard deviation of a version's mean reward before any reward has come."""
    floor: float = Field(default=0.02, ge=0, le=1)
    """Probability of a uniform action, in every version; 0: the versions as they are."""
    publish_every: int = Field(default=100, ge=1)
    """Rewards between two published mixtures."""


class WindowsConfig(Config):
    """Time windows of an ensemble: a learner for each, mixed by how well they predict the rewards of late."""

    lengths: list[int] = Field(min_length=2)
    """Lengths in rewards, of which each weighs 1 - 1 / length of the one after it; 0: nothing is forgotten."""
    rate: float = Field(default=2.0, gt=0)
    """Speed of the weights: a squared error of e more multiplies a window's weight by exp(-rate e)."""
    share: float = Field(default=0.01, gt=0, lt=1)
    """Part of all weight that each reward spreads evenly, so that a window can come back."""

    @field_validator("lengths")
    @classmethod
    def _distinct_lengths(cls, lengths: list[int]) -> list[int]:
        if len(set(lengths)) < len(lengths) or any(one < 2 and one != 0 for one in lengths):
            raise ValueError(f"needs different windows of 2 rewards or more, or 0 for all, got {lengths}")
        return lengths


class LearningServiceConfig(Config):
    """What all learning policies have: a linear model of each action's reward, and a floor."""

    needs_actions: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    floor: float = Field(default=0.02, gt=0, le=1)
    """Probability of a uniform action: without it no other policy can be estimated from the log."""
    noise: float = Field(default=1.0, gt=0)
    """Standard deviation of a reward around its mean."""
    prior_precision: float = Field(default=1.0, gt=0)
    """Strength of the ridge penalty."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Weight of old rewards at each new one; below 1 the policy follows drift."""
    publish_every: int = Field(default=100, ge=1)
    """Rewards between two published versions."""
    reward_quantiles: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """Rewards beyond these quantiles of the latest 1,000 are learnt as the quantile, `[0.01, 0.99]` say; those that
    equal `[join] default` are left out of the quantiles. None: no such bound."""
    windows: WindowsConfig | None = None
    """Learners over several time windows, mixed by weights, in place of `discount`; None: one learner."""

    @field_validator("reward_quantiles")
    @classmethod
    def _ascending(cls, levels: list[float] | None) -> list[float] | None:
        if levels is not None and not 0.0 <= levels[0] < levels[1] <= 1.0:
            raise ValueError(f"needs two levels from 0 to 1, the lower one first, got {levels[0]:g} and {levels[1]:g}")
        return levels

    @model_validator(mode="after")
    def _one_memory(self) -> "LearningServiceConfig":
        if self.windows is not None and self.discount < 1.0:
            raise ValueError(f"[policy.windows] has the memories of its learners: leave out discount {self.discount:g}")
        return self

    def reward_model(self, arms: int, features: int, action_features: int, discount: float) -> BanditModel:
        """The model: joint over the features of actions where there are some, else one for each of `arms` actions."""
        noise, precision = self.noise, self.prior_precision
        if action_features:
            return JointLinearPosterior(
                features, action_features, noise=noise, prior_precision=precision, discount=discount
            )
        return LinearGaussianPosterior(
            arms, features, intercept=True, noise=noise, prior_precision=precision, discount=discount
        )

    @abstractmethod
    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """The policy without its floor."""


class LinUcbServiceConfig(LearningServiceConfig):
    """LinUCB: optimism in the face of uncertainty (Li et al., 2010)."""

    kind: Literal["linucb"]
    """Names this alternative."""
    alpha: float = Field(default=1.0, ge=0)
    """Width of the confidence bound, in standard deviations."""

    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """LinUCB over a model."""
        return LinUcbPolicy(model, self.alpha)


class ThompsonServiceConfig(LearningServiceConfig):
    """Thompson sampling, its probabilities by quadrature."""

    kind: Literal["thompson"]
    """Names this alternative."""

    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """Thompson sampling over a model."""
        return thompson_policy(model)


class EpsilonGreedyServiceConfig(LearningServiceConfig):
    """Epsilon-greedy."""

    kind: Literal["epsilon_greedy"]
    """Names this alternative."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Probability of a uniform action, beside the floor."""

    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """Epsilon-greedy over a model."""
        return EpsilonGreedyPolicy(model, self.epsilon)


class BoltzmannServiceConfig(LearningServiceConfig):
    """Boltzmann exploration: softmax of the expected rewards."""

    kind: Literal["boltzmann"]
    """Names this alternative."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature, in units of the reward."""

    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """Softmax over a model."""
        return BoltzmannPolicy(model, self.temperature)


class SquareCbServiceConfig(LearningServiceConfig):
    """SquareCB: inverse gap weighting (Foster and Rakhlin, 2020)."""

    kind: Literal["squarecb"]
    """Names this alternative."""
    gamma_scale: float = Field(default=10.0, gt=0)
    """Scale of the learning rate."""
    gamma_exponent: float = Field(default=0.5, ge=0)
    """Power of the number of rewards in the learning rate."""

    def policy_of(self, model: BanditModel) -> BanditPolicy:
        """SquareCB over a model."""
        return SquareCbPolicy(model, self.gamma_scale, self.gamma_exponent)


ServicePolicy: TypeAlias = (
    UniformServiceConfig
    | FolderServiceConfig
    | TrafficServiceConfig
    | LinUcbServiceConfig
    | ThompsonServiceConfig
    | EpsilonGreedyServiceConfig
    | BoltzmannServiceConfig
    | SquareCbServiceConfig
)


# ------------------------------------------------------------------------------------------------------- service config


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
    token_file: str = ""
    """File that holds its token, in place of `token_env`; SIGHUP reads it again. A path from the service file."""
    token_sha256: str = ""
    """sha256 of its token, in hexadecimal, in place of `token_env`."""
    scopes: list[AccessScope] = Field(default=["decide", "reward"], min_length=1)
    """Things it may do: `decide`, `reward`, `features` (put them), `read` (metrics), `ship`, `administer`."""

    @model_validator(mode="after")
    def _check(self) -> "ClientConfig":
        if sum(map(bool, (self.token_env, self.token_file, self.token_sha256))) != 1:
            raise ValueError("give exactly one of token_env, token_file and token_sha256")
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
    min_confidence: float = Field(default=0.0, ge=0, lt=1)
    """Where a version's likeliest action is less likely than this, the safe action is taken; 0: no such rule."""
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
    """Latest requests whose answer is kept in memory for a repetition; older ones are read from the log."""
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
    password_env: str = ""
    """Environment variable that holds the server's password, so that this file holds none."""
    durable: Literal["before", "after"] = "before"
    """`before`: a record is in the log before its request is answered. `after`: behind it; a kill loses what waits."""
    buffer: int = Field(default=10_000, ge=1)
    """Records that may wait, of `after`; a full buffer refuses requests (503)."""
    full_sync: bool = False
    """Flush each commit of a file, so that it survives a loss of power too."""


class OlderSchemaConfig(Config):
    """Names of the numbers that robots with older firmware send: stored, and left out of learning."""

    observation: list[str] = Field(min_length=1)
    """Numbers of an observation, in order."""
    action: list[str] = Field(min_length=1)
    """Numbers of an action, in order."""
    choices: int = Field(default=0, ge=0)
    """Numbered actions; 0: a box."""


class FleetTableConfig(Config):
    """A fleet of robots: they decide elsewhere, and send their steps. The service then answers no decisions."""

    observation: list[str] = Field(min_length=1)
    """Numbers of an observation, in order."""
    action: list[str] = Field(min_length=1)
    """Numbers of an action, in order."""
    choices: int = Field(default=0, ge=0)
    """Numbered actions 0 .. choices - 1, of which `action` names the single number; 0: the action is a box."""
    older: list[OlderSchemaConfig] = []
    """Schemas of older firmware that are still taken; any other one is refused, and its difference named."""
    tokens: bool = False
    """Robots show their token, and check signatures; needed where other machines reach the service."""
    trial_episodes: int = Field(default=5, ge=1)
    """Episodes that a robot may run by a version on trial without word from the service."""
    clock_slack_s: float = Field(default=300.0, ge=0)
    """Seconds that a robot's clock may be ahead before it is told."""
    max_body_bytes: int = Field(default=4 << 20, ge=1024)
    """Longest body of an upload."""
    learner: str = ""
    """Run of the learner, a folder from the service file, for the page; empty: none."""

    @model_validator(mode="after")
    def _check(self) -> "FleetTableConfig":
        for name, numbers in (("observation", self.observation), ("action", self.action)):
            twice = sorted({one for one in numbers if numbers.count(one) > 1})
            if twice:
                raise ValueError(f"{name} names {', '.join(map(repr, twice))} twice")
        if self.choices and len(self.action) != 1:
            raise ValueError(f"choices = {self.choices} needs one number in action, got {len(self.action)}")
        return self


class ServiceFileConfig(Config):
    """A service file."""

    service: ServiceTableConfig = ServiceTableConfig()
    """The service."""
    policy: Annotated[ServicePolicy, Field(discriminator="kind")] = UniformServiceConfig()
    """The policy, and how it learns."""
    log: LogTableConfig = LogTableConfig()
    """The decision log."""
    features: FeaturesTableConfig | None = None
    """Features from a store; without the table requests send all of them."""
    join: JoinConfig = JoinConfig()
    """How outcomes become rewards."""
    rollout: StagedRolloutConfig = StagedRolloutConfig()
    """Rollouts of new versions, begun by `hone ship`."""
    monitor: MonitorConfig | None = None
    """Watching for drift; without the table nothing is watched."""
    shield: ShieldConfig | None = None
    """Actions that are safe; without the table all are."""
    fleet: FleetTableConfig | None = None
    """Robots that decide by themselves; without the table the service decides."""

    @model_validator(mode="after")
    def _check(self) -> "ServiceFileConfig":
        if self.policy.needs_actions and not self.service.actions and not self.service.action_features:
            raise ValueError(
                f'kind = "{self.policy.kind}" learns the rewards of actions: give [service] actions, or action_features'
            )
        others = [name for name in ("policy", "features", "monitor", "shield") if name in self.model_fields_set]
        if self.fleet is not None and others:
            raise ValueError(f"a [fleet] decides elsewhere: leave out {', '.join(f'[{name}]' for name in others)}")
        if self.features is not None:
            faults = self.features.faults(self.service.features, self.service.deadline_s)
            if faults:
                raise ValueError("; ".join(faults))
        return self
