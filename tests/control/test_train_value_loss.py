"""The critic's loss of PPO: squared, Huber's and clipped, by hand, slowly, and in runs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from test_train_ppo_backward import float64_policy, step_rows
from torch import Tensor

from hone.control.environments.world import GymConfig
from hone.control.job import ControlEvaluationConfig
from hone.control.networks.mlp import MlpConfig
from hone.control.rows import StepRows, split_decision_rows
from hone.control.value_loss import OldValueRows, ValueLossConfig
from hone.learner.config import LearnerConfig
from hone.learner.gradient import GradientLearner
from hone.objectives.terms import LossTerms
from hone.recipes.on_policy import ppo
from hone.run.job import TrainingJob
from hone.run.loop import train

LOSSES: dict[str, dict[str, Any]] = {
    "squared": {"kind": "squared"},
    "huber": {"kind": "huber", "delta": 0.4},
    "clipped": {"kind": "clipped", "clip_range": 0.1},
    "clipped huber": {"kind": "clipped", "clip_range": 0.1, "delta": 0.4},
}


def value_loss(**keys: Any) -> Any:
    return TypeAdapter(ValueLossConfig).validate_python(keys)


def with_old(rows: StepRows, old: Tensor) -> OldValueRows:
    return OldValueRows(
        weight=rows.weight, seen=rows.seen, chosen=rows.chosen, logp=rows.logp, advantage=rows.advantage,
        target=rows.target, old_value=old,
    )  # fmt: skip


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def critic(config: Any, old: Tensor, value: Tensor, target: Tensor) -> LossTerms:
    return config.critic_loss(with_old(step_rows(finite=True), old))(value, target)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"kind": "squared"}, [0.5, 8.0]),
        ({"kind": "huber", "delta": 1.0}, [0.5, 3.5]),
        ({"kind": "clipped", "clip_range": 0.2}, [1.62, 8.0]),
        ({"kind": "clipped", "clip_range": 0.2, "delta": 1.0}, [1.3, 3.5]),
    ],
)
def test_by_hand(keys: dict[str, Any], expected: list[float]) -> None:
    """V = 3 of target 2, and -4 of target 0; both old values 0. V is clipped to 0.2, an error of 1.8: 1.62 squared,
    1.8 - 1/2 = 1.3 by Huber; and to -0.2, less than the free error of 4.
    """
    found = critic(value_loss(**keys), column(0.0, 0.0), column(3.0, -4.0), column(2.0, 0.0))
    torch.testing.assert_close(found.loss, column(*expected))


@pytest.mark.parametrize("name", LOSSES)
@examples(25)
@given(st.lists(st.tuples(*3 * [st.floats(-3, 3)]), min_size=8, max_size=8), st.floats(0, 2))
def test_slowly(name: str, numbers: list[tuple[float, float, float]], weight: float) -> None:
    """PPO's loss is the surrogate's and value_weight times the error, number by number."""
    keys = LOSSES[name]

    def error(guess: float, target: float) -> float:
        size = abs(guess - target)
        delta = keys.get("delta", np.inf)
        return size * size / 2 if size <= delta else delta * (size - delta / 2)

    policy, rows = float64_policy(MlpConfig(hidden=[4]), finite=True), step_rows(finite=True)
    old, target = (column(*(one[part] for one in numbers)) for part in (0, 1))
    rows = with_old(replace(rows, target=target), old)
    algorithm = ppo.PpoAlgorithm(value_loss=value_loss(**keys), value_weight=weight)
    without = algorithm.model_copy(update={"value_weight": 0.0})
    found = ppo.objective(policy, rows, algorithm=algorithm).loss - ppo.objective(policy, rows, algorithm=without).loss
    expected: list[float] = []
    for value, before, aim in zip(policy.value(rows.seen).tolist(), old.tolist(), target.tolist(), strict=True):
        errors = [error(value, aim)]
        if keys["kind"] == "clipped":
            errors.append(error(before + min(max(value - before, -0.1), 0.1), aim))
        expected.append(weight * max(errors))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("keys", [{"kind": "huber", "delta": 1e9}, {"kind": "clipped", "clip_range": 1e9}])
def test_wide_bounds_are_the_squared_error(keys: dict[str, Any]) -> None:
    draws = np.random.default_rng(0)
    old, value, target = (torch.from_numpy(3 * draws.normal(size=8)) for _ in range(3))
    found, plain = (critic(value_loss(**one), old, value, target).loss for one in (keys, {"kind": "squared"}))
    torch.testing.assert_close(found, plain)


def make(steps: int, **algorithm: Any) -> TrainingJob[Any]:
    learner = LearnerConfig(lr=3e-2, epochs=3, minibatches=2)
    return ppo.ENTRY.build(
        ppo.PpoConfig(
            recipe="ppo", name="x", seed=3, steps=steps, env=GymConfig(id="CartPole-v1", num_envs=2),
            rollout_steps=16, network=MlpConfig(hidden=[8]), learner=learner,
            evaluation=ControlEvaluationConfig(episodes=2), algorithm=ppo.PpoAlgorithm.model_validate(algorithm),
        )
    )  # fmt: skip


def trained(job: TrainingJob[Any], steps: int) -> tuple[list[dict[str, float]], list[Tensor]]:
    figures: list[dict[str, float]] = []

    def keep(step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        figures.append(dict(metrics))

    policy = train(job.recipe, steps=steps, callback=keep)
    job.close()
    return figures, [one.detach().clone() for one in policy.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def test_each_loss_trains_another_critic() -> None:
    """`squared` is the default to the bit; a clip range that is never reached gives its weights to rounding; a narrow
    one is told by the share of clipped values, and the other metrics stay.
    """
    plain, weights = trained(make(3), 3)
    assert same(trained(make(3, value_loss={"kind": "squared"}), 3)[1], weights)
    for near, far in zip(
        trained(make(3, value_loss={"kind": "clipped", "clip_range": 1e6}), 3)[1], weights, strict=True
    ):
        torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-4)
    for keys in ({"kind": "huber", "delta": 0.1}, {"kind": "clipped", "clip_range": 0.01, "delta": 1.0}):
        figures, found = trained(make(3, value_loss=keys), 3)
        assert not same(found, weights)
        assert all(np.isfinite(value) for row in figures for value in row.values())
        extra = {"value/clip_fraction"} if keys["kind"] == "clipped" else set()
        assert figures[-1].keys() == plain[-1].keys() | extra
    assert figures[-1]["value/clip_fraction"] > 0.1


def test_old_values_are_those_before_the_update_and_travel_with_their_rows() -> None:
    job = make(1, value_loss={"kind": "clipped"})
    learner = job.recipe.learner
    assert isinstance(learner, GradientLearner)
    job.recipe.source.publish(learner.policy)
    episodes = job.recipe.source.collect()
    rows = learner.layout(episodes, job.recipe.credit(episodes, learner.values(episodes)))
    assert isinstance(rows, OldValueRows)
    before = learner.policy.value(rows.seen).detach()
    torch.testing.assert_close(rows.old_value, before)
    assert not rows.old_value.requires_grad
    order = np.random.default_rng(1).permutation(len(rows))
    parts = list(split_decision_rows(rows, order, 2))
    torch.testing.assert_close(torch.cat([part.old_value for part in parts]), before[torch.from_numpy(order)])
    job.close()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "clipped", "clip_range": 0.0}, "greater than 0"),
        ({"kind": "clipped", "delta": 0.0}, "greater than 0"),
        ({"kind": "huber", "clip_range": 0.2}, "clip_range"),
        ({"kind": "absolute"}, "absolute"),
    ],
)
def test_what_is_no_loss_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ppo.PpoAlgorithm.model_validate({"value_loss": keys})
