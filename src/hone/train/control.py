"""What the recipes for control share: how steps are laid out for a network, who acts, how a policy is judged.

Belongs here: wiring between worlds, small networks and the loop. Does not: anything of one algorithm.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hone.core.config import Config
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.state import State
from hone.envs.gym import GymConfig, GymWorld
from hone.envs.logs import Log
from hone.evaluate.control import judged, score_metrics
from hone.models.acting import Acting, Decides
from hone.models.control import ActorCritic, Policy, follow
from hone.models.control_folder import load_weights, save_policy
from hone.models.mlp import Bounds, Choices, Inputs, Spaces
from hone.objectives.terms import Terms
from hone.train.adam import Adam
from hone.train.flat import FlatParameters
from hone.train.job import Job, Verdict, nothing
from hone.train.learner import Batch, Phase
from hone.train.loop import Recipe, Source
from hone.train.optimize import LearnerConfig
from hone.train.together import laid_together, lying_together

P = TypeVar("P", bound=Policy)
Q = TypeVar("Q", bound=nn.Module)
R = TypeVar("R", bound=Batch)


class JudgeConfig(Config):
    """How often the policy is tried without exploration."""

    episodes: int = Field(default=20, ge=1)
    """Episodes of a judgement, each in an environment of its own."""
    every: int = Field(default=0, ge=0)
    """Steps between judgements; 0: at the end only."""


# ---------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rows of single decisions; every field is a tensor with one entry per decision."""

    weight: Tensor
    """`[n]` in the loss; the same for all of them."""

    def __len__(self) -> int:
        return len(self.weight)

    def sizes(self) -> NDArray[np.int64]:
        return np.broadcast_to(np.int64(1), len(self))

    def take(self, rows: NDArray[np.int64]) -> Self:
        index = torch.from_numpy(rows).to(self.weight.device)
        columns = {name: column.index_select(0, index) for name, column in vars(self).items() if name != "weight"}
        return type(self)(weight=self.weight[: len(rows)], **columns)

    def weighted(self) -> Self:
        """Every decision counts the same."""
        share = self.weight.new_full((1,), 1.0 / len(self)).expand(len(self))
        return type(self)(**{**vars(self), "weight": share})

    def tensors(self) -> Self:
        return self


C = TypeVar("C", bound=Columns)


def cut_columns(rows: C, order: NDArray[np.int64], count: int) -> Iterator[C]:
    """`cut_by_rows` for columns: each column is gathered once for all `count` minibatches, which are views of it."""
    size = -(-len(order) // count)
    gathered = rows.take(order)
    parts = {name: column.split(size) for name, column in vars(gathered).items() if name != "weight"}
    for number in range(-(-len(order) // size)):
        columns = {name: part[number] for name, part in parts.items()}
        held = min(size, len(order) - number * size)
        yield type(rows)(weight=rows.weight.new_full((1,), 1.0 / held).expand(held), **columns)


@dataclass(frozen=True, kw_only=True)
class StepRows(Columns):
    """Decisions with what they are credited with: on-policy control, imitation."""

    seen: Tensor
    chosen: Tensor
    logp: Tensor
    """`[n]` nats, under whoever acted."""
    advantage: Tensor
    target: Tensor
    """`[n]` for the critic; 0 where nobody asked for one."""


@dataclass(frozen=True, kw_only=True)
class TransitionRows(Columns):
    """Decisions with what was seen next: learning from replay and logs."""

    seen: Tensor
    chosen: Tensor
    reward: Tensor
    discount: Tensor
    """`[n]` on the worth of `after`; 0 where the world ended."""
    after: Tensor
    """`[n, *observation]` what was seen next."""
    noise: Tensor
    """`[n, ...]` random numbers of this update; they travel with the row, so that no split can change them."""


def step_rows(episodes: Episodes, credits: Credits, *, device: str = "cpu") -> StepRows:
    """On-policy rows; the weight is set by the learner."""
    advantage = _tensor(credits.advantage, device)
    return StepRows(
        weight=torch.ones_like(advantage),
        seen=_tensor(episodes.observations, device),
        chosen=_tensor(episodes.chosen, device),
        logp=_tensor(episodes.logp, device),
        advantage=advantage,
        target=torch.zeros_like(advantage) if credits.target is None else _tensor(credits.target, device),
    )


def transition_rows(
    transitions: Episodes, credits: Credits, noise: NDArray[np.float32], *, device: str = "cpu"
) -> TransitionRows:
    """Rows of single-decision episodes; `credits` from `one_step`."""
    assert credits.discount is not None
    assert transitions.final is not None
    reward = _tensor(credits.advantage, device)
    return TransitionRows(
        weight=torch.ones_like(reward),
        seen=_tensor(transitions.observations, device),
        chosen=_tensor(transitions.chosen, device),
        reward=reward,
        discount=_tensor(credits.discount, device),
        after=_tensor(transitions.final, device),
        noise=_tensor(noise, device),
    )


def _tensor(values: NDArray[np.generic], device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


@torch.no_grad()
def foresee(policy: ActorCritic, episodes: Episodes) -> Values:
    """The critic's values of everything seen, and of what was seen last."""
    assert episodes.final is not None
    device = str(next(policy.parameters()).device)
    both = torch.cat((_tensor(episodes.observations, device), _tensor(episodes.final, device)))
    values = policy.value(both).cpu().numpy()
    return Values(value=values[: episodes.decisions], final=values[episodes.decisions :])


# ---------------------------------------------------------------------------------------------- learning


def phase(
    name: str,
    objective: Callable[[Q, R], Terms],
    parameters: Iterable[nn.Parameter],
    config: LearnerConfig,
) -> Phase[Q, R]:
    """One of several optimizer steps per minibatch, over its own parameters."""
    flat = FlatParameters(parameters)
    first, second = config.betas
    return Phase(
        name=name,
        objective=objective,
        parameters=flat,
        optimizer=Adam(flat, weight_decay=config.weight_decay, betas=(first, second)),
        max_grad_norm=config.max_grad_norm or None,
    )


def following(pairs: Iterable[tuple[nn.Module, nn.Module]], *, rate: float) -> Callable[[nn.Module], None]:
    """After an update the slow one of each pair (slow, fast) takes on a share `rate` of the fast one. Their parameters
    are looked up once, and moved as one where those of the fast one lie together (`phase` sees to that)."""
    slow: list[Tensor] = []
    fast: list[Tensor] = []
    for copy, original in pairs:
        both = list(copy.parameters()), list(original.parameters())
        as_one = lying_together(both[1])
        slow += both[0] if as_one is None else [laid_together(both[0])]
        fast += both[1] if as_one is None else [as_one]

    def after(policy: nn.Module) -> None:
        del policy
        follow(slow, fast, rate=rate)

    return after


# ---------------------------------------------------------------------------------------------- acting


@dataclass
class NetworkActor:
    """Decides by the numpy mirror of a small network."""

    acting: Acting
    version: int = 0

    def publish(self, policy: Decides, version: int) -> None:
        self.acting, self.version = policy.acting(), version

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        return self.acting.noise(draws, shape)

    def decide(
        self, seen: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        return self.acting.decide(seen, noise)


@dataclass
class Scored(Generic[P]):
    """Hands on the episodes of another source that have a score: what ended with a lost environment is not learned
    from. Its losses become `env/faults`."""

    source: Source[P]
    world: GymWorld

    def collect(self) -> Episodes:
        while True:
            episodes = self.source.collect()
            if episodes.scored.all():
                return episodes
            kept = episodes.take(np.flatnonzero(episodes.scored))
            if kept.decisions:
                return kept

    def publish(self, policy: P) -> None:
        self.source.publish(policy)

    def metrics(self) -> Metrics:
        return self.source.metrics() | self.world.metrics()

    def state(self) -> State:
        return self.source.state()

    def restore(self, state: State) -> None:
        self.source.restore(state)


def spaces_of(observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """Gymnasium's spaces as networks take them. Raises ConfigError for kinds that are not served."""
    return Spaces(inputs=_inputs(observation), actions=_actions(action))


def log_spaces(log: Log) -> Spaces:
    """Of a log, with observations standardised by it."""
    space = spaces_of(log.observation_space, log.action_space)
    return replace(space, inputs=space.inputs.standardised(log.episodes.observations))


def _inputs(space: spaces.Space[Any]) -> Inputs:
    if isinstance(space, spaces.Discrete):
        return Inputs(size=int(space.n), one_hot=True, start=int(space.start))
    if isinstance(space, spaces.Box):
        return Inputs(size=int(np.prod(space.shape)))
    raise ConfigError(f"observation space {space} is not served: only Box and Discrete are")


def _actions(space: spaces.Space[Any]) -> Choices | Bounds:
    if isinstance(space, spaces.Discrete):
        return Choices(count=int(space.n), start=int(space.start))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        return Bounds(low=tuple(low), high=tuple(high), shape=tuple(space.shape))
    raise ConfigError(f"action space {space} is not served: only Box and Discrete are")


# ---------------------------------------------------------------------------------------------- the job


def fingerprint(episodes: Episodes) -> str:
    """Of a log's decisions; a resume with another log is refused."""
    digest = blake2b(digest_size=16)
    for column in (episodes.offsets, episodes.observations, episodes.chosen, episodes.reward):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def verdict(scores: NDArray[np.float64]) -> Verdict:
    """Scores `[n]` of episodes or questions, with the interval of their mean."""
    estimate, metrics = score_metrics(scores)
    return Verdict(estimate=estimate, metrics=metrics)


def control_job(
    recipe: Recipe[P],
    *,
    env: GymConfig | None,
    judge: JudgeConfig,
    seed: int,
    fingerprint: str | None = None,
    world: GymWorld | None = None,
) -> Job[P]:
    """A recipe around a small network, ready to be run; without `env` there is nothing to judge it in. `world` is the
    one that it acts in, if any."""
    policy = recipe.learner.policy
    heard: list[str] = []

    def score() -> Verdict:
        assert env is not None
        return verdict(judged(policy, env, episodes=judge.episodes, seed=seed, tell=heard.append))

    def load(folder: Path) -> None:
        load_weights(policy, folder)

    def notes() -> list[str]:
        told = [*heard, *(world.lately() if world is not None else [])]
        heard.clear()
        return told

    return Job(
        recipe=recipe,
        save_policy=lambda folder: save_policy(policy, folder),
        load_policy=load,
        judge=None if env is None else score,
        judge_every=judge.every,
        fingerprint=fingerprint,
        warnings=world.notes if world is not None else (),
        notes=notes,
        close=world.close if world is not None else nothing,
    )
