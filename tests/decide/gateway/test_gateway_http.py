"""The routes: statuses, tokens, tenants, rates, batches, drain."""

import asyncio
import json

import pytest
from gateway_parts import make_box, post, send
from manual_clock import ManualClock

from hone.decide.gateway.access import (
    FIRST_HOLD_S,
    HOLD_SPACING_S,
    LONGEST_HOLD_S,
    MOST_HELD,
    AccessList,
    HeldRefusals,
    ServiceClient,
    TenantLimits,
    TokenBucket,
    token_digest,
)
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher

DECIDE = {"unit": "u1", "context": {"age": 0.5, "country": "de"}}


def routes_of(box, **options) -> GatewayRoutes:
    return GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False), **options)


def test_decide_and_reward_over_http() -> None:
    box = make_box()
    app = routes_of(box).app()
    answer = post(app, "/v1/decide", DECIDE)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    body = answer.json()
    assert body.keys() == {"id", "action", "index", "logp", "probability", "version", "route", "intervention"}
    assert post(app, "/v1/reward", {"id": body["id"], "value": 1}).json() == {"id": body["id"], "status": "joined"}
    assert [record.seq for record in box.sink.records] == [0, 1]


def test_an_idempotency_key_is_the_id_of_a_decision_and_the_key_of_a_reward() -> None:
    app = routes_of(make_box()).app()
    headers = {"Idempotency-Key": "k1"}
    first, again = (post(app, "/v1/decide", DECIDE, headers).json() for _ in range(2))
    assert first == again and first["id"] == "k1"
    rewards = [post(app, "/v1/reward", {"id": "k1", "value": 1}, headers).json()["status"] for _ in range(2)]
    assert rewards == ["joined", "repeated"]


def test_batches_answer_each_entry_and_append_once() -> None:
    box = make_box()
    app = routes_of(box).app()
    entries = [DECIDE, {"unit": ""}, {**DECIDE, "context": {"age": 1.0}}, {**DECIDE, "unit": "u2"}, 7]
    answers = post(app, "/v1/decide/batch", {"decisions": entries}).json()["answers"]
    assert ["error" in one for one in answers] == [False, True, True, False, True]
    assert box.sink.batches == [2]
    rewards = [{"id": answers[0]["id"], "value": 1.0}, {"id": answers[3]["id"], "value": None}]
    answers = post(app, "/v1/reward/batch", {"rewards": rewards}).json()["answers"]
    assert answers[0]["status"] == "joined"
    assert answers[1]["error"]["field"] == "value"


@pytest.mark.parametrize("apart", [False, True])
def test_requests_of_the_same_moment_share_one_append(apart: bool) -> None:
    box = make_box()
    routes = GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=apart))
    body = json.dumps(DECIDE).encode()

    async def together() -> list[int]:
        app = routes.app()
        answers = await asyncio.gather(*(send(app, "POST", "/v1/decide", body) for _ in range(20)))
        return [answer.status for answer in answers]

    assert asyncio.run(together()) == [200] * 20
    assert len(box.sink.batches) <= 3


CLIENTS = (
    ServiceClient(name="web", tenant="s", token_sha256=token_digest("one"), scopes=frozenset({"decide"})),
    ServiceClient(name="job", tenant="t", token_sha256=token_digest("two"), scopes=frozenset({"reward", "read"})),
)


@pytest.mark.parametrize(
    ("path", "token", "body", "status", "code"),
    [
        ("/v1/decide", "", DECIDE, 401, "unauthorized"),
        ("/v1/decide", "wrong", DECIDE, 401, "unauthorized"),
        ("/v1/decide", "two", DECIDE, 403, "wrong_scope"),
        ("/v1/reward", "one", {"id": "d", "value": 1}, 403, "wrong_scope"),
        ("/v1/decide", "one", {**DECIDE, "tenant": "t"}, 403, "wrong_tenant"),
        ("/v1/decide", "one", {**DECIDE, "tenant": "s"}, 200, ""),
        ("/v1/decide", "one", DECIDE, 200, ""),
    ],
)
def test_tokens_have_scopes_and_a_tenant(path: str, token: str, body: dict, status: int, code: str) -> None:
    box = make_box(tenants=("s", "t"))
    app = routes_of(box, access=AccessList(CLIENTS)).app()
    answer = post(app, path, body, {"Authorization": f"Bearer {token}"})
    assert answer.status == status
    if code:
        assert (answer.json()["error"]["code"], box.faults(), box.sink.records) == (code, [code], [])
    else:
        assert box.sink.records[0].tenant == "s"


def test_metrics_need_the_scope_read() -> None:
    app = routes_of(make_box(tenants=("s", "t")), access=AccessList(CLIENTS)).app()
    for token, status in (("one", 403), ("two", 200), ("three", 401)):
        answer = asyncio.run(send(app, "GET", "/metrics", headers={"authorization": f"Bearer {token}"}))
        assert answer.status == status


def test_a_flooding_tenant_is_refused_before_its_body_is_read_and_others_are_not() -> None:
    box = make_box(tenants=("s", "t"))
    both = (
        CLIENTS[0],
        ServiceClient(name="t", tenant="t", token_sha256=token_digest("3"), scopes=frozenset({"decide"})),
    )
    limits = TenantLimits({tenant: TokenBucket(10.0, 5.0) for tenant in ("s", "t")})
    app = routes_of(box, access=AccessList(both), limits=limits).app()
    flood = [post(app, "/v1/decide", b"not read", {"Authorization": "Bearer one"}) for _ in range(7)]
    assert [answer.status for answer in flood] == [400] * 5 + [429] * 2
    assert flood[-1].headers["retry-after"] == "1"
    assert post(app, "/v1/decide", DECIDE, {"Authorization": "Bearer 3"}).status == 200
    box.clock.advance(0.2)
    assert post(app, "/v1/decide", DECIDE, {"Authorization": "Bearer one"}).status == 200


def test_a_bucket_gives_its_rate_and_its_burst() -> None:
    bucket = TokenBucket(rate_per_s=100.0, burst=10.0)
    taken = sum(bucket.take(1, step / 1000) == 0.0 for step in range(1000))
    assert taken == 10 + 99  # the burst, and the rate of the second
    assert TokenBucket(1.0, 5.0).take(50, 0.0) == 0.0  # a batch above the burst passes when the bucket is full
    empty = TokenBucket(2.0, 1.0)
    assert (empty.take(1, 0.0), empty.take(1, 0.0)) == (0.0, 0.5)
    assert empty.take(1, -100.0) == 0.5  # a clock that goes back gives nothing


def test_refusals_of_a_flood_leave_one_after_another_within_a_second() -> None:
    clock, held = ManualClock(0.0), HeldRefusals()
    assert held.begin(0.02, clock.monotonic_s()) == 0.02
    assert held.begin(30.0, clock.monotonic_s()) == FIRST_HOLD_S
    holds = [held.begin(0.02, clock.monotonic_s()) for _ in range(MOST_HELD - 2)]
    spaced = [0.11 + place * HOLD_SPACING_S for place in range(90)]
    assert holds == pytest.approx(spaced + [LONGEST_HOLD_S] * (MOST_HELD - 92))
    assert held.begin(0.02, clock.monotonic_s()) is None
    held.end()
    assert held.begin(0.02, clock.monotonic_s()) == LONGEST_HOLD_S
    clock.advance(LONGEST_HOLD_S)
    for _ in range(MOST_HELD):
        held.end()
    assert held.begin(0.02, clock.monotonic_s()) == pytest.approx(0.02)  # the flood is over


def test_a_refusal_above_the_bound_closes_its_connection() -> None:
    limits = TenantLimits({"s": TokenBucket(0.001, 1.0)})
    routes = routes_of(make_box(tenants=("s",)), access=AccessList(CLIENTS[:1]), limits=limits)
    routes.held["s"] = HeldRefusals(held=MOST_HELD)
    headers = {"Authorization": "Bearer one"}
    assert post(routes.app(), "/v1/decide", DECIDE, headers).status == 200
    answer = post(routes.app(), "/v1/decide", DECIDE, headers)
    assert (answer.status, answer.headers["connection"]) == (429, "close")


def test_health_says_that_the_server_stops_and_unknown_paths_name_the_known() -> None:
    routes = routes_of(make_box())
    app = routes.app()
    assert asyncio.run(send(app, "GET", "/health")).json() == {"status": "ok", "log_waiting": 0}
    routes.draining = True
    assert asyncio.run(send(app, "GET", "/health")).status == 503
    for method, path, status in (("GET", "/v1/decide", 405), ("POST", "/v2/decide", 404), ("GET", "/../etc", 404)):
        answer = asyncio.run(send(app, method, path))
        assert (answer.status, "allow" in answer.headers) == (status, status == 405)
        assert "POST /v1/decide" in answer.json()["error"]["message"]


def test_metrics_count_and_escape() -> None:
    box = make_box(tenants=('q"\n',))
    app = routes_of(box).app()
    post(app, "/v1/decide", {**DECIDE})
    post(app, "/v1/decide", b"[]")
    text = asyncio.run(send(app, "GET", "/metrics")).body.decode()
    assert 'hone_decisions_total{tenant="q\\"\\n",version="v1"} 1' in text
    assert 'hone_refused_total{code="not_an_object"} 1' in text
    assert 'hone_gateway_responses_total{path="/v1/decide",status="200"} 1' in text
