"""The decision service: decide, log, answer; take rewards, log, learn.

One lock: calls from several threads are answered one after another. Several requests can be answered together, with
one append to the log (`answer_many`): the HTTP server does so with requests that arrive at the same time.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias, cast

from hone.core.clock import Clock
from hone.core.decisions import (
    ActionSet,
    Choice,
    Decision,
    DecisionRecord,
    Outcome,
    ShadowChoice,
    decision_key,
    is_shadow_kind,
)
from hone.decide.gateway.fallback_chain import FallbackChain, ServedChoice
from hone.decide.gateway.feature_join import FeatureJoin, JoinedContext, SplitRequest
from hone.decide.gateway.log_learner import LogLearner
from hone.decide.gateway.log_writer import LoggedBatch, LogWriter, SequenceNumbers
from hone.decide.gateway.requests import (
    DEFAULT_TENANT,
    ActionCatalogue,
    ActionInput,
    ContextInput,
    Decided,
    DecisionRequest,
    FeatureSchema,
    RecentRequests,
    RequestError,
    Rewarded,
    RewardRequest,
    check_number,
    check_text,
    decided_answer,
    joint_requests,
    request_digest,
    shown,
)
from hone.decide.joins.view import JoinConfig
from hone.decide.log.codec import MAX_SEQ
from hone.decide.log.protocol import NameTakenError, RecordClaim
from hone.run.http.listening import SecondsHistogram, metric_lines

# ------------------------------------------------------------------------------------------------------------- counters


_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_MOST_LINES: Final = 20
"""Lines of one fault a minute; more are counted."""
_MOST_VERSIONS: Final = 100
"""Versions that have a counter of their own; older ones are summed."""


class _GatewayCounters:
    """Counts since the service began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.responses: Counter[tuple[str, int]] = Counter()
        self.decisions: Counter[tuple[str, str]] = Counter()
        """By tenant and version."""
        self.rewards: Counter[tuple[str, str]] = Counter()
        """By tenant and status."""
        self.fallbacks: Counter[str] = Counter()
        """By the first word of the reason."""
        self.shadows: Counter[tuple[str, str]] = Counter()
        """Requests that versions in the shadow were to see, by version and result."""
        self.features: Counter[tuple[str, str]] = Counter()
        """Decisions by group of stored features and their state."""
        self.shares: dict[tuple[str, str], float] = {}
        """Shares of the policy's parts, windows or versions, by tenant and part."""
        self.faults: Counter[str] = Counter()
        """Refused requests by code."""
        self.latency = SecondsHistogram(_BOUNDS_S)

    def decided(self, tenant: str, version: str, reason: str) -> None:
        """Count a decision; `reason` is empty unless a fallback answered."""
        with self._lock:
            if (tenant, version) not in self.decisions and len(self.decisions) >= _MOST_VERSIONS:
                self._fold_oldest()
            self.decisions[tenant, version] += 1
            if reason:
                self.fallbacks[reason.partition(":")[0]] += 1

    def _fold_oldest(self) -> None:
        """Add the count of the oldest version to that of its tenant's `older` ones."""
        oldest = next((key for key in self.decisions if key[1] != "older"), None)
        if oldest is not None:
            self.decisions[oldest[0], "older"] += self.decisions.pop(oldest)

    def responded(self, path: str, status: int, seconds: float) -> None:
        """Count a response."""
        with self._lock:
            self.responses[path, status] += 1
            self.latency.add(seconds)

    def text(self, lines: Counter[str], gauges: Sequence[tuple[str, str, float]]) -> str:
        """Prometheus's text format; `lines`: faults by code; `gauges`: name, help and value of what is measured now."""
        with self._lock:
            return "\n".join(self._lines(lines, gauges)) + "\n"

    def _lines(self, lines: Counter[str], gauges: Sequence[tuple[str, str, float]]) -> Iterator[str]:
        families = (
            ("hone_gateway_responses_total", "Responses by path and status.", ("path", "status"), self.responses),
            ("hone_decisions_total", "Decisions by tenant and version.", ("tenant", "version"), self.decisions),
            ("hone_rewards_total", "Rewards by tenant and status.", ("tenant", "status"), self.rewards),
            ("hone_shadow_total", "Requests shown to versions in the shadow.", ("version", "result"), self.shadows),
            ("hone_features_total", "Decisions by group of stored features.", ("group", "state"), self.features),
        )
        for name, words, labels, counter in families:
            yield from metric_lines(name, "counter", words, labels, sorted(counter.copy().items()))
        words = "Share of the decisions of a window or version of the policy."
        yield from metric_lines("hone_policy_share", "gauge", words, ("tenant", "part"), list(self.shares.items()))
        for name, words, label, counted in (
            (
                "hone_fallbacks_total",
                "Decisions that the served policy did not make, by reason.",
                "reason",
                self.fallbacks,
            ),
            ("hone_refused_total", "Refused requests by code.", "code", self.faults),
            ("hone_faults_total", "Log lines of faults by code, those left out included.", "code", lines),
        ):
            values = [((key,), count) for key, count in sorted(counted.items())]
            yield from metric_lines(name, "counter", words, (label,), values)
        for name, words, value in gauges:
            yield from metric_lines(name, "gauge", words, (), [((), value)])
        yield from self.latency.lines("hone_gateway_seconds", "Seconds from a request's first byte to its answer.")


@dataclass(slots=True)
class FaultLines:
    """Log lines of faults as JSON, at most 20 a minute of each code; more are counted in the next line."""

    tell: Callable[[str], None]
    clock: Clock
    counts: Counter[str] = field(default_factory=Counter[str])
    """Faults by code, those without a line included."""
    _told: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
    """Code -> begin of its minute, lines in it."""

    def fault(self, code: str, message: str, fields: Mapping[str, str | int]) -> None:
        """Write a line, unless the code had too many in this minute."""
        self.counts[code] += 1
        now_s = self.clock.monotonic_s()
        began_s, count = self._told.get(code, (now_s, 0))
        suppressed = max(0, count - _MOST_LINES)
        if now_s - began_s >= 60.0:
            began_s, count = now_s, 0
        else:
            suppressed = 0
        self._told[code] = began_s, count + 1
        if count < _MOST_LINES:
            line: dict[str, object] = {
                "at_s": round(self.clock.now_s(), 3),
                "fault": code,
                "message": message,
                **fields,
            }
            if suppressed:
                line["suppressed"] = suppressed
            self.tell(json.dumps(line, ensure_ascii=False))


# -------------------------------------------------------------------------------------------------------------- service


ServiceRequest: TypeAlias = DecisionRequest | RewardRequest
ServiceAnswer: TypeAlias = Decided | Rewarded
TICK_S: Final = 1.0
"""Seconds between two ticks of the listeners."""
_ATTEMPTS: Final = 5
"""Times that a batch is prepared while other gateways take its names."""


class _ServedPolicies(Protocol):
    """The versions in service: which chain of fallbacks answers a unit."""

    def chain(self, tenant: str, unit: str) -> tuple[FallbackChain, str]:
        """The chain, and the route to log."""
        ...

    def replay(self, decision: Decision) -> Choice:
        """The choice that the decision's version makes again."""
        ...


class RecordListener(Protocol):
    """Listener of what was logged: a monitor, a learner. It must be quick, and must not raise."""

    def observe(self, record: DecisionRecord) -> None:
        """Take a record that is in the log, or on its way."""
        ...

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRules:
    """Fixed settings of a service."""

    source: str
    """Name of this gateway as the writer of records."""
    seed: int = 0
    tenants: tuple[str, ...] = (DEFAULT_TENANT,)
    deadline_s: float = 0.05
    max_skew_s: float = 300.0
    """A reward may be so far in the future of the gateway's clock."""
    join: JoinConfig = field(default_factory=JoinConfig)
    """The range that rewards are declared to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParts:
    """Parts of a service; `open_service` makes them from a service file."""

    rules: ServiceRules
    schema: FeatureSchema
    catalogue: ActionCatalogue
    policies: _ServedPolicies
    writer: LogWriter
    numbers: SequenceNumbers
    recent: RecentRequests
    clock: Clock
    lines: FaultLines
    counters: _GatewayCounters = field(default_factory=_GatewayCounters)
    listeners: tuple[RecordListener, ...] = ()
    features: FeatureJoin | None = None
    """None: requests send all features."""
    learner: LogLearner | None = None
    """None: nothing is learnt."""
    new_id: Callable[[], str] = lambda: os.urandom(16).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedAnswer:
    """An answer whose record is not in the log yet."""

    record: DecisionRecord
    answer: ServiceAnswer
    digest: bytes
    name: tuple[str, str, str] | None = None
    """Tenant, kind and text of the name that the caller gave; None: none."""
    key: str = ""
    """Key of a reward."""
    claimed: bool = False
    """The log must not have the name yet."""
    failures: tuple[tuple[str, str], ...] = ()

    def claim(self, place: int) -> RecordClaim:
        """The claim of its name, at a place in a batch."""
        return RecordClaim(place=place, key=self.key, digest=self.digest)


class DecisionService:
    """A service over its parts."""

    def __init__(self, parts: ServiceParts) -> None:
        self.parts = parts
        self._lock = threading.Lock()
        self._next_tick_s = float("-inf")
        self._joint: dict[tuple[str, str], tuple[ServedChoice, str]] = {}
        """Choices and routes of the joint decisions of the batch at hand."""

    def decide(
        self,
        unit: str,
        context: ContextInput = None,
        actions: Sequence[ActionInput] | None = None,
        *,
        deadline_s: float | None = None,
        tenant: str = DEFAULT_TENANT,
        id: str = "",
    ) -> Decided:
        """Decide for a unit. Raises RequestError for a request that cannot be answered as it stands."""
        request = DecisionRequest(
            unit=unit, context=context, actions=actions, id=id, tenant=tenant, deadline_s=deadline_s
        )
        return cast("Decided", _answer_of(self.answer_many([request])[0]))

    def decide_jointly(
        self,
        units: Sequence[str],
        context: ContextInput = None,
        actions: Sequence[ActionInput] | None = None,
        *,
        deadline_s: float | None = None,
        tenant: str = DEFAULT_TENANT,
        id: str = "",
    ) -> list[Decided]:
        """Decide once for several units, that execute one joint action -> the answer of each, in their order.

        The action is drawn once, and every unit's record has its log-probability, which is that of the joint action.
        Raises RequestError; then nothing was decided.
        """
        request = DecisionRequest(
            unit=units[0] if units else "", context=context, actions=actions, id=id or self.parts.new_id(),
            tenant=tenant, deadline_s=deadline_s,
        )  # fmt: skip
        answers = self.answer_many(joint_requests(units, request))
        return [cast("Decided", _answer_of(answer)) for answer in answers]

    def reward(
        self,
        id: str,
        value: float,
        kind: str = "reward",
        *,
        at_s: float | None = None,
        tenant: str = DEFAULT_TENANT,
        key: str = "",
    ) -> Rewarded:
        """Tell an outcome of a decision: now, days later, before the decision is logged. Raises RequestError."""
        request = RewardRequest(id=id, value=value, kind=kind, tenant=tenant, at_s=at_s, key=key)
        return cast("Rewarded", _answer_of(self.answer_many([request])[0]))

    def answer_many(self, requests: Sequence[ServiceRequest]) -> list[ServiceAnswer | RequestError]:
        """Answer requests together, with one append to the log; a fault stands in its request's place."""
        with self._lock:
            if self.parts.clock.monotonic_s() >= self._next_tick_s:
                self._tick()
            return self._answer_all(requests)

    def log_shadows(self, choices: Sequence[tuple[Decision, ShadowChoice]]) -> None:
        """Log choices of versions in the shadow, with one append. Raises RequestError (503)."""
        source, numbers = self.parts.rules.source, self.parts.numbers
        with self._lock:
            outcomes: list[Outcome] = []
            try:
                for decision, choice in choices:
                    outcome = Outcome(
                        decision_id=decision.id, tenant=decision.tenant, kind=choice.kind, value=choice.logp,
                        at_s=self.parts.clock.now_s(), source=source, seq=numbers.take(decision.tenant),
                    )  # fmt: skip
                    outcomes.append(outcome)
            except RequestError:
                numbers.refused(outcomes, source)
                raise
            fault, *_ = self._write(outcomes)
            if fault is not None:
                raise fault
            for outcome in outcomes:
                self._observed(outcome)

    def replay(self, decision: Decision) -> Choice:
        """Decide a logged decision again, by its version: equal to the bit. Raises DataError for a lost version."""
        return self.parts.policies.replay(decision)

    def tick(self) -> None:
        """Do what is due by time; requests do it too, once a second."""
        with self._lock:
            self._tick()

    def counters_text(self, gauges: Sequence[tuple[str, str, float]] = ()) -> str:
        """Prometheus's text."""
        writer = self.parts.writer
        failing = float(writer.failed_s() > float("-inf"))
        own = [
            ("hone_log_waiting", "Records that are not in the log yet.", float(writer.waiting())),
            ("hone_log_failing", "1 if the latest append to the log failed.", failing),
        ]
        if (learner := self.parts.learner) is not None and learner.learns:
            leads = float(learner.lease is not None)
            own.append(("hone_learner", "1 if this gateway learns, 0 if it serves what another one learnt.", leads))
            words = "Rewards that the learner clipped to their range or quantiles."
            own.append(("hone_learner_clipped", words, float(learner.clipped)))
            self.parts.counters.shares = dict(learner.shares)
        if self.parts.features is not None:
            self.parts.counters.features = self.parts.features.counts
        return self.parts.counters.text(self.parts.lines.counts, [*own, *gauges])

    def close(self) -> None:
        """Write the records that wait, learn from them, and let the learner go."""
        self.parts.writer.close()
        self.parts.numbers.close()
        with self._lock:
            self._learn()
        if self.parts.learner is not None:
            self.parts.learner.close()
        if self.parts.features is not None:
            self.parts.features.close()

    # ------------------------------------------------------------------------------------------ parts

    def _tick(self) -> None:
        self._next_tick_s = self.parts.clock.monotonic_s() + TICK_S
        now_s = self.parts.clock.now_s()
        if self.parts.learner is not None:
            self._learn()
            self.parts.learner.tick()
        for listener in self.parts.listeners:
            listener.tick(now_s)

    def _answer_all(self, requests: Sequence[ServiceRequest]) -> list[ServiceAnswer | RequestError]:
        parts = self.parts
        known_tenants = [one for one in requests if one.tenant in parts.rules.tenants]
        if parts.features is not None:
            parts.features.fetch([one for one in known_tenants if isinstance(one, DecisionRequest)])
        for attempt in range(_ATTEMPTS):
            # A log that takes records at once refuses a name that is taken: most are new, and need not be asked for.
            parts.recent.recall(known_tenants, parts.writer.find, names=attempt > 0 or not parts.writer.refuses_names)
            try:
                return self._answer_once(requests)
            except NameTakenError:  # its joins are made again, and counted then
                if parts.features is not None:
                    parts.features.count(logged=False)
        message = (
            f"other gateways took an id or a key of this request {_ATTEMPTS} times: nothing was decided; try again"
        )
        return [RequestError(message, status=503, code="log_unavailable") for _ in requests]

    def _answer_once(self, requests: Sequence[ServiceRequest]) -> list[ServiceAnswer | RequestError]:
        """Answers of a batch. Raises NameTakenError, if another gateway took a name of it; then nothing was logged."""
        self._joint.clear()
        answers: list[ServiceAnswer | RequestError | None] = []
        prepared: list[tuple[int, _PreparedAnswer]] = []
        repeats: dict[int, int] = {}
        fresh: dict[tuple[str, str, str], int] = {}
        for place, request in enumerate(requests):
            try:
                result = self._prepare(request, fresh, prepared)
            except RequestError as fault:
                answers.append(fault)
                continue
            if isinstance(result, _PreparedAnswer):
                if result.name:
                    fresh[result.name] = len(prepared)
                prepared.append((place, result))
                answers.append(None)
            elif isinstance(result, int):
                repeats[place] = result
                answers.append(None)
            else:
                answers.append(result)
        claims = [one.claim(place) for place, (_, one) in enumerate(prepared) if one.claimed]
        fault, refused, known = self._write([one.record for _, one in prepared], claims)
        if self.parts.features is not None:
            self.parts.features.count(logged=fault is None)
        for number, (place, one) in enumerate(prepared):
            refusal = fault or refused.get(_number(one.record))
            answers[place] = refusal or self._finish(one, repeated=number in known)
        for place, first in repeats.items():
            answer = answers[prepared[first][0]]
            if isinstance(answer, Rewarded):
                answer = Rewarded(id=answer.id, status="repeated")
            answers[place] = answer
        return cast("list[ServiceAnswer | RequestError]", answers)

    def _prepare(
        self,
        request: ServiceRequest,
        fresh: dict[tuple[str, str, str], int],
        prepared: Sequence[tuple[int, _PreparedAnswer]],
    ) -> "_PreparedAnswer | ServiceAnswer | int":
        """What a request becomes: a record with its answer, the answer that it got before, or one of this batch."""
        if request.tenant not in self.parts.rules.tenants:
            message = f"no tenant {request.tenant!r:.60} here"
            raise RequestError(message, status=404, code="unknown_tenant", field="tenant")
        if isinstance(request, RewardRequest):
            return self._prepare_reward(request, fresh, prepared)
        check_text(request.unit, "unit")
        split, schema = SplitRequest(request.context), self.parts.schema
        if (features := self.parts.features) is not None:
            split, schema = features.split(request), features.own
        context = schema.read(split.context)
        actions = self.parts.catalogue.read(request.actions)
        digest = request_digest(request.unit, context, actions, split.entities)
        if request.id:
            check_text(request.id, "id")
            known = self.parts.recent.answer(request.tenant, request.id, digest)
            if known is not None:
                return known
            first = fresh.get((request.tenant, "id", request.id))
            if first is not None and prepared[first][1].digest == digest:
                return first
            if first is not None:
                message = f"id {request.id!r:.60} stands twice in one batch, with different requests"
                raise RequestError(message, status=409, code="id_reused", field="id")
        joined = JoinedContext(context=context)
        if features is not None:
            joined = features.join(context, split, self.parts.clock.now_s())
        return self._decide(request, joined, actions, digest)

    def _decide(
        self, request: DecisionRequest, joined: JoinedContext, actions: ActionSet, digest: bytes
    ) -> _PreparedAnswer:
        parts, tenant, context = self.parts, request.tenant, joined.context
        began_s = parts.clock.monotonic_s() - (0.0 if parts.features is None else parts.features.waited_s)
        decision_id = request.id or parts.new_id()
        joint = request.joint
        key = decision_key(parts.rules.seed, tenant, decision_id if joint is None else joint.id)
        if joint is not None and (tenant, joint.id) in self._joint:
            served, route = self._joint[tenant, joint.id]
        else:
            chain, route = parts.policies.chain(tenant, request.unit if joint is None else joint.lead)
            deadline_s = parts.rules.deadline_s if request.deadline_s is None else request.deadline_s
            served = chain.choose(context, actions, key, began_s + deadline_s, joined.hand_over)
            if joint is not None:
                self._joint[tenant, joint.id] = served, route
        choice = served.choice
        decision = Decision(
            id=decision_id, tenant=tenant, unit=request.unit, at_s=parts.clock.now_s(), context=context,
            actions=actions, choice=choice, executed=choice.action, executed_logp=choice.logp, version=served.version,
            route=route, draw_key=key, schema=parts.schema.hash, latency_s=parts.clock.monotonic_s() - began_s,
            entities=joined.entities,
            source=parts.rules.source, seq=parts.numbers.take(tenant),
        )  # fmt: skip
        return _PreparedAnswer(
            record=decision, answer=decided_answer(decision), digest=digest, failures=served.failures,
            name=(tenant, "id", request.id) if request.id else None, claimed=bool(request.id),
        )  # fmt: skip

    def _prepare_reward(
        self,
        request: RewardRequest,
        fresh: dict[tuple[str, str, str], int],
        prepared: Sequence[tuple[int, _PreparedAnswer]],
    ) -> "_PreparedAnswer | Rewarded | int":
        parts, rules = self.parts, self.parts.rules
        check_text(request.id, "id")
        value = check_number(request.value, "value")
        check_text(request.kind, "kind")
        if request.kind == rules.join.kind and rules.join.accepted(value) is None:
            low, high = rules.join.bounds
            message = f"value {value:g} is out of the range of rewards, {low:g} to {high:g} ([join] low, high)"
            raise RequestError(message, code="out_of_range", field="value")
        if is_shadow_kind(request.kind):
            message = (
                f"kind {request.kind!r:.60} is for choices of versions in the shadow, which the gateway logs itself"
            )
            raise RequestError(message, code="reserved_kind", field="kind")
        now_s = parts.clock.now_s()
        at_s = now_s if request.at_s is None else check_number(request.at_s, "at_s")
        if at_s < 0.0:
            message = f"at_s must be seconds since 1970, got {at_s:g}"
            raise RequestError(message, code="bad_value", field="at_s")
        if at_s > now_s + rules.max_skew_s:
            message = (
                f"at_s is {at_s - now_s:.0f} s ahead of the gateway's clock, at most {rules.max_skew_s:g} s are "
                "accepted; set the clock of the source, or leave at_s out; nothing was stored"
            )
            raise RequestError(message, code="clock_skew", field="at_s")
        digest = blake2b(repr((request.id, request.kind, value, request.at_s)).encode(), digest_size=16).digest()
        numbered = _own_number(request, rules.source)
        if request.key:
            check_text(request.key, "key")
        key = request.key or ("\x00".join(map(str, numbered)) if numbered else "")  # no caller's key holds a NUL
        if key and parts.recent.repeated_reward(request.tenant, key, digest, strict=bool(request.key)):
            return Rewarded(id=request.id, status="repeated")
        name = (request.tenant, "key", key) if key else None
        first = None if name is None else fresh.get(name)
        if first is not None and prepared[first][1].digest == digest:
            return first
        if first is not None and request.key:
            message = f"key {key!r:.60} stands twice in one batch, with different rewards"
            raise RequestError(message, status=409, code="key_reused", field="key")
        known = parts.recent.knows(request.tenant, request.id)
        source, seq = numbered or (rules.source, parts.numbers.take(request.tenant))
        outcome = Outcome(
            decision_id=request.id, tenant=request.tenant, kind=request.kind, value=value, at_s=at_s, source=source,
            seq=seq,
        )  # fmt: skip
        answer = Rewarded(id=request.id, status="joined" if known else "waiting")
        return _PreparedAnswer(
            record=outcome, answer=answer, digest=digest, name=name, key=key, claimed=bool(request.key)
        )

    def _write(
        self, records: Sequence[DecisionRecord], claims: Sequence[RecordClaim] = ()
    ) -> tuple[RequestError | None, dict[tuple[str, str, int], RequestError], tuple[int, ...]]:
        """The fault of all records, if the log took none; the faults of those that it knows with other content; places
        of those that it knew. Raises NameTakenError."""
        parts = self.parts
        if not records:
            return None, {}, ()
        try:
            batch = parts.writer.write(records, claims)
        except NameTakenError:
            parts.numbers.refused(records, parts.rules.source)
            raise
        except RequestError as fault:
            parts.numbers.refused(records, parts.rules.source)
            parts.lines.fault(fault.code, str(fault), {"records": len(records)})
            return fault, {}, ()
        self._learn(() if batch is None else (batch,))
        if batch is None:
            return None, {}, ()
        faults = {
            (one.tenant, one.source, one.seq): RequestError(one.message, status=409, code="number_reused", field="seq")
            for one in batch.ack.refused
        }
        return None, faults, batch.ack.repeats

    def _learn(self, batches: Sequence[LoggedBatch] = ()) -> None:
        """Have the learner take records that the log took."""
        if self.parts.learner is not None:
            for batch in self.parts.writer.flushed():
                self.parts.learner.took(batch, wait=False)
            for batch in batches:
                self.parts.learner.took(batch)

    def _finish(self, one: _PreparedAnswer, *, repeated: bool) -> ServiceAnswer:
        """Remember an answer whose record the log took, and tell the listeners."""
        parts, record = self.parts, one.record
        if repeated:
            parts.counters.rewards[record.tenant, "repeated"] += 1
            return one.answer if isinstance(one.answer, Decided) else Rewarded(id=one.answer.id, status="repeated")
        if isinstance(record, Decision):
            parts.recent.remember(record.tenant, one.digest, cast("Decided", one.answer))
            parts.counters.decided(record.tenant, record.version, one.failures[0][1] if one.failures else "")
            for version, reason in one.failures:
                parts.lines.fault("fallback", reason, {"id": record.id, "version": version, "by": record.version})
        else:
            if one.key:
                parts.recent.remember_reward(record.tenant, one.key, one.digest)
            parts.counters.rewards[record.tenant, cast("Rewarded", one.answer).status] += 1
        self._observed(record)
        return one.answer

    def _observed(self, record: DecisionRecord) -> None:
        """Tell the listeners of a record; a reward counts as its range lets it."""
        join = self.parts.rules.join
        if isinstance(record, Outcome) and record.kind == join.kind:
            accepted = join.accepted(record.value)
            record = record if accepted is None or accepted == record.value else replace(record, value=accepted)
        for listener in self.parts.listeners:
            listener.observe(record)


def _number(record: DecisionRecord) -> tuple[str, str, int]:
    return record.tenant, record.source, record.seq


def _own_number(request: RewardRequest, own: str) -> tuple[str, int] | None:
    """Source and number that the caller gave, if any. Raises RequestError."""
    if not request.source and request.seq == -1:
        return None
    check_text(request.source, "source")
    if isinstance(request.seq, bool) or not isinstance(request.seq, int) or not 0 <= request.seq <= MAX_SEQ:
        message = f"seq must be a whole number from 0 to {MAX_SEQ}, got {shown(request.seq)}"
        raise RequestError(message, code="bad_type", field="seq")
    if request.at_s is None:
        message = "a reward with source and seq needs at_s, too: sent again, it must be the same record"
        raise RequestError(message, code="missing_field", field="at_s")
    if request.source == own:
        raise RequestError(f"source {own!r} is the gateway's own name", code="reserved_source", field="source")
    return request.source, request.seq


def _answer_of(answer: ServiceAnswer | RequestError) -> ServiceAnswer:
    if isinstance(answer, RequestError):
        raise answer
    return answer
