"""Passes over the rows in place of steps: how many steps they make, and that a run is the run of so many steps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.api import train
from hone.core.errors import ConfigError
from hone.recipes.registry import load_recipe
from hone.recipes.text.sft import SftConfig
from hone.text.open_text import DataRunConfig

MODEL = {
    "new": {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24},
    "compute": "float32",
}
ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1), "answer": str(n + 1)} for n in range(5)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "0"} for n in range(5)]
LABELS = [{"prompt": f"{n}+1=", "completion": str(n), "label": bool(n % 2)} for n in range(5)]
REWARDS = {"functions": [{"use": "exact_match"}]}
ROLLOUT = {"prompts_per_step": 2, "samples_per_prompt": 2, "max_tokens": 2}


def config(recipe: str = "sft", rows: object = ROWS, **changes: Any) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "model": MODEL,
        "task": {"source": rows},
        "learner": {"lr": 1e-3},
        "run": {"threads": 1, "certify": False},
        **({} if "rollout" in changes else {"batch": 2}),
        **changes,
    }


def sft(**changes: Any) -> SftConfig:
    return SftConfig.model_validate({**config(), "name": "a", "task": {"source": "rows.jsonl"}, **changes})


@pytest.mark.parametrize(
    ("epochs", "rows", "batch", "steps", "beyond"),
    [
        (1, 4, 2, 2, 0), (1, 5, 2, 3, 1), (2, 5, 2, 5, 0), (3, 5, 2, 8, 1), (0.5, 4, 2, 1, 0), (0.1, 5, 2, 1, 1.5),
        (1, 1, 64, 1, 63), (0.3, 10, 3, 1, 0), (1.1, 10, 11, 1, 0),  # 0.3 x 10 is 3, and no hair above it
    ],
)  # fmt: skip
def test_steps_of_passes_by_hand(epochs: float, rows: int, batch: int, steps: int, beyond: float) -> None:
    counted, note = sft(epochs=epochs, batch=batch).with_steps(rows, "rows.jsonl")
    assert (counted.steps, counted.epochs) == (steps, None)
    assert f"are {steps:,} steps" in note
    assert (f"takes {beyond:g} of the next pass" in note) == bool(beyond)


@given(st.integers(1, 40), st.integers(1, 5000), st.integers(1, 700))
def test_no_row_is_left_out_and_no_step_is_too_many(epochs: int, rows: int, batch: int) -> None:
    steps = sft(epochs=epochs, batch=batch).with_steps(rows, "rows.jsonl")[0].steps
    assert (steps - 1) * batch < epochs * rows <= steps * batch


@pytest.mark.parametrize("length", [{}, {"steps": 0}, {"steps": 3, "epochs": 1}, {"epochs": 0}])
def test_either_steps_or_epochs(length: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"give either steps .* or epochs|greater than"):
        sft(**length)


@pytest.mark.parametrize(
    ("given", "units", "word"),
    [
        (config("sft"), 5, "rows"),
        (
            config("sft", [{"messages": [{"role": r, "content": "1"} for r in ("user", "assistant") * 2]}] * 3),
            3,
            "rows",
        ),
        (config("dpo", PAIRS), 5, "pairs"),
        (config("kto", LABELS), 5, "answers"),
        (config("reward_pairs", PAIRS), 5, "pairs"),
        (config("reward_outcome", LABELS), 5, "answers"),
        (config("grpo", rewards=REWARDS, rollout=ROLLOUT), 5, "prompts"),
    ],
)
def test_a_pass_takes_every_unit_of_a_recipe_once(tmp_path: Path, given: dict[str, Any], units: int, word: str) -> None:
    source = given["task"]["source"]
    if isinstance(source, list):
        source = tmp_path / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in given["task"]["source"]))
    recipe = load_recipe(given["recipe"])
    values = {**given, "task": {"source": str(source)}, "name": "a", "epochs": 1}
    opened = recipe.config.model_validate(values).open()
    try:
        assert isinstance(opened.config, DataRunConfig), word
        assert opened.config.steps == math.ceil(units / 2)
        assert f"1 x {units:,} rows" in opened.notes[-1]
    finally:
        opened.close()


def weights(folder: Path) -> bytes:
    return next((folder / "policy").glob("*.safetensors")).read_bytes()


def test_a_run_of_epochs_is_the_run_of_its_steps_and_goes_on_exactly(tmp_path: Path) -> None:
    once = train(config(epochs=1, name="two"), runs=tmp_path)
    assert once.step == 3
    twice = train(config(epochs=2, name="two"), runs=tmp_path, resume=True)
    plain = train(config(steps=5), runs=tmp_path)
    assert twice.step == plain.step == 5
    assert weights(twice.policy.parent) == weights(plain.policy.parent)
    with pytest.raises(ConfigError, match="two has finished step 5, and steps are not taken back"):
        train(config(epochs=1, name="two"), runs=tmp_path, resume=True)


def test_a_stage_on_an_earlier_ones_model_counts_its_steps_when_its_turn_comes(tmp_path: Path) -> None:
    first = {**config(epochs=1), "name": "first"}
    second = {
        **config("dpo", PAIRS, epochs=2),
        "name": "second",
        "model": {"path": "stage:first", "compute": "float32"},
    }
    both = {"name": "both", "stage": [first, second]}
    train(both, runs=tmp_path)
    steps = [sorted((tmp_path / "both" / name / "checkpoints").glob("step_*"))[-1].name for name in ("first", "second")]
    assert steps == ["step_00000003", "step_00000005"]
    train(both, runs=tmp_path, resume=True)  # both are done: passed over
    first["epochs"] = 3
    with pytest.raises(ConfigError, match="stage first is to go on to step 8, but second began after it stopped"):
        train(both, runs=tmp_path, resume=True)


def test_epochs_are_refused_where_steps_have_to_fit_and_do_not(tmp_path: Path) -> None:
    rounds = {"collect_steps": 2, "learn_steps": 2}
    with pytest.raises(ConfigError, match=r"are 3 steps.*ends within a round"):
        train(config("expert_iteration", epochs=1, rewards=REWARDS, rollout=ROLLOUT, algorithm=rounds), runs=tmp_path)
