"""Recipes for rare reward and for options: resume bitwise, learn where the plain method cannot, refuse at the door."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_runs import StepRecorder

from hone.cli.main import main
from hone.control.curriculum import CurriculumSource
from hone.control.finite.build import mdp_from_gymnasium
from hone.control.finite.options import mdp_over_options
from hone.control.finite.solve import policy_iteration
from hone.control.networks.options import OptionTablePolicy
from hone.control.options import OptionQLearner
from hone.control.suite.grid_worlds import FourRoomsEnv
from hone.core.credit import Credits
from hone.core.errors import ConfigError, DataError
from hone.core.state import substate
from hone.recipes.on_policy import option_critic
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

SMALL: dict[str, Any] = {"hidden": [16]}
FEW: dict[str, Any] = {"batch": 16, "capacity": 300, "warmup": 40}
UPDATES: dict[str, Any] = {"lr": 1e-3, "minibatches": 2}
REPLAY_UPDATES: dict[str, Any] = {"lr": 1e-3, "updates_per_iteration": 2}
CASES: dict[str, dict[str, Any]] = {
    "her_dqn": {
        "env": {"id": "hone/BitFlip-v0", "num_envs": 3, "kwargs": {"bits": 5}}, "replay": {**FEW, "collect": 7}
    },
    "her_sac": {"env": {"id": "hone/Reach-v0", "num_envs": 2, "kwargs": {"limit": 9}}, "replay": FEW},
    "ppo_rnd": {"env": {"id": "hone/Maze-v0", "num_envs": 3, "max_episode_steps": 9}, "rollout_steps": 14},
    "ppo_icm": {"env": {"id": "CartPole-v1", "num_envs": 3}, "rollout_steps": 14},
    "ppo_counts": {"env": {"id": "Pendulum-v1", "num_envs": 2, "clip_actions": True}, "rollout_steps": 30},
    "ppo_shaped": {
        "env": {"id": "CartPole-v1", "num_envs": 2}, "rollout_steps": 14,
        "hints": {"potential": {"kind": "linear", "weights": [0.0, 0.0, 1.0, 0.0]}},
    },
    "ppo_curriculum": {
        "env": {"id": "hone/Maze-v0", "num_envs": 4, "kwargs": {"size": 5}, "max_episode_steps": 30},
        "rollout_steps": 14,
        "curriculum": {"stages": [{"distance": 1}, {"distance": 2}], "window": 4, "threshold": 0.5},
    },
    "option_q_learning": {"env": {"id": "hone/FourRooms-v0", "num_envs": 3, "max_episode_steps": 25}},
    "option_critic": {"env": {"id": "CartPole-v1", "num_envs": 3}, "rollout_steps": 14},
    "dispatch": {
        "env": {"id": "hone/Warehouse-v0", "num_envs": 3, "kwargs": {"floor": "tiny", "limit": 60}},
        "rollout_steps": 14,
        "algorithm": {"horizon": 15},
    },
}  # fmt: skip


def made(name: str, *, steps: int = 8, **changes: Any) -> TrainingJob[Any]:
    entry = load_recipe(name)
    settings: dict[str, Any] = {"recipe": name, "name": "x", "seed": 3, "steps": steps, "evaluation": {"episodes": 3}}
    fields = entry.config.model_fields
    updates = REPLAY_UPDATES if "replay" in fields else UPDATES
    settings |= {key: value for key, value in (("network", SMALL), ("learner", updates)) if key in fields}
    return entry.build(entry.config.model_validate({**settings, **CASES[name], **changes}))


@pytest.mark.parametrize("name", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    straight, whole = made(name), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)

    first, begun = made(name), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    (tmp_path / "state").mkdir()
    write_state(tmp_path / "state", {"source": first.recipe.source.state(), "learner": first.recipe.learner.state()})
    first.save_policy(tmp_path / "policy")

    second = made(name)
    state = read_state(tmp_path / "state")
    second.load_policy(tmp_path / "policy")
    second.recipe.learner.restore(substate(state, "learner"))
    second.recipe.source.restore(substate(state, "source"))
    train(second.recipe, steps=8, callback=begun, first_step=6)

    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None and second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    for job in (straight, first, second):
        job.close()


def learnt(name: str, *, steps: int, **changes: Any) -> tuple[float, list[dict[str, float]]]:
    """Score of the mode at the end, and the metrics of every step."""
    job = made(name, steps=steps, **{"evaluation": {"episodes": 40}, "network": {"hidden": [64, 64]}, **changes})
    told: list[dict[str, float]] = []
    train(job.recipe, steps=steps, callback=lambda step, episodes, credits, metrics: told.append(dict(metrics)))
    assert job.evaluate is not None
    score = job.evaluate().metrics["eval/score"]
    job.close()
    return score, told


@pytest.mark.slow
def test_hindsight_flips_bits_where_plain_replay_does_not() -> None:
    fast = {
        "env": {"id": "hone/BitFlip-v0", "num_envs": 16, "kwargs": {"bits": 9}},
        "replay": {"warmup": 500, "batch": 256}, "network": {"hidden": [128], "activation": "relu"},
        "learner": {"lr": 2e-3, "updates_per_iteration": 4, "max_grad_norm": None},
    }  # fmt: skip
    score, _ = learnt("her_dqn", steps=250, **fast)
    assert score > 0.9
    score, _ = learnt("her_dqn", steps=100, **fast, hindsight={"share": 0.0})
    assert score < 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [("ppo_rnd", 80), ("ppo_counts", 40)])
def test_novelty_finds_the_way_through_a_maze_that_chance_does_not(name: str, steps: int) -> None:
    fast = {
        "env": {"id": "hone/Maze-v0", "num_envs": 16, "kwargs": {"size": 7}, "max_episode_steps": 120},
        "rollout_steps": 64, "learner": {"lr": 1e-3, "epochs": 4, "minibatches": 4, "max_grad_norm": 0.5},
    }  # fmt: skip
    score, told = learnt(name, steps=steps, **fast)
    assert score == 1.0
    assert told[-1]["novelty/mean"] < told[0]["novelty/mean"] or name == "ppo_rnd"
    score, _ = learnt(name, steps=8, **fast, algorithm={"novelty_weight": 0.0})
    assert score == 0.0


def test_stages_are_passed_and_remembered() -> None:
    job = made("ppo_curriculum", steps=40)
    source = job.recipe.source
    assert isinstance(source, CurriculumSource)
    stages: list[int] = []
    train(job.recipe, steps=40, callback=lambda step, episodes, credits, metrics: stages.append(source.stage))
    assert stages == sorted(stages)
    assert stages[0] == 0 and stages[-1] == 2
    assert source.metrics()["curriculum/stage"] == 2.0
    saved, again = source.state(), made("ppo_curriculum")
    assert isinstance(again.recipe.source, CurriculumSource)
    again.recipe.source.restore(saved)
    assert again.recipe.source.stage == 2
    assert again.recipe.source.recent_successes.values().tolist() == source.recent_successes.values().tolist()
    starts = {int(again.recipe.source.world.envs.reset(seed=seed)[0][0]) for seed in range(5)}
    assert starts == {0}  # the environment as it is: begun at its far end


def test_a_curriculum_with_normalised_rewards_goes_on_from_stage_to_stage() -> None:
    job = made("ppo_curriculum", steps=40, algorithm={"normalise": {"rewards": True}})
    for _ in range(2):
        job.recipe.source.publish(job.recipe.learner.policy)
        job.recipe.source.collect()
    metrics = job.recipe.source.metrics()
    assert metrics["curriculum/stage"] >= 0.0 and metrics["reward/scale"] > 0.0
    assert list(job.pop_notices()) == []
    job.close()


def test_stages_that_do_not_agree_are_refused() -> None:
    entry = load_recipe("ppo_curriculum")
    table = {"recipe": "x", "name": "x", "steps": 1, "env": {"id": "hone/Maze-v0"}}
    config = entry.config.model_validate({**table, "curriculum": {"stages": [{"size": 5}]}})
    with pytest.raises(ConfigError, match=r"stages\[0\] = \{'size': 5\}"):
        entry.check(config)


def test_the_judge_and_the_score_know_nothing_of_hints() -> None:
    job = made("ppo_shaped", hints={"potential": {"kind": "linear", "weights": [0.0, 0.0, 1000.0, 0.0]}})
    told: list[Any] = []

    def report(step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        told.append((episodes, credits))

    train(job.recipe, steps=2, callback=report)
    episodes, credits = told[-1]
    assert set(np.unique(episodes.reward)) == {1.0}
    assert "reward/shaping_mean" in credits.metrics


# ------------------------------------------------------------------------------------------------- options


def table_of(steps: int, **changes: Any) -> tuple[OptionTablePolicy, OptionQLearner]:
    job = made("option_q_learning", steps=steps, **changes)
    train(job.recipe, steps=steps, callback=StepRecorder())
    learner = job.recipe.learner
    assert isinstance(learner, OptionQLearner)
    job.close()
    return learner.policy, learner


def test_option_values_come_to_those_of_the_options_exact_model() -> None:
    """Nothing is left to chance (slip 0, rate 1, every option tried): the values are the exact ones."""
    world = {"id": "hone/FourRooms-v0", "num_envs": 8, "kwargs": {"slip": 0.0}}
    algorithm = {"discount": 0.9, "rate": 1.0, "epsilon": 1.0}
    policy, learner = table_of(250, env=world, rollout_steps=32, algorithm=algorithm, options={"primitive": False})
    mdp = mdp_from_gymnasium("hone/FourRooms-v0", discount=0.9, options={"slip": 0.0})
    options = FourRoomsEnv(slip=0.0).options()
    exact = policy_iteration(mdp_over_options(mdp, options)).q
    tried = policy.table("values")[:, : len(options)] != 0
    legal = np.isfinite(exact)
    known = tried & legal
    assert learner.updates > 1500
    assert known.sum() > 0.9 * (legal & (exact != 0)).sum()
    np.testing.assert_allclose(policy.table("values")[:, : len(options)][known], exact[known], atol=1e-9)


def test_an_option_goes_on_from_one_rollout_to_the_next_by_hand() -> None:
    """Option 0 begins in state 1, is paid 1, 2 and 4 over three steps in two rollouts, and stops in state 2."""
    job = made("option_q_learning", algorithm={"discount": 0.5, "rate": 1.0})
    learner = job.recipe.learner
    assert isinstance(learner, OptionQLearner)
    episodes = job.recipe.source.collect()
    options = len(learner.policy.table("policies"))
    values, actions = learner.policy.table("values"), 4
    values[2] = 0.0
    values[2, options - 1] = 8.0  # a primitive action, which can be begun anywhere
    (first, last) = (piece_of(episodes, count) for count in (2, 2))
    begin = (options + 0) * actions  # option 0 begins
    first.observations[:] = np.array([1, 5]) * (options + 1)
    first.chosen[:] = [begin, 0]
    first.reward[:] = [1.0, 2.0]
    last.observations[:] = np.array([7, 2]) * (options + 1)
    last.chosen[:] = [0, (options + 1) * actions]  # goes on; then option 1 begins in state 2
    last.reward[:] = [4.0, 0.0]
    learner.running_options.clear()
    learner.update(first, credit_of(first))
    assert learner.updates == 0
    learner.update(last, credit_of(last))
    assert values[1, 0] == 1 + 0.5 * 2 + 0.25 * 4 + 0.125 * 8
    assert learner.updates == 1
    job.close()


def piece_of(episodes: Any, count: int) -> Any:
    """The first `count` decisions as a piece that goes on."""
    return replace(
        episodes.take(np.array([0])),
        offsets=np.array([0, count]), seen=episodes.observations[:count].copy(), chosen=episodes.chosen[:count].copy(),
        logp=episodes.logp[:count], version=episodes.version[:count], reward=episodes.reward[:count].copy(),
        terminated=np.array([False]), truncated=np.array([False]),
    )  # fmt: skip


def credit_of(episodes: Any) -> Any:
    return Credits(advantage=episodes.reward)


def test_options_from_a_file(tmp_path: Path) -> None:
    states = 16
    right = {"policy": [2] * states, "stops": [0.0] * (states - 1) + [1.0]}
    (tmp_path / "options.json").write_text(json.dumps([right]), encoding="utf-8")
    lake = {"id": "FrozenLake-v1", "num_envs": 2}
    policy, _ = table_of(3, env=lake, options={"file": str(tmp_path / "options.json")})
    assert policy.table("policies").tolist() == [[2] * 16, *([action] * 16 for action in range(4))]
    (tmp_path / "options.json").write_text(json.dumps([{"policy": [2], "stops": [1.0]}]), encoding="utf-8")
    with pytest.raises(DataError, match=r"option 0: policy has 1 entries, the world has 16 states"):
        table_of(1, env=lake, options={"file": str(tmp_path / "options.json")})
    (tmp_path / "options.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="options"):
        table_of(1, env=lake, options={"file": str(tmp_path / "none.json")})


def test_the_option_critic_stops_what_is_worth_less_than_choosing_anew() -> None:
    """The gradient of the ends' logit is stop (1 - stop) (gain + cost): its sign says whether to stop more or less."""
    job = made("option_critic", algorithm={"options": 2, "epsilon": 0.0})
    policy = job.recipe.learner.policy
    with torch.no_grad():
        for name, parameter in policy.values.named_parameters():
            bias = torch.tensor([1.0, 3.0])
            parameter.copy_(bias if name.endswith("bias") and len(parameter) == 2 else torch.zeros_like(parameter))
    ends = list(policy.ends.parameters())[-1]
    for under_way, cost, stops_less in ((0, 0.0, False), (1, 0.5, True), (1, 0.0, None)):
        seen = torch.zeros(1, 6)
        seen[0, 4 + under_way] = 1.0
        rows = option_critic.StepRows(
            weight=torch.ones(1), seen=seen, chosen=torch.tensor([under_way * 2]), logp=torch.zeros(1),
            advantage=torch.zeros(1), target=torch.tensor([1.0 + 2 * under_way]),
        )  # fmt: skip
        algorithm = option_critic.OptionCriticAlgorithm(
            options=2, epsilon=0.0, deliberation_cost=cost, entropy_weight=0.0
        )
        policy.zero_grad()
        option_critic.objective(policy, rows, algorithm=algorithm).loss.sum().backward()
        assert ends.grad is not None
        found = float(ends.grad[under_way])
        stop = float(torch.sigmoid(policy.ends(torch.zeros(1, 4))[0, under_way]).detach())
        gain = (1.0, 3.0)[under_way] - 3.0
        assert found == pytest.approx(stop * (1 - stop) * (gain + cost), abs=1e-6)
        assert (found > 0) == (stops_less is True)
    job.close()


# ------------------------------------------------------------------------------------------------- doors


def test_hindsight_refuses_what_has_no_goals() -> None:
    for name, env, says in (
        ("her_dqn", {"id": "CartPole-v1"}, "has no goals"),
        ("her_dqn", {"id": "mine.py:World"}, "isolation"),
        ("her_dqn", {"id": "hone/Reach-v0"}, "use her_sac"),
        ("her_sac", {"id": "hone/BitFlip-v0"}, "needs a box of actions"),
    ):
        with pytest.raises(ConfigError, match=says):
            made(name, env=env)


def test_options_refuse_what_they_cannot_read() -> None:
    with pytest.raises(ConfigError, match="keeps a table"):
        made("option_q_learning", env={"id": "CartPole-v1"})
    with pytest.raises(ConfigError, match="offers no options"):
        made("option_q_learning", env={"id": "FrozenLake-v1"})
    with pytest.raises(ConfigError, match="finite set of actions"):
        made("option_critic", env={"id": "Pendulum-v1"})


EXAMPLES = {
    "her_dqn_bit_flip": ["replay.warmup=60"],
    "her_sac_reach": ["replay.warmup=60"],
    "ppo_rnd_maze": [],
    "ppo_icm_maze": [],
    "ppo_counts_maze": [],
    "ppo_shaped_lake": [],
    "ppo_curriculum_maze": [],
    "option_q_learning_four_rooms": [],
    "option_critic_four_rooms": [],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_is_shown_and_is_judged_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).resolve().parents[3] / "examples" / "control" / f"{name}.toml"
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(example), "steps=2", "evaluation.episodes=2", *EXAMPLES[name], "--name", "short"]) == 0, (
        capsys.readouterr().err
    )
    assert main(["show", "short"]) == 0
    assert main(["eval", "short", "--problems", "2"]) == 0
    assert "eval/score" in capsys.readouterr().out
