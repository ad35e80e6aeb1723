"""A saved control policy as a function: observation in, action of the environment out.

Belongs here: what `hone.api.load`, `hone serve` and `hone export` share: one observation or a batch, the policy's own
normalisation, memory passed in and out, actions within the bounds of their box.
"""

from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hone.control.environments.layout import SpaceLayout, describe_leaves, layout_from_leaves, part_of
from hone.control.environments.masks import any_by_factor
from hone.control.evaluate.returns import load_control_policy
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.decision_tree import DecisionTree, NumpyTreePolicy
from hone.control.networks.factored import NumpyFactoredPolicy, head_places
from hone.control.networks.mlp import (
    Actions,
    BoxActions,
    DiscreteActions,
    FactoredActions,
    ObservationInputs,
)
from hone.control.networks.mpc import MpcPolicy
from hone.control.networks.numpy_memory import NumpyMemoryPolicy
from hone.control.networks.numpy_policies import DiscreteNetworkPolicy, Flags, HasNumpyPolicy, NumpyPolicy
from hone.control.networks.options import NumpyCallAndReturnPolicy, NumpyOptionCriticPolicy
from hone.control.networks.q_networks import NumpyNoisyPolicy
from hone.control.networks.recurrent import NumpyTrialPolicy
from hone.control.tables.tables import ActionTable, StateFeatures, StateValues
from hone.core.errors import ConfigError, DataError, UserCodeError
from hone.core.random import generator

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationForm:
    """Form of one observation: the number of a state `first .. first + count - 1`, or `count` numbers."""

    count: int
    is_state: bool
    first: int = 0
    layout: SpaceLayout | None = None
    """Places of the parts of a Dict or a Tuple in a row of bytes; None for an observation of one part."""

    def rows(self, observation: object) -> tuple[Array, bool]:
        """One observation or a batch -> `[n, *observation]`, and whether it was a batch.

        Raises DataError for `(observation, info)`, and for numbers of another shape, type or range.
        """
        if self.layout is not None:
            return self._parts(observation, self.layout)
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise DataError("got (observation, info), as env.reset() returns it: pass the observation alone")
        if isinstance(observation, dict):
            raise DataError(f"got a dictionary with {sorted(map(str, observation))}, expected {self}")
        try:
            seen = np.asarray(observation)
        except ValueError as error:  # rows of different lengths
            raise DataError(f"observations of different shapes ({error}), expected {self}") from None
        if seen.dtype.kind not in "biuf":
            raise DataError(f"got {observation!r:.80} of type {seen.dtype}, expected {self}")
        return self._states(seen) if self.is_state else self._numbers(seen)

    def _states(self, seen: Array) -> tuple[Array, bool]:
        if seen.ndim > 1:
            raise DataError(f"got an array {list(seen.shape)}, expected {self}")
        states: NDArray[Any] = seen.reshape(-1)
        is_batch = seen.ndim == 1
        wrong = (states != np.rint(states.astype(np.float64))) | (states < self.first)
        wrong |= states >= self.first + self.count
        if wrong.any():
            raise DataError(f"got {states[wrong][0]}, expected {self}")
        return states.astype(np.int64), is_batch

    def _numbers(self, seen: Array) -> tuple[Array, bool]:
        per_row = int(np.prod(seen.shape[1:], dtype=np.int64))
        is_batch = seen.ndim > 1 and per_row == self.count
        if not is_batch and seen.size != self.count:
            raise DataError(f"got an array {list(seen.shape)} of {seen.size} numbers, expected {self}")
        rows = seen if is_batch else seen[None]
        if not np.isfinite(rows).all():
            where = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise DataError(f"observation {where[0]} is not finite at {where[1:]}: {rows[tuple(where)]}")
        return rows, is_batch

    def _parts(self, observation: Any, layout: SpaceLayout) -> tuple[Array, bool]:  # noqa: ANN401 - any structure
        """Rows of bytes of a Dict or Tuple, of one whose parts have a leading axis `[n]`, or of a list of them."""
        if isinstance(observation, tuple) and len(observation) == 2 and self._holds(observation[0]):
            raise DataError("got (observation, info), as env.reset() returns it: pass the observation alone")
        if isinstance(observation, list) and observation and self._holds(observation[0]):
            return np.concatenate([self._parts(one, layout)[0] for one in observation]), True
        try:
            first = np.asarray(part_of(observation, layout.leaves[0].path))
            is_batch = first.shape != layout.leaves[0].shape and first.shape[1:] == layout.leaves[0].shape
            rows = np.zeros((len(first) if is_batch else 1, layout.row_bytes), np.uint8)
            layout.write(rows, observation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"got {observation!r:.80}, expected {self} ({type(error).__name__}: {error})") from None
        except UserCodeError as error:
            raise DataError(str(error).replace("observation_space", "the policy")) from None
        return rows, is_batch

    def _holds(self, value: object) -> bool:
        """True for a value that has the first part."""
        assert self.layout is not None
        try:
            part_of(value, self.layout.leaves[0].path)
        except (KeyError, IndexError, TypeError, ValueError):
            return False
        return isinstance(value, dict | tuple)

    def __str__(self) -> str:
        if self.layout is not None:
            return f"a dictionary or tuple with {describe_leaves(self.layout.leaves)}"
        if self.is_state:
            return f"the number of a state, {self.first} to {self.first + self.count - 1}, or a list of them"
        return f"{self.count} numbers, or rows of them [n, {self.count}]"


@dataclass(slots=True, kw_only=True)
class SavedPolicy:
    """A control policy from its folder. `predict` may be called from several threads."""

    policy: HasNumpyPolicy
    """A network (`ControlPolicy`) or a table."""
    folder: Path
    observation: ObservationForm
    actions: Actions
    acting: NumpyPolicy
    draws: np.random.Generator = field(default_factory=np.random.default_rng)
    """Random numbers of stochastic actions without a `seed`."""
    lock: Lock = field(default_factory=Lock)
    """Held while memory is lent to a policy that has some."""

    def predict(
        self,
        observation: ArrayLike,
        state: ArrayLike | None = None,
        episode_start: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        deterministic: bool = True,  # noqa: FBT001, FBT002 - the signature that users of other libraries know
        seed: int | None = None,
    ) -> tuple[Any, Array | None]:
        """Action for one observation, or actions `[n, *action]` for a batch `[n, *observation]`, and the next `state`.

        `state` is the result of the call before, None to begin, and None of a policy without memory. `episode_start`
        `[n]` flags rows whose state is forgotten first. `deterministic` takes the policy's mode, as evaluations do;
        otherwise `seed` gives equal actions for equal arguments, and without one they are drawn anew. `mask` `[n, M]`
        flags legal actions; a policy that was trained with masks needs one. Actions of a box are within its bounds.
        An action of several factors is a row of numbers, in the order of the space. Raises DataError for arguments that
        do not fit, ConfigError for a `mask` or a stochastic action of a policy that has none.
        """
        seen, is_batch = self.observation.rows(observation)
        legal = self._legal(mask, len(seen))
        with self.lock:
            self._recall(state, episode_start, len(seen))
            chosen = self.acting.best(seen, legal) if deterministic else self._drawn(seen, legal, seed)
            remembered = _memory(self.acting)
        chosen = within_bounds(self.actions, chosen)
        return (chosen if is_batch else chosen[0]), remembered

    @property
    def has_memory(self) -> bool:
        """True if actions depend on earlier observations, by way of `state`."""
        return isinstance(self.acting, _REMEMBERING)

    def _legal(self, mask: ArrayLike | None, count: int) -> Flags | None:
        """Masks `[n, M]`. Raises ConfigError where the policy needs one or takes none, DataError for one that does not
        fit or leaves no action."""
        actions = self.actions
        bits = sum(actions.choices)
        if mask is None:
            if not isinstance(actions, BoxActions) and actions.masked:
                raise ConfigError(
                    f"{self.folder}: this policy takes legal actions only; give mask, {bits} flags for each observation"
                )
            return None
        deciding = self.acting.head if isinstance(self.acting, NumpyMemoryPolicy) else self.acting
        if not bits or not isinstance(deciding, _MASKABLE):
            raise ConfigError(f"{self.folder}: this policy takes no masks of legal actions; leave mask out")
        legal = np.asarray(mask)
        if legal.dtype.kind not in "biu" or legal.size != count * bits:
            raise DataError(
                f"mask is of {legal.dtype} {list(legal.shape)}, expected [{count}, {bits}] flags, one an action"
            )
        legal = legal.reshape(count, bits).astype(np.bool_)
        possible = np.asarray(any_by_factor(legal, actions.choices).all(axis=1))
        if not possible.all():
            raise DataError(f"mask leaves observation {int(np.flatnonzero(~possible)[0])} no action")
        return legal

    def _drawn(self, seen: Array, legal: Flags | None, seed: int | None) -> Array:
        if isinstance(self.acting, NumpyCallAndReturnPolicy | NumpyOptionCriticPolicy):
            raise ConfigError(
                f"{self.folder}: a policy of options acts by its mode only; leave deterministic=False out"
            )
        draws = self.draws if seed is None else generator(seed, "predict")
        return self.acting.decide(seen, self.acting.noise(draws, (len(seen),)), legal)[0]

    def _recall(self, state: ArrayLike | None, episode_start: ArrayLike | None, count: int) -> None:
        """Lend `state` to a policy with memory; rows that begin forget theirs. Raises DataError."""
        acting = self.acting
        if not isinstance(acting, _REMEMBERING):
            if state is not None:
                raise DataError(f"{self.folder}: this policy has no memory; its state is None")
            return
        _forget(acting)
        if state is None:
            return
        held = np.array(state)
        if held.ndim == 0 or len(held) != count:
            raise DataError(f"state is of shape {list(held.shape)}, and there are {count} observations")
        began = np.zeros(count, np.bool_) if episode_start is None else np.asarray(episode_start, np.bool_).reshape(-1)
        if len(began) != count:
            raise DataError(f"episode_start has {len(began)} flags, and there are {count} observations")
        _remember(acting, held, began)


# ---------------------------------------------------------------------------------------------------------- actions


def within_bounds(actions: Actions, chosen: Array) -> Array:
    """Actions `[n, ...]` with their boxes clipped to the bounds."""
    match actions:
        case BoxActions():
            low, high = (np.asarray(side, np.float32).reshape(actions.shape) for side in (actions.low, actions.high))
            return np.clip(chosen, low, high)
        case FactoredActions() if actions.gaussian_size:
            chosen = chosen.copy()
            for place in head_places(actions):
                if isinstance(place.part, BoxActions):
                    chosen[:, place.numbers] = np.clip(chosen[:, place.numbers], place.part.low, place.part.high)
            return chosen
        case _:
            return chosen


# ----------------------------------------------------------------------------------------------------------- memory

_MASKABLE: Final = (DiscreteNetworkPolicy, NumpyNoisyPolicy, NumpyTreePolicy, NumpyFactoredPolicy)
_REMEMBERING: Final = (
    NumpyMemoryPolicy,
    NumpyTrialPolicy,
    NumpyCallAndReturnPolicy,
    NumpyOptionCriticPolicy,
    MpcPolicy,
)


def _memory(acting: NumpyPolicy) -> Array | None:
    """A copy of what the policy remembers of each row `[n, ...]`; None without memory, or before a plan."""
    match acting:
        case NumpyMemoryPolicy():
            return acting.memory.copy()
        case NumpyTrialPolicy():
            return acting.state.copy()
        case NumpyCallAndReturnPolicy() | NumpyOptionCriticPolicy():
            return acting.active_options.copy()
        case MpcPolicy():
            return None if acting.plan is None else acting.plan.numpy().copy()
        case _:
            return None


def _forget(acting: NumpyPolicy) -> None:
    match acting:
        case NumpyMemoryPolicy():
            acting.memory = acting.memory[:0]
        case NumpyTrialPolicy():
            acting.state = acting.state[:0]
        case NumpyCallAndReturnPolicy() | NumpyOptionCriticPolicy():
            acting.active_options = acting.active_options[:0]
        case MpcPolicy():
            acting.plan, acting.decisions = None, 0
        case _:
            pass


def _remember(acting: NumpyPolicy, held: Array, began: NDArray[np.bool_]) -> None:
    match acting:
        case NumpyMemoryPolicy():
            acting.memory = held.astype(np.float32)
            acting.forget(began)
        case NumpyTrialPolicy():
            acting.state = np.where(began[:, None], 0.0, held).astype(np.float32)
        case NumpyCallAndReturnPolicy() | NumpyOptionCriticPolicy():
            acting.active_options = np.where(began, -1, held).astype(np.int64)
        case MpcPolicy():
            acting.plan = torch.from_numpy(np.where(began[:, None, None], 0.0, held).astype(np.float32))
        case _:
            pass


# ---------------------------------------------------------------------------------------------------------- opening


def open_saved_policy(folder: Path) -> SavedPolicy:
    """The control policy in `folder`, of any kind that hone saves. Raises DataError for a damaged or unknown one."""
    policy = load_control_policy(folder)
    observation, actions = _forms(policy, folder)
    return SavedPolicy(
        policy=policy, folder=folder, observation=observation, actions=actions, acting=policy.numpy_policy()
    )


def _form_of(inputs: ObservationInputs) -> ObservationForm:
    """Form of one observation, as the environment shows it."""
    encoder, count = inputs.encoder, inputs.size // inputs.frames
    if inputs.leaves:
        return ObservationForm(count=count, is_state=False, layout=layout_from_leaves(inputs.leaves))
    if encoder is None:
        return ObservationForm(count=count, is_state=inputs.one_hot, first=inputs.start)
    if encoder.shape:
        return ObservationForm(count=prod(encoder.shape), is_state=False)
    return ObservationForm(count=encoder.count, is_state=True, first=inputs.start)


def _forms(policy: HasNumpyPolicy, folder: Path) -> tuple[ObservationForm, Actions]:
    match policy:
        case ControlPolicy():
            inputs = policy.spaces.inputs
            return _form_of(inputs), policy.spaces.actions
        case ActionTable():
            cells = policy.features
            form = (
                ObservationForm(count=cells.count, is_state=True, first=cells.first)
                if isinstance(cells, StateFeatures)
                else ObservationForm(count=len(cells.low), is_state=False)
            )
            return form, DiscreteActions(count=cells.actions, start=policy.first_action)
        case DecisionTree():
            count = len(policy.features)
            if policy.is_state:  # the training data tell the states
                first, last = int(policy.low[0, 0]), int(policy.high[0, 0])
                return ObservationForm(count=last - first + 1, is_state=True, first=first), policy.actions
            return ObservationForm(count=count, is_state=False), policy.actions
        case StateValues():
            states, count = policy.target_policy.shape
            return ObservationForm(count=states, is_state=True), DiscreteActions(count=count)
        case _:
            raise DataError(f"{folder}: a policy of the kind {type(policy).__name__} cannot be loaded")
