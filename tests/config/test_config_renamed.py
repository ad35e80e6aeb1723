"""Old names of keys: read through every door, with one note, never beside the present name."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from hone.config.resolve import load, read_document, resolve
from hone.core.config import RENAMED_KEYS, Config, ConfigSetting, current_key, readable_keys
from hone.core.errors import ConfigError
from hone.run.store.manifest import config_diff


class Learner(Config):
    lr: float = 1e-3
    lr_decay: str = "constant"


class Recipe(Config):
    learner: Learner = Learner(lr=0.5)
    max_staleness: int | Learner = 0
    kwargs: dict[str, float] = {}


class Greedy(Config):
    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    start: float = 1.0


class Softmax(Config):
    kind: Literal["softmax"] = "softmax"


class Explorer(Config):
    exploration: Annotated[Greedy | Softmax, Field(discriminator="kind")] = Greedy(start=0.5)
    other: Annotated[Greedy | Softmax, Field(discriminator="kind")] = Softmax()
    kwargs: dict[str, str] = {}


def resolved(folder: Path, text: str, *overrides: str) -> tuple[Recipe, dict[str, str]]:
    (folder / "a.toml").write_text(text, encoding="utf-8")
    found = load(Recipe, folder / "a.toml", overrides)
    return found.config, {key: item.origin for key, item in found.non_defaults().items()}


def test_python_and_saved_configs() -> None:
    assert Recipe.model_validate({"learner": {"decay": "linear"}}).learner == Learner(lr=0.5, lr_decay="linear")
    assert Learner(**{"decay": "cosine"}).lr_decay == "cosine"


def test_a_file_keeps_the_line_of_the_key(tmp_path: Path) -> None:
    config, origins = resolved(tmp_path, 'ahead = 2\n[learner]\ndecay = "linear"\n')
    assert (config.max_staleness, config.learner.lr_decay) == (2, "linear")
    assert origins == {"max_staleness": "a.toml:1", "learner.lr_decay": "a.toml:3"}


def test_the_command_line_overrides_the_file_whatever_the_names(tmp_path: Path) -> None:
    for given, over in (("decay", "lr_decay"), ("lr_decay", "decay")):
        config, origins = resolved(tmp_path, f'[learner]\n{given} = "linear"\n', f"learner.{over}=cosine")
        assert (config.learner.lr_decay, origins) == ("cosine", {"learner.lr_decay": "command line"})


def test_a_fault_is_said_of_the_present_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"learner\.lr_decay in a\.toml:2 must be a string"):
        resolved(tmp_path, "[learner]\ndecay = 1\n")


def test_both_names_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="decay is the old name of lr_decay: give only lr_decay"):
        resolved(tmp_path, '[learner]\ndecay = "a"\nlr_decay = "b"\n')
    with pytest.raises(ValidationError, match="give only lr_decay"):
        Learner.model_validate({"decay": "a", "lr_decay": "b"})


def test_keys_of_the_user_stay(tmp_path: Path) -> None:
    assert resolved(tmp_path, "[kwargs]\ndecay = 0.5\n")[0].kwargs == {"decay": 0.5}


def test_a_saved_run_is_compared_under_the_present_names() -> None:
    old, new = {"learner.decay": ConfigSetting(value="a")}, {"learner.lr_decay": ConfigSetting(value="b")}
    assert config_diff(old, new) == ['learner.lr_decay: "a" -> "b"']
    assert config_diff(old, {"learner.lr_decay": ConfigSetting(value="a")}) == []


def test_an_alternative_goes_by_its_present_name(tmp_path: Path) -> None:
    """Through Python, a saved run and a file; in a table of the user's own nothing is renamed."""
    given = {"exploration": {"kind": "epsilon"}, "other": {"kind": "epsilon"}, "kwargs": {"kind": "epsilon"}}
    found = Explorer.model_validate(given)
    assert (found.exploration, found.other) == (Greedy(start=0.5), Greedy())
    assert found.kwargs == {"kind": "epsilon"}
    (tmp_path / "a.toml").write_text('[other]\nkind = "epsilon"\n[kwargs]\nkind = "epsilon"\n', encoding="utf-8")
    document = read_document(tmp_path / "a.toml", ())
    config = resolve(Explorer, document).config
    assert (config.other, config.kwargs) == (Greedy(), {"kind": "epsilon"})
    assert document.notes == ['other.kind = "epsilon" is now "epsilon_greedy"; the old name is read until 0.3']
    with pytest.raises(ConfigError, match="kind"):
        load(Explorer, tmp_path / "a.toml", ("other.kind=epsilons",))
    old, new = {"other.kind": ConfigSetting(value="epsilon")}, {"other.kind": ConfigSetting(value="epsilon_greedy")}
    assert config_diff(old, new) == []


def test_no_name_is_old_and_present_in_one_table() -> None:
    assert readable_keys(Learner) == {"lr", "lr_decay", "decay"}
    assert current_key(("learner", "decay"), {("learner", "lr_decay")}) == ("learner", "lr_decay")
    assert not set(RENAMED_KEYS) & {name for names in RENAMED_KEYS.values() for name in names}
