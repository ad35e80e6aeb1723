"""What benchmarks are made of, where a mistake would go unseen until a long run: configs, and rows that are compared.

The scripts themselves are run by hand; see the head of each.
"""

import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from warm_commands import start_warm

from hone.core.generation import Request, SamplingParams, generate
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import GenerationModel, RunnerChoice
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.lab.free_rows import FreeRows
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.recipes.registry import load_recipe

QUICKLY = ["evaluation.episodes=1", "run.certify=false"]
Script = Callable[[str], ModuleType]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHAPE = ModelConfig(
    family="llama", vocab_size=40, max_positions=96, hidden_size=32, intermediate_size=64, layers=2, heads=4,
    kv_heads=2, head_dim=8,
)  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Imports a benchmark by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def answers(model: GenerationModel) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of ragged requests, more of them than slots."""
    chosen = RunnerChoice(runner=TorchRunner(model, vocab_used=40), own_weights=False)
    limits = default_limits(slots=3, page_tokens=chosen.runner.page_tokens, sequence_tokens=64, vocab=40)
    engine = EmbeddedEngine(chosen, TokenizerRules(decode=None, eos=(), vocab=40), limits=limits, seed=0)
    engine.publish(1)
    asked = [
        Request(
            id=str(number),
            prompt=np.arange(1, 4 + 3 * number, dtype=np.int32),
            samples=2,
            sampling=SamplingParams(max_tokens=5 + number),
        )
        for number in range(7)
    ]
    done = sorted(generate(engine, asked), key=lambda one: (one.request_id, one.sample_index))
    return [(one.tokens.tolist(), one.logp.tolist()) for one in done]


def test_free_rows_write_what_invariant_rows_write() -> None:
    model = new_model(SHAPE, seed=0)
    invariant, free = answers(model), answers(FreeRows(model))
    assert [tokens for tokens, _ in free] == [tokens for tokens, _ in invariant]
    for (_, one), (_, other) in zip(free, invariant, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert free != invariant, "the last bits differ: it is another order of additions that is measured"


@pytest.mark.parametrize(
    ("example", "changes"),
    [
        ("her_dqn_bit_flip", {"hindsight": {"share": 0.0}}),
        ("ppo_rnd_maze", {"algorithm": {"novelty_weight": 0.0}}),
        ("pets_swing_up", {"recipe": "sac", "steps": 3050, "algorithm": None}),
        ("rl2_bandits", {"rollout_steps": 10, "env": {"kwargs": {"arms": 5, "pulls": 10}}}),
        ("box2d/ppo_lunar_lander", {}),
        ("box2d/rainbow_lunar_lander", {}),
    ],
)
def test_a_run_of_control_sparse_is_an_example_with_changes(
    script: Script, example: str, changes: dict[str, Any]
) -> None:
    tables = script("control_sparse").settings(example, 11, changes)
    config = load_recipe(tables["recipe"]).config.model_validate(tables)
    assert config.seed == 11
    for key, value in changes.items():
        assert (key not in tables) if value is None else (value == tables[key] or value.items() <= tables[key].items())


@pytest.mark.skipif(find_spec("Box2D") is None, reason="needs Box2D, of the extra envs")
def test_the_lunar_landers_run(tmp_path: Path) -> None:
    """In a process of its own: Box2D dies at its import where warnings are errors, as they are here."""
    less = {
        "ppo": ["steps=1", "rollout_steps=16", "learner.minibatches=4"],
        "rainbow": ["steps=1", "replay.warmup=200"],
    }
    for recipe, changes in less.items():
        example = BENCHMARKS.parent / "examples" / "control" / "box2d" / f"{recipe}_lunar_lander.toml"
        words = ["train", str(example), *changes, *QUICKLY, "--name", recipe]
        environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS.parent / "src")}
        done = start_warm(words, folder=tmp_path, environment=environment)
        said = done.communicate(120)[0]
        assert done.returncode == 0, said[-2000:]
        assert f"finished {recipe}" in said
