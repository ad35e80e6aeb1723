"""Gradients that layers write where they belong: the same sums as autograd's, whoever brings them and however often."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hone.learner import flat_parameters as flat
from hone.learner.flat_parameters import FlatParameters
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows, row_targets


def model(*, tied: bool = False) -> Decoder:
    config = ModelConfig(
        family="qwen3", vocab_size=11, hidden_size=32, intermediate_size=64, layers=2, heads=2, kv_heads=1, head_dim=16,
        tie_embeddings=tied,
    )  # fmt: skip
    found = new_model(config, seed=1)
    found.set_compute_dtype("bfloat16")
    return found


def backward(policy: Decoder, seed: int) -> None:
    rows = [np.random.default_rng(seed + n).integers(0, 11, 9).astype(np.int32) for n in range(3)]
    packed = pack_rows(rows)
    targets = row_targets(packed)
    logp = policy.token_logprobs(policy.hidden(packed)[targets.at], targets.chosen).logp
    (logp * torch.arange(len(logp)).sin()).sum().backward()


def received(parameters: FlatParameters, passes: Callable[[], None]) -> Tensor:
    parameters.gradient.fill_(float("nan"))  # nothing of before may be left
    with parameters.collect_gradients():
        passes()
    for parameter, view in zip(parameters.parameters, parameters.views, strict=True):
        assert parameter.grad is view
    return parameters.gradient.clone()


@pytest.fixture(autouse=True)
def every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "MIN_PARAMETERS_TO_RECEIVE", 1)


def test_gradients_that_are_handed_over_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model()
    parameters = FlatParameters(policy.parameters())

    def passes(*seeds: int) -> Callable[[], None]:
        return lambda: [backward(policy, seed) for seed in seeds].clear()

    def plain(*seeds: int) -> Tensor:
        parameters.zero_grad()
        passes(*seeds)()
        return parameters.gradient.clone()

    for seeds in ((1,), (2,), (3, 4, 5), (6,)):  # micro-batches: one, and several
        wanted = plain(*seeds)
        assert wanted.abs().max() > 0
        assert torch.equal(received(parameters, passes(*seeds)), wanted)
    assert received(parameters, passes()).eq(0).all()  # nobody brought any
    assert torch.equal(received(parameters, passes(7)), plain(7))
    policy.set_compute_dtype("float32")
    assert torch.equal(received(parameters, passes(8)), plain(8))
    policy.set_compute_dtype("bfloat16")
    monkeypatch.setenv("HONE_NATIVE", "0")  # and layers that have no kernel
    assert torch.equal(received(parameters, passes(9)), plain(9))


def test_a_weight_of_two_layers_has_the_sum_of_both() -> None:
    """The head writes its gradient, and autograd brings that of the embedding: the same terms in another order."""
    policy = model(tied=True)
    parameters = FlatParameters(policy.parameters())

    def passes() -> None:
        for seed in (3, 4, 5):
            backward(policy, seed)

    for _ in range(2):  # as autograd has them, then into the buffers
        collected = received(parameters, passes)
        parameters.zero_grad()
        passes()
        torch.testing.assert_close(collected, parameters.gradient, rtol=1e-5, atol=1e-6)


def test_what_autograd_brings_all_the_same_is_added() -> None:
    policy = model()
    parameters = FlatParameters(policy.parameters())
    received(parameters, lambda: backward(policy, 1))

    def decayed() -> None:
        sum((parameter.square().sum() for parameter in policy.parameters()), torch.zeros(())).backward()

    found = received(parameters, decayed)  # by no layer, where layers wrote before
    assert torch.equal(found, 2 * parameters.data.detach())
    received(parameters, lambda: backward(policy, 1))

    def mixed() -> None:
        backward(policy, 2)
        decayed()
        backward(policy, 3)

    found = received(parameters, mixed)
    parameters.zero_grad()
    mixed()
    torch.testing.assert_close(found, parameters.gradient, rtol=1e-5, atol=1e-6)  # in another order


def test_a_pass_that_fails_leaves_the_gradients_in_their_places() -> None:
    policy = model()
    parameters = FlatParameters(policy.parameters())
    received(parameters, lambda: backward(policy, 1))
    with pytest.raises(RuntimeError, match="half way"), parameters.collect_gradients():
        raise RuntimeError("half way")
    for parameter, view in zip(parameters.parameters, parameters.views, strict=True):
        assert parameter.grad is view
    again = received(parameters, lambda: backward(policy, 1))
    assert torch.equal(received(parameters, lambda: backward(policy, 1)), again)


def test_a_gradient_that_is_asked_for_is_returned() -> None:
    """torch.autograd.grad outside of `receiving_gradients` is told what it asked for."""
    policy = model()
    parameters = FlatParameters(policy.parameters())
    parameters.zero_grad()
    packed = pack_rows([np.arange(5, dtype=np.int32)])
    grads = torch.autograd.grad(policy.hidden(packed).sum(), list(policy.layers.parameters()))
    assert grads[0].abs().max() > 0 and parameters.gradient.eq(0).all()
