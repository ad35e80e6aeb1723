"""Faults of `run.tensor` before anything is opened, and its line in a plan."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from hone.core.errors import ConfigError
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.recipes.ranked_run import rank_placement, require_ranks_fit
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig, RunSettings

SIZES = {"hidden_size": 16, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 24}


def config_of(run: Mapping[str, object], model: Mapping[str, object] | None = None) -> RunConfig:
    table = {
        "recipe": "sft", "name": "tiny", "steps": 1, "batch": 8, "task": {"source": "sums.jsonl"}, "run": run,
        "learner": {"lr": 0.01}, "model": model or {"new": SIZES},
    }  # fmt: skip
    return load_recipe("sft").config.model_validate(table)


def refusal(config: RunConfig) -> str:
    with pytest.raises(ConfigError) as fault:
        require_ranks_fit(config)
    return str(fault.value)


def test_layers_that_can_be_cut() -> None:
    config = config_of({"ranks": 4, "tensor": 2})
    require_ranks_fit(config)
    placement = rank_placement(config)
    assert placement["share of each batch"].startswith("0.5;")
    assert placement["share of each layer"] == "0.5; 2 neighbours compute the same rows"
    assert "share of each layer" not in rank_placement(config_of({"ranks": 2}))


def test_every_reason_why_layers_cannot_be_cut(tmp_path: Path) -> None:
    pair = {"ranks": 2, "tensor": 2}
    shape = ModelConfig(vocab_size=15, hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=25)
    TokenPolicy(new_model(shape, seed=0), character_tokenizer("0123456789+=")).save(tmp_path)
    found = refusal(config_of(pair, {"path": str(tmp_path), "exactness": "bitwise"}))
    assert found.count("run.tensor = 2: ") == 3
    for words in (
        "1 key and value heads (num_key_value_heads), fewer than 2 ranks",
        "25 columns (intermediate_size)",
        "not equal to the bit",
    ):
        assert words in found
    mixture = {**SIZES, "family": "qwen3_moe", "experts": {"count": 4, "per_token": 2}}
    assert "expert parallelism is not built in" in refusal(config_of(pair, {"new": mixture}))


def test_numbers_that_do_not_go_together() -> None:
    with pytest.raises(ValidationError, match="ranks = 3 must be a multiple of tensor = 2"):
        RunSettings(ranks=3, tensor=2)
    with pytest.raises(ValidationError, match="virtual_ranks = 4 with tensor = 2"):
        RunSettings(ranks=2, tensor=2, virtual_ranks=4)
    assert "fewer than 16 shares" in refusal(config_of({"ranks": 32, "tensor": 2}))
    control = load_recipe("ppo").config.model_validate(
        {"recipe": "ppo", "name": "tiny", "steps": 1, "env": {"id": "CartPole-v1"}, "run": {"ranks": 2, "tensor": 2}}
    )
    assert "ppo trains no language model whose layers could be cut" in refusal(control)
