"""Adam's moments: those of silent weights fade to nothing, not to numbers that a CPU is slow with."""

import torch
from torch import nn

from hone.train.learner.adam import Adam
from hone.train.learner.flat_parameters import FlatParameters


def test_moments_of_silent_weights_become_zero() -> None:
    """0.9^1000 is no normal float. Left alone, the product is rounded to the least subnormal number for ever, and every
    step of a network with silent units takes ten times as long. What is subnormal elsewhere stays as it is. The thread
    that steps flushes; another test may have left two."""
    torch.set_num_threads(1)
    flat = FlatParameters([nn.Parameter(torch.zeros(64))])
    adam = Adam(flat)
    flat.gradient.fill_(1.0)
    adam.step(1e-3)
    flat.gradient.zero_()
    for _ in range(1000):
        adam.step(1e-3)
    assert adam.means[0].eq(0).all()
    assert adam.squares[0].gt(0).all()
    assert float(torch.tensor(1e-30) * torch.tensor(1e-10)) > 0
