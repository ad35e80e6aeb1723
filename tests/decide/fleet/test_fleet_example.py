"""The example of a fleet does what its README says."""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from fleet_parts import fleet_in_process

from hone.cli.main import main
from hone.control.logs.fleet import open_fleet_log
from hone.decide.fleet.device import EpisodePolicy

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "decisions" / "fleet"


def test_its_files_are_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    monkeypatch.chdir(tmp_path / "example")
    assert main(["serve", "fleet.toml", "--dry-run"]) == 0
    assert "0.1 of the robots, 0.5 of the robots, 1 of the robots" in capsys.readouterr().out
    assert main(["plan", "learner.toml"]) == 3
    assert "fleet/fleet.db: no log of a fleet" in capsys.readouterr().err


@pytest.mark.slow
def test_one_command_runs_the_fleet_from_its_first_policy_to_its_page(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLE / "fleet.py"), str(tmp_path / "life")],
        env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "steps of 50 robots" in run.stdout
    assert "went back to" in run.stdout
    harmed = int(run.stdout.split(" episodes were run by the bad version")[0].split()[-1])
    assert 0 < harmed <= 200
    assert "<h1>fleet: 50 robots" in (tmp_path / "life" / "fleet.html").read_text()
    lines = (tmp_path / "life" / "runs" / "learner" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["robots/staleness_above"] == 0.0


@pytest.fixture
def robots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fleet_robots", EXAMPLE / "robots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fleet_robots"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("env", "package", "seen", "done", "choices"),
    [("CartPole-v1", "gymnasium", 4, 1, 2), ("Pendulum-v1", "gymnasium", 3, 1, 0), ("LunarLander-v3", "Box2D", 8, 1, 4),
     ("BipedalWalker-v3", "Box2D", 24, 4, 0)],
)  # fmt: skip
def test_robots_of_any_environment_send_what_its_spaces_say(
    robots: ModuleType, tmp_path: Path, env: str, package: str, seen: int, done: int, choices: int
) -> None:
    pytest.importorskip(package)
    table = robots.fleet_table(robots.schema_of(env, gymnasium.make(env)))
    with fleet_in_process(tmp_path, f"[fleet]\n{table}\n[join]\nwindow_s = 1.0\n") as fleet:
        robot = robots.make_robot("http://fleet", tmp_path, 3, env, 12)
        robot.network.inner = fleet.send
        for episode in range(2):
            robot.live(episode)
        robot.network.away = False
        while robot.uploader.status().waiting:
            robot.uploader.sync()
        robot.uploader.close()
        assert sum(fleet.service.store.counts()) == robot.steps + 2
        log = open_fleet_log(fleet.service.folder / "fleet.db", observation=seen, action=done, choices=choices)
        _, _, steps = log.read(0, 100)
    assert len(steps) == robot.steps
    assert np.isfinite(steps["logp"]).all() == bool(choices), "the density in a box is unknown"
    space = robot.world.action_space
    if choices:
        assert set(steps["action"].ravel().tolist()) <= set(range(choices))
        assert steps["logp"] == pytest.approx(-np.log(choices))
    else:
        assert (steps["action"] >= space.low.ravel()).all()
        assert (steps["action"] <= space.high.ravel()).all()


def test_a_linear_policy_is_its_file_with_slips_by_its_probability(robots: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "linear.json").write_text('{"weights": [[1, 0], [0, 1], [-1, -1]], "slip": 0.3}')
    policy = robots.Linear(
        EpisodePolicy(version="v", number=0, folder=tmp_path, route=""), gymnasium.spaces.Discrete(3)
    )
    chance, taken = random.Random(1), []
    for _ in range(600):
        action, logp = policy.act(np.array([0.5, 2.0]), chance)
        assert logp == pytest.approx(np.log(0.8 if action == 1 else 0.1))
        taken.append(action)
    assert taken.count(1) / 600 == pytest.approx(0.8, abs=0.06)
    box = robots.Linear(
        EpisodePolicy(version="v", number=0, folder=tmp_path, route=""), gymnasium.spaces.Box(-1, 1, (3,))
    )
    assert box.best(np.array([0.5, 2.0])).tolist() == [0.5, 1.0, -1.0]


def test_spaces_that_robots_cannot_send_end_the_program(robots: ModuleType) -> None:
    with pytest.raises(SystemExit, match="FrozenLake-v1: robots send a box of numbers seen"):
        robots.schema_of("FrozenLake-v1", gymnasium.make("FrozenLake-v1"))
