"""Measures of novelty by hand, what they keep, and the policies over options in numpy and torch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.intrinsic_reward import (
    CuriousActorCritic,
    HashCountConfig,
    HashCounts,
    IcmConfig,
    IntrinsicCuriosity,
    RandomNetworkDistillation,
    RndConfig,
    TorchMoments,
)
from hone.control.networks.mlp import BoxActions, DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.options import (
    OptionCriticPolicy,
    OptionTablePolicy,
    decode_option_action,
    encode_option_action,
    epsilon_greedy,
    split_option_memory,
)

STATES = PolicySpaces(inputs=ObservationInputs(size=9, one_hot=True), actions=DiscreteActions(count=3))
BOX = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=3))
CONTINUOUS = PolicySpaces(inputs=ObservationInputs(size=4), actions=BoxActions(low=(-1.0,), high=(1.0,), shape=(1,)))


def steps(space: PolicySpaces, count: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draws = np.random.default_rng(seed)
    if space.inputs.one_hot:
        seen, after = torch.from_numpy(draws.integers(0, space.inputs.size, (2, count)))
    else:
        seen, after = torch.from_numpy(draws.standard_normal((2, count, space.inputs.size)).astype("float32"))
    if isinstance(space.actions, DiscreteActions):
        return seen, torch.from_numpy(draws.integers(0, 3, count)), after
    return seen, torch.from_numpy(draws.standard_normal((count, 1)).astype("float32")), after


def test_running_moments_are_those_of_all_rows() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 3)) * [1, 10, 0.1] + [5, 0, -3])
    moments = TorchMoments(3)
    assert moments.std().tolist() == [1, 1, 1]
    for piece in rows.split([1, 7, 42]):
        moments.update(piece)
    np.testing.assert_allclose(moments.get_buffer("mean"), rows.mean(dim=0), rtol=1e-12)
    np.testing.assert_allclose(moments.std(), rows.std(dim=0, correction=0), rtol=1e-12)
    white = moments.normalise(rows)
    assert white.abs().max() <= 5
    np.testing.assert_allclose(white.mean(dim=0), np.zeros(3), atol=1e-9)


def test_counts_by_hand() -> None:
    novelty = HashCounts(STATES, HashCountConfig(bits=16), seed=0)
    after = torch.tensor([4, 4, 4, 4, 7])
    novelty.update(after)
    found = novelty.bonus(after, after, after)
    np.testing.assert_allclose(found, [0.5, 0.5, 0.5, 0.5, 1.0])
    assert novelty.bonus(after, after, torch.tensor([1])).tolist() == [1.0]  # never seen
    assert novelty.trainable_parameters() == []
    assert int(novelty.get_buffer("counts").sum()) == 5


def learnt(
    novelty: RandomNetworkDistillation | IntrinsicCuriosity, space: PolicySpaces, rounds: int
) -> tuple[float, float]:
    """Mean surprise at what it learns from, before and after."""
    known = steps(space)
    optimizer = torch.optim.Adam(novelty.trainable_parameters(), lr=3e-3)
    first = float(novelty.bonus(*known).mean())
    for _ in range(rounds):
        optimizer.zero_grad()
        novelty.loss(*known).mean().backward()
        optimizer.step()
    return first, float(novelty.bonus(*known).mean())


@pytest.mark.parametrize("space", [STATES, BOX], ids=["states", "box"])
def test_what_was_learnt_is_new_no_more(space: PolicySpaces) -> None:
    novelty = RandomNetworkDistillation(space, RndConfig(), seed=0)
    frozen = [parameter.clone() for parameter in novelty.random.parameters()]
    first, last = learnt(novelty, space, 200)
    assert last < 0.1 * first
    other = steps(space, seed=1)[2] + (0.0 if space.inputs.one_hot else 3.0)
    if not space.inputs.one_hot:
        assert float(novelty.bonus(other, other, other).mean()) > 3 * last
    for before, now in zip(frozen, novelty.random.parameters(), strict=True):
        assert torch.equal(before, now)


@pytest.mark.parametrize("space", [STATES, BOX, CONTINUOUS], ids=["states", "box", "continuous"])
def test_curiosity_learns_and_its_forward_loss_leaves_the_encoder_alone(space: PolicySpaces) -> None:
    novelty = IntrinsicCuriosity(space, IcmConfig(forward_share=1.0), seed=0)
    novelty.loss(*steps(space)).mean().backward()
    assert all(not parameter.grad.any() for parameter in novelty.encoder.parameters() if parameter.grad is not None)
    first, last = learnt(novelty, space, 300)
    assert last < 0.2 * first
    novelty = IntrinsicCuriosity(space, IcmConfig(forward_share=0.0), seed=0)
    novelty.loss(*steps(space)).mean().backward()
    grads = [parameter.grad for parameter in novelty.encoder.parameters()]
    assert all(grad is not None for grad in grads)


@pytest.mark.parametrize("config", [RndConfig(), IcmConfig(), HashCountConfig(bits=8)])
@pytest.mark.parametrize("space", [STATES, BOX], ids=["states", "box"])
def test_what_is_known_is_saved_with_the_policy(config, space: PolicySpaces, tmp_path: Path) -> None:
    policy = CuriousActorCritic(space, MlpConfig(hidden=[8]), seed=0, novelty=config, lanes=3)
    seen, chosen, after = steps(space)
    policy.novelty.update(after)
    policy.returns.update(torch.rand(9, 1))
    policy.get_buffer("running").copy_(torch.tensor([1.0, 2.0, 3.0]))
    save_policy(policy, tmp_path)
    again = load_policy(tmp_path)
    assert isinstance(again, CuriousActorCritic)
    assert torch.equal(again.novelty.bonus(seen, chosen, after), policy.novelty.bonus(seen, chosen, after))
    assert again.get_buffer("running").tolist() == [1, 2, 3]
    assert torch.equal(again.returns.std(), policy.returns.std())
    assert policy.numpy_policy().best(seen.numpy()).tolist() == again.numpy_policy().best(seen.numpy()).tolist()


# ------------------------------------------------------------------------------------------------- options


def test_numbers_of_a_world_with_a_memory_come_apart_again() -> None:
    began, option, action = np.array([True, False]), np.array([2, 1]), np.array([3, 0])
    chosen = encode_option_action(began, option, action, options=3, actions=4)
    assert chosen.tolist() == [(3 + 2) * 4 + 3, 1 * 4]
    for found, wanted in zip(decode_option_action(chosen, options=3, actions=4), (began, option, action), strict=True):
        assert found.tolist() == wanted.tolist()
    state, memory = split_option_memory(np.array([0, 7, 35]), ObservationInputs(size=9, one_hot=True), 3)
    assert (state.tolist(), memory.tolist()) == ([0, 1, 8], [-1, 2, 2])
    seen, memory = split_option_memory(np.array([[1.0, 2, 0, 0], [3, 4, 0, 1]]), ObservationInputs(size=2), 2)
    assert (seen.tolist(), memory.tolist()) == ([[1, 2], [3, 4]], [-1, 1])


def test_only_allowed_options_are_picked() -> None:
    values = np.array([[9.0, 1.0, 2.0]], np.float32).repeat(1000, axis=0)
    allowed = np.array([[False, True, True]]).repeat(1000, axis=0)
    noise = np.random.default_rng(0).random((1000, 2), dtype=np.float32)
    assert set(epsilon_greedy(values, allowed, noise, 0.0).tolist()) == {2}
    drawn = epsilon_greedy(values, allowed, noise, 1.0)
    assert np.bincount(drawn, minlength=3)[1:].min() > 400
    assert 0 not in drawn


def test_ties_among_options_fall_evenly_and_only_among_the_best() -> None:
    values = np.array([[5.0, 2.0, 2.0, 1.0, 2.0]], np.float32).repeat(3000, axis=0)
    allowed = np.array([[False, True, True, True, True]]).repeat(3000, axis=0)
    drawn = epsilon_greedy(values, allowed, np.random.default_rng(0).random((3000, 2), dtype=np.float32), 0.0)
    counts = np.bincount(drawn, minlength=5)
    assert counts[[0, 3]].tolist() == [0, 0]
    assert np.abs(counts[[1, 2, 4]] - 1000).max() < 4 * np.sqrt(3000 * 1 / 3 * 2 / 3)
    rank = np.array([[0.5, 0.0], [0.5, 0.34], [0.5, 0.999]], np.float32)  # the first, second and third of the three
    assert epsilon_greedy(values[:3], allowed[:3], rank, 0.0).tolist() == [1, 2, 4]


def test_a_table_of_options_calls_and_returns(tmp_path: Path) -> None:
    """Two options in three states: option 0 does action 1 and stops in state 2; option 1 does action 2 and stops."""
    space = PolicySpaces(inputs=ObservationInputs(size=3, one_hot=True), actions=DiscreteActions(count=3))
    policy = OptionTablePolicy(space, MlpConfig(), options=2)
    policies, stops = np.array([[1, 1, 1], [2, 2, 2]]), np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    policy.set_options(policies, stops, np.ones((2, 3), np.bool_))
    policy.table("values")[:] = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    save_policy(policy, tmp_path)
    best = load_policy(tmp_path).numpy_policy().best
    # option 0 is best in state 0 and goes on in state 1, where option 1 would be better; in state 2 it stops
    assert [best(np.array([state]))[0] for state in (0, 1, 2)] == [1, 1, 2]
    acting = policy.numpy_policy()
    noise = np.full((2, 3), 0.5, np.float32)
    chosen, _ = acting.decide(np.array([0 * 3 + 0, 1 * 3 + 1]), noise)  # state 0, none; state 1, option 0 under way
    assert chosen.tolist() == [(2 + 0) * 3 + 1, (0 + 0) * 3 + 1]


@pytest.mark.parametrize("space", [STATES, BOX], ids=["states", "box"])
def test_the_option_critic_says_in_torch_what_it_does_in_numpy(space: PolicySpaces, tmp_path: Path) -> None:
    policy = OptionCriticPolicy(space, MlpConfig(hidden=[8]), seed=0, options=4, epsilon=0.3)
    draws = np.random.default_rng(0)
    if space.inputs.one_hot:
        seen = draws.integers(0, 9 * 5, 200)
        memory = seen % 5 - 1
    else:
        memory = draws.integers(-1, 4, 200)
        seen = np.concatenate(
            [draws.standard_normal((200, 4)), (memory[:, None] == np.arange(4)).astype(float)], axis=1
        ).astype(np.float32)
    acting = policy.numpy_policy()
    chosen, logp = acting.decide(seen, acting.noise(draws, (200,)))
    now = policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen))
    np.testing.assert_allclose(now.logp.detach(), logp, atol=1e-5)
    began, option, _ = decode_option_action(chosen, options=4, actions=3)
    assert (option[~began] == memory[~began]).all()
    assert began[memory < 0].all()
    assert (now.termination.detach().numpy()[memory < 0] == 0).all()
    assert 0.2 < began[memory >= 0].mean() < 0.8  # a fresh policy stops at half of its steps
    save_policy(policy, tmp_path)
    raw, _ = split_option_memory(seen, space.inputs, 4)
    assert (load_policy(tmp_path).numpy_policy().best(raw) == policy.numpy_policy().best(raw)).all()


def test_worth_on_arriving_by_hand() -> None:
    """U = (1 - stop) Q(s, under way) + stop V(s), V epsilon-greedy; V alone where nothing was under way."""
    policy = OptionCriticPolicy(BOX, MlpConfig(hidden=[]), seed=0, options=2, epsilon=0.5)
    with torch.no_grad():
        for net, numbers in ((policy.values, [1.0, 3.0]), (policy.ends, [0.0, 0.0])):
            for name, parameter in net.named_parameters():
                parameter.copy_(torch.tensor(numbers) if name.endswith("bias") else torch.zeros_like(parameter))
    seen = torch.zeros(3, 6)
    seen[1, 4], seen[2, 5] = 1.0, 1.0
    anew = 0.5 * 3 + 0.5 * 2
    np.testing.assert_allclose(
        policy.value_on_arrival(seen).detach(), [anew, 0.5 * 1 + 0.5 * anew, 0.5 * 3 + 0.5 * anew], rtol=1e-6
    )
    now = policy.evaluate_actions(seen, torch.zeros(3, dtype=torch.int64))
    np.testing.assert_allclose(now.termination_advantage, [0.0, 1 - anew, 3 - anew], rtol=1e-6)
