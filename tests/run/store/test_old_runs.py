"""Runs that an earlier version wrote: they open, are evaluated, go on and compare, as that version would have done it.

`tests/fixtures/runs_0_1/README.md` says how they were made.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hone import api
from hone.cli.main import main
from hone.core.config import ConfigSetting
from hone.core.strict_json import Json
from hone.run.resume import ALLOWED
from hone.run.store.manifest import present_settings
from hone.run.store.metrics import depends_on_clock

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "runs_0_1"
EXPECTED: dict[str, Any] = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))
EXACT = ("sarsa_lambda", "thompson")
"""Sums and counts in a fixed order: the same bits on every processor. Networks are as near as rounding allows."""
EVALUATED = [name for name in EXPECTED if name != "thompson"]
"""A bandit has no environment to be evaluated in."""
NEAR = {"rel": 1e-4, "abs": 1e-6}
PAIRS = [("sft", "grpo"), ("ppo", "dqn")]


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A writable copy of all runs, and of what they read, as the working folder."""
    folder = tmp_path / "old"
    shutil.copytree(FIXTURE, folder)
    monkeypatch.chdir(folder)
    return folder


def nearly(values: dict[str, float]) -> Any:
    """Equal to rounding."""
    return pytest.approx(values, **NEAR)


def untimed(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not depends_on_clock(name)}


def further(run: Path) -> list[dict[str, float]]:
    """The rows of metrics that the run did not have when it was saved."""
    begun = (FIXTURE / "runs" / run.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert rows[: len(begun)] == begun
    return [untimed(json.loads(row)) for row in rows[len(begun) :]]


def policy_digests(run: Path, step: int) -> dict[str, str]:
    """sha256 of each tensor of the policy; of a bandit's, of the document that hone 0.1 kept its numbers in."""
    found: dict[str, str] = {}
    if run.name == "thompson":
        arrays = load_file(run / "checkpoints" / f"step_{step:08d}" / "policy" / "policy.safetensors")
        numbers = {name.removeprefix("model."): values.tolist() for name, values in arrays.items()}
        values = {"format": 1, "kind": "beta_bernoulli", "numbers": numbers}
        return {"policy.json": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}
    for path in sorted((run / "checkpoints" / f"step_{step:08d}" / "policy").iterdir()):
        if path.suffix == ".safetensors":
            for name, values in load_file(path).items():
                data = f"{values.dtype}{values.shape}".encode() + values.tobytes()
                found[f"{path.name}:{name}"] = hashlib.sha256(data).hexdigest()
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_opens(name: str, copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    shown = capsys.readouterr().out
    assert "hone 0.1.0" in shown
    assert "checkpoints" in shown


@pytest.mark.parametrize("name", EVALUATED)
def test_an_old_run_is_evaluated(name: str, copies: Path) -> None:
    scores = api.evaluate(name, problems=3)
    assert untimed(dict(scores)) == nearly(EXPECTED[name]["scores"])


def test_the_command_evaluates_an_old_run(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "ppo", "--problems", "3"]) == 0
    assert "eval/score     122.3" in capsys.readouterr().out


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_goes_on(name: str, copies: Path) -> None:
    expected, run = EXPECTED[name], copies / "runs" / name
    assert main(["train", f"{name}.toml", "--resume", f"steps={expected['steps']}"]) == 0
    for row, before in zip(further(run), expected["metrics"], strict=True):  # there may be more metrics than there were
        assert {name: row.get(name) for name in before} == pytest.approx(before, **NEAR)
    digests = policy_digests(run, expected["steps"])
    assert digests.keys() == expected["policy"].keys()
    assert name not in EXACT or digests == expected["policy"]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_old_runs_compare(one: str, other: str, copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", one, other]) == 0
    shown = capsys.readouterr().out
    assert f"{one} " in shown
    assert f"{other} " in shown


EARLIER: dict[str, object] = {
    "rewards.workers": 4,
    "rewards.missing_allowed": 0.2,
    "evaluation.rewards.missing_allowed": 0.3,
    "evaluation.rewards.workers": 1,
    "rewards.missing_window": 50,
    "task.world.deadline_s": 30.0,
    "task.world.options": {},
    "task.world.options.size": 3,
    "task.world.isolate": "thread",
    "evaluation.task.isolate": "process",
    "task.world.message_tokens": 64,
    "task.tools": None,
    "task.agents.tool_format": "bracket",
    "task.agents.python": "python3.13",
    "evaluation.task.agents": None,
    "cluster.rollout.store_mib": 100,
    "learn.said": 0.5,
    "task.on_duplicate_id": "drop",
    "evaluation.task.config.min_terms": 2,
    "evaluation.greedy": False,
    "evaluation.temperature": 0.7,
    "model.activation_checkpointing": True,
    "model.activation_offload": False,
    "rollout.max_staleness.record_interleaving": False,
    "rollout.max_staleness.replay_interleaving": "runs/first",
    "rewards.functions.0.options.deadline_s": 5,
    "learner.lr": 0.1,
    "alarms.off": ["length"],
    "alarms.limits.kl": 5.0,
    "algorithm.aggregation": "constant_length",
    "algorithm.aggregation_length": 100,
    "reference.model.activations": "keep",
    "model.lora.rank": 16,
    "model.lora.alpha": 8.0,
    "model.lora.rslora": True,
    "model.experts.balance": "bias",
    "model.experts.bias_rate": 0.01,
}
PRESENT: dict[str, object] = {
    "user_code.workers": 4,
    "user_code.missing_allowed": 0.2,
    "user_code.deadline_s": 30.0,
    "task.options.size": 3,
    "task.message_tokens": 64,
    "task.tools.format": "bracket",
    "user_code.agents.python": "python3.13",
    "learn.policy": 0.5,
    "evaluation.task.options.min_terms": 2,
    "evaluation.temperature": 0.7,
    "model.activations": "recompute",
    "rollout.max_staleness.interleaving": "runs/first",
    "rewards.functions.0.options.deadline_s": 5,
    "learner.lr": 0.1,
    "alarms.kl": 5.0,
    "algorithm.aggregation.constant_length": 100,
    "reference.model.activations": "keep",
    "model.lora.rank": 16,
    "model.lora.alpha": 32.0,
    "model.experts.balance.bias": 0.01,
}


def test_earlier_keys_are_read_as_the_present_ones() -> None:
    saved = {key: ConfigSetting(value=value, origin="run.toml:1") for key, value in EARLIER.items()}  # type: ignore[arg-type]
    assert {key: one.value for key, one in present_settings(saved).items()} == PRESENT
    assert present_settings(present_settings(saved)) == present_settings(saved)


@pytest.mark.parametrize(
    ("saved", "present"),
    [
        ({"balance": "none", "strength": 0.001}, {"balance": None}),
        ({"balance": "loss", "strength": 0.02}, {"balance.loss": 0.02}),
        ({"balance": "loss"}, {"balance.loss": 0.001}),
        ({"balance.bias": 0.5}, {"balance.bias": 0.5}),
    ],
)
def test_a_balance_of_experts_has_its_number(saved: dict[str, Json], present: dict[str, Json]) -> None:
    settings = {f"model.experts.{key}": ConfigSetting(value=value, origin="default") for key, value in saved.items()}
    found = {key: one.value for key, one in present_settings(settings).items()}
    assert found == {f"model.experts.{key}": value for key, value in present.items()}


def test_an_alpha_without_rank_stabilisation_stays() -> None:
    keys = {"model.lora.rank": 16, "model.lora.alpha": 8.0, "model.lora.rslora": False}
    saved = {key: ConfigSetting(value=value, origin="default") for key, value in keys.items()}
    assert present_settings(saved)["model.lora.alpha"].value == 8.0


def test_of_two_ways_to_spare_memory_the_one_that_does_both_counts() -> None:
    """`recompute` rounds again too, and `round_again` recomputes nothing."""
    saved = {
        "model.round_weights_again": ConfigSetting(value=True, origin="run.toml:1"),
        "model.activations": ConfigSetting(value="recompute", origin="run.toml:2"),
    }
    assert present_settings(saved)["model.activations"].value == "recompute"
    saved["model.activations"] = ConfigSetting(value="keep", origin="default")
    assert present_settings(saved)["model.activations"].value == "round_again"
    assert present_settings({"algorithm.aggregation_length": ConfigSetting(value=None, origin="default")}) == {}


def test_limits_of_alarms_may_change_whether_there_were_some_or_not() -> None:
    assert ALLOWED.accepts_key("alarms")
    assert ALLOWED.accepts_key("alarms.kl")


def test_of_two_earlier_keys_the_one_that_was_set_counts() -> None:
    def read(**origins: str) -> object:
        saved = {
            "rewards.deadline_s": ConfigSetting(value=10.0, origin=origins["reward"]),
            "task.world.deadline_s": ConfigSetting(value=30.0, origin=origins["world"]),
            "evaluation.greedy": ConfigSetting(value=True, origin="default"),
            "evaluation.temperature": ConfigSetting(value=1.0, origin="default"),
        }
        present = present_settings(saved)
        assert present["evaluation.temperature"].value == 0.0
        return present["user_code.deadline_s"].value

    assert read(reward="default", world="run.toml:3") == 30.0
    assert read(reward="run.toml:2", world="run.toml:3") == 10.0
    assert read(reward="default", world="default") == 10.0
