"""GAIL: it imitates whatever the world pays, resumes bitwise, and takes no demonstrations of another world."""

import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from control_runs import StepRecorder
from gymnasium import spaces
from recipe_runs import files, restored, saved

from hone.certify.check import build_certificate
from hone.certify.control_probes import synthetic_control_episodes
from hone.certify.job import job_gradient_probes
from hone.cli.main import main
from hone.control.environments.world import GymConfig, open_world
from hone.control.experts import require_same_spaces
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.discriminator import AdversarialActorCritic
from hone.control.networks.mlp import DiscreteActions, MlpConfig, ObservationInputs, PolicySpaces
from hone.control.rows import step_rows
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, HoneError
from hone.recipes.imitation import gail
from hone.run.job import TrainingJob
from hone.run.loop import train

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "control"
Controller = Callable[[np.ndarray], np.ndarray]


def steady(seen: np.ndarray) -> np.ndarray:
    return (seen @ np.array([0.1, 0.4, 3.0, 1.0]) > 0.0).astype(np.int64)


def swinging(seen: np.ndarray) -> np.ndarray:
    """Pushes a pendulum the way it turns, farther than the box allows no more than half of the time."""
    return (2.0 * np.sign(seen[:, 2:])).astype(np.float32)


class Sides(gymnasium.Env[np.ndarray, np.int64]):
    """Shows two numbers that nothing influences, and pays nothing: all there is to learn is what somebody else did."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)  # pyright: ignore[reportAttributeAccessIssue]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._look(), 0.0, False, False, {}

    def _look(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


def greater(seen: np.ndarray) -> np.ndarray:
    return (seen[:, 0] > seen[:, 1]).astype(np.int64)


class By:
    """Decides by a controller."""

    version = 0

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape, np.float32)

    def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.controller(seen), np.zeros(len(seen), np.float32)


def shown(folder: Path, name: str, controller: Controller, *, steps: int = 60) -> str:
    """A log of `steps` decisions in each of two environments."""
    world = open_world(GymConfig(id=name, num_envs=2), steps=steps, seed=11)
    envs, path = world.envs, folder / f"{name.replace('/', '_')}.parquet"
    log = BehaviourLog(
        episodes=world.rollout(By(controller)),
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
    )
    write_log(path, log)
    world.close()
    return str(path)


@pytest.fixture(autouse=True)
def _sides() -> Iterator[None]:
    gymnasium.register("Sides-v0", entry_point=Sides, max_episode_steps=16)
    yield
    gymnasium.registry.pop("Sides-v0")


SMALL: dict[str, Any] = {
    "rollout_steps": 14, "network": {"hidden": [16]}, "evaluation": {"episodes": 3},
    "learner": {"lr": 1e-3, "epochs": 2, "minibatches": 2},
}  # fmt: skip
CASES: dict[str, tuple[str, Controller, dict[str, Any]]] = {
    "choices": ("CartPole-v1", steady, {"env": {"id": "CartPole-v1", "num_envs": 3}}),
    "box": (
        "Pendulum-v1", swinging,
        {
            "env": {"id": "Pendulum-v1", "num_envs": 2, "clip_actions": True},
            "algorithm": {"reward": "odds", "normalise_observations": True, "discriminator": {"every": 3}},
        },
    ),
    "states": (
        "CliffWalking-v1", lambda seen: (seen % 4).astype(np.int64),
        {
            "env": {"id": "CliffWalking-v1", "num_envs": 2, "max_episode_steps": 20},
            "algorithm": {"reward": "negative", "discriminator": {"gradient_penalty": 0.0}},
        },
    ),
}  # fmt: skip


def config_of(log: str, **changes: Any) -> gail.GailConfig:
    settings = {"recipe": "gail", "name": "x", "seed": 3, "steps": 8, "log": log, **SMALL, **changes}
    return gail.GailConfig.model_validate(settings)


def made(case: str, folder: Path, **changes: Any) -> TrainingJob[AdversarialActorCritic]:
    name, controller, settings = CASES[case]
    return gail.ENTRY.build(config_of(shown(folder, name, controller), **{**settings, **changes}))


def trained(job: TrainingJob[AdversarialActorCritic], steps: int) -> list[dict[str, float]]:
    told: list[dict[str, float]] = []
    source = job.recipe.source

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        told.append({**metrics, **source.metrics()})

    train(job.recipe, steps=steps, callback=report)
    return told


# ------------------------------------------------------------------------------------------------- the run


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case: str, tmp_path: Path) -> None:
    straight, whole = made(case, tmp_path), StepRecorder()
    train(straight.recipe, steps=8, callback=whole)

    first, begun = made(case, tmp_path), StepRecorder()
    train(first.recipe, steps=5, callback=begun)
    saved(first, tmp_path / "state")
    second = restored(made(case, tmp_path), tmp_path / "state")
    train(second.recipe, steps=8, callback=begun, first_step=6)

    assert begun.lines == whole.lines
    straight.save_policy(tmp_path / "one")
    second.save_policy(tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert straight.evaluate is not None and second.evaluate is not None
    assert straight.evaluate().metrics == second.evaluate().metrics
    for job in (straight, first, second):
        job.close()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("own_credit", [True, False])
def test_no_cut_changes_a_gradient(case: str, own_credit: bool, tmp_path: Path) -> None:
    name, controller, settings = CASES[case]
    config = config_of(shown(tmp_path, name, controller), **settings)
    job = gail.ENTRY.build(config)
    found = job_gradient_probes(job, config, own_credit=own_credit)
    assert [trial.name for trial in found] == ["policy", "discriminator"]
    checks = build_certificate(found, recipe="gail", config_hash="").checks
    assert [check.name for check in checks if not check.passed] == []
    job.close()


def test_what_the_world_pays_has_no_influence(tmp_path: Path) -> None:
    """CartPole by Sutton and Barto pays 0 a step and -1 for a fall, instead of 1: the same weights, bit for bit."""
    scores: list[float] = []
    for number, kwargs in enumerate(({}, {"sutton_barto_reward": True})):
        job = made("choices", tmp_path, env={"id": "CartPole-v1", "num_envs": 3, "kwargs": kwargs})
        scores.append(float(np.nanmean([line.get("reward/mean", np.nan) for line in trained(job, 8)])))
        job.save_policy(tmp_path / str(number))
        job.close()
    assert scores[0] > 8 and scores[1] == -1.0
    weights = [(tmp_path / str(number) / "model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]


def test_judging_leaves_the_discriminator_alone(tmp_path: Path) -> None:
    job = made("choices", tmp_path)
    trained(job, 2)
    policy = job.recipe.learner.policy
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    assert job.evaluate is not None
    job.evaluate()
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    job.close()


# ------------------------------------------------------------------------------------------------- the losses


def test_the_discriminators_loss_by_a_slow_version() -> None:
    """Row by row in float64: two logits, and the slope between the two pairs by central differences."""
    space = PolicySpaces(inputs=ObservationInputs(size=3), actions=DiscreteActions(count=2))
    network = MlpConfig(hidden=[5])
    policy = AdversarialActorCritic(space, network, seed=0, discriminator=network).double()
    episodes, theirs = (synthetic_control_episodes(policy, seed=seed) for seed in (0, 1))
    rows = step_rows(episodes, Credits(advantage=episodes.reward)).weighted()
    seen, chosen = torch.from_numpy(np.array(theirs.observations)), torch.from_numpy(theirs.chosen)
    policy.discriminator.update_statistics(seen, chosen)
    pairs = gail.DemonstrationPool(seen=seen, chosen=chosen, seed=5).pair_with_demonstrations(policy, rows, 7)
    found = gail.discriminator_objective(policy, pairs, penalty=2.0).loss

    judge = policy.discriminator
    first, second = (weight.detach().numpy() for weight, _ in judge.network.layer_parameters)

    def logit(pair: np.ndarray) -> float:
        biases = [bias.detach().numpy() for _, bias in judge.network.layer_parameters]
        return float(second[0] @ np.tanh(first @ pair + biases[0]) + biases[1][0])

    own, their = (
        judge.encode_pairs(pairs.seen, pairs.chosen).numpy(),
        judge.encode_pairs(pairs.expert_seen, pairs.expert_chosen).numpy(),
    )
    for row in range(len(pairs)):
        middle = own[row] + float(pairs.interpolation[row]) * (their[row] - own[row])
        steps = 1e-6 * np.eye(len(middle))
        slope = np.array([(logit(middle + step) - logit(middle - step)) / 2e-6 for step in steps])
        slow = np.log1p(np.exp(-logit(their[row]))) + np.log1p(np.exp(logit(own[row])))
        slow += 2.0 * (np.linalg.norm(slope) - 1.0) ** 2
        assert found[row].item() == pytest.approx(slow, rel=1e-6)


def test_the_gradient_with_the_penalty_by_differences() -> None:
    space = PolicySpaces(inputs=ObservationInputs(size=3), actions=DiscreteActions(count=2))
    policy = AdversarialActorCritic(space, MlpConfig(), seed=0, discriminator=MlpConfig(hidden=[4])).double()
    episodes = synthetic_control_episodes(policy, seed=0)
    rows = step_rows(episodes, Credits(advantage=episodes.reward)).weighted()
    seen, chosen = torch.from_numpy(np.array(episodes.observations)), torch.from_numpy(episodes.chosen)
    pairs = gail.DemonstrationPool(seen=seen.flip(0), chosen=chosen, seed=5).pair_with_demonstrations(policy, rows, 0)

    def loss() -> torch.Tensor:
        return gail.discriminator_objective(policy, pairs, penalty=3.0).loss.mean()

    loss().backward()
    step = 1e-6
    for parameter in policy.discriminator.parameters():
        assert parameter.grad is not None
        for place in range(parameter.numel()):
            entry = parameter.detach().view(-1)[place : place + 1]
            ends: list[float] = []
            for sign in (1, -1):
                entry += sign * step
                ends.append(loss().item())
                entry -= sign * step
            slope = (ends[0] - ends[1]) / (2 * step)
            assert parameter.grad.view(-1)[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_demonstrations_are_drawn_by_the_number_of_the_update() -> None:
    shown_seen = torch.arange(50.0)[:, None]
    drawn = gail.DemonstrationPool(seen=shown_seen, chosen=torch.arange(50), seed=1)
    policy = AdversarialActorCritic(
        PolicySpaces(inputs=ObservationInputs(size=1), actions=DiscreteActions(count=2)),
        MlpConfig(),
        seed=0,
        discriminator=MlpConfig(),
    )
    episodes = synthetic_control_episodes(policy, seed=0)
    rows = step_rows(episodes, Credits(advantage=episodes.reward))
    one, again, other = (drawn.pair_with_demonstrations(policy, rows, update) for update in (4, 4, 5))
    assert torch.equal(one.expert_chosen, again.expert_chosen) and torch.equal(one.interpolation, again.interpolation)
    assert not torch.equal(one.expert_chosen, other.expert_chosen)
    assert torch.equal(one.expert_seen[:, 0], one.expert_chosen.float()), "a decision stays with what was seen"
    assert torch.equal(one.seen, rows.seen) and torch.equal(one.weight, rows.weight)
    picks = torch.cat([drawn.pair_with_demonstrations(policy, rows, update).expert_chosen for update in range(100)])
    assert len(picks.unique()) == 50


# ------------------------------------------------------------------------------------------------- what is learnt


@pytest.mark.parametrize(
    "reward", ["odds", *(pytest.param(one, marks=pytest.mark.slow) for one in ("positive", "negative"))]
)
def test_it_does_what_was_shown(reward: str, tmp_path: Path) -> None:
    """No step leads anywhere and only a clock ends an episode: whatever the sign, the reward is in the likeness."""
    log = shown(tmp_path, "Sides-v0", greater, steps=200)
    job = gail.ENTRY.build(
        config_of(
            log, steps=40, env={"id": "Sides-v0", "num_envs": 8}, rollout_steps=32, network={"hidden": [32]},
            algorithm={"reward": reward, "discount": 0.5, "discriminator": {"network": {"hidden": [32]}, "every": 1}},
            learner={"lr": 3e-3, "epochs": 4, "minibatches": 4},
        )
    )  # fmt: skip
    told = trained(job, 40)
    seen = np.random.default_rng(0).uniform(-1, 1, (2000, 2)).astype(np.float32)
    assert (job.recipe.learner.policy.numpy_policy().best(seen) == greater(seen)).mean() > 0.9
    assert all(np.isfinite(value) for line in told for value in line.values())
    job.close()


@pytest.mark.slow  # adversarial training from nothing; what was shown is done in the tests beside it
def test_it_balances_by_demonstrations_alone(tmp_path: Path) -> None:
    """120 decisions of a controller; chance balances for 22 steps."""
    job = gail.ENTRY.build(
        config_of(
            shown(tmp_path, "CartPole-v1", steady), steps=40, env={"id": "CartPole-v1", "num_envs": 8},
            rollout_steps=64, network={}, evaluation={"episodes": 20},
            learner={"lr": 1e-3, "epochs": 10, "minibatches": 2},
        )
    )  # fmt: skip
    told = trained(job, 40)
    assert job.evaluate is not None
    assert job.evaluate().metrics["eval/score"] > 150
    assert {"discriminator/loss", "discriminator/accuracy_expert", "discriminator/accuracy_policy"} <= told[-1].keys()
    job.close()


# ------------------------------------------------------------------------------------------------- doors


def test_demonstrations_of_another_world_are_refused(tmp_path: Path) -> None:
    """Also where the shapes agree: four numbers are not one of four states."""
    lake = "FrozenLake-v1"
    log = shown(tmp_path, lake, lambda seen: np.zeros(len(seen), np.int64))
    said = r"it has 16 states from 0 and 4 numbered actions from 0, the environment 4 numbers seen and 2 numbered"
    for door in (gail.ENTRY.build, gail.ENTRY.check):
        with pytest.raises(ConfigError, match=said):
            door(config_of(log, env={"id": "CartPole-v1"}))
    states = PolicySpaces(inputs=ObservationInputs(size=4, one_hot=True), actions=DiscreteActions(count=2))
    numbers = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=2))
    shifted = PolicySpaces(inputs=ObservationInputs(size=4), actions=DiscreteActions(count=2, start=1))
    for theirs in (states, shifted):
        with pytest.raises(ConfigError, match="is of another world"):
            require_same_spaces("log", "log", theirs, numbers)
    require_same_spaces("log", "log", numbers, numbers)


def test_all_faults_come_at_once_and_before_work(tmp_path: Path) -> None:
    config = config_of(str(tmp_path / "none.parquet"), env={"id": "Pendulum-v1", "clip_actions": False})
    with pytest.raises(HoneError, match=r"(?s)none.parquet: there is no such file.*env.clip_actions = false"):
        gail.ENTRY.check(config)
    assert all(isinstance(value, str) for value in config.derive().values())
    lake = config_of("none", env={"id": "FrozenLake-v1"}, algorithm={"normalise_observations": True})
    with pytest.raises(HoneError, match=r"normalise\.observations = true"):
        gail.ENTRY.check(lake)
    with pytest.raises(ValueError, match="cannot be cut"):
        config_of("none", env={"id": "CartPole-v1", "num_envs": 1}, rollout_steps=7)


def test_a_resume_with_other_demonstrations_is_told_by_the_fingerprint(tmp_path: Path) -> None:
    one = made("choices", tmp_path)
    two = gail.ENTRY.build(config_of(shown(tmp_path, "CartPole-v1", steady, steps=61), **CASES["choices"][2]))
    assert one.dataset_fingerprint is not None and one.dataset_fingerprint != two.dataset_fingerprint
    one.close()
    two.close()


@pytest.mark.parametrize("task", ["cartpole", "mountain_car"])
def test_an_example_is_recorded_trained_resumed_and_judged(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["demonstrations.py", task, "--every", "10"])
    runpy.run_path(str(EXAMPLES / "demonstrations.py"), run_name="__main__")
    assert "decisions of 5 episodes" in capsys.readouterr().out
    example = str(EXAMPLES / f"gail_{task}.toml")
    name = tomllib.loads(Path(example).read_text(encoding="utf-8"))["name"]
    assert main(["train", example, "--dry-run"]) == 0, capsys.readouterr().err
    assert main(["train", example, "steps=2", "evaluation.episodes=2"]) == 0, capsys.readouterr().err
    assert main(["train", example, "steps=3", "evaluation.episodes=2", "--resume"]) == 0, capsys.readouterr().err
    assert main(["show", f"runs/{name}"]) == 0, capsys.readouterr().err
    assert main(["eval", f"runs/{name}", "--problems", "2"]) == 0, capsys.readouterr().err
    assert "eval/score" in capsys.readouterr().out
