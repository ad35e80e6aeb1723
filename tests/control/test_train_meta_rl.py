"""Learning to learn: Thompson's posterior by hand, Reptile's step by hand, and both methods learn what they are for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bandit_beliefs import bernoulli_beliefs
from control_runs import StepRecorder

from hone import api
from hone.control.acting import NetworkActor
from hone.control.environments.world import GymConfig, open_world
from hone.control.evaluate.returns import evaluate_returns
from hone.control.finite.solve import policy_iteration
from hone.control.meta_rl import ThompsonTrialPolicy, reshape_to_trials
from hone.core.credit import NO_VALUES
from hone.core.errors import ConfigError
from hone.recipes.meta import reptile, rl2
from hone.run.loop import train

BANDITS = GymConfig(id="hone/BanditTrials-v0", num_envs=100, kwargs={"arms": 2, "pulls": 10})


def test_thompson_counts_what_it_sees() -> None:
    sampler = ThompsonTrialPolicy(arms=2)
    begin = np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]], np.float32)
    sampler.best(begin)
    sampler.best(np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0]], np.float32))
    np.testing.assert_array_equal(sampler._counts, [[[1, 0], [0, 0]], [[0, 0], [0, 1]]])
    sampler.best(np.array([[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.float32))
    np.testing.assert_array_equal(sampler._counts, [[[1, 0], [1, 0]], [[0, 0], [0, 0]]])


def test_thompson_draws_by_its_posterior() -> None:
    """After one win of arm 0: P(Beta(2, 1) > Beta(1, 1)) = 2/3."""
    sampler, count = ThompsonTrialPolicy(arms=2), 40_000
    sampler.best(np.tile([1, 0, 0, 0, 0], (count, 1)))
    chosen = sampler.best(np.tile([0, 1, 0, 1, 0], (count, 1)))
    assert (chosen == 0).mean() == pytest.approx(2 / 3, abs=0.01)


def test_thompson_is_below_the_exact_optimum() -> None:
    """Two arms, ten pulls: dynamic programming over beliefs says 6.02, which nobody beats; Thompson comes close."""
    scores = evaluate_returns(ThompsonTrialPolicy(arms=2), BANDITS, episodes=20_000, seed=0)
    best, error = policy_iteration(bernoulli_beliefs(arms=2, pulls=10)).value[0], scores.std() / np.sqrt(20_000)
    assert best == pytest.approx(6.0218, abs=1e-4)
    assert 5.6 < scores.mean() < best - 3 * error


def test_the_harness_reaches_the_exact_optimum() -> None:
    """The optimal policy of the beliefs, played in the trials, is paid what dynamic programming says."""
    beliefs = bernoulli_beliefs(arms=2, pulls=10)
    table = policy_iteration(beliefs).policy
    number = {}
    for counts in np.ndindex(10, 10, 10, 10):
        if sum(counts) < 10:
            number[counts] = len(number)

    class Optimal(ThompsonTrialPolicy):
        def best(self, seen: np.ndarray) -> np.ndarray:
            super().best(seen)
            counts = self._counts.transpose(0, 2, 1).reshape(len(seen), 4).astype(int)
            return np.array([table[number[tuple(row)]] for row in counts.tolist()])

    scores = evaluate_returns(Optimal(arms=2), BANDITS, episodes=4_000, seed=0)
    assert scores.mean() == pytest.approx(policy_iteration(beliefs).value[0], abs=4 * scores.std() / np.sqrt(4_000))


def test_trials_are_whole() -> None:
    world = open_world(BANDITS, steps=20, seed=0)
    episodes = world.rollout(ThompsonActor())
    seen = reshape_to_trials(episodes.observations, episodes)
    assert seen.shape == (200, 10, 5) and (seen[:, 0, 0] == 1).all() and (seen[:, 1:, 0] == 0).all()
    with pytest.raises(ConfigError, match="no whole trials"):
        reshape_to_trials(episodes.observations, replace(episodes, terminated=np.zeros(200, bool)))


class ThompsonActor(ThompsonTrialPolicy):
    version = 0

    def __init__(self) -> None:
        super().__init__(arms=2)


def rl2_job(steps: int, **changes: Any) -> Any:
    settings = {
        "recipe": "rl2",
        "name": "x",
        "steps": steps,
        "env": {"id": "hone/BanditTrials-v0", "num_envs": 100, "kwargs": {"arms": 2, "pulls": 10}},
        "rollout_steps": 10,
        "network": {"hidden": [32]},
        "learner": {"lr": 1e-2, "epochs": 3, "minibatches": 2, "max_grad_norm": 0.5},
        "evaluation": {"episodes": 3000},
    }
    return rl2.ENTRY.build(rl2.Rl2Config.model_validate({**settings, **changes}))


@pytest.mark.slow
def test_a_memory_learns_to_explore() -> None:
    """Within a tenth of Thompson in ten CPU-seconds or less, never above the exact optimum, and well above no memory
    (5.0, whatever the arms)."""
    job = rl2_job(100)
    train(job.recipe, steps=100, callback=StepRecorder())
    assert job.evaluate is not None
    found = job.evaluate().metrics
    assert found["eval/of_thompson"] > 0.9
    assert 5.4 < found["eval/score"] < 6.0218 + 3 * found["eval/std"] / np.sqrt(3000)
    assert found["eval/ahead_low"] <= found["eval/score"] - found["eval/thompson"] <= found["eval/ahead_high"]
    assert found["eval/regret"] == pytest.approx(10 * 2 / 3 - found["eval/score"])


def test_recorded_log_probabilities_are_the_learners() -> None:
    job = rl2_job(1)
    job.recipe.source.publish(job.recipe.learner.policy)
    episodes = job.recipe.source.collect()
    rows = job.recipe.learner.layout(episodes, job.recipe.credit(episodes, job.recipe.learner.values(episodes)))
    now = job.recipe.learner.policy.evaluate_actions(rows.seen, rows.chosen)
    np.testing.assert_allclose(now.logp.detach().numpy(), rows.logp.flatten().numpy(), atol=1e-5)


# ---------------------------------------------------------------------------------------------- reptile


def reptile_config(steps: int, **changes: Any) -> reptile.ReptileConfig:
    settings = {
        "recipe": "reptile",
        "name": "x",
        "steps": steps,
        "env": {"id": "hone/SineTrials-v0", "num_envs": 20},
        "evaluation": {"episodes": 12},
    }
    return reptile.ReptileConfig.model_validate({**settings, **changes})


def test_the_outer_step_by_hand() -> None:
    config = reptile_config(30, algorithm={"inner_steps": 3, "outer_rate": 0.25}, network={"hidden": [4]})
    learner: Any = reptile.ENTRY.build(config).recipe.learner
    source = open_world(reptile.task_family(config, trials=3), steps=50, seed=0)
    begun = [parameter.clone() for parameter in learner.initialisation.parameters()]
    for turn in range(3):
        adapted = [parameter.clone() for parameter in learner.policy.parameters()]
        episodes = source.rollout(NetworkActor(learner.policy.numpy_policy()))
        credits = reptile.credit(episodes, NO_VALUES, discount=0.0)
        told = learner.update(episodes, credits)
        assert ("meta/moved" in told) == (turn == 2) and f"meta/reward_after_{turn}" in told
        if turn < 2:
            assert all(torch.equal(a, b) for a, b in zip(begun, learner.initialisation.parameters(), strict=True))
            assert not all(torch.equal(a, b) for a, b in zip(adapted, learner.policy.parameters(), strict=True))
    for slow, fast, first in zip(learner.initialisation.parameters(), learner.policy.parameters(), begun, strict=True):
        assert torch.equal(slow, fast)
        assert not torch.equal(slow, first)
    # One inner step from `start`: the optimizer is at rest again, so that Adam moves every weight by at most lr.
    episodes = source.rollout(NetworkActor(learner.policy.numpy_policy()))
    learner.update(episodes, reptile.credit(episodes, NO_VALUES, discount=0.0))
    moved = max(
        float((fast - slow).detach().abs().max())
        for slow, fast in zip(learner.initialisation.parameters(), learner.policy.parameters(), strict=True)
    )
    assert 0 < moved <= config.learner.lr * 1.001


def test_the_share_of_the_way() -> None:
    """start + rate * (adapted - start), with the inner learner replaced by one that puts all weights at 2."""
    config = reptile_config(10, algorithm={"inner_steps": 1, "outer_rate": 0.4}, network={"hidden": [4]})
    job: Any = reptile.ENTRY.build(config)
    learner, episodes = job.recipe.learner, job.recipe.source.collect()

    class Jump:
        policy, phases = learner.policy, learner.inner.phases

        def update(self, episodes: Any, credits: Any) -> dict[str, float]:
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.fill_(2.0)
            return {}

    before = [parameter.clone() for parameter in learner.initialisation.parameters()]
    learner.inner = Jump()
    learner.update(episodes, reptile.credit(episodes, NO_VALUES, discount=0.0))
    for now, was in zip(learner.initialisation.parameters(), before, strict=True):
        torch.testing.assert_close(now, was + 0.4 * (2.0 - was))


@pytest.mark.slow
def test_an_initialisation_is_learnt() -> None:
    """Ten updates from it do more than ten updates from weights that never met the family, and than none."""
    config = reptile_config(600)
    job = reptile.ENTRY.build(config)
    train(job.recipe, steps=600, callback=StepRecorder())
    assert job.evaluate is not None
    found = job.evaluate().metrics
    assert found["eval/score"] > found["eval/before"] + 0.03
    assert found["eval/score"] > found["eval/from_scratch"] + 0.04


def test_what_was_saved_is_judged_after_it_adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hone eval` plays no initialisation as if it were a finished policy: it says before and after."""
    monkeypatch.chdir(tmp_path)
    tables = "[env]\nid = 'hone/SineTrials-v0'\nnum_envs = 20\n[evaluation]\nepisodes = 3\n"
    config = "recipe = 'reptile'\nname = 'x'\nsteps = 20\n" + tables
    Path("run.toml").write_text(config)
    api.train("run.toml")
    found = api.evaluate("x", problems=3)
    last = json.loads(Path("runs/x/metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/score", "eval/before", "eval/from_scratch"} <= set(found) and found["eval/episodes"] == 3
    for name in ("eval/score", "eval/before", "eval/from_scratch"):  # seed 0 is the run's own
        assert found[name] == pytest.approx(last[name])
    assert found["eval/score"] != found["eval/before"]
