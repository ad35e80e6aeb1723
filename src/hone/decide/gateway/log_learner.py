"""The learner of a log: of all gateways on it one learns, from the records of all, and each serves what it publishes.

A lease in the log says which gateway learns; another one takes it when it was not renewed for ten seconds, or at once
when the learner's process is known to be dead. What is learnt is a function of the log's records in their order, so it
does not matter which gateway decided, or which one learns. The learner saves each version, and once a minute a
checkpoint, beside the log and under its lease: a learner that was stopped for longer than its lease saves nothing.

A gateway alone on its log is its own learner. Its records follow each other there, so they are learnt from as they are
acknowledged; where another writer's stand between them, the log is read.

A checkpoint is the exact state of every learner and of the joins that are open, after the records up to a position. The
decisions that are open stand in the log, and are found there by their ids. A checkpoint and the records after it give
the state of the whole log, to the bit. An erasure deletes the checkpoint and ends the lease: the log is read anew.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Decision, DecisionRecord
from hone.core.errors import DataError, HoneError
from hone.core.state import State, array, integer, substate
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import policy_bytes, policy_from_bytes, policy_hash
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.gateway.log_writer import LoggedBatch
from hone.decide.gateway.online_policies import (
    OnlineJoinCounts,
    OnlineJoiner,
    OnlinePolicies,
    PolicyWrapper,
    RewardQuantiles,
    TenantLearning,
)
from hone.decide.gateway.service_config import LearningServiceConfig, ServiceFileConfig, TrafficServiceConfig
from hone.decide.log.protocol import CHECKPOINT, DecisionLog, LearnerLease
from hone.decide.monitor.continual import VersionTraffic, WindowEnsemble
from hone.run.store.codec import state_bytes, state_from_bytes

LEASE_S: Final = 10.0
"""Length of a lease; a learner on another host that was killed is replaced after as long."""
LOOK_S: Final = 0.1
"""Seconds between two looks of a gateway that does not learn, for versions and for the learner's end."""
_RENEWALS: Final = 3
"""Times that a lease is renewed within its length."""
CHECKPOINT_S: Final = 60.0
"""Seconds between two checkpoints."""
_CHECKPOINT_RECORDS: Final = 50_000
"""Records between two checkpoints, where that many come within a minute."""
_STEP_S: Final = 0.02
"""Longest time that a request waits for a learner that has much to read; it reads on at the next one."""
_PAGE: Final = 500
"""Records that are read at a time."""


@dataclass(slots=True, eq=False, kw_only=True)
class LogLearner:
    """Learner of a service, or one of those that wait to be.

    Where the log is on a server, which may not answer, it looks at the log on a thread: no request waits for that. A
    log in a file is looked at where it is ticked.
    """

    log: DecisionLog
    policies: OnlinePolicies
    config: ServiceFileConfig
    source: str
    """Name of this gateway among them."""
    schema: str
    """Hash of the names of the features."""
    clock: Clock
    tell: Callable[[str, str], None]
    apart: bool = False
    """Look at the log on a thread."""
    versions: Mapping[str, BanditPolicy] = field(default_factory=dict[str, BanditPolicy])
    """Versions that `kind = "traffic"` divides the decisions between."""
    lease: LearnerLease | None = None
    """None: another gateway learns."""
    position: int = 0
    """Records up to this position were learnt from."""
    records: int = 0
    """Records that were learnt from here, since the lease was taken."""
    _behind: bool = False
    """There may be more to read than one page; nothing is published before its end."""
    _leader: str = ""
    """Holder of the lease when it was last asked for."""
    _renew_s: float = float("-inf")
    _look_s: float = float("-inf")
    _checkpoint_s: float = 0.0
    _checkpointed: tuple[int, int] = (0, 0)
    """`position` and `records` at the last checkpoint."""
    _published: dict[str, str] = field(default_factory=dict[str, str])
    """Version of each tenant that this learner saved."""
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    """Number of each saved version that was loaded."""
    _contents: list[str] = field(default_factory=list[str])
    """Names and hashes of `versions`."""
    _fault: str = ""
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "learner"))
    _writing: Future[None] | None = None
    _looking: Future[None] | None = None
    _closing: bool = False
    _busy: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever learns."""

    @property
    def work(self) -> str:
        """Hash of everything in the service file that learning depends on: gateways with an equal one share a
        learner."""
        service, policy = self.config.service, self.config.policy
        later = {"windows"} if isinstance(policy, LearningServiceConfig) and policy.windows is None else None
        """A key that came later is left out where it is unset: an older hone's checkpoint is that of an equal file."""
        learns_by = (policy.model_dump_json(exclude=later), self.config.join.model_dump_json(), service.features,
                     service.actions, service.action_features, service.tenants,
                     *self._contents)  # fmt: skip
        return sha256(repr(learns_by).encode()).hexdigest()

    @property
    def holder(self) -> str:
        """Name of this gateway, and its process, as holder of the lease."""
        return f"{self.source}@{process_mark()}"

    @property
    def clipped(self) -> int:
        """Rewards that count as a bound of theirs, of all tenants."""
        learnt = [one.learning for one in self.policies.tenants.values() if one.learning is not None]
        return sum(one.joiner.counts.clipped + (one.quantiles.clipped if one.quantiles else 0) for one in learnt)

    @property
    def shares(self) -> Iterator[tuple[tuple[str, str], float]]:
        """Share of each part of the policy, a window or a version, by tenant and part; on the gateway that learns."""
        for tenant, serving in self.policies.tenants.items():
            if serving.learning is not None:
                yield from (((tenant, part), share) for part, share in serving.learning.learner.shares.items())

    @property
    def learns(self) -> bool:
        """False for a policy that does not learn while it serves."""
        return self.config.policy.learns

    def start(self) -> None:
        """Learn from the log as far as it goes, or load the versions of the gateway that does. Raises as the log."""
        if not self.learns:
            return
        self._contents = [f"{name} {policy_hash(one)}" for name, one in self.versions.items()]
        self._renew(wholly=True)
        if self.lease is None:
            self._load_versions()

    def took(self, batch: LoggedBatch, *, wait: bool = True) -> None:
        """Learn from records that the log took, and from those of others before them; unless `wait`, a look that is
        under way, or the next one, reads them. A gateway that does not learn looks for versions, if it is time."""
        if self.lease is None:
            if self.clock.monotonic_s() >= self._look_s:
                self.tick()
            return
        if not self._busy.acquire(blocking=wait):
            return
        try:
            self._take(batch)
        finally:
            self._busy.release()

    def _take(self, batch: LoggedBatch) -> None:
        ack = batch.ack
        if self.lease is None or not ack.stored:
            return
        if not self._behind and ack.stored == len(batch.records) and ack.after == self.position:
            for record in batch.records:
                self._learn(record, publish=True)
            self.position = ack.position
            return
        try:
            self._read_on()
        except (HoneError, OSError) as error:
            self.tell("learner_waits", f"the log cannot be read ({error!s:.200}); its records are learnt from later")

    def tick(self) -> None:
        """Do what is due: renew or take the lease, read what others logged, load versions, save a checkpoint."""
        if not self.learns:
            return
        self._look_s = self.clock.monotonic_s() + LOOK_S
        if not self.apart:
            self._look()
        elif self._looking is None or self._looking.done():
            if self._looking is not None and (error := self._looking.exception()) is not None:
                self.tell("learner_waits", f"a look at the log failed: {type(error).__name__}: {error!s:.200}")
            self._looking = self._thread.submit(self._look_until_level)

    def _look_until_level(self) -> None:
        self._look()
        while self._behind and self.lease is not None and not self._closing:
            self._look()

    def _look(self) -> None:
        with self._busy:
            self._look_at_log()

    def _look_at_log(self) -> None:
        try:
            self._keep()
            if self.lease is None:
                self._load_versions()
            else:
                self._read_on()
            self._fault = ""
        except (HoneError, OSError) as error:
            if self._fault != str(error):  # an obstacle that stays is told once
                self._fault = str(error)
                self.tell("learner_waits", f"{error!s:.200}; the present versions go on")

    def close(self) -> None:
        """Save a checkpoint and give the lease back."""
        self._closing = True
        self._thread.shutdown(wait=True)
        if self.lease is not None and self._checkpointed[0] != self.position:
            self._write(self._state())
        if self.lease is not None:
            lease, self.lease = self.lease, None
            try:
                self.log.give_lease_back(lease)
            except (HoneError, OSError) as error:
                self.tell("learner_waits", f"the lease ends by itself in {LEASE_S:g} s: {error!s:.200}")

    # ------------------------------------------------------------------------------------------ lease

    def _keep(self) -> None:
        """Renew the lease, or ask for it, and save a checkpoint, if it is time."""
        if self.clock.monotonic_s() >= self._renew_s or (self.lease is None and self._is_over(self._leader)):
            self._renew()
        due = self.clock.monotonic_s() >= self._checkpoint_s
        due |= self.records - self._checkpointed[1] >= _CHECKPOINT_RECORDS
        idle = self._writing is None or self._writing.done()
        if self.lease is not None and due and idle and self._checkpointed[0] != self.position:
            self._save_checkpoint()

    def _renew(self, *, wholly: bool = False) -> None:
        """Renew the lease, or take it if it is free; begin or end to learn where it has changed hands."""
        self._renew_s = self.clock.monotonic_s() + LEASE_S / _RENEWALS
        epoch = 0 if self.lease is None else self.lease.epoch
        take = partial(self.log.take_lease, self.work, self.holder, lease_s=LEASE_S, epoch=epoch)
        lease = take(now_s=self.clock.now_s())
        if self._is_over(lease.holder):  # of this epoch only: without effect if another gateway was faster
            self.log.give_lease_back(lease)
            lease = take(now_s=self.clock.now_s())
        self._leader = lease.holder
        if lease.holder != self.holder:
            if self.lease is not None or wholly:
                self._follow(lease)
            return
        taken = lease.epoch != epoch
        self.lease = lease
        if taken:
            if not wholly:
                self.tell("learner", f"this gateway learns from now on (epoch {lease.epoch})")
            self._begin()
            self._read_on(wholly=wholly)

    def _is_over(self, holder: str) -> bool:
        """True if the process of a holder is known to be dead: another one of this gateway, whose folder is locked by
        this one, or one of this host that is not there."""
        source, _, mark = holder.rpartition("@")
        return holder != self.holder and (self.source in {source, holder} or is_dead(mark))

    def _follow(self, lease: LearnerLease) -> None:
        self.lease = None
        for serving in self.policies.tenants.values():
            serving.learning = None
        self.tell(
            "learner",
            f"the gateway {lease.holder.partition('@')[0]} learns (epoch {lease.epoch}); this one serves its versions",
        )

    def _begin(self) -> None:
        """Take up the last checkpoint, or nothing."""
        self._forget()
        self._published.clear()
        self._behind, self._checkpoint_s = True, self.clock.monotonic_s() + CHECKPOINT_S
        saved = self.log.learnt(self.work, {CHECKPOINT: 0}).get(CHECKPOINT)
        if saved is not None:
            try:
                self._restore(state_from_bytes(np.frombuffer(saved.body, np.uint8)))
            except (DataError, KeyError) as error:
                self.tell("learning_unreadable", f"the checkpoint of the learner: {error}; the whole log is read")
                self._forget()
        self._checkpointed = self.position, 0

    def _forget(self) -> None:
        self.position = self.records = 0
        for serving in self.policies.tenants.values():
            serving.learning = new_learning(self.config, self.versions, self.policies.wrap)

    # ------------------------------------------------------------------------------------------ learning

    def _read_on(self, *, wholly: bool = False) -> None:
        """Learn from the log's next records: all of them if `wholly`, else for a moment."""
        end_s = self.clock.monotonic_s() + _STEP_S
        while True:
            self._keep()
            if self.lease is None:
                return
            page = self.log.read(self.position, _PAGE)
            last = len(page) < _PAGE
            for logged in page:
                self._learn(logged.record, publish=last and not self._behind)
                self.position = logged.position
            if last and self._behind:
                self._behind = False
                for tenant in self.policies.tenants:
                    self._publish(tenant)
            if last:
                return
            self._behind = True
            if not wholly and self.clock.monotonic_s() >= end_s:
                return

    def _learn(self, record: DecisionRecord, *, publish: bool) -> None:
        """Learn from one record; one of another tenant, or with features that mean something else, teaches nothing."""
        self.records += 1
        serving = self.policies.tenants.get(record.tenant)
        if serving is None or (learning := serving.learning) is None:
            return
        if isinstance(record, Decision):
            if record.schema != self.schema:
                return
            joined = learning.joiner.close_windows(record.at_s) + learning.joiner.decided(record)
            learning.last = record
        else:
            key = record.tenant, record.decision_id
            joined = learning.joiner.rewarded(key, record.value, record.kind, record.at_s)
        for one in learning.settled(joined):
            try:
                learning.learn(one.decision, one.reward)
            except (HoneError, ArithmeticError, ValueError) as error:  # the log's next records are learnt from
                self.tell("not_learnt", f"decision {one.decision.id!r:.60} of tenant {record.tenant!r}: {error}")
        if publish and learning.unpublished >= learning.publish_every:
            self._publish(record.tenant)

    def _publish(self, tenant: str) -> None:
        """Save and serve a snapshot of a tenant's learner; where that fails, the present version stays."""
        serving = self.policies.tenants[tenant]
        if serving.learning is None or self.lease is None:
            return
        serving.learning.unpublished = 0
        try:
            snapshot = serving.learning.learner.snapshot()
            fault = _fault_of(snapshot, serving.learning)
            name = "" if fault else self.policies.shelf.put(snapshot)
            if name and self._published.get(tenant) != name:
                fault = self._save({_version_name(tenant): policy_bytes(snapshot)})
            if not fault:
                self._published[tenant] = name
                self.policies.serve(tenant, name, snapshot)
        except (HoneError, OSError, ValueError) as error:
            fault = f"{type(error).__name__}: {error!s:.120}"
        if fault:
            self.tell("snapshot_refused", f"tenant {tenant!r}: {fault}; version {serving.live.name} stays")

    def _save(self, states: Mapping[str, bytes]) -> str:
        """Save states under the lease -> why not; empty: they are saved."""
        assert self.lease is not None
        try:
            if self.log.save_learnt(self.lease, states, now_s=self.clock.now_s()):
                return ""
        except (HoneError, OSError) as error:
            return f"{error!s:.200}"
        self._renew_s = float("-inf")
        return f"the lease of epoch {self.lease.epoch} has run out"

    def _load_versions(self) -> None:
        """Serve the versions that the learner published since the last call."""
        names = {_version_name(tenant): tenant for tenant in self.policies.tenants}
        wanted = {name: self._numbers.get(name, 0) for name in names}
        for name, saved in self.log.learnt(self.work, wanted).items():
            self._numbers[name] = saved.number
            policy = policy_from_bytes(saved.body, f"{name} of the learner")
            self.policies.serve(names[name], self.policies.shelf.put(policy), policy)

    # ------------------------------------------------------------------------------------------ checkpoints

    def _save_checkpoint(self) -> None:
        """Copy the state, and save it on a thread."""
        self._checkpoint_s = self.clock.monotonic_s() + CHECKPOINT_S
        self._checkpointed = self.position, self.records
        self._writing = self._thread.submit(self._write, self._state())

    def _state(self) -> State:
        tenants: State = {
            name: _learning_state(serving.learning)
            for name, serving in self.policies.tenants.items() if serving.learning is not None
        }  # fmt: skip
        return {"position": str(self.position), "tenants": tenants}  # a position of Redis is wider than 64 bits

    def _write(self, state: State) -> None:
        if fault := self._save({CHECKPOINT: state_bytes(state).tobytes()}):
            self.tell("learning_unsaved", f"{fault}; the next start reads more")

    def _restore(self, state: State) -> None:
        """Take up a checkpoint. Raises DataError for a state of another model, and as the log."""
        tenants = substate(state, "tenants")
        for tenant in tenants:
            learning, saved = self.policies.tenants[tenant].learning, substate(tenants, tenant)
            if learning is None:
                raise DataError(f"tenant {tenant!r} does not learn")
            names, last = [cast("list[str]", saved[name]) for name in ("open", "waiting")], str(saved["last"])
            known = self.log.find(tenant, ids=[*names[0], *names[1], *([last] if last else [])]).decisions
            learning.learner.restore(substate(saved, "learner"))
            _restore_rewards(learning, saved, tenant, known)
            learning.last, learning.unpublished = known.get(last), integer(saved, "unpublished")
        self.position = int(str(state["position"]))


def new_learning(
    config: ServiceFileConfig, versions: Mapping[str, BanditPolicy], wrap: PolicyWrapper
) -> TenantLearning | None:
    """Learning of one tenant that has learnt nothing; None if the service's policy does not learn. `versions`: those of
    `kind = "traffic"`."""
    policy, service = config.policy, config.service
    actions = ActionSet(names=() if service.action_features else tuple(service.actions))
    joiner = OnlineJoiner(config.join)
    if isinstance(policy, TrafficServiceConfig):
        traffic = VersionTraffic(versions, actions, floor=policy.share_floor, spread=policy.spread, wrap=wrap)
        return TenantLearning(learner=traffic, joiner=joiner, publish_every=policy.publish_every)
    if not isinstance(policy, LearningServiceConfig):
        return None

    def bandit(discount: float) -> BanditLearner:
        model = policy.reward_model(len(actions), len(service.features), len(service.action_features), discount)
        return BanditLearner(EpsilonFloor(policy.policy_of(model), policy.floor), model, actions)

    learner = bandit(policy.discount)
    if (windows := policy.windows) is not None:
        memories = {str(one) if one else "all": bandit(1.0 - 1.0 / one if one else 1.0) for one in windows.lengths}
        learner = WindowEnsemble(memories, rate=windows.rate, share=windows.share)
    low, high = policy.reward_quantiles or (0.0, 1.0)
    return TenantLearning(
        learner=learner, joiner=joiner, publish_every=policy.publish_every,
        quantiles=RewardQuantiles(low, high, config.join.default) if policy.reward_quantiles else None,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ processes


def process_mark(pid: int = 0) -> str:
    """`HOST-PID` of a process, this one by default, by which others see that it is dead.

    HOST is a hash of the host's name, its boot, and the namespace that numbers of processes have a meaning in, so that
    containers are hosts of their own; empty without `/proc` (macOS).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        numbers = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return f"-{pid or os.getpid()}"
    host = sha256(f"{socket.gethostname()} {boot} {numbers}".encode()).hexdigest()[:12]
    return f"{host}-{pid or os.getpid()}"


def is_dead(mark: str) -> bool:
    """True if the process with a mark is of this host and has ended; False if it lives, or nothing is known of it."""
    host, _, pid = mark.partition("-")
    if not host or host != process_mark().partition("-")[0]:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    return False


def _fault_of(policy: BanditPolicy, learning: TenantLearning) -> str:
    """What is wrong with a policy's distribution in the latest context; empty: nothing."""
    if learning.last is None:
        return ""
    actions = learning.last.actions
    try:
        logp = policy.logp(learning.last.context, learning.learner.actions if actions.features is None else actions)
    except Exception as error:  # noqa: BLE001 - a snapshot that raises is not published
        return f"{type(error).__name__}: {error!s:.120}"
    total = float(np.exp(logp).sum())
    return "" if abs(total - 1.0) <= LOGP_TOLERANCE else f"its probabilities sum to {total:.6g}"


def _version_name(tenant: str) -> str:
    return f"version {tenant}"


def _learning_state(learning: TenantLearning) -> State:
    """The learner, and its joins: open decisions by their ids, with the reward so far (NaN: none)."""
    joiner = learning.joiner
    held = [(key[1], value) for key, value in joiner.open_values()]
    early = [(key[1], value, at_s) for key, waiting in joiner.early_rewards() for value, at_s in waiting]
    counts, quantiles = joiner.counts, learning.quantiles
    waiting = [] if quantiles is None else quantiles.waiting
    return {
        "learner": _copied(learning.learner.state()),
        "open": [one for one, _ in held],
        "values": np.array([np.nan if value is None else value for _, value in held], np.float64),
        "early": [one for one, _, _ in early],
        "early_rewards": np.array([(value, at_s) for _, value, at_s in early], np.float64).reshape(-1, 2),
        "counts": list(astuple(counts)),
        "rewards": np.array([] if quantiles is None else quantiles.values, np.float64),
        "clipped": 0 if quantiles is None else quantiles.clipped,
        "waiting": [one.decision.id for one in waiting],
        "waiting_rewards": np.array([one.reward for one in waiting], np.float64),
        "last": "" if learning.last is None else learning.last.id,
        "unpublished": learning.unpublished,
    }


def _copied(state: State) -> State:
    """The state with arrays of its own."""
    return {
        name: _copied(one) if isinstance(one, dict) else one.copy() if isinstance(one, np.ndarray) else one
        for name, one in state.items()
    }


def _restore_rewards(learning: TenantLearning, saved: State, tenant: str, known: Mapping[str, Decision | None]) -> None:
    """Take up joins and rewards that wait; a decision whose content moved to an archive is left out."""
    joiner, quantiles = learning.joiner, learning.quantiles
    for name, value in _pairs(saved, "open", "values"):
        if (decision := known.get(name)) is not None:
            joiner.reopen(decision, None if np.isnan(value) else value)
    rewards = array(saved, "early_rewards").astype(np.float64)
    for name, (value, at_s) in zip(cast("list[str]", saved["early"]), rewards, strict=True):
        joiner.wait_again((tenant, name), float(value), float(at_s))
    joiner.counts = OnlineJoinCounts(*cast("list[int]", saved["counts"]))
    if quantiles is not None:
        quantiles.values.extend(array(saved, "rewards").tolist())
        quantiles.clipped = integer(saved, "clipped")
        for name, value in _pairs(saved, "waiting", "waiting_rewards"):
            if (decision := known.get(name)) is not None:
                quantiles.again(decision, value)


def _pairs(saved: State, names: str, values: str) -> list[tuple[str, float]]:
    return list(zip(cast("list[str]", saved[names]), array(saved, values).tolist(), strict=True))
