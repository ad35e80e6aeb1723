"""The versions that serve each tenant, and the state of their learning from rewards as they are joined.

Each tenant has a learner of its own: nobody's rewards change the decisions of another. A snapshot of the learner is
published every `publish_every` rewards, as a version named by its content; the one before stays as the last good one.
Windows close as decisions arrive, not by time alone, so that a restart learns the same.

Rewards joined to recent decisions as they arrive, for learning while serving. Pure: a test drives it with a clock.

The log's view (`hone log --view`) joins exactly and for ever; this one holds a bounded number of decisions in memory. A
reward for a decision that is no longer held is in the log, is counted here, and is learnt from the next view.
"""

import math
import shutil
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from hone.core.clock import Clock
from hone.core.decisions import Choice, Decision, DecisionPolicy, DecisionRecord
from hone.core.errors import DataError
from hone.decide.bandits.learning import OnlineLearner
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import load_policy, policy_hash, save_policy
from hone.decide.gateway.fallback_chain import FallbackChain, ServingVersion
from hone.decide.gateway.shipped_versions import ShippedVersions
from hone.decide.joins.view import JoinConfig

# -------------------------------------------------------------------------------------------------------- online joiner


_MOST_EARLY: Final = 10_000
"""Decisions that rewards wait for."""
_MOST_EARLY_EACH: Final = 16
JoinKey = tuple[str, str]
"""Tenant and decision id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedReward:
    """A decision and its final reward."""

    decision: Decision
    reward: float


@dataclass(slots=True, eq=False)
class _OpenDecision:
    decision: Decision
    value: float | None = None


@dataclass(slots=True)
class OnlineJoinCounts:
    """Counts since the joiner began."""

    joined: int = 0
    defaulted: int = 0
    evicted: int = 0
    """Decisions that left before their window closed, as too many were open."""
    early: int = 0
    """Rewards that came before their decision."""
    late: int = 0
    """Rewards after the window, or for a decision that is already learnt from or no longer held."""
    refused: int = 0
    """Rewards beyond the declared range that are left out."""
    clipped: int = 0
    """Rewards beyond the declared range, or beyond the quantiles of the others, that count as the nearest bound."""


@dataclass(slots=True)
class OnlineJoiner:
    """Decisions whose window is open."""

    rules: JoinConfig
    most_open: int = 50_000
    """Decisions held at most; the oldest leaves first, and is counted."""
    counts: OnlineJoinCounts = field(default_factory=OnlineJoinCounts)
    _open: OrderedDict[JoinKey, _OpenDecision] = field(default_factory=OrderedDict)
    _early: OrderedDict[JoinKey, list[tuple[float, float]]] = field(default_factory=OrderedDict)

    def decided(self, decision: Decision) -> list[JoinedReward]:
        """Open the window of a decision; rewards that came before it count now. The finished joins."""
        key = decision.tenant, decision.id
        self._open[key] = _OpenDecision(decision)
        done: list[JoinedReward] = []
        for value, at_s in self._early.pop(key, ()):
            done += self._taken(key, value, at_s)
        while len(self._open) > self.most_open:
            self._open.popitem(last=False)
            self.counts.evicted += 1
        return done

    def holds(self, tenant: str, decision_id: str) -> bool:
        """True if the decision's window is open here."""
        return (tenant, decision_id) in self._open

    def rewarded(self, key: JoinKey, value: float, kind: str, at_s: float) -> list[JoinedReward]:
        """Take a reward; the join that it finishes, if any."""
        if kind != self.rules.kind:
            return []
        if (accepted := self.rules.accepted(value)) is None:
            self.counts.refused += 1
            return []
        self.counts.clipped += accepted != value
        value = accepted
        if key not in self._open:
            self._wait(key, value, at_s)
            return []
        return self._taken(key, value, at_s)

    def close_windows(self, now_s: float) -> list[JoinedReward]:
        """The joins of decisions whose window has closed by `now_s`."""
        done: list[JoinedReward] = []
        while self._open:
            key, oldest = next(iter(self._open.items()))
            if oldest.decision.at_s + self.rules.window_s > now_s:
                break
            del self._open[key]
            done += self._closed(oldest)
        return done

    def open_values(self) -> Iterator[tuple[JoinKey, float | None]]:
        """Open decisions in their order, each with its reward so far."""
        return ((key, one.value) for key, one in self._open.items())

    def unrewarded(self) -> Iterator[Decision]:
        """Open decisions without a reward so far, in their order."""
        return (one.decision for one in self._open.values() if one.value is None)

    def early_rewards(self) -> Iterator[tuple[JoinKey, list[tuple[float, float]]]]:
        """Decisions that rewards wait for, in their order, each with values and times."""
        return iter(self._early.items())

    def reopen(self, decision: Decision, value: float | None) -> None:
        """Take up an open decision of a checkpoint, in the order of `open_values`."""
        self._open[decision.tenant, decision.id] = _OpenDecision(decision, value)

    def wait_again(self, key: JoinKey, value: float, at_s: float) -> None:
        """Take up a reward that waits, in the order of `early_rewards`."""
        self._early.setdefault(key, []).append((value, at_s))

    def _taken(self, key: JoinKey, value: float, at_s: float) -> list[JoinedReward]:
        held = self._open.get(key)
        if held is None or at_s > held.decision.at_s + self.rules.window_s:
            self.counts.late += 1
            return []
        if self.rules.rule == "first":
            del self._open[key]
            self.counts.joined += 1
            return [JoinedReward(decision=held.decision, reward=value)]
        if held.value is None or self.rules.rule == "last":
            held.value = value
        else:
            held.value = held.value + value if self.rules.rule == "sum" else max(held.value, value)
        return []

    def _closed(self, held: _OpenDecision) -> Iterator[JoinedReward]:
        if held.value is not None:
            self.counts.joined += 1
            yield JoinedReward(decision=held.decision, reward=held.value)
        else:
            self.counts.defaulted += 1
            yield JoinedReward(decision=held.decision, reward=self.rules.default)

    def _wait(self, key: JoinKey, value: float, at_s: float) -> None:
        """Keep a reward whose decision was not seen: it may come, or have left."""
        waiting = self._early.setdefault(key, [])
        if len(waiting) < _MOST_EARLY_EACH:
            self.counts.early += 1
            waiting.append((value, at_s))
        while len(self._early) > min(self.most_open, _MOST_EARLY):
            self._early.popitem(last=False)
            self.counts.late += 1


# ----------------------------------------------------------------------------------------------------- reward quantiles


_LATEST: Final = 1000
_FIRST: Final = 100


@dataclass(slots=True)
class RewardQuantiles:
    """Bounds of rewards from their own quantiles, so that one that is far beyond all others teaches no more than they.

    The bounds are order statistics of the latest 1,000 rewards that differ from `default` (where most decisions have no
    outcome, quantiles of all would clip every outcome). The first 100 wait until their bounds are known.
    """

    low: float
    """Level of the lower quantile, in [0, 1]."""
    high: float
    default: float
    values: deque[float] = field(default_factory=lambda: deque[float](maxlen=_LATEST))
    waiting: list[JoinedReward] = field(default_factory=list[JoinedReward])
    """The first rewards, as long as they are too few."""
    clipped: int = 0

    def taken(self, joined: JoinedReward) -> list[JoinedReward]:
        """Rewards to learn from now, clipped: this one, none, or all that waited."""
        if joined.reward == self.default:
            return [joined]
        first = len(self.values) < _FIRST
        if first:
            self.waiting.append(joined)
            self.values.append(joined.reward)
            if len(self.values) < _FIRST:
                return []
        low, high = self._bounds()
        due, self.waiting = (self.waiting, []) if first else ([joined], [])
        done: list[JoinedReward] = []
        for one in due:
            reward = min(max(one.reward, low), high)
            self.clipped += reward != one.reward
            done.append(JoinedReward(decision=one.decision, reward=reward))
        if not first:
            self.values.append(joined.reward)
        return done

    def again(self, decision: Decision, reward: float) -> None:
        """Take up a reward of a checkpoint that waits."""
        self.waiting.append(JoinedReward(decision=decision, reward=reward))

    def _bounds(self) -> tuple[float, float]:
        ordered, last = sorted(self.values), len(self.values) - 1
        return ordered[math.ceil(self.low * last)], ordered[math.floor(self.high * last)]


# -------------------------------------------------------------------------------------------------------- version shelf


_DIGITS: Final = 16
"""Digits of the hash in a version's name."""


class VersionShelf:
    """Folder of versions. A version is whole or not there: it is written beside its place, and renamed.

    A version behind a shield is named `HASH+SHIELD`: the shield is part of its distribution, not of its folder.
    """

    def __init__(self, folder: Path, shield: str = "") -> None:
        self._folder = folder
        self._suffix = f"+{shield}" if shield else ""

    def named(self, name: str) -> str:
        """The name of a version behind the service's shield."""
        return name + self._suffix

    def put(self, policy: BanditPolicy) -> str:
        """Keep a policy; -> the name of its version. One that is there already is left as it is."""
        name = policy_hash(policy)[:_DIGITS]
        place = self._folder / name
        if not place.is_dir():
            beside = self._folder / f".{name}.new"
            shutil.rmtree(beside, ignore_errors=True)
            save_policy(policy, beside)
            beside.rename(place)
        return self.named(name)

    def get(self, version: str) -> BanditPolicy:
        """The policy of a version. Raises DataError for one that is not kept, or damaged."""
        name, _, shield = version.partition("+")
        if shield != self._suffix.removeprefix("+"):
            raise DataError(f"version {version!r:.60} was served behind another shield than {self._suffix or 'none'}")
        if not name.isalnum() or not (self._folder / name).is_dir():
            raise DataError(f"version {version!r:.60} is not kept in {self._folder}")
        return load_policy(self._folder / name)


def folder_version(folder: Path) -> str:
    """Name of a version whose policy is kept in a folder of its own: a hash of the files there."""
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:_DIGITS]


# ------------------------------------------------------------------------------------------------------ online policies


PolicyWrapper: TypeAlias = Callable[[DecisionPolicy], DecisionPolicy]
"""Adds what every version has: names of actions, a shield."""


@dataclass(slots=True, eq=False, kw_only=True)
class TenantLearning:
    """Learner of one tenant, and the joins that it learns from."""

    learner: OnlineLearner
    joiner: OnlineJoiner
    publish_every: int
    quantiles: RewardQuantiles | None = None
    """Bounds that are learnt from the rewards; None: those of `[join]` alone."""
    unpublished: int = 0
    """Rewards that no published version has learnt from."""
    last: Decision | None = None
    """Latest decision: a snapshot must give its actions a distribution before it is published."""

    def settled(self, joined: Sequence[JoinedReward]) -> list[JoinedReward]:
        """Joined rewards as they are to be learnt from, those included that waited for their bounds."""
        if self.quantiles is None:
            return list(joined)
        return [one for each in joined for one in self.quantiles.taken(each)]

    def learn(self, decision: Decision, reward: float) -> None:
        """Learn from a joined reward. Raises DataError for a decision that the model has no room for."""
        self.unpublished += 1
        self.learner.learn(decision, reward)


@dataclass(slots=True, eq=False, kw_only=True)
class TenantServing:
    """Versions of one tenant."""

    live: ServingVersion
    chain: FallbackChain
    learning: TenantLearning | None = None

    def serve(self, version: ServingVersion, default: ServingVersion, clock: Clock) -> None:
        """Let another version answer; the present one becomes the last good one."""
        previous, self.live = self.live, version
        self.chain = FallbackChain((version, previous, default), clock)


@dataclass(slots=True, eq=False, kw_only=True)
class OnlinePolicies:
    """Serving and learning of all tenants."""

    tenants: Mapping[str, TenantServing]
    default: ServingVersion
    """The safe default, with its wrappers."""
    wrap: PolicyWrapper
    clock: Clock
    shelf: VersionShelf
    shipped: ShippedVersions | None = None
    """Versions of the registry, and the units that they serve; None: no rollout."""

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

    def serve(self, tenant: str, name: str, policy: BanditPolicy) -> None:
        """Serve a version; the one before stays as the last good one."""
        serving = self.tenants[tenant]
        if name != serving.live.name:
            serving.serve(ServingVersion(name=name, policy=self.wrap(policy)), self.default, self.clock)

    def observe(self, record: DecisionRecord) -> None:
        """Nothing: the learner reads the log."""
        del record

    def tick(self, now_s: float) -> None:
        """Open versions that rollouts are about to serve."""
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
