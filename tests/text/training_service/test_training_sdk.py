"""Every public method of the SDK's four clients, unmodified, against a service: answered, or refused by name."""

import base64
import gc
import inspect
import logging
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from training_parts import PATH, TrainingService, open_service

from hone.text.training_service.ledger import CheckpointRecord

tinker = pytest.importorskip("tinker", reason="the SDK: pip install 'hone-rl[training-service]'")
from tinker import types  # noqa: E402

pytestmark = pytest.mark.filterwarnings(  # the SDK leaves its connections to the collector
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
IDS = [byte + 3 for byte in b"the cat sat on the mat"]
ROW = types.Datum(model_input=types.ModelInput.from_ints(IDS[:-1]), loss_fn_inputs={"target_tokens": IDS[1:]})
PROMPT = types.ModelInput.from_ints(IDS[:5])
FEW = types.SamplingParams(max_tokens=2, seed=1, stop=[])
ADAM = types.AdamParams(learning_rate=1e-3)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingService]:
    opened = open_service(tmp_path_factory.mktemp("sdk"))
    opened.start()
    yield opened
    opened.close()
    gc.collect()  # connections that the SDK left open are collected here, and not in a later test


@pytest.fixture(scope="module")
def url(service: TrainingService) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service.routes.app(), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


class Clients:
    """One of each kind, with a checkpoint of each kind."""

    def __init__(self, url: str) -> None:
        self.service = tinker.ServiceClient(base_url=url, api_key="tml-any", project_id="p1")
        self.training = self.service.create_lora_training_client(base_model="tiny", rank=2, seed=1).result()
        self.training.forward_backward([ROW], "cross_entropy").result()
        self.training.optim_step(ADAM).result()
        self.state = self.training.save_state("state").result().path
        self.weights = self.training.save_weights_for_sampler("sampler").result().path
        self.external = self.training.save_weights_external("external").result().path
        self.sampling = self.service.create_sampling_client(base_model="tiny").result()
        self.rest = tinker.RestClient(base_url=url, api_key="tml-any")
        self.run = self.training.model_id
        self.session = self.run.partition(":")[0]

    def spare(self, name: str) -> str:
        """The path of a checkpoint that may be deleted."""
        return self.training.save_state(name, overwrite=True).result().path


@pytest.fixture(scope="module")
def clients(url: str) -> Iterator[Clients]:
    logging.disable(logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_TELEMETRY", "0")
        patch.setenv("TINKER_BASE_URL", url)
        patch.setenv("TINKER_API_KEY", "tml-any")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield Clients(url)
    logging.disable(logging.NOTSET)


def square(logprobs: Any) -> Any:
    """A loss that the SDK can trace."""
    loss = (logprobs * logprobs).sum()
    return loss, {"custom/square:sum": loss}


def ranks_of_custom(data: Any, logprobs: Any) -> Any:
    del data
    return sum((one**2).sum() for one in logprobs), {"square": 1.0}


def handled(c: Clients) -> Any:
    """A sampler that travels as text to another process."""
    handle = c.sampling.get_sampler_handle()
    return tinker.SamplingClient.from_sampler_handle(handle, api_key="tml-any").sample(PROMPT, 1, FEW).result()


Call = Callable[[Clients], Any]
NOW = datetime.now(UTC)
ANSWERED: dict[str, Call] = {
    "ServiceClient.close": lambda c: tinker.ServiceClient(api_key="tml-any").close("success").result() or "204",
    "ServiceClient.copy_weights": lambda c: c.service.copy_weights(c.state).result(),
    "ServiceClient.create_custom_loss": lambda c: c.service.create_custom_loss(square, {"logprobs": 1}).result(),
    "ServiceClient.create_lora_training_client": lambda c: c.service.create_lora_training_client("tiny", 2).result(),
    "ServiceClient.create_rest_client": lambda c: c.service.create_rest_client(),
    "ServiceClient.create_sampling_client": lambda c: c.service.create_sampling_client(c.weights).result(),
    "ServiceClient.create_training_client_from_state": lambda c: c.service.create_training_client_from_state(
        c.state
    ).result(),
    "ServiceClient.create_training_client_from_state_with_optimizer": lambda c: (
        c.service.create_training_client_from_state_with_optimizer(c.state).result()
    ),
    "ServiceClient.get_console_url": lambda c: c.service.get_console_url(),
    "ServiceClient.get_server_capabilities": lambda c: c.service.get_server_capabilities(),
    "ServiceClient.get_telemetry": lambda c: c.service.get_telemetry() or "off",
    "TrainingClient.create_sampling_client": lambda c: c.training.create_sampling_client(c.weights).result(),
    "TrainingClient.forward": lambda c: c.training.forward([ROW], "cross_entropy").result(),
    "TrainingClient.forward_backward": lambda c: c.training.forward_backward([ROW], "cross_entropy").result(),
    "TrainingClient.forward_backward_custom": lambda c: c.training.forward_backward_custom(
        [ROW], ranks_of_custom
    ).result(),
    "TrainingClient.get_console_url": lambda c: c.training.get_console_url(),
    "TrainingClient.get_info": lambda c: c.training.get_info(),
    "TrainingClient.get_telemetry": lambda c: c.training.get_telemetry() or "off",
    "TrainingClient.get_tokenizer": lambda c: c.training.get_tokenizer().decode(IDS),
    "TrainingClient.load_state": lambda c: c.training.load_state(c.state).result(),
    "TrainingClient.load_state_with_optimizer": lambda c: c.training.load_state_with_optimizer(c.state).result(),
    "TrainingClient.optim_step": lambda c: c.training.optim_step(ADAM).result(),
    "TrainingClient.save_state": lambda c: c.training.save_state("again", ttl_seconds=4000).result(),
    "TrainingClient.save_weights_and_get_sampling_client": lambda c: (
        c.training.save_weights_and_get_sampling_client().result()
    ),
    "TrainingClient.save_weights_external": lambda c: c.training.save_weights_external("outside").result(),
    "TrainingClient.save_weights_for_sampler": lambda c: c.training.save_weights_for_sampler("once").result(),
    "SamplingClient.compute_logprobs": lambda c: c.sampling.compute_logprobs(PROMPT).result(),
    "SamplingClient.create": lambda c: c.service.create_sampling_client(base_model="tiny").result(),
    "SamplingClient.from_sampler_handle": handled,
    "SamplingClient.get_base_model": lambda c: c.sampling.get_base_model(),
    "SamplingClient.get_sampler_handle": lambda c: base64.urlsafe_b64decode(c.sampling.get_sampler_handle()),
    "SamplingClient.get_telemetry": lambda c: c.sampling.get_telemetry() or "off",
    "SamplingClient.on_queue_state_change": lambda c: "called by the SDK",
    "SamplingClient.sample": lambda c: c.sampling.sample(PROMPT, 2, FEW, include_prompt_logprobs=True).result(),
    "RestClient.assign_session_project": lambda c: c.rest.assign_session_project(c.session, "p2").result() or "204",
    "RestClient.copy_weights": lambda c: c.rest.copy_weights(c.weights, "p2", ttl_seconds=4000).result(),
    "RestClient.delete_checkpoint": lambda c: (
        c.rest.delete_checkpoint(c.run, f"weights/{c.spare('d1')[-2:]}").result() or "204"
    ),
    "RestClient.delete_checkpoint_from_tinker_path": lambda c: (
        c.rest.delete_checkpoint_from_tinker_path(c.spare("d2")).result() or "204"
    ),
    "RestClient.get_billing_usage": lambda c: c.rest.get_billing_usage(
        NOW - timedelta(hours=2), NOW + timedelta(hours=2)
    ).result(),
    "RestClient.get_current_checkpoint_storage_usage": lambda c: c.rest.get_current_checkpoint_storage_usage().result(),
    "RestClient.get_external_weights_urls": lambda c: c.rest.get_external_weights_urls(c.external).result(),
    "RestClient.get_sampler": lambda c: c.rest.get_sampler(f"{c.session}:sample:0").result(),
    "RestClient.get_server_capabilities": lambda c: c.rest.get_server_capabilities().result(),
    "RestClient.get_session": lambda c: c.rest.get_session(c.session).result(),
    "RestClient.get_telemetry": lambda c: c.rest.get_telemetry() or "off",
    "RestClient.get_training_run": lambda c: c.rest.get_training_run(c.run).result(),
    "RestClient.get_training_run_by_tinker_path": lambda c: c.rest.get_training_run_by_tinker_path(c.state).result(),
    "RestClient.get_weights_info_by_tinker_path": lambda c: c.rest.get_weights_info_by_tinker_path(c.state).result(),
    "RestClient.list_checkpoints": lambda c: c.rest.list_checkpoints(c.run).result(),
    "RestClient.list_sessions": lambda c: c.rest.list_sessions().result(),
    "RestClient.list_training_runs": lambda c: c.rest.list_training_runs().result(),
    "RestClient.list_user_checkpoints": lambda c: c.rest.list_user_checkpoints().result(),
    "RestClient.publish_checkpoint_from_tinker_path": lambda c: (
        c.rest.publish_checkpoint_from_tinker_path(c.state).result() or "204"
    ),
    "RestClient.search_sessions": lambda c: c.rest.search_sessions(types.SessionSearchRequest(limit=1)).result(),
    "RestClient.set_checkpoint_ttl_from_tinker_path": lambda c: (
        c.rest.set_checkpoint_ttl_from_tinker_path(c.spare("t1"), 4000).result() or "204"
    ),
    "RestClient.unpublish_checkpoint_from_tinker_path": lambda c: (
        c.rest.unpublish_checkpoint_from_tinker_path(c.state).result() or "204"
    ),
}
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "RestClient.get_audit_log": (
        lambda c: c.rest.get_audit_log(day=date(2026, 1, 2)).result(), tinker.NotFoundError, "audit is not served",
    ),
    "RestClient.export_session_trace": (
        lambda c: c.rest.export_session_trace(c.session).result(), tinker.NotFoundError, "trace_export is not served",
    ),
    "RestClient.whoami": (lambda c: c.rest.whoami().result(), RuntimeError, "plain API key"),
    "SamplingClient.get_tokenizer": (lambda c: c.sampling.get_tokenizer(), OSError, "huggingface.co"),  # of that name
    "TrainingClient.forward_backward, a loss without a formula": (
        lambda c: c.training.forward_backward([ROW], "stable_reinforce").result(),
        tinker.RequestFailedError, "stable_reinforce",
    ),
    "TrainingClient.forward_backward, an image": (
        lambda c: c.training.forward_backward(
            [types.Datum(model_input=types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")]),
                         loss_fn_inputs={"target_tokens": [5]})], "cross_entropy",
        ).result(),
        tinker.RequestFailedError, "reads text only",
    ),
    "ServiceClient.create_lora_training_client, another base": (
        lambda c: c.service.create_lora_training_client("other").result(), tinker.BadRequestError, "served: tiny",
    ),
    "ServiceClient.create_training_client_from_state, a token": (
        lambda c: c.service.create_training_client_from_state(c.state, weights_access_token="t").result(),
        tinker.BadRequestError, "weights_access_token is not served",
    ),
    "ServiceClient.copy_weights, a token": (
        lambda c: c.service.copy_weights(c.state, weights_access_token="t").result(),
        tinker.BadRequestError, "weights_access_token is not served",
    ),
    "RestClient.copy_weights, nothing there": (
        lambda c: c.rest.copy_weights("tinker://a:train:0/weights/b", "p2").result(),
        tinker.NotFoundError, "no checkpoint",
    ),
    "SamplingClient.sample, alternatives of a prompt": (
        lambda c: c.sampling.sample(PROMPT, 1, FEW, prompt_alt_tokens_k=2).result(),
        tinker.RequestFailedError, "prompt_alt_tokens_k is not served",
    ),
    "TrainingClient.optim_step, another optimizer": (
        lambda c: c.training.optim_step(types.DimuonParams(learning_rate=1e-3)).result(),
        tinker.RequestFailedError, "is not served; known: adamw",
    ),
}  # fmt: skip


def test_the_table_has_every_public_method() -> None:
    """Methods that end in `_async` are the same calls: the SDK's older names of them."""
    public = {
        f"{kind.__name__}.{name}"
        for kind in (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not name.endswith("_async")
    }
    assert public <= ANSWERED.keys() | REFUSED.keys(), "a method of the SDK has no row in the table"
    assert {name.partition(",")[0] for name in REFUSED} | ANSWERED.keys() <= public | {"ServiceClient.holder"}


@pytest.mark.parametrize("name", sorted(ANSWERED))
def test_answered(name: str, clients: Clients) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK deprecates some of its names
        assert ANSWERED[name](clients) is not None


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_by_name(name: str, clients: Clients) -> None:
    call, error, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error, match=words):
            call(clients)
    assert clients.training.forward([ROW], "cross_entropy").result(), "the client goes on"


def test_a_copy_is_the_owners_own_and_stays_when_the_source_is_deleted(
    clients: Clients, service: TrainingService, url: str
) -> None:
    source = clients.spare("source")
    before = clients.service.create_training_client_from_state(source).result()
    copied = clients.rest.copy_weights(source, "archive").result()
    files = [Path(one.folder) for one in service.desk.ledger.records(CheckpointRecord, {}) if one.path == copied]
    assert files and all(one.stat().st_nlink > 1 for one in files[0].rglob("*") if one.is_file()), "bytes are shared"
    clients.rest.delete_checkpoint_from_tinker_path(source).result()
    again = clients.service.create_training_client_from_state(copied).result()
    rows = [
        one.forward([ROW], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist() for one in (before, again)
    ]
    assert rows[0] == rows[1]
    held = copied.removeprefix("tinker://").partition("/")[0]
    step = {"model_id": held, "seq_id": 1, "adam_params": {}}
    refused = httpx2.post(f"{url}{PATH}/optim_step", json=step, headers={"x-api-key": "tml-any"})
    assert refused.status_code == 400 and "holds a copy of weights" in refused.text
