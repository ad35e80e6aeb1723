"""Parameters taken as one are the same numbers, and follow as each of them would."""

import copy

import torch
from torch import nn

from hone.control.networks.actor_critic import polyak_update
from hone.control.phases import target_update
from hone.learner.flat_parameters import FlatParameters, contiguous_view, make_contiguous


def pair() -> tuple[nn.Module, nn.Module]:
    slow = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    fast = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    return slow.requires_grad_(requires_grad=False), fast


def test_they_lie_together_or_not() -> None:
    _, fast = pair()
    assert contiguous_view(list(fast.parameters())) is None
    flat = FlatParameters(fast.parameters())
    whole = contiguous_view(list(fast.parameters()))
    assert whole is not None
    assert torch.equal(whole, flat.data.detach())
    whole.zero_()
    assert not any(parameter.any() for parameter in fast.parameters())
    assert contiguous_view(list(fast.parameters())[::-1]) is None


def test_moving_keeps_the_numbers() -> None:
    slow, _ = pair()
    before = copy.deepcopy(slow)
    whole = make_contiguous(list(slow.parameters()))
    for one, other in zip(slow.parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other)
    whole.add_(1.0)
    for one, other in zip(slow.parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other + 1.0)


def test_following_as_one_is_following_one_by_one() -> None:
    slow, fast = pair()
    expected = copy.deepcopy(slow)
    FlatParameters(fast.parameters())
    after = target_update([(slow, fast)], tau=0.1)
    for _ in range(3):
        after(slow)
        polyak_update(expected.parameters(), fast.parameters(), tau=0.1)
    for one, other in zip(slow.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
