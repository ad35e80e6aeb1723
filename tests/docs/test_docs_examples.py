"""Every example does what it is there for: checked as it is written, and run with fewer steps."""

import runpy
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from hone.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

SHORTER = {
    "bandit/boltzmann.toml": ["steps=50"],
    "bandit/epsilon_greedy.toml": ["steps=50"],
    "bandit/linucb.toml": ["steps=50"],
    "bandit/squarecb.toml": ["steps=50"],
    "bandit/thompson.toml": ["steps=50"],
    "control/ppo_cartpole.toml": ["steps=2", "evaluation.episodes=2"],
    "control/sac_pendulum.toml": ["steps=3", "evaluation.episodes=2"],
    "search/collect.toml": [
        *("stage.0.steps=3", "stage.0.batch=8", "stage.0.task.size=16", "shared.evaluation.task.size=16"),
        *(
            "stage.1.task.size=16",
            "stage.1.steps=1",
            "stage.1.rollout.prompts_per_step=4",
            "stage.1.collect.separator='='",
        ),
        *("stage.2.steps=2", "stage.2.batch=8", "stage.2.task.answers.min_score=-1"),
    ],
    "search/expert_iteration.toml": [
        *("stage.0.steps=3", "stage.0.batch=8", "shared.task.size=16", "shared.evaluation.task.size=16"),
        *("stage.1.steps=4", "stage.1.rollout.prompts_per_step=4", "stage.1.algorithm.collect_steps=1"),
        *("stage.1.algorithm.learn_steps=1", "stage.1.algorithm.min_score=-1"),
        *("stage.2.steps=2", "stage.2.rollout.prompts_per_step=4"),
    ],
    "dialogues/lake_gigpo.toml": [
        *("stage.0.steps=3", "stage.0.batch=8", "stage.1.steps=2", "stage.1.rollout.prompts_per_step=2"),
        *("stage.1.rollout.samples_per_prompt=4", "stage.1.task.size=8"),
    ],
    "offline/bc.toml": ["steps=3", "evaluation.episodes=2"],
    "offline/bcq.toml": ["steps=2", "evaluation.episodes=2"],
    "offline/bear.toml": ["steps=2", "evaluation.episodes=2"],
    "offline/cql.toml": ["steps=3", "evaluation.episodes=2"],
    "offline/iql.toml": ["steps=2", "evaluation.episodes=2"],
    "offline/td3_bc.toml": ["steps=2", "evaluation.episodes=2"],
    "league/alphazero.toml": [
        *("steps=2", "env.num_envs=8", "search.simulations=4", "search.evaluation_simulations=4"),
        *("evaluation.episodes=2", "learner.minibatches=2"),
    ],
    "league/league.toml": [
        *("steps=2", "env.num_envs=4", "league.every=1", "league.reset_every=1", "league.payoff_matches=2"),
        *("league.anchors=['random']", "league.gate.matches=2", "evaluation.episodes=2", "evaluation.every=0"),
    ],
    "league/leduc.toml": ["steps=6", "evaluation.episodes=4"],
    "control/double_q_learning_cliff_walking.toml": ["steps=5"],
    "control/dyna_q_maze.toml": ["steps=20"],
    "control/expected_sarsa_taxi.toml": ["steps=5"],
    "control/gradient_td_baird.toml": ["steps=20"],
    "control/monte_carlo_frozen_lake.toml": ["steps=5"],
    "control/prioritized_sweeping_maze.toml": ["steps=20"],
    "control/q_learning_taxi.toml": ["steps=5"],
    "control/sarsa_cliff_edge.toml": ["steps=5"],
    "search/pipeline.toml": [
        *(f"stage.{place}.steps=2" for place in range(3)),
        "stage.0.task.size=60",
        "stage.0.evaluation.task.size=8",
        "stage.1.task.size=60",
        "stage.1.rollout.prompts_per_step=4",
    ],
    "dialogues/calculator.toml": [
        *("stage.0.steps=2", "stage.0.batch=8", "stage.1.steps=1", "stage.1.rollout.prompts_per_step=2"),
        "stage.1.rollout.samples_per_prompt=4",
    ],
    "dialogues/guess.toml": [
        *("stage.0.steps=2", "stage.0.batch=8", "stage.1.steps=1", "stage.1.rollout.prompts_per_step=3"),
        "stage.1.rollout.samples_per_prompt=4",
    ],
    "control/sarsa_cliff_walking.toml": ["steps=5"],
    "control/sarsa_lambda_frozen_lake.toml": ["steps=5"],
    "control/td_prediction_random_walk.toml": ["steps=5"],
    "control/tile_sarsa_mountain_car.toml": ["steps=5", "evaluation.episodes=2"],
}
"""Per example what makes it a matter of seconds. The main job in chain_sum/ is run by the README's test, and what else
there is in control/ by the tests of its recipe."""
AFTER = {
    "search/pipeline.toml": [
        *("eval", "short/base", "--problems", "4", "--search", "best_of:4", "--search", "weighted_vote:4"),
        *("--scorer", "runs/short/verifier", "--step=;", r"--answer=-?\d+"),
    ],
    "dialogues/guess.toml": ["sample", "runs/short/play", "--dialogue", "--count", "3"],
}
"""The command that the head of an example says to run afterwards, made smaller."""
ELSEWHERE = (
    *("agents/", "chain_sum/", "control/", "critics/", "decisions/", "early_experience/", "preferences/"),
    *("smollm2/", "warehouse/"),
)
CONTROL = sorted(path.name for path in (EXAMPLES / "control").glob("*.toml"))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # child processes find this hone, installed or not
    return tmp_path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the logs that the comments at the heads of offline/*.toml say to make first, on a small scale."""
    place = tmp_path_factory.mktemp("logs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "argv", ["record.py", "cartpole.parquet"])
        runpy.run_path(str(EXAMPLES / "offline" / "record.py"), run_name="__main__")
        patch.setattr(sys, "argv", ["logs.py", "pendulum", "--only", "random", "--decisions", "400"])
        runpy.run_path(str(EXAMPLES / "offline" / "logs.py"), run_name="__main__")
    shutil.copy(place / "cartpole.parquet", place / "cartpole_mixed.parquet")
    shutil.copy(place / "pendulum_random.parquet", place / "pendulum_mixed.parquet")
    return place


def test_every_example_is_run() -> None:
    there = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.toml")}
    assert {name for name in there if name in SHORTER or not name.startswith(ELSEWHERE)} == set(SHORTER)


@pytest.mark.parametrize("name", CONTROL)
def test_a_control_example_is_valid_and_named_like_its_recipe(
    name: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(f"examples/control/{name}").read_text()
    recipe = tomllib.loads(text)["recipe"]
    assert name.startswith(f"{recipe}_") and text.startswith("#"), "RECIPE_TASK.toml, with a line on what it reaches"
    if "log =" in text:
        pytest.skip("needs a log, which its recipe's test records")
    assert main(["plan", f"examples/control/{name}"]) == 0, capsys.readouterr().err


SLOW = ("dialogues/calculator.toml", "search/collect.toml", "search/expert_iteration.toml", "search/pipeline.toml")
"""Eight seconds each; their parts run in `search/collect.toml` and on the page of search."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(SHORTER)]
)
def test_an_example_is_valid_and_runs(
    name: str, workplace: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if name.startswith("offline/"):
        shutil.copytree(request.getfixturevalue("logs"), workplace, dirs_exist_ok=True)
    if name == "dialogues/lake_gigpo.toml":
        runpy.run_path("examples/dialogues/lake.py", run_name="__main__")
    if name in ("dialogues/guess.toml", "dialogues/calculator.toml"):
        runpy.run_path("examples/dialogues/players.py", run_name="__main__")
    assert main(["plan", f"examples/{name}"]) == 0, capsys.readouterr().err
    assert main(["train", f"examples/{name}", *SHORTER[name], "name=short"]) == 0, capsys.readouterr().err
    assert (workplace / "runs" / "short" / "report.html").is_file()
    if name in AFTER:
        assert main(AFTER[name]) == 0, capsys.readouterr().err


@pytest.mark.slow  # all of its questions; on the page of the first run it is valid and runs with fewer
def test_the_main_job_is_valid_as_it_is_written(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "examples/chain_sum/pipeline.toml"]) == 0, capsys.readouterr().err
    assert "warning" not in capsys.readouterr().out


def test_the_recorded_log_has_two_halves(logs: Path) -> None:
    from hone.control.logs.parquet import read_log

    episodes = read_log(logs / "cartpole.parquet").episodes
    half = episodes.decisions // 2
    # A fair coin has one log-probability; the rule, obeyed 3 times in 5 and in half of the rest, has two.
    values = sorted({round(float(value), 4) for value in episodes.logp})
    assert values == [-1.6094, -0.6931, -0.2231]  # log 0.2, log 0.5, log 0.8
    tossed = episodes.logp.round(4) == -0.6931
    assert abs(int(tossed.sum()) - half) < half * 0.1
