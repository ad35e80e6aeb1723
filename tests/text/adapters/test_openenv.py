"""Worlds of OpenEnv servers, on a stand-in that speaks its protocol: sessions, limits, faults, and what a run asks."""

import json
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import Server, ServerConnection, serve

from hone.cli.main import main
from hone.core.dialogue import PolicyTurn
from hone.core.errors import ConfigError, ResourceError
from hone.text.adapters.openenv import OpenEnvServerError, OpenEnvWorld, check_server, text_action

CONFIG = """
recipe = "grpo"
steps = 2
[model.new]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
max_positions = 64
alphabet = "0123456789"
[task]
source = "openenv:{address}"
turns = 2
size = 4
[rollout]
prompts_per_step = 2
samples_per_prompt = 2
max_tokens = 3
stop = ["0", "1", "2", "3"]
[learner]
lr = 1e-2
"""


class StandIn:
    """A server of one environment: say the digit that is shown, twice. It allows `most` sessions at the same time."""

    def __init__(self, most: int, fields: dict[str, object] | None = None) -> None:
        self.most, self.active, self.largest = most, 0, 0
        self.schema = {"properties": fields or {"text": {"type": "string"}, "metadata": {"type": "object"}}}
        self.lock = threading.Lock()
        self.server: Server = serve(self.session, "127.0.0.1", 0, process_request=self.http)
        self.address = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def http(self, _connection: ServerConnection, request: object) -> Response | None:
        if request.path != "/schema":
            return None
        body = json.dumps({"action": self.schema}).encode()
        return Response(HTTPStatus.OK, "OK", Headers({"Content-Length": str(len(body))}), body)

    def session(self, connection: ServerConnection) -> None:
        with self.lock:
            if self.active == self.most:
                data = {"message": "full", "code": "CAPACITY_REACHED", "max_sessions": self.most}
                connection.send(json.dumps({"type": "error", "data": data}))
                return
            self.active += 1
            self.largest = max(self.largest, self.active)
        try:
            self.play(connection)
        except ConnectionClosed:
            pass
        finally:
            with self.lock:
                self.active -= 1

    def play(self, connection: ServerConnection) -> None:
        digit = turn = 0
        for raw in connection:
            message = json.loads(raw)
            answer = {
                "type": "observation",
                "data": {"observation": {"digit": str(digit)}, "reward": None, "done": False},
            }
            match message["type"]:
                case "close":
                    return
                case "state":
                    answer = {"type": "state", "data": {"step_count": turn}}
                case "reset":
                    digit = message["data"]["seed"] % 4
                    answer["data"]["observation"]["digit"] = str(digit)
                case "step" if message["data"] == {"text": "9"}:
                    answer = {"type": "error", "data": {"message": "nine", "code": "EXECUTION_ERROR"}}
                case "step":
                    turn += 1
                    right = message["data"].get("text") == str(digit)
                    digit = (digit + 1) % 4
                    seen = {"digit": str(digit), **({"more": 1} if turn > 2 else {})}
                    answer["data"] = {"observation": seen, "reward": 0.5 * right, "done": turn == 2}
            connection.send(json.dumps(answer))

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(300)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn(most=4)
    yield made
    made.close()


def test_a_dialogue_resets_by_the_rows_seed_and_is_paid_by_the_server(stand_in: StandIn) -> None:
    world = OpenEnvWorld(stand_in.address, prompt="say ")
    begun = world.begin({"seed": 6}, 1)
    first, second = world.answer(PolicyTurn(text="2")), world.answer(PolicyTurn(text="0"))
    world.close()
    assert begun.messages == [{"role": "user", "content": "say 2"}]
    assert (first.messages, first.reward, first.done) == ([{"role": "user", "content": "3"}], 0.5, False)
    assert (list(second.messages), second.reward, second.done) == ([], 0.0, True)
    assert stand_in.active == 0


def test_a_server_that_fails_says_its_code_and_words(stand_in: StandIn) -> None:
    world = OpenEnvWorld(stand_in.address)
    world.begin({}, 0)
    with pytest.raises(OpenEnvServerError, match="answered step with EXECUTION_ERROR: nine"):
        world.answer(PolicyTurn(text="9"))
    world.close()


def test_a_server_of_four_sessions_is_refused_for_64_with_its_number(stand_in: StandIn) -> None:
    check_server(stand_in.address, 4, {})
    words = r"allows 4 sessions at the same time \(max_sessions\), 4 were free, and this run holds up to 64"
    with pytest.raises(ResourceError, match=words):
        check_server(stand_in.address, 64, {})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": {"type": "string"}, "y": {"type": "string"}}, "has the fields x, y; name the one"),
        ({"x": {"type": "integer"}}, "has the fields x; name the one"),
        ({}, "has the fields none"),
    ],
)
def test_actions_without_one_text_ask_for_its_name(fields: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        text_action({"properties": fields}, "http://here")
    assert text_action({"properties": {**fields, "z": {"type": "string"}}, "required": ["z"]}, "http://here") == "z"


def test_a_run_trains_on_a_server_and_leaves_no_session(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("openenv.toml").write_text(CONFIG.format(address=stand_in.address), encoding="utf-8")
    assert main(["train", "openenv.toml"]) == 0
    lines = [json.loads(line) for line in Path("runs/openenv/metrics.jsonl").read_text().splitlines()]
    assert [line["reward/missing"] for line in lines] == [0.0, 0.0]
    assert stand_in.largest == 4
    assert stand_in.active == 0


@pytest.mark.parametrize(
    ("source", "options", "code", "words"),
    [
        ("openenv:http://127.0.0.1:9", [], 5, "no OpenEnv server answers at http://127.0.0.1:9"),
        ("openenv:127.0.0.1:9", [], 2, "expected openenv:http://HOST:PORT"),
        ("openenv:http://example.org:8000", [], 2, "whoever runs example.org reads what the policy says"),
        ("agents:127.0.0.1", [], 2, "expected agents:HOST:PORT"),
        ("agents:0.0.0.0:8712", [], 2, "0.0.0.0 can be reached by other machines"),
        ("agents:127.0.0.1:8712", ["user_code.agents.python=python"], 2, "agents.python is for verifiers:NAME"),
        ("agents:127.0.0.1:8712", ["rollout.max_staleness=1"], 2, "rollout.max_staleness = 1: agents wait"),
        ("agents:127.0.0.1:8712", ['rollout.history="template"'], 2, "agents say in each request what the history is"),
        (
            "data.jsonl",
            ["user_code.agents.deadline_s=1", 'rewards={functions=[{use="exact_match"}]}'],
            2,
            "agents is for the sources verifiers:NAME and agents:HOST:PORT",
        ),
    ],
)
def test_wrong_sources_are_refused_at_the_door(
    source: str,
    options: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("openenv:{address}", source)
    if not source.startswith("openenv"):
        config = config.replace("turns = 2\n", "")
    Path("wrong.toml").write_text(config, encoding="utf-8")
    assert main(["plan", "wrong.toml", *options]) == code
    told = capsys.readouterr()
    assert words in " ".join((told.out + told.err).split())
