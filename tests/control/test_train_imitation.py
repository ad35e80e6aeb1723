"""Imitation: experts in processes of their own, regret that grows linearly where cloning's is quadratic, demonstrations
that show what nobody would find."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from control_runs import StepRecorder, write_short_log
from gymnasium import spaces

from hone.control.acting import NetworkActor
from hone.control.environments.world import GymConfig, open_world
from hone.control.expert_process import ExpertProcess
from hone.control.experts import (
    DaggerActor,
    DemonstrationsConfig,
    ExpertProgram,
    expert_labels,
    open_expert,
    with_demonstrations,
)
from hone.control.logs.parquet import BehaviourLog, write_log
from hone.control.networks.mlp import BoxActions, DiscreteActions, ObservationInputs, PolicySpaces
from hone.core.errors import ConfigError, UserCodeError
from hone.recipes.imitation import dagger
from hone.recipes.off_policy import dqn
from hone.recipes.offline import bc
from hone.run.loop import train

EXPERTS = """
import os, time
import numpy as np

def drift(seen):
    print("talking does no harm")
    on = (seen[:, 0].astype(int) ^ seen[:, 1].astype(int))
    return np.where(seen[:, 2] == 1, 1, on)

def lost(seen):
    raise LookupError(f"never seen {seen.shape}")

def slow(seen):
    time.sleep(30)

def gone(seen):
    os._exit(3)

def few(seen):
    return np.zeros(1)

def push(seen):
    return np.full((len(seen), 1), 0.25)
"""
HARD = 0.05
SEED = 2
"""How often the road asks for more than going on."""


class Drift(gymnasium.Env[np.ndarray, np.int64]):
    """A road: seen are two bits and whether one is off it. On it, the exclusive or of the bits keeps on; off it, 1
    leads back. Every step on the road pays 1. The bits are both 0 but for a share HARD of the steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)  # pyright: ignore[reportAttributeAccessIssue]
        self.bits, self.off = np.zeros(2, int), False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.off = False
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        right = bool(action == 1) if self.off else bool(action == self.bits[0] ^ self.bits[1])
        self.off = not right
        return self._look(), float(not self.off), False, False, {}

    def _look(self) -> np.ndarray:
        hard = int(self.np_random.integers(1, 4)) if self.np_random.random() < HARD and not self.off else 0
        self.bits = np.array([hard & 1, hard >> 1])
        return np.array([*self.bits, self.off], np.float32)


class Lock(gymnasium.Env[np.int64, np.int64]):
    """Ten right buttons one after another open it, and pay 1; a wrong one leads back to the beginning."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(10)  # pyright: ignore[reportAttributeAccessIssue]
        self.action_space = spaces.Discrete(3)  # pyright: ignore[reportAttributeAccessIssue]
        self.place = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return np.int64(0), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        self.place = self.place + 1 if action == self.place % 3 else 0
        over = self.place == 10
        return np.int64(min(self.place, 9)), float(over), over, False, {}


@pytest.fixture(autouse=True)
def _worlds() -> Iterator[None]:
    gymnasium.register("Drift-v0", entry_point=Drift, max_episode_steps=60)
    gymnasium.register("Lock-v0", entry_point=Lock, max_episode_steps=30)
    yield
    for name in ("Drift-v0", "Lock-v0"):
        gymnasium.registry.pop(name)


@pytest.fixture
def experts(tmp_path: Path) -> str:
    path = tmp_path / "experts.py"
    path.write_text(EXPERTS, encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------------------------------------- experts


def test_an_expert_answers_from_its_process(experts: str) -> None:
    expert = ExpertProcess(f"{experts}:drift")
    seen = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1]], np.float32)
    assert expert.best(seen).tolist() == [0, 1, 0, 1]
    child = expert.process.child
    assert expert.best(seen[:1]).tolist() == [0] and expert.process.child is child
    expert.close()
    assert child is not None and not child.alive


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lost", r"LookupError: never seen \(2, 3\)"),
        ("gone", "exited with code 3"),
        ("slow", "no answer within 2 s"),
        ("few", r"float64\[1\] for 2 observations"),
        ("nobody", "has no 'nobody'"),
    ],
)
def test_an_expert_that_fails_is_told_of(experts: str, name: str, said: str) -> None:
    expert = ExpertProcess(f"{experts}:{name}", deadline_s=2.0 if name == "slow" else 60.0)
    with pytest.raises(UserCodeError, match=said):
        expert.best(np.zeros((2, 3), np.float32))
    expert.close()


def test_experts_are_looked_for_at_the_door(experts: str) -> None:
    open_expert(ExpertProgram(kind="program", use=f"{experts}:drift"))
    with pytest.raises(ConfigError, match=r"did you mean experts.py"):
        open_expert(ExpertProgram(kind="program", use=f"{experts.replace('experts.py', 'expert.py')}:drift"))
    with pytest.raises(ConfigError, match=r"write path/to/file.py:name"):
        open_expert(ExpertProgram(kind="program", use="drift"))


class Says:
    def __init__(self, answer: object) -> None:
        self.answer = np.array(answer)

    def best(self, seen: np.ndarray) -> np.ndarray:
        return self.answer


def test_labels_are_actions_of_the_world() -> None:
    seen, choices = np.zeros((2, 3)), DiscreteActions(count=2, start=1)
    assert expert_labels(Says([1, 2]), seen, choices).tolist() == [1, 2]
    for wrong in ([0, 1], [1, 3], [1.5, 1], [[1], [2]]):
        with pytest.raises(UserCodeError, match=r"must choose one of 1 .. 2"):
            expert_labels(Says(wrong), seen, choices)
    box = BoxActions(low=(0.0,), high=(1.0,), shape=(1,))
    assert expert_labels(Says([[0.5], [1]]), seen, box).dtype == np.float32
    with pytest.raises(UserCodeError, match=r"the expert's actions are \[2\], expected \[2, 1\]"):
        expert_labels(Says([0.5, 1]), seen, box)


def test_the_expert_decides_less_and_less() -> None:
    class Never:
        def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return draws.random(shape, dtype=np.float32)

        def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros(len(seen), np.int64), noise

        def best(self, seen: np.ndarray) -> np.ndarray:
            return np.zeros(len(seen), np.int64)

    class Always(Never):
        def best(self, seen: np.ndarray) -> np.ndarray:
            return np.ones(len(seen), np.int64)

    seen = np.zeros((20_000, 1))
    for version, share in ((0, 1.0), (1, 0.5), (3, 0.125)):
        actor = DaggerActor(Never(), version=version, expert=Always(), actions=DiscreteActions(count=2), beta_decay=0.5)
        chosen, logp = actor.decide(seen, actor.noise(np.random.default_rng(0), (20_000,)))
        assert chosen.mean() == pytest.approx(share, abs=0.01) and np.isnan(logp).all()


# ---------------------------------------------------------------------------------------------- regret


def regret(policy: Any, horizon: int) -> float:
    """Expected number of the first `horizon` steps that end off the road under the policy's mode, by its chain."""
    best = policy.numpy_policy().best
    every = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], np.float32)
    chosen = best(every)
    chance = np.array([1 - HARD, HARD / 3, HARD / 3, HARD / 3])
    wrong, recovers = float(chance @ (chosen[:4] != [0, 1, 1, 0])), bool(chosen[4] == 1)
    off, total = 0.0, 0.0
    for _ in range(horizon):
        off = (1 - off) * wrong + off * (1 - recovers)
        total += off
    return total


def test_regret_is_linear_where_clonings_is_quadratic(experts: str, tmp_path: Path) -> None:
    """A linear policy cannot do the exclusive or, so both learners err; only one was ever shown the way back. What a
    clone does off the road is chance: with this seed it stays there."""
    env = GymConfig(id="Drift-v0", num_envs=4)
    common: dict[str, Any] = {"name": "x", "network": {"hidden": []}, "evaluation": {"episodes": 40}}
    asked = dagger.ENTRY.build(
        dagger.DaggerConfig.model_validate(
            {
                **common, "recipe": "dagger", "steps": 12, "env": env.model_dump(), "algorithm": {"beta_decay": 0.0},
                "expert": {"kind": "program", "use": f"{experts}:drift"},
                "learner": {"lr": 3e-2, "updates_per_iteration": 20, "max_grad_norm": None},
            }
        )
    )  # fmt: skip
    train(asked.recipe, steps=12, callback=StepRecorder())

    expert = ExpertProcess(f"{experts}:drift")
    world = open_world(env, steps=300, seed=5)
    actor = DaggerActor(
        asked.recipe.learner.policy.numpy_policy(), expert=expert, actions=DiscreteActions(count=2), beta_decay=1.0
    )
    episodes = world.rollout(actor)
    assert (episodes.reward == 1).all()
    log = BehaviourLog(
        episodes=episodes,
        observation_space=world.envs.single_observation_space,
        action_space=world.envs.single_action_space,
    )
    write_log(tmp_path / "log.parquet", log)
    cloned = bc.ENTRY.build(
        bc.BcConfig.model_validate(
            {
                **common, "recipe": "bc", "seed": SEED, "steps": 240, "log": str(tmp_path / "log.parquet"),
                "env": env.model_dump(), "learner": {"lr": 3e-2, "max_grad_norm": None},
            }
        )
    )  # fmt: skip
    train(cloned.recipe, steps=240, callback=StepRecorder())

    learner, cloner = asked.recipe.learner.policy, cloned.recipe.learner.policy
    assert regret(learner, 1) == pytest.approx(regret(cloner, 1), abs=HARD) and regret(learner, 1) > 0
    growth = [regret(policy, 16) / regret(policy, 4) for policy in (learner, cloner)]
    assert growth[0] == pytest.approx(4.0, rel=0.1)  # linear: four times the steps, four times the regret
    assert growth[1] > 10.0  # quadratic: sixteen times, less what is already lost
    assert asked.evaluate is not None and cloned.evaluate is not None
    assert asked.evaluate().metrics["eval/score"] > cloned.evaluate().metrics["eval/score"] + 5
    expert.close()
    asked.close()


# ---------------------------------------------------------------------------------------------- demonstrations


def opened(folder: Path) -> str:
    """A log of ten openings."""

    class Knows(NetworkActor):
        def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
            return np.zeros(shape, np.float32)

        def decide(self, seen: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return seen % 3, np.full(len(seen), np.nan, np.float32)

    policy = dqn.ENTRY.build(dqn.DqnConfig.model_validate(lock(1))).recipe.learner.policy
    world = open_world(GymConfig(id="Lock-v0"), steps=100, seed=0)
    episodes = world.rollout(Knows(policy.numpy_policy()))
    assert episodes.reward.sum() == 10
    envs = world.envs
    shown = BehaviourLog(
        episodes=episodes,
        observation_space=envs.single_observation_space,
        action_space=envs.single_action_space,
    )
    write_log(folder / "opened.parquet", shown)
    return str(folder / "opened.parquet")


def lock(steps: int, **changes: Any) -> dict[str, Any]:
    return {
        "recipe": "dqn", "name": "x", "steps": steps, "env": {"id": "Lock-v0"},
        "network": {"hidden": [32], "layer_norm": False}, "learner": {"lr": 3e-3, "updates_per_iteration": 16},
        "replay": {"collect": 32, "batch": 64, "warmup": 100}, "evaluation": {"episodes": 1}, **changes,
    }  # fmt: skip


def test_demonstrations_show_what_nobody_finds(tmp_path: Path) -> None:
    """A lock of ten buttons: by chance it opens once in 3^10 tries."""
    scores: list[float] = []
    for shown in (None, {"log": opened(tmp_path), "share": 0.5}):
        job = dqn.ENTRY.build(
            dqn.DqnConfig.model_validate(lock(60, algorithm={"discount": 0.9, "demonstrations": shown}))
        )
        train(job.recipe, steps=60, callback=StepRecorder())
        assert job.evaluate is not None
        scores.append(job.evaluate().metrics["eval/score"])
    assert scores == [0.0, 1.0]


def test_a_share_of_every_batch(tmp_path: Path) -> None:
    space = PolicySpaces(inputs=ObservationInputs(size=10, one_hot=True), actions=DiscreteActions(count=3))
    method = dqn.DqnConfig.model_validate(lock(1)).method(space)
    assert with_demonstrations(None, space)(method) is method
    mixed = with_demonstrations(DemonstrationsConfig(log=opened(tmp_path), share=0.25), space)(method)
    memory = mixed.buffer
    assert mixed.shuffle and not method.shuffle
    world = open_world(GymConfig(id="Lock-v0"), steps=20, seed=1)
    policy = dqn.ENTRY.build(dqn.DqnConfig.model_validate(lock(1))).recipe.learner.policy
    memory.add(world.rollout(NetworkActor(policy.epsilon_greedy_policy(epsilon=1.0))))
    sample = memory.sample(40, np.random.default_rng(0))
    shown = sample.chosen == sample.observations % 3
    assert shown[:10].all() and not shown[10:].all() and len(memory) == 20


def test_a_log_of_another_world_is_refused(tmp_path: Path) -> None:
    job = lock(1, algorithm={"demonstrations": {"log": write_short_log(tmp_path, "CartPole-v1")}})
    with pytest.raises(ConfigError, match="is of another world"):
        dqn.ENTRY.build(dqn.DqnConfig.model_validate(job))
