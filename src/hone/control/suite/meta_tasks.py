"""Trials for meta-reinforcement learning: a sampled bandit or small environment lasts for one trial.

Belongs here: families of tasks in one array form (`BanditTrialsVectorEnv`, `ChainTrialsVectorEnv`,
`SineTrialsVectorEnv`), as Gymnasium vector environments. A trial is one episode of `pulls` steps, which may contain
several episodes of the task. The observation holds the last transition and nothing else about the task:
`[begins, last action (one-hot), last reward, last end, task observation]` (Duan et al., 2016). `begins` is 1 before
the first decision of a trial, when recurrent state must be reset.

The rewards of all arms are sampled at the start of a trial: two policies evaluated on one seed have the same tasks and
common random numbers.
"""

from abc import abstractmethod
from typing import Any, ClassVar, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

Seen: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.float64]
_TrialStep: TypeAlias = tuple[Seen, NDArray[np.generic], NDArray[np.generic], NDArray[np.generic], dict[str, Any]]


class TrialsVectorEnv(VectorEnv[Seen, NDArray[np.int64], NDArray[np.generic]]):
    """Vectorised trials; the caller resets ended ones by `reset_mask`."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": []}  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, num_envs: int, *, actions: int, shown: int, length: int, trials: int = 0) -> None:
        """`trials`: trials for which all environments share a task; 0: a new task per environment and trial."""
        self.num_envs, self.actions, self.length = num_envs, actions, length
        self.trials, self.begun = trials, 0
        self.size = 1 + actions + 2 + shown
        """Size of an observation."""
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (self.size,), np.float32)
        self.single_action_space = spaces.Discrete(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.age = np.zeros(num_envs, dtype=np.int64)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        begins = np.ones(self.num_envs, np.bool_) if options is None else np.asarray(options["reset_mask"], np.bool_)
        self.draw_tasks(begins)
        self.age[begins] = 0
        return self._seen(begins), {}

    def step(self, actions: NDArray[np.int64]) -> _TrialStep:
        chosen = np.asarray(actions, np.int64)
        reward, ended = self.task_step(chosen)
        self.age += 1
        over = self.age >= self.length
        seen = self._seen(np.zeros(self.num_envs, np.bool_), chosen, reward, ended)
        return seen, reward, over, np.zeros(self.num_envs, np.bool_), {}

    def _seen(
        self,
        begins: NDArray[np.bool_],
        chosen: NDArray[np.int64] | None = None,
        reward: Floats | None = None,
        ended: NDArray[np.bool_] | None = None,
    ) -> Seen:
        seen = np.zeros((self.num_envs, self.size), np.float32)
        seen[:, 0] = begins
        if chosen is not None and reward is not None and ended is not None:
            seen[np.arange(self.num_envs), 1 + chosen] = 1.0
            seen[:, 1 + self.actions] = reward
            seen[:, 2 + self.actions] = ended
        seen[:, 3 + self.actions :] = self.task_observation()
        return seen

    def keeps_task(self) -> bool:
        """True if the trials that begin now keep the task of the previous ones."""
        self.begun += 1
        return self.trials > 0 and (self.begun - 1) % self.trials > 0

    @abstractmethod
    def draw_tasks(self, begins: NDArray[np.bool_]) -> None:
        """Sample tasks and random numbers of the trials that begin; the others keep theirs."""

    @abstractmethod
    def task_step(self, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        """Step the task; returns rewards `[B]`, and whether an episode of the task ended and restarts."""

    def task_observation(self) -> Floats:
        """Observation of the task `[B, *]`."""
        return np.zeros((self.num_envs, 0))


class BanditTrialsVectorEnv(TrialsVectorEnv):
    """Bernoulli bandits with uniform random rates per trial and `pulls` decisions."""

    def __init__(self, num_envs: int, arms: int = 5, pulls: int = 50) -> None:
        super().__init__(num_envs, actions=arms, shown=0, length=pulls)
        self.rates = np.zeros((num_envs, arms))
        """True rates `[B, arms]`, for evaluation."""
        self.luck = np.zeros((num_envs, pulls, arms))

    def draw_tasks(self, begins: NDArray[np.bool_]) -> None:
        self.rates[begins] = self.np_random.random(self.rates.shape)[begins]
        self.luck[begins] = self.np_random.random(self.luck.shape)[begins]

    def task_step(self, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        row = np.arange(self.num_envs)
        paid = self.luck[row, self.age, chosen] < self.rates[row, chosen]
        return paid.astype(np.float64), np.zeros(self.num_envs, np.bool_)


class ChainTrialsVectorEnv(TrialsVectorEnv):
    """Chain of `states` with a reward at one end; reaching an end restarts the task's episode in the middle.

    The rewarded end (1, the other 0) and the action that goes left are sampled per trial and hidden. The task
    observation is the one-hot state. A trial has `pulls` steps.
    """

    def __init__(self, num_envs: int, states: int = 5, pulls: int = 30, trials: int = 0) -> None:
        super().__init__(num_envs, actions=2, shown=states, length=pulls, trials=trials)
        self.states = states
        self.place = np.zeros(num_envs, dtype=np.int64)
        self.prize = np.zeros(num_envs, dtype=np.bool_)
        """True if the right end is rewarded `[B]`."""
        self.swapped = np.zeros(num_envs, dtype=np.bool_)
        """True if action 0 goes right `[B]`."""

    def draw_tasks(self, begins: NDArray[np.bool_]) -> None:
        if not self.keeps_task():
            drawn = self.np_random.random((1 if self.trials else self.num_envs, 2)) < 0.5
            drawn = np.broadcast_to(drawn, (self.num_envs, 2))
            self.prize[begins], self.swapped[begins] = drawn[begins, 0], drawn[begins, 1]
        self.place[begins] = self.states // 2

    def task_step(self, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        right = (chosen == 1) ^ self.swapped
        self.place += np.where(right, 1, -1)
        ended = (self.place == 0) | (self.place == self.states - 1)
        paid = ended & ((self.place > 0) == self.prize)
        self.place[ended] = self.states // 2
        return paid.astype(np.float64), ended

    def task_observation(self) -> Floats:
        return np.eye(self.states)[self.place]


class SineTrialsVectorEnv(TrialsVectorEnv):
    """Sine tasks: given x in [-5, 5], choose the level of `arms` in -5 to 5 nearest to height * sin(x + phase).

    The family of Finn et al. (2017) as a bandit with reward 1 - distance / 5. All environments share a task for
    `trials` trials, so that one update helps in the next.
    """

    def __init__(self, num_envs: int, arms: int = 11, pulls: int = 50, trials: int = 1) -> None:
        super().__init__(num_envs, actions=arms, shown=1, length=pulls, trials=max(1, trials))
        self.height, self.phase = 1.0, 0.0
        self.x = np.zeros((num_envs, pulls + 1))

    def draw_tasks(self, begins: NDArray[np.bool_]) -> None:
        if not self.keeps_task():
            drawn = self.np_random.random(2)
            self.height, self.phase = float(1.0 + 4.0 * drawn[0]), float(np.pi * drawn[1])
        self.x[begins] = self.np_random.uniform(-5.0, 5.0, self.x.shape)[begins]

    def task_step(self, chosen: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        x = self.x[np.arange(self.num_envs), self.age]
        level = -5.0 + 10.0 * chosen / (self.actions - 1)
        paid = 1.0 - np.abs(level - self.height * np.sin(x + self.phase)) / 5.0
        return paid, np.zeros(self.num_envs, np.bool_)

    def task_observation(self) -> Floats:
        return self.x[np.arange(self.num_envs), self.age, None] / 5.0


class SingleTrialEnv(gymnasium.Env[Seen, np.int64]):
    """Single trial as a Gymnasium environment."""

    def __init__(self, trials: TrialsVectorEnv) -> None:
        self.trials = trials
        self.observation_space = trials.single_observation_space
        self.action_space = trials.single_action_space  # pyright: ignore[reportAttributeAccessIssue] - of numpy's int

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        seen, _ = self.trials.reset(seed=seed)
        return seen[0], {}

    def step(self, action: np.int64) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        seen, reward, over, _, _ = self.trials.step(np.array([action], np.int64))
        return seen[0], float(reward[0]), bool(over[0]), False, {}


def make_bandit_trial(arms: int = 5, pulls: int = 50) -> SingleTrialEnv:
    """Make a single environment of `BanditTrialsVectorEnv`."""
    return SingleTrialEnv(BanditTrialsVectorEnv(1, arms=arms, pulls=pulls))


def make_chain_trial(states: int = 5, pulls: int = 30, trials: int = 0) -> SingleTrialEnv:
    """Make a single environment of `ChainTrialsVectorEnv`."""
    return SingleTrialEnv(ChainTrialsVectorEnv(1, states=states, pulls=pulls, trials=trials))


def make_sine_trial(arms: int = 11, pulls: int = 50, trials: int = 1) -> SingleTrialEnv:
    """Make a single environment of `SineTrialsVectorEnv`."""
    return SingleTrialEnv(SineTrialsVectorEnv(1, arms=arms, pulls=pulls, trials=trials))
