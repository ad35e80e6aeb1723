"""From a service file to a running service: its folder, log, policies, learners and monitor.

FOLDER/            beside the file, named by the service
  lock             held by the process that serves
  instance         name of this gateway as the writer of records
  decisions.db     the log, unless it is on a server
  versions/HASH/   every published version
  issued/          numbers given out, of `durable = "after"`
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np

from hone.config.resolve import ResolvedConfig, load
from hone.core.clock import Clock
from hone.core.decisions import (
    ActionSet,
    ActionShield,
    Choice,
    Decision,
    DecisionPolicy,
    DecisionRecord,
    Floats,
    draw_action,
    is_shadow_kind,
    logp_each,
)
from hone.core.errors import ConfigError, DataError, ErrorCollector, HoneError, ResourceError, variable_name
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import open_decision_policy, policy_hash
from hone.decide.bandits.wrappers import EpsilonFloor, Fallback, Shielded
from hone.decide.gateway.access import AccessList, ServiceClient, token_digest
from hone.decide.gateway.fallback_chain import FallbackChain, GuardedPolicy, SafeDefault, ServingVersion, ShadowAsker
from hone.decide.gateway.feature_join import FeatureJoin
from hone.decide.gateway.feature_opening import open_feature_store
from hone.decide.gateway.feature_store import FeaturesTableConfig
from hone.decide.gateway.log_learner import LogLearner, new_learning
from hone.decide.gateway.log_writer import LogWriter, SequenceNumbers, WriteAfter, WriteBefore
from hone.decide.gateway.online_policies import (
    OnlinePolicies,
    PolicyWrapper,
    TenantServing,
    VersionShelf,
    folder_version,
)
from hone.decide.gateway.requests import (
    ActionCatalogue,
    ActionInput,
    ContextInput,
    Decided,
    FeatureSchema,
    RecentRequests,
    Rewarded,
)
from hone.decide.gateway.service import (
    DecisionService,
    FaultLines,
    RecordListener,
    ServiceParts,
    ServiceRules,
)
from hone.decide.gateway.service_config import (
    ClientConfig,
    FolderServiceConfig,
    LogTableConfig,
    ServiceFileConfig,
    ServiceTableConfig,
    TrafficServiceConfig,
)
from hone.decide.gateway.shipped_versions import RolloutListener, ShippedVersions
from hone.decide.joins.join import build_view
from hone.decide.joins.view import DecisionView
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog, LoggedRecord
from hone.decide.monitor.alarms import AlarmLog
from hone.decide.monitor.monitor import ServiceMonitor, resident_bytes
from hone.decide.monitor.response import DriftAction, DriftResponder, RegistryLibrary
from hone.decide.monitor.retraining import JobQueue
from hone.decide.registry import VersionRegistry
from hone.decide.shield.guard import GuardedShield
from hone.run.store.folder import RunLock

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


# ------------------------------------------------------------------------------------------------------------- assembly


def make_catalogue(service: ServiceTableConfig) -> ActionCatalogue:
    """The actions that requests may offer."""
    features = FeatureSchema(service.action_features, "features") if service.action_features else None
    return ActionCatalogue(service.actions if features is None else (), features)


def open_access(resolved: ResolvedConfig[ServiceFileConfig], beside: Path) -> AccessList:
    """The clients with the digests of their tokens; files of tokens are named from the folder `beside`.
    Raises ConfigError for every token that is not there."""
    faults = ErrorCollector(ConfigError)
    clients: list[ServiceClient] = []
    for place, client in enumerate(resolved.config.service.clients):
        try:
            digest = _digest(beside, client)
        except ConfigError as error:
            key = "token_file" if client.token_file else "token_env"
            origin = resolved.origins.get(f"service.clients.{place}.{key}", "[service]")
            faults.add(f"{origin}: client {client.name!r}: {error}")
            continue
        scopes = frozenset(client.scopes)
        clients.append(ServiceClient(name=client.name, tenant=client.tenant, token_sha256=digest, scopes=scopes))
    faults.raise_if_any()
    return AccessList(clients)


def _digest(beside: Path, client: ClientConfig) -> str:
    """sha256 of a client's token. Raises ConfigError where it is not there."""
    if client.token_sha256:
        return client.token_sha256
    if client.token_env:
        return token_digest(_secret_of(client.token_env))
    try:
        token = (beside / client.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {client.token_file} cannot be read: {type(error).__name__}") from None
    if not token:
        raise ConfigError(f"token_file {client.token_file} is empty: write the token into it")
    return token_digest(token)


def _secret_of(variable: str) -> str:
    """Value of an environment variable. Raises ConfigError where it is not set, or empty."""
    value = os.environ.get(variable, "")
    if not value:
        raise ConfigError(f"the environment variable {variable_name(variable)} is not set")
    return value


def open_versions(resolved: ResolvedConfig[ServiceFileConfig], beside: Path) -> dict[str, BanditPolicy]:
    """The versions that `kind = "traffic"` divides the decisions between, from the folder `beside`; else none.

    Raises DataError with a line for each that cannot be opened, that cannot be saved in a mixture (a network), or that
    does not decide by the service's features among its actions.
    """
    config, faults, versions = resolved.config, ErrorCollector(DataError), dict[str, BanditPolicy]()
    if not isinstance(config.policy, TrafficServiceConfig):
        return versions
    declared, place = make_catalogue(config.service).declared, np.zeros(len(config.service.features))
    for name, path in config.policy.versions.items():
        try:
            saved = open_decision_policy(beside / path)
            versions[name] = EpsilonFloor(saved, config.policy.floor) if config.policy.floor else saved
            policy_hash(saved)
            if declared is not None:
                saved.logp(place, declared)
        except (HoneError, ValueError, IndexError) as error:
            key = f"policy.versions.{name}"
            faults.add(f"{resolved.origins.get(key, '[policy.versions]')}: version {name!r:.60}, {path}: {error}")
    faults.raise_if_any()
    return versions


def _make_policies(
    beside: Path,
    folder: Path,
    config: ServiceFileConfig,
    versions: Mapping[str, BanditPolicy],
    clock: Clock,
    lines: FaultLines,
) -> OnlinePolicies:
    """The policies of every tenant; `beside` is the folder that relative paths start from."""
    service, policy = config.service, config.policy
    declared = make_catalogue(service).declared
    shield = _open_shield(beside, config, clock)
    wrap = partial(_wrapped, declared, shield, service)
    name = ""
    if config.shield is not None and shield is not None:  # the certificate, or the hash of the rules
        name = (shield.certificate or sha256(config.shield.model_dump_json().encode()).hexdigest())[:8]
    if service.min_confidence:  # another rule is another version
        rule = f"{name} {service.min_confidence} {service.safe_action}"
        name = sha256(rule.encode()).hexdigest()[:8]
    shelf = VersionShelf(folder / "versions", name)
    safe = SafeDefault(service.safe_action)
    live = default = ServingVersion(
        name=shelf.named(safe.version), policy=safe if shield is None else Shielded(safe, shield)
    )
    if isinstance(policy, FolderServiceConfig):
        live = saved_version(policy, beside, shelf, wrap, clock)
    elif (learning := new_learning(config, versions, wrap)) is not None:
        prior = learning.learner.snapshot()
        live = ServingVersion(name=shelf.put(prior), policy=wrap(prior))
    shipped = ShippedVersions(
        folder=folder / config.rollout.registry, service=folder.name, layer=config.rollout.layer or folder.name,
        wrap=wrap, clock=clock, tell=partial(_told, lines),
    )  # fmt: skip
    shipped.prepare()
    tenants = {
        tenant: TenantServing(live=live, chain=FallbackChain((live, default), clock)) for tenant in service.tenants
    }
    return OnlinePolicies(tenants=tenants, default=default, wrap=wrap, clock=clock, shelf=shelf, shipped=shipped)


def make_wrapper(beside: Path, config: ServiceFileConfig, clock: Clock) -> PolicyWrapper:
    """Wrapper of every version of a service: names of actions, shield. Raises as `ShieldConfig.open`."""
    declared = make_catalogue(config.service).declared
    return partial(_wrapped, declared, _open_shield(beside, config, clock), config.service)


def _open_shield(beside: Path, config: ServiceFileConfig, clock: Clock) -> GuardedShield | None:
    service = config.service
    declared = make_catalogue(service).declared
    if config.shield is None:
        return None
    return config.shield.open(beside, service.features, clock, actions=declared)


def saved_version(
    policy: FolderServiceConfig, beside: Path, shelf: VersionShelf, wrap: PolicyWrapper, clock: Clock
) -> ServingVersion:
    """The version of a saved policy, from the folder `beside` that holds the service file. Raises DataError."""
    saved = open_decision_policy(beside / policy.path)
    floored = EpsilonFloor(saved, policy.floor) if policy.floor else saved
    wrapped = wrap(floored)
    guard = GuardedPolicy(wrapped, clock).start() if policy.guard else None
    try:
        name = shelf.put(floored)
    except DataError:  # a network is kept by its own folder, the run's
        name = shelf.named(f"{folder_version(beside / policy.path)}f{policy.floor:g}")
    return ServingVersion(name=name, policy=wrapped, guard=guard)


def _told(lines: FaultLines, code: str, words: str) -> None:
    lines.fault(code, words, {})


def _wrapped(
    declared: ActionSet | None, shield: ActionShield | None, service: ServiceTableConfig, policy: DecisionPolicy
) -> DecisionPolicy:
    """The policy over the names of actions, with the safe action where it is not confident, behind the shield."""
    named = policy if declared is None else _NamedArms(policy, declared)
    if service.min_confidence:
        named = Fallback(named, SafeDefault(service.safe_action), min_confidence=service.min_confidence)
    return named if shield is None else Shielded(named, shield)


# ---------------------------------------------------------------------------------------------------------- drift watch
# The monitor of a service, and the answers to drift: a line, a recall in the registry, or a job that retrains.
#
# A recall makes an older version of the registry live again; the router reads it within a second. A service that learns
# while it serves has no versions there: it retrains, or tells.


class _ShippedLibrary:
    """Older versions of a registry that may come later: none before the first rollout."""

    def __init__(self, folder: Path, service: str, load: Callable[[Path], DecisionPolicy]) -> None:
        self._folder = folder
        self._library = RegistryLibrary(VersionRegistry(folder), service, load)

    def older(self, tenant: str) -> Sequence[str]:
        """Versions that were live before the present one."""
        return self._library.older(tenant) if (self._folder / "registry.db").is_file() else ()

    def policy(self, version: str) -> DecisionPolicy:
        """Open a version. Raises DataError for a damaged one."""
        return self._library.policy(version)


@dataclass(slots=True, eq=False, kw_only=True)
class _DriftWatch:
    """Listener of a service's records that answers drift."""

    monitor: ServiceMonitor
    responder: DriftResponder
    registry: Path
    service: str
    jobs: Path
    """File of the queue of retraining jobs."""
    tell: Callable[[str, str], None]

    def observe(self, record: DecisionRecord) -> None:
        """Read a record."""
        self.monitor.observe(record)

    def tick(self, now_s: float) -> None:
        """Look for silent tenants, and answer drift; what fails is told and tried at the next alarm."""
        self.monitor.tick(now_s)
        try:
            for tenant in self.responder.changed_tenants():
                if self.jobs.exists() and JobQueue(self.jobs).drop(tenant, reason="superseded by a later alarm"):
                    self.tell("drift", f"tenant {tenant}: an unfinished retraining is dropped; the world changed again")
            for action in self.responder.step(self.monitor, now_s):
                self._answer(action, now_s)
        except HoneError as error:
            self.tell("drift_unanswered", str(error))

    def _answer(self, action: DriftAction, now_s: float) -> None:
        self.tell("drift", action.line())
        if action.kind == "recall":
            registry = VersionRegistry(self.registry)
            registry.add_evidence(action.version, action.evidence)
            words = action.evidence.words
            registry.recall(self.service, action.version, at_s=now_s, made_by="monitor", reason=words)
        elif action.kind == "retrain":
            JobQueue(self.jobs).submit_retraining(action, service=self.service, at_s=now_s)


# -------------------------------------------------------------------------------------------------------------- opening


PAGE: Final = 2000
"""Records that are read from the log at a time."""
_NO_STORE: Final = "this service has no feature store: add a [features] table to its file"
MOST_OPEN: Final = 50_000
"""Decisions of a tenant that wait for their reward in memory."""


@dataclass(slots=True, eq=False, kw_only=True)
class OpenedService:
    """A service that decides, and everything that it holds open."""

    service: DecisionService
    policies: OnlinePolicies
    log: DecisionLog
    resolved: ResolvedConfig[ServiceFileConfig]
    folder: Path
    access: AccessList
    clock: Clock
    held: ExitStack
    """Log, lock and threads."""
    monitor: ServiceMonitor | None = None
    rollouts: RolloutListener | None = None
    """Watcher of the service's rollouts; None: `hone ship` watches them."""
    shadows: ShadowAsker | None = None

    @property
    def config(self) -> ServiceFileConfig:
        """The service file."""
        return self.resolved.config

    def decide(
        self,
        unit: str,
        context: ContextInput = None,
        actions: Sequence[ActionInput] | None = None,
        *,
        deadline_s: float | None = None,
        tenant: str = "",
        id: str = "",
    ) -> Decided:
        """Decide for a unit. Raises RequestError for a request that cannot be answered as it stands."""
        name = tenant or self.config.service.tenants[0]
        return self.service.decide(unit, context, actions, deadline_s=deadline_s, tenant=name, id=id)

    def decide_jointly(
        self,
        units: Sequence[str],
        context: ContextInput = None,
        actions: Sequence[ActionInput] | None = None,
        *,
        deadline_s: float | None = None,
        tenant: str = "",
        id: str = "",
    ) -> list[Decided]:
        """Decide once for several units that execute one joint action -> each one's answer. Raises RequestError."""
        name = tenant or self.config.service.tenants[0]
        return self.service.decide_jointly(units, context, actions, deadline_s=deadline_s, tenant=name, id=id)

    def reward(
        self, id: str, value: float, kind: str = "reward", *, at_s: float | None = None, tenant: str = "", key: str = ""
    ) -> Rewarded:
        """Tell an outcome of a decision: now, days later, or twice under one `key`. Raises RequestError."""
        name = tenant or self.config.service.tenants[0]
        return self.service.reward(id, value, kind, at_s=at_s, tenant=name, key=key)

    def put_features(
        self, group: str, rows: Mapping[str, object], *, at_s: float | None = None, tenant: str = ""
    ) -> int:
        """Store features, `{ENTITY: {FEATURE: VALUE, or None to remove it}}` -> rows. Raises RequestError."""
        if (join := self.service.parts.features) is None:
            raise ConfigError(_NO_STORE)
        return join.put(tenant or self.config.service.tenants[0], {"group": group, "rows": rows, "at_s": at_s})

    def replay(self, decision: Decision) -> Choice:
        """Decide a logged decision again, by its version. Raises DataError for a lost version."""
        return self.service.replay(decision)

    def view(self, tenant: str = "", as_of_s: float | None = None) -> DecisionView:
        """The log's decisions with their rewards as known at `as_of_s` (now unless given)."""
        records = (logged.record for logged in pages(self.log))
        moment = self.clock.now_s() if as_of_s is None else as_of_s
        name = tenant or self.config.service.tenants[0]
        return build_view(records, as_of_s=moment, join=self.config.join, tenant=name)

    def close(self) -> None:
        """Write what waits, and give the folder free; a second call has no effect."""
        self.held.close()


def read_service_file(path: Path) -> ResolvedConfig[ServiceFileConfig]:
    """Read and check a service file. Raises ConfigError with all faults, each with its line."""
    return load(ServiceFileConfig, path)


def service_folder(path: Path, config: ServiceFileConfig) -> Path:
    """Folder of the service: beside the file, named by the service or by the file."""
    return path.parent / (config.service.name or path.stem)


def open_service(path: Path, *, clock: Clock, tell: Callable[[str], None]) -> OpenedService:
    """Open the service of a file; `tell` takes log lines. Raises ConfigError, DataError, ResourceError."""
    resolved = read_service_file(path)
    config = resolved.config
    access = open_access(resolved, path.parent)
    versions = open_versions(resolved, path.parent)
    folder = service_folder(path, config)
    folder.mkdir(parents=True, exist_ok=True)
    lines = FaultLines(tell, clock)
    with ExitStack() as opened:
        lock = _locked(folder, clock)
        opened.callback(lock.close)
        log = open_decision_log(log_address(folder, config.log), full_sync=config.log.full_sync)
        opened.callback(log.close)
        policies = _make_policies(path.parent, folder, config, versions, clock, lines)
        watch = _watch(config, folder, policies, lines)
        monitor = None if watch is None else watch.monitor
        rollouts = _rollouts(config, folder, policies, lines)
        if rollouts is not None:
            opened.callback(rollouts.close)
        asker = None
        if (shipped := policies.shipped) is not None:
            asker = ShadowAsker(
                shadow_of=shipped.shadow, versions=shipped.shadows, clock=clock, tell=partial(_told, lines)
            )  # fmt: skip
        listeners = [one for one in (policies, watch, rollouts, asker) if one is not None]
        features = None
        if config.features is not None:
            features = open_features(config, folder, clock, partial(_told, lines))
        parts = _parts(config, folder, log, policies, listeners, lines, features)
        learner = LogLearner(
            log=log, policies=policies, config=config, source=parts.rules.source, schema=parts.schema.hash, clock=clock,
            tell=partial(_told, lines), apart="://" in config.log.address, versions=versions,
        )  # fmt: skip
        parts = replace(parts, learner=learner)
        service = DecisionService(parts)
        opened.callback(service.close)
        learner.start()
        if asker is not None:
            parts.counters.shadows = asker.counts
            opened.callback(asker.start(service.log_shadows).close)
        if monitor is not None:
            monitor.reopen(_unrewarded(log, parts, policies, learner))
        return OpenedService(
            service=service, policies=policies, log=log, resolved=resolved, folder=folder, access=access, clock=clock,
            monitor=monitor, rollouts=rollouts, shadows=asker, held=opened.pop_all(),
        )  # fmt: skip


def log_address(folder: Path, config: LogTableConfig | FeaturesTableConfig) -> str:
    """Address of the log, or of the feature store: a file in the service's folder, or a server's, with its password.
    Raises ConfigError where the variable of the password is not set, and for a second password."""
    if "://" not in config.address:
        return config.address if config.address == ":memory:" else str(folder / config.address)
    if not config.password_env:
        return config.address
    scheme, _, rest = config.address.partition("://")
    user, _, host = rest.rpartition("@")
    if ":" in user:
        table = "features" if isinstance(config, FeaturesTableConfig) else "log"
        raise ConfigError(
            f"{table}.address has a password: leave it out, and keep it in the variable of {table}.password_env"
        )
    return f"{scheme}://{user}:{quote(_secret_of(config.password_env), safe='')}@{host}"


def open_features(
    config: ServiceFileConfig, folder: Path, clock: Clock, tell: Callable[[str, str], None] | None = None
) -> FeatureJoin:
    """The join of a service with its feature store. Raises as `open_feature_store`, and ConfigError without one."""
    if config.features is None:
        raise ConfigError(_NO_STORE)
    store = open_feature_store(log_address(folder, config.features), wait_s=max(1.0, 4 * config.features.deadline_s))
    return FeatureJoin(config.features, config.service.features, store, clock, tell)


def _parts(
    config: ServiceFileConfig,
    folder: Path,
    log: DecisionLog,
    policies: OnlinePolicies,
    listeners: Sequence[RecordListener],
    lines: FaultLines,
    features: FeatureJoin | None,
) -> ServiceParts:
    service, after = config.service, config.log.durable == "after"
    own_places = None if features is None else features.own_places
    instance = folder / "instance"
    if not instance.is_file():
        instance.write_text(uuid.uuid4().hex[:8], encoding="ascii")
    source = f"{folder.name}-{instance.read_text(encoding='ascii')}"
    numbers = SequenceNumbers(partial(_logged, log, source), folder / "issued" if after else None)
    for tenant in service.tenants:
        if lost := numbers.resume(tenant):
            lines.fault("records_lost", f"{lost} records waited when the process was killed", {"tenant": tenant})
    writer: LogWriter = WriteBefore(log, policies.clock)
    if after:
        tell = partial(_told, lines)
        writer = WriteAfter(log, capacity=config.log.buffer, tell=tell, clock=policies.clock).start()
    return ServiceParts(
        rules=ServiceRules(
            source=source, seed=service.seed, tenants=tuple(service.tenants), deadline_s=service.deadline_s,
            join=config.join,
        ),
        schema=FeatureSchema(service.features), catalogue=make_catalogue(service), policies=policies, writer=writer,
        numbers=numbers, recent=RecentRequests(max(service.remember, config.log.buffer if after else 0), own_places),
        clock=policies.clock, lines=lines,
        listeners=tuple(listeners), features=features,
    )  # fmt: skip


def _logged(log: DecisionLog, source: str, tenant: str) -> int:
    """Numbers of this gateway that the log has seen of a tenant."""
    marks = [mark for mark in log.watermarks() if (mark.tenant, mark.source) == (tenant, source)]
    return marks[0].highest + 1 if marks else 0


def _watch(config: ServiceFileConfig, folder: Path, policies: OnlinePolicies, lines: FaultLines) -> _DriftWatch | None:
    if config.monitor is None:
        return None
    registry = folder / config.rollout.registry
    library = _ShippedLibrary(registry, folder.name, lambda path: policies.wrap(open_decision_policy(path)))
    responder = DriftResponder(config.monitor, library, AlarmLog(folder / "alarms.jsonl"))
    names = config.service.features
    monitor = ServiceMonitor(config.monitor, responder, names=names, seed=config.service.seed, memory=resident_bytes)
    return _DriftWatch(
        monitor=monitor, responder=responder, registry=registry, service=folder.name, jobs=folder / "jobs.db",
        tell=partial(_told, lines),
    )  # fmt: skip


def _rollouts(
    config: ServiceFileConfig, folder: Path, policies: OnlinePolicies, lines: FaultLines
) -> RolloutListener | None:
    if not config.rollout.watch:
        return None
    return RolloutListener(
        config=config, service=folder.name, registry=folder / config.rollout.registry, clock=policies.clock,
        log_address=log_address(folder, config.log), tell=partial(_told, lines),
        open_policy=lambda path: policies.wrap(open_decision_policy(path)),
    )  # fmt: skip


def _locked(folder: Path, clock: Clock) -> RunLock:
    try:
        lock = RunLock.acquire(folder / "lock", folder.name)
    except ResourceError as error:
        message = (
            f"service {folder.name} is served by another process ({error}); stop it, or give [service] another name"
        )
        raise ResourceError(message) from None
    lock.write_holder(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(clock.now_s())))
    return lock


def pages(log: DecisionLog, after: int = 0) -> Iterator[LoggedRecord]:
    """Records of a log after a position, in the order of arrival."""
    while page := log.read(after, PAGE):
        yield from page
        after = page[-1].position


def _unrewarded(log: DecisionLog, parts: ServiceParts, policies: OnlinePolicies, learner: LogLearner) -> list[Decision]:
    """The latest decisions without a reward: those that the learner holds or, if another gateway learns or none does,
    those of the log."""
    if learner.lease is not None:
        joiners = [one.learning.joiner for one in policies.tenants.values() if one.learning is not None]
        return [decision for joiner in joiners for decision in joiner.unrewarded()]
    waiting: dict[tuple[str, str], Decision] = {}
    for record in (logged.record for logged in pages(log)):
        if not isinstance(record, Decision):
            if not is_shadow_kind(record.kind):
                waiting.pop((record.tenant, record.decision_id), None)
        elif record.tenant in parts.rules.tenants and record.schema == parts.schema.hash:
            waiting[record.tenant, record.id] = record
            if len(waiting) > MOST_OPEN:
                del waiting[next(iter(waiting))]
    return list(waiting.values())
