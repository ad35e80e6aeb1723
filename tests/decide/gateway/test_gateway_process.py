"""`hone serve FILE` as a process: plan, drain, kill -9."""

import json
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gateway_process import GatewayProcess, send_until_killed, serving

from hone.cli.main import main
from hone.core.decisions import Decision
from hone.decide.gateway.opening import pages
from hone.decide.log.opening import open_decision_log

SHOP = """
[service]
features = ["age", "country=de"]
actions = ["banner", "mail", "none"]
safe_action = "none"

[policy]
kind = "linucb"
publish_every = 20

[join]
rule = "first"
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(SHOP, encoding="utf-8")
    return path


def test_the_plan_says_what_follows_from_the_file_and_what_is_missing(shop: Path, capsys) -> None:
    assert main(["serve", str(shop), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    for words in ("every action has probability 0.00667 or more", "learnt at the first one", "then none", "MiB",
                  "missing    [[service.clients]]", "missing    [monitor]"):  # fmt: skip
        assert words in plan
    assert not (shop.parent / "shop").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--slots", "3"], "--slots: for language models"),
        (["--host", "0.0.0.0"], "declare [[service.clients]] with tokens first"),
    ],
)
def test_wrong_options_are_named(shop: Path, arguments: list[str], words: str, capsys) -> None:
    assert main(["serve", str(shop), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_dry_run_is_for_service_files(tmp_path: Path, capsys) -> None:
    assert main(["serve", str(tmp_path), "--dry-run"]) == 2
    assert "--dry-run is for service files" in capsys.readouterr().err


def check_log(shop: Path, acked: dict[str, tuple[str, float]]) -> None:
    """Every answered record is in the log, as it was answered, and none is there twice."""
    log = open_decision_log(shop.parent / "shop" / "decisions.db")
    records = [logged.record for logged in pages(log)]
    decisions = {one.id: one for one in records if isinstance(one, Decision)}
    names = Counter(one.id if isinstance(one, Decision) else f"reward {one.decision_id}" for one in records)
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name in acked if name not in names] == []
    for name, (action, logp) in acked.items():
        if name in decisions:
            one = decisions[name]
            assert (one.actions.names[one.executed], one.executed_logp) == (action, logp)
    assert {mark.missing for mark in log.watermarks()} == {0}
    log.close()


def kill_at_random_moments(shop: Path, kills: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    acked: dict[str, tuple[str, float]] = {}
    number = 0
    for _ in range(kills):
        with serving(shop) as server:
            threading.Timer(float(draws.uniform(0.05, 0.5)), server.kill).start()
            number = send_until_killed(server, number, acked)
        check_log(shop, acked)
    assert len(acked) > kills


def test_a_killed_server_loses_no_answer_and_stores_none_twice(shop: Path) -> None:
    kill_at_random_moments(shop, 2, seed=100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 111))
def test_a_server_killed_at_100_moments_loses_no_answer_and_stores_none_twice(seed: int, shop: Path) -> None:
    kill_at_random_moments(shop, 10, seed=seed)


def answered_in_one_packet(server: GatewayProcess, body: bytes) -> bool:
    """True if one read brings the whole answer."""
    head = f"POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(head + body)
        told, _, answer = connection.recv(65536).partition(b"\r\n\r\n")
    return told.startswith(b"HTTP/1.1 200") and json.loads(answer)["action"] in ("banner", "mail", "none")


def test_a_signal_ends_the_server_after_its_requests(shop: Path) -> None:
    with serving(shop) as server:
        assert server.post("/v1/decide", {"unit": "u", "context": {"age": 1, "country": "fr"}})[0] == 200
        assert answered_in_one_packet(server, b'{"unit": "v", "context": {"age": 1, "country": "fr"}}')
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stdout is not None
        assert "no key has changed; tokens were read again" in server.process.stdout.readline()
        server.process.send_signal(signal.SIGTERM)
        output, _ = server.process.communicate(timeout=300)
        assert server.process.returncode == 0
        assert "every record is in the log" in output


def test_a_session_over_a_websocket_is_answered_until_the_server_stops(shop: Path) -> None:
    client = pytest.importorskip("websockets.sync.client")
    with serving(shop) as server, client.connect(f"ws://127.0.0.1:{server.port}/v1/session") as session:
        for number in range(3):
            body = {"op": "decide", "unit": f"u{number}", "context": {"age": 0.25, "country": "de"}, "ref": number}
            session.send(json.dumps(body))
            answer = json.loads(session.recv(timeout=30))
            assert answer["ref"] == number and answer["action"] in ("banner", "mail", "none")
        session.send(json.dumps({"op": "reward", "id": answer["id"], "value": 1.0}))
        assert json.loads(session.recv(timeout=30))["status"] == "joined"
        server.process.send_signal(signal.SIGTERM)
        session.send(json.dumps({"op": "reward", "id": answer["id"], "value": 1.0}))
        server.process.wait(timeout=300)
