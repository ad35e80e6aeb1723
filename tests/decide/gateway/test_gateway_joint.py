"""Joint decisions: one draw for several units, each unit's record with the joint log-probability; sessions."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from gateway_parts import SoftmaxPolicy, make_box, post
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from hone.core.decisions import Decision
from hone.decide.gateway.access import AccessList, ServiceClient, TenantLimits, TokenBucket, token_digest
from hone.decide.gateway.fallback_chain import PolicyFailureError, ServingVersion
from hone.decide.gateway.http_app import GatewayRoutes, RequestBatcher
from hone.decide.gateway.requests import RequestError

CONTEXT = {"age": 0.5, "country": "de"}


def test_every_unit_has_the_joint_action_its_log_probability_and_its_own_record() -> None:
    box = make_box()
    answers = box.service.decide_jointly(["ada", "bob", "eve"], CONTEXT, id="match 7")
    assert len({(one.action, one.index, one.logp, one.version) for one in answers}) == 1
    assert [one.id for one in answers] == ["match 7:0/3", "match 7:1/3", "match 7:2/3"]
    records = [record for record in box.sink.records if isinstance(record, Decision)]
    assert [record.unit for record in records] == ["ada", "bob", "eve"] and box.sink.batches == [3]
    scores = 0.5 * np.arange(3)
    expected = scores - math.log(np.exp(scores).sum())
    for record in records:
        assert record.executed_logp == pytest.approx(float(expected[record.executed]), abs=1e-12)
        assert box.service.replay(record).action == record.executed
    assert len({record.draw_key for record in records}) == 1
    assert [record.seq for record in records] == [0, 1, 2]
    assert box.service.reward("match 7:1/3", 1.0).status == "joined"


def test_the_frequencies_of_joint_actions_are_their_probabilities() -> None:
    box = make_box()
    drawn = [box.service.decide_jointly(["a", "b"], CONTEXT, id=str(number))[1].index for number in range(600)]
    scores = np.exp(0.5 * np.arange(3))
    assert np.abs(np.bincount(drawn, minlength=3) / 600 - scores / scores.sum()).max() < 0.08


def test_the_same_joint_request_gets_the_same_answers_and_other_units_are_another_one() -> None:
    box = make_box()
    first = box.service.decide_jointly(["a", "b"], CONTEXT, id="m")
    assert box.service.decide_jointly(["a", "b"], CONTEXT, id="m") == first
    assert len(box.sink.records) == 2
    with pytest.raises(RequestError, match="was used for another request"):
        box.service.decide_jointly(["b", "a"], CONTEXT, id="m")
    assert len(box.sink.records) == 2
    named = box.service.decide_jointly(["a", "b"], CONTEXT)
    assert [one.id for one in named] == ["made-0:0/2", "made-0:1/2"]


def test_a_policy_that_fails_now_and_then_is_asked_once_for_all() -> None:
    calls: list[int] = []

    class EverySecond(SoftmaxPolicy):
        def act(self, context, actions, draw_key):
            calls.append(1)
            if len(calls) % 2:
                raise PolicyFailureError("odd")
            return super().act(context, actions, draw_key)

    box = make_box(ServingVersion(name="v1", policy=EverySecond()))
    answers = box.service.decide_jointly(["a", "b", "c"], CONTEXT)
    assert len(calls) == 1 and {one.version for one in answers} == {"default:uniform"}
    assert {one.logp for one in answers} == {-math.log(3)}


def test_joint_requests_that_are_none_are_refused_whole() -> None:
    box = make_box()
    wrong = [
        ([], "1 to 100"), (["a"] * 101, "1 to 100"), (["a", "b", "a"], "names 'a' twice"), (["a", ""], "units.1"),
    ]  # fmt: skip
    for units, words in wrong:
        with pytest.raises(RequestError, match=words):
            box.service.decide_jointly(units, CONTEXT)
    with pytest.raises(RequestError, match="age"):
        box.service.decide_jointly(["a", "b"], {"country": "de"})
    assert box.sink.records == []
    assert len(box.service.decide_jointly([str(k) for k in range(100)], CONTEXT)) == 100


def routes_of(box, **options) -> GatewayRoutes:
    return GatewayRoutes(service=box.service, batcher=RequestBatcher(box.service, apart=False), **options)


def test_joint_decisions_over_http() -> None:
    box = make_box()
    app = routes_of(box).app()
    body = {"units": ["a", "b"], "context": CONTEXT, "id": "m"}
    answers = post(app, "/v1/decide/joint", body).json()["answers"]
    assert [one["id"] for one in answers] == ["m:0/2", "m:1/2"] and answers[0]["logp"] == answers[1]["logp"]
    faulty = [({**body, "units": "a"}, "units"), ({**body, "unit": "a"}, "unit"), ({"context": CONTEXT}, "units")]
    for wrong, field in faulty:
        answer = post(app, "/v1/decide/joint", wrong)
        assert answer.status == 422 and answer.json()["error"]["field"] == field
    assert post(app, "/v1/decide/joint", {"units": ["c"], "context": {}}).status == 422
    assert len(box.sink.records) == 2


@contextmanager
def session(app, headers: dict[str, str] | None = None) -> Iterator:
    with TestClient(app).websocket_connect("/v1/session", headers=headers or {}) as socket:
        yield socket


def test_a_session_answers_its_messages_in_order_and_stays_open_after_a_refusal() -> None:
    box = make_box()
    with session(routes_of(box).app()) as socket:
        socket.send_json({"op": "decide", "unit": "a", "context": CONTEXT, "ref": 7})
        decided = socket.receive_json()
        assert decided["ref"] == 7 and decided["action"] in "abc"
        socket.send_json({"op": "reward", "id": decided["id"], "value": 1})
        assert socket.receive_json() == {"id": decided["id"], "status": "joined", "ref": None}
        socket.send_json({"op": "decide", "unit": "", "context": CONTEXT, "ref": "x"})
        refused = socket.receive_json()
        assert refused["error"]["field"] == "unit" and refused["ref"] == "x"
        socket.send_json({"op": "ship", "unit": "a"})
        assert "op must be one of decide, decide/joint, reward" in socket.receive_json()["error"]["message"]
        socket.send_json({"op": "decide/joint", "units": ["a", "b"], "context": CONTEXT, "id": "m"})
        assert [one["id"] for one in socket.receive_json()["answers"]] == ["m:0/2", "m:1/2"]
    assert len(box.sink.records) == 4


def test_a_session_needs_a_token_a_scope_and_a_rate() -> None:
    box = make_box()
    client = ServiceClient(name="game", tenant="default", token_sha256=token_digest("t"), scopes=frozenset({"decide"}))
    limits = TenantLimits({"default": TokenBucket(rate_per_s=1.0, burst=2.0)})
    app = routes_of(box, access=AccessList([client]), limits=limits).app()
    with pytest.raises(WebSocketDisconnect) as closed, session(app) as socket:
        socket.receive_text()
    assert closed.value.code == 1008
    with session(app, {"Authorization": "Bearer t"}) as socket:
        codes: list[str] = []
        for op in ("reward", "decide", "decide", "decide"):
            socket.send_json({"op": op, "unit": "a", "context": CONTEXT} if op == "decide" else {"op": op})
            codes.append(socket.receive_json().get("error", {}).get("code", "ok"))
    assert codes == ["wrong_scope", "ok", "ok", "rate_limited"]


def test_a_session_ends_at_what_is_no_request_and_when_the_server_stops() -> None:
    box = make_box()
    routes = routes_of(box, max_body_bytes=50)
    for text, code in (("{", 1003), ("[]", 1003), ("x" * 51, 1009)):
        with pytest.raises(WebSocketDisconnect) as closed, session(routes.app()) as socket:
            socket.send_text(text)
            socket.receive_text()
        assert closed.value.code == code
    routes.drain()
    with pytest.raises(WebSocketDisconnect) as closed, session(routes.app()) as socket:
        socket.receive_text()
    assert closed.value.code == 1012
