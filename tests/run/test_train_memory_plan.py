"""Memory plans: the numbers of real models and optimizers, and runs that cannot fit refused before they are made."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import hone, lay_out

from hone.cli import plan_memory
from hone.cli.memory import job_memory
from hone.core.errors import ResourceError
from hone.planner.devices import cpu_device
from hone.planner.run_settings import PlannedRecipe, PlannedSettings, TextLengths, setting_leaves
from hone.process.machine_memory import memory_limit_bytes
from hone.recipes.registry import load_recipe
from hone.run.memory_plan import MemoryPlan, device_memory_bytes, layers_plan, readable_bytes, require_fit
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy, open_tokenizer
from hone.text.memory import text_memory


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_the_plan_of_a_language_model_is_the_bytes_of_its_tensors(family: str, weights: str) -> None:
    new = NewModelConfig.model_validate({"family": family, "hidden_size": 24, "layers": 3, "intermediate_size": 40})
    source = ModelSource.model_validate({"new": new, "weights": weights})
    policy = open_policy(source, seed=0, device="cpu", temperature=1.0)
    tensors = list(policy.decoder.parameters())
    held = sum(one.numel() * one.element_size() for one in tensors)
    settings = PlannedSettings(setting_leaves({"model": source.model_dump()}))
    recipe, lengths = PlannedRecipe(networks={"critic": 4, "nothing": 0}), TextLengths(prompt=0, whole=8)
    plan = text_memory(settings, source, recipe, open_tokenizer(source)[0], lengths)
    assert plan.parameters == sum(one.numel() for one in tensors)
    assert plan.parts == {
        "weights": held, "gradients": held, "optimizer state": 2 * held, "critic": 4 * held
    }  # fmt: skip


def test_the_plan_of_a_network_is_the_bytes_of_its_optimizer() -> None:
    spec = load_recipe("ppo")
    config = spec.config.model_validate(
        {"recipe": "ppo", "name": "x", "steps": 1, "env": {"id": "CartPole-v1", "num_envs": 2}}
    )
    job = spec.build(config)
    plan = job_memory(job, "cpu")
    job.close()
    assert plan is not None
    adams = [phase.optimizer for phase in job.recipe.learner.phases]
    moments = [tensor for adam in adams for tensor in (*adam.means, *adam.squares)]
    assert plan.parts["optimizer state"] == sum(one.numel() * one.element_size() for one in moments)
    assert plan.parameters == sum(one.numel() for one in job.recipe.learner.policy.parameters())


@given(st.lists(st.lists(st.integers(1, 50), max_size=4), max_size=3))
def test_hidden_layers_are_a_lower_bound(networks: list[list[int]]) -> None:
    settings = {f"network{place}.hidden": widths for place, widths in enumerate(networks)}
    layers = [torch.nn.Linear(a, b, bias=False) for widths in networks for a, b in pairwise(widths)]
    assert layers_plan(settings).total_bytes == 16 * sum(layer.weight.numel() for layer in layers)


def test_what_exceeds_the_device_is_refused_with_its_keys() -> None:
    limit = device_memory_bytes("cpu")
    assert limit is not None
    require_fit(MemoryPlan(parameters=1, parts={"weights": limit}), {})
    with pytest.raises(ResourceError, match=r"^model\.path = big: .*weights .* take a smaller model than model\.path"):
        require_fit(MemoryPlan(parameters=1, parts={"weights": limit + 1}), {"model.path": "big"})
    assert readable_bytes(1536) == "1.5 KiB"


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/a/b\n", {"sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 4096),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "8192\n"}, 8192),
        ("5:cpu,memory:/x\n0::/\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1024\n"}, 1024),
        ("5:cpu:/x\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1\n"}, 2048 * 1024),
        ("0::/gone\n", {}, 2048 * 1024),
    ],
)
def test_the_least_limit_of_machine_and_groups_holds(
    tmp_path: Path, group: str, files: dict[str, str], limit: int
) -> None:
    named = {"proc/meminfo": "MemTotal:        2048 kB\nHugePages_Total: 0\n", "proc/self/cgroup": group, **files}
    for name, text in named.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit_bytes(tmp_path) == limit


def test_plans_print_their_memory_and_refuse_what_cannot_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text('recipe = "ppo"\nsteps = 2\nenv.id = "CartPole-v1"\n')
    for file, parts in (("grpo.toml", "copy of the engine .* reference policy"), ("c.toml", "optimizer state")):
        assert hone("plan", file) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"parameters [\d,]+ memory .*: weights .* gradients .* {parts}", said), said
    for command in ("plan", "train"):
        huge = ["model.new.hidden_size=65536", "model.new.intermediate_size=262144", "model.new.layers=80"]
        assert hone(command, "grpo.toml", *huge) == 5
        assert "model.new.hidden_size = 65536: the run cannot fit" in capsys.readouterr().err
        assert hone(command, "c.toml", "network.hidden=[500000,500000]") == 5
        assert "network.hidden = [500000, 500000]: the run cannot fit" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_planned_peak_above_the_machine_is_code_5_and_yes_trains(
    missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("plan", "grpo.toml", "--json") == 0
    (plan,) = json.loads(capsys.readouterr().out)
    room = plan["memory"]["peak_bytes"] - missing
    monkeypatch.setattr(plan_memory, "device_memory_bytes", lambda _: room)
    monkeypatch.setattr(plan_memory, "known_calibration", lambda: None)
    monkeypatch.setattr(plan_memory, "cpu_device", lambda size: replace(cpu_device(size), usable=1.0, context_bytes=0))
    code = 5 * missing
    assert hone("plan", "grpo.toml") == hone("plan", "grpo.toml", "--json") == code
    assert hone("train", "grpo.toml", "--dry-run", "--yes") == code
    capsys.readouterr()
    assert hone("train", "grpo.toml") == code
    assert ("the run does not fit cpu, 1 B are missing" in capsys.readouterr().err) == bool(missing)
    assert hone("train", "grpo.toml", "name=again", "--yes") == 0


def test_activations_leave_a_device_with_memory_of_its_own_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("plan", "grpo.toml", "model.activations=offload") == 2
    assert "model.activations = \"offload\" needs a GPU; with run.device = 'cpu'" in capsys.readouterr().err
