"""Policies with a memory, from the rollout to the gradient: the learner finds what the actor did, nothing is mixed up,
and what must be remembered is."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from pixel_envs import Lengths
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from hone import api
from hone.certify.job import certify_job
from hone.control.acting import NetworkActor
from hone.control.environments.make import GymConfig, sync_vector_env
from hone.control.environments.world import GymWorld, world_from_envs
from hone.control.evaluate.returns import evaluate_returns
from hone.control.networks.checkpoint import load_policy, save_policy
from hone.control.networks.encoding import RecurrentMemoryConfig
from hone.control.networks.memory import MemoryActorCritic, PackedOrder, RecurrentUnit
from hone.control.networks.mlp import MlpConfig, PolicySpaces
from hone.control.networks.numpy_memory import NumpyFramePolicy, NumpyMemoryPolicy, NumpyRecurrentPolicy
from hone.control.networks.packed_units import cell_outputs
from hone.control.sequences import predict_memory_values, sequence_rows, stack_frames
from hone.control.spaces import network_spaces
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import HoneError
from hone.learner.gradient import micro_batches
from hone.recipes.on_policy import ppo

FILE = str(Path(__file__).parents[1] / "support" / "pixel_envs.py")
BOX, THREE = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(3)
LENGTHS = [[1, 4, 9], [4, 1, 2], [30, 3], [2, 2, 5]]
"""Episodes of one step, of exactly a sequence, of several, and longer than a rollout."""


def spaces_of(observation: spaces.Space[Any] = BOX, action: spaces.Space[Any] = THREE) -> PolicySpaces:
    return network_spaces(observation, action)


def policy_of(kind: Literal["gru", "lstm"] = "gru", *, sequence: int = 4, seed: int = 1) -> MemoryActorCritic:
    memory = RecurrentMemoryConfig(kind=kind, units=6, sequence=sequence)
    policy = MemoryActorCritic(spaces_of(), MlpConfig(hidden=[5]), seed=seed, memory=memory)
    with torch.no_grad():  # the policy's last layer begins near 0, where all would be equally likely
        policy.actor.layers[-1].weight.mul_(100.0)  # pyright: ignore[reportCallIssue]
        for name, parameter in policy.units.named_parameters():
            if "bias" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return policy


def world_of(
    lengths: list[list[int]], *, steps: int = 7, mode: AutoresetMode = AutoresetMode.SAME_STEP, order: Any = None
) -> GymWorld:
    """A world of `Lengths`; `order`: the places of its environments, whose seeds go with them."""
    places = list(range(len(lengths))) if order is None else order
    makers = [lambda place=place: Lengths(lengths[place]) for place in places]
    world = world_from_envs(sync_vector_env(makers, mode), steps=steps, seed=0)
    world.seen = np.array(world.envs.reset(seed=[100 + place for place in places])[0])
    return world


def credits_of(episodes: Episodes) -> Credits:
    numbers = np.arange(episodes.decisions, dtype=np.float32)
    return Credits(advantage=np.cos(numbers), target=np.sin(numbers))


# --------------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_numpy_and_torch_units_agree_step_by_step(kind: Literal["gru", "lstm"]) -> None:
    unit = RecurrentUnit(kind, 3, 4, seed=0, stream="x")
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    x = torch.randn((5, 1, 3), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        slow = unit.cell(x)[0][:, 0].numpy()
    state, numpy_unit = np.zeros((1, unit.state_size), np.float32), unit.to_numpy()
    for step in range(5):
        state = numpy_unit(x[step].numpy(), state)
        assert np.abs(state[0, :4] - slow[step]).max() < 1e-6


def test_gru_by_hand() -> None:
    unit = RecurrentUnit("gru", 1, 1, seed=0, stream="x")
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.fill_(1.0)
    sigmoid = 1.0 / (1.0 + np.exp(-(2.0 + 1.0 + 0.5 + 1.0)))  # reset = update
    new = np.tanh(2.0 + 1.0 + sigmoid * (0.5 + 1.0))
    by_hand = (1.0 - sigmoid) * new + sigmoid * 0.5
    after = unit.to_numpy()(np.full((1, 1), 2.0, np.float32), np.full((1, 1), 0.5, np.float32))
    assert after[0, 0] == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_packed_units_are_those_of_torch(kind: Literal["gru", "lstm"], dtype: torch.dtype, most: float) -> None:
    """Outputs, states, first and second derivatives by inputs, states and weights; sequences of one step too."""
    unit, draws = RecurrentUnit(kind, 3, 5, seed=0, stream="x").to(dtype), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=draws, dtype=dtype))
    order = PackedOrder.of(np.array([4, 1, 6, 3, 3]))
    leaves = [
        torch.randn(size, generator=draws, dtype=dtype).requires_grad_() for size in ((17, 3), (5, unit.state_size))
    ] + list(unit.parameters())

    def numbers(run: Callable[[PackedSequence, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        out, after = run(PackedSequence(leaves[0], order.batch_sizes), leaves[1])
        loss = out.sin().sum() + (after.cos() * torch.arange(after.numel(), dtype=dtype).view_as(after)).sum()
        once = torch.autograd.grad(loss, leaves, retain_graph=True)
        graph = torch.autograd.grad(loss, leaves, create_graph=True)
        return [
            out,
            after,
            *once,
            *torch.autograd.grad(torch.stack([one.square().sum() for one in graph]).sum(), leaves),
        ]

    for fast, slow in zip(numbers(unit), numbers(partial(cell_outputs, kind, unit.cell)), strict=True):
        assert float((fast - slow).detach().abs().max()) <= most * (1.0 + float(slow.detach().abs().max()))


def test_slope_of_a_gru_by_hand() -> None:
    """One unit, one step, weights 1: h' = n + z (h - n), r = z = sigmoid(x + h + 2), n = tanh(x + 1 + r (h + 1))."""
    unit = RecurrentUnit("gru", 1, 1, seed=0, stream="x").double()
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.fill_(1.0)
    state = torch.full((1, 1), 0.5, dtype=torch.float64, requires_grad=True)
    one_step = PackedSequence(torch.full((1, 1), 2.0, dtype=torch.float64), torch.ones(1, dtype=torch.int64))
    out, after = unit(one_step, state)
    gate = 1.0 / (1.0 + np.exp(-4.5))
    new = np.tanh(3.0 + gate * 1.5)
    slope = (
        gate + (1.0 - gate) * (1.0 - new**2) * (gate + gate * (1.0 - gate) * 1.5) + (0.5 - new) * gate * (1.0 - gate)
    )
    assert out.item() == after.item() == pytest.approx(new + gate * (0.5 - new), abs=1e-15)
    assert torch.autograd.grad(out, state)[0].item() == pytest.approx(slope, abs=1e-15)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gates_of_huge_inputs_are_shut_without_a_warning(kind: Literal["gru", "lstm"]) -> None:
    unit = RecurrentUnit(kind, 1, 2, seed=0, stream="x")
    x = PackedSequence(torch.tensor([[-1e4], [1e4]], requires_grad=True), torch.tensor([2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, after = unit(x, torch.ones(2, unit.state_size))
        (out.sum() + after.sum()).backward()
    slow = cell_outputs(kind, unit.cell, x, torch.ones(2, unit.state_size))[0]
    assert float((out - slow).detach().abs().max()) < 1e-6
    assert all(parameter.grad is not None and bool(parameter.grad.isfinite().all()) for parameter in unit.parameters())


def test_packed_order_is_that_of_torch() -> None:
    lengths = np.array([2, 5, 1, 5, 3])
    order = PackedOrder.of(lengths)
    rows = [
        torch.arange(16)[int(start) : int(start + length)]
        for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True)
    ]
    packed = nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    assert packed.sorted_indices is not None
    assert np.array_equal(np.sort(lengths)[::-1], lengths[order.sequences])
    assert torch.equal(order.batch_sizes, packed.batch_sizes)
    assert np.array_equal(np.arange(16)[order.decisions][order.places], np.arange(16))


# ------------------------------------------------------------------------------------------- the learner and the actor


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_recomputed_log_probabilities_are_those_stored(kind: Literal["gru", "lstm"], mode: AutoresetMode) -> None:
    """Over rollouts that cut episodes, with episodes of one step, of exactly a sequence, and of several."""
    policy, world = policy_of(kind), world_of(LENGTHS, mode=mode)
    actor = NetworkActor(policy.numpy_policy())
    for _ in range(4):
        episodes = world.rollout(actor)
        rows = sequence_rows(policy, episodes, credits_of(episodes))
        assert set(rows.lengths.tolist()) <= {1, 2, 3, 4}
        now = policy.evaluate_rows(rows)
        assert float((now.logp.detach() - rows.logp).abs().max()) < 1e-5
        actor.publish(policy, 1)  # a new numpy form: the state is the world's
    world.close()


def test_sequences_equal_a_walk_through_each_whole_episode() -> None:
    """States, values and final values beside a loop over single steps that never cuts anything."""
    policy, world = policy_of("lstm"), world_of(LENGTHS, steps=40)
    episodes = world.rollout(NetworkActor(policy.numpy_policy()))
    assert episodes.final is not None
    values, rows = predict_memory_values(policy, episodes), sequence_rows(policy, episodes, credits_of(episodes))
    assert policy.critic is not None
    for number in range(len(episodes)):
        state = torch.zeros((1, sum(policy.state_sizes)))
        begin, end = episodes.offsets[number : number + 2]
        for place in range(begin, end + 1):
            seen = episodes.observations[place : place + 1] if place < end else episodes.final[number : number + 1]
            with torch.no_grad():
                features, state = policy.recall(torch.from_numpy(seen), np.array([1]), state)
                value = float(policy.critic(features[1]))
            known = values.value[place] if place < end else values.final[number]
            assert known == pytest.approx(value, abs=1e-5)
    assert len(rows.state) == int((-(-episodes.lengths // 4)).sum())
    world.close()


def test_final_value_comes_from_the_carried_state() -> None:
    policy, world = policy_of(), world_of(LENGTHS)
    world.rollout(NetworkActor(policy.numpy_policy()))
    episodes = world.rollout(NetworkActor(policy.numpy_policy()))
    assert episodes.memory is not None
    assert episodes.memory.any(), "some pieces go on from the rollout before"
    carried = predict_memory_values(policy, episodes)
    forgotten = predict_memory_values(policy, replace(episodes, memory=np.zeros_like(episodes.memory)))
    goes_on = episodes.memory.any(axis=1)
    assert (np.abs(carried.final - forgotten.final)[goes_on] > 1e-4).any()
    assert np.array_equal(carried.final[~goes_on], forgotten.final[~goes_on])
    world.close()


def test_an_episode_begins_with_the_state_of_nothing() -> None:
    """The state before a first decision is 0, not the last one of the episode before."""
    policy, world = policy_of(), world_of([[2], [3]], steps=6)
    actor = NetworkActor(policy.numpy_policy())
    for _ in range(3):
        episodes = world.rollout(actor)
        assert episodes.memory is not None
        assert not episodes.memory.any(axis=1).all(), "some episodes begin here"
        first = policy.numpy_policy()
        for number in range(len(episodes)):
            begin = int(episodes.offsets[number])
            if not episodes.memory[number].any():
                first.forget(np.ones(1, np.bool_))
                best = first.best(episodes.observations[begin : begin + 1])
                row = policy.recall(
                    torch.from_numpy(episodes.observations[begin : begin + 1]), np.array([1]), torch.zeros((1, 12))
                )[0][0]
                assert int(policy.actor(row).argmax()) == int(best[0])
    world.close()


def test_permuting_environments_permutes_results() -> None:
    policy, order = policy_of(), [2, 0, 3, 1]
    worlds = [world_of(LENGTHS), world_of(LENGTHS, order=order)]

    class Greedy(NetworkActor):
        def decide(self, seen: Any, noise: Any) -> Any:
            best = self.numpy_policy.best(seen)
            return best, np.zeros(len(best), np.float32)

    for _ in range(3):
        tables: list[dict[int, list[NDArray[Any]]]] = []
        for world, places in zip(worlds, ([0, 1, 2, 3], order), strict=True):
            episodes = world.rollout(Greedy(policy.numpy_policy()))
            assert episodes.memory is not None
            starts = np.cumsum([0, *(world.steps for _ in places)])
            owner = np.searchsorted(starts, episodes.offsets[:-1], side="right") - 1
            values = predict_memory_values(policy, episodes)
            table: dict[int, list[NDArray[Any]]] = {}
            for number, place in enumerate(owner.tolist()):
                piece = slice(int(episodes.offsets[number]), int(episodes.offsets[number + 1]))
                table.setdefault(places[place], []).extend(
                    [
                        episodes.chosen[piece],
                        episodes.memory[number],
                        values.value[piece],
                        values.final[number : number + 1],
                    ]
                )
            tables.append(table)
        for place in range(4):
            for mine, other in zip(tables[0][place], tables[1][place], strict=True):
                assert np.allclose(mine, other, atol=1e-6)
    for world in worlds:
        world.close()


def test_gradients_do_not_depend_on_the_cut_into_micro_batches() -> None:
    """Sequences of unequal lengths, one at a time: nothing is padded, and every decision counts the same."""
    policy, world = policy_of("lstm"), world_of(LENGTHS, steps=20)
    episodes = world.rollout(NetworkActor(policy.numpy_policy()))
    rows = sequence_rows(policy, episodes, credits_of(episodes)).weighted()
    assert float(rows.weight.sum()) == pytest.approx(1.0, abs=1e-5)
    gradients: list[list[torch.Tensor]] = []
    for budget in (1 << 62, 1):
        policy.zero_grad()
        for piece in micro_batches(rows, budget):
            now = policy.evaluate_rows(piece.tensors())
            assert now.value is not None
            ((now.logp * piece.advantage + now.value) * piece.weight).sum().backward()
        gradients.append([torch.zeros(0) if one.grad is None else one.grad.clone() for one in policy.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    world.close()


def test_gradients_go_back_through_the_sequence_only() -> None:
    """The gradient of one sequence beside autograd through an explicit loop of torch's cell."""
    policy = policy_of()
    seen = torch.randn((4, 3), generator=torch.Generator().manual_seed(0))
    before = torch.randn((1, 12), generator=torch.Generator().manual_seed(1))
    features, _ = policy.recall(seen, np.array([4]), before)
    policy.zero_grad()
    policy.actor(features[0]).square().sum().backward()
    unit = policy.units[0]
    assert isinstance(unit, RecurrentUnit)
    cell = nn.GRUCell(3, 6)
    cell.load_state_dict({name.removesuffix("_l0"): tensor for name, tensor in unit.cell.state_dict().items()})
    state, total = before[:, :6], torch.zeros(())
    for step in range(4):
        state = cell(seen[step : step + 1], state)
        total = total + policy.actor(state).square().sum()
    total.backward()
    for name, parameter in unit.cell.named_parameters():
        slow = dict(cell.named_parameters())[name.removesuffix("_l0")].grad
        assert parameter.grad is not None
        assert slow is not None
        assert torch.allclose(parameter.grad, slow, atol=1e-5)


def test_an_evaluation_remembers_within_each_episode(tmp_path: Path) -> None:
    """A policy that is asked without its memory would forget at every step."""
    policy = policy_of()
    acting = policy.numpy_policy()
    assert isinstance(acting, NumpyRecurrentPolicy)
    seen = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    moving = [acting.memory.copy()]
    for step in range(5):
        acting.best(seen[:, step])
        moving.append(acting.memory.copy())
    assert moving[0].size == 0
    assert all((moving[step] != moving[step + 1]).any() for step in range(1, 5))
    acting.forget(np.array([True, False]))
    assert not acting.memory[0].any()
    assert np.array_equal(acting.memory[1], moving[-1][1])
    save_policy(policy, tmp_path)
    loaded = load_policy(tmp_path)
    assert isinstance(loaded, MemoryActorCritic)
    again = loaded.numpy_policy()
    assert all(np.array_equal(again.best(seen[:, step]), policy_best(policy, seen, step)) for step in range(5))


def policy_best(policy: MemoryActorCritic, seen: NDArray[np.float32], step: int) -> NDArray[Any]:
    """The best actions at `step`, from the episode's begin."""
    acting = policy.numpy_policy()
    for place in range(step):
        acting.best(seen[:, place])
    return acting.best(seen[:, step])


@pytest.mark.parametrize("memory", [{"kind": "lstm", "units": 5}, {"kind": "frames", "count": 3}])
def test_predict_passes_the_state_on_and_forgets_at_an_episode_start(tmp_path: Path, memory: dict[str, Any]) -> None:
    job = ppo.ENTRY.build(ppo.PpoConfig.model_validate(settings(memory, rollout_steps=5, steps=1)))
    job.save_policy(tmp_path)
    job.close()
    saved = api.load(tmp_path)
    acting = load_policy(tmp_path).numpy_policy()
    seen = np.random.default_rng(0).standard_normal((4, 2, 5)).astype(np.float32)
    state = None
    for step in range(4):
        begun = np.array([step == 2, False])
        if step == 2:
            assert isinstance(acting, NumpyMemoryPolicy)
            acting.forget(begun)
        action, state = saved.predict(seen[step], state, episode_start=begun)
        assert np.array_equal(action, acting.best(seen[step]))
    assert state is not None
    assert isinstance(acting, NumpyMemoryPolicy)
    assert np.array_equal(state, acting.memory, equal_nan=True)


# -------------------------------------------------------------------------------------------------------------- frames


def test_stacked_frames_are_those_that_the_actor_saw() -> None:
    world = world_of(LENGTHS, steps=5)

    class Remembered(NetworkActor):
        stacks: list[NDArray[Any]] = []

        def decide(self, seen: Any, noise: Any) -> Any:
            acting = self.numpy_policy
            assert isinstance(acting, NumpyFramePolicy)
            self.stacks.append(acting.recall(seen))
            return np.zeros(len(seen), np.int64), np.zeros(len(seen), np.float32)

    inputs = spaces_of().inputs
    head = policy_of().numpy_policy()
    actor = Remembered(NumpyFramePolicy(head=head, inputs=inputs, frames=3, size=3))
    for _ in range(3):
        actor.stacks.clear()
        episodes = world.rollout(actor)
        stacked = stack_frames(episodes, 3)
        shown = np.stack(actor.stacks, axis=1).reshape(-1, 3, 3)  # environment by environment, in the order of time
        assert np.array_equal(stacked.observations, shown)
        assert stacked.final is not None
        assert episodes.final is not None
        assert np.array_equal(stacked.final[:, -1], episodes.final)
        last = stacked.observations[episodes.offsets[1:] - 1]
        assert np.array_equal(stacked.final[:, :-1], last[:, 1:])
    world.close()


# ---------------------------------------------------------------------------------------------------------- whole runs


def settings(memory: dict[str, Any] | None, **tables: Any) -> dict[str, Any]:
    return {
        "recipe": "ppo", "name": "x", "steps": 60, "rollout_steps": 32, "run": {"certify": False},
        "network": {"memory": memory, "hidden": [32]}, "algorithm": {"entropy_weight": 0.01},
        "learner": {"epochs": 4, "minibatches": 4, "lr": 3e-3},
        "env": {"id": f"{FILE}:RepeatFirst", "num_envs": 16, "isolation": "none"}, "evaluation": {"episodes": 100},
        **tables,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("memory", "low", "high"), [({"kind": "gru", "units": 32, "sequence": 4}, 0.999, 1.001), (None, -0.65, -0.35)]
)
def test_what_was_shown_first_is_remembered(
    tmp_path: Path, memory: dict[str, Any] | None, low: float, high: float
) -> None:
    """A memory scores 1; without one -0.5 is chance."""
    steps = 25 if memory else 10
    env: dict[str, Any] = {"id": f"{FILE}:RepeatFirst", "num_envs": 16, "isolation": "none", "kwargs": {"steps": 4}}
    run = api.train(settings(memory, steps=steps, env=env), runs=tmp_path)
    assert low <= run.evaluations[-1].mean <= high
    policy = load_policy(run.policy)
    apart = GymConfig(id=env["id"], isolation="process", workers=1, kwargs=env["kwargs"])
    assert low <= float(evaluate_returns(policy, apart, episodes=60, seed=3).mean()) <= high


@pytest.mark.parametrize(
    "memory",
    [
        {"kind": "lstm", "units": 6, "sequence": 3},
        {"kind": "frames", "count": 3},
    ],
)
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_is_the_same_run(tmp_path: Path, memory: dict[str, Any], staleness: int) -> None:
    """Rollouts of 5 steps cut episodes of 6: the state goes over the checkpoint, too."""
    learner = {"epochs": 2, "minibatches": 2, "lr_decay": "constant"}
    tables: dict[str, Any] = {"rollout_steps": 5, "learner": learner, "algorithm": {"max_staleness": staleness}}
    tables["evaluation"] = {"episodes": 2}
    tables["env"] = {"id": f"{FILE}:RepeatFirst", "num_envs": 4, "isolation": "none"}
    whole = api.train(settings(memory, **tables, steps=4), runs=tmp_path / "whole")
    api.train(settings(memory, **tables, steps=2), runs=tmp_path / "half")
    half = api.train(settings(memory, **tables, steps=4), runs=tmp_path / "half", resume=True)
    weights = [(run.policy / "model.safetensors").read_bytes() for run in (whole, half)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("memory", [{"kind": "gru", "units": 4, "sequence": 3}, {"kind": "frames", "count": 3}])
def test_the_certificate_examines_the_loss_of_a_policy_with_a_memory(memory: dict[str, Any]) -> None:
    config = ppo.PpoConfig.model_validate(settings(memory, rollout_steps=5, steps=1))
    job = ppo.ENTRY.build(config)
    certificate = certify_job(job, config, "x")
    job.close()
    assert certificate is not None
    assert certificate.passed


def test_frames_of_values_are_kept_once_in_the_replay_buffer(tmp_path: Path) -> None:
    tables = {
        "recipe": "dqn", "name": "x", "steps": 60, "replay": {"warmup": 200, "collect": 8}, "run": {"certify": False},
        "network": {"memory": {"kind": "frames", "count": 3}, "hidden": [32]}, "evaluation": {"episodes": 50},
        "env": {"id": f"{FILE}:RepeatFirst", "num_envs": 8, "isolation": "none", "kwargs": {"steps": 2}},
    }  # fmt: skip
    run = api.train(tables, runs=tmp_path)
    assert run.evaluations[-1].mean == pytest.approx(1.0)


def test_what_does_not_go_with_a_memory_is_told(tmp_path: Path) -> None:
    memory = {"kind": "gru", "units": 4}
    with pytest.raises(HoneError, match=r"value_loss\.kind"):
        api.train(settings(memory, algorithm={"value_loss": {"kind": "clipped"}}), runs=tmp_path)
    with pytest.raises(HoneError, match="neither encoder nor memory"):
        api.train(settings(memory, recipe="trpo", algorithm={}), runs=tmp_path)
    with pytest.raises(TypeError, match="sequences"):
        policy_of().value(torch.zeros((2, 3)))
    assert isinstance(policy_of().numpy_policy(), NumpyMemoryPolicy)
