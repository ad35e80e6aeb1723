"""The service over plain HTTP: results, order, exactness, checkpoints, refusals, isolation."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_parts import (
    TestClient,
    TrainingService,
    WireClient,
    adapter_bytes,
    datum,
    floats,
    ints,
    text_datum,
    tiny_base,
    wire,
)

from hone.engine.native.library import unavailable_reason
from hone.models.language.lora import LoraAdapter
from hone.models.language.packed_attention import PackedAttention
from hone.models.packing import pack_rows, row_targets
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.training_service.ledger import CheckpointRecord
from hone.text.training_service.rows import RowResult, TrainedRow
from hone.text.training_service.service_config import TenantConfig, key_digest

Serve = Callable[..., tuple[TrainingService, TestClient]]
TEXTS = ("the cat sat", "on a mat in the sun", "two and two", "is four, they say")


def test_a_loop_lowers_the_loss_and_the_first_forward_is_the_base(client: WireClient) -> None:
    model, data = client.model(), [text_datum(text) for text in TEXTS]
    rows, metrics = client.forward_backward(model, data)
    policy = open_policy(ModelSource(path=str(tiny_base()), compute="float32"), seed=0, device="cpu", temperature=1.0)
    for text, row in zip(TEXTS, rows, strict=True):
        packed = pack_rows([np.array([byte + 3 for byte in text.encode()], np.int32)])
        targets = row_targets(packed)
        with torch.no_grad():
            logp = policy.token_logprobs(packed, targets.at, targets.chosen).logp
        np.testing.assert_allclose(row, logp.numpy(), atol=1e-5)
    assert metrics["loss:sum"] == pytest.approx(-sum(float(row.sum()) for row in rows), rel=1e-6)
    losses = [metrics["loss:sum"]]
    for _ in range(8):
        assert client.step(model)["type"] == "optim_step"
        losses.append(client.forward_backward(model, data)[1]["loss:sum"])
    assert losses[-1] < 0.8 * losses[0]


def test_gradients_add_up_over_calls_to_the_bit_in_any_order_of_arrival(serve: Serve, tmp_path: Path) -> None:
    service, http = serve()
    client, data, states = WireClient(http), [text_datum(text) for text in TEXTS], []
    for number, parts in enumerate(([data], [data[:2], data[2:]], [[one] for one in data])):
        model = client.model(number=number)
        for _ in range(3):
            first = client.numbers.get(model, 0) + 1
            promises = [
                client.send_pass(model, part, number=first + place)
                for place, part in reversed(list(enumerate(parts)))  # the first one comes last, as the SDK sends them
            ]
            assert all(isinstance(client.result(one), bytes) for one in promises)
            client.numbers[model] = first + len(parts) - 1
            client.step(model, grad_clip_norm=1.0)
        states.append(adapter_bytes(service, model))
    assert states[0] == states[1] == states[2]


def test_a_tenants_results_are_the_same_bits_alone_and_in_company(serve: Serve, tmp_path: Path) -> None:
    tenants = [TenantConfig(name=name, token_sha256=key_digest(name)) for name in ("a", "b", "c")]

    def lesson(client: WireClient, model: str, turn: int) -> list[dict]:
        return [client.send_pass(model, [text_datum(text) for text in TEXTS]), client.post(
            "optim_step", {"model_id": model, "seq_id": client.number(model), "adam_params": {"learning_rate": 1e-2}}
        )]  # fmt: skip

    service, http = serve(tmp_path / "alone", tenants=tenants)
    alone = WireClient(http, "a")
    model = alone.model(rank=4)
    outputs = [alone.result(one) for turn in range(3) for one in lesson(alone, model, turn)]
    sampler = alone.call("save_weights_for_sampler", model, sampling_session_seq_id=5)["sampling_session_id"]
    drawn = alone.sample(sampler, [4, 5, 6], samples=2).SerializeToString()
    expected = adapter_bytes(service, model)

    service, http = serve(tmp_path / "company", tenants=tenants)
    clients = [WireClient(http, name) for name in ("a", "b", "c")]
    models = [one.model(rank=rank, seed=seed) for one, rank, seed in zip(clients, (4, 2, 8), (1, 7, 9), strict=True)]
    with service.trainer.computing:  # so that all of them wait, and share their passes
        promises = [lesson(one, model, turn) for turn in range(3) for one, model in zip(clients, models, strict=True)]
    mixed = [clients[0].result(one) for place, both in enumerate(promises) for one in both if place % 3 == 0]
    sampler = clients[0].call("save_weights_for_sampler", models[0], sampling_session_seq_id=5)["sampling_session_id"]
    other = clients[1].call("save_weights_for_sampler", models[1], sampling_session_seq_id=5)["sampling_session_id"]
    body = {"sampling_session_id": other, "seq_id": 1, "num_samples": 3, "prompt": {"chunks": [{"tokens": [9, 8]}]}}
    clients[1].post("asample", body)
    assert clients[0].sample(sampler, [4, 5, 6], samples=2).SerializeToString() == drawn
    assert [one for one in mixed if isinstance(one, bytes)] == [one for one in outputs if isinstance(one, bytes)]
    assert adapter_bytes(service, models[0]) == expected


@pytest.mark.parametrize(
    ("reach", "logits", "sizes"),
    [
        *((None, None, sizes) for sizes in [(15, 5), (23, 1), (16, 15), (5, 5), (17, 1, 14)]),
        *((0, None, sizes) for sizes in [(23, 1), (16, 15)]),
        (16, None, (16, 17, 5)),
        (None, 16, (23, 16, 7)),
    ],
)
def test_rows_of_several_adapters_fill_a_pass_of_any_length_to_the_bit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, reach: int | None, logits: int | None, sizes: tuple[int, ...]
) -> None:
    """By compiled kernels, by torch, by either as a row's length says, and with logits of a few tokens at a time. With
    three more rows, the first two cases are multiples of 16, and have no padding behind them."""
    service, http = serve()
    client = WireClient(http)
    rows = service.trainer.base.rows
    rows.reach = rows.reach if reach is None else reach
    if logits is not None:
        monkeypatch.setattr("hone.text.training_service.rows._LOGITS", logits * len(rows.decoder.output_weight))
    adapters = drawn_adapters(
        [service.trainer._model(client.model(number=n, seed=n)).adapter for n in range(len(sizes))]
    )
    ids = np.random.default_rng(0).integers(3, 90, (len(sizes), 40))
    asked = [
        TrainedRow(adapter=one, tokens=own[:size], targets=own[1 : size + 1], loss=lambda logp: -logp.sum())
        for one, own, size in zip(adapters, ids, sizes, strict=True)
    ]
    several = np.stack([ids[1][1:4], ids[0][1:4]], axis=1)
    asked += [
        replace(asked[0], tokens=ids[1][:4], targets=ids[1][1:5]),
        replace(asked[0], tokens=ids[1][:3], targets=several),
    ]
    asked += [asked[-1]]
    for row, result in zip(asked, rows.compute(asked, gradients=True), strict=True):
        (alone,) = rows.compute([row], gradients=True)
        assert np.array_equal(result.logprobs, alone.logprobs) and result.logprobs.shape == row.targets.shape
        assert torch.equal(factors_of(result), factors_of(alone))
        assert len(factors_of(result)) == sum(factor.numel() for _, factor in row.adapter.factors())


def factors_of(result: RowResult) -> torch.Tensor:
    """`[P]` the gradient of an adapter's factors."""
    assert result.gradient is not None
    (whole,) = result.gradient
    return whole


def drawn_adapters(adapters: list[LoraAdapter]) -> list[LoraAdapter]:
    """None of their factors 0."""
    draws = torch.Generator().manual_seed(0)
    for adapter in adapters:
        for _, factor in adapter.factors():
            factor.data.normal_(0, 0.1, generator=draws)
    return adapters


@pytest.mark.parametrize("reach", [None, 0])
def test_the_gradient_of_a_row_is_autograds(serve: Serve, reach: int | None) -> None:
    """Of the same decoder with `W x + scale B (A x)` written out, and torch's own products."""
    service, http = serve()
    rows = service.trainer.base.rows
    (adapter,) = drawn_adapters([service.trainer._model(WireClient(http).model()).adapter])
    rows.reach = rows.reach if reach is None else reach
    ids = np.random.default_rng(1).integers(3, 90, 24)
    slopes = torch.linspace(-1, 1, 23)
    row = TrainedRow(adapter=adapter, tokens=ids[:-1], targets=ids[1:], loss=lambda lp: (lp * slopes).sum())
    (result,) = rows.compute([row], gradients=True)

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.nn.functional.linear(x, weight, bias)
        for place, a, b in adapter.factors_beside(weight):
            added = adapter.settings.scale * (x @ a.t()) @ b.t()
            out = out + torch.nn.functional.pad(added, (place.start, len(weight) - place.stop))
        return out

    decoder, packed = rows.decoder, pack_rows([ids[:-1].astype(np.int32)])
    config = decoder.config
    attend = PackedAttention(
        packed, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim, dtype=torch.float32
    )
    logits = decoder.logits(decoder.run(packed.tokens, packed.positions, attend, linear), linear)
    logp = torch.log_softmax(logits[:, : rows.vocab_used], -1).gather(1, torch.from_numpy(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(result.logprobs, logp.detach().numpy(), rtol=0, atol=1e-5)
    expected = torch.autograd.grad((logp * slopes).sum(), [factor for _, factor in adapter.factors()])
    for own, exact in zip(factors_of(result).split([one.numel() for one in expected]), expected, strict=True):
        assert float((own - exact.flatten()).norm()) <= 1e-5 * float(exact.norm())


@pytest.mark.parametrize("runner", ["torch", "native"])
def test_a_sampler_draws_with_the_trainers_logprobs(serve: Serve, runner: str) -> None:
    """To the bit where torch samples, to rounding where compiled code does."""
    if runner == "native" and (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    client = WireClient(serve(runner=runner)[1])
    model = client.model()
    client.forward_backward(model, [text_datum(TEXTS[0])])
    client.step(model, learning_rate=0.1)
    sampler = client.call("save_weights_for_sampler", model, sampling_session_seq_id=1)["sampling_session_id"]
    prompt = [7, 8, 9]
    for params in ({"temperature": 1.0}, {"temperature": 0.5, "top_k": 5}, {"temperature": 0.0}):
        answers = client.sample(sampler, prompt, samples=2, params={"max_tokens": 6, "seed": 3, "stop": [], **params})
        for one in answers.sequences:
            ids = [*prompt, *ints(one.tokens)]
            assert len(ids) == 9 and one.stop_reason == wire.STOP_REASON_LENGTH
            rows, _ = client.forward_backward(model, [datum(ids[:-1], ids[1:])], forward_only=True)
            trained = rows[0][len(prompt) - 1 :]
            if runner == "torch":
                assert floats(one.logprobs) == trained.tolist(), params
            np.testing.assert_allclose(floats(one.logprobs), trained, atol=1e-5, rtol=0)


def test_samples_stop_where_they_are_told_and_score_prompts(client: WireClient) -> None:
    client.open()
    sampler, prompt = client.sampler(), [7, 8, 9, 10]
    free = client.sample(sampler, prompt, params={"max_tokens": 8, "seed": 1, "stop": []})
    ids = ints(free.sequences[0].tokens)
    stopped = client.sample(sampler, prompt, params={"max_tokens": 8, "seed": 1, "stop": [ids[3]]}).sequences[0]
    assert ints(stopped.tokens) == ids[: ids.index(ids[3]) + 1] and stopped.stop_reason == wire.STOP_REASON_STOP
    asked = {"prompt_logprobs": True, "topk_prompt_logprobs": 2, "topk_sample_logprobs": 3}
    scored = client.sample(sampler, prompt, params={"max_tokens": 2}, **asked)
    logprobs = floats(scored.prompt_logprobs)
    assert np.isnan(logprobs[0]) and all(value < 0 for value in logprobs[1:])
    assert (scored.topk_prompt_logprobs.k, scored.topk_prompt_logprobs.length) == (2, 4)
    assert scored.sequences[0].topk_sampled_logprobs.k == 3
    last = client.sample(sampler, prompt, params={"max_tokens": 1}, prompt_logprobs=True, prompt_logprobs_last_n=2)
    assert np.isnan(floats(last.prompt_logprobs)[:2]).all()
    assert floats(last.prompt_logprobs)[2:] == logprobs[2:]


def test_inflight_samplers_follow_and_snapshots_stay(client: WireClient) -> None:
    model, prompt = client.model(), [7, 8, 9]
    args = {"params": {"max_tokens": 1, "temperature": 0.0}, "prompt_logprobs": True}
    follow = client.call("save_weights_for_sampler", model, sampling_session_seq_id=1, kind="inflight")
    stay = client.call("save_weights_for_sampler", model, sampling_session_seq_id=2)
    before = [client.sample(one["sampling_session_id"], prompt, **args).prompt_logprobs for one in (follow, stay)]
    client.forward_backward(model, [text_datum(TEXTS[1])])
    client.step(model, learning_rate=0.1)
    after = [client.sample(one["sampling_session_id"], prompt, **args).prompt_logprobs for one in (follow, stay)]
    assert before[0] == before[1] == after[1] != after[0]


def test_inflight_samplers_tell_weights_of_one_step_count_apart(client: WireClient) -> None:
    model, other, data = client.model(), client.model(number=1), [text_datum(TEXTS[1])]
    for one, rate in ((model, 0.02), (other, 0.1)):
        client.forward_backward(one, data)
        client.step(one, learning_rate=rate)
    saved = client.call("save_weights", other, path="c1")["path"]
    follow = client.call("save_weights_for_sampler", model, sampling_session_seq_id=1, kind="inflight")
    args = {"params": {"max_tokens": 1, "temperature": 0.0}, "prompt_logprobs": True}
    before = client.sample(follow["sampling_session_id"], [7, 8, 9], **args).prompt_logprobs
    client.call("load_weights", model, path=saved, optimizer=True)
    assert client.sample(follow["sampling_session_id"], [7, 8, 9], **args).prompt_logprobs != before


def test_a_checkpoint_goes_on_to_the_bit_and_opens_elsewhere(serve: Serve, tmp_path: Path) -> None:
    service, http = serve()
    client, data = WireClient(http), [text_datum(text) for text in TEXTS]
    model = client.model()
    for _ in range(2):
        client.forward_backward(model, data)
        client.step(model)
    path = client.call("save_weights", model, path="c1", user_metadata={"note": "x"})["path"]
    assert path == f"tinker://{model}/weights/c1"
    assert "exists; give another name" in client.call("save_weights", model, path="c1")["error"]

    def go_on(number: int, *, optimizer: bool) -> str:
        body = {"session_id": client.session, "model_seq_id": number, "path": path, "optimizer": optimizer}
        return client.result(client.post("load_weights", body))["model_id"]

    resumed, fresh = go_on(1, optimizer=True), go_on(2, optimizer=False)
    for one in (model, resumed, fresh):
        client.forward_backward(one, data)
        client.step(one)
    assert adapter_bytes(service, resumed) == adapter_bytes(service, model) != adapter_bytes(service, fresh)

    saved = service.desk.ledger.find(CheckpointRecord, path)
    assert saved is not None
    opened = open_policy(ModelSource(path=saved.folder, compute="float32"), seed=0, device="cpu", temperature=1.0)
    packed = pack_rows([np.array([byte + 3 for byte in TEXTS[0].encode()], np.int32)])
    targets = row_targets(packed)
    with torch.no_grad():
        logp = opened.token_logprobs(packed, targets.at, targets.chosen).logp
    third = go_on(3, optimizer=False)
    rows, _ = client.forward_backward(third, data[:1], forward_only=True)
    np.testing.assert_allclose(rows[0], logp.numpy(), atol=1e-5)


def test_the_state_of_a_live_model_is_loaded_with_or_without_its_optimizer(serve: Serve) -> None:
    service, http = serve()
    client, model = WireClient(http), ""
    model = client.model()
    path = client.call("save_weights", model, path="start")["path"]
    client.forward_backward(model, [text_datum(TEXTS[0])])
    moved = client.step(model)["metrics"]
    assert moved["step:max"] == 1
    client.call("load_weights", model, path=path, optimizer=False)
    assert service.trainer.models[model].steps == 1, "live moments stay"
    client.call("load_weights", model, path=path, optimizer=True)
    assert service.trainer.models[model].steps == 0


def test_steps_take_their_own_settings_and_match_adamw(serve: Serve) -> None:
    service, http = serve()
    client = WireClient(http)
    model = client.model()
    trained = service.trainer.models[model]
    twin = trained.parameters.data.detach().clone().requires_grad_()
    torch_adam = torch.optim.AdamW([twin], lr=1.0)
    for rate, beta1, beta2, eps, decay, clip in ((1e-2, 0.9, 0.95, 1e-12, 0, 0), (3e-3, 0.5, 0.9, 1e-8, 0.1, 0.3)):
        client.forward_backward(model, [text_datum(TEXTS[2])])
        gradient = trained.gradient()
        norm = float(torch.linalg.vector_norm(gradient))
        asked = {"learning_rate": rate, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": decay}
        metrics = client.step(model, **asked, grad_clip_norm=clip)["metrics"]
        assert metrics["grad_norm:mean"] == pytest.approx(norm, rel=1e-6)
        twin.grad = gradient * (min(1.0, clip / norm) if clip else 1.0)
        torch_adam.param_groups[0].update(lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
        torch_adam.step()
        torch.testing.assert_close(trained.parameters.data.detach(), twin.detach(), rtol=1e-5, atol=1e-7)
    assert not trained.pending and trained.gradient() is None


REFUSED: list[tuple[str, list, dict, str]] = [
    ("ppo", [text_datum("abc")], {}, "datum 0: loss_fn_inputs['logprobs'] is missing; ppo needs it"),
    ("nosuch", [text_datum("abc")], {}, "loss_fn 'nosuch' is not served"),
    ("cross_entropy", [text_datum("abc")], {"beta": 1.0}, "cross_entropy does not know loss_fn_config['beta']"),
    ("cross_entropy", [datum([4, 5], [4])], {}, "has 1 rows, model_input 2 tokens"),
    ("cross_entropy", [datum([4, 999], [4, 5])], {}, "datum 0: model_input has ids from 4 to 999"),
    ("cross_entropy", [datum([4] * 97, [4] * 97)], {}, "has 97 tokens, at most 96 are served"),
    ("cross_entropy", [text_datum("abc", weights=[1.0])], {}, "loss_fn_inputs['weights'] has shape [1]"),
    ("cross_entropy", [text_datum("abc", weights=[1.0, np.nan])], {}, "numbers that are not finite"),
    ("cross_entropy", [wire.Datum()], {}, "model_input is empty"),
    ("cross_entropy", [], {}, "there are no datums"),
    ("cross_entropy", [wire.Datum(model_input=[wire.Chunk(image=wire.ImageChunk())])], {}, "reads text only"),
]  # fmt: skip


def test_a_refused_pass_is_told_by_its_result_adds_nothing_and_the_client_goes_on(serve: Serve) -> None:
    service, http = serve()
    client = WireClient(http)
    model = client.model()
    client.forward_backward(model, [text_datum(TEXTS[0])])
    before = service.trainer.models[model].gradient()
    for loss, data, options, words in REFUSED:
        error = client.result(client.send_pass(model, data, loss, **options))
        assert error["category"] == "user" and words in error["error"], (words, error)
    body = {"model_id": model, "seq_id": client.number(model), "adam_params": {"learning_rate": -1, "speed": 2}}
    error = client.result(client.post("optim_step", body))
    assert "learning_rate = -1 is out of its range" in error["error"] and "no 'speed'" in error["error"]
    assert torch.equal(service.trainer.models[model].gradient(), before)
    assert client.step(model)["metrics"]["step:max"] == 1


def test_who_waits_for_a_result_goes_once_the_service_stops(serve: Serve) -> None:
    service, http = serve()
    client = WireClient(http)
    model, forever_s = client.model(), 1e6
    with service.trainer.computing:
        promise = client.send_pass(model, [text_datum(TEXTS[0])])

        async def wait() -> None:
            held = asyncio.create_task(service.desk.wait(promise["request_id"], forever_s))
            await asyncio.sleep(0)
            assert not held.done()
            service.routes.drain()
            await held
            await service.desk.wait(promise["request_id"], forever_s)

        asyncio.run(wait())
        answer = client.post("retrieve_future", promise, status=408)
        assert answer["type"] == "try_again" and answer["queue_state"] == "active"


def test_a_repeated_submit_is_the_first_one_and_another_content_is_refused(client: WireClient) -> None:
    model = client.model()
    first = client.send_pass(model, [text_datum("abc")], number=1)
    assert client.send_pass(model, [text_datum("abc")], number=1) == first
    client.numbers[model] = 1
    one = client.result(first)
    assert client.result(first) == one, "results can be fetched again"
    message = wire.ForwardBackwardRequest(model_id=model, seq_id=1, data=[text_datum("xyz")], loss_fn="cross_entropy")
    refused = client.post("forward_backward", message.SerializeToString(), status=400)
    assert "was used for another request" in refused["error"]["message"]
    assert client.step(model)["metrics"]["step:max"] == 1


def test_hostile_bodies_have_a_status_and_nobody_else_notices(client: WireClient, serve: Serve) -> None:
    model = client.model()
    refused = client.post("forward_backward", b"\xff\xff\xff", status=400)
    assert "is no ForwardBackwardRequest" in refused["error"]["message"]
    client.post("forward_backward", b"", status=400)
    client.post("optim_step", b"{", status=400)
    client.post("optim_step", b"[1]", status=400)
    missing = client.post("optim_step", {"seq_id": 1}, status=400)
    assert "model_id" in missing["error"]["message"]
    client.post("optim_step", {"model_id": model, "seq_id": "x"}, status=400)
    client.post("forward_backward", b"", status=413, headers={"content-length": str(1 << 30)})
    client.post("forward_backward", b"no zstd", status=400, headers={"content-encoding": "zstd"})
    client.post("asample", {"sampling_session_id": "nobody's", "seq_id": 1}, status=404)
    client.post("nosuch", {}, status=404)
    client.get("training_runs?limit=-1", status=400)
    indices = wire.SparseCsr(values=b"\0" * 8, crow_indices=b"\xff" * 24, col_indices=b"\xff" * 8)
    targets = wire.Tensor(sparse_csr=indices, dtype=wire.DTYPE_INT64, shape=[2, 1 << 40])
    sparse = wire.Datum(model_input=text_datum("abc").model_input, loss_fn_inputs={"target_tokens": targets})
    error = client.result(client.send_pass(model, [sparse]))
    assert "sparse indices do not describe a matrix" in error["error"]
    assert client.step(model)["metrics"]["step:max"] == 1


def test_a_bomb_unpacks_to_413(client: WireClient) -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(b"\0" * (64 << 20))
    refused = client.post("forward_backward", bomb, status=413, headers={"content-encoding": "zstd"})
    assert "unpacks to more than" in refused["error"]["message"]


def test_no_key_no_scope_and_no_neighbour_gets_anything(serve: Serve) -> None:
    tenants = [
        TenantConfig(name="a", token_sha256=key_digest("key-a")),
        TenantConfig(name="b", token_sha256=key_digest("key-b")),
        TenantConfig(name="reader", token_sha256=key_digest("key-r"), scopes=["read"]),
    ]
    _, http = serve(tenants=tenants)
    a, b = WireClient(http, "key-a"), WireClient(http, "key-b")
    refused = [WireClient(http, key).post("create_session", {}, status=401) for key in ("wrong", "")]
    assert [one["error"]["message"].split(":")[0] for one in refused] == [
        "no tenant of this service has the key that was sent", "no key was sent",
    ]  # fmt: skip
    reader = WireClient(http, "key-r")
    reader.open()
    lacking = reader.post("create_model", {"session_id": reader.session}, status=403)
    assert "lacks the scope train; it has read" in lacking["error"]["message"]
    model, own = a.model(), b.model()
    promise = a.send_pass(model, [text_datum("secret")])
    path = a.call("save_weights", model, path="c1")["path"]
    sampler = a.call("save_weights_for_sampler", model, sampling_session_seq_id=1)["sampling_session_id"]
    name = f"training_runs/{model}/checkpoints/weights/c1"
    pass_of_another = wire.ForwardBackwardRequest(model_id=model, seq_id=9).SerializeToString()
    attempts = [
        b.post("forward_backward", pass_of_another, status=404),
        b.post("optim_step", {"model_id": model, "seq_id": 9}, status=404),
        b.post("save_weights", {"model_id": model, "seq_id": 9, "path": "x"}, status=404),
        b.post("get_info", {"model_id": model}, status=404),
        b.post("retrieve_future", promise, status=410),
        b.post("create_model", {"session_id": a.session, "model_seq_id": 4, "base_model": "tiny"}, status=404),
        b.post("session_heartbeat", {"session_id": a.session}, status=404),
        b.post(f"sessions/{a.session}/finish", {}, status=404),
        b.post("load_weights", {"session_id": b.session, "model_seq_id": 5, "path": path}, status=404),
        b.post("weights_info", {"tinker_path": path}, status=404),
        b.post("create_sampling_session",
               {"session_id": b.session, "sampling_session_seq_id": 1, "model_path": path}, status=404),
        b.post("asample", {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": []}}, status=404),
        b.get(f"samplers/{sampler}", status=404),
        b.get(f"training_runs/{model}", status=404),
        b.get(f"training_runs/{model}/checkpoints", status=404),
        b.get(f"{name}/external_weights_urls", status=404),
        b.get(f"{name}/files/adapter_config.json", status=404),
        b.get(f"sessions/{a.session}", status=404),
        b.post(f"{name}/publish", {}, status=404),
        b.post(name, {}, status=404, method="DELETE"),
    ]  # fmt: skip
    assert all("secret" not in str(one) and "note" not in str(one) for one in attempts)
    stolen = b.result(b.post("load_weights", {"model_id": own, "seq_id": b.number(own), "path": path}))
    assert "there is no checkpoint" in stolen["error"]
    assert b.get("training_runs")["training_runs"][0]["training_run_id"] == own
    assert b.get("checkpoints") == {"checkpoints": [], "cursor": {"offset": 0, "limit": 20, "total_count": 0}}
    a.post(f"{name}/publish", {}, status=204)
    assert b.post("weights_info", {"tinker_path": path})["lora_rank"] == 4, "published ones are for all"
    assert a.step(model)["metrics"]["step:max"] == 1


def test_the_most_models_are_those_of_open_sessions(serve: Serve) -> None:
    tenants = [TenantConfig(name="a", token_sha256=key_digest("key-a"), max_models=2)]
    client = WireClient(serve(tenants=tenants)[1], "key-a")
    first = client.model(number=0)
    body = {"session_id": client.session, "base_model": "tiny", "lora_config": {"rank": 2}}
    client.model(number=1)
    words = client.post("create_model", {**body, "model_seq_id": 2}, status=402)["error"]["message"]
    assert words == "a has 2 models in open sessions, the most that it may have; finish a session to train another"
    client.post(f"sessions/{client.session}/finish", {"reason": {"type": "success"}}, status=204)
    assert client.open() not in first and client.model() and client.model(number=1)
    client.post("create_model", {**body, "session_id": client.session, "model_seq_id": 2}, status=402)


def test_lists_ttl_and_deletion(serve: Serve) -> None:
    service, http = serve()
    client = WireClient(http)
    model = client.model()
    for number in range(3):
        client.call("save_weights", model, path=f"c{number}", ttl_seconds=3600 if number else None)
    client.call("save_weights_for_sampler", model, path="s1")
    names = [one["checkpoint_id"] for one in client.get(f"training_runs/{model}/checkpoints")["checkpoints"]]
    assert names == ["weights/c0", "weights/c1", "weights/c2", "sampler_weights/s1"]
    page = client.get("checkpoints?limit=2&offset=1")
    assert page["cursor"] == {"offset": 1, "limit": 2, "total_count": 4} and len(page["checkpoints"]) == 2
    run = client.get(f"training_runs/{model}")
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/c2" and run["user_metadata"]["hone_lora_seed"] == "1"
    first = f"training_runs/{model}/checkpoints/weights/c0"
    folder = Path(service.desk.ledger.find(CheckpointRecord, f"tinker://{model}/weights/c0").folder)
    client.post(first, {}, status=204, method="DELETE")
    assert not folder.exists() and "there is no checkpoint" in client.call(
        "load_weights", model, path=f"tinker://{model}/weights/c0")["error"]  # fmt: skip
    client.post(f"training_runs/{model}/checkpoints/weights/c1/ttl", {"ttl_seconds": -1}, status=204, method="PUT")
    service.sweep()
    names = [one["checkpoint_id"] for one in client.get(f"training_runs/{model}/checkpoints")["checkpoints"]]
    assert names == ["weights/c2", "sampler_weights/s1"]
    assert "checkpoint's name has" in client.call("save_weights", model, path="../up")["error"]


def test_work_is_metered_by_tenant_and_every_token_is_counted(serve: Serve) -> None:
    service, http = serve()
    client = WireClient(http)
    model = client.model()
    client.forward_backward(model, [text_datum("abcd")])
    client.forward_backward(model, [text_datum("abcdef")], forward_only=True)
    sampler = client.sampler()
    client.sample(sampler, [5, 6, 7], samples=2, params={"max_tokens": 4, "stop": []})
    usage = {what: amount for (_, what), amount in service.desk.ledger.usage().items()}
    core_s = usage.pop("core_s")
    assert usage == {"train_tokens": 3, "forward_tokens": 5, "prompt_tokens": 3, "sampled_tokens": 8}
    assert core_s > 0
    text = http.get("/metrics").text
    assert 'hone_training_usage_total{tenant="local",what="train_tokens"} 3\n' in text
