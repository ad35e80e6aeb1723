"""ONNX files of policies: equal actions by onnxruntime, for batches of any size, and a refusal of what differs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from control_policies import control_policies, legal, observations
from gymnasium import spaces

from hone.cli.main import main
from hone.control import export_onnx
from hone.control.environments.layout import ActionRowSpace, RowSpace, action_leaves, layout_of
from hone.control.export_onnx import gru_step, random_observations
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import save_policy
from hone.control.networks.encoding import RecurrentMemoryConfig
from hone.control.networks.factored import BitsHead
from hone.control.networks.memory import MemoryActorCritic
from hone.control.networks.mlp import BinaryActions, FactoredActions, MlpConfig, PolicyNetworkConfig
from hone.control.on_policy import policy_spaces
from hone.control.predict import open_saved_policy
from hone.control.spaces import network_spaces
from hone.control.tables.tables import ActionTable, StateFeatures, StateValues, save_table
from hone.core.errors import ConfigError, DataError, ResourceError

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
POLICIES = control_policies()
WITHOUT = {"option table", "option critic", "planner"}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_onnxruntime_takes_the_policys_actions(name: str, tmp_path: Path) -> None:
    policy = POLICIES[name]
    save_policy(policy, tmp_path / "policy")
    target = tmp_path / "new" / "policy.onnx"
    if name in WITHOUT:
        with pytest.raises(ConfigError, match="has no ONNX form"):
            export_onnx.export_onnx(tmp_path / "policy", target)
        assert not target.exists()
        return
    told = export_onnx.export_onnx(tmp_path / "policy", target)
    assert told.equal == told.rows == 1000 and told.greatest_difference < 1e-5
    assert [path.name for path in target.parent.iterdir()] == ["policy.onnx"]
    session, saved = onnxruntime.InferenceSession(str(target)), open_saved_policy(tmp_path / "policy")
    for count in (1, 7):
        seen = observations(policy, count, seed=count)
        frames, state = policy.spaces.inputs.frames, None
        given = {"observation": seen if frames == 1 else np.stack([seen] * frames, axis=1)}  # as an episode begins
        if saved.has_memory and frames == 1:
            size = np.asarray(saved.predict(seen, mask=legal(policy, count))[1]).shape[1]
            given["state"] = state = np.random.default_rng(0).normal(size=(count, size)).astype(np.float32)
        if (mask := legal(policy, count)) is not None:
            given["mask"] = mask
        outputs = dict(zip((one.name for one in session.get_outputs()), session.run(None, given), strict=True))
        chosen, after = saved.predict(seen, state, mask=mask)
        np.testing.assert_allclose(outputs["action"], chosen, atol=1e-5)
        if "next_state" in outputs:
            np.testing.assert_allclose(outputs["next_state"], after, atol=1e-5)
    description = onnx.load(str(target)).metadata_props
    kept = {one.key: one.value for one in description}
    assert json.loads(kept["policy.json"])["kind"] == policy.kind and "hone" in kept


def test_outputs_are_those_of_the_kind(tmp_path: Path) -> None:
    named = {
        "ppo choices": ["action", "logits", "value"],
        "ppo clipped": ["action", "mean", "log_std", "value"],
        "dqn": ["action", "q_values"],
        "sac": ["action", "mean", "log_std"],
        "td3": ["action"],
        "recurrent": ["action", "logits", "value", "next_state"],
    }
    for name, outputs in named.items():
        save_policy(POLICIES[name], tmp_path / name)
        told = export_onnx.export_onnx(tmp_path / name, tmp_path / f"{name}.onnx")
        assert list(told.outputs) == outputs, name
    session = onnxruntime.InferenceSession(str(tmp_path / "ppo choices.onnx"))
    seen = observations(POLICIES["ppo choices"], 5)
    _, logits, value = session.run(None, {"observation": seen})
    policy = POLICIES["ppo choices"]
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        x = policy.spaces.inputs.tensor(torch.from_numpy(seen))
        np.testing.assert_allclose(logits, policy.actor(x), atol=1e-5)
        np.testing.assert_allclose(value, policy.value(torch.from_numpy(seen)), atol=1e-5)


OBSERVATION = spaces.Dict({
    "gear": spaces.Discrete(3, start=1),
    "lights": spaces.MultiBinary(4),
    "speed": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "view": spaces.Box(0, 255, (6, 6, 3), np.uint8),
})  # fmt: skip
FINITE = spaces.Tuple((spaces.Discrete(3, start=2), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4])))
MIXED = spaces.Dict({"pedal": spaces.Box(-1.0, 3.0, (2,), np.float32), "turn": spaces.Discrete(3)})


def of_parts(action: spaces.Space, *, masked: bool = False, memory: str | None = None) -> ActorCritic:
    """A policy of observations and actions of several parts, with normalised numbers."""
    layout, leaves = layout_of(OBSERVATION), action_leaves(action)
    assert layout is not None and leaves is not None
    unit = None if memory is None else RecurrentMemoryConfig(kind="gru", units=5)
    network = PolicyNetworkConfig(hidden=[16], memory=unit)
    found = network_spaces(RowSpace(layout), ActionRowSpace(leaves))
    assert isinstance(found.actions, FactoredActions)
    ready = policy_spaces(replace(found, actions=replace(found.actions, masked=masked)), network)
    size = ready.inputs.number_size
    inputs = ready.inputs.with_moments(np.full(size, 0.5), np.full(size, 2.0), 3.0)
    ready, plain = replace(ready, inputs=inputs), MlpConfig(hidden=[16])
    policy = ActorCritic(ready, plain, seed=0)
    if unit is not None:
        policy = MemoryActorCritic(ready, plain, seed=0, memory=unit)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return policy


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("action", [FINITE, MIXED], ids=["finite", "mixed"])
@pytest.mark.parametrize("memory", [None, "gru"])
def test_parts_of_observations_are_inputs_and_factors_of_actions_a_row(
    action: spaces.Space, masked: bool, memory: str | None, tmp_path: Path
) -> None:
    policy = of_parts(action, masked=masked, memory=memory)
    save_policy(policy, tmp_path / "policy")
    written = export_onnx.export_onnx(tmp_path / "policy", tmp_path / "policy.onnx")
    assert written.equal == written.rows == 1000
    further = ["state"] * (memory is not None) + ["mask"] * masked
    assert list(written.inputs) == ["gear", "lights", "speed", "view", *further]
    saved = open_saved_policy(tmp_path / "policy")
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    OBSERVATION.seed(0)
    for number in range(5):
        seen: Any = OBSERVATION.sample()
        given = {name: np.asarray(value)[None] for name, value in seen.items()}
        state = mask = None
        if memory is not None:
            given["state"] = state = np.random.default_rng(number).normal(size=(1, 10)).astype(np.float32)
        if masked:
            bits = 3 + 4 + 6 if action is FINITE else 3
            given["mask"] = mask = np.ones((1, bits), np.bool_)
            mask[0, 0] = False
        chosen, _ = saved.predict(seen, state, mask=mask)
        np.testing.assert_allclose(session.run(["action"], given)[0][0], chosen, atol=1e-5)


def test_a_bit_at_the_edge_is_0_and_a_mask_decides_it() -> None:
    head, outputs = BitsHead(BinaryActions(size=3)), torch.tensor([[0.0, 1e-6, -1.0]])
    assert head.mode(outputs, None).tolist() == [[0, 1, 0]]
    only_one = torch.tensor([[False, True, True, False, False, True]])
    assert head.mode(outputs, only_one).tolist() == [[1, 0, 1]]


def test_a_file_with_other_actions_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(POLICIES["ppo choices"], tmp_path / "policy")
    right = export_onnx._outputs

    def wrong(*given: object, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        outputs = right(*given, mask=mask)  # pyright: ignore[reportArgumentType]
        return {**outputs, "action": (outputs["logits"] * torch.tensor([1.0, 1.0, 0.0])).argmax(dim=1) + 1}

    monkeypatch.setattr(export_onnx, "_outputs", wrong)
    with pytest.raises(DataError, match=r"of 1000 actions differ from the policy's, so the file was removed"):
        export_onnx.export_onnx(tmp_path / "policy", tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()


def test_what_is_in_the_way_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(POLICIES["dqn"], tmp_path / "policy")
    (tmp_path / "mine.onnx").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        export_onnx.export_onnx(tmp_path / "policy", tmp_path / "mine.onnx")
    assert (tmp_path / "mine.onnx").read_text() == "mine"
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ResourceError, match=r"needs onnxruntime: pip install 'hone-rl\[onnx\]'"):
        export_onnx.export_onnx(tmp_path / "policy", tmp_path / "policy.onnx")


def test_tables_of_states_are_exported_and_others_are_not(tmp_path: Path) -> None:
    table = ActionTable(StateFeatures(count=5, actions=3, first=2), first_action=4, tables=2)
    table.x[:] = np.random.default_rng(0).normal(size=len(table.x))
    save_table(table, tmp_path / "table")
    assert export_onnx.export_onnx(tmp_path / "table", tmp_path / "table.onnx").equal == 1000
    states = np.arange(2, 7)
    action, values = onnxruntime.InferenceSession(str(tmp_path / "table.onnx")).run(None, {"observation": states})
    np.testing.assert_array_equal(action, table.numpy_policy().best(states))
    np.testing.assert_allclose(values, table.q, rtol=1e-6)
    save_table(StateValues(np.eye(2)), tmp_path / "values")
    with pytest.raises(ConfigError, match="only networks and tables of action values"):
        export_onnx.export_onnx(tmp_path / "values", tmp_path / "values.onnx")


def test_one_step_of_the_unit_is_torchs() -> None:
    gru = torch.nn.GRU(3, 5)
    x, state = torch.randn(4, 3), torch.randn(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(gru_step(gru, x, state), gru(x[None], state[None])[0][0])


def test_random_observations_are_where_the_policy_was_trained(tmp_path: Path) -> None:
    save_policy(POLICIES["ppo choices"], tmp_path / "policy")
    seen = random_observations(open_saved_policy(tmp_path / "policy"), 4000)
    np.testing.assert_allclose(seen.mean(axis=0), [1.0, -2.0, 0.0, 5.0], atol=0.4)
    np.testing.assert_allclose(seen.std(axis=0), [4.0, 1.0, 2.0, 6.0], rtol=0.1)


def test_the_command_writes_the_file_or_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_policy(POLICIES["ppo clipped"], tmp_path / "policy")
    target = tmp_path / "policy.onnx"
    assert main(["export", str(tmp_path / "policy"), "--onnx", str(target)]) == 0
    told = capsys.readouterr().out.replace("\n", "")
    assert "1000 of 1000 actions are equal" in told and "observation ['batch', 4] -> action ['batch', 2]" in told
    for arguments, words in (
        (["--onnx", str(target)], "is there already"),
        (["--onnx", "b.onnx", "--gguf", "F16"], "leave --gguf out"),
        (["folder", "--onnx", "b.onnx"], "leave folder out"),
        ([], "name the new folder"),
        ([str(tmp_path / "new")], "copy the folder, or write an ONNX file with --onnx FILE"),
    ):
        assert main(["export", str(tmp_path / "policy"), *arguments]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert main(["export", str(tmp_path / "model"), "--onnx", "b.onnx"]) == 2
    assert "is a language model, and --onnx is for control policies" in capsys.readouterr().err
