"""Presets of other libraries, and options of the ratio: what a config resolves to, and what is refused."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from recipe_runs import settings, text_recipes

from hone.config.resolve import load
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.recipes.text.grpo import GrpoAlgorithm
from hone.text.loss_adapters import AGGREGATIONS
from hone.text.presets import PRESETS
from hone.text.ratio import RatioConfig, RejectionConfig
from hone.text.rl import TextRunConfig

EVERY = [(library, recipe) for library, recipes in PRESETS.items() for recipe in recipes]


def config_of(name: str, **changes: Any) -> TextRunConfig:
    return load_recipe(name).config.model_validate(settings(name, steps=3, full=False, **changes))


def with_preset(name: str, library: str, **changes: Any) -> TextRunConfig:
    tables = settings(name, steps=3, full=False, **changes) | {"preset": library}
    return load_recipe(name).config.model_validate(tables)


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    return [
        leaf
        for key, value in table.items()
        for leaf in (leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)])
    ]


def at(config: Config, path: tuple[str, ...]) -> Any:
    found: Any = config.model_dump()
    for part in path:
        found = found[part]
    return found


# ---------------------------------------------------------------------------------------------- presets


@pytest.mark.parametrize(("library", "recipe"), EVERY)
def test_a_preset_sets_its_values_and_nothing_else(library: str, recipe: str) -> None:
    plain, preset = config_of(recipe), with_preset(recipe, library)
    wanted = dict(leaves(copy.deepcopy(PRESETS[library][recipe])))
    assert {path: at(preset, path) for path in wanted} == wanted
    changed = {
        path for path, value in leaves(preset.model_dump()) if value != dict(leaves(plain.model_dump())).get(path)
    }
    assert changed <= {*wanted, ("preset",)}
    assert all(path[0] in ("algorithm", "learner") for path in wanted)


@pytest.mark.parametrize(("library", "recipe"), EVERY)
def test_keys_of_the_user_win_one_by_one(library: str, recipe: str) -> None:
    """Each number of the preset in turn is given another value: that one holds, all others are still the preset's."""
    values = leaves(copy.deepcopy(PRESETS[library][recipe]))
    for path, value in values:
        if not isinstance(value, float) or path[-1] in ("ratio_floor", "clip_low"):
            continue
        given: dict[str, Any] = {"learner": {"lr": 0.02}}
        place = given
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value * 1.01 + 1e-7
        if "trust" in path:
            place["kind"] = "tv"
        config = with_preset(recipe, library, **given)
        assert at(config, path) == place[path[-1]]
        assert {other: at(config, other) for other, _ in values if other != path} == {
            other: wanted for other, wanted in values if other != path
        }


def test_another_alternative_of_a_table_drops_the_preset_s() -> None:
    config = with_preset("dppo", "verl", algorithm={"trust": {"kind": "kl"}})
    assert at(config, ("algorithm", "trust")) == {
        "kind": "kl", "max_increase_nats": 0.05, "max_decrease_nats": 0.05, "top": 0
    }  # fmt: skip
    assert at(config, ("algorithm", "ratio_cap")) == 3.0, "the rest of the preset holds"


def test_a_library_without_the_recipe_is_refused_with_those_that_have_it() -> None:
    with pytest.raises(
        ValidationError, match=r'preset = "verl": recipe vespo has no preset of verl 0\.9\.1; it has trl'
    ):
        with_preset("vespo", "verl")
    with pytest.raises(ValidationError, match=r"it has none"):
        with_preset("m2po", "trl")
    with pytest.raises(ValidationError, match=r"preset\n.*'trl', 'verl' or 'areal'"):
        with_preset("grpo", "openrlhf")


def test_a_table_as_an_object_is_refused() -> None:
    """Nobody could tell its defaults from the user's keys."""
    tables = settings("grpo", steps=3, full=False) | {"preset": "verl", "algorithm": GrpoAlgorithm(kl=0.1)}
    with pytest.raises(ValidationError, match="with algorithm as an object"):
        load_recipe("grpo").config.model_validate(tables)


FILE = """recipe = "grpo"
name = "a"
steps = 2
preset = "verl"
[model.new]
hidden_size = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
[task]
source = "reasoning_gym:chain_sum"
size = 20
[[rewards.functions]]
use = "exact_match"
[rollout]
prompts_per_step = 4
samples_per_prompt = 4
max_tokens = 3
[learner]
lr = 1e-3
[algorithm]
negative_cap = 4.0
"""


def test_a_plan_says_what_the_preset_set(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(FILE, encoding="utf-8")
    config = load_recipe("grpo").config
    found = load(config, path, ("algorithm.advantage.epsilon=0.25",))
    assert found.config.preset == "verl"  # type: ignore[attr-defined]
    origins = {key: setting.origin for key, setting in found.non_defaults().items()}
    assert origins["algorithm.negative_cap"] == "a.toml:24"
    assert origins["algorithm.advantage.epsilon"] == "command line"
    assert origins["algorithm.advantage.ddof"] == 'preset "verl"'
    assert origins["learner.ratio.denominator"] == 'preset "verl"'
    assert "learner.epochs" not in origins
    with pytest.raises(ConfigError, match=r'preset on the command line must be .*got "verll"; did you mean "verl"\?'):
        load(config, path, ("preset=verll",))
    with pytest.raises(ConfigError, match=r'a\.toml:4: preset = "verl": recipe vespo has no preset'):
        load(load_recipe("vespo").config, path, ("recipe=vespo", "algorithm={}"))


# ------------------------------------------------------------------------------------------ every recipe


@pytest.mark.parametrize("name", [name for name in text_recipes() if name != "online_dpo"])  # its terms are pairs
def test_every_aggregation_is_a_key_of_every_recipe(name: str) -> None:
    for aggregation in AGGREGATIONS:
        found = config_of(name, algorithm={"aggregation": aggregation})
        assert at(found, ("algorithm", "aggregation")) == aggregation
    with pytest.raises(ValidationError, match="aggregation"):
        config_of(name, algorithm={"aggregation": "mean"})


def test_clips_have_a_dual_clip_beyond_their_range() -> None:
    names = [
        name for name in text_recipes()
        if "clip_high" in load_recipe(name).config.model_fields["algorithm"].annotation.model_fields  # type: ignore[union-attr]
    ]  # fmt: skip
    assert len(names) == 23
    for name in names:
        assert at(config_of(name, algorithm={"negative_cap": 3.0}), ("algorithm", "negative_cap")) == 3.0
        assert at(config_of(name), ("algorithm", "negative_cap")) is None
        with pytest.raises(ValidationError, match=r"negative_cap = 1\.5 is below 1 \+ clip_high = 1\.6"):
            config_of(name, algorithm={"negative_cap": 1.5, "clip_high": 0.6})


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("max_rl", {"algorithm": {"estimator": {"kind": "subset", "terms": 9}}}, "terms = 9 is above rollout"),
        ("max_rl", {"algorithm": {"estimator": {"order": "n", "power": 0.5}}}, 'order = "n" holds for the plain form'),
        ("decoupled_ppo", {"algorithm": {"weight_floor": 2.0, "weight_cap": 1.0}}, "weight_floor = 2 is above"),
        ("grpo", {"algorithm": {"advantage": {"ddof": 2}}}, "algorithm.advantage.ddof"),
        ("grpo", {"algorithm": {"advantage": {"epsilon": -1.0}}}, "algorithm.advantage.epsilon"),
        ("gmpo", {"algorithm": {"entropy_share": 0.0}}, "algorithm.entropy_share"),
        (
            "grpo",
            {"learner": {"ratio": {"rejections": [{"max_nats": 0.1}]}}, "rollout": {"max_staleness": 1}},
            "learner.ratio.rejections compare the policy before the update",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config_of(name, **changes)


# ----------------------------------------------------------------------------------------------- the ratio

TRAINER, ENGINE = (torch.tensor(row, dtype=torch.float64).log() for row in ([0.5, 0.1, 0.9], [0.25, 0.4, 0.9]))
OWNER = torch.tensor([0, 0, 1])


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ({"correction": "kpop", "weight_cap": 0.2}, [2.0, 0.0, 1.0]),
        ({"correction": "truncated_is", "weight_floor": 0.5, "weight_cap": 1.5}, [1.5, 0.5, 1.0]),
        ({"rejections": [{"statistic": "k2", "max_nats": 0.3}]}, [1.0, 0.0, 1.0]),
        ({"rejections": [{"statistic": "k2", "over": "sequence_max", "max_nats": 0.3}]}, [0.0, 0.0, 1.0]),
        ({"correction": "truncated_is", "rejections": [{"statistic": "k1", "max_nats": 0.0}]}, [2.0, 0.0, 1.0]),
        (
            {"rejections": [{"statistic": "k1", "max_nats": 0.0}, {"statistic": "k1", "min_nats": -0.1}]},
            [0.0, 0.0, 1.0],
        ),
    ],
)
def test_a_correction_is_the_product_of_its_parts(ratio: dict[str, Any], expected: list[float]) -> None:
    """Ratios 2, 1/4 and 1; k2 of them 0.24, 0.96 and 0; k1 -0.69, 1.39 and 0; binary KL 0.19 and 0.4."""
    factor = RatioConfig.model_validate(ratio).resolve_correction()
    assert factor is not None
    np.testing.assert_allclose(factor(TRAINER, ENGINE, OWNER).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({}, "needs max_nats, or min_nats"),
        ({"statistic": "k1", "min_nats": 1.0, "max_nats": 0.0}, "all is rejected"),
        ({"statistic": "k3", "min_nats": 0.1}, "k3 is never negative"),
        ({"statistic": "k2", "max_nats": -0.1}, "all is rejected"),
        ({"statistic": "k1", "over": "sequence_max", "max_nats": 0.1}, "only one of its two signs"),
    ],
)
def test_bounds_that_reject_all_or_nothing_are_refused(bounds: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RejectionConfig.model_validate(bounds)


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (
            {"correction": "truncated_is", "weight_floor": 3.0},
            r"weight_floor = 3 is above weight_cap = 2 \(a default\)",
        ),
        ({"correction": "icepop", "weight_floor": 3.0, "weight_cap": 1.0}, "weight_floor = 3 is above weight_cap = 1;"),
        ({"correction": "kpop", "weight_floor": 0.5}, "has no lower bound"),
    ],
)
def test_a_floor_above_the_cap_is_refused(ratio: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RatioConfig.model_validate(ratio).resolve_correction()
