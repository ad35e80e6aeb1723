"""Features of a store in decisions: joined and logged, missing, old, late, down; and nothing changes afterwards."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from gateway_parts import HttpAnswer, post
from log_servers import LogServer, MissingServerError, redis_server
from manual_clock import ManualClock
from resp_server import RespServer, resp_server

from hone.cli.main import main
from hone.core.decisions import Decision
from hone.core.errors import ConfigError, DataError
from hone.decide.gateway.feature_store import EntityKey, StoredRows
from hone.decide.gateway.opening import OpenedService, open_service, pages, read_service_file
from hone.decide.gateway.plan import plan_lines
from hone.decide.gateway.requests import DecisionRequest, RequestError
from hone.decide.gateway.run_service import make_routes
from hone.decide.gateway.upkeep import store_features

NOW_S = 1_700_000_000.0
HEAD = """
[service]
features = ["age", "spent", "country=de", "country=fr", "stock"]
actions = ["banner", "mail"]
safe_action = "mail"
deadline_s = 5.0

[policy]
kind = "epsilon_greedy"
floor = 0.5
"""
TABLE = """
[features]
address = "{address}"
deadline_s = {deadline_s}

[[features.groups]]
name = "visitor"
features = ["spent", "country"]
stale_s = 60
missing = "{missing}"
defaults = {{ spent = 2.5, country = "fr" }}

[[features.groups]]
name = "shop"
entity = "shop_id"
features = ["stock"]
missing = "default"
"""
CONTEXT = {"age": 0.5, "shop_id": "s1"}


def service_file(folder: Path, *, missing: str = "default", address: str = ":memory:", deadline_s: float = 1.0) -> Path:
    file = folder / "shop.toml"
    file.write_text(HEAD + TABLE.format(missing=missing, address=address, deadline_s=deadline_s))
    return file


class Shop:
    """A service, its clock and its lines."""

    def __init__(self, file: Path) -> None:
        self.clock, self.lines = ManualClock(NOW_S), list[str]()
        self.service: OpenedService = open_service(file, clock=self.clock, tell=self.lines.append)

    def contexts(self) -> list[list[float]]:
        records = (one.record for one in pages(self.service.log))
        return [record.context.tolist() for record in records if isinstance(record, Decision)]

    def counts(self) -> dict[tuple[str, str], int]:
        join = self.service.service.parts.features
        assert join is not None
        return dict(join.counts)

    def close(self) -> None:
        self.service.close()


def test_stored_features_are_joined_by_unit_and_by_a_field_and_logged_with_the_decision(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:
        assert (
            shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}, "bob": {"spent": 1.0}}) == 2
        )
        shop.service.put_features("shop", {"s1": {"stock": 40.0}})
        shop.service.decide("ada", CONTEXT)
        shop.service.decide("bob", CONTEXT)
        assert shop.contexts() == [[0.5, 7.0, 1.0, 0.0, 40.0], [0.5, 1.0, 0.0, 1.0, 40.0]]  # bob has no country: fr
        assert shop.counts() == {("visitor", "fresh"): 1, ("visitor", "missing"): 1, ("shop", "fresh"): 2}
        assert 'hone_features_total{group="visitor",state="missing"} 1' in shop.service.service.counters_text()


def test_a_value_is_used_up_to_its_age_and_not_beyond(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
        for wait_s, spent, state in ((60.0, 7.0, "fresh"), (0.001, 2.5, "old")):
            shop.clock.advance(wait_s)
            shop.service.decide("ada", CONTEXT)
            assert shop.contexts()[-1][1] == spent
            assert shop.counts()["visitor", state] == 1
        shop.service.put_features("visitor", {"ada": {"spent": 8.0}})  # one of two is fresh again
        shop.service.decide("ada", CONTEXT)
        assert shop.contexts()[-1] == [0.5, 8.0, 0.0, 1.0, 0.0]
        assert shop.counts()["visitor", "old"] == 2


def test_the_safe_action_is_taken_and_logged_with_its_own_probability(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path, missing="safe"))) as shop:
        decided = shop.service.decide("nobody", CONTEXT, id="d")
        assert (decided.action, decided.logp, decided.version) == ("mail", 0.0, "default:mail")
        assert decided.intervention == "fallback: features: visitor missing"
        assert 'hone_fallbacks_total{reason="features"} 1' in shop.service.service.counters_text()
        logged = next(one.record for one in pages(shop.service.log))
        assert isinstance(logged, Decision)
        assert (shop.service.replay(logged).action, logged.executed_logp) == (1, 0.0)
        shop.service.put_features("visitor", {"nobody": {"spent": 0.0, "country": "it"}})  # a category of no feature
        assert shop.service.decide("nobody", CONTEXT).version != "default:mail"
        assert shop.contexts()[-1] == [0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_request_is_refused_and_nothing_is_logged(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path, missing="refuse"))) as shop:
        with pytest.raises(
            RequestError, match="features: visitor missing for the entity 'ada': nothing was decided"
        ) as no:
            shop.service.decide("ada", CONTEXT, id="d")
        assert (no.value.status, no.value.code) == (422, "features_missing")
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
        first = shop.service.decide("ada", CONTEXT, id="d")
        shop.clock.advance(61.0)
        assert shop.service.decide("ada", CONTEXT, id="d") == first  # a repetition needs no features
        with pytest.raises(RequestError, match="visitor old"):
            shop.service.decide("ada", CONTEXT)
        assert len(shop.contexts()) == 1


def test_a_store_that_changes_later_changes_nothing_of_what_was_decided(tmp_path: Path) -> None:
    """No difference between training and serving: views, replays and repetitions read the row that was served."""
    file = service_file(tmp_path, address="features.db")
    with closing(Shop(file)) as shop:
        for number in range(40):
            shop.service.put_features("visitor", {f"u{number}": {"spent": number / 4, "country": "de"}})
            shop.service.decide(f"u{number}", CONTEXT, id=f"d{number}")
        before = shop.service.view().table
        records = [one.record for one in pages(shop.service.log)]
        answers = [shop.service.decide(f"u{number}", CONTEXT, id=f"d{number}") for number in range(40)]
    with closing(Shop(file)) as again:
        rows = {f"u{number}": {"spent": 1000.0, "country": None} for number in range(40)}
        again.service.put_features("visitor", rows, at_s=NOW_S + 1.0)
        table = again.service.view().table
        assert np.array_equal(table.contexts, before.contexts) and table.contexts[:, 1].max() == 39 / 4
        assert np.array_equal(table.logp, before.logp)
        for record in records:
            assert isinstance(record, Decision)
            choice = again.service.replay(record)
            assert (choice.action, choice.logp) == (record.executed, record.executed_logp)
        for number, answer in enumerate(answers):  # of the log, after the restart
            assert again.service.decide(f"u{number}", CONTEXT, id=f"d{number}") == answer
        with pytest.raises(RequestError, match="used for another request"):
            again.service.decide("u0", {**CONTEXT, "age": 0.25}, id="d0")
        again.service.decide("u0", CONTEXT)  # control: a new decision reads the store
        assert again.contexts()[-1][1] == 1000.0


def test_the_entity_of_a_group_is_logged_and_another_one_is_another_request(tmp_path: Path) -> None:
    file = service_file(tmp_path)
    for address in (":memory:", ":memory:"):  # the second service finds the answers in the log
        with closing(Shop(file)) as shop:
            shop.service.put_features("shop", {"s1": {"stock": 40.0}, "s2": {"stock": 40.0}})
            first = shop.service.decide("ada", CONTEXT, id="d")
            assert shop.service.decide("ada", CONTEXT, id="d") == first
            with pytest.raises(RequestError, match="used for another request"):
                shop.service.decide("ada", {**CONTEXT, "shop_id": "s2"}, id="d")  # of equal stock, and another shop
            made = [one.record for one in pages(shop.service.log) if isinstance(one.record, Decision)]
            assert [one.entities for one in made] == [(("shop_id", "s1"),)], address


def test_two_groups_of_one_field_log_its_entity_once(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    groups = [f'[[features.groups]]\nname = "{name}"\nentity = "shop_id"\nmissing = "default"\nfeatures = ["{name}"]\n'
              for name in ("spent", "stock")]  # fmt: skip
    file.write_text(
        HEAD.replace('"country=de", "country=fr", ', "") + '[features]\naddress = ":memory:"\n' + "".join(groups)
    )
    with closing(Shop(file)) as shop:
        shop.service.decide("ada", CONTEXT)
        made = next(one.record for one in pages(shop.service.log))
        assert isinstance(made, Decision) and made.entities == (("shop_id", "s1"),)


def test_gateways_that_take_one_name_at_once_count_its_features_once(tmp_path: Path) -> None:
    """The second gateway of a log does not know that the name is taken until the log refuses its decision."""
    shops: list[Shop] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        file = service_file(tmp_path / name, missing="refuse")
        file.write_text(file.read_text() + f'\n[log]\naddress = "{tmp_path / "common.db"}"\n')
        shops.append(Shop(file))
        shops[-1].service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
    requests = [DecisionRequest(unit=unit, context=CONTEXT, id=name) for unit, name in (("ada", "d"), ("bob", "e"))]
    answers = [shop.service.service.answer_many(requests) for shop in shops]
    assert answers[0][0] == answers[1][0] and len(shops[1].contexts()) == 1
    assert isinstance(answers[1][1], RequestError) and answers[1][1].code == "features_missing"
    # a repetition joins nothing, and a refused request counts once, although its batch was prepared twice
    assert [shop.counts() for shop in shops] == [
        {("visitor", "fresh"): 1, ("visitor", "missing"): 1, ("shop", "missing"): 1}, {("visitor", "missing"): 1},
    ]  # fmt: skip
    for shop in shops:
        shop.close()


def test_decisions_that_the_log_does_not_take_count_no_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:

        def refuse(*_: object) -> None:
            raise RequestError("the log takes no records", status=503, code="log_unavailable")

        with monkeypatch.context() as patch:
            patch.setattr(shop.service.service.parts.writer, "write", refuse)
            with pytest.raises(RequestError, match="takes no records"):
                shop.service.decide("ada", CONTEXT)
        assert shop.counts() == {}
        shop.service.decide("ada", CONTEXT)
        assert shop.counts() == {("visitor", "missing"): 1, ("shop", "missing"): 1}


# ------------------------------------------------------------------------------------------------------------- erasure


def filled_shop(folder: Path, **settings: str) -> Path:
    """A stopped service with two visitors in store and log."""
    file = service_file(folder, address="features.db")
    for old, new in settings.items():
        file.write_text(file.read_text().replace(old, new, 1))
    with closing(Shop(file)) as shop:
        rows = {name: {"spent": 7.0, "country": "de"} for name in ("ada", "bob")}
        shop.service.put_features("visitor", rows)
        shop.service.put_features("shop", {"s1": {"stock": 4.0}})
        for name in ("ada", "bob"):
            decided = shop.service.decide(name, CONTEXT)
            shop.service.reward(decided.id, 1.0)
    return file


def test_a_unit_is_erased_from_store_and_log_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, log = filled_shop(tmp_path), str(tmp_path / "shop" / "decisions.db")
    assert main(["log", log, "--erase", "ada"]) == 3
    message = capsys.readouterr().err
    assert "features.db beside" in message and "nothing was erased: `hone service FILE.toml --erase ada`" in message
    assert main(["service", str(file), "--erase", "ada"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "erased 2 stored features of unit ada of tenant default (visitor)",
        "group shop is kept by shop_id: if that names ada, put null for its values",
        "erased 2 records of unit ada of tenant default; views made before still hold them",
    ]
    with closing(Shop(file)) as shop:
        assert [one.record.unit for one in pages(shop.service.log) if isinstance(one.record, Decision)] == ["bob"]
        shop.service.decide("ada", CONTEXT)  # answered by the defaults, and not stored: the unit stays erased
        assert shop.counts()["visitor", "missing"] == 1
        assert len(shop.contexts()) == 1
    assert main(["log", log, "--erase", "ada"]) == 0  # nothing of ada is left beside it
    assert "a feature store elsewhere is untouched" in capsys.readouterr().out


def test_an_erasure_that_cannot_be_made_says_so_and_erases_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = filled_shop(tmp_path, **{"[service]": '[service]\ntenants = ["default", "south"]'})
    cases = {
        "--erase ada: ": (["--erase", "ada"], 2),
        "has no tenant 'east'; known: default, south": (["--erase", "ada", "--tenant", "east"], 3),
        "there is no such folder; nothing was erased": (["--erase", "ada", "--tenant", "south", "--archive", "x"], 3),
        "--tenant and --archive go with --erase, not with --verify": (["--verify", "x", "--tenant", "south"], 2),
    }
    for words, (options, code) in cases.items():
        assert main(["service", str(file), *options]) == code
        assert words in capsys.readouterr().err
    assert main(["service", str(file), "--erase", "ada", "--tenant", "south"]) == 0  # another tenant's ada
    assert "erased 0 stored features" in capsys.readouterr().out
    with closing(Shop(file)) as shop:
        assert len(shop.contexts()) == 2
    (tmp_path / "other").mkdir()
    assert main(["service", str(service_file(tmp_path / "other")), "--erase", "ada"]) == 3
    assert "there is no folder of this service yet" in capsys.readouterr().err


def test_a_unit_is_erased_from_an_archive_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = filled_shop(tmp_path)
    log = str(tmp_path / "shop" / "decisions.db")
    assert main(["log", log, "--retain", str(NOW_S + 1e6), "--archive", str(tmp_path / "old")]) == 0
    assert main(["service", str(file), "--erase", "bob", "--archive", str(tmp_path / "old")]) == 0
    assert f"erased 2 records of unit bob of tenant default from {tmp_path / 'old'}" in capsys.readouterr().out


def test_a_joint_decision_reads_the_features_of_its_first_unit_for_all(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}, "bob": {"spent": 1.0}})
        shop.service.decide_jointly(["ada", "bob"], CONTEXT)
        assert shop.contexts() == [[0.5, 7.0, 1.0, 0.0, 0.0]] * 2


def test_tenants_have_features_of_their_own(tmp_path: Path) -> None:
    file = service_file(tmp_path)
    file.write_text(file.read_text().replace("[service]", '[service]\ntenants = ["north", "south"]', 1))
    with closing(Shop(file)) as shop:
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}}, tenant="south")
        shop.service.decide("ada", CONTEXT)
        shop.service.decide("ada", CONTEXT, tenant="south")
        assert [row[1] for row in shop.contexts()] == [2.5, 7.0]


@pytest.mark.parametrize(
    ("context", "words", "code"),
    [
        ({"age": 0.5}, "context.shop_id is missing: it names an entity of the feature store", "missing_field"),
        ([0.5], "context must be an object with shop_id", "bad_type"),
        ({**CONTEXT, "spent": 1.0}, "context.spent is joined from the feature store: leave it out", "stored_feature"),
        ({**CONTEXT, "agee": 1.0}, "context.agee is not a feature of this service; did you mean age?", "schema_drift"),
        ({**CONTEXT, "shop_id": ""}, "context.shop_id has 0 characters", "bad_length"),
    ],
)
def test_requests_that_do_not_fit_are_refused(tmp_path: Path, context: object, words: str, code: str) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:
        with pytest.raises(RequestError, match=words) as caught:
            shop.service.decide("ada", context)  # type: ignore[arg-type]
        assert caught.value.code == code
        assert shop.contexts() == []


def test_a_group_by_unit_takes_contexts_by_place(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    table = '[features]\naddress = ":memory:"\ndeadline_s = 1.0\n[[features.groups]]\nname = "v"\nmissing = "default"\n'
    file.write_text(HEAD + table + 'features = ["spent", "country", "stock"]\n')
    with closing(Shop(file)) as shop:
        shop.service.put_features("v", {"ada": {"spent": 3.0, "country": "fr", "stock": 2.0}})
        shop.service.decide("ada", [0.25])
        assert shop.contexts() == [[0.25, 3.0, 0.0, 1.0, 2.0]]


# -------------------------------------------------------------------------------------------------------------- drills


class BlockedStore:
    """A store on a server that answers when the test lets it."""

    def __init__(self) -> None:
        self.free, self.reads = threading.Event(), 0

    def read(self, wanted: Mapping[EntityKey, Sequence[str]]) -> StoredRows:
        self.reads += 1
        self.free.wait()
        return {key: {} for key in wanted}

    def put(self, rows: object) -> None: ...

    def erase(self, keys: object) -> int:
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1/0", "features.db", ":memory:"])
def test_a_store_that_does_not_answer_costs_one_wait_and_no_answer(tmp_path: Path, address: str) -> None:
    """The store is still at its first answer when the third decision has been made."""
    if "redis" in address:
        pytest.importorskip("redis", reason="needs the extra `redis`")
    file = service_file(tmp_path, missing="safe", address=address, deadline_s=0.01)
    with closing(Shop(file)) as shop:
        join, blocked = shop.service.service.parts.features, BlockedStore()
        assert join is not None
        join.store = blocked
        try:
            answers = [shop.service.decide("ada", CONTEXT) for _ in range(3)]
            assert blocked.reads == 1
        finally:
            blocked.free.set()
        assert {one.intervention for one in answers} == {"fallback: features: visitor late"}
        assert shop.counts() == {("visitor", "late"): 3, ("shop", "late"): 3}
        assert "the store did not answer in time" in shop.lines[0]


def test_one_read_serves_all_decisions_that_are_made_together(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    with resp_server() as server, closing(Shop(service_file(tmp_path, address=server.address))) as shop:
        shop.service.put_features("visitor", {f"u{n}": {"spent": float(n), "country": "de"} for n in range(20)})
        server.trips.clear()
        requests = [DecisionRequest(unit=f"u{n}", context=CONTEXT) for n in range(20)]
        shop.service.service.answer_many(requests)
        assert server.trips == [["HMGET"] * 21]  # twenty visitors and one shop, in one round trip
        assert [row[1] for row in shop.contexts()] == list(map(float, range(20)))


def test_a_stand_in_of_redis_that_goes_and_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    with resp_server() as server:
        shop = Shop(service_file(tmp_path, missing="safe", address=server.address))
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
        assert shop.service.decide("ada", CONTEXT).intervention == ""
    with closing(shop):
        check_down(shop)
        with resp_server(RespServer(port=server.port, hashes=server.hashes)):
            check_back(shop)


def check_down(shop: Shop) -> None:
    for _ in range(2):
        decided = shop.service.decide("ada", CONTEXT)
        assert (decided.action, decided.intervention) == ("mail", "fallback: features: visitor late")
    with pytest.raises(RequestError, match="does not answer") as caught:
        shop.service.put_features("visitor", {"ada": {"spent": 9.0}})
    assert (caught.value.status, caught.value.code) == (503, "features_unavailable")


def check_back(shop: Shop) -> None:
    until_answered(shop)
    assert shop.contexts()[-1][1] == 7.0


def until_answered(shop: Shop) -> None:
    """Decide until the store's answers are in time again, as a busy machine may delay some."""
    for _ in range(200):
        with suppress(RequestError):
            if not shop.service.decide("ada", CONTEXT).intervention:
                return
        time.sleep(0.02)
    raise AssertionError("the store's answers are not used again")


@pytest.fixture
def redis_of_this_machine() -> Iterator[LogServer]:
    pytest.importorskip("redis", reason="needs the extra `redis`")
    try:
        server = redis_server()
    except MissingServerError as missing:
        pytest.skip(str(missing))
    server.start()
    try:
        yield server
    finally:
        server.remove()


def test_a_redis_that_is_killed_and_started_again(tmp_path: Path, redis_of_this_machine: LogServer) -> None:
    server = redis_of_this_machine
    with closing(Shop(service_file(tmp_path, missing="safe", address=server.address))) as shop:
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
        assert shop.service.decide("ada", CONTEXT).intervention == ""
        server.kill()
        check_down(shop)
        server.start()
        check_back(shop)


def test_a_redis_that_sleeps(tmp_path: Path, redis_of_this_machine: LogServer) -> None:
    """A server that is stopped for a while, as a long script or a swapping machine stops it."""
    import redis

    file = service_file(tmp_path, missing="refuse", address=redis_of_this_machine.address, deadline_s=0.05)
    with closing(Shop(file)) as shop, redis.Redis.from_url(redis_of_this_machine.address) as client:
        shop.service.put_features("visitor", {"ada": {"spent": 7.0, "country": "de"}})
        client.execute_command("CLIENT", "PAUSE", 400, "ALL")
        for _ in range(3):
            with pytest.raises(RequestError, match="visitor late") as caught:
                shop.service.decide("ada", CONTEXT)
            assert (caught.value.status, caught.value.code) == (503, "features_late")
        client.ping()  # answered after the pause
        until_answered(shop)


# ------------------------------------------------------------------------------------------------------- doors and plan


def put(app: object, body: object, token: str = "write") -> HttpAnswer:
    return post(app, "/v1/features", body, {"authorization": f"Bearer {token}"})


def test_features_are_put_over_http_by_tokens_with_their_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = service_file(tmp_path)
    file.write_text(
        file.read_text() + '\n[[service.clients]]\nname = "job"\ntoken_env = "WRITE"\nscopes = ["features"]\n'
        '\n[[service.clients]]\nname = "web"\ntoken_env = "WEB"\nscopes = ["decide"]\n'
    )
    monkeypatch.setenv("WRITE", "write")
    monkeypatch.setenv("WEB", "web")
    rows = {"group": "visitor", "rows": {"ada": {"spent": 7, "country": "de"}}, "at_s": NOW_S}
    with closing(Shop(file)) as shop:
        app = make_routes(shop.service).app()
        assert put(app, rows).json() == {"stored": 1}
        assert put(app, rows, "web").status == 403
        assert (
            post(app, "/v1/decide", {"unit": "ada", "context": CONTEXT}, {"authorization": "Bearer write"}).status
            == 403
        )
        faults = {
            "no group 'visitr' of features here; did you mean visitor?": {"group": "visitr", "rows": {}},
            "rows must be an object of 1 to 10000 entities": {"group": "visitor", "rows": {}},
            "rows.ada must be an object of values by feature": {"group": "visitor", "rows": {"ada": {}}},
            "rows.ada.spend is not a feature of visitor; did you mean spent?": {
                "group": "visitor", "rows": {"ada": {"spend": 1}},
            },
            "rows.ada.spent must be a number, got 'much'": {"group": "visitor", "rows": {"ada": {"spent": "much"}}},
            "rows.ada.country must be text, got 7": {"group": "visitor", "rows": {"ada": {"country": 7}}},
            "at most 300 s ahead of the gateway's clock": {**rows, "at_s": NOW_S + 301},
            "unknown field 'row'; did you mean rows?": {"group": "visitor", "row": {}},
            "no tenant 'east' here": {**rows, "tenant": "east"},
        }  # fmt: skip
        for words, body in faults.items():
            answer = put(app, body)
            assert answer.status in {404, 422} and words in answer.json()["error"]["message"]
        assert put(app, {**rows, "at_s": NOW_S + 300}).status == 200


def test_the_schema_says_what_requests_send_and_what_is_put(tmp_path: Path) -> None:
    with closing(Shop(service_file(tmp_path))) as shop:
        document = dict(make_routes(shop.service).openapi)
    text = json.dumps(document["components"]["schemas"]["Decide"]["properties"]["context"])  # type: ignore[index]
    assert "shop_id" in text and "age" in text and "spent" not in text and "country" not in text
    assert "/v1/features" in document["paths"]  # type: ignore[operator]


def test_rows_of_a_file_are_stored_or_every_wrong_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rows = service_file(tmp_path, address="features.db"), tmp_path / "rows.jsonl"
    lines: list[object] = [
        {"group": "visitor", "rows": {f"u{n}": {"spent": float(n)} for n in range(5)}, "at_s": NOW_S},
        {"group": "shop", "rows": {"s1": {"stock": 3}}, "at_s": NOW_S, "tenant": "default"},
    ]
    rows.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert main(["service", str(file), "--features", str(rows)]) == 0
    assert "stored 6 rows of features" in capsys.readouterr().out
    with closing(Shop(file)) as shop:
        shop.service.decide("u4", CONTEXT)
        assert shop.contexts() == [[0.5, 4.0, 0.0, 1.0, 3.0]]
    rows.write_text("\n".join(map(json.dumps, [lines[0], 7, {"group": "shop", "rows": {"s1": {"stok": 1}}}])) + "\n{")
    assert main(["service", str(file), "--features", str(rows)]) == 3
    message = capsys.readouterr().err
    assert all(
        words in message
        for words in ("rows.jsonl:2: not an object", "rows.jsonl:3: rows.s1.stok is not a", "rows.jsonl:4:")
    )
    assert "rows.jsonl:1" not in message


def test_a_service_without_a_store_says_so(tmp_path: Path) -> None:
    file = tmp_path / "plain.toml"
    file.write_text(HEAD)
    with closing(Shop(file)) as shop, pytest.raises(ConfigError, match=r"add a \[features\] table"):
        shop.service.put_features("visitor", {})
    with pytest.raises(DataError, match="cannot read the rows"):
        store_features(service_file(tmp_path), tmp_path / "none.jsonl", ManualClock(NOW_S))


def test_the_plan_says_what_is_joined_and_what_stands_for_missing_values(tmp_path: Path) -> None:
    lines = plan_lines(service_file(tmp_path, missing="safe", address="features.db"), clock=ManualClock(NOW_S))
    told = [line for line in lines if line.startswith("features")]
    assert told[0].endswith("shop/features.db, within 1000 ms")
    assert told[1] == "features   visitor of the unit: spent, country; missing or older than 1 min: then mail"
    assert told[2] == "features   shop of shop_id: stock; missing: then the defaults"


def test_every_contradiction_of_the_table_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(
        HEAD.replace("deadline_s = 5.0", "deadline_s = 0.01")
        + '[features]\n[[features.groups]]\nname = "a"\nfeatures = ["spend"]\n[[features.groups]]\nname = "b"\n'
        'entity = "age"\nfeatures = ["spent", "country"]\ndefaults = { spent = "much", country = 1.0 }\n'
    )
    with pytest.raises(ConfigError) as caught:
        read_service_file(file)
    words = str(caught.value)
    for fault in (
        "group 'a' joins 'spend', which is not in [service] features", "group 'b' has the entity 'age'",
        "the default 'much' of 'spent', which is a number", "the default 1.0 of 'country', which is a category",
        "deadline_s 0.01 must be below [service] deadline_s 0.01",
    ):  # fmt: skip
        assert fault in words
