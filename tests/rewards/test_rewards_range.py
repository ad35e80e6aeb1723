"""Scores without sense: beyond the bound they are missing values with their prompt, and a run of them stops."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import hone, lay_out

from hone.control.finite.build import chain_mdp
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.scores import combine_results, result_from_value, within_range
from hone.rewards.workers import RewardBatch, RewardWorkerPool

SCORES = """
def score(completion):
    return float(completion)

def turns(completion):
    return [float(part) for part in completion.split()]
"""
HUGE = ["1e308", "-1e308", "1e7", "-1000001"]


def pool_of(tmp_path: Path, *names: str, **settings: object) -> RewardWorkerPool:
    (tmp_path / "scores.py").write_text(SCORES)
    functions = [{"use": f"{tmp_path / 'scores.py'}:{name}"} for name in names]
    return RewardWorkerPool(
        RewardsConfig.model_validate({"functions": functions}),
        UserCodeConfig.model_validate({"workers": 1, **settings}),
    )


def test_a_score_beyond_the_bound_is_missing_with_its_prompt(tmp_path: Path) -> None:
    said = [*HUGE, "1e6", "-1000000.0", "0"]
    batch = RewardBatch(prompts=["?"] * 7, completions=said, columns={}, ids=[f"q{number}" for number in range(7)])
    with pool_of(tmp_path, "score") as pool:
        scores = pool.score(batch)
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE] * 4 + [ScoreStatus.SCORED] * 3
    assert np.isnan(scores.score[:4]).all()
    assert scores.score[4:].tolist() == [1e6, -1e6, 0.0]
    assert scores.reasons[0] == "the score 1e+308 for prompt 'q0' is beyond user_code.max_abs_score = 1e+06"
    with pool_of(tmp_path, "score", max_abs_score=1e300) as pool:
        assert pool.score(batch).status.tolist() == [1, 1, 0, 0, 0, 0, 0]


def test_turns_that_cancel_are_found(tmp_path: Path) -> None:
    batch = RewardBatch(prompts=["?"] * 2, completions=["1e308 -1e308", "1 -1"], columns={}, turns=[2, 2])
    with pool_of(tmp_path, "turns") as pool:
        scores = pool.score(batch)
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert "[1e+308, -1e+308]" in scores.reasons[0]


@given(
    st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e6, 1e6)), min_size=1, max_size=5),
    st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)),
    st.floats(1e-3, 1e9),
)
def test_every_score_that_is_left_lies_within_the_bound(
    pairs: list[tuple[float, float]], weights: tuple[float, float], bound: float
) -> None:
    columns = {name: [result_from_value(pair[place]) for pair in pairs] for place, name in enumerate("ab")}
    scores = combine_results(columns, weights, max_abs_score=bound)
    for index, pair in enumerate(pairs):  # an independent slow version
        parts = [weight * score for weight, score in zip(weights, pair, strict=True)]
        sound = all(math.isfinite(score) and abs(score) <= bound for score in pair) and abs(sum(parts)) <= bound
        assert (scores.status[index] == ScoreStatus.SCORED) == sound
        assert scores.score[index] == sum(parts) if sound else math.isnan(scores.score[index])


@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_results_within_the_bound_are_left_as_they_are(values: list[float]) -> None:
    results = [result_from_value(value) for value in values]
    assert within_range(results, 1e6) == results


def test_the_weighted_sum_is_bounded_too(tmp_path: Path) -> None:
    functions = [{"use": f"{tmp_path / 'scores.py'}:score", "weight": 1e6}]
    (tmp_path / "scores.py").write_text(SCORES)
    batch = RewardBatch(prompts=["?"] * 2, completions=["2", "0.5"], columns={})
    with RewardWorkerPool(RewardsConfig.model_validate({"functions": functions}), UserCodeConfig(workers=1)) as pool:
        scores = pool.score(batch)
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert scores.score[1] == 5e5


def test_bounds_wider_than_the_bound_are_refused() -> None:
    config = RewardsConfig.model_validate({"functions": [{"use": "exact_match", "bounds": [0.0, 1e10]}]})
    config.require_bounds_within(1e10)
    with pytest.raises(ValueError, match=r"functions\.0\.bounds = \[0\.0, 10000000000\.0\] reaches beyond"):
        config.require_bounds_within(1e6)


def test_a_run_of_huge_scores_stops_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "huge.py").write_text("def huge(completions):\n    return [1e308] * len(completions)\n")
    assert hone("train", "grpo.toml", "rewards.functions.0.use=huge.py:huge") == 4
    assert "is beyond user_code.max_abs_score = 1e+06" in capsys.readouterr().err
    metrics = tmp_path / "runs" / "tiny" / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    assert all(json.loads(line)["reward/missing"] == 1.0 for line in lines)


@pytest.mark.parametrize("reward", ["float('inf')", "float('nan')", "1e308", "-1e308", "1e19"])
def test_an_environments_reward_without_sense_names_environment_and_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reward: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text(
        "import gymnasium, numpy as np\n"
        "class World(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed); self.t = 0\n"
        "        return np.zeros(1, np.float32), {}\n"
        "    def step(self, action):\n"
        "        self.t += 1\n"
        f"        return np.zeros(1, np.float32), ({reward} if self.t == 7 else 0.0), self.t == 9, False, {{}}\n"
    )
    (tmp_path / "c.toml").write_text(
        'recipe = "ppo"\nsteps = 2\nevaluation.episodes = 1\nrollout_steps = 16\n'
        'env = { id = "world.py:World", num_envs = 2, isolation = "none", check = false }\n'
    )
    assert hone("train", "c.toml") == 4
    assert "reward of environment 0 at step 6 of rollout 1 is" in capsys.readouterr().err


def test_a_finite_process_with_huge_rewards_is_refused() -> None:
    with pytest.raises(DataError, match=r"the reward is 1e.30, at most"):
        chain_mdp(3, large=1e30, discount=0.9)
