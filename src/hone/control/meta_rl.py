"""What learning to learn shares: whole trials as rows, references that know the family, and scores beside them.

Belongs here: trials laid out for a recurrent network, who they are compared with, and the learner that looks for an
initialisation. A trial is one whole episode of `control/suite/meta_tasks.py`: gradients go back through all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.control.environments.world import GymConfig
from hone.control.evaluate.returns import evaluate_returns, score_metrics
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import Floats
from hone.control.networks.recurrent import RecurrentActorCritic
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.core.state import State, array, integer, substate
from hone.estimators.means import bootstrap_mean
from hone.learner.gradient import GradientLearner
from hone.run.job import EvaluationResult, TrainingJob

Array = NDArray[np.generic]
BANDIT_TRIALS = "hone/BanditTrials-v0"


@dataclass(frozen=True, kw_only=True)
class TrialRows:
    """Whole trials; a row is a trial of T decisions, and every tensor `[n, T, ...]`."""

    weights: Tensor
    seen: Tensor
    chosen: Tensor
    logp: Tensor
    advantage: Tensor
    target: Tensor

    @property
    def weight(self) -> Tensor:
        """`[n * T]` trial by trial, as losses are."""
        return self.weights.flatten()

    def __len__(self) -> int:
        return len(self.weights)

    def sizes(self) -> NDArray[np.int64]:
        return np.broadcast_to(np.int64(self.weights.shape[1]), len(self))

    def take(self, rows: NDArray[np.int64]) -> Self:
        index = torch.from_numpy(rows).to(self.weights.device)
        return type(self)(**{name: column.index_select(0, index) for name, column in vars(self).items()})

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        """Every decision counts the same."""
        share = 1.0 / total(self.weights.numel(), reduction)
        return replace(self, weights=torch.full_like(self.weights, share))

    def tensors(self) -> Self:
        return self


def reshape_to_trials(column: Array, episodes: Episodes) -> Tensor:
    """`[N, ...]` of `episodes` -> `[E, T, ...]`.

    Raises ConfigError where they are not whole trials of one length.
    """
    lengths = episodes.lengths
    begins = episodes.observations.reshape(episodes.decisions, -1)[episodes.offsets[:-1], 0]
    ends = episodes.terminated | episodes.truncated
    if len(set(lengths.tolist())) > 1 or not (begins == 1).all() or not ends.all():
        raise ConfigError(
            f"these are no whole trials of one length: {lengths[:8].tolist()} decisions, {int((begins == 1).sum())} of "
            f"{len(episodes)} begin a trial and {int(ends.sum())} end one; set rollout_steps to the pulls of a trial, "
            "or a multiple, and use an environment of hone's trials (docs/control/meta.md)"
        )
    whole = torch.from_numpy(np.ascontiguousarray(column))
    return whole.view(len(episodes), int(lengths[0]), *whole.shape[1:])


def trial_rows(episodes: Episodes, credits: Credits) -> TrialRows:
    """On-policy rows; the weight is set by the learner."""
    assert credits.target is not None
    advantage = reshape_to_trials(credits.advantage, episodes)
    return TrialRows(
        weights=torch.ones_like(advantage),
        seen=reshape_to_trials(episodes.observations, episodes),
        chosen=reshape_to_trials(episodes.chosen, episodes),
        logp=reshape_to_trials(episodes.logp, episodes),
        advantage=advantage,
        target=reshape_to_trials(credits.target, episodes),
    )


@torch.no_grad()
def predict_trial_values(policy: RecurrentActorCritic, episodes: Episodes) -> Values:
    """The critic's values of everything seen; a trial is worth nothing beyond its end."""
    values = policy.value(reshape_to_trials(episodes.observations, episodes)).numpy()
    return Values(value=values, final=np.zeros(len(episodes), np.float32))


# ---------------------------------------------------------------------------------------------- references


@dataclass
class ThompsonTrialPolicy:
    """Thompson sampling with the family's own prior, Beta(1, 1), on what `BanditTrialsVectorEnv` shows: it acts as a
    policy does (Thompson, 1933)."""

    arms: int
    seed: int = 0
    draws_made: int = 0

    def __post_init__(self) -> None:
        self._counts = np.zeros((0, 2, self.arms))
        """`[n, 2, arms]` successes and failures."""

    def numpy_policy(self) -> Self:
        return self

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random(shape, dtype=np.float32)

    def decide(self, seen: Array, noise: Floats, mask: NDArray[np.bool_] | None = None) -> tuple[Array, Floats]:
        del mask, noise
        return self.best(seen), np.full(len(seen), np.nan, np.float32)

    def best(self, seen: Array, mask: NDArray[np.bool_] | None = None) -> Array:
        """Arms for observations `[n, 3 + arms]`."""
        del mask
        self.draws_made += 1
        flat = seen.reshape(len(seen), -1).astype(np.float64)
        if len(self._counts) != len(flat):
            self._counts = np.zeros((len(flat), 2, self.arms))
        self._counts[flat[:, 0] == 1] = 0.0
        pulled, paid = flat[:, 1 : 1 + self.arms], flat[:, 1 + self.arms, None]
        self._counts += np.stack((pulled * paid, pulled * (1.0 - paid)), axis=1)
        draws = generator(self.seed, "thompson", self.draws_made)
        return draws.beta(1.0 + self._counts[:, 0], 1.0 + self._counts[:, 1]).argmax(axis=1)


def with_thompson_baseline(job: TrainingJob[Any], env: GymConfig, *, episodes: int, seed: int) -> TrainingJob[Any]:
    """`job`, judged with Thompson sampling beside it where it plays hone's bandits: same tasks, same luck.

    `eval/of_thompson` is the share of its reward, `eval/regret` what is lost to whoever knows the best arm, whose rate
    is arms / (arms + 1) on average.
    """
    if env.id != BANDIT_TRIALS:
        return job
    arms, pulls = (env.kwargs.get(name, default) for name, default in (("arms", 5), ("pulls", 50)))
    assert isinstance(arms, int)
    assert isinstance(pulls, int)

    def judge() -> EvaluationResult:
        scores = evaluate_returns(job.recipe.learner.policy, env, episodes=episodes, seed=seed)
        others = evaluate_returns(ThompsonTrialPolicy(arms, seed=seed), env, episodes=episodes, seed=seed)
        estimate, metrics = score_metrics(scores)
        ahead = bootstrap_mean(scores - others)
        best = pulls * arms / (arms + 1)
        more: Metrics = {
            "eval/thompson": float(others.mean()),
            "eval/of_thompson": estimate.mean / float(others.mean()),
            "eval/ahead_low": ahead.low,
            "eval/ahead_high": ahead.high,
            "eval/regret": best - estimate.mean,
            "eval/thompson_regret": best - float(others.mean()),
        }
        return EvaluationResult(estimate=estimate, metrics={**metrics, **more})

    return replace(job, evaluate=judge)


# ---------------------------------------------------------------------------------------------- first order


@dataclass
class Reptile:
    """A learner that adapts to a task for `every` turns, and then moves the initialisation a little towards where it
    came: start += rate * (adapted - start) (Nichol et al., 2018). Its policy is the one that adapts."""

    inner: GradientLearner[ActorCritic, Any]
    initialisation: ActorCritic
    """The initialisation: what is learned in the long run."""
    inner_iterations: int
    outer_rate: Callable[[int], float]
    """Task (0-based) -> share of the way."""
    iterations: int = 0

    def __post_init__(self) -> None:
        self._initial_optimizer_states = [phase.optimizer.state() for phase in self.inner.phases]

    @property
    def policy(self) -> ActorCritic:
        return self.inner.policy

    def values(self, episodes: Episodes) -> Values:
        return self.inner.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        metrics = self.inner.update(episodes, credits)
        turn = self.iterations % self.inner_iterations
        self.iterations += 1
        if self.iterations % self.inner_iterations == 0:
            metrics["meta/moved"] = self._outer_step()
        return {**metrics, f"meta/reward_after_{turn}": float(episodes.reward.mean())}

    @torch.no_grad()
    def _outer_step(self) -> float:
        """Take the step -> how far the initialisation went; the next task begins there, with an optimizer at rest."""
        rate, squares = self.outer_rate(self.iterations // self.inner_iterations - 1), 0.0
        for slow, fast in zip(self.initialisation.parameters(), self.policy.parameters(), strict=True):
            change = rate * (fast - slow)
            slow.add_(change)
            fast.copy_(slow)
            squares += float(change.square().sum())
        for phase, state in zip(self.inner.phases, self._initial_optimizer_states, strict=True):
            phase.optimizer.restore(state)
        return squares**0.5

    def state(self) -> State:
        adapted = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.policy.state_dict().items()}
        return {"turns": self.iterations, "inner": self.inner.state(), "adapted": {**adapted}}

    def restore(self, state: State) -> None:
        self.iterations = integer(state, "turns")
        self.inner.restore(substate(state, "inner"))
        saved = substate(state, "adapted")
        with torch.no_grad():
            for name, tensor in self.policy.state_dict().items():
                tensor.copy_(torch.from_numpy(np.array(array(saved, name))))
