"""A decision service over parts that a test can look into, and a caller of its routes without a server."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from manual_clock import ManualClock

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, draw_action, logp_each
from hone.core.errors import ResourceError
from hone.decide.gateway.fallback_chain import FallbackChain, SafeDefault, ServingVersion
from hone.decide.gateway.log_writer import LogWriter, SequenceNumbers, WriteBefore
from hone.decide.gateway.requests import ActionCatalogue, FeatureSchema, RecentRequests
from hone.decide.gateway.service import DecisionService, FaultLines, RecordListener, ServiceParts, ServiceRules
from hone.decide.log.protocol import AppendAck, KnownNames, NameTakenError, RecordClaim


class SoftmaxPolicy:
    """exp(context[0] * k) for action k, normalised."""

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        scores = context[0] * np.arange(len(actions))
        return scores - math.log(np.exp(scores).sum())

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return logp_each(self, contexts, actions)

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        return Choice(action=action, logp=float(logp[action]))


@dataclass
class MemorySink:
    """A log in memory, that a test can break."""

    records: list[DecisionRecord] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    names: dict[tuple[str, str], bytes] = field(default_factory=dict)
    broken: bool = False

    def append(self, batch: Sequence[DecisionRecord], claims: Sequence[RecordClaim] = ()) -> AppendAck:
        if self.broken:
            raise ResourceError("the disk is full")
        names = [(batch[one.place].tenant, one.key or f"id {batch[one.place].id}") for one in claims]  # type: ignore[union-attr]
        if taken := [one.place for one, name in zip(claims, names, strict=True) if name in self.names]:
            raise NameTakenError(taken)
        self.names.update({name: one.digest for one, name in zip(claims, names, strict=True)})
        self.records += batch
        self.batches.append(len(batch))
        return AppendAck(stored=len(batch), repeated=0, erased=0, refused=(), watermarks=())

    def find(self, tenant: str, *, ids: Sequence[str] = (), keys: Sequence[str] = ()) -> KnownNames:
        if self.broken:
            raise ResourceError("the disk is full")
        decisions = {
            one.id: one for one in reversed(self.records) if isinstance(one, Decision) and one.tenant == tenant
        }
        return KnownNames(
            decisions={name: decisions[name] for name in ids if name in decisions},
            keys={key: self.names[tenant, key] for key in keys if (tenant, key) in self.names},
        )

    def logged(self, tenant: str) -> int:
        """Records of a tenant by the gateway."""
        if self.broken:
            raise ResourceError("the disk is full")
        return sum(record.tenant == tenant and record.source == "gateway" for record in self.records)


@dataclass
class OneChain:
    """The same versions for every unit."""

    versions: FallbackChain
    route: str = ""

    def chain(self, tenant: str, unit: str) -> tuple[FallbackChain, str]:
        return self.versions, self.route

    def replay(self, decision: Decision) -> Choice:
        return self.versions.versions[0].policy.act(decision.context, decision.actions, decision.draw_key)


@dataclass
class ServiceBox:
    """A service, and what its parts hold."""

    service: DecisionService
    sink: MemorySink
    clock: ManualClock
    lines: list[str]

    def faults(self) -> list[str]:
        return [json.loads(line)["fault"] for line in self.lines]


def make_box(
    *versions: ServingVersion,
    tenants: Sequence[str] = ("default",),
    listeners: Sequence[RecordListener] = (),
    writer: LogWriter | None = None,
    capacity: int = 1000,
) -> ServiceBox:
    """A service with features `age` and `country=de`, actions a, b, c."""
    clock, sink, lines = ManualClock(1_000_000.0), MemorySink(), list[str]()
    default = SafeDefault()
    chain = versions or (ServingVersion(name="v1", policy=SoftmaxPolicy()),)
    chain += (ServingVersion(name=default.version, policy=default),)
    ids = iter(range(10**9))
    parts = ServiceParts(
        rules=ServiceRules(source="gateway", tenants=tuple(tenants)),
        schema=FeatureSchema(("age", "country=de")),
        catalogue=ActionCatalogue(("a", "b", "c")),
        policies=OneChain(FallbackChain(chain, clock)),
        writer=writer or WriteBefore(sink, clock),
        numbers=SequenceNumbers(sink.logged),
        recent=RecentRequests(capacity),
        clock=clock,
        lines=FaultLines(lines.append, clock),
        listeners=tuple(listeners),
        new_id=lambda: f"made-{next(ids)}",
    )
    return ServiceBox(DecisionService(parts), sink, clock, lines)


@dataclass(frozen=True)
class HttpAnswer:
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body)


async def send(app: object, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None):
    """Send one request to an application of ASGI -> HttpAnswer."""
    sent: list[dict] = []
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": raw,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    half = len(body) // 2
    pieces = iter([(body[:half], True), (body[half:], False)] if half else [(body, False)])

    async def receive() -> dict:
        piece, more = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": more}

    async def collect(message: dict) -> None:
        sent.append(message)

    await app(scope, receive, collect)
    start = next(one for one in sent if one["type"] == "http.response.start")
    content = b"".join(one.get("body", b"") for one in sent if one["type"] == "http.response.body")
    named = {name.decode(): value.decode() for name, value in start["headers"]}
    return HttpAnswer(start["status"], named, content)


def post(app: object, path: str, value: object, headers: dict[str, str] | None = None) -> HttpAnswer:
    """Post JSON (or bytes, as they are) to an application."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return asyncio.run(send(app, "POST", path, body, headers))
