"""Logs to learn from, made here: policies caught at stages of their training, and mixtures with chance, recorded.

Belongs here: whoever acts for a log, with the probability of what was really done, and the stages that logs are named
after. The formats on disk are `control/logs/parquet.py`.

| log | decided by |
|---|---|
| `random` | chance |
| `medium` | the policy when it had made half of the way that its training made |
| `expert` | the best policy of its training |
| `mixed` | a quarter chance, 60% the policies on the way to the medium one, 15% the expert |

What imitation does with `mixed` is what most of it did, and most of it was bad in ways of its own: chance alone
would be averaged out, and a single policy, however weak, shows values one side of the world only.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig, evaluation_limit
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.environments.world import open_world
from hone.control.logs.parquet import BehaviourLog
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import DiscreteActions, FactoredActions, Floats, PolicySpaces
from hone.control.networks.numpy_memory import NumpyMemoryPolicy
from hone.control.networks.numpy_policies import (
    LOG_STD_RANGE,
    LOG_TWO_PI,
    Flags,
    NumpyCategoricalPolicy,
    NumpyGaussianPolicy,
    NumpyGreedyPolicy,
    NumpyPolicy,
    NumpySquashedGaussianPolicy,
    uniform_choices,
)
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import ConfigError
from hone.core.random import generator, key
from hone.run.job import TrainingJob
from hone.run.loop import train

Quality: TypeAlias = Literal["random", "medium", "expert", "mixed"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
Array: TypeAlias = NDArray[np.generic]
EARLY_SHARE, EXPERT_SHARE = 0.6, 0.15
"""Shares of a mixed log from early policies and from the best one; the rest is left to chance."""


# ---------------------------------------------------------------------------------------------- who acts


@dataclass
class EpsilonMixture:
    """A policy that with probability `epsilon` does anything legal instead, uniformly; log-probabilities are the
    mixture's, NaN where nobody knows the policy's density."""

    numpy_policy: NumpyPolicy
    spaces: PolicySpaces
    epsilon: float
    version: int = 0

    def episode_memory(self) -> NumpyMemoryPolicy | None:
        """The policy, where it has a memory."""
        return self.numpy_policy if isinstance(self.numpy_policy, NumpyMemoryPolicy) else None

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The policy's own numbers, flattened, after one that tosses the coin and those that choose anything."""
        actions = self.spaces.actions
        size = 1 if isinstance(actions, DiscreteActions) else actions.size
        own = self.numpy_policy.noise(draws, shape).reshape(*shape, -1)
        return np.concatenate((draws.random((*shape, 1 + size), dtype=np.float32), own), axis=-1)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """`[B, *observation]`, and masks `[B, choices]` where there are some -> choices `[B, *action]`, and their
        log-probabilities `[B]` nats."""
        actions = self.spaces.actions
        assert not isinstance(actions, FactoredActions)  # the environments are opened without such actions
        size = 1 if isinstance(actions, DiscreteActions) else actions.size
        own = noise[:, 1 + size :]
        theirs, _ = self.numpy_policy.decide(
            seen, own[:, 0] if isinstance(self.numpy_policy, NumpyCategoricalPolicy) else own, mask
        )
        uniform = noise[:, 1 : 1 + size]
        if isinstance(actions, DiscreteActions):
            index, count = uniform_choices(uniform[:, 0], actions.count, mask)
            anything: Array = actions.start + index
            volume: Any = np.log(count)
        else:
            if not actions.is_finite:
                raise ConfigError(f"chance cannot choose from a box without bounds: {actions}")
            low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
            width = np.asarray(actions.high) - np.asarray(actions.low)
            anything, volume = low + uniform * (high - low), np.log(width[width > 0]).sum()
        tossed = (noise[:, 0] < self.epsilon).reshape(-1, *([1] * (theirs.ndim - 1)))
        chosen = np.where(tossed, anything.reshape(theirs.shape), theirs).astype(theirs.dtype)
        if self.epsilon == 1:
            return chosen, np.full(len(chosen), -volume, np.float32)
        density = log_density(self.numpy_policy, seen, chosen, mask)
        with np.errstate(divide="ignore"):
            mixed = np.logaddexp(np.log(self.epsilon) - volume, np.log1p(-self.epsilon) + density)
        return chosen, mixed.astype(np.float32)


def log_density(acting: NumpyPolicy, seen: Array, chosen: Array, mask: Flags | None = None) -> NDArray[np.float64]:
    """`[n]` nats: how likely the policy found what was chosen, among the legal choices of a `mask` `[n, choices]`; NaN
    for kinds that do not say."""
    match acting:
        case NumpyCategoricalPolicy():
            logits = acting.legal_outputs(seen, mask).astype(np.float64)
            logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
            return logits[np.arange(len(seen)), chosen.astype(np.int64) - acting.actions.start]
        case NumpyGreedyPolicy():
            other = acting.epsilon / (acting.actions.count if mask is None else mask.sum(axis=1))
            with np.errstate(divide="ignore"):
                return np.log(other + (chosen == acting.best(seen, mask)) * (1.0 - acting.epsilon))
        case NumpyGaussianPolicy() if acting.actions.gaussian != "unscaled":
            return acting.log_density(seen, chosen).astype(np.float64)
        case NumpyGaussianPolicy():
            mean, log_std = acting.network(acting.inputs.array(seen)), acting.log_std
            return _normal_log_density(chosen.reshape(mean.shape), mean, np.broadcast_to(log_std, mean.shape))
        case NumpySquashedGaussianPolicy():
            mean, log_std = np.split(acting.network(acting.inputs.array(seen)), 2, axis=1)
            low, high = np.asarray(acting.actions.low), np.asarray(acting.actions.high)
            half = np.where(high > low, 0.5 * (high - low), 1.0)
            unit = np.clip((chosen.reshape(mean.shape) - low) / half - 1.0, -1 + 1e-7, 1 - 1e-7)
            slope = np.log1p(-unit * unit) + np.log(half)
            return _normal_log_density(np.arctanh(unit), mean, np.clip(log_std, *LOG_STD_RANGE)) - slope.sum(axis=1)
        case _:
            return np.full(len(seen), np.nan)


def _normal_log_density(x: Array, mean: Floats, log_std: Floats) -> NDArray[np.float64]:
    """Log density `[n]` nats of `x` `[n, a]` under N(mean, exp(log_std)^2)."""
    scaled = (x.astype(np.float64) - mean) * np.exp(-log_std.astype(np.float64))
    return (-0.5 * scaled * scaled - log_std - 0.5 * LOG_TWO_PI).sum(axis=1)


# ---------------------------------------------------------------------------------------------- stages of a training


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySnapshots:
    """Policies from one training, and what they score when they act as for a log."""

    random: ControlPolicy
    medium: ControlPolicy
    expert: ControlPolicy
    scores: tuple[float, float, float]
    """Mean returns of the three; that of `random` is of chance."""
    early: tuple[ControlPolicy, ...] = ()
    """What its training made before it was as good as `medium`, in order; none: `medium` stands for them."""


def train_snapshots(
    job: TrainingJob[Any],
    env: GymConfig,
    *,
    steps: int,
    every: int,
    quantile: float = 0.5,
    epsilon: float = 0.0,
    seed: int = 0,
) -> PolicySnapshots:
    """Train `job`, and catch its policy where it had made `quantile` of the way from chance to its best.

    Of the policies after every `every` steps it is the one whose score is nearest to that, and `expert` is the best
    (the last of those that are alike): a training may end in a bad moment.
    """
    fresh = copy.deepcopy(job.recipe.learner.policy)
    caught: list[ControlPolicy] = []

    def report(step: int, episodes: Episodes, credits: Credits, metrics: Metrics) -> None:
        del episodes, credits, metrics
        if step % every == 0:
            caught.append(copy.deepcopy(job.recipe.learner.policy))

    train(job.recipe, steps=steps, callback=report)
    job.close()
    low = mean_return(EpsilonMixture(fresh.numpy_policy(), fresh.spaces, 1.0), env, seed=seed)
    scores = [
        mean_return(EpsilonMixture(policy.numpy_policy(), policy.spaces, epsilon), env, seed=seed) for policy in caught
    ]
    best = len(scores) - 1 - int(np.argmax(scores[::-1]))
    middle = low + quantile * (scores[best] - low)
    nearest = int(np.abs(np.array(scores) - middle).argmin())
    reached = int(np.argmax(np.array(scores) >= min(middle, scores[best])))
    return PolicySnapshots(
        random=fresh, medium=caught[nearest], expert=caught[best], scores=(low, scores[nearest], scores[best]),
        early=tuple(caught[: max(1, reached)]),
    )  # fmt: skip


def mean_return(actor: EpsilonMixture, env: GymConfig, *, seed: int, episodes: int = 16) -> float:
    """Mean return of whole episodes, decided with chance."""
    draws = generator(seed, "stages")

    def decide(seen: Array, mask: Flags | None = None) -> Array:
        return actor.decide(seen, actor.noise(draws, (len(seen),)), mask)[0]

    arena = open_evaluation_envs(env, episodes=episodes)
    try:
        played = play_episodes(arena, decide, seed=key(seed, "stages") & 0xFFFFFFFF, step_limit=evaluation_limit(env))
        return float(played.returns.mean())
    finally:
        arena.close()


# ---------------------------------------------------------------------------------------------- recording


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShare:
    """A share of a log."""

    policy: ControlPolicy
    min_decisions: int
    epsilon: float = 0.0
    """Probability of doing anything instead of what the policy says."""


def log_shares(snapshots: PolicySnapshots, quality: Quality, *, decisions: int, epsilon: float) -> list[LogShare]:
    """Policies that act for a log of this name, with their shares."""
    chance = partial(LogShare, policy=snapshots.random, epsilon=1.0)
    known: dict[str, Callable[..., LogShare]] = {
        "random": chance,
        "medium": partial(LogShare, policy=snapshots.medium, epsilon=epsilon),
        "expert": partial(LogShare, policy=snapshots.expert, epsilon=epsilon),
    }
    if quality != "mixed":
        return [known[quality](min_decisions=decisions)]
    early = snapshots.early or (snapshots.medium,)
    each = round(EARLY_SHARE * decisions / len(early))
    return [
        chance(min_decisions=decisions - each * len(early) - round(EXPERT_SHARE * decisions)),
        *(LogShare(policy=policy, min_decisions=each, epsilon=epsilon) for policy in early),
        known["expert"](min_decisions=round(EXPERT_SHARE * decisions)),
    ]


def record_log(shares: Sequence[LogShare], env: GymConfig, *, seed: int) -> BehaviourLog:
    """At least the decisions of each part, in environments of its own; part k decides with version k. Where the
    environments tell masks, only legal actions are taken, and the log has the masks.

    Episodes that the end of a part cuts are neither terminated nor truncated.
    """
    pieces: list[Episodes] = []
    spaces: list[Space[Any]] = []
    begun = 0
    for number, part in enumerate(shares):
        finite = isinstance(part.policy.spaces.actions, DiscreteActions)
        world = open_world(env, steps=1, seed=seed + number, masks=finite)
        spaces = [world.envs.single_observation_space, world.envs.single_action_space]
        actor = EpsilonMixture(part.policy.numpy_policy(), part.policy.spaces, part.epsilon, version=number)
        try:
            episodes, had = [], 0
            while had < part.min_decisions:  # a row that was only a reset is no decision
                world.steps = -(-(part.min_decisions - had) // env.num_envs)
                episodes.append(world.rollout(actor))
                had += episodes[-1].decisions
        finally:
            world.close()
        piece = replace(concatenate(episodes), memory=None)  # a log keeps what was seen and done
        piece.group[:] += begun
        begun = int(piece.group.max()) + 1
        pieces.append(piece)
    return BehaviourLog(episodes=concatenate(pieces), observation_space=spaces[0], action_space=spaces[1])
