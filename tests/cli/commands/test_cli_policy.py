"""What people see of a control policy: its report, its map, and how it bears worse worlds. On a run that is made."""

import json
import shutil
from pathlib import Path

import pytest

from hone.cli.commands.train import write_policy_pictures
from hone.cli.main import main
from hone.control.evaluate import policy_maps
from hone.core.errors import DataError
from hone.run.store.records import read_robustness

LAKE = """recipe = "ppo"
steps = 4
[env]
id = "FrozenLake-v1"
num_envs = 4
[evaluation]
episodes = 4
"""
POLE = LAKE.replace("FrozenLake-v1", "CartPole-v1")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    for name, text in (("lake", LAKE), ("pole", POLE)):
        (folder / f"{name}.toml").write_text(text)
        assert main(["train", str(folder / f"{name}.toml"), "--runs", str(folder / "runs")]) == 0
    return folder


def test_the_report_shows_the_policy(place: Path) -> None:
    run = place / "runs" / "lake"
    page = (run / "report.html").read_text()
    assert "The policy" in page and 'class="map"' in page and "the value of its critic" in page
    about = json.loads((run / "episode.json").read_text())
    if about["note"]:  # no renderer here
        assert "No animation of an episode: its renderer is not installed" in page
    else:
        assert "data:image/png;base64," in page and about["steps"] > 0
    assert "map.json" not in {path.name for path in (place / "runs" / "pole").iterdir()}


def test_a_map_that_cannot_be_drawn_is_a_note_and_the_rest_is_there(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DataError("the policy does not fit the 16 states of its environment")

    assert "no map" not in (place / "runs" / "pole" / "log.txt").read_text()  # no grid: nothing went wrong
    run = shutil.copytree(place / "runs" / "lake", tmp_path / "lake")
    monkeypatch.setattr(policy_maps, "policy_map_on", refuse)
    assert len(write_policy_pictures(run)) == 1  # the episode
    assert "WARNING no map of the policy: the policy does not fit the 16 states" in (run / "log.txt").read_text()


def test_a_map_on_the_screen(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "lake", "--map", "--runs", str(place / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    grid = [line.split() for line in lines if len(line.split()) == 4 and set(line.split()) <= set("←↓→↑HG")]
    assert len(grid) == 4 and grid[1][1] == grid[1][3] == "H" and grid[3][3] == "G"
    assert main(["show", "pole", "--map", "--runs", str(place / "runs")]) == 3
    assert "not a supported grid" in capsys.readouterr().err


def test_worse_worlds_are_a_table_and_a_section(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--perturb", "sensor_noise=[0.5,1]", "--perturb", "physics.gravity=12,action_delay=1"]
    assert main(["eval", "pole", "--runs", str(place / "runs"), "--problems", "6", *words]) == 0
    out = capsys.readouterr().out
    assert "unperturbed" in out and "sensor_noise=0.5" in out and "6 episodes each" in out
    rows = read_robustness(place / "runs" / "pole")
    assert [row.name for row in rows][1:] == [
        "sensor_noise=0.5",
        "sensor_noise=1",
        "action_delay=1, physics.gravity=12",
    ]
    page = (place / "runs" / "pole" / "report.html").read_text()
    assert "Robustness" in page and "physics.gravity=12" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lake", "--perturb", "sensor_noise=1"], "noise cannot be added"),
        (["pole", "--perturb", "physics.gravty=1"], "did you mean gravity?"),
        (["pole", "--perturb", "action_delay=1", "--server", "http://x"], "leave one of them out"),
        (["pole", "--server", "http://127.0.0.1:1"], "--server is for language models"),
    ],
)
def test_bad_words(words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *words, "--runs", str(place / "runs"), "--problems", "2"]) == 2
    assert said in capsys.readouterr().err
