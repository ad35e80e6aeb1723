"""What was acknowledged survives the process: after every call, behind every failpoint, and with the SDK as client."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from training_parts import (
    LESSON,
    PATH,
    PROTOBUF,
    TestClient,
    TrainingService,
    WireClient,
    adapter_bytes,
    calls,
    open_service,
    patient,
    text_datum,
    tiny_base,
)

Serve = Callable[..., tuple[TrainingService, TestClient]]


@pytest.mark.parametrize(
    "snapshots",
    [pytest.param(True, marks=pytest.mark.slow, id="snapshots"), pytest.param(False, id="replayed from the start")],
)
def test_a_restart_after_every_call_changes_no_bit(
    tmp_path: Path, undisturbed: tuple[list[object], bytes], snapshots: bool
) -> None:
    service, session = open_service(tmp_path), ""
    results = []
    for number in range(len(calls(""))):
        if not snapshots:
            service.trainer._snapshot_s = _Forever()
        service.start()
        client = WireClient(TestClient(service.routes.app()))
        session = session or client.open()
        path, body = calls(session)[number]
        promise = client.post(path, body)
        if number % 2:  # the others are done by the next process
            client.result(promise)
        service.close()
        service = open_service(tmp_path)
        service.start()
        client = WireClient(TestClient(service.routes.app()))
        assert client.post(path, body) == promise, "the client tries again"
        results.append(client.result(promise))
        service.close()
        service = open_service(tmp_path) if number < len(calls("")) - 1 else service
    service = open_service(tmp_path)
    model = f"{session}:train:0"
    assert adapter_bytes(service, model) == undisturbed[1]
    floor = 0 if snapshots else -1
    assert service.desk.ledger.records(type(_record(service, model)), {})[0].snapshot_seq >= floor
    assert [one for one in results if isinstance(one, bytes)] == [
        one for one in undisturbed[0] if isinstance(one, bytes)
    ]
    service.close()


class _Forever(dict[str, float]):
    """A snapshot of any model took forever: none is due."""

    def get(self, key: str, default: float = 0.0) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        return float("inf")


def _record(service: TrainingService, model: str) -> object:
    from hone.text.training_service.ledger import ModelRecord

    record = service.desk.ledger.find(ModelRecord, model)
    assert record is not None
    return record


def test_models_beyond_memory_wait_on_the_disk_and_come_back(serve: Serve) -> None:
    from hone.text.training_service.service_config import ServiceLimitsConfig

    service, http = serve(limits=ServiceLimitsConfig(resident_models=1))
    client = WireClient(http)
    models = [client.model(number=number, seed=number) for number in range(3)]
    for _ in range(2):
        for model in models:
            client.forward_backward(model, [text_datum(LESSON[0])])
            client.step(model)
    assert len(service.trainer.models) == 1
    alone, other = serve(Path(service.trainer.folder).parent / "alone")
    second = WireClient(other)
    model = second.model(seed=1)
    for _ in range(2):
        second.forward_backward(model, [text_datum(LESSON[0])])
        second.step(model)
    assert adapter_bytes(service, models[1]) == adapter_bytes(alone, model)


# ----------------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def run(tmp_path: Path, port: int) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `hone serve training` in a process; the last one is ended."""
    file = tmp_path / "service.toml"
    file.write_text(f'folder = "store"\n[model]\npath = "{tiny_base()}"\nnames = ["tiny"]\ncontext = 96\n')
    started: list[subprocess.Popen[str]] = []

    def start(failpoint: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hone", "serve", "training", str(file), "--port", str(port)]
        environment = {**os.environ, "HONE_FAILPOINT": failpoint}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    ["training_service.accepted", "training_service.before_outcome", "training_service.after_outcome",
     "ckpt.after_state", "ckpt.before_rename", "ckpt.after_rename"],
)  # fmt: skip
def test_killed_at_a_failpoint_the_service_goes_on(
    tmp_path: Path, port: int, run: Callable[..., subprocess.Popen[str]], undisturbed: tuple[list[object], bytes],
    failpoint: str,
) -> None:  # fmt: skip
    process = [run()]
    url, session, kills = f"http://127.0.0.1:{port}{PATH}", "", 0

    def revive() -> None:
        if process[0].poll() is not None:
            process[0] = run()

    session = patient(url, "create_session", {}, revive).json()["session_id"]
    results = []
    for number, (path, body) in enumerate(calls(session)):
        if number % 4 == 1:  # the process that serves this call kills itself where it comes to the point
            os.kill(process[0].pid, signal.SIGKILL)
            process[0].wait()
            process[0] = run(f"{failpoint}:kill")
        promise = patient(url, path, body, revive).json()
        results.append(patient(url, "retrieve_future", {"request_id": promise["request_id"]}, revive))
        kills += process[0].poll() == -signal.SIGKILL
    os.kill(process[0].pid, signal.SIGTERM)
    process[0].wait()
    service = open_service(tmp_path)
    assert adapter_bytes(service, f"{session}:train:0") == undisturbed[1]
    service.close()
    binary = [one.content for one in results if PROTOBUF in one.headers["content-type"]]
    assert binary == [one for one in undisturbed[0] if isinstance(one, bytes)]


SDK = """
import sys, tinker, logging
from tinker import types
logging.disable(logging.CRITICAL)
url = sys.argv[1]
service = tinker.ServiceClient(base_url=url, api_key="tml-any")
client = service.create_lora_training_client(base_model="tiny", rank=4, seed=1).result()
ids = [byte + 3 for byte in b"the cat sat on the mat"]
row = types.Datum(
    model_input=types.ModelInput.from_ints(ids[:-1]),
    loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
)
losses = []
for _ in range(4):
    run = client.forward_backward([row], "cross_entropy")
    step = client.optim_step(types.AdamParams(learning_rate=1e-2))
    losses.append(run.result().metrics["loss:sum"]); step.result()
assert losses[-1] < losses[0], losses
logprobs = client.forward([row], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
for name in ("importance_sampling", "ppo", "cispo", "dro", "gspo"):
    options = {"beta": 0.1} if name == "dro" else None
    policy = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "logprobs": logprobs, "advantages": [1.0] * (len(ids) - 1)},
    )
    assert client.forward_backward([policy], name, options).result().metrics["loss:sum"] < 1e9
try:
    client.forward_backward([row], "stable_reinforce").result()
except tinker.RequestFailedError as error:
    assert "not published" in str(error)
else:
    raise AssertionError("an unpublished loss was served")
custom = client.forward_backward_custom([row], lambda data, logps: (sum((x**2).sum() for x in logps), {"square": 1.0}))
assert custom.result().metrics["square"] == 1.0
client.optim_step(types.AdamParams(learning_rate=0.0)).result()
many = [types.Datum(model_input=types.ModelInput.from_ints([5]), loss_fn_inputs={"target_tokens": [6]})] * 1100
assert len(client.forward(many, "cross_entropy").result().loss_fn_outputs) == 1100, "two chunks, the second one first"
saved = client.save_state("c1").result().path
sampler = client.save_weights_and_get_sampling_client().result()
prompt = types.ModelInput.from_ints(ids[:5])
answer = sampler.sample(prompt, 2, types.SamplingParams(max_tokens=4, seed=3, stop=[])).result()
again = sampler.sample(prompt, 2, types.SamplingParams(max_tokens=4, seed=3, stop=[])).result()
assert [one.tokens for one in answer.sequences] == [one.tokens for one in again.sequences]
assert sampler.compute_logprobs(prompt).result()[0] is None
resumed = service.create_training_client_from_state_with_optimizer(saved).result()
assert resumed.get_info().lora_rank == 4
rest = service.create_rest_client()
assert [one.training_run_id for one in rest.list_training_runs().result().training_runs][0] == resumed.model_id
try:
    service.create_lora_training_client(base_model="nosuch").result()
except tinker.BadRequestError as error:
    assert "not served here; served: tiny" in str(error)
else:
    raise AssertionError("an unknown base was served")
print("the SDK is content")
"""


@pytest.mark.slow
def test_the_unmodified_sdk_trains_samples_saves_and_resumes(
    port: int, run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = run()
    url = f"http://127.0.0.1:{port}"
    patient(f"{url}{PATH}", "client/config", {}, lambda: None)
    environment = {**os.environ, "TINKER_TELEMETRY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SDK, url], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip().endswith("the SDK is content"), done.stderr[-3000:]
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "stopped: what waits goes on at the next start" in text
