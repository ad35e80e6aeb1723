"""Recurrent value learning: the buffer of sequences, targets over several steps, and the loss, by hand and slowly."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.control.networks.checkpoint import load_policy
from hone.control.networks.encoding import RecurrentUnitConfig
from hone.control.networks.memory import RecurrentDqnPolicy, RecurrentQNetwork
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.recurrent_rows import (
    RecurrentValueRows,
    n_step_sums,
    recurrent_objective,
    recurrent_value_rows,
    sequence_values,
)
from hone.control.replay.priority import PriorityParams
from hone.control.replay.sequences import SequenceBuffer
from hone.control.value_rows import PrioritizedBuffer
from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import DataError
from hone.core.random import generator
from hone.learner.gradient import split_by_rows
from hone.objectives.td import rescaled_target
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import SourceWrapper, train


def piece(group: int, first: int, length: int, *, memory: float, ends: str = "", mask: bool = False) -> Episodes:
    """Decisions `first` .. of episode `group`: observations 10 * group + place, rewards 1, 2, ..., actions 0 and 1."""
    place = np.arange(first, first + length + 1)
    seen = np.stack([10.0 * group + place, np.ones(length + 1)], axis=1).astype(np.float32)
    return Episodes(
        offsets=np.array([0, length]),
        seen=seen[:-1],
        chosen=place[:-1] % 2,
        logp=np.zeros(length, np.float32),
        version=np.zeros(length, np.int32),
        reward=(1.0 + place[:-1]).astype(np.float32),
        group=np.array([group]),
        terminated=np.array([ends == "terminated"]),
        truncated=np.array([ends == "truncated"]),
        final=seen[-1:],
        score=np.zeros(1),
        mask=np.tile([True, False], (length, 1)) if mask else None,
        final_mask=np.array([[True, False]]) if mask else None,
        memory=np.full((1, 3), memory, np.float32),
    )


# ------------------------------------------------------------------------------------------------------------- scaling


def test_scaled_targets_worked_out_by_hand() -> None:
    """h(0), h(3), h(-8), h(99); and h(1 + h^-1(1.003) / 2) = h(1 + 3 / 2)."""
    x = torch.tensor([0.0, 3.0, -8.0, 99.0], dtype=torch.float64)
    nothing = torch.zeros_like(x)
    expected = torch.tensor([0.0, 1.003, -2.008, 9.099], dtype=torch.float64)
    torch.testing.assert_close(rescaled_target(x, nothing, nothing), expected, rtol=1e-12, atol=1e-12)
    one = torch.ones(1, dtype=torch.float64)
    ahead = rescaled_target(one, 0.5 * one, 1.003 * one)
    assert float(ahead) == pytest.approx(math.sqrt(3.5) - 1.0 + 0.0025, rel=1e-9)


@given(st.lists(st.floats(-1e5, 1e5), min_size=2, max_size=9, unique=True))
def test_scaling_is_odd_increasing_and_undone(numbers: list[float]) -> None:
    x = torch.tensor(sorted(numbers), dtype=torch.float64)
    nothing, one = torch.zeros_like(x), torch.ones_like(x)
    scaled = rescaled_target(x, nothing, nothing)
    assert bool((scaled.diff() >= 0).all())
    assert torch.equal(rescaled_target(-x, nothing, nothing), -scaled)
    torch.testing.assert_close(rescaled_target(nothing, one, scaled), scaled, rtol=1e-9, atol=1e-9)


# -------------------------------------------------------------------------------------------------------------- buffer


def filled(*pieces: Episodes, capacity: int = 4, burn_in: bool = True) -> SequenceBuffer:
    buffer = SequenceBuffer(capacity, length=3, burn_in=burn_in)
    for one in pieces:
        buffer.add(one)
    return buffer


def test_a_piece_is_handed_out_behind_the_one_before_it_from_the_state_before_both() -> None:
    buffer = filled(piece(0, 0, 3, memory=0.0), piece(0, 3, 2, memory=0.5, ends="terminated"))
    assert (len(buffer), buffer.decisions) == (2, 5)
    first, second = buffer.take(np.array([0])), buffer.take(np.array([1]))
    assert buffer.last_sample is not None
    assert buffer.last_sample.burned.tolist() == [3]
    assert second.reward.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert second.memory is not None and second.memory.tolist() == [[0.0] * 3]
    assert bool(second.terminated[0])
    assert second.final is not None and second.final[0, 0] == 5.0
    assert first.reward.tolist() == [1.0, 2.0, 3.0]
    assert not first.terminated[0]
    assert first.final is not None and first.final[0, 0] == 3.0
    alone = filled(piece(0, 0, 3, memory=0.0), piece(0, 3, 2, memory=0.5), burn_in=False)
    kept = alone.take(np.array([1]))
    assert kept.reward.tolist() == [4.0, 5.0]
    assert kept.memory is not None and kept.memory.tolist() == [[0.5] * 3]


def test_pieces_of_other_episodes_and_overwritten_ones_are_not_read_before() -> None:
    """Of four places, the fifth piece takes the first: its successor then begins from its own state."""
    pieces = [
        piece(0, 0, 3, memory=0.0), piece(1, 0, 2, memory=0.0, ends="truncated"), piece(0, 3, 3, memory=0.3),
        piece(0, 6, 1, memory=0.6),
    ]  # fmt: skip
    buffer = filled(*pieces)
    taken = buffer.take(np.array([2, 3, 1]))
    assert buffer.last_sample is not None
    assert buffer.last_sample.burned.tolist() == [3, 3, 0]
    assert taken.lengths.tolist() == [6, 4, 2]
    buffer.add(piece(1, 0, 3, memory=0.0))  # its number is free again: an episode that ended has no successor
    taken = buffer.take(np.array([2, 3, 0]))
    assert buffer.last_sample.burned.tolist() == [0, 3, 0]
    assert taken.memory is not None and taken.memory[:, 0].tolist() == pytest.approx([0.3, 0.3, 0.0])


def test_the_same_pieces_one_by_one_and_together() -> None:
    pieces = [piece(number % 2, number, 1 + number % 3, memory=float(number)) for number in range(7)]
    one, together = filled(*pieces), filled(concatenate(pieces))
    for rows in (np.array([0, 1, 2, 3]), np.array([3, 3, 0])):
        for name, column in one.take(rows).columns().items():
            np.testing.assert_array_equal(column, together.take(rows).columns()[name], err_msg=name)


def test_a_restored_buffer_goes_on_as_the_saved_one() -> None:
    pieces = [piece(number % 2, number, 1 + number % 3, memory=float(number)) for number in range(7)]
    whole, begun = filled(*pieces), filled(*pieces[:5])
    again = SequenceBuffer(4, length=3, burn_in=True)
    again.restore(begun.state())
    for one in pieces[5:]:
        again.add(one)
    draws = [generator(0, "x") for _ in range(2)]
    for name, column in whole.sample(6, draws[0]).columns().items():
        np.testing.assert_array_equal(column, again.sample(6, draws[1]).columns()[name], err_msg=name)
        draws = [generator(0, "x") for _ in range(2)]
    with pytest.raises(DataError, match="holds 4 pieces of 3, this one 5 of 3"):
        SequenceBuffer(5, length=3, burn_in=True).restore(whole.state())


def test_refused_pieces() -> None:
    buffer = SequenceBuffer(4, length=3, burn_in=True)
    with pytest.raises(DataError, match="empty"):
        buffer.sample(1, generator(0, "x"))
    with pytest.raises(DataError, match="a piece of 4 decisions; the buffer holds pieces of 3"):
        buffer.add(piece(0, 0, 4, memory=0.0))
    bare = piece(0, 0, 2, memory=0.0)
    object.__setattr__(bare, "memory", None)
    with pytest.raises(DataError, match="states"):
        buffer.add(bare)


# ---------------------------------------------------------------------------------------------------------------- rows


def test_sums_over_several_steps_by_hand() -> None:
    """Rewards 1, 2, 3 of a piece that goes on and 4, 5 of one that terminates; two steps ahead, discount 1/2."""
    reward = np.array([1.0, 2.0, 3.0, 4.0, 5.0], np.float32)
    discount = np.array([0.5, 0.5, 0.5, 0.5, 0.0], np.float32)
    summed, factor, jump = n_step_sums(np.array([0, 3, 5]), reward, discount, 2)
    assert summed.tolist() == [2.0, 3.5, 3.0, 6.5, 5.0]
    assert factor.tolist() == [0.25, 0.25, 0.5, 0.0, 0.0]
    assert jump.tolist() == [2, 2, 1, 2, 1]


def test_priorities_of_sequences_by_hand() -> None:
    policy, rows, _ = example()
    errors = torch.tensor([1.0, 3.0, 2.0, 0.0, 4.0, 5.0][: len(rows.trained)])
    assert (rows.lengths - rows.burned - 1).tolist() == [2, 3, 1]
    mixed = rows.priorities(errors, mix=0.9)
    assert mixed.tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.9 * 4 + 0.1 * 2, 5.0])
    del policy


def example(*, mask: bool = False, kind: Any = "gru") -> tuple[RecurrentDqnPolicy, RecurrentValueRows, Episodes]:
    spaces = PolicySpaces(inputs=ObservationInputs(size=2), actions=DiscreteActions(count=2))
    memory = RecurrentUnitConfig(kind=kind, units=3 if kind == "gru" else 2)
    policy = RecurrentDqnPolicy(spaces, MlpConfig(hidden=[5]), seed=0, memory=memory)
    draws = generator(3, "shake")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.from_numpy(0.3 * draws.standard_normal(tuple(parameter.shape))).float())
    pieces = [
        piece(0, 0, 3, memory=0.1, mask=mask), piece(0, 3, 2, memory=0.2, ends="terminated", mask=mask),
        piece(1, 0, 3, memory=0.0, mask=mask), piece(1, 3, 1, memory=-0.3, mask=mask),
    ]  # fmt: skip
    if kind == "lstm":
        pieces = [_wider(one) for one in pieces]
    sequences = SequenceBuffer(4, length=3, burn_in=True)
    buffer = PrioritizedBuffer(4, discount=0.5, priorities=PriorityParams(), sequences=sequences)
    buffer.add(concatenate(pieces))
    episodes = sequences.take(np.array([1, 2, 3]))
    credits = buffer.credit(episodes, NO_VALUES)
    return policy, recurrent_value_rows(policy, buffer, episodes, credits, steps=2), episodes


def _wider(one: Episodes) -> Episodes:
    assert one.memory is not None
    object.__setattr__(one, "memory", np.repeat(one.memory[:, :1], 4, axis=1))
    return one


def slowly(network: RecurrentQNetwork, seen: Tensor, state: Tensor, burned: int) -> Tensor:
    """Values `[m, choices]` of one sequence, a step at a time; none of the burn-in has a gradient."""
    values, units = [], network.unit.units
    hidden = tuple(part[None, None] for part in state.split(units))
    for number, one in enumerate(seen):
        with torch.set_grad_enabled(number >= burned):
            carried = hidden[0] if network.unit.kind == "gru" else hidden
            out, after = network.unit.cell(one[None, None], carried)
            hidden = (after,) if network.unit.kind == "gru" else after
            values.append(network.head(out[0])[0])
        if number < burned:
            hidden = tuple(part.detach() for part in hidden)
    return torch.stack(values)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_loss_is_that_of_a_slow_walk(rescale: bool, double: bool, mask: bool, kind: str) -> None:
    policy, rows, episodes = example(mask=mask, kind=kind)
    batch = rows.weighted()
    terms = recurrent_objective(policy, batch, rescale=rescale, double=double)
    parameters = list(policy.values.parameters())
    ours = torch.autograd.grad(terms.weighted_sum(batch.weight), parameters)
    assert episodes.final is not None and episodes.memory is not None
    losses, count = [], 0
    for number in range(3):
        low, high = episodes.offsets[number], episodes.offsets[number + 1]
        seen = torch.from_numpy(np.concatenate([episodes.observations[low:high], episodes.final[number : number + 1]]))
        burned, state = int(rows.burned[number]), torch.from_numpy(episodes.memory[number])
        values = slowly(policy.values, seen, state, burned)
        with torch.no_grad():
            target = slowly(policy.target, seen, state, burned)
        length, ended = int(high - low), bool(episodes.terminated[number])
        for time in range(burned, length):
            total, factor, at = 0.0, 1.0, time
            while at < min(time + 2, length):
                total += factor * float(episodes.reward[low + at])
                factor *= 0.0 if ended and at == length - 1 else 0.5
                at += 1
            judge = values if double else target
            best = 0 if mask else int(judge[at].argmax())
            worth = target[at, best].detach()
            if rescale:
                e, y = 1e-3, float(worth)
                undone = ((math.sqrt(1 + 4 * e * (abs(y) + 1 + e)) - 1) / (2 * e)) ** 2 - 1
                aim = total + factor * math.copysign(undone, y)
                aim = math.copysign(math.sqrt(abs(aim) + 1) - 1, aim) + e * aim
            else:
                aim = total + factor * float(worth)
            error = values[time, int(episodes.chosen[low + time])] - aim
            losses.append(torch.where(error.abs() < 1.0, 0.5 * error * error, error.abs() - 0.5))
            count += 1
    whole = torch.stack(losses)
    torch.testing.assert_close(terms.loss, whole, rtol=1e-5, atol=1e-5)
    theirs = torch.autograd.grad(whole.sum() / count, parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_burn_in_has_no_gradient_and_sequences_do_not_read_one_another() -> None:
    policy, rows, _ = example()
    values = sequence_values(policy, policy.values, rows)
    for order in ([2, 0, 1], [1]):
        picked = rows.take(np.array(order))
        alone = sequence_values(policy, policy.values, picked)
        starts = np.cumsum(rows.lengths) - rows.lengths
        expected = torch.cat([values[starts[one] : starts[one] + rows.lengths[one]] for one in order])
        torch.testing.assert_close(alone, expected)
    seen = rows.seen.clone().requires_grad_()
    object.__setattr__(rows, "seen", seen)
    (slope,) = torch.autograd.grad(sequence_values(policy, policy.values, rows).sum(), seen)
    burned = int(rows.burned[0])
    assert not slope[:burned].any()
    assert bool(slope[burned : int(rows.lengths[0])].any())


def test_minibatches_of_sequences_weigh_every_trained_decision_alike() -> None:
    _, rows, _ = example()
    whole = rows.weighted()
    assert float(whole.weight[whole.trained].sum()) == pytest.approx(1.0)
    parts = [part for part in split_by_rows(rows, np.array([2, 0, 1]), 2) if isinstance(part, RecurrentValueRows)]
    assert [len(part) for part in parts] == [2, 1]
    for part in parts:
        assert float(part.weight[part.trained].sum()) == pytest.approx(1.0)
    assert parts[0].sample_index.tolist() == [2, 0]


# ----------------------------------------------------------------------------------------------------------------- run


def test_the_state_that_is_stored_is_that_of_the_policy_that_acted() -> None:
    """Behind the piece before it, unchanged weights rebuild exactly the state that was stored with a piece."""
    config = load_recipe("r2d2").config.model_validate({
        "recipe": "r2d2", "name": "x", "steps": 1, "env": {"id": "hone/RepeatFirst-v0", "num_envs": 3},
        "replay": {"collect": 7, "warmup": 1, "batch": 4}, "network": {"memory": {"kind": "gru", "units": 5}},
        "algorithm": {"normalise_observations": False},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        source, policy = job.recipe.source, job.recipe.learner.policy
        assert isinstance(policy, RecurrentDqnPolicy)
        assert isinstance(source, SourceWrapper)
        first, second = source.source.collect(), source.source.collect()
        assert first.memory is not None and second.memory is not None
        assert not first.memory.any()
        _, after = policy.values(torch.from_numpy(first.observations), first.lengths, torch.from_numpy(first.memory))
        ended = first.terminated | first.truncated
        assert not ended.any()
        np.testing.assert_allclose(second.memory, after.detach().numpy(), atol=1e-6)
    finally:
        job.close()


@pytest.mark.slow  # 15 CPU seconds
def test_it_repeats_the_first_symbol() -> None:
    config = load_recipe("r2d2").config.model_validate({
        "recipe": "r2d2", "name": "x", "steps": 200, "env": {"id": "hone/RepeatFirst-v0", "num_envs": 16},
        "exploration": {"decay_env_steps": 30_000, "end": 0.02}, "algorithm": {"rescale": False},
        "learner": {"lr": 3e-3}, "evaluation": {"episodes": 20},
    })  # fmt: skip
    job = config.open().build(config)
    try:
        train(job.recipe, steps=200, callback=StepRecorder())
        assert job.evaluate is not None
        assert math.isclose(job.evaluate().metrics["eval/score"], 1.0, abs_tol=0.05)
    finally:
        job.close()


# ------------------------------------------------------------------------------------------------------------- dueling


def test_dueling_streams_by_hand() -> None:
    """Value 2 and advantages 1, 3, 5: 0, 2, 4; with the last one illegal their mean is 2, so 1, 3, 5."""
    spaces = PolicySpaces(inputs=ObservationInputs(size=2), actions=DiscreteActions(count=3))
    memory = RecurrentUnitConfig(kind="gru", units=3)
    policy = RecurrentDqnPolicy(spaces, MlpConfig(hidden=[4]), seed=0, memory=memory, dueling=True)
    weight, bias = policy.values.head.layer_parameters[-1]
    weight.data.zero_()
    bias.data.copy_(torch.tensor([2.0, 1.0, 3.0, 5.0]))
    recalled = torch.zeros(1, 3)
    assert policy.values.q_values(recalled).tolist() == [[0.0, 2.0, 4.0]]
    legal = torch.tensor([[True, True, False]])
    assert policy.values.q_values(recalled, legal).tolist() == [[1.0, 3.0, 5.0]]
    assert policy.values.numpy_q_values()(recalled.numpy()).tolist() == [[0.0, 2.0, 4.0]]


def test_a_dueling_run_resumes_to_the_bit(tmp_path: Path) -> None:
    def job() -> TrainingJob[Any]:
        given: dict[str, Any] = {
            "recipe": "r2d2", "name": "x", "steps": 4, "env": {"id": "CartPole-v1", "num_envs": 2},
            "network": {"hidden": [8], "memory": {"kind": "gru", "units": 4}, "dueling": True},
            "replay": {"warmup": 80, "collect": 8, "capacity": 500, "batch": 4},
            "learner": {"updates_per_iteration": 2}, "evaluation": {"episodes": 2},
        }  # fmt: skip
        config = load_recipe("r2d2").config.model_validate(given)
        return config.open().build(config)

    whole, first, second = (job() for _ in range(3))
    here, there = StepRecorder(), StepRecorder()
    train(whole.recipe, steps=4, callback=here)
    train(first.recipe, steps=2, callback=there)
    first.save_policy(tmp_path)
    second.load_policy(tmp_path)
    second.recipe.learner.restore(first.recipe.learner.state())
    second.recipe.source.restore(first.recipe.source.state())
    train(second.recipe, steps=4, callback=there, first_step=3)
    assert here.lines == there.lines
    assert load_policy(tmp_path).extras()["dueling"] is True
    for one in (whole, first, second):
        one.close()
