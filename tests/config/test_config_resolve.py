"""Configs: what a user reads when something is wrong, and where each value is said to come from."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from hone.config.resolve import ResolvedConfig, load, read_document, require_consent, resolve, with_location
from hone.config.toml import parse_overrides, parse_value, split_overrides
from hone.core.config import Config, ConfigSetting
from hone.core.errors import ConfigError


class Clipped(Config):
    kind: Literal["clipped"] = "clipped"
    low: float = Field(default=0.2, gt=0, lt=1)
    high: float = Field(default=0.2, gt=0)


class Preference(Config):
    kind: Literal["dpo"] = "dpo"
    beta: float = Field(default=0.1, gt=0)


Loss = Annotated[Clipped | Preference, Field(discriminator="kind")]


class Sampling(Config):
    temperature: float = Field(default=1.0, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)

    @model_validator(mode="after")
    def _greedy_has_no_top_p(self) -> "Sampling":
        if self.temperature == 0 and self.top_p is not None:
            raise ValueError("top_p has no meaning with temperature = 0 (greedy); remove one of them")
        return self


class Learner(Config):
    lr: float = Field(default=1e-3, gt=0)
    epochs: int = Field(default=4, ge=1, le=100)
    loss: Loss = Clipped(low=0.1)
    schedule: float | list[float] | None = None
    mode: Literal["fast", "slow"] = "fast"


class Run(Config):
    steps: int = Field(gt=0)
    """How many steps to take."""
    learner: Learner = Learner(lr=0.5)
    sampling: Sampling = Sampling()
    mixture: list[Loss] = []
    weights: dict[str, float] = {}
    tags: list[str] = []
    extra: Clipped | None = None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def answer(path: Path, text: str, *overrides: str) -> ResolvedConfig[Run]:
    path.write_text(text)
    return load(Run, path, overrides)


def faults(path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        answer(path, text, *overrides)
    assert caught.value.exit_code == 2
    return list(caught.value.messages)


def test_all_faults_at_once_in_the_order_of_the_file(path: Path) -> None:
    text = """\
stepss = 3
[learner]
lrr = 1e-4
lr = "1e-4"
epochs = 1.5
mode = "fsat"
schedule = "x"
beta = 2
[learner.loss]
kind = "cliped"
[[mixture]]
kind = "dpo"
beta = -1
[[mixture]]
low = 0.3
[[mixture]]
kind = "clipped"
low = 3
beta = 2
[weights]
a = "b"
[extra]
low = "x"
"""
    assert faults(path, text) == [
        "unknown key stepss in run.toml:1; did you mean steps?",
        "unknown key learner.lrr in run.toml:3; did you mean learner.lr?",
        'learner.lr in run.toml:4 must be a number > 0, got the string "1e-4"; remove the quotes',
        "learner.epochs in run.toml:5 must be a whole number >= 1 and <= 100, got 1.5",
        'learner.mode in run.toml:6 must be "fast" or "slow", got "fsat"; did you mean "fast"?',
        'learner.schedule in run.toml:7 must be a number or a list, got the string "x"',
        "unknown key learner.beta in run.toml:8; did you mean learner.loss.beta?",
        'learner.loss.kind in run.toml:10 must be "clipped" or "dpo", got "cliped"; did you mean "clipped"?',
        "mixture.0.beta in run.toml:13 must be > 0, got -1",
        'mixture.1 in run.toml:14 needs kind = "clipped" or "dpo"',
        "mixture.2.low in run.toml:18 must be > 0 and < 1, got 3",
        'unknown key mixture.2.beta in run.toml:19: kind = "clipped" has no beta, kind = "dpo" has',
        'weights.a in run.toml:21 must be a number, got the string "b"',
        'extra.low in run.toml:23 must be a number > 0 and < 1, got the string "x"',
        "steps in run.toml is missing (How many steps to take)",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learner.lr=nan", "learner.lr on the command line must be a finite number > 0, got nan"),
        ("learner.lr=0", "learner.lr on the command line must be > 0, got 0"),
        ("learner.lr=fast", 'learner.lr on the command line must be a number > 0, got the string "fast"'),
        ("learner.lr=true", "learner.lr on the command line must be a number > 0, got true"),
        ("learner=3", "learner on the command line must be a table, got 3"),
        ("learner.epochs=101", "learner.epochs on the command line must be >= 1 and <= 100, got 101"),
        ("tags=[1]", "tags.0 on the command line must be a string, got 1"),
        ("sampling.top_p=0", "sampling.top_p on the command line must be > 0 and <= 1, got 0"),
        ("lr=1", "unknown key lr on the command line; did you mean learner.lr?"),
        ("lerner.lr=1", "unknown key lerner on the command line; did you mean learner?"),
        (
            "learner.loss.kind=dop",
            'learner.loss.kind on the command line must be "clipped" or "dpo", got "dop"; did you mean "dpo"?',
        ),
        ("extra={zzz=1}", "unknown key extra.zzz on the command line; known here: high, kind, low"),
        ("steps.deep=1", "cannot set steps.deep on the command line: steps in run.toml:1 is 3, not a table"),
        ("tags.4=a", "cannot set tags.4 on the command line: tags in run.toml:2 has 1 entries, counted from 0"),
        ("=1", "override '=1' is not of the form key=value, such as learner.lr=1e-4"),
    ],
)  # fmt: skip
def test_bad_overrides(path: Path, override: str, message: str) -> None:
    assert faults(path, 'steps = 3\ntags = ["a"]\n', override) == [message]


class Data(Config):
    source: str
    rows: int
    seed: int = 0


class Pipeline(Config):
    data: Data
    """Where rows come from."""
    loss: Loss
    learner: Learner


def test_a_table_that_is_missing_says_which_keys_it_needs(path: Path) -> None:
    path.write_text("")
    with pytest.raises(ConfigError) as caught:
        load(Pipeline, path, [])
    assert sorted(caught.value.messages) == [
        "data in run.toml is missing (Where rows come from); it needs data.source, data.rows",
        "learner in run.toml is missing",
        "loss in run.toml is missing",
    ]


def test_contradictions_name_the_table_and_the_rule(path: Path) -> None:
    text = "steps = 3\n[sampling]\ntemperature = 0\ntop_p = 0.9\n"
    assert faults(path, text) == [
        "sampling in run.toml:2: top_p has no meaning with temperature = 0 (greedy); remove one of them"
    ]


def test_the_command_line_wins_and_origins_are_remembered(path: Path) -> None:
    got = answer(
        path, "steps = 3\ntags = ['a', 'b']\n[learner]\nlr = 1\nepochs = 2\n", "learner.lr=0.25", "--tags=['c']"
    )
    assert (got.config.learner.lr, got.config.learner.epochs, got.config.tags) == (0.25, 2, ["c"])
    assert got.settings()["learner.lr"] == ConfigSetting(value=0.25, origin="command line")
    assert got.settings()["learner.epochs"] == ConfigSetting(value=2, origin="run.toml:5")
    assert got.settings()["learner.mode"] == ConfigSetting(value="fast", origin="default")
    assert {key: item.origin for key, item in got.non_defaults().items()} == {
        "steps": "run.toml:1",
        "learner.lr": "command line",
        "learner.epochs": "run.toml:5",
        "tags": "command line",
    }


def test_a_table_given_in_part_keeps_the_rest_of_the_field_default(path: Path) -> None:
    # Run's learner has lr 0.5 and its loss has low 0.1, which are not the defaults of their classes.
    got = answer(path, "steps = 3\n[learner]\nepochs = 2\n", "learner.loss.high=0.28").config.learner
    assert (got.lr, got.epochs) == (0.5, 2)
    assert got.loss == Clipped(low=0.1, high=0.28)


def test_what_a_table_given_in_part_keeps_is_told(path: Path) -> None:
    assert answer(path, "steps = 3\n").recipe_defaults() == {}
    one = answer(path, "steps = 3\n[learner]\nepochs = 2\n").recipe_defaults()
    assert one == {"learner.lr": ConfigSetting(value=0.5, origin="default")}
    both = answer(path, "steps = 3\n[learner]\nlr = 0.5\nloss.high = 0.28\n").recipe_defaults()
    assert both == {"learner.loss.low": ConfigSetting(value=0.1, origin="default")}


def test_another_member_of_a_union_starts_from_its_own_defaults(path: Path) -> None:
    got = answer(path, "steps = 3\nlearner.loss = {kind = 'dpo'}\n").config.learner
    assert (got.lr, got.loss) == (0.5, Preference())


def test_high_learning_rates_need_consent(path: Path) -> None:
    got = answer(path, "steps = 3\n[learner]\nlr = 1e6\n")
    (warning,) = got.warnings
    assert "learner.lr = 1000000.0 (run.toml:3) is above 1" in warning
    with pytest.raises(ConfigError, match="--yes"):
        require_consent(got.warnings, yes=False)
    require_consent(got.warnings, yes=True)
    assert answer(path, "steps = 3\n[learner]\nlr = 1.0\n").warnings == ()


def test_part_of_a_document_has_its_own_class(path: Path) -> None:
    path.write_text("[[stage]]\nsteps = 1\n[[stage]]\nrecipe = 'x'\nsteps = 2\nlearner.lr = 0.1\n")
    document = read_document(path, ["stage.1.learner.epochs=7"])
    got = resolve(Run, document, at=("stage", 1), ignore=frozenset({"recipe"}))
    assert (got.config.steps, got.config.learner.epochs, got.config.learner.lr) == (2, 7, 0.1)
    assert got.origins["learner.lr"] == "run.toml:6"
    assert got.origins["learner.epochs"] == "command line"
    with pytest.raises(ConfigError, match=r"unknown key stage\.1\.recipe in run\.toml:4"):
        resolve(Run, document, at=("stage", 1))
    with pytest.raises(ConfigError, match=r"no table stage\.2"):
        resolve(Run, document, at=("stage", 2))


# --- overrides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("1e-5", 1e-5),
        ("true", True),
        ("fast", "fast"),
        ("'1'", "1"),
        ("", ""),
        ("a b", "a b"),
        ("[1, 2]", [1, 2]),
        ("{a = 1}", {"a": 1}),
        ("2020-01-01", "2020-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("[[[", "[[["),
        ("runs/x=y.toml", "runs/x=y.toml"),
    ],
)
def test_values_are_toml_or_bare_words(text: str, value: object) -> None:
    got = parse_value(text)
    assert got == value
    assert type(got) is type(value)


@given(st.text())
def test_any_text_is_some_value(text: str) -> None:
    assert isinstance(parse_value(text), bool | int | float | str | list | dict)


def test_command_lines_are_divided() -> None:
    own, overrides = split_overrides(
        ["run.toml", "--resume", "a.b=1", "--c.d", "-2", "--e=3", "--name", "x=y", "./odd=name.toml", "--runs=r"],
        switches=frozenset({"--resume"}),
        options=frozenset({"--name", "--runs"}),
    )
    assert own == ["run.toml", "--resume", "--name", "x=y", "./odd=name.toml", "--runs=r"]
    assert overrides == ["a.b=1", "c.d=-2", "e=3"]
    assert parse_overrides(overrides) == [(("a", "b"), 1), (("c", "d"), -2), (("e",), 3)]


def test_an_unknown_option_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--dryrun is not an option of this command \(--dry-run"):
        split_overrides(["run.toml", "--dryrun"], switches=frozenset({"--dry-run"}), options=frozenset())


@pytest.mark.parametrize(
    ("message", "located"),
    [
        ("learner.lr is low", "run.toml:3: learner.lr is low"),
        ("exact_macth: unknown", "run.toml:5: exact_macth: unknown"),
        ("reward function 'exact_macth' is not built in", "run.toml:5: reward function 'exact_macth' is not built in"),
        ("reward function 'chat' is not built in", "reward function 'chat' is not built in"),
        ("chat template: turns end twice", "chat template: turns end twice"),  # the run is called chat
        ("rewards.jsonl: row 1: 'exact_macth'", "rewards.jsonl: row 1: 'exact_macth'"),
    ],
)
def test_a_message_is_placed_by_the_key_or_the_string_that_it_is_about(message: str, located: str) -> None:
    values = {"name": "chat", "learner.lr": 0.1, "rewards.functions.0.use": "exact_macth"}
    origins = {"name": "the file's name", "learner.lr": "run.toml:3", "rewards.functions.0.use": "run.toml:5"}
    settings = {key: ConfigSetting(value=value, origin=origins[key]) for key, value in values.items()}
    assert with_location(message, origins, settings) == located
