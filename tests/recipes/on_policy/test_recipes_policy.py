"""Policy methods on control: resumed runs are the uninterrupted ones, normalisation and noise come back as they were,
shipped policies play; each learns a little in seconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hone.cli.commands.train import planned_runs
from hone.config.resolve import read_document
from hone.control.deterministic import GaussianNoise, NoisyActor, OrnsteinUhlenbeckNoise
from hone.control.networks.actor_critic import DeterministicActorCritic
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.mlp import BoxActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.rows import TransitionRows
from hone.core.errors import ConfigError, DataError
from hone.core.random import generator
from hone.core.state import substate
from hone.recipes.off_policy import ddpg, td3
from hone.recipes.on_policy.ppo_kl import KlCoefController
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state

BASE: dict[str, Any] = {"name": "x", "seed": 3, "network": {"hidden": [16]}, "evaluation": {"episodes": 3}}
CARTPOLE = {"id": "CartPole-v1", "num_envs": 4}
PENDULUM = {"id": "Pendulum-v1", "num_envs": 2}
CLIPPED = {"id": "Pendulum-v1", "num_envs": 3, "clip_actions": True}
BOTH = {"observations": True, "rewards": True}
REPLAY = {"batch": 16, "capacity": 70, "warmup": 30}
OU = {"kind": "ornstein_uhlenbeck"}
CONFIGS: dict[str, dict[str, Any]] = {
    "a2c": {"recipe": "a2c", "env": CARTPOLE},
    "a2c_ahead": {"recipe": "a2c", "env": CARTPOLE, "algorithm": {"max_staleness": 2, "normalise": BOTH}},
    "a2c_box": {"recipe": "a2c", "env": CLIPPED, "rollout_steps": 70, "algorithm": {"normalise": BOTH}},
    "ppo_normalised": {
        "recipe": "ppo", "env": CARTPOLE, "rollout_steps": 21, "learner": {"lr": 1e-3, "epochs": 2, "minibatches": 3},
        "algorithm": {"normalise": BOTH, "clip_decay": "linear"},
    },
    "ppo_ahead": {
        "recipe": "ppo", "env": CARTPOLE, "algorithm": {"max_staleness": 1}, "learner": {"lr": 1e-3, "epochs": 2},
    },
    "ppo_kl": {"recipe": "ppo_kl", "env": CARTPOLE, "learner": {"lr": 1e-2, "epochs": 2}},
    "reinforce": {"recipe": "reinforce_control", "env": CARTPOLE, "rollout_steps": 9},
    "reinforce_mean": {"recipe": "reinforce_control", "env": CARTPOLE, "algorithm": {"baseline": "mean"}},
    "reinforce_none": {"recipe": "reinforce_control", "env": CARTPOLE, "algorithm": {"baseline": "none"}},
    "ddpg": {"recipe": "ddpg", "env": PENDULUM, "replay": REPLAY, "exploration": OU},
    "td3": {"recipe": "td3", "env": PENDULUM, "replay": REPLAY, "learner": {"lr": 1e-3, "updates_per_iteration": 3}},
}  # fmt: skip


def made(name: str, steps: int, **changes: Any) -> TrainingJob[Any]:
    settings = {**BASE, **CONFIGS[name], "steps": steps, **changes}
    entry = load_recipe(settings["recipe"])
    return entry.build(entry.config.model_validate(settings))


class Diary:
    """Everything that a step produced."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def __call__(self, step: int, episodes: Any, credits: Any, metrics: Any) -> None:
        columns = (episodes.observations, episodes.chosen, episodes.version, episodes.reward, episodes.score)
        self.lines.append((step, *(column.tobytes() for column in columns), credits.advantage.tobytes(), metrics))


def halfway(job: TrainingJob[Any], folder: Path) -> None:
    (folder / "state").mkdir()
    write_state(folder / "state", {"source": job.recipe.source.state(), "learner": job.recipe.learner.state()})
    job.save_policy(folder / "policy")


def taken_up(job: TrainingJob[Any], folder: Path) -> None:
    state = read_state(folder / "state")
    job.load_policy(folder / "policy")
    job.recipe.learner.restore(substate(state, "learner"))
    job.recipe.source.restore(substate(state, "source"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    steps = 8
    straight, whole = made(name, steps), Diary()
    train(straight.recipe, steps=steps, callback=whole)
    first, begun = made(name, steps), Diary()
    train(first.recipe, steps=5, callback=begun)
    halfway(first, tmp_path)
    second = made(name, steps)
    taken_up(second, tmp_path)
    train(second.recipe, steps=steps, callback=begun, first_step=6)
    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    assert straight.evaluate is not None
    assert second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    shipped = load_policy(tmp_path / "two")
    seen = np.ones((3, second.recipe.learner.policy.spaces.inputs.size), np.float32)
    np.testing.assert_array_equal(
        shipped.numpy_policy().best(seen), second.recipe.learner.policy.numpy_policy().best(seen)
    )
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("name", ["a2c_ahead", "td3"])
def test_a_run_is_the_same_again(name: str) -> None:
    """Also its random warm-up."""
    diaries: list[Diary] = []
    for _ in range(2):
        job, diary = made(name, 6), Diary()
        train(job.recipe, steps=6, callback=diary)
        job.close()
        diaries.append(diary)
    assert diaries[0].lines == diaries[1].lines


def test_entries_derive_and_check() -> None:
    for name in ("a2c", "ppo_kl", "reinforce_control", "ddpg", "td3"):
        entry = load_recipe(name)
        env = {"id": "Pendulum-v1", "clip_actions": True}
        config = entry.config.model_validate({"recipe": name, "name": "x", "steps": 10, "env": env})
        assert all(isinstance(value, str) for value in config.derive().values())
        assert list(entry.check(config)) == []
        assert entry.limitation
        assert entry.paper


# ---------------------------------------------------------------------------------------------- normalisation


def test_statistics_are_part_of_the_policy_and_frozen_outside_training(tmp_path: Path) -> None:
    job = made("ppo_normalised", 4)
    train(job.recipe, steps=4, callback=Diary())
    assert job.evaluate is not None
    before = job.recipe.learner.policy.spaces
    assert before.inputs.mean != (0.0,) * 4
    job.evaluate()
    assert job.recipe.learner.policy.spaces == before
    job.save_policy(tmp_path / "policy")
    policy = load_policy(tmp_path / "policy")
    assert policy.spaces == before
    policy.numpy_policy().best(np.full((50, 4), 1e6, np.float32))
    assert policy.spaces == before, "acting must not move the statistics"


def test_statistics_are_those_of_everything_that_was_acted_on() -> None:
    job = made("ppo_normalised", 4)
    seen: list[np.ndarray] = []
    train(job.recipe, steps=4, callback=lambda _, episodes, *__: seen.append(episodes.observations))
    rows = np.concatenate(seen).astype(np.float64)
    inputs = job.recipe.learner.policy.spaces.inputs
    np.testing.assert_allclose(inputs.mean, rows.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(inputs.scale, np.sqrt(rows.var(axis=0) + 1e-8), rtol=1e-9)


def test_the_first_ratio_is_one_while_statistics_move() -> None:
    job = made("ppo_normalised", 3)
    train(job.recipe, steps=3, callback=Diary())
    episodes = job.recipe.source.collect()
    policy = job.recipe.learner.policy
    with torch.no_grad():
        now = policy.evaluate_actions(torch.from_numpy(episodes.observations), torch.from_numpy(episodes.chosen))
    np.testing.assert_allclose(now.logp.numpy(), episodes.logp, atol=1e-5)


def test_scores_stay_as_they_were_paid() -> None:
    job = made("ppo_normalised", 6)
    paid: list[float] = []
    train(job.recipe, steps=6, callback=lambda _, episodes, *__: paid.append(float(np.unique(episodes.reward).size)))
    told = job.recipe.source.metrics()
    assert told["reward/mean"] >= 8  # CartPole pays 1 a step
    assert told["reward/scale"] > 1
    assert set(paid) == {1.0}


def test_numbered_states_have_no_scale() -> None:
    env = {"id": "FrozenLake-v1"}
    entry = load_recipe("ppo")
    settings = {**BASE, "recipe": "ppo", "steps": 1, "env": env, "algorithm": {"normalise": {"observations": True}}}
    config = entry.config.model_validate(settings)
    for door in (entry.check, entry.build):
        with pytest.raises(ConfigError, match="numbers of states"):
            door(config)


# ---------------------------------------------------------------------------------------------- KL price


def test_the_price_of_a_nat_follows_how_far_the_policy_moved() -> None:
    price = KlCoefController(1.0, 0.01)
    expected = {0.0149: 1.0, 0.0151: 2.0, 0.0067: 2.0, 0.0066: 1.0}
    for moved, after in expected.items():
        price.adapt({"policy/kl_nats": moved})
        assert price.value == after
    other = KlCoefController(5.0, 0.01)
    other.restore(price.state())
    assert other.value == price.value
    with pytest.raises(DataError, match="no number"):
        other.restore({})


def test_the_price_survives_a_resume(tmp_path: Path) -> None:
    job = made("ppo_kl", 8)
    told: list[float] = []
    train(job.recipe, steps=5, callback=lambda _, __, ___, metrics: told.append(metrics["policy/kl_coefficient"]))
    halfway(job, tmp_path)
    assert len(set(told)) > 1, "it never moved, so this shows nothing"
    other = made("ppo_kl", 8)
    taken_up(other, tmp_path)
    (here,), (there,) = (tuple(one.recipe.learner.extra_state.values()) for one in (job, other))
    assert here.value == there.value != 1.0


# ---------------------------------------------------------------------------------------------- exploration


def deterministic() -> DeterministicActorCritic:
    box = BoxActions(low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
    return DeterministicActorCritic(
        PolicySpaces(inputs=ObservationInputs(size=3), actions=box), MlpConfig(hidden=[8]), seed=0
    )


def test_noise_before_learning_fills_the_box_evenly() -> None:
    actor = NoisyActor(deterministic().numpy_policy(), GaussianNoise())
    noise = actor.noise(generator(0, "x"), (4000, 1))
    chosen, logp = actor.decide(np.zeros((4000, 3), np.float32), noise[:, 0])
    for column, low, high in ((0, -2.0, 2.0), (1, 0.0, 1.0)):
        counts, _ = np.histogram(chosen[:, column], bins=8, range=(low, high))
        assert counts.sum() == 4000
        assert abs(counts - 500).max() < 100
    np.testing.assert_allclose(logp, -np.log(4.0), rtol=1e-6)


def test_noise_that_remembers_varies_as_it_says() -> None:
    """Correlation 1 - pull from step to step, standard deviation scale / sqrt(1 - (1 - pull)^2), over rollouts too."""
    actor = NoisyActor(deterministic().numpy_policy(), OrnsteinUhlenbeckNoise(scale=0.2, pull=0.15), version=1)
    path = np.concatenate([actor.noise(generator(0, "x", number), (100, 50))[:, :, 0] for number in range(40)])
    assert path[500:].std() == pytest.approx(0.2 / np.sqrt(1 - 0.85**2), rel=0.03)
    assert np.corrcoef(path[500:-1].ravel(), path[501:].ravel())[0, 1] == pytest.approx(0.85, abs=0.01)
    edges = path[100::100].ravel(), path[99:-1:100].ravel()
    assert np.corrcoef(*edges)[0, 1] == pytest.approx(0.85, abs=0.05)


def test_noise_stays_within_the_box() -> None:
    actor = NoisyActor(deterministic().numpy_policy(), GaussianNoise(scale=3.0), version=1)
    chosen, logp = actor.decide(np.ones((500, 3), np.float32), actor.noise(generator(1, "x"), (500,)))
    assert (chosen >= [-2.0, 0.0]).all()
    assert (chosen <= [2.0, 1.0]).all()
    assert np.isnan(logp).all(), "a clipped choice has no density"
    assert not np.allclose(chosen, actor.numpy_policy.best(np.ones((500, 3), np.float32)))


def test_the_numpy_mirror_is_the_network() -> None:
    policy = deterministic()
    seen = generator(2, "x").standard_normal((20, 3)).astype(np.float32)
    with torch.no_grad():
        unit = policy.to_unit_box(torch.from_numpy(policy.numpy_policy().best(seen)))
        np.testing.assert_allclose(unit.numpy(), policy.actions_of(torch.from_numpy(seen)).numpy(), atol=1e-5)


# ---------------------------------------------------------------------------------------------- delay and learning


def test_td3_moves_its_policy_on_every_second_update_only() -> None:
    job = made("td3", 4, learner={"lr": 1e-3, "updates_per_iteration": 1})
    policy = job.recipe.learner.policy
    moved: list[tuple[bool, bool]] = []
    before = [(policy.actor.to_numpy().layers[0][0].copy(), next(policy.slow_critics.parameters()).clone())]

    def report(*_: object) -> None:
        now = (policy.actor.to_numpy().layers[0][0].copy(), next(policy.slow_critics.parameters()).clone())
        moved.append((not np.array_equal(now[0], before[0][0]), not torch.equal(now[1], before[0][1])))
        before[0] = now

    train(job.recipe, steps=4, callback=report)
    assert moved == [(False, False), (True, True)] * 2


def test_td3_and_ddpg_look_at_the_target_they_should() -> None:
    """One transition, by hand: r + discount * min(Q1', Q2')(s', clip(pi'(s') + noise))."""
    rows = _rows()
    policy = deterministic()
    algorithm = td3.Td3Algorithm(smoothing=0.2, smoothing_limit=0.1)
    terms = td3.critic_objective(policy, rows, algorithm=algorithm)
    with torch.no_grad():
        bent = (policy.target_actions(rows.next_seen) + (0.2 * rows.noise).clamp(-0.1, 0.1)).clamp(-1, 1)
        slow = torch.stack(policy.target_q_values(rows.next_seen, bent)).amin(0)
        target = rows.reward + rows.discount * slow
        values = policy.q_values(rows.seen, policy.to_unit_box(rows.chosen))
        expected = sum(0.5 * (value - target) ** 2 for value in values)
    torch.testing.assert_close(terms.loss, expected)
    single = DeterministicActorCritic(policy.spaces, policy.network, seed=1, critics=1)
    with torch.no_grad():
        slow = single.target_q_values(rows.next_seen, single.target_actions(rows.next_seen))[0]
        expected = (
            0.5
            * (single.q_values(rows.seen, single.to_unit_box(rows.chosen))[0] - rows.reward - rows.discount * slow) ** 2
        )
    torch.testing.assert_close(ddpg.critic_objective(single, rows).loss, expected)


def _rows() -> Any:
    draws = generator(5, "rows")

    def column(*shape: int) -> torch.Tensor:
        return torch.from_numpy(draws.standard_normal(shape).astype(np.float32))

    return TransitionRows(
        weight=torch.ones(6), seen=column(6, 3), chosen=column(6, 2), reward=column(6), noise=column(6, 2),
        discount=torch.tensor([0.9, 0.0] * 3), next_seen=column(6, 3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "steps", "score"),
    [
        pytest.param("ppo_kl", 80, 100.0, marks=pytest.mark.slow),
        ("reinforce", 60, 100.0),
        pytest.param("a2c", 1500, 80.0, marks=pytest.mark.slow),
    ],
)
def test_they_learn_cartpole(name: str, steps: int, score: float) -> None:
    """A random policy reaches 22."""
    epochs = {"learner": {"lr": 1e-3, "lr_decay": "constant", "epochs": 20}} if name == "ppo_kl" else {}
    quick: Callable[..., TrainingJob[Any]] = made
    changes = {"env": {"id": "CartPole-v1", "num_envs": 8}, "network": {"hidden": [64, 64]}, "rollout_steps": 32}
    job = quick(name, steps, **{**changes, **epochs, **({"rollout_steps": 5} if name == "a2c" else {})})
    train(job.recipe, steps=steps, callback=Diary())
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > score


def test_the_folder_says_what_it_holds(tmp_path: Path) -> None:
    job = made("td3", 1)
    job.save_policy(tmp_path / "policy")
    told = json.loads((tmp_path / "policy" / "policy.json").read_text(encoding="utf-8"))
    assert told["kind"] == "deterministic_actor_critic"
    assert told["extras"] == {"critics": 2}


EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "control"
MINE = (
    "a2c_cartpole", "ddpg_pendulum", "ppo_ahead_cartpole", "ppo_kl_cartpole", "ppo_mountain_car",
    "reinforce_control_cartpole", "td3_pendulum",
)  # fmt: skip


@pytest.mark.parametrize("name", MINE)
def test_examples_run_a_few_steps(name: str) -> None:
    overrides = ["steps=2", "evaluation.episodes=2", *(["replay.warmup=20"] if "pendulum" in name else [])]
    (stage,) = planned_runs(read_document(EXAMPLES / f"{name}.toml", overrides))
    config = stage.resolved.config
    job = load_recipe(config.recipe).build(config)
    diary = Diary()
    train(job.recipe, steps=2, callback=diary)
    job.close()
    assert len(diary.lines) == 2
