"""Networks of several seats: the seat selects its own, the actor never reads the state, mixers are monotone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.seats import CentralActorCritic, SeatPolicies
from hone.control.networks.team import MonotonicMixer, TeamValues

SPACES = PolicySpaces(inputs=ObservationInputs(size=5), actions=DiscreteActions(count=3, masked=True))
SMALL = MlpConfig(hidden=[8])


def rows(count: int = 12, state: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Observations of 2 numbers and one of 3 seats, actions, and masks that allow them."""
    draws = np.random.default_rng(1)
    seat = np.arange(count) % 3
    seen = np.concatenate(
        [draws.standard_normal((count, 2)), np.eye(3)[seat], draws.standard_normal((count, state))], 1
    )
    chosen = draws.integers(0, 3, count)
    mask = draws.random((count, 3)) < 0.5
    mask[np.arange(count), chosen] = True
    return torch.from_numpy(seen.astype(np.float32)), torch.from_numpy(chosen), torch.from_numpy(mask)


@pytest.mark.parametrize("state", [0, 4])
def test_each_row_is_read_by_the_network_of_its_seat(state: int) -> None:
    policy = SeatPolicies(SPACES, SMALL, seed=1, groups=(1, 0, 1), state_size=state)
    seen, chosen, mask = rows(state=state)
    now = policy.evaluate_actions(seen, chosen, mask)
    for row in range(len(seen)):
        member = policy.policies[policy.groups[row % 3]]
        alone = member.evaluate_actions(seen[row : row + 1], chosen[row : row + 1], mask[row : row + 1])
        for whole, one in ((now.logp, alone.logp), (now.entropy(), alone.entropy()), (now.value, alone.value)):
            torch.testing.assert_close(whole[row], one[0])
        torch.testing.assert_close(policy.value(seen)[row], alone.value[0])
    (now.logp[0::3].sum() + now.value[0::3].sum()).backward()  # the first seat's rows move its network alone
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in policy.policies[0].parameters())
    assert policy.policies[1].actor.layer_parameters[0][0].grad.any()


def test_acting_is_by_the_network_of_the_seat_and_agrees_with_torch() -> None:
    policy = SeatPolicies(SPACES, SMALL, seed=1, groups=(1, 0, 1))
    for member in policy.policies:
        member.actor.layer_parameters[-1][0].data.mul_(200)
    seen, _, mask = rows(300)
    acting = policy.numpy_policy()
    noise = acting.noise(np.random.default_rng(2), (300,))
    chosen, logp = acting.decide(seen.numpy(), noise, mask.numpy())
    assert mask.numpy()[np.arange(300), chosen].all()
    now = policy.evaluate_actions(seen, torch.from_numpy(chosen), mask)
    np.testing.assert_allclose(logp, now.logp.detach().numpy(), atol=1e-5)
    best = acting.best(seen.numpy(), mask.numpy())
    assert (best == chosen).mean() > 0.5
    assert mask.numpy()[np.arange(300), best].all()


def test_observations_are_normalised_alike_for_all_members() -> None:
    policy = SeatPolicies(SPACES, SMALL, seed=1, groups=(0, 1, 0))
    seen, chosen, mask = rows()
    before = policy.evaluate_actions(seen, chosen, mask).value
    inputs = replace(SPACES.inputs, mean=(5.0,) * 5, scale=(2.0,) * 5)
    policy.spaces = replace(SPACES, inputs=inputs)
    after = policy.evaluate_actions(seen, chosen, mask).value
    assert not torch.equal(before, after)
    alone = policy.policies[1].value(seen[1:2])
    torch.testing.assert_close(after[1], alone[0])


def test_a_central_critic_reads_the_state_and_the_actor_does_not() -> None:
    policy = CentralActorCritic(SPACES, SMALL, seed=1, state_size=4)
    seen, chosen, mask = rows(state=4)
    other = seen.clone()
    other[:, 5:] += 1
    one, two = policy.evaluate_actions(seen, chosen, mask), policy.evaluate_actions(other, chosen, mask)
    assert torch.equal(one.logp, two.logp)
    assert not torch.equal(one.value, two.value)
    other = seen.clone()
    other[:, :5] += 1
    assert torch.equal(one.value, policy.value(other))
    plain = ActorCritic(SPACES, SMALL, seed=1)  # the same actor, which acts without any state
    assert policy.numpy_policy().best(seen[:, :5].numpy(), mask.numpy()).tolist() == (
        plain.numpy_policy().best(seen[:, :5].numpy(), mask.numpy()).tolist()
    )


def test_the_mixer_by_hand() -> None:
    mixer = MonotonicMixer(2, 1, units=2, seed=0)
    for network in (mixer.first, mixer.first_bias, mixer.second, mixer.value):
        for weight, bias in network.layer_parameters:
            weight.data.zero_()
            bias.data.zero_()
    mixer.first.layer_parameters[0][1].data[:] = torch.tensor([1.0, -2.0, 0.5, 0.0])  # by seat, then by unit
    mixer.first_bias.layer_parameters[0][1].data[:] = torch.tensor([-3.0, 1.0])
    mixer.second.layer_parameters[0][1].data[:] = torch.tensor([-2.0, 0.5])
    mixer.value.layer_parameters[-1][1].data[:] = 0.25
    values = torch.tensor([[1.0, 2.0]])
    # unit 1: 1 * 1 + 0.5 * 2 - 3 = -1 -> elu -0.632121; unit 2: 2 * 1 + 0 + 1 = 3
    expected = 2.0 * (np.exp(-1.0) - 1) + 0.5 * 3.0 + 0.25
    assert float(mixer(values, torch.zeros(1, 1)).detach()) == pytest.approx(expected, abs=1e-6)


def test_a_team_s_value_rises_with_each_seat_s_and_its_best_action_is_every_seat_s_best() -> None:
    policy = TeamValues(SPACES, SMALL, seed=3, seats=2, state_size=3, mixer_units=8)
    draws = torch.Generator().manual_seed(0)
    joint = torch.randn(20, 2 * 5 + 3, generator=draws)
    values = policy.seat_values(joint, None)
    taken = values.max(dim=2).values.detach().requires_grad_()
    policy.team_value(taken, joint).sum().backward()
    assert (taken.grad >= 0).all()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    table = torch.stack([policy.team_value(values.gather(2, pair.expand(20, 2)[:, :, None]).squeeze(2), joint)
                         for pair in pairs], dim=1)  # fmt: skip
    best = pairs[table.argmax(dim=1)]
    assert best.tolist() == values.argmax(dim=2).tolist()


def test_without_a_mixer_values_are_added_and_masks_hold() -> None:
    policy = TeamValues(SPACES, SMALL, seed=3, seats=2, state_size=0, mixer_units=0)
    joint, mask = torch.randn(4, 10), torch.tensor([True, False, True, False, True, True]).expand(4, 6)
    values = policy.seat_values(joint, mask)
    assert values[:, 0, 1].isneginf().all()
    assert values[:, 1, 0].isneginf().all()
    own = policy.values(joint.reshape(8, 5)).view(4, 2, 3)
    torch.testing.assert_close(policy.team_value(values[:, :, 2], joint), own[:, 0, 2] + own[:, 1, 2])
