"""Commands that only show or list start at once: what they import is the measure."""

import subprocess
import sys
from pathlib import Path

import pytest
import tiny_runs
from short_runs import SHORT

from hone.cli.main import main

MOST_MODULES = 1200
"""Of Python, of others and of hone: what a command that shows may load."""
HEAVY = ("torch", "transformers", "sympy", "scipy", "numba", "reasoning_gym")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("short.toml").write_text(SHORT)
        assert main(["train", "short.toml", "steps=1"]) == 0
    return folder


@pytest.mark.parametrize(
    "command",
    [["list"], ["list", "recipes"], ["list", "recipes", "grpo"], ["list", "runs"], ["show", "short"], ["--help"]],
)
def test_a_command_that_shows_imports_nothing_heavy(command: list[str], place: Path) -> None:
    program = (
        "import sys\nfrom hone.cli.main import main\n"
        f"code = main({command!r})\n"
        f"heavy = sorted(set(sys.modules) & set({HEAVY!r}))\n"
        "print(len(sys.modules), code, heavy, file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], cwd=place, capture_output=True, text=True, check=False)
    loaded, _, rest = answer.stderr.splitlines()[-1].partition(" ")
    assert rest == "0 []", answer.stderr
    assert int(loaded) < MOST_MODULES


def test_a_plan_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    tiny_runs.lay_out(tmp_path)
    control = 'recipe = "ppo"\nname = "planned"\nsteps = 1\nenv = { id = "CartPole-v1" }\n'
    (tmp_path / "ppo.toml").write_text(control, encoding="utf-8")
    program = "import sys\nfrom hone.cli.main import main\n"
    program += "codes = [main(['plan', name]) for name in ('grpo.toml', 'ppo.toml')]\n"
    program += "print(codes, *(name in sys.modules for name in ('torch._dynamo', 'transformers')), file=sys.stderr)"
    answer = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stderr.splitlines()[-1] == "[0, 0] False False", answer.stderr


def test_list_alone_lists_runs_and_recipes(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(["list"]) == 0
    told = capsys.readouterr().out
    assert "short" in told
    assert "language models (" in told
    assert "grpo" in told
    assert len(told.splitlines()) < 60
