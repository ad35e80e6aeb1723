"""Bad input and attacks: each with its status, its message and its log line, and nothing lost.

After every row the service still answers, and the log holds what it held before (or the record that the row says).
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from gateway_parts import post
from manual_clock import ManualClock

from hone.core.decisions import Outcome
from hone.decide.gateway.access import token_digest
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.gateway.run_service import make_routes

NOW_S = 1_700_000_000.0
SERVICE = f"""
[service]
features = ["age", "country=de"]
actions = ["a", "b"]
tenants = ["s", "t"]
max_body_bytes = 2000

[[service.clients]]
name = "web"
tenant = "s"
token_sha256 = "{token_digest("web")}"

[[service.clients]]
name = "reader"
tenant = "s"
token_sha256 = "{token_digest("reader")}"
scopes = ["read"]

[[service.clients]]
name = "any"
token_sha256 = "{token_digest("any")}"
"""
GOOD = {"unit": "u", "context": {"age": 1, "country": "de"}}
D, R = "/v1/decide", "/v1/reward"
SQL = "'; drop table decisions; --"
PATHS = ("../../etc/passwd", "/etc/passwd", "..\\..\\x", "a/b", "%2e%2e%2f")


@dataclass(frozen=True)
class Row:
    """One request, and what it must get."""

    name: str
    path: str
    body: object
    status: int
    code: str = ""
    words: str = ""
    token: str = "web"
    records: int = 0
    """Records that it adds to the log."""


def deep(levels: int) -> bytes:
    return b'{"unit": "u", "context": ' + b"[" * levels + b"]" * levels + b"}"


ROWS = [
    Row("not JSON", D, b"unit=u", 400, "not_json", "not JSON"),
    Row("half a document", D, b'{"unit": "u"', 400, "not_json"),
    Row("not UTF-8", D, b'{"unit": "\xff"}', 400, "not_json"),
    Row("nothing", D, b"", 400, "not_json"),
    Row("a list", D, b"[1]", 400, "not_an_object"),
    Row("a key twice", D, b'{"unit": "u", "unit": "v"}', 400, "not_json", "'unit' occurs more than once"),
    Row("half a surrogate pair", D, b'{"unit": "\\ud800"}', 400, "not_json", "surrogate"),
    Row("deep JSON", D, deep(900), 422, "schema_drift"),
    Row("oversize body", D, {**GOOD, "unit": "u" * 3000}, 413, "too_large", "more than 2000"),
    Row("unknown field", D, {**GOOD, "contxt": {}}, 422, "unknown_field", "did you mean context?"),
    Row("no unit", D, {"context": {}}, 422, "missing_field", "unit is missing"),
    Row("unit of another type", D, {**GOOD, "unit": 7}, 422, "bad_type", "unit must be text"),
    Row("empty unit", D, {**GOOD, "unit": ""}, 422, "bad_length"),
    Row("long id", D, {**GOOD, "id": "x" * 300}, 422, "bad_length", "1 to 200"),
    Row("NUL in a unit", D, {**GOOD, "unit": "a\x00b"}, 422, "bad_text", "control characters"),
    Row("line break in an id", D, {**GOOD, "id": "a\nb"}, 422, "bad_text"),
    Row("a missing feature", D, {**GOOD, "context": {"age": 1}}, 422, "schema_drift", "context.country is missing"),
    Row("a renamed feature", D, {**GOOD, "context": {"Age": 1, "country": "de"}}, 422, "schema_drift",
        "context.Age is not a feature of this service; did you mean age?"),
    Row("a feature as text", D, {**GOOD, "context": {"age": "1", "country": "de"}}, 422, "bad_type", "context.age"),
    Row("a category as a number", D, {**GOOD, "context": {"age": 1, "country": 4}}, 422, "bad_type",
        "context.country"),
    Row("too many places", D, {**GOOD, "context": [1, 0, 3]}, 422, "schema_drift", "has 3 features"),
    Row("NaN", D, b'{"unit": "u", "context": {"age": NaN, "country": "de"}}', 422, "not_finite", "context.age"),
    Row("infinity", D, b'{"unit": "u", "context": {"age": 1e999, "country": "de"}}', 400, "not_json", "range of"),
    Row("a huge whole number", D, b'{"unit": "u", "context": {"age": 1%s, "country": "de"}}' % (b"0" * 400), 422,
        "not_finite"),
    Row("true for a number", D, {**GOOD, "context": {"age": True, "country": "de"}}, 422, "bad_type"),
    Row("no actions", D, {**GOOD, "actions": []}, 422, "no_actions", "actions is empty"),
    Row("an undeclared action", D, {**GOOD, "actions": ["a", "c"]}, 422, "unknown_action", "actions.1 'c'"),
    Row("an action twice", D, {**GOOD, "actions": ["a", "a"]}, 422, "repeated_action"),
    Row("actions as text", D, {**GOOD, "actions": "ab"}, 422, "bad_type", "must be a list"),
    Row("an action as a number", D, {**GOOD, "actions": [1]}, 422, "bad_type"),
    Row("an action as a list", D, {**GOOD, "actions": [["a"]]}, 422, "bad_type"),
    Row("a deadline of 0", D, {**GOOD, "deadline_s": 0}, 422, "bad_value", "deadline_s"),
    Row("no token", D, GOOD, 401, "unauthorized", token=""),
    Row("another token", D, GOOD, 401, "unauthorized", token="web "+"x"),
    Row("wrong scope", D, GOOD, 403, "wrong_scope", "lacks the scope decide; it has read", token="reader"),
    Row("tenant of others", D, {**GOOD, "tenant": "t"}, 403, "wrong_tenant", "another tenant"),
    Row("unknown tenant", D, {**GOOD, "tenant": "x"}, 404, "unknown_tenant", "no tenant 'x'", token="any"),
    Row("tenant with a path", D, {**GOOD, "tenant": "../t"}, 404, "unknown_tenant", token="any"),
    Row("id of another request", D, {**GOOD, "id": "first", "unit": "v"}, 409, "id_reused", "was used for another"),
    Row("replayed decision", D, {**GOOD, "id": "first"}, 200),
    Row("reward before its decision", R, {"id": "later", "value": 1}, 200, records=1),
    Row("reward NaN", R, b'{"id": "first", "value": NaN}', 422, "not_finite", "value must be finite"),
    Row("reward as text", R, {"id": "first", "value": "1"}, 422, "bad_type"),
    Row("reward without id", R, {"value": 1}, 422, "missing_field", "id is missing"),
    Row("reward from the future", R, {"id": "first", "value": 1, "at_s": NOW_S + 3600}, 422, "clock_skew",
        "3600 s ahead of the gateway's clock"),
    Row("reward before 1970", R, {"id": "first", "value": 1, "at_s": -1.0}, 422, "bad_value", "seconds since 1970"),
    Row("reward of a slow clock", R, {"id": "first", "value": 1, "at_s": NOW_S - 1e6}, 200, records=1),
    Row("reward of another tenant", R, {"id": "first", "value": 1, "tenant": "t"}, 403, "wrong_tenant"),
    Row("replayed reward", R, {"id": "first", "value": 1, "at_s": NOW_S, "source": "phone", "seq": 3}, 200),
    Row("number of another reward", R, {"id": "first", "value": 2, "at_s": NOW_S, "source": "phone", "seq": 3}, 409,
        "number_reused", "different: value"),
    Row("number below 0", R, {"id": "first", "value": 2, "at_s": NOW_S, "source": "phone", "seq": -2}, 422, "bad_type",
        "seq"),
    Row("number beyond what every log holds", R, {"id": "first", "value": 2, "at_s": 1.0, "source": "s", "seq": 2**53},
        422, "bad_type", "to 9007199254740991"),
    Row("number with a fraction", R, {"id": "first", "value": 2, "at_s": 1.0, "source": "s", "seq": 1.5}, 422,
        "bad_type", "seq must be a whole number"),
    Row("number without time", R, {"id": "first", "value": 2, "source": "phone", "seq": 4}, 422, "missing_field",
        "at_s"),
    Row("number without source", R, {"id": "first", "value": 2, "seq": 3}, 422, "bad_length", "source"),
    Row("key of another reward", R, {"id": "first", "value": 2, "key": "k"}, 409, "key_reused"),
    Row("kind of a shadow", R, {"id": "first", "value": -1, "kind": "shadow:v:0"}, 422, "reserved_kind",
        "gateway logs"),
    Row("probability of the caller", D, {**GOOD, "probability": 0}, 422, "unknown_field", "'probability'"),
    Row("log-probability of the caller", D, {**GOOD, "logp": 0.1}, 422, "unknown_field", "'logp'"),
    Row("reward true", R, {"id": "first", "value": True}, 422, "bad_type", "value must be a number"),
    Row("empty batch", f"{D}/batch", {"decisions": []}, 422, "bad_batch"),
    Row("batch of another kind", f"{D}/batch", {"rewards": []}, 422, "unknown_field"),
    *(Row(f"path {trick} as id", D, {**GOOD, "id": trick, "unit": trick}, 200, records=1) for trick in PATHS),
    Row("SQL as id and unit", D, {**GOOD, "id": SQL, "unit": SQL}, 200, records=1),
    Row("SQL as action", D, {**GOOD, "actions": [SQL]}, 422, "unknown_action"),
    Row("SQL as category", D, {**GOOD, "context": {"age": 1, "country": SQL}}, 200, records=1),
    Row("SQL as kind and source", R, {"id": SQL, "value": 1, "kind": SQL, "source": SQL, "seq": 0, "at_s": 1.0}, 200,
        records=1),
    Row("SQL as key", R, {"id": "first", "value": 1, "key": SQL}, 200, records=1),
    Row("SQL as feature", D, {**GOOD, "context": {"age": 1, SQL: 1}}, 422, "schema_drift", "is not a feature"),
    Row("SQL as field", D, {**GOOD, SQL: 1}, 422, "unknown_field"),
    Row("SQL as deadline", D, {**GOOD, "deadline_s": SQL}, 422, "bad_type", "deadline_s"),
    Row("SQL as value", R, {"id": "first", "value": SQL}, 422, "bad_type", "value"),
    Row("SQL as time", R, {"id": "first", "value": 1, "at_s": SQL}, 422, "bad_type", "at_s"),
    Row("SQL as number", R, {"id": "first", "value": 1, "at_s": 1.0, "source": "s", "seq": SQL}, 422, "bad_type",
        "seq"),
    Row("SQL as tenant", D, {**GOOD, "tenant": SQL}, 404, "unknown_tenant", token="any"),
]  # fmt: skip


@dataclass
class AttackedService:
    """A service with one decision and two rewards, and the lines that it wrote."""

    opened: OpenedService
    app: object
    lines: list[str]

    def records(self) -> list[str]:
        return [repr(logged.record) for logged in pages(self.opened.log)]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("attacked") / "shop.toml"
    path.write_text(SERVICE, encoding="utf-8")
    lines: list[str] = []
    opened = open_service(path, clock=ManualClock(NOW_S), tell=lines.append)
    app = make_routes(opened).app()
    headers = {"authorization": "Bearer web"}
    assert post(app, D, {**GOOD, "id": "first"}, headers).status == 200
    assert post(app, R, {"id": "first", "value": 1, "at_s": NOW_S, "source": "phone", "seq": 3}, headers).status == 200
    assert post(app, R, {"id": "first", "value": 1, "key": "k"}, headers).status == 200
    yield AttackedService(opened, app, lines)
    opened.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_input_has_a_status_a_message_and_a_line_and_loses_nothing(row: Row, attacked: AttackedService) -> None:
    before = attacked.records()
    attacked.lines.clear()
    attacked.opened.clock.advance(60.0)  # lines of the same fault are limited by the minute
    body = row.body
    if row.code == "clock_skew":
        body = {**row.body, "at_s": row.body["at_s"] + attacked.opened.clock.now_s() - NOW_S}
    answer = post(attacked.app, row.path, body, {"authorization": f"Bearer {row.token}"})
    assert answer.status == row.status, answer.body
    if row.code:
        fault = answer.json()["error"]
        assert fault["code"] == row.code
        assert row.words in fault["message"]
        assert [json.loads(line)["fault"] for line in attacked.lines] == [row.code]
        assert json.loads(attacked.lines[0])["status"] == row.status
    else:
        assert attacked.lines == []
    after = attacked.records()
    assert after[: len(before)] == before
    assert len(after) == len(before) + row.records
    assert post(attacked.app, D, {**GOOD, "id": "first"}, {"authorization": "Bearer web"}).status == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-length": "999999999"}, 413, "too_large"),  # refused before the body is read
        ({"idempotency-key": "a\tb"}, 422, "bad_text"),
        ({"idempotency-key": "x" * 300}, 422, "bad_length"),
        ({"idempotency-key": "first", "x-tenant": "t"}, 200, ""),  # replayed; a tenant is no header
        ({"authorization": "Basic d2ViOg=="}, 401, "unauthorized"),
    ],
)
def test_bad_headers_have_a_status_and_a_line(
    headers: dict[str, str], status: int, code: str, attacked: AttackedService
) -> None:
    before = attacked.records()
    attacked.lines.clear()
    attacked.opened.clock.advance(60.0)
    answer = post(attacked.app, D, GOOD, {"authorization": "Bearer web"} | headers)
    assert (answer.status, attacked.records()) == (status, before)
    assert [json.loads(line)["fault"] for line in attacked.lines] == ([code] if code else [])


def test_an_unsound_entry_of_a_batch_does_not_touch_the_others(attacked: AttackedService) -> None:
    bad = [
        {"at_s": -1.0},
        {"at_s": 1.0, "source": "s", "seq": 2**60},
        {"value": "1"},
        {"id": "a\x00"},
        {"kind": "shadow:v:0"},
    ]
    rewards = [{"id": "first", "value": 1, **one} for one in [*bad, {}]]
    before = len(attacked.records())
    answer = post(attacked.app, f"{R}/batch", {"rewards": rewards}, {"authorization": "Bearer web"})
    assert [one.get("status", "refused") for one in answer.json()["answers"]] == ["refused"] * 5 + ["joined"]
    twice = [{**GOOD, "id": "twin"}, {**GOOD, "id": "twin", "unit": "v"}, GOOD]
    answer = post(attacked.app, f"{D}/batch", {"decisions": twice}, {"authorization": "Bearer web"})
    told = [one.get("error", {}).get("code", "") for one in answer.json()["answers"]]
    assert told == ["", "id_reused", ""]
    assert len(attacked.records()) == before + 3


def test_a_reward_before_its_decision_joins_when_the_decision_arrives(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(SERVICE + '[join]\nrule = "first"\n', encoding="utf-8")
    opened = open_service(path, clock=ManualClock(NOW_S), tell=print)
    assert opened.service.reward("d", 1.0, tenant="s").status == "waiting"
    opened.service.decide("u", {"age": 1.0, "country": "x"}, id="d", tenant="s")
    outcomes = [logged.record for logged in pages(opened.log) if isinstance(logged.record, Outcome)]
    assert [one.decision_id for one in outcomes] == ["d"]
    view = opened.view("s", as_of_s=NOW_S + 1e6)
    assert (view.counts.joined, view.counts.orphans) == (1, 0)
    opened.close()


def test_lines_of_one_fault_are_limited_and_counted(attacked: AttackedService) -> None:
    attacked.opened.clock.advance(60.0)
    attacked.lines.clear()
    for _ in range(100):
        post(attacked.app, D, b"x", {"authorization": "Bearer web"})
    assert len(attacked.lines) == 20
    attacked.opened.clock.advance(60.0)
    post(attacked.app, D, b"x", {"authorization": "Bearer web"})
    assert json.loads(attacked.lines[-1])["suppressed"] == 80
