"""Masks of legal actions: where environments tell them, and their form, one row of bits for all factors of an action.

An environment tells its mask in `info["action_mask"]` (Gymnasium's Taxi), by a method `action_masks()` (sb3-contrib),
or as a leaf `action_mask` of its observation, which then is no part of it (PettingZoo, RLlib). Everything above
`EnvFactory.make_one` sees the first form only. A Discrete has a bit for each action, in their order; an action of
several factors has the bits of one factor after another (sb3-contrib's form; Gymnasium's tuple of masks is joined), a
bit of an action two: may it be 0, may it be 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from hone.control.environments.layout import ActionRowSpace, supported_leaves
from hone.core.errors import UserCodeError

Flags: TypeAlias = NDArray[np.bool_]

MASK: Final = "action_mask"
"""Name of the mask in `info` and of the leaf of an observation."""
OBSERVATION: Final = "observation"
METHOD: Final = "action_masks"

# -------------------------------------------------------------------------------------------- where they are told


def mask_size(action: spaces.Space[Any]) -> int:
    """Bits of a mask over these actions, M; 0 where they have no mask."""
    return sum(_factor_sizes(action))


def _factor_sizes(action: spaces.Space[Any]) -> list[int]:
    """Choices of each finite factor of an action, in their order; a bit is a choice of two."""
    match action:
        case spaces.Discrete():
            return [int(action.n)]
        case ActionRowSpace():
            return [size for leaf in action.leaves for size in leaf.choices]
        case _:
            return [size for leaf in supported_leaves(action) for size in leaf.choices]


class _MaskLeaf(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observation's leaf `action_mask` is told in `info`."""

    place = 'the leaf "action_mask" of the observation'

    def __init__(self, env: gymnasium.Env[Any, Any], space: spaces.Dict) -> None:
        super().__init__(env)
        rest = {name: part for name, part in space.spaces.items() if name != MASK}
        self.alone = set(rest) == {OBSERVATION}
        self.observation_space = rest[OBSERVATION] if self.alone else spaces.Dict(rest)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._split(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        seen, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._split(seen, info)
        return seen, reward, terminated, truncated, info

    def _split(self, seen: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        rest = {name: part for name, part in seen.items() if name != MASK}
        return rest[OBSERVATION] if self.alone else rest, {**info, MASK: seen[MASK]}


class _MaskMethod(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose `action_masks()` is told in `info`."""

    place = "its method action_masks()"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        return seen, {**info, MASK: self.env.get_wrapper_attr(METHOD)()}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, reward, terminated, truncated, {**info, MASK: self.env.get_wrapper_attr(METHOD)()}


def with_mask_in_info(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, with its mask in `info` wherever it tells it; as it is where it tells none, or there already."""
    space, size = env.observation_space, mask_size(env.action_space)
    if not size:
        return env
    if isinstance(space, spaces.Dict) and len(space.spaces) > 1:
        leaf = space.spaces.get(MASK)
        if isinstance(leaf, spaces.Box | spaces.MultiBinary) and int(np.prod(leaf.shape)) == size:
            return _MaskLeaf(env, space)
    return _MaskMethod(env) if env.has_wrapper_attr(METHOD) else env


def mask_place(envs: VectorEnv[Any, Any, Any]) -> str:
    """Where environments that tell masks do so, in words."""
    inner: object = envs.envs[0] if isinstance(envs, SyncVectorEnv) else None
    while isinstance(inner, gymnasium.Env):
        if isinstance(inner, _MaskLeaf | _MaskMethod):
            return inner.place
        inner = vars(inner).get("env")
    return f'info["{MASK}"]'


# ----------------------------------------------------------------------------------------------------- their form


def as_mask(values: Any, action: spaces.Space[Any], *, where: str) -> Flags:  # noqa: ANN401 - the user's
    """`[M]` bool from the mask of one environment. Raises UserCodeError that begins with `where` for another size and
    for values besides 0 and 1."""
    size = mask_size(action)
    parts = values if isinstance(values, tuple | list) and any(np.ndim(part) for part in values) else [values]
    bits = np.concatenate([np.asarray(part).ravel() for part in parts])
    if len(bits) != size:
        raise UserCodeError(
            f"{where}: the action mask has {len(bits)} entries, and the action space {action} needs {size}, one for "
            "each choice"
        )
    if bits.dtype != np.bool_ and not np.isin(bits, (0, 1)).all():
        raise UserCodeError(f"{where}: the action mask {bits[:8].tolist()} holds values besides 0 and 1")
    return bits.astype(np.bool_)


def with_choices(mask: Flags, action: spaces.Space[Any]) -> Flags:
    """The masks `[n, M]` of last observations, in which nothing is decided any more: all choices where a mask leaves
    none, so that no value of such an observation is undefined."""
    sizes = _factor_sizes(action)
    return mask | np.repeat(~any_by_factor(mask, sizes), sizes, axis=1)


def is_legal(mask: Flags, action: spaces.Space[Any]) -> Flags:
    """`[n]` whether each of the masks `[n, M]` leaves a choice in every factor of an action."""
    return np.asarray(any_by_factor(mask, _factor_sizes(action)).all(axis=1))


def any_by_factor(mask: Flags, sizes: Sequence[int]) -> Flags:
    """`[n, factors]` whether any choice of a factor is legal."""
    return np.logical_or.reduceat(mask, np.cumsum([0, *sizes[:-1]]), axis=1)


def random_masks(sizes: Sequence[int], count: int, draws: np.random.Generator) -> Flags:
    """Masks `[count, M]` in which half of the choices are legal, and at least one of each factor."""
    masks: list[Flags] = []
    for size in sizes:
        mask = draws.random((count, size)) < 0.5
        mask[np.arange(count), draws.integers(0, size, count)] = True
        masks.append(mask)
    return np.concatenate(masks, axis=1)


def sample_legal(space: spaces.Space[Any], mask: Flags, draws: np.random.Generator) -> Any:  # noqa: ANN401
    """A uniformly random legal action of a single environment under a mask `[M]`."""
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start) + draws.choice(np.flatnonzero(mask))
    assert isinstance(space, ActionRowSpace)
    row, bit, place = space.sample(), 0, 0
    for leaf in space.leaves:
        starts = leaf.starts or (0,) * leaf.count
        for factor, size in enumerate(leaf.choices):
            row[place + factor] = starts[factor] + draws.choice(np.flatnonzero(mask[bit : bit + size]))
            bit += size
        place += leaf.count
    return row


@dataclass
class VectorMasks:
    """Legal actions of the environments of a vector form, followed from call to call. Where they tell no masks, `now`
    is None and nothing is asked."""

    action: spaces.Space[Any]
    now: Flags | None = None
    """`[B, M]`"""

    def begin(self, info: dict[str, Any], count: int) -> None:
        """Take the masks of `count` environments after a reset of all of them, if they tell any."""
        self.now = None
        if MASK in info and mask_size(self.action):
            self.now = self._read(info, np.ones(count, np.bool_), where="after the reset")

    def after_step(self, info: dict[str, Any], *, where: str) -> None:
        """Take the masks of a step's `info`. Raises UserCodeError that begins with `where` for masks of another shape,
        or of some of the environments only."""
        if self.now is not None:
            self.now = self._read(info, np.ones(len(self.now), np.bool_), where=where)

    def after_reset(self, info: dict[str, Any], rows: Flags, *, where: str) -> None:
        """Take the masks of the environments `rows` `[B]` that were reset. Raises as `after_step`."""
        if self.now is not None:
            self.now = np.where(rows[:, None], self._read(info, rows, where=where), self.now)

    def last(self, info: dict[str, Any], which: NDArray[np.int64], *, same_step: bool) -> Flags | None:
        """`[*, M]` masks in the last observations of the episodes of environments `which` that ended in a step: those
        of its `info["final_info"]` under SAME_STEP, else the latest. All choices where nothing is legal any more."""
        if self.now is None:
            return None
        if not same_step:
            self.now[which] = with_choices(self.now[which], self.action)
            return self.now[which]
        masks = info.get("final_info", {}).get(MASK)
        if masks is None:
            return np.ones((len(which), self.now.shape[1]), np.bool_)
        final = np.stack([np.asarray(masks[number]).ravel() for number in which])
        return with_choices(final.astype(np.bool_), self.action)

    def require_choice(self, deciding: Flags, *, where: str) -> None:
        """Raises UserCodeError where an environment that has to decide (`deciding` `[B]`) has no legal action."""
        if self.now is None:
            return
        stuck = deciding & ~is_legal(self.now, self.action)
        if stuck.any():
            raise UserCodeError(
                f"environment {int(np.flatnonzero(stuck)[0])} has no legal action {where}: its action mask leaves no "
                "choice; end the episode where nothing can be done"
            )

    def _read(self, info: dict[str, Any], due: Flags, *, where: str) -> Flags:
        there = np.asarray(info.get(f"_{MASK}", due)) & due if MASK in info else np.zeros_like(due)
        if (due & ~there).any():
            raise UserCodeError(
                f"{where}: environment {int(np.flatnonzero(due & ~there)[0])} told no action mask, and there was one "
                f'before; tell it in `info["{MASK}"]` of every reset and every step, or set env.mask = "off"'
            )
        bits, size = np.asarray(info[MASK]), mask_size(self.action)
        if bits.shape[:1] != due.shape or bits.size != len(due) * size:
            raise UserCodeError(
                f"{where}: the action masks have shape {list(bits.shape)}; {len(due)} environments with the action "
                f"space {self.action} need [{len(due)}, {size}]"
            )
        return bits.reshape(len(due), size).astype(np.bool_)
