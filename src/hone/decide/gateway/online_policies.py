"""The versions that serve each tenant, and their learning from rewards as they are joined.

Each tenant has a learner of its own: nobody's rewards change the decisions of another. A snapshot of the learner is
published every `publish_every` rewards, as a version named by its content; the one before stays as the last good one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Choice, Decision, DecisionPolicy, DecisionRecord, Floats
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.gateway.fallback_chain import FallbackChain, SafeDefault, ServingVersion
from hone.decide.gateway.online_joiner import JoinedReward, OnlineJoiner
from hone.decide.gateway.shipped_versions import ShippedVersions
from hone.decide.gateway.version_shelf import VersionShelf

PolicyWrapper: TypeAlias = Callable[[DecisionPolicy], DecisionPolicy]
"""Adds what every version has: names of actions, a shield."""


@dataclass(slots=True, eq=False, kw_only=True)
class TenantLearning:
    """Learner of one tenant, and the joins that it learns from."""

    learner: BanditLearner
    joiner: OnlineJoiner
    publish_every: int
    unpublished: int = 0
    """Rewards that no published version has learnt from."""
    last: tuple[Floats, ActionSet] | None = None
    """Latest context and actions: a snapshot must give them a distribution before it is published."""


@dataclass(slots=True, eq=False, kw_only=True)
class TenantServing:
    """Versions of one tenant."""

    live: ServingVersion
    chain: FallbackChain
    learning: TenantLearning | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class OnlinePolicies:
    """Serving and learning of all tenants."""

    tenants: Mapping[str, TenantServing]
    default: ServingVersion
    """The safe default, with its wrappers."""
    wrap: PolicyWrapper
    clock: Clock
    shelf: VersionShelf
    tell: Callable[[str, str], None]
    """Takes the code and the words of a refused snapshot."""
    shipped: ShippedVersions | None = None
    """Versions of the registry, and the units that they serve; None: no rollout."""
    publishing: bool = True
    """False while the log is read again: one version is published at its end."""

    def chain(self, tenant: str, unit: str) -> tuple[FallbackChain, str]:
        """The chain that answers a unit, and the route to log."""
        serving = self.tenants[tenant]
        if self.shipped is None:
            return serving.chain, ""
        route = self.shipped.route(tenant, unit)
        version = self.shipped.version(route.version)
        if version is None:
            return serving.chain, route.label
        return FallbackChain((version, *serving.chain.versions), self.clock), route.label

    def observe(self, record: DecisionRecord) -> None:
        """Learn from a record that was logged."""
        learning = self.tenants[record.tenant].learning
        if learning is None:
            return
        joiner = learning.joiner
        if isinstance(record, Decision):
            joined = joiner.close_windows(record.at_s) + joiner.decided(record)
            learning.last = record.context, record.actions
        else:
            key = record.tenant, record.decision_id
            joined = joiner.rewarded(key, record.value, record.kind, record.at_s)
        if joined:
            self._learn(record.tenant, learning, joined)

    def tick(self, now_s: float) -> None:
        """Open versions that rollouts are about to serve. Windows close as decisions arrive, not by time alone, so
        that a restart learns the same."""
        del now_s
        if self.shipped is not None:
            self.shipped.prepare()

    def replay(self, decision: Decision) -> Choice:
        """The choice that a logged decision's version makes again, to the bit. Raises DataError for a lost version."""
        if decision.version == self.default.name:
            policy = self.default.policy
        else:
            served = [one for serving in self.tenants.values() for one in serving.chain.versions]
            known = next((one.policy for one in served if one.name == decision.version), None)
            shipped = self.shipped.version(decision.version) if known is None and self.shipped is not None else None
            policy = known or (shipped.policy if shipped else self.wrap(self.shelf.get(decision.version)))
        return policy.act(decision.context, decision.actions, decision.draw_key)

    def _learn(self, tenant: str, learning: TenantLearning, joined: Sequence[JoinedReward]) -> None:
        for one in joined:
            decision = one.decision
            numbers = _declared_number(decision, learning.learner.actions)
            action_set = decision.actions if decision.actions.features is not None else None
            learning.learner.observe(
                decision.context[None], np.array([numbers]), np.array([one.reward]), action_set=action_set
            )
        learning.unpublished += len(joined)
        if self.publishing and learning.unpublished >= learning.publish_every:
            self.publish(tenant)

    def publish(self, tenant: str) -> None:
        """Publish a snapshot of a tenant's learner; an unsound one is refused, and the present version stays."""
        serving = self.tenants[tenant]
        learning = serving.learning
        if learning is None:
            return
        learning.unpublished = 0
        snapshot = learning.learner.snapshot()
        if learning.last is not None and (fault := _fault_of(snapshot, *learning.last, learning.learner.actions)):
            self.tell("snapshot_refused", f"tenant {tenant!r}: {fault}; version {serving.live.name} stays")
            return
        name = self.shelf.put(snapshot)
        if name != serving.live.name:
            previous, serving.live = serving.live, ServingVersion(name=name, policy=self.wrap(snapshot))
            serving.chain = FallbackChain((serving.live, previous, self.default), self.clock)


def make_serving(live: ServingVersion, default: ServingVersion, clock: Clock) -> TenantServing:
    """Serving of one tenant by a version, without a last good one yet."""
    return TenantServing(live=live, chain=FallbackChain((live, default), clock))


def default_version(action: str, wrap: PolicyWrapper, shelf: VersionShelf) -> ServingVersion:
    """The safe default as a version."""
    default = SafeDefault(action)
    return ServingVersion(name=shelf.named(default.version), policy=wrap(default))


def _declared_number(decision: Decision, declared: ActionSet) -> int:
    """Number of the executed action for the model: among the declared actions, or, with features, as it stands."""
    if decision.actions.features is not None or decision.actions.names == declared.names:
        return decision.executed
    return declared.names.index(decision.actions.names[decision.executed])


def _fault_of(policy: BanditPolicy, context: Floats, actions: ActionSet, declared: ActionSet) -> str:
    """What is wrong with a policy's distribution in one context; empty: nothing."""
    try:
        logp = policy.logp(context, actions if actions.features is not None else declared)
    except Exception as error:  # noqa: BLE001 - a snapshot that raises is not published
        return f"{type(error).__name__}: {error!s:.120}"
    total = float(np.exp(logp).sum())
    return "" if abs(total - 1.0) <= LOGP_TOLERANCE else f"its probabilities sum to {total:.6g}"
