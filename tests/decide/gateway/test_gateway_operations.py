"""Readiness apart from liveness, bodies that stall, and service files that change while the service runs."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from gateway_parts import MemorySink, make_box, post, send
from manual_clock import ManualClock

from hone.core.decisions import ActionSet
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.saving import save_policy
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.log_writer import WriteAfter, WriteBefore
from hone.decide.gateway.opening import open_service
from hone.decide.gateway.operations import PROBE_S, WRITE_FAULT_S, LogProbe, reload_service
from hone.decide.gateway.requests import RequestError
from hone.decide.gateway.run_service import make_routes

DECIDE = {"unit": "u1", "context": {"age": 0.5, "country": "de"}}


class AskedLog(MemorySink):
    """A log that answers, fails or stalls, as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.error, self.go = 0, None, threading.Event()
        self.go.set()

    def watermarks(self):
        self.asked += 1
        assert self.go.wait(300)
        if self.error is not None:
            raise self.error
        return ()


def probe_of(log: AskedLog, clock: ManualClock, failed_s: float = float("-inf"), timeout_s: float = 60.0) -> LogProbe:
    return LogProbe(log=log, write_failed_s=lambda: failed_s, clock=clock, timeout_s=timeout_s)


def test_the_log_is_asked_once_a_second_whoever_asks() -> None:
    log, clock = AskedLog(), ManualClock(100.0)

    async def ask() -> list[tuple[str, int]]:
        probe, seen = probe_of(log, clock), []
        for step in (0.0, 0.0, PROBE_S - 0.01, 0.01, 0.0):
            clock.advance(step)
            seen.append((await probe.fault(), log.asked))
        log.error = ResourceError("cannot use the decision log db.internal: down")
        clock.advance(PROBE_S)
        seen.append((await probe.fault(), log.asked))
        log.error = None
        seen.append((await probe.fault(), log.asked))
        clock.advance(PROBE_S)
        seen.append((await probe.fault(), log.asked))
        return seen

    down = "the decision log cannot be reached"
    assert asyncio.run(ask()) == [("", 1), ("", 1), ("", 1), ("", 2), ("", 2), (down, 3), (down, 3), ("", 4)]


def test_a_log_that_stalls_counts_as_down_and_is_asked_by_one_question() -> None:
    log, clock = AskedLog(), ManualClock(100.0)
    log.go.clear()

    async def ask() -> list[str]:
        probe = probe_of(log, clock, timeout_s=0.01)
        words = []
        for _ in range(5):
            words.append(await probe.fault())
            clock.advance(10.0)
        log.go.set()
        while not probe._asked.done():
            await asyncio.sleep(0.001)
        return [*words, await probe_of(log, clock).fault()]

    assert asyncio.run(ask()) == ["the decision log does not answer within 0.01 s"] * 5 + [""]
    assert log.asked == 2


def test_a_failed_append_counts_for_a_while_and_the_next_request_tries() -> None:
    clock, sink = ManualClock(100.0), MemorySink(broken=True)
    writer = WriteBefore(sink, clock)
    box = make_box(writer=writer)
    log = AskedLog()

    async def ready() -> str:
        return await LogProbe(log=log, write_failed_s=writer.failed_s, clock=clock).fault()

    assert asyncio.run(ready()) == ""
    with pytest.raises(RequestError):
        box.service.decide("u", DECIDE["context"])
    assert asyncio.run(ready()) == "the decision log does not take records"
    clock.advance(WRITE_FAULT_S - 0.01)
    assert asyncio.run(ready()) != ""
    clock.advance(0.01)
    assert asyncio.run(ready()) == ""
    with pytest.raises(RequestError):
        box.service.decide("u", DECIDE["context"])
    sink.broken = False
    box.service.decide("u", DECIDE["context"])
    assert asyncio.run(ready()) == "", "an append that succeeds is enough"


def test_a_writer_behind_the_answers_tells_that_its_log_is_down() -> None:
    clock, sink, tried = ManualClock(50.0), MemorySink(broken=True), threading.Event()
    writer = WriteAfter(sink, capacity=10, tell=lambda code, words: tried.set(), clock=clock).start()
    box = make_box(writer=writer)
    box.service.decide("u", DECIDE["context"])
    assert tried.wait(300) and writer.failed_s() == 50.0
    sink.broken = False
    box.service.close()
    assert writer.failed_s() == float("-inf") and len(sink.records) == 1


def test_the_routes_tell_alive_from_ready() -> None:
    box, fault = make_box(), [""]

    async def log_fault() -> str:
        return fault[0]

    routes = GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False), log_fault=log_fault)
    app = routes.app()
    get = lambda path: asyncio.run(send(app, "GET", path))  # noqa: E731
    assert [get(path).status for path in ("/live", "/ready", "/health")] == [200, 200, 200]
    fault[0] = "the decision log cannot be reached"
    assert [get(path).status for path in ("/live", "/ready", "/health")] == [200, 503, 503]
    assert get("/ready").json() == {"status": "the decision log cannot be reached", "log_waiting": 0}
    fault[0] = ""
    routes.drain()
    assert get("/ready").json()["status"] == "draining" and get("/live").status == 200


def test_a_body_that_stalls_is_refused_and_its_connection_closed() -> None:
    box = make_box()
    routes = GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False), body_s=0.01)
    app, sent = routes.app(), []

    async def receive():
        if not sent:
            sent.append(None)
            return {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def keep(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/decide", "headers": []}
    asyncio.run(app(scope, receive, keep))
    assert sent[1]["status"] == 408 and (b"connection", b"close") in sent[1]["headers"]
    assert b"slow_body" in sent[2]["body"] and box.sink.records == []


def test_a_service_that_does_not_learn_has_no_learner_to_miss(tmp_path: Path) -> None:
    for kind, lines in (("uniform", 0), ("linucb", 2)):
        (tmp_path / f"{kind}.toml").write_text(f'[service]\nactions = ["a", "b"]\n[policy]\nkind = "{kind}"\n')
        one = open_service(tmp_path / f"{kind}.toml", clock=ManualClock(1_700_000_000.0), tell=print)
        assert (
            len([line for line in one.service.counters_text().splitlines() if line.startswith("hone_learner")]) == lines
        )
        one.close()


# --------------------------------------------------------------------------------------------------------------- reload

SHOP = """[service]
actions = ["a", "b"]
features = ["age"]
deadline_s = 0.5

[[service.clients]]
name = "web"
token_file = "token"
scopes = ["decide", "reward", "read"]
"""


@pytest.fixture
def shop(tmp_path: Path):
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "shop.toml").write_text(SHOP)
    opened = open_service(tmp_path / "shop.toml", clock=ManualClock(1_700_000_000.0), tell=print)
    yield tmp_path / "shop.toml", opened, make_routes(opened)
    opened.close()


def ask(routes: GatewayRoutes, token: str, body: dict | None = None) -> int:
    body = body or {"unit": "u", "context": {"age": 1.0}}
    return post(routes.app(), "/v1/decide", body, {"Authorization": f"Bearer {token}"}).status


def test_tokens_limits_and_deadline_are_taken_up(shop) -> None:
    path, opened, routes = shop
    assert [ask(routes, token) for token in ("first", "second")] == [200, 401]
    (path.parent / "token").write_text("second")
    limits = "deadline_s = 0.25\nmax_body_bytes = 1024\nlimit = {per_s = 1, burst = 2}"
    path.write_text(SHOP.replace("deadline_s = 0.5", limits))
    words = reload_service(path, opened, routes)
    assert words == (
        "reloaded shop.toml: service.limit.per_s, service.limit.burst, service.deadline_s, service.max_body_bytes; "
        "tokens were read again"
    )
    assert [ask(routes, token) for token in ("first", "second", "second", "second")] == [401, 200, 200, 429]
    assert opened.service.parts.rules.deadline_s == 0.25
    path.write_text(SHOP)
    reload_service(path, opened, routes)
    large = {"unit": "u", "context": {"age": 1.0}, "id": "x" * 100}
    assert [ask(routes, "second", large) for _ in range(3)] == [200, 200, 200]
    assert "no key has changed" in reload_service(path, opened, routes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHOP.replace('["age"]', '["age", "more"]'), "service.features (shop.toml:3) cannot change"),
        (SHOP + '[policy]\nkind = "linucb"\n', "policy.kind (shop.toml:11)"),
        (SHOP + '[log]\naddress = "other.db"\n', "log.address (shop.toml:11) cannot change"),
        (SHOP.replace("deadline_s = 0.5", "deadline_s = -1"), "deadline_s"),
        (SHOP.replace('"token"', '"gone"'), "token_file gone cannot be read"),
        ("[service\n", "shop.toml"),
    ],
)
def test_what_cannot_change_is_named_and_nothing_changes(shop, text: str, words: str) -> None:
    path, opened, routes = shop
    (path.parent / "token").write_text("second")
    path.write_text(text.replace("deadline_s = 0.5", "deadline_s = 0.1"))
    with pytest.raises(ConfigError) as caught:
        reload_service(path, opened, routes)
    assert words in str(caught.value)
    assert opened.service.parts.rules.deadline_s == 0.5
    assert [ask(routes, token) for token in ("first", "second")] == [200, 401]


def saved(folder: Path, worth: float) -> None:
    """A policy that knows that action b pays `worth`."""
    model = LinearGaussianPosterior(2, 1, intercept=True)
    policy, actions = EpsilonGreedyPolicy(model, 0.1), ActionSet(names=("a", "b"))
    learner = BanditLearner(policy, model, actions)
    learner.observe(np.ones((50, 1)), np.array([0, 1] * 25), np.array([0.5, worth] * 25))
    save_policy(policy, folder)


def test_the_policy_of_a_folder_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    service = '[service]\nactions = ["a", "b"]\nfeatures = ["age"]\n'
    path.write_text(service + '[policy]\nkind = "folder"\npath = "one"\nguard = false\n')
    saved(tmp_path / "one", 1.0)
    opened = open_service(path, clock=ManualClock(1_700_000_000.0), tell=print)
    routes, first = make_routes(opened), opened.policies.tenants["default"].live.name
    assert reload_service(path, opened, routes).endswith(f"version {first} stays")
    saved(tmp_path / "two", 0.0)
    path.write_text(path.read_text().replace('"one"', '"two"'))
    words = reload_service(path, opened, routes)
    serving = opened.policies.tenants["default"]
    assert words.endswith(f"; version {serving.live.name} is served") and serving.live.name != first
    assert [one.name for one in serving.chain.versions] == [serving.live.name, first, "default:uniform"]
    actions = ActionSet(names=("a", "b"))
    assert serving.live.policy.logp(np.ones(1), actions).argmax() == 0
    assert opened.decide("u", {"age": 1.0}).version == serving.live.name
    path.write_text(path.read_text().replace('"two"', '"gone"'))
    with pytest.raises(DataError):
        reload_service(path, opened, routes)
    assert opened.policies.tenants["default"].live is serving.live
    opened.close()
