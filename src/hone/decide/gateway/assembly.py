"""Parts of a service from its file: clients, actions, policies of every tenant."""

import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np

from hone.config.resolve import ResolvedConfig
from hone.core.clock import Clock
from hone.core.decisions import ActionSet, ActionShield, Choice, DecisionPolicy, Floats, draw_action, logp_each
from hone.core.errors import ConfigError, DataError, ErrorCollector
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.wrappers import EpsilonFloor, Shielded
from hone.decide.evaluate.policies import open_decision_policy
from hone.decide.gateway.access import AccessList, ServiceClient, token_digest
from hone.decide.gateway.counters import FaultLines
from hone.decide.gateway.fallback_chain import ServingVersion
from hone.decide.gateway.guarded_policy import GuardedPolicy
from hone.decide.gateway.online_joiner import OnlineJoiner
from hone.decide.gateway.online_policies import (
    OnlinePolicies,
    PolicyWrapper,
    TenantLearning,
    TenantServing,
    default_version,
    make_serving,
)
from hone.decide.gateway.policy_config import FolderServiceConfig, LearningServiceConfig
from hone.decide.gateway.schemas import ActionCatalogue, FeatureSchema
from hone.decide.gateway.service_config import ClientConfig, ServiceFileConfig, ServiceTableConfig
from hone.decide.gateway.shipped_versions import ShippedVersions
from hone.decide.gateway.version_shelf import VersionShelf, folder_version
from hone.decide.shield.guard import GuardedShield
from hone.decide.shield.service import ShieldConfig, open_shield

# ----------------------------------------------------------------------------------------------------------- named arms


class _NamedArms:
    """Policy over the declared actions, given that the action is on offer: probabilities are renormalised.

    The inner policy tells actions apart by their numbers among the declared ones; a request offers any of them, in any
    order. Where the inner policy gives all its mass to actions that are not on offer, each offered one is equally
    likely.
    """

    def __init__(self, inner: DecisionPolicy, declared: ActionSet) -> None:
        self.inner = inner
        self._declared = declared
        self._places = {name: place for place, name in enumerate(declared.names)}

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[K]` in nats for features `[d]`."""
        if actions is self._declared or actions.names == self._declared.names:
            return self.inner.logp(context, self._declared)
        offered = self.inner.logp(context, self._declared)[self._numbers(actions)]
        greatest = offered.max()
        if greatest == -np.inf:
            return np.full(len(actions), -np.log(len(actions)))
        return offered - greatest - np.log(np.exp(offered - greatest).sum())

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        """Log-probabilities `[n, K]` in nats for features `[n, d]`."""
        if actions.names == self._declared.names:
            return self.inner.logp_rows(contexts, self._declared)
        return logp_each(self, contexts, actions)

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        """Draw an action; the same key draws the same action."""
        if actions is self._declared or actions.names == self._declared.names:
            return self.inner.act(context, self._declared, draw_key)
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        whole = self.inner.act(context, self._declared, draw_key)
        scores = None if whole.scores is None else whole.scores[self._numbers(actions)]
        return Choice(action=action, logp=min(0.0, float(logp[action])), scores=scores)

    def _numbers(self, actions: ActionSet) -> list[int]:
        return [self._places[name] for name in actions.names]


# ---------------------------------------------------------------------------------------------------------- shield name


def _shield_name(config: ShieldConfig | None, shield: GuardedShield | None) -> str:
    """Part of a version's name: eight digits of the certificate, or of the hash of the rules; empty without one."""
    if config is None or shield is None:
        return ""
    return (shield.certificate or sha256(config.model_dump_json().encode()).hexdigest())[:8]


# ------------------------------------------------------------------------------------------------------------- assembly


NO_ACTIONS = ActionSet(names=())


def make_catalogue(service: ServiceTableConfig) -> ActionCatalogue:
    """The actions that requests may offer."""
    features = FeatureSchema(service.action_features, "features") if service.action_features else None
    return ActionCatalogue(service.actions if features is None else (), features)


def open_access(resolved: ResolvedConfig[ServiceFileConfig]) -> AccessList:
    """The clients with the digests of their tokens. Raises ConfigError for every token that is not there."""
    faults = ErrorCollector(ConfigError)
    clients: list[ServiceClient] = []
    for place, client in enumerate(resolved.config.service.clients):
        try:
            digest = _digest(client)
        except KeyError:
            origin = resolved.origins.get(f"service.clients.{place}.token_env", "[service]")
            faults.add(f"{origin}: the environment variable {client.token_env} of client {client.name!r} is not set")
            continue
        scopes = frozenset(client.scopes)
        clients.append(ServiceClient(name=client.name, tenant=client.tenant, token_sha256=digest, scopes=scopes))
    faults.raise_if_any()
    return AccessList(clients)


def _digest(client: ClientConfig) -> str:
    return client.token_sha256 or token_digest(os.environ[client.token_env])


def make_policies(
    beside: Path, folder: Path, config: ServiceFileConfig, clock: Clock, lines: FaultLines
) -> OnlinePolicies:
    """The policies of every tenant; `beside` is the folder that relative paths start from."""
    service = config.service
    declared = make_catalogue(service).declared
    shield = _open_shield(beside, config, clock)
    wrap = partial(_wrapped, declared, shield)
    shelf = VersionShelf(folder / "versions", _shield_name(config.shield, shield))
    default = default_version(service.safe_action, partial(_wrapped, None, shield), shelf)
    make = _server_of(config, declared, beside, shelf, default, wrap, clock)
    tell = partial(_told, lines)
    shipped = ShippedVersions(
        folder=folder / config.rollout.registry, service=folder.name, layer=config.rollout.layer or folder.name,
        wrap=wrap, clock=clock, tell=tell,
    )  # fmt: skip
    shipped.prepare()
    return OnlinePolicies(
        tenants={tenant: make() for tenant in service.tenants}, default=default, wrap=wrap, clock=clock, shelf=shelf,
        tell=tell, shipped=shipped,
    )  # fmt: skip


def make_wrapper(beside: Path, config: ServiceFileConfig, clock: Clock) -> PolicyWrapper:
    """Wrapper of every version of a service: names of actions, shield. Raises as `open_shield`."""
    return partial(_wrapped, make_catalogue(config.service).declared, _open_shield(beside, config, clock))


def _open_shield(beside: Path, config: ServiceFileConfig, clock: Clock) -> GuardedShield | None:
    service = config.service
    declared = make_catalogue(service).declared
    if config.shield is None:
        return None
    return open_shield(config.shield, beside, service.features, clock, actions=declared)


def _server_of(
    config: ServiceFileConfig,
    declared: ActionSet | None,
    beside: Path,
    shelf: VersionShelf,
    default: ServingVersion,
    wrap: PolicyWrapper,
    clock: Clock,
) -> Callable[[], TenantServing]:
    """What makes the serving of one tenant."""
    policy = config.policy
    if isinstance(policy, FolderServiceConfig):
        version = _saved_version(policy, beside, shelf, wrap, clock)
        return lambda: make_serving(version, default, clock)
    if isinstance(policy, LearningServiceConfig):
        return lambda: _learning_serving(config, policy, declared or NO_ACTIONS, shelf, default, wrap, clock)
    return lambda: make_serving(default, default, clock)


def _saved_version(
    policy: FolderServiceConfig, beside: Path, shelf: VersionShelf, wrap: PolicyWrapper, clock: Clock
) -> ServingVersion:
    saved = open_decision_policy(beside / policy.path)
    floored = EpsilonFloor(saved, policy.floor) if policy.floor else saved
    wrapped = wrap(floored)
    guard = GuardedPolicy(wrapped, clock).start() if policy.guard else None
    try:
        name = shelf.put(floored)
    except DataError:  # a network is kept by its own folder, the run's
        name = shelf.named(f"{folder_version(beside / policy.path)}f{policy.floor:g}")
    return ServingVersion(name=name, policy=wrapped, guard=guard)


def _learning_serving(
    config: ServiceFileConfig,
    policy: LearningServiceConfig,
    declared: ActionSet,
    shelf: VersionShelf,
    default: ServingVersion,
    wrap: PolicyWrapper,
    clock: Clock,
) -> TenantServing:
    """Serving by a policy that learns, at first by its prior."""
    service = config.service
    model = policy.reward_model(len(declared), len(service.features), len(service.action_features))
    learner = BanditLearner(EpsilonFloor(policy.policy_of(model), policy.floor), model, declared)
    prior = learner.snapshot()
    serving = make_serving(ServingVersion(name=shelf.put(prior), policy=wrap(prior)), default, clock)
    serving.learning = TenantLearning(
        learner=learner, joiner=OnlineJoiner(config.join), publish_every=policy.publish_every
    )
    return serving


def _told(lines: FaultLines, code: str, words: str) -> None:
    lines.fault(code, words, {})


def _wrapped(declared: ActionSet | None, shield: ActionShield | None, policy: DecisionPolicy) -> DecisionPolicy:
    """The policy over the names of actions, behind the shield."""
    named = policy if declared is None else _NamedArms(policy, declared)
    return named if shield is None else Shielded(named, shield)
