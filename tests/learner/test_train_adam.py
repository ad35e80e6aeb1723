"""Adam's moments, their saved form, and steps of padded pieces. Moments of silent weights fade to nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from hone.core.errors import DataError
from hone.core.state import State, array, substate
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters


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


def stepped() -> Adam:
    adam = fresh()
    adam.parameters.gradients[0].copy_(torch.arange(10.0))
    adam.step(1e-2)
    return adam


def fresh() -> Adam:
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))]
    return Adam(FlatParameters(parameters, ["inner", "outer"]), weight_decay=0.1)


def moments_of(state: State) -> np.ndarray:
    rows = [substate(state, name) for name in ("exp_avg", "exp_avg_sq")]
    return np.concatenate([array(row, key).ravel() for row in rows for key in row])


def test_moments_are_saved_by_parameter_and_flat_ones_of_older_runs_are_read() -> None:
    state, by_name, flat = stepped().state(), fresh(), fresh()
    assert {key: array(substate(state, "exp_avg"), key).shape for key in ("inner", "outer")} == {
        "inner": (2, 3),
        "outer": (4,),
    }
    older: State = {
        name: np.concatenate([array(substate(state, name), key).ravel() for key in ("inner", "outer")])
        for name in ("exp_avg", "exp_avg_sq")
    }
    by_name.restore(state)
    flat.restore({**older, "step": state["step"]})
    assert np.array_equal(moments_of(by_name.state()), moments_of(state))
    assert np.array_equal(moments_of(flat.state()), moments_of(state))


def test_moments_of_other_parameters_are_refused_by_name() -> None:
    state = stepped().state()
    moments = substate(state, "exp_avg")
    moments["other"], moments["inner"] = moments.pop("outer"), np.zeros((2, 2))
    expected = r"inner \(\(2, 2\) instead of \(2, 3\)\), outer \(missing .*other \(not a parameter.*; 3 in all"
    with pytest.raises(DataError, match=expected):
        fresh().restore(state)


class PaddedParameters(FlatParameters):
    @property
    def step_multiple(self) -> int:
        return 16


def test_a_padded_step_is_the_step_to_rounding() -> None:
    found = []
    for kind in (FlatParameters, PaddedParameters):
        parameter = nn.Parameter(torch.linspace(-1, 1, 21))
        adam = Adam(kind([parameter]), weight_decay=0.1)
        for _ in range(3):
            adam.parameters.gradients[0].copy_(torch.sin(torch.arange(21.0)))
            adam.step(1e-2)
        found.append((parameter.detach().clone(), adam.squares[0].clone()))
    (plain, squares), (padded, padded_squares) = found
    torch.testing.assert_close(plain, padded, rtol=1e-6, atol=0)
    torch.testing.assert_close(squares, padded_squares, rtol=1e-6, atol=0)
