"""Masks of legal actions in methods that learn from replay: acting, targets, and bugs that other libraries had.

The environment raises an error at an illegal action, so that a run that ends has taken none.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder

from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.q_networks import DiscreteSacPolicy, DqnPolicy, QArchitecture
from hone.control.rows import TransitionRows
from hone.control.value_rows import ValueRows, argmax_online, argmax_target, legal_values, split_value_rows
from hone.learner.gradient import split_by_rows
from hone.objectives.td import greedy_target
from hone.recipes.off_policy import discrete_sac, double_dqn, dqn
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train

LADDER = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'masked_envs.py'}:Ladder"
VALUE_RECIPES = [
    "dqn", "double_dqn", "dueling_dqn", "n_step_dqn", "prioritized_dqn", "noisy_dqn", "c51", "qr_dqn", "rainbow",
    "discrete_sac",
]  # fmt: skip
OPTIMUM = 4.0


def job_of(recipe: str, *, steps: int = 3, **settings: Any) -> TrainingJob[Any]:
    given: dict[str, Any] = {
        "recipe": recipe, "name": "x", "steps": steps, "env": {"id": LADDER, "num_envs": 2, "isolation": "none"},
        "network": {"hidden": [16]}, "replay": {"warmup": 40, "collect": 8, "capacity": 500, "batch": 16},
        "learner": {"updates_per_iteration": 2}, "evaluation": {"episodes": 2},
    }  # fmt: skip
    config = load_recipe(recipe).config.model_validate({**given, **settings})
    return config.open().build(config)


@pytest.mark.parametrize("recipe", VALUE_RECIPES)
def test_every_method_with_finite_actions_takes_legal_ones(recipe: str) -> None:
    job, recorder = job_of(recipe), StepRecorder()
    train(job.recipe, steps=3, callback=recorder)
    assert job.evaluate is not None
    job.evaluate()
    for line in recorder.lines:
        assert all(math.isfinite(value) for name, value in line[-1].items() if name.startswith(("loss", "value"))), line
    job.close()


def test_dqn_reaches_the_optimum_and_resumes_to_the_bit(tmp_path: Path) -> None:
    settings = {
        "exploration": {"decay_env_steps": 300, "end": 0.1},
        "learner": {"lr": 0.01, "updates_per_iteration": 8},
    }
    whole, first, second = (job_of("dqn", steps=30, **settings) for _ in range(3))
    here, there = StepRecorder(), StepRecorder()
    train(whole.recipe, steps=30, callback=here)
    assert whole.evaluate is not None
    assert whole.evaluate().metrics["eval/score"] == OPTIMUM
    train(first.recipe, steps=4, callback=there)
    first.save_policy(tmp_path)
    second.load_policy(tmp_path)
    second.recipe.learner.restore(first.recipe.learner.state())
    second.recipe.source.restore(first.recipe.source.state())
    train(second.recipe, steps=8, callback=there, first_step=5)
    assert here.lines[:8] == there.lines
    for job in (whole, first, second):
        job.close()


def value_policy(dueling: bool = False) -> DqnPolicy:
    spaces = PolicySpaces(inputs=ObservationInputs(size=2), actions=DiscreteActions(count=3, masked=True))
    shape = QArchitecture(dueling=dueling)
    return DqnPolicy(spaces, MlpConfig(hidden=[4]), seed=1, architecture=shape)


def value_rows_of(policy: DqnPolicy, next_mask: torch.Tensor) -> ValueRows:
    count = len(next_mask)
    seen = torch.randn(count, 2, generator=torch.Generator().manual_seed(1))
    return ValueRows(
        weight=torch.ones(count), seen=seen, chosen=torch.zeros(count, dtype=torch.int64), reward=torch.ones(count),
        discount=torch.full((count,), 0.5), next_seen=seen + 1, noise=torch.zeros(count, 2, 0),
        mask=torch.ones(count, 3, dtype=torch.bool), next_mask=next_mask,
        target_outcomes=policy.target_return_outputs(seen + 1, None, next_mask), sample_index=torch.arange(count),
    )  # fmt: skip


def test_targets_never_look_at_an_illegal_next_action() -> None:
    """tianshou #309 took the maximum over all. By hand: values 1, 9, 2 of which the middle one is illegal."""
    values, mask = torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([[True, False, True]])
    target = greedy_target(torch.tensor([1.0]), torch.tensor([0.5]), legal_values(values, mask))
    assert target.item() == 2.0
    policy = value_policy()
    next_mask = torch.tensor([[True, False, False], [False, True, False], [False, False, True]] * 5)
    rows = value_rows_of(policy, next_mask)
    legal = next_mask.to(torch.int64).argmax(dim=1)
    assert torch.equal(argmax_target(policy, rows), legal)
    assert torch.equal(argmax_online(policy, rows), legal)
    losses = [dqn.objective(policy, rows).loss, double_dqn.objective(policy, rows).loss]
    torch.testing.assert_close(*losses)  # with one legal choice both targets are its value
    assert losses[0].isfinite().all()


def test_the_advantages_of_dueling_streams_have_the_mean_0_over_legal_choices() -> None:
    """ray #47537 put -inf before the mean, and got NaN."""
    policy = value_policy(dueling=True)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    raw = torch.tensor([[5.0, 1.0, 100.0, 3.0], [5.0, 1.0, 2.0, 3.0]])
    combined = policy._combine_dueling(raw, mask).squeeze(-1)
    assert combined[0, [0, 2]].tolist() == [4.0, 6.0]
    assert combined[1].tolist() == [4.0, 5.0, 6.0]
    torch.testing.assert_close(policy._combine_dueling(raw, None)[1], policy._combine_dueling(raw, mask)[1])


def sac_rows(mask: torch.Tensor | None) -> TransitionRows:
    count = 6
    seen = torch.randn(count, 2, generator=torch.Generator().manual_seed(2))
    return TransitionRows(
        weight=torch.ones(count), seen=seen, chosen=torch.zeros(count, dtype=torch.int64), reward=torch.ones(count),
        discount=torch.full((count,), 0.9), next_seen=seen, noise=torch.zeros(count, 0), mask=mask, next_mask=mask,
    )  # fmt: skip


def test_discrete_sac_takes_expectations_over_legal_actions_and_a_target_entropy_of_each_state() -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=2), actions=DiscreteActions(count=3, masked=True))
    policy = DiscreteSacPolicy(spaces, MlpConfig(hidden=[4]), seed=1)
    mask = torch.tensor([[True, False, True]] * 3 + [[False, True, False]] * 3)
    rows = sac_rows(mask)
    share, logp = discrete_sac._shares(policy, rows.seen, mask)
    assert (share[~mask] == 0).all() and (logp[~mask] == 0).all()
    torch.testing.assert_close(share.sum(1), torch.ones(6))
    target = 0.5 * math.log(3)
    terms = discrete_sac._actor_objective(policy, rows, target_entropy=target)
    terms.loss.sum().backward()
    for parameter in policy.actor.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all()
    # With log alpha = 0 the temperature's gradient is -(log pi + target): of a single legal choice both are 0.
    assert policy.log_temperature.grad is not None
    minus_entropy = (share * logp).sum(1).detach()
    expected = -(minus_entropy + 0.5 * mask.sum(1).log()).sum()
    torch.testing.assert_close(policy.log_temperature.grad[0], expected)
    critic = discrete_sac._critic_objective(policy, rows).loss
    assert critic.isfinite().all()


def test_all_choices_legal_is_as_without_masks() -> None:
    spaces = PolicySpaces(inputs=ObservationInputs(size=2), actions=DiscreteActions(count=3))
    policy = DiscreteSacPolicy(spaces, MlpConfig(hidden=[4]), seed=1)
    everything = sac_rows(torch.ones(6, 3, dtype=torch.bool))
    for objective in (
        discrete_sac._critic_objective,
        lambda p, r: discrete_sac._actor_objective(p, r, target_entropy=0.3),
    ):
        torch.testing.assert_close(objective(policy, everything).loss, objective(policy, sac_rows(None)).loss)


def test_replayed_transitions_keep_both_masks() -> None:
    job = job_of("n_step_dqn")
    job.recipe.source.publish(job.recipe.learner.policy)
    episodes = job.recipe.source.collect()
    assert episodes.mask is not None and episodes.final_mask is not None
    assert episodes.mask.any(axis=1).all() and episodes.final_mask.any(axis=1).all()
    rung = np.rint(episodes.observations[:, 0] * 4).astype(int)
    assert episodes.mask[np.arange(len(rung)), rung % 5].all()
    job.close()


PARTS = f"{Path(__file__).parents[2] / 'control' / 'environments' / 'parts_envs.py'}:Parts"


@pytest.mark.parametrize("recipe", ["dqn", "discrete_sac", "rainbow"])
def test_observations_of_several_parts_are_replayed_as_rows(recipe: str) -> None:
    job = job_of(recipe, env={"id": PARTS, "num_envs": 2, "isolation": "none", "kwargs": {"masked": True}})
    train(job.recipe, steps=3, callback=StepRecorder())
    assert job.evaluate is not None
    job.evaluate()
    job.recipe.source.publish(job.recipe.learner.policy)
    assert job.recipe.source.collect().observations.dtype == np.uint8
    job.close()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("rows", "count"), [(12, 4), (13, 4), (5, 5), (7, 1)])
def test_minibatches_are_those_of_gathering_each_by_itself(rows: int, count: int, masked: bool) -> None:
    """Also where they are uneven, in any order, with importance weights, and without masks."""
    whole = value_rows_of(value_policy(), torch.ones(rows, 3, dtype=torch.bool))
    whole = replace(whole, weight=torch.rand(rows, generator=torch.Generator().manual_seed(2)))
    whole = whole if masked else replace(whole, mask=None, next_mask=None)
    for order in (np.arange(rows), np.random.default_rng(0).permutation(rows)):
        fast, slow = list(split_value_rows(whole, order, count)), list(split_by_rows(whole, order, count))
        assert len(fast) == len(slow) == count
        torch.testing.assert_close([one.columns() for one in fast], [one.columns() for one in slow], rtol=0, atol=0)
