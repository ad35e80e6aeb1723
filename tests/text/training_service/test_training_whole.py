"""All weights of a model trained by a single tenant: gradients, steps, samples, checkpoints, admission, restarts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from training_parts import TestClient, TrainingService, WireClient, adapter_bytes, floats, text_datum, tiny_base
from transformers import AutoModelForCausalLM

from hone.models.packing import pack_rows, row_targets
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.training_service.catalogue import ACTIVE_S
from hone.text.training_service.ledger import CheckpointRecord, SessionRecord
from hone.text.training_service.service_config import TenantConfig, key_digest

Serve = Callable[..., tuple[TrainingService, TestClient]]
TEXTS = ("the cat sat", "on a mat in the sun", "two and two")
IDS = [byte + 3 for byte in TEXTS[0].encode()]


def logprobs_of(folder: str) -> np.ndarray:
    """Of the first text, by a model that `hone eval` and `hone serve` would open."""
    policy = open_policy(ModelSource(path=folder, compute="float32"), seed=0, device="cpu", temperature=1.0)
    packed = pack_rows([np.array(IDS, np.int32)])
    targets = row_targets(packed)
    with torch.no_grad():
        return policy.token_logprobs(packed, targets.at, targets.chosen).logp.numpy()


def train(client: WireClient, model: str, steps: int = 2) -> None:
    for _ in range(steps):
        client.forward_backward(model, [text_datum(text) for text in TEXTS])
        client.step(model, learning_rate=1e-3)


def test_the_gradient_is_that_of_all_weights_and_rows_add_up_in_any_calls(serve: Serve) -> None:
    service, http = serve(whole=True)
    client, data = WireClient(http), [text_datum(text) for text in TEXTS]
    model = client.whole_model()
    client.forward_backward(model, data)
    trained = service.trainer.models[model]
    policy = open_policy(ModelSource(path=str(tiny_base()), compute="float32"), seed=0, device="cpu", temperature=1.0)
    packed = pack_rows([np.array([byte + 3 for byte in text.encode()], np.int32) for text in TEXTS])
    targets = row_targets(packed)
    for parameter in policy.decoder.parameters():
        parameter.requires_grad = True
    loss = -policy.token_logprobs(packed, targets.at, targets.chosen).logp.sum()
    slopes = torch.autograd.grad(loss, list(policy.decoder.parameters()))
    for own, slope in zip(trained.parameters.views, slopes, strict=True):
        torch.testing.assert_close(own, slope, rtol=1e-4, atol=2e-5)
    whole, base = trained.gradient(), next(service.trainer.base.rows.decoder.parameters()).clone()
    client.step(model, learning_rate=0.0)
    for one in data:
        client.forward_backward(model, [one])
    assert torch.equal(service.trainer.models[model].gradient(), whole)
    client.step(model)
    assert torch.equal(next(service.trainer.base.rows.decoder.parameters()), base), "the base stays as it is"
    assert "grad_norm:mean" in client.step(model)["metrics"]


def test_a_checkpoint_resumes_to_the_bit_and_opens_in_hone_and_transformers(serve: Serve, tmp_path: Path) -> None:
    service, http = serve(whole=True)
    client = WireClient(http)
    model = client.whole_model()
    train(client, model)
    path = client.call("save_weights", model, path="c1")["path"]
    before, _ = client.forward_backward(model, [text_datum(TEXTS[0])], forward_only=True)
    train(client, model, 1)
    body = {"session_id": client.session, "model_seq_id": 1, "path": path, "optimizer": True}
    resumed = client.result(client.post("load_weights", body))["model_id"]
    train(client, resumed, 1)
    expected = adapter_bytes(service, model)
    assert adapter_bytes(service, resumed) == expected
    cold = client.result(client.post("load_weights", body | {"model_seq_id": 2, "optimizer": False}))["model_id"]
    train(client, cold, 1)
    assert adapter_bytes(service, cold) != expected

    saved = service.desk.ledger.find(CheckpointRecord, path)
    assert saved is not None
    np.testing.assert_allclose(logprobs_of(saved.folder), before[0], atol=1e-5)
    theirs = AutoModelForCausalLM.from_pretrained(f"{saved.folder}/policy", dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(torch.tensor([IDS[:-1]])).logits[0]
    logp = torch.log_softmax(logits, -1).gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]
    np.testing.assert_allclose(logp.numpy(), before[0], atol=2e-4)
    assert client.post("weights_info", {"tinker_path": path})["is_lora"] is False
    info = client.post("get_info", {"model_id": model})
    assert (info["is_lora"], info["lora_rank"]) == (False, None)

    service.close()
    again, http = serve(whole=True)
    assert adapter_bytes(again, model) == expected, "from the snapshot, and the requests behind it"
    client = WireClient(http, session=client.session, numbers=client.numbers)
    train(client, model, 1)
    assert adapter_bytes(again, model) != expected


@pytest.mark.parametrize("runner", ["torch", "auto"])
def test_samplers_of_the_base_a_step_and_a_checkpoint_keep_their_weights_side_by_side(
    serve: Serve, runner: str
) -> None:
    service, http = serve(whole=True, runner=runner)
    client = WireClient(http)
    model = client.whole_model()
    args = {"params": {"max_tokens": 4, "seed": 3, "stop": []}, "prompt_logprobs": True}

    def forward() -> np.ndarray:
        return client.forward_backward(model, [text_datum(TEXTS[0])], forward_only=True)[0][0]

    samplers, expected = [client.sampler(0)], [forward()]
    train(client, model)
    samplers.append(client.call("save_weights_for_sampler", model, sampling_session_seq_id=1)["sampling_session_id"])
    expected.append(forward())
    follow = client.call("save_weights_for_sampler", model, sampling_session_seq_id=2, kind="inflight")
    train(client, model)
    samplers.append(follow["sampling_session_id"])
    expected.append(forward())
    first = [client.sample(one, IDS, **args) for one in samplers]
    for answer, logp in zip(first, expected, strict=True):
        scored = np.array(floats(answer.prompt_logprobs)[1:], np.float32)
        if runner == "torch":
            assert scored.tobytes() == logp.tobytes(), "a forward pass's log-probabilities, to the bit"
        np.testing.assert_allclose(scored, logp, atol=1e-4)
    body = {"prompt": {"chunks": [{"tokens": IDS}]}, "num_samples": 1, "sampling_params": args["params"]}
    with service.trainer.computing:  # which the first one waits for: the others come together behind it
        promises = [
            client.post("asample", {**body, "sampling_session_id": one, "seq_id": client.number(one)})
            for one in (*reversed(samplers), *samplers)
        ]
    tokens = [client.result(one) for one in promises]
    assert tokens[:3] == tokens[:2:-1] and len({*tokens}) >= 2


def test_a_second_tenant_is_refused_until_the_first_ones_session_is_over(serve: Serve) -> None:
    tenants = [TenantConfig(name=name, token_sha256=key_digest(name)) for name in ("a", "b")]
    service, http = serve(whole=True, tenants=tenants)
    a, b = WireClient(http, "a"), WireClient(http, "b")
    model = a.whole_model()
    a.whole_model(number=1)
    b.open()
    asked = {"session_id": b.session, "model_seq_id": 0, "base_model": "tiny"}
    refused = b.post("create_model", asked, status=403)["error"]["message"]
    assert "tiny is trained whole, by one tenant at a time" in refused and a.session not in refused
    train(a, model, 1)
    path = a.call("save_weights", model, path="c")["path"]
    a.post(f"training_runs/{model}/checkpoints/weights/c/publish", {}, status=204)
    load = {"session_id": b.session, "model_seq_id": 0, "path": path}
    b.post("load_weights", load, status=403)
    assert b.sample(b.sampler(), [4, 5]).sequences, "it may sample meanwhile"
    a.post(f"sessions/{a.session}/finish", {}, status=204)
    own = b.result(b.post("load_weights", load))["model_id"]
    train(b, own, 1)
    a.open()
    asked = {"session_id": a.session, "model_seq_id": 0, "base_model": "tiny"}
    a.post("create_model", asked, status=403)
    silent = service.desk.clock.now_s() - ACTIVE_S - 1
    service.desk.ledger.change(SessionRecord, b.session, {"beat_s": silent})
    service.desk.ledger._db.execute("update models set used_s = ?", (silent,))
    assert a.result(a.post("create_model", asked))["model_id"] == f"{a.session}:train:0"


def test_an_adapter_and_a_whole_model_are_each_refused_where_the_other_is_trained(serve: Serve, tmp_path: Path) -> None:
    client = WireClient(serve(whole=True)[1])
    client.open()
    asked = {"session_id": client.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}}
    assert "trains all weights: ask for rank 0" in client.post("create_model", asked, status=400)["error"]["message"]
    part = asked | {"lora_config": {"rank": 0, "train_mlp": False}}
    assert "are for adapters" in client.post("create_model", part, status=400)["error"]["message"]
    sdk = asked | {"lora_config": {"rank": 0, "train_mlp": True, "train_attn": True, "train_unembed": True}}
    assert client.result(client.post("create_model", sdk))["model_id"]
    other = WireClient(serve(tmp_path / "adapters")[1])
    other.open()
    asked = {"session_id": other.session, "model_seq_id": 0, "base_model": "tiny"}
    assert "trains adapters: give a rank" in other.post("create_model", asked, status=400)["error"]["message"]
