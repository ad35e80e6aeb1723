"""What learning from others shares: experts that can be asked, states labelled by them, demonstrations kept beside.

Belongs here: the expert as a config, the actor that hands over to it, the source that asks it, and logs as part of a
memory. Cloning a log alone is `recipes/offline/bc.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.control.acting import NetworkActor
from hone.control.evaluate.returns import load_control_policy
from hone.control.expert_process import ExpertProcess
from hone.control.logs.parquet import read_log
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.mlp import BoxActions, DiscreteActions, Floats, PolicySpaces
from hone.control.networks.numpy_memory import require_no_memory
from hone.control.networks.numpy_policies import Flags, HasNumpyPolicy
from hone.control.off_policy import MethodWrapper, OffPolicyMethod
from hone.control.replay.mixed import DemonstrationMixer
from hone.control.replay.ring import RingBuffer
from hone.control.spaces import network_spaces
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.core.state import State, substate
from hone.process.user_files import check_reference
from hone.run.job import do_nothing
from hone.run.loop import SourceWrapper
from hone.run.saved_config import policy_folder

Array = NDArray[np.generic]


class ExpertPolicy(Config):
    """A policy that hone saved."""

    kind: Literal["policy"]
    """Names this alternative."""
    policy: str
    """A run, a checkpoint, or the folder of a policy."""


class ExpertProgram(Config):
    """A function of yours, which runs in a process of its own."""

    kind: Literal["program"]
    """Names this alternative."""
    use: str
    """`path/to/file.py:name`: f(observations [n, ...]) -> actions [n, ...], on numpy arrays."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that an answer may take."""


ExpertConfig = Annotated[ExpertPolicy | ExpertProgram, Field(discriminator="kind")]


class ExpertActor(Protocol):
    """Expert that labels observations with actions."""

    def best(self, seen: Array) -> Array:
        """`[n, *observation]` -> `[n, *action]`."""
        ...


def open_expert(config: ExpertPolicy | ExpertProgram) -> tuple[ExpertActor, Callable[[], None]]:
    """The expert, and what ends it. Raises ConfigError, DataError."""
    if isinstance(config, ExpertPolicy):
        policy: HasNumpyPolicy = load_control_policy(policy_folder(Path(config.policy)))
        return require_no_memory(policy.numpy_policy(), f"the expert {config.policy}"), do_nothing
    check_reference(config.use, kind="expert", modules=False)
    process = ExpertProcess(config.use, deadline_s=config.deadline_s)
    return process, process.close


def expert_labels(expert: ExpertActor, seen: Array, actions: DiscreteActions | BoxActions) -> Array:
    """Label observations `[n, *observation]` with the expert's actions, as the network's `[n, *action]`.

    Raises UserCodeError where it is no such action.
    """
    asked = expert.best(seen)
    if isinstance(actions, DiscreteActions):
        chosen = asked.astype(np.int64)
        wrong = (chosen < actions.start) | (chosen >= actions.start + actions.count) | (chosen != asked)
        if asked.shape != (len(seen),) or wrong.any():
            raise UserCodeError(
                f"the expert chose {np.asarray(asked).ravel()[:8].tolist()}; it must choose one of {actions.start} .. "
                f"{actions.start + actions.count - 1} for each observation"
            )
        return chosen
    shape = (len(seen), *actions.shape)
    if asked.shape != shape:
        raise UserCodeError(f"the expert's actions are {list(asked.shape)}, expected {list(shape)}")
    return asked.astype(np.float32)


@dataclass
class DaggerActor(NetworkActor):
    """The expert decides with probability `beta_decay` to the power of the iterations so far, else the learner."""

    expert: ExpertActor = field(kw_only=True)
    actions: DiscreteActions | BoxActions = field(kw_only=True)
    beta_decay: float = field(kw_only=True)

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The learner's random numbers, and a coin as the last."""
        own = self.numpy_policy.noise(draws, shape).reshape(*shape, -1)
        return np.concatenate((own, draws.random((*shape, 1), dtype=np.float32)), axis=-1)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """Nobody knows how likely a mixture was: log-probabilities are NaN."""
        del mask
        own = noise[:, 0] if isinstance(self.actions, DiscreteActions) else noise[:, :-1]
        chosen = self.numpy_policy.decide(seen, own)[0]
        asked = np.flatnonzero(noise[:, -1] < self.beta_decay**self.version)
        if len(asked):
            chosen[asked] = expert_labels(self.expert, seen[asked], self.actions)
        return chosen, np.full(len(seen), np.nan, np.float32)


@dataclass
class ExpertLabelledSource(SourceWrapper[ActorCritic]):
    """Hands on what another source lives through, with what the expert would have done in each state."""

    expert: ExpertActor
    actions: DiscreteActions | BoxActions
    labelled_states: int = 0
    agreements: float = 0.0

    def collect(self) -> Episodes:
        episodes = self.source.collect()
        labels = expert_labels(self.expert, episodes.observations, self.actions)
        self.labelled_states += len(labels)
        same = np.isclose(labels, episodes.chosen).reshape(len(labels), -1).all(axis=1)
        self.agreements += float(same.sum())
        return replace(episodes, chosen=labels)

    def metrics(self) -> Metrics:
        """States that the expert labelled since the last call, and the share in which it would have acted the same."""
        asked, agreed, self.labelled_states, self.agreements = self.labelled_states, self.agreements, 0, 0.0
        return {
            **self.source.metrics(),
            "expert/labelled_states": float(asked),
            "expert/agreed": agreed / max(asked, 1),
        }

    def state(self) -> State:
        return {"source": self.source.state(), "asked": self.labelled_states, "agreed": self.agreements}

    def restore(self, state: State) -> None:
        self.source.restore(substate(state, "source"))
        asked, agreed = state["asked"], state["agreed"]
        assert isinstance(asked, int)
        assert isinstance(agreed, float)
        self.labelled_states, self.agreements = asked, agreed


# ---------------------------------------------------------------------------------------------- demonstrations


class DemonstrationsConfig(Config):
    """Log of demonstrations, mixed into the batches of the replay buffer (Ball et al., 2023)."""

    log: str
    """A parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    share: float = Field(default=0.5, gt=0, lt=1)
    """Share of every batch."""


def demonstrations_of(log: str) -> tuple[Episodes, PolicySpaces]:
    """Every decision of a log as an episode of its own, and the spaces it was taken in. Raises DataError."""
    read = read_log(Path(log))
    steps = read.episodes.transitions()
    if not len(steps):
        raise DataError(f"{log}: there are no decisions in it")
    return steps, network_spaces(read.observation_space, read.action_space)


def require_same_spaces(key: str, log: str, theirs: PolicySpaces, ours: PolicySpaces) -> None:
    """Raises ConfigError for demonstrations of another world."""
    if theirs != ours:
        raise ConfigError(
            f"{key} = {log!r} is of another world: it has {_describe_spaces(theirs)}, the environment "
            f"{_describe_spaces(ours)}"
        )


def _describe_spaces(space: PolicySpaces) -> str:
    """Describe the observation and action spaces."""
    inputs, actions = space.inputs, space.actions
    seen = f"{inputs.size} states from {inputs.start}" if inputs.one_hot else f"{inputs.size} numbers seen"
    return f"{seen} and {actions}" + (f" from {actions.start}" if isinstance(actions, DiscreteActions) else "")


def with_demonstrations(config: DemonstrationsConfig | None, spaces: PolicySpaces) -> MethodWrapper:
    """Wrapper of a method that mixes a log's decisions, read now, into the samples of its replay buffer; they come
    first in a sample, so batches are drawn from it.

    Raises DataError for what is wrong with the log, ConfigError where it is of another world.
    """
    if config is None:
        return lambda method: method
    steps, theirs = demonstrations_of(config.log)
    require_same_spaces("demonstrations.log", config.log, theirs, spaces)
    share = config.share

    def mixed(method: OffPolicyMethod[Any]) -> OffPolicyMethod[Any]:
        shown = RingBuffer(len(steps))
        shown.add(steps)
        return replace(method, buffer=DemonstrationMixer(method.buffer, shown, share=share), shuffle=True)

    return mixed
