"""`hone serve` of a control policy: the answers of `predict`, faults by their field, keys, metrics, new checkpoints."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import uvicorn
from control_policies import control_policies, legal, observations
from manual_clock import ManualClock

from hone.cli.main import main
from hone.control import serving
from hone.control.networks.checkpoint import save_policy
from hone.control.predict import open_saved_policy
from hone.control.serving import PolicyRoutes, PolicyServerConfig, open_served_policy
from hone.core.clock import SystemClock
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata

POLICIES = control_policies()
SOURCE = Path(__file__).resolve().parents[2] / "src"


def routes_of(folder: Path, name: str, **limits: Any) -> PolicyRoutes:
    save_policy(POLICIES[name], folder)
    served = open_served_policy(folder, name="served", step=None)
    return PolicyRoutes(served=served, config=PolicyServerConfig(**limits), clock=ManualClock())


@contextlib.contextmanager
def live(routes: PolicyRoutes) -> Iterator[httpx2.Client]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(routes.app(), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=300) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize("name", ["ppo choices", "sac", "recurrent", "ppo masked", "ppo states"])
def test_answers_are_those_of_predict(name: str, tmp_path: Path) -> None:
    routes, saved = routes_of(tmp_path / "policy", name), open_saved_policy(tmp_path / "policy")
    seen, mask = observations(POLICIES[name], 3), legal(POLICIES[name], 3)
    with live(routes) as client:
        body: dict[str, Any] = {"observation": seen.tolist()}
        if mask is not None:
            body["mask"] = mask.tolist()
        answer = client.post("/v1/predict", json=body).json()
        action, state = saved.predict(seen, mask=mask)
        assert answer["action"] == action.tolist() and answer["policy"] == routes.served.fingerprint
        assert answer["state"] == (None if state is None else state.tolist())
        one = {"observation": seen[0].tolist(), **({} if mask is None else {"mask": mask[0].tolist()})}
        first = client.post("/v1/predict", json=one).json()["action"]
        np.testing.assert_allclose(first, action[0], atol=1e-6)
        if state is not None:
            again = client.post("/v1/predict", json={**body, "state": answer["state"], "episode_start": [False] * 3})
            np.testing.assert_array_equal(again.json()["action"], saved.predict(seen, state)[0])
        drawn = [client.post("/v1/predict", json={**body, "deterministic": False, "seed": 4}).json() for _ in range(2)]
        assert drawn[0] == drawn[1]
        described = client.get("/v1/policy").json()
        assert described["memory"] is (state is not None) and described["mask"] == (0 if mask is None else 3)
        assert described["observation"] == str(saved.observation)
        metrics = client.get("/metrics").text
        assert f"hone_decisions_total {3 + 1 + 3 * (state is not None) + 6}" in metrics
        assert 'hone_responses_total{path="/v1/predict",status="200"}' in metrics


@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        (b"{", 400, "not_json", "the body is not JSON"),
        (b"[1]", 400, "not_an_object", "must be an object"),
        (b"{}", 400, "missing_field", "no field observation"),
        ({"observation": [0, 0, 0, 0], "obs": 1}, 400, "unknown_field", "unknown field 'obs'"),
        ({"observation": [0, 0]}, 400, "invalid_value", "expected 4 numbers, or rows of them"),
        (b'{"observation": [0, 0, 0, NaN]}', 400, "invalid_value", "observation 0 is not finite at [3]: nan"),
        ({"observation": [0, 0, 0, "a"]}, 400, "invalid_value", "type <U"),
        ({"observation": [0, 0, 0, 0], "state": [1]}, 400, "invalid_value", "has no memory"),
        ({"observation": [0, 0, 0, 0], "mask": [True]}, 400, "invalid_value", "expected [1, 3] flags"),
        ({"observation": [0, 0, 0, 0], "deterministic": 1}, 400, "invalid_value", "deterministic must be"),
        ({"observation": [0, 0, 0, 0], "seed": -1}, 400, "invalid_value", "seed must be"),
        ({"observation": [[0, 0, 0, 0]] * 400}, 413, "too_large", "at most 4096"),
    ],
)
def test_faults_have_a_status_a_code_and_words(
    body: object, status: int, code: str, words: str, tmp_path: Path
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with live(routes_of(tmp_path / "policy", "ppo choices", most_body_bytes=4096)) as client:
        answer = client.post("/v1/predict", content=content)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"] == code and words in error["message"]


def test_other_routes_keys_and_the_end(tmp_path: Path) -> None:
    routes = routes_of(tmp_path / "policy", "td3", api_key="secret")
    with live(routes) as client:
        body = {"observation": [0.0] * 4}
        assert client.post("/v1/predict", json=body).status_code == 401
        key = {"Authorization": "Bearer secret"}
        assert client.post("/v1/predict", json=body, headers=key).status_code == 200
        missing = client.get("/v1/predict")
        assert missing.status_code == 404 and "served: POST /v1/predict" in missing.json()["error"]["message"]
        assert client.get("/live").json() == {"status": "ok"}
        assert client.get("/ready").json()["policy"] == routes.served.fingerprint
        routes.drain()
        assert client.get("/ready").status_code == 503
    (tmp_path / "key").write_text("other\n")
    told: list[str] = []
    routes.config = replace(routes.config, key_file=tmp_path / "key")
    serving._reload_key(routes, told.append)
    assert routes.config.api_key == "other" and told == ["reloaded: the key"]
    (tmp_path / "key").write_text("")
    serving._reload_key(routes, told.append)
    assert routes.config.api_key == "other" and "is empty" in told[-1]


def test_a_planner_that_is_too_slow_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = routes_of(tmp_path / "policy", "td3", deadline_s=0.01)
    release = threading.Event()

    def slow(*_: object) -> tuple[bytes, int]:
        release.wait(300)
        return b"{}", 0

    monkeypatch.setattr(serving, "answer_prediction", slow)
    with live(routes) as client:
        answer = client.post("/v1/predict", json={"observation": [0.0] * 4})
        release.set()
    assert answer.status_code == 408 and answer.json()["error"]["code"] == "deadline"


def test_a_newer_checkpoint_is_taken_up_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    run = create_run(
        tmp_path / "runs", "watched-1", config={}, metadata=RunMetadata(hone_version="1"), clock=SystemClock()
    )

    def save(step: int, name: str) -> None:
        run.checkpoints().save(step, {"step": step}, write_policy=lambda folder: save_policy(POLICIES[name], folder))

    save(1, "ppo choices")
    folder = run.checkpoints().at(1).policy_folder
    served = open_served_policy(folder, name="watched-1", step=1)
    routes = PolicyRoutes(served=served, config=PolicyServerConfig(follow=run.path), clock=ManualClock())
    told: list[str] = []
    serving.take_newest(routes, run.path, told.append)
    assert routes.served is served and not told
    save(2, "sac")
    serving.take_newest(routes, run.path, told.append)
    assert routes.served.fingerprint.startswith("watched-1@2-") and routes.served.step == 2
    save(3, "td3")
    (run.checkpoints_folder / "step_00000003" / "policy" / "model.safetensors").write_text("damaged")
    for _ in range(2):
        serving.take_newest(routes, run.path, told.append)
    assert routes.served.step == 2 and len(told) == 2 and "step 3 is not served" in told[1]


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    save_policy(POLICIES["ppo choices"], tmp_path / "mine")
    command = [sys.executable, "-m", "hone", "serve", str(tmp_path / "mine"), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/v1/predict", said)
        assert found is not None and "serving mine-" in said and "4 numbers" in said
        answer = httpx2.post(found[0], json={"observation": [[0.0] * 4] * 2}).json()
        assert len(answer["action"]) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        assert "stopped" in process.stdout.read()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--slots", "3", "--seed", "1"], 2, "--slots, --seed is for language models"),
        (["--strict"], 2, "--strict is for language models"),
        (["--host", "0.0.0.0"], 2, "give --api-key-file"),
        (["--follow"], 2, "is not in a run"),
        (["--port", "99999"], 5, "give another --port"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HONE_API_KEY", raising=False)
    save_policy(POLICIES["sac"], tmp_path / "mine")
    assert main(["serve", str(tmp_path / "mine"), *arguments]) == code
    assert words in capsys.readouterr().err
