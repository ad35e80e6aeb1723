"""Recipes on replay buffers, logs and experts open each of them once, and close them with the job or the refusal."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from control_runs import write_short_log

from hone.control import experts
from hone.control.environments.world import GymWorld
from hone.core.errors import ConfigError
from hone.recipes import decision_logs
from hone.recipes.imitation import dagger
from hone.recipes.registry import load_recipe

ENVS = 3
CARTPOLE = {"id": "CartPole-v1", "num_envs": ENVS, "check": False}
ACROBOT = {"id": "Acrobot-v1", "num_envs": ENVS, "check": False}
MOUNTAIN = {"id": "MountainCarContinuous-v0", "num_envs": ENVS, "check": False}
REPLAY: dict[str, dict[str, Any]] = {
    "dqn": {"env": ACROBOT},
    "discrete_sac": {"env": ACROBOT},
    "sac": {"env": MOUNTAIN},
    "td3": {"env": MOUNTAIN},
    "pets": {"env": MOUNTAIN},
    "her_dqn": {"env": {"id": "hone/BitFlip-v0", "num_envs": ENVS, "check": False}},
    "her_sac": {"env": {"id": "hone/Reach-v0", "num_envs": ENVS, "check": False}},
}
ACTOR = "def left(observations):\n    return observations[:, 0].astype(int) * 0\n"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of `gymnasium.make`, logs read, experts opened and closed, worlds closed."""
    counted: Counter[str] = Counter()

    def count(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **settings: Any) -> Any:
            counted[name] += 1
            return plain(*arguments, **settings)

        return counting

    def open_expert(config: Any) -> Any:
        expert, close = plain_expert(config)
        return expert, count("experts closed", close)

    plain_expert = experts.open_expert
    monkeypatch.setattr(gymnasium, "make", count("made", gymnasium.make))
    monkeypatch.setattr(decision_logs, "read_log", count("logs", decision_logs.read_log))
    monkeypatch.setattr(experts, "read_log", count("logs", experts.read_log))
    monkeypatch.setattr(dagger, "open_expert", count("experts", open_expert))
    monkeypatch.setattr(GymWorld, "close", count("closed", GymWorld.close))
    return counted


def config_of(recipe: str, **settings: Any) -> Any:
    return load_recipe(recipe).config.model_validate({"recipe": recipe, "name": "x", "steps": 1, **settings})


def built(recipe: str, **settings: Any) -> None:
    """Open, build and close a run."""
    config = config_of(recipe, **settings)
    config.open().build(config).close()


@pytest.mark.parametrize("recipe", REPLAY)
def test_environments_of_a_replay_buffer(recipe: str, counts: Counter[str]) -> None:
    built(recipe, **REPLAY[recipe])
    assert (counts["made"], counts["closed"] > 0) == (ENVS, True)


@pytest.mark.parametrize("recipe", ["bc", "cql"])
def test_a_log_is_read_once(recipe: str, counts: Counter[str], tmp_path: Path) -> None:
    built(recipe, log=write_short_log(tmp_path, "CartPole-v1"))
    assert counts["logs"] == 1


@pytest.mark.parametrize(("recipe", "env"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_demonstrations_beside_experience_are_read_once_at_the_door(
    recipe: str, env: str, counts: Counter[str], tmp_path: Path
) -> None:
    def demonstrated(log: str) -> Any:
        shown = {"demonstrations": {"log": log}}
        return config_of(
            recipe, env={"id": env, "check": False}, **({"algorithm": shown} if recipe == "dqn" else shown)
        )

    config = demonstrated(write_short_log(tmp_path, env))
    counts.clear()
    opened = config.open()
    assert counts["logs"] == 1
    opened.build(config).close()
    assert counts["logs"] == 1
    with pytest.raises(ConfigError, match="is of another world"):
        load_recipe(recipe).check(
            demonstrated(write_short_log(tmp_path, "Pendulum-v1" if recipe == "dqn" else "CartPole-v1"))
        )


def test_hindsight_without_goals_leaves_nothing_open(counts: Counter[str]) -> None:
    with pytest.raises(ConfigError, match="has no goals"):
        load_recipe("her_dqn").check(config_of("her_dqn", env=ACROBOT))
    assert (counts["made"], counts["closed"]) == (ENVS, 1)


def test_demonstrations_of_gail_are_read_once(counts: Counter[str], tmp_path: Path) -> None:
    log = write_short_log(tmp_path, "CartPole-v1")
    counts.clear()
    built("gail", log=log, env=CARTPOLE)
    assert (counts["logs"], counts["closed"] > 0) == (1, True)


def test_an_expert_is_opened_once_and_closed_with_the_job(counts: Counter[str], tmp_path: Path) -> None:
    (tmp_path / "expert.py").write_text(ACTOR, encoding="utf-8")
    expert = {"kind": "program", "use": f"{tmp_path / 'expert.py'}:left"}
    built("dagger", expert=expert, env=ACROBOT)
    assert (counts["experts"], counts["experts closed"], counts["made"]) == (1, 1, ENVS)
    refused = config_of(
        "dagger", expert=expert, env={**MOUNTAIN, "clip_actions": False}
    )  # actions in a box that nobody clips
    with pytest.raises(ConfigError, match="clip_actions"):
        refused.open()
    assert (counts["experts"], counts["experts closed"]) == (2, 2)


def test_finite_actions_are_asked_for_at_the_door(counts: Counter[str]) -> None:
    with pytest.raises(ConfigError, match="dqn needs a finite set of actions"):
        load_recipe("dqn").check(config_of("dqn", env=MOUNTAIN))
    assert counts["closed"] > 0
