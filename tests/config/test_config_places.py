"""What is found wrong with a world after its config was read is a fault of the config, and names its line."""

from pathlib import Path

import pytest

from hone.cli.main import main

OLD = """
import gymnasium, numpy as np

class Old(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}

class Stuck(Old):
    def step(self, action):
        raise ValueError("the gripper is stuck")
"""
HEAD = 'steps = 2\nname = "bad"\n'
CASES = {  # config, exit code, what is said
    "uneven map": ('recipe = "sarsa"\n[finite.world]\nkind = "grid"\nrows = ["S.", "G"]', 2,
                   "run.toml:6: finite.world.rows: the rows of the map have lengths [2, 1]"),
    "unknown marks": ('recipe = "sarsa"\n[finite.world]\nkind = "grid"\nrows = ["S?", ".G"]', 2,
                      "run.toml:6: finite.world.rows: the map has the marks '?'"),
    "no table": ('recipe = "sarsa"\n[finite.world]\nkind = "gymnasium"\nid = "CartPole-v1"', 2,
                 "run.toml:6: CartPole-v1 has no table"),
    "no such table": ('recipe = "td_prediction"\n[finite.world]\nkind = "gymnasium"\nid = "Taxi-v99"', 2,
                      "run.toml:6: finite.world.id = 'Taxi-v99': "),
    "no such world": ('recipe = "ppo"\n[env]\nid = "CartPole-v9"', 2,
                      "run.toml:5: env.id = 'CartPole-v9': no such environment"),
    "a box for a table": ('recipe = "q_learning"\n[env]\nid = "CartPole-v1"', 2,
                          'run.toml:5: env.id = "CartPole-v1": a table needs numbered states'),
    "numbers for a box": ('recipe = "sac"\n[env]\nid = "CartPole-v1"', 2,
                          "run.toml:5: CartPole-v1: action space Discrete(2) is numbered"),
    "old interface": ('recipe = "ppo"\n[env]\nid = "worlds.py:Old"', 4,
                      "run.toml:5: worlds.py:Old: step 0 (environment 0"),
    "raises": ('recipe = "ppo"\n[env]\nid = "worlds.py:Stuck"', 4,
               "run.toml:5: worlds.py:Stuck: step 0 (environment 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_world_that_is_none_names_its_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, code, said = CASES[case]
    monkeypatch.chdir(tmp_path)
    Path("worlds.py").write_text(OLD)
    Path("run.toml").write_text(HEAD + config)
    assert main(["train", "run.toml", "--dry-run"]) == code
    assert f"error: {said}" in capsys.readouterr().err


def test_what_the_command_line_says_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(HEAD + 'recipe = "ppo"\n[env]\nid = "CartPole-v1"')
    assert main(["train", "run.toml", "--dry-run", "env.id=CartPole-v9"]) == 2
    assert "error: command line: env.id = 'CartPole-v9': no such environment" in capsys.readouterr().err
