"""Recipes that stand outside of hone: in a file of the user's, or in an installed package."""

import sys
from pathlib import Path

import pytest
from short_runs import SHORT

from hone.cli.main import main
from hone.core.errors import ConfigError, UserCodeError
from hone.recipes.registry import load_recipe, recipe_families, recipe_names, short_name
from hone.run.job import installed_recipes

RECIPE = '''
"""A recipe of a user's: A2C under another name."""
from dataclasses import replace
from hone.recipes.on_policy.a2c import ENTRY as A2C

ENTRY = replace(A2C, summary="a user's own")
OTHER = replace(A2C, summary="another one")
NUMBER = 5
'''


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(RECIPE)
    return tmp_path


def install(place: Path, package: str, declared: str) -> None:
    """A package with one recipe module, as pip leaves it: the code and its metadata."""
    (place / f"{package}.py").write_text(RECIPE)
    info = place / f"{package}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[hone.recipes]\n{declared}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name, module in sys.modules.items() if str(folder) in str(vars(module).get("__file__"))]:
        del sys.modules[name]


def write_config(recipe: str) -> None:
    lines = [line for line in SHORT.splitlines() if not line.startswith("recipe")]
    Path("short.toml").write_text("\n".join([f'recipe = "{recipe}"', *lines]))


@pytest.mark.parametrize("recipe", ["own.py", "own.py:OTHER", "./own.py"])
def test_a_recipe_in_a_file_is_listed_and_planned(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(recipe)
    assert main(["list", "recipes", recipe]) == 0
    assert ("another one" if "OTHER" in recipe else "a user's own") in capsys.readouterr().out
    assert main(["plan", "short.toml"]) == 0


def test_a_recipe_in_a_file_is_trained_resumed_and_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    write_config("own.py")
    assert main(["train", "short.toml", "steps=2"]) == 0
    assert main(["train", "short.toml", "steps=3", "--resume"]) == 0
    assert main(["eval", "short", "--problems", "2"]) == 0
    assert "eval/score" in capsys.readouterr().out


def test_a_recipe_of_a_package_is_known_by_its_name(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "my_recipes", "user_a2c = my_recipes:ENTRY\nplain = my_recipes")
    assert {"user_a2c", "plain", "grpo"} <= set(recipe_names())
    assert load_recipe("plain").summary == "a user's own"
    write_config("user_a2c")
    assert main(["plan", "short.toml"]) == 0
    capsys.readouterr()
    assert main(["list", "recipes"]) == 0
    told = capsys.readouterr().out
    assert "other packages (2)" in told
    assert "user_a2c" in told
    write_config("user_a2")
    assert main(["plan", "short.toml"]) == 2
    assert "did you mean user_a2c" in capsys.readouterr().err


def test_two_recipes_of_one_name_are_refused_by_that_name_only(site: Path) -> None:
    install(site, "first", "grpo = first:ENTRY\ntwin = first:ENTRY")
    install(site, "second", "twin = second:ENTRY")
    with pytest.raises(ConfigError, match=r"'grpo' exists more than once: in hone itself, in first 1.5 \(first"):
        load_recipe("grpo")
    with pytest.raises(ConfigError, match=r"'twin' exists more than once: in first 1.5 .*, in second 1.5"):
        load_recipe("twin")
    assert load_recipe("ppo").summary
    assert set(recipe_names()) == {*recipe_families(), "twin"}


def test_a_package_that_cannot_be_imported_leaves_the_others_usable(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "broken", "unusable = broken:ENTRY")
    (site / "broken.py").write_text("import nothing_of_this_name\n")
    assert list(installed_recipes()) == ["unusable"]
    with pytest.raises(UserCodeError, match=r"recipe 'unusable' of broken 1.5"):
        load_recipe("unusable")
    assert main(["list", "recipes"]) == 0
    told = capsys.readouterr().out
    assert "cannot be used: recipe 'unusable' of broken 1.5" in told
    assert "grpo" in told


@pytest.mark.parametrize(
    ("recipe", "code", "said"),
    [
        ("absent.py", 2, "short.toml:1: recipe 'absent.py:ENTRY': no such file absent.py"),
        ("own.py:NUMBER", 4, "own.py:NUMBER' is a int, not a hone.run.job.RecipeSpec"),
        ("own.py:ENTRIES", 4, "has no 'ENTRIES'"),
        ("fails.py", 4, "importing fails.py failed with ValueError: not today"),
        ("empty.py", 4, "empty.py has no 'ENTRY'"),
    ],
)
def test_faults_of_a_recipe_file_name_it(recipe: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("fails.py").write_text("raise ValueError('not today')\n")
    Path("empty.py").write_text("")
    write_config(recipe)
    assert main(["plan", "short.toml"]) == code
    assert said in capsys.readouterr().err


def test_a_file_named_like_a_library_replaces_none(place: Path) -> None:
    import json

    (place / "json.py").write_text(RECIPE)
    assert load_recipe("json.py").summary == "a user's own"
    assert sys.modules["json"] is json


def test_a_changed_file_is_read_anew(place: Path) -> None:
    first = load_recipe("own.py")
    assert load_recipe("own.py") is first
    (place / "own.py").write_text(RECIPE.replace("a user's own", "changed since"))
    assert load_recipe("own.py").summary == "changed since"


def test_a_run_or_stage_without_a_name_is_called_after_the_file() -> None:
    assert (short_name("folder/own.py"), short_name("own.py:OTHER"), short_name("grpo")) == ("own", "own", "grpo")
