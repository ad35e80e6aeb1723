"""Action-value networks: numpy says what torch says; each of the four ways is the plain one where it is off."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.control.networks.actor_critic import polyak_update
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.mlp import DiscreteActions, Mlp, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.q_networks import (
    CategoricalReturn,
    DiscreteSacPolicy,
    DqnPolicy,
    NoisyMlp,
    NumpyNoisyMlp,
    NumpyNoisyPolicy,
    QArchitecture,
    QuantileReturn,
    ReturnModel,
    ScalarReturn,
)
from hone.core.errors import DataError
from hone.objectives.distributional import ValueSupport, logits_mean
from hone.objectives.td import dueling

SPACES = PolicySpaces(inputs=ObservationInputs(size=3), actions=DiscreteActions(count=4, start=2))
SMALL = MlpConfig(hidden=[16, 8])
RELU = MlpConfig(hidden=[16], activation="relu")
OUTCOMES: list[ReturnModel] = [ScalarReturn(), CategoricalReturn(low=-2.0, high=6.0, size=9), QuantileReturn(size=5)]
SHAPES = [
    QArchitecture(outcome=outcome, dueling=dueled, sigma=sigma)
    for outcome in OUTCOMES
    for dueled in (False, True)
    for sigma in (0.0, 0.5)
] + [QArchitecture(layer_norm=True), QArchitecture(layer_norm=True, sigma=0.5, dueling=True)]


def seen(count: int = 64) -> np.ndarray:
    return np.random.default_rng(2).normal(size=(count, 3)).astype(np.float32)


def shaken(policy: DqnPolicy) -> DqnPolicy:
    """Weights away from their calm beginning."""
    with torch.no_grad():
        for parameter in policy.values.parameters():
            parameter.add_(0.3 * torch.from_numpy(np.random.default_rng(0).normal(size=parameter.shape)).float())
    return policy


@pytest.mark.parametrize("network", [SMALL, RELU], ids=["tanh", "relu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_says_what_torch_says(shape: QArchitecture, network: MlpConfig) -> None:
    policy = shaken(DqnPolicy(SPACES, network, seed=1, architecture=shape))
    x = seen()
    with torch.no_grad():
        table = policy.q_values(policy.return_outputs(torch.from_numpy(x))).numpy()
    assert table.shape == (64, 4)
    np.testing.assert_allclose(policy.numpy_q_network()(x), table, atol=2e-5)
    np.testing.assert_array_equal(policy.exploring_policy().best(x), table.argmax(axis=1) + 2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_average_is_what_acts(shape: QArchitecture) -> None:
    policy = shaken(DqnPolicy(SPACES, SMALL, seed=1, architecture=shape))
    x = seen()
    before = policy.numpy_policy().best(x)
    assert (before != policy.exploring_policy().best(x)).any()
    polyak_update(policy.average.parameters(), policy.values.parameters(), tau=1.0)
    np.testing.assert_array_equal(policy.numpy_policy().best(x), policy.exploring_policy().best(x))
    with torch.no_grad():
        table = policy.q_values(policy.average_return_outputs(torch.from_numpy(x)))
        torch.testing.assert_close(table, policy.q_values(policy.return_outputs(torch.from_numpy(x))), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.sigma], ids=str)
def test_numpy_is_as_noisy_as_torch(shape: QArchitecture) -> None:
    """A draw for each row without writing out its weights, against torch's weights written out row by row."""
    policy = shaken(DqnPolicy(SPACES, SMALL, seed=1, architecture=shape))
    x, noise = seen(6), np.random.default_rng(3).normal(size=(6, policy.noise_size)).astype(np.float32)
    mirror = policy.numpy_q_network()
    assert isinstance(mirror.network, NumpyNoisyMlp)
    fast = mirror.q_values(mirror.network.with_noise(x, noise))
    with torch.no_grad():
        rows = [
            policy.q_values(policy.return_outputs(torch.from_numpy(x[[i]]), torch.from_numpy(noise[i])))
            for i in range(6)
        ]
    np.testing.assert_allclose(fast, torch.cat(rows).numpy(), atol=3e-5)
    chosen, _ = policy.exploring_policy().decide(x, noise)
    np.testing.assert_array_equal(chosen, fast.argmax(axis=1) + 2)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_noise_switched_off_is_the_plain_network(sigma: float) -> None:
    """The same streams make the means, so sigma = 0 equals plain to the last bit; so does a draw of zeros."""
    plain = Mlp(3, 4, SMALL, seed=1, stream="values")
    noisy = NoisyMlp(Mlp(3, 4, SMALL, seed=1, stream="values"), sigma=sigma)
    x = torch.from_numpy(seen())
    noise = torch.randn(noisy.noise_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noisy(x, torch.zeros_like(noise)), plain(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(noisy.mean(x), plain(x), rtol=0, atol=0)
    changed = not torch.allclose(noisy(x, noise), plain(x), atol=1e-4)
    assert changed == (sigma > 0)


def test_one_noisy_layer_by_hand() -> None:
    """One input, one output, weight 2, offset 1, scales 3, 5; e = (4, -9), f = (2, -3): w = 2 - 18, b = 1 - 15."""
    layer = NoisyMlp(Mlp(1, 1, MlpConfig(hidden=[]), seed=0, stream="x"), sigma=0.5)
    with torch.no_grad():
        (linear,) = layer.mean.layers
        linear.weight.fill_(2.0)
        linear.bias.fill_(1.0)
        layer.weights[0].fill_(3.0)
        layer.offsets[0].fill_(5.0)
    assert layer(torch.tensor([[10.0]]), torch.tensor([4.0, -9.0])).item() == pytest.approx(-16 * 10 - 14)


def test_scales_begin_as_the_paper_says() -> None:
    noisy = NoisyMlp(Mlp(9, 4, MlpConfig(hidden=[16]), seed=1, stream="values"), sigma=0.5)
    assert [weight.detach().flatten()[0].item() for weight in noisy.weights] == pytest.approx([0.5 / 3, 0.5 / 4])
    assert [offset.detach()[0].item() for offset in noisy.offsets] == pytest.approx([0.5 / 3, 0.5 / 4])
    assert noisy.noise_size == (9 + 16) + (16 + 4)


def test_a_draw_has_mean_zero_and_the_scale_of_sigma() -> None:
    """E f = 0 and E f^2 = E |e| = sqrt(2 / pi) for each factor: the weight's variance is sigma^2 * 2 / pi."""
    layer = NoisyMlp(Mlp(1, 1, MlpConfig(hidden=[]), seed=0, stream="x"), sigma=1.0)
    noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.offsets[0].zero_()
        weight = torch.stack([layer(torch.ones(1, 1), one) for one in noise[:4000]]).flatten() - layer(
            torch.ones(1, 1), torch.zeros(2)
        )
    assert float(weight.mean()) == pytest.approx(0.0, abs=0.05)
    assert float(weight.var()) == pytest.approx(2 / np.pi, rel=0.1)


@given(st.lists(st.floats(-5, 5), min_size=10, max_size=10))
def test_dueling_is_the_objectives_formula(numbers: list[float]) -> None:
    """And for distributions the same formula atom by atom, over logits (Rainbow)."""
    raw = torch.tensor(numbers, dtype=torch.float32)[None]
    policy = DqnPolicy(
        SPACES, MlpConfig(hidden=[]), seed=1, architecture=QArchitecture(outcome=QuantileReturn(size=2), dueling=True)
    )
    found = policy._combine_dueling(raw, None)
    for quantile in range(2):
        wanted = dueling(raw[:, quantile], raw[:, 2 + quantile :: 2])
        torch.testing.assert_close(found[:, :, quantile], wanted)
    plain = DqnPolicy(SPACES, MlpConfig(hidden=[]), seed=1, architecture=QArchitecture(dueling=True))
    table = plain.q_values(plain._combine_dueling(raw[:, :5], None))
    torch.testing.assert_close(table.mean(dim=1), raw[:, 0], atol=1e-5, rtol=1e-5)  # advantages are centred


def test_expectations_are_the_objectives() -> None:
    policy = DqnPolicy(
        SPACES, SMALL, seed=1, architecture=QArchitecture(outcome=CategoricalReturn(low=-2.0, high=6.0, size=9))
    )
    logits = torch.randn(7, 4, 9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(policy.q_values(logits), logits_mean(logits, ValueSupport(low=-2.0, high=6.0, size=9)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_slow_copy_begins_as_a_copy_and_learns_nothing(shape: QArchitecture) -> None:
    policy = DqnPolicy(SPACES, SMALL, seed=1, architecture=shape)
    x = torch.from_numpy(seen())
    torch.testing.assert_close(policy.target_return_outputs(x), policy.return_outputs(x).detach(), rtol=0, atol=0)
    assert not any(parameter.requires_grad for parameter in policy.target.parameters())
    assert not policy.target_return_outputs(x).requires_grad


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_folders_hold_the_shape(shape: QArchitecture, tmp_path: Path) -> None:
    policy = shaken(DqnPolicy(SPACES, SMALL, seed=1, architecture=shape))
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, DqnPolicy) and again.architecture == shape
    np.testing.assert_array_equal(again.numpy_policy().best(seen()), policy.numpy_policy().best(seen()))
    assert isinstance(again.numpy_policy(), NumpyNoisyPolicy) == (shape.sigma > 0)


def test_a_damaged_shape_is_told_of(tmp_path: Path) -> None:
    save_policy(DqnPolicy(SPACES, SMALL, seed=1, architecture=QArchitecture(outcome=QuantileReturn(size=3))), tmp_path)
    described = (tmp_path / "policy.json").read_text(encoding="utf-8")
    (tmp_path / "policy.json").write_text(described.replace('"quantiles"', '"bins"'), encoding="utf-8")
    with pytest.raises(DataError, match="incomplete or unknown: KeyError"):
        load_policy(tmp_path)


def test_soft_choices_act_as_torch_says(tmp_path: Path) -> None:
    policy = DiscreteSacPolicy(SPACES, SMALL, seed=1)
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.add_(0.3 * torch.from_numpy(np.random.default_rng(0).normal(size=parameter.shape)).float())
    acting, x = policy.numpy_policy(), seen()
    chosen, logp = acting.decide(x, acting.noise(np.random.default_rng(3), (64,)))
    with torch.no_grad():
        wanted = policy.logp(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(logp, wanted[np.arange(64), chosen - 2], atol=1e-5)
    with torch.no_grad():
        first, second = policy.q_values(torch.from_numpy(x))
    torch.testing.assert_close(policy.min_target_q_values(torch.from_numpy(x)), torch.minimum(first, second))
    save_policy(policy, tmp_path)
    np.testing.assert_array_equal(load_policy(tmp_path).numpy_policy().best(x), acting.best(x))
