"""`hone serve` as a process: what it says, signals, new checkpoints; and an engine that a trainer shares."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch
from live_server import live, opened, save_tiny
from manual_clock import ManualClock

from hone.cli.main import main
from hone.core.clock import SystemClock
from hone.core.errors import DivergedError
from hone.core.generation import Request, SamplingParams, generate
from hone.models.packing import pack_rows
from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.text.evaluate.open_policy import ModelSource, ServedModelSource, open_policy
from hone.text.serving.completions import run_server
from hone.text.serving.completions.run_server import CheckpointFollower, ServerPlace
from hone.text.serving.completions.service import EngineService

SOURCE = Path(__file__).resolve().parents[3] / "src"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("served"))


def test_a_process_serves_until_sigterm_and_ends_its_requests_first(folder):
    command = [sys.executable, "-m", "hone", "serve", str(folder), "--port", "0", "--model", "m", "--slots", "2"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        said = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", said)[0]
        assert "serving m (m-" in said and "2 slots, context 512 tokens" in said
        assert httpx2.get(f"{url}/health").json()["status"] == "ok"
        replies = []
        body = {"model": "m", "prompt": "a", "max_tokens": 500, "n": 2}
        ask = lambda: replies.append(httpx2.post(f"{url}/v1/completions", json=body, timeout=120))  # noqa: E731
        asking = threading.Thread(target=ask)
        asking.start()
        while "hone_answers_in_progress 2" not in httpx2.get(f"{url}/metrics").text and not replies:
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "reloaded; no newer checkpoint\n"
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert replies[0].status_code == 200
        assert process.wait(300) == 0
        assert "stopped" in process.stdout.read()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--host", "0.0.0.0"], 2, "give --api-key-file"),
        (["--port", "99999"], 5, "give another --port"),
        (["--context", "9999"], 2, "--context must be 2 to 512"),
        (["--follow"], 2, "is not in a run"),
        (["--tool-format", "xml"], 2, "no format 'xml'"),
        (["--weights", "int5"], 2, "--weights must be float32, bfloat16, int8, int4, got 'int5'"),
        (["--slots", "0"], 2, "--slots must be"),
        (["--deadline", "0"], 2, "--deadline must be"),
        (["--per-client", "-1"], 2, "--per-client must be"),
        (["--max-body", "9"], 2, "--max-body must be"),
        (["--api-key-file", "/nowhere/key"], 2, "--api-key-file /nowhere/key: cannot be read: FileNotFoundError"),
        (["--api-key-file", "x", "--api-key", "secret"], 2, "exclude each other"),
    ],
)
def test_bad_options_are_refused(folder, arguments, code, words, capsys, monkeypatch):
    monkeypatch.delenv("HONE_API_KEY", raising=False)
    assert main(["serve", str(folder), *arguments]) == code
    told = capsys.readouterr().err
    assert words in told and "secret" not in told


def test_sighup_takes_up_a_new_key_and_the_newest_checkpoint(folder, tmp_path):
    (tmp_path / "key").write_text("first\n")
    run = create_run(
        tmp_path / "runs", "watched", config={}, metadata=RunMetadata(hone_version="1"), clock=SystemClock()
    )
    save_step(run.checkpoints(), 1, folder)
    model = opened(run.checkpoints().at(1).policy_folder, name="watched", run=run.path)
    with live(model, key_file=tmp_path / "key", rules={"api_key": "first"}) as server:
        place = ServerPlace(key_file=tmp_path / "key")
        told: list[str] = []
        follower = CheckpointFollower(opened=server.model, service=server.service, tell=told.append)

        def reload() -> str:
            run_server._reload(server.routes, place, follower, told.append)
            return told[-1]

        def status(key: str) -> int:
            return httpx2.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

        assert reload() == "reloaded: the key; no newer checkpoint"
        (tmp_path / "key").write_text("second")
        save_step(run.checkpoints(), 2, folder)
        assert (status("first"), status("second")) == (200, 401)
        assert reload() == "reloaded: the key"
        assert (status("first"), status("second")) == (401, 200)
        assert server.model.engine.version == 2
        (tmp_path / "key").write_text(" \n")
        assert reload() == f"not reloaded: --api-key-file {tmp_path / 'key'} is empty: write the key into it"
        assert status("second") == 200, "what was served before stays"
    run.close()


def test_a_server_is_ready_while_passes_succeed_and_alive_while_its_engine_is(folder):
    clock = ManualClock(100.0)
    service = EngineService(opened(folder).engine, clock)
    assert (service.alive, service.fault()) == (True, "the engine has not begun")
    service.start()
    assert (service.alive, service.fault()) == (True, "")
    service._failed = "a pass of the engine failed: RuntimeError", clock.monotonic_s()
    assert service.fault() == "a pass of the engine failed: RuntimeError"
    clock.advance(5.0)
    assert service.fault() == "", "the next request tries"
    service.close()
    assert service.fault() == "the server is shutting down"


def test_the_routes_tell_alive_from_ready(folder, monkeypatch):
    with live(opened(folder)) as server:
        assert [server.get(path).status_code for path in ("/live", "/ready", "/health")] == [200, 200, 200]
        monkeypatch.setattr(server.model.engine, "step", broken_step)
        assert server.post("/v1/completions", {"model": "tiny", "prompt": "a"}).status_code == 500
        ready = server.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "a pass of the engine failed: FloatingPointError")
        assert server.get("/health").status_code == 503 and server.get("/live").status_code == 200
        monkeypatch.undo()
        assert server.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}).status_code == 200
        assert server.get("/ready").status_code == 200
        server.routes.drain()
        assert server.get("/ready").json()["status"] == "draining" and server.get("/live").status_code == 200


def broken_step() -> None:
    raise FloatingPointError("no numbers")


def save_step(checkpoints: CheckpointFolder, step: int, weights: Path) -> None:
    def write(target: Path) -> None:
        for file in weights.iterdir():
            (target / file.name).write_bytes(file.read_bytes())

    checkpoints.save(step, {}, write_policy=write)


def test_new_checkpoints_are_taken_up_between_answers(folder, tmp_path):
    """A damaged one is told once, and the server stays with the weights that it has."""
    other = save_tiny(tmp_path / "other", seed=8)
    run = create_run(
        tmp_path / "runs", "watched", config={}, metadata=RunMetadata(hone_version="1"), clock=SystemClock()
    )
    checkpoints = run.checkpoints()
    save_step(checkpoints, 1, folder)
    told: list[str] = []
    with live(opened(checkpoints.at(1).policy_folder, name="watched", run=run.path)) as server:
        follower = CheckpointFollower(opened=server.model, service=server.service, tell=told.append)
        body = {"model": "watched", "prompt": "abc", "max_tokens": 8, "seed": 1}
        first = server.post("/v1/completions", body).json()
        assert first["system_fingerprint"].startswith("watched@1-")
        assert not follower.look()
        save_step(checkpoints, 2, other)
        assert follower.look()
        second = server.post("/v1/completions", body).json()
        assert second["system_fingerprint"].startswith("watched@2-") and second["choices"] != first["choices"]
        save_step(checkpoints, 3, folder)
        weights = checkpoints.folder / "step_00000003" / "policy" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        assert not follower.look() and not follower.look()
        assert server.post("/v1/completions", body).json()["choices"] == second["choices"]
        spoilt = open_policy(ModelSource(path=str(other)), seed=0, device="cpu", temperature=1.0)
        torch.nn.init.constant_(spoilt.decoder.norm.weight, float("nan"))
        with pytest.raises(DivergedError, match="not finite"):
            server.service.replace_weights(lambda: server.model.take_over(spoilt, 4)).result()
        last = server.post("/v1/completions", body).json()
        assert last["choices"] == second["choices"] and last["system_fingerprint"] == second["system_fingerprint"]
    assert len(told) == 2 and "step 3 is not served" in told[1]
    run.close()


def test_a_trainer_and_a_server_share_an_engine(folder):
    """Each gets its own answers, whoever runs the pass; while the engine is paused, requests wait."""
    model = opened(folder)
    prompt = model.served.tokenizer.encode("train")
    asked = [Request(id=f"t{n}", prompt=prompt, samples=4, sampling=SamplingParams(max_tokens=40)) for n in range(6)]
    alone = {(one.request_id, one.sample_index): one for one in generate(opened(folder).engine, asked)}
    body = {"model": "tiny", "prompt": "serve", "max_tokens": 40, "seed": 2}
    with live(model) as server:
        expected = server.post("/v1/completions", body).json()["choices"]
        replies: list[object] = []

        def ask() -> None:
            replies.extend(server.post("/v1/completions", body).json()["choices"] for _ in range(4))

        client = threading.Thread(target=ask)
        client.start()
        together = {(one.request_id, one.sample_index): one for one in generate(model.engine, asked)}
        client.join()
        assert replies == [expected] * 4
        assert together.keys() == alone.keys()
        assert all(np.array_equal(alone[name].tokens, one.tokens) for name, one in together.items())
        model.engine.pause()
        late = threading.Thread(target=ask)
        late.start()
        time.sleep(0.05)
        assert len(replies) == 4
        model.engine.resume()
        late.join()
        assert replies == [expected] * 8
        model.engine.pause()
        dropped: list[int] = []
        last = threading.Thread(target=lambda: dropped.append(server.post("/v1/completions", body).status_code))
        last.start()
        while not model.engine.has_requests():
            time.sleep(0.005)
        model.engine.cancel()
        model.engine.resume()
        last.join()
        assert dropped == [503]


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_a_model_is_served_in_other_weights_and_takes_up_checkpoints_in_them(tmp_path, weights):
    folder = save_tiny(tmp_path / "model", width=64)
    run = create_run(tmp_path / "runs", "coded", config={}, metadata=RunMetadata(hone_version="1"), clock=SystemClock())
    save_step(run.checkpoints(), 1, folder)
    whole = opened(run.checkpoints().at(1).policy_folder, name="coded", run=run.path)
    served = opened(run.checkpoints().at(1).policy_folder, name="coded", run=run.path, weights=weights)
    assert served.policy.decoder.code_bits == {"int8": 8, "int4": 4}.get(weights, 0)
    asked = Request(id="a", prompt=np.arange(40, 60, dtype=np.int32), samples=4, sampling=SamplingParams(max_tokens=8))
    exact = np.concatenate([one.logp for one in generate(whole.engine, [asked], round=1)])
    compute = "auto" if weights == "bfloat16" else "float32"
    source = ServedModelSource(path=str(folder), weights=weights, compute=compute)
    policy = open_policy(source, seed=0, device="cpu", temperature=1.0)
    found = list(generate(served.engine, [asked], round=1))
    for answer in found:
        packed = pack_rows([np.concatenate([asked.prompt, answer.tokens]).astype(np.int32)])
        logits = policy.decoder.logits(policy.decoder.hidden(packed)).detach().log_softmax(-1).numpy()
        expected = logits[len(asked.prompt) - 1 : -1][np.arange(len(answer.tokens)), answer.tokens]
        assert np.abs(answer.logp - expected).max() < (0.05 if weights == "bfloat16" else 2e-3)
    assert not np.array_equal(np.concatenate([one.logp for one in found]), exact)

    save_step(run.checkpoints(), 2, save_tiny(tmp_path / "next", seed=4, width=64))
    with live(served) as server:
        follower = CheckpointFollower(opened=server.model, service=server.service, tell=lambda _: None)
        assert follower.look() and server.model.engine.version == 2
    followed = list(generate(served.engine, [asked], round=2))
    served.free_weights()  # as a server does that follows no run
    again = list(generate(served.engine, [asked], round=2))
    assert [one.tokens.tolist() for one in again] == [one.tokens.tolist() for one in followed]
    assert all(np.array_equal(one.logp, other.logp) for one, other in zip(again, followed, strict=True))
    run.close()
