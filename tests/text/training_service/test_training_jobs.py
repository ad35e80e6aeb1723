"""A training service as a job of a queue: its claim fences its folder, it ends with its sessions, and it gives way."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from manual_clock import ManualClock
from training_parts import (
    PATH,
    PROTOBUF,
    TestClient,
    WireClient,
    adapter_bytes,
    calls,
    open_service,
    patient,
    text_datum,
    tiny_base,
)

from hone.core.clock import SystemClock
from hone.core.errors import ResourceError
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue
from hone.run.queue.use import ClaimUse, RunMeter
from hone.text.training_service.catalogue import ACTIVE_S
from hone.text.training_service.ledger import Ledger, ModelRecord, SessionRecord
from hone.text.training_service.run_training_service import PREEMPTED, TrainingService

SESSION = SessionRecord(
    id="s", tenant="a", created_s=0.0, beat_s=0.0, finished=None, tags="[]", metadata=None, project=None,
    display_name=None,
)  # fmt: skip


def test_an_old_claim_writes_nothing_and_without_numbers_it_would(tmp_path: Path) -> None:
    old = Ledger(tmp_path / "ledger.db", claim=3)
    old.insert(SESSION)
    new = Ledger(tmp_path / "ledger.db", claim=5)
    for write in (
        lambda: old.insert(replace(SESSION, id="late")),
        lambda: old.change(SessionRecord, "s", {"beat_s": 1}),
    ):
        with pytest.raises(ResourceError, match="claim 3 was followed by claim 5"):
            write()
    with pytest.raises(ResourceError, match="claim 4 was followed by claim 5"):
        Ledger(tmp_path / "ledger.db", claim=4)
    new.insert(replace(SESSION, id="new"))
    assert [one.id for one in new.records(SessionRecord, {})] == ["s", "new"]
    Ledger(tmp_path / "ledger.db", claim=5).insert(replace(SESSION, id="the same claim"))
    other = [Ledger(tmp_path / "control.db") for _ in range(2)]
    for one in other:
        one.insert(SESSION)
    other[0].insert(replace(SESSION, id="late"))
    assert len(other[1].records(SessionRecord, {})) == 2, "the negative control: nothing stops the first process"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[TrainingService]:
    service = open_service(tmp_path, clock=ManualClock(), claim=2)
    service.start()
    yield service
    service.close()


def test_a_job_is_over_with_its_sessions_or_where_nobody_comes(job: TrainingService) -> None:
    clock, client = job.desk.clock, WireClient(TestClient(job.routes.app()))
    assert isinstance(clock, ManualClock)
    assert not job.sessions_over()
    clock.advance(ACTIVE_S - 1)
    first = client.open()
    assert not job.sessions_over()
    clock.advance(ACTIVE_S - 1)
    client.post("session_heartbeat", {"session_id": first})
    clock.advance(ACTIVE_S - 1)
    second = client.open()
    assert not job.sessions_over()
    for session, over in ((second, False), (first, True)):
        client.post(f"sessions/{session}/finish", {}, status=204)
        assert job.sessions_over() == over
    client.open()
    assert not job.sessions_over()
    clock.advance(ACTIVE_S - 1)
    assert not job.sessions_over()
    clock.advance(1)
    assert job.sessions_over(), "silent for so long"


def test_a_job_that_gave_way_repeats_nothing_behind_its_last_step(tmp_path: Path) -> None:
    service = open_service(tmp_path, claim=1)
    service.start()
    client = WireClient(TestClient(service.routes.app()))
    models = [client.model(number=number, seed=number) for number in range(2)]
    for model in models:
        client.forward_backward(model, [text_datum("abc")])
        client.step(model)
    client.forward_backward(models[1], [text_datum("def")])
    states = [adapter_bytes(service, model) for model in models]
    service.close()
    again = open_service(tmp_path, claim=2)
    records = [again.desk.ledger.find(ModelRecord, model) for model in models]
    left = [again.desk.ledger.changes_after(one.id, one.snapshot_seq) for one in records if one is not None]
    assert [[one.kind for one in requests] for requests in left] == [[], ["forward_backward"]]
    assert [adapter_bytes(again, model) for model in models] == states
    again.start()
    assert not again.sessions_over()
    resumed = WireClient(TestClient(again.routes.app()))
    resumed.post(f"sessions/{client.session}/finish", {}, status=204)
    assert again.sessions_over(), "it was open when this process began"
    again.close()


def test_a_jobs_totals_are_those_of_the_services_ledger(tmp_path: Path) -> None:
    file = tmp_path / "lesson.use.json"
    service = open_service(tmp_path, claim=1)
    service.use = file
    service.start()
    assert RunMeter.begin(tmp_path, file).use() == ClaimUse()
    client = WireClient(TestClient(service.routes.app()))
    model = client.model()
    for _ in range(2):
        client.forward_backward(model, [text_datum("abc"), text_datum("defg")])
        client.forward_backward(model, [text_datum("abc")], forward_only=True)
        client.step(model)
    client.sample(client.sampler(), [7, 8, 9], samples=3, params={"max_tokens": 4, "stop": []})
    service.close()
    used = RunMeter.begin(tmp_path, file).use()
    assert (used.tokens, used.steps) == (2 * (2 + 3) + 3 * 4, 2) and used.bytes > 10_000
    amounts = service_amounts(tmp_path)
    assert (amounts["train_tokens"], amounts["sampled_tokens"], amounts["steps"]) == (10, 12, 2)
    again = open_service(tmp_path, claim=2)
    again.use = file
    again.start()
    again.close()
    assert RunMeter.begin(tmp_path, file).use().steps == 2, "nothing is counted twice"


def service_amounts(folder: Path) -> dict[str, float]:
    return {what: amount for (_, what), amount in Ledger(folder / "store" / "ledger.db").usage().items()}


BANDIT = """
recipe = "epsilon_greedy"
steps = 20
arms = { kind = "linear", arms = 4, features = 3 }
"""


@pytest.mark.slow
def test_a_session_in_the_queue_gives_way_dies_and_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, undisturbed: tuple[list[object], bytes]
) -> None:
    """Another tenant's run goes between two calls, and later the worker is killed: the client only waits."""
    file, address = tmp_path / "service.toml", str(tmp_path / "queue.db")
    file.write_text(f'folder = "store"\n[model]\npath = "{tiny_base()}"\nnames = ["tiny"]\ncontext = 96\n')
    (tmp_path / "bandit.toml").write_text(BANDIT)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    url = f"http://127.0.0.1:{port}{PATH}"

    def hone(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "hone", "queue", *arguments, "--queue", address, "--lease", "2"]

    submitted = hone("submit", str(file), "--tenant", "red", "--name", "lesson", "--port", str(port))
    subprocess.run(submitted, check=True, cwd=tmp_path, capture_output=True)
    queue = RunQueue(open_queue_database(address), SystemClock(), lease_s=2.0)
    (job,) = queue.jobs()
    assert job.serves and job.command[:2] == ("serve", "training")
    work = hone("work")
    worker = [subprocess.Popen(work, cwd=tmp_path, stdout=subprocess.DEVNULL)]
    session = patient(url, "create_session", {}, lambda: None).json()["session_id"]
    results = []
    for number, (path, body) in enumerate(calls(session)):
        if number == 3:
            subprocess.run(
                hone("submit", "bandit.toml", "--tenant", "blue"), check=True, cwd=tmp_path, capture_output=True
            )
        if number == 5:
            worker[0].send_signal(signal.SIGKILL)
            worker[0].wait()
            worker[0] = subprocess.Popen(work, cwd=tmp_path, stdout=subprocess.DEVNULL)
        promise = patient(url, path, body, lambda: None).json()
        results.append(patient(url, "retrieve_future", {"request_id": promise["request_id"]}, lambda: None))
        while number == 3 and queue.jobs()[1].state != "done":
            time.sleep(0.1)
    patient(url, f"sessions/{session}/finish", {}, lambda: None)
    while queue.jobs()[0].state == "running":
        time.sleep(0.1)
    worker[0].send_signal(signal.SIGTERM)
    assert worker[0].wait(300) == 0
    lesson, bandit = queue.jobs()
    assert (lesson.state, bandit.state) == ("done", "done")
    spans = [one for one in queue.claims() if one.job == lesson.id]
    assert len(spans) >= 3 and sum(one.to_us - one.from_us for one in queue.claims()) == sum(
        one.used_us for one in queue.shares()
    )
    amounts, red = service_amounts(tmp_path), next(one.use for one in queue.shares() if one.name == "red")
    assert (red.tokens, red.steps) == (amounts["train_tokens"], amounts["steps"]) and red.steps == 2
    assert red == ClaimUse.total(one.use for one in spans) and red.bytes > 10_000
    service = open_service(tmp_path)
    assert adapter_bytes(service, f"{session}:train:0") == undisturbed[1]
    service.close()
    binary = [one.content for one in results if PROTOBUF in one.headers["content-type"]]
    assert binary == [one for one in undisturbed[0] if isinstance(one, bytes)]
    assert PREEMPTED == 143, "which a worker takes for a job that goes back"
