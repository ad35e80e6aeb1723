"""Observations and actions of several parts as one flat row each, with a layout that says what stands where.

A space that is one leaf, a Box or a Discrete, stays as it is. Every other observation becomes a row of bytes: the parts
of a Dict or a Tuple one after another, each at a multiple of its item size, with zeros between, so that equal
observations have equal rows. Every other action becomes a row of numbers, whole ones (int64) unless a part is a Box
(float32, where whole numbers below 2^24 are exact). Everything above the environment moves rows and nothing else:
rollouts, replay buffers, checkpoints, logs and other processes know no structure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hone.core.errors import ConfigError, UserCodeError

Array: TypeAlias = NDArray[np.generic]
LeafKind: TypeAlias = Literal["box", "one_hots", "bits"]
ROW_BYTES = 8
"""Rows are as long as a multiple of this, so that every view of a batch of them is aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A part of an observation, or a factor of an action."""

    path: str
    """Keys and positions on the way to it, as `image` or `cars.0.speed`; empty for a space that is one leaf."""
    kind: LeafKind
    """Numbers of a box, choices (one or several, each of finitely many), or bits."""
    shape: tuple[int, ...]
    """Shape of its value; `()` for a single choice."""
    dtype: str
    """Type of its values, as numpy writes it."""
    offset: int
    """First byte in a row of observations; first number in a row of actions."""
    sizes: tuple[int, ...] = ()
    """Choices of each factor."""
    starts: tuple[int, ...] = ()
    """Number of the first choice of each factor."""
    low: tuple[float, ...] = ()
    """Lower bounds of a box: of each number of an action, the least of an observation."""
    high: tuple[float, ...] = ()
    """Upper bounds of a box: of each number of an action, the greatest of an observation."""

    @property
    def count(self) -> int:
        """Numbers of its value."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def bytes(self) -> int:
        """Bytes of its value."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def choices(self) -> tuple[int, ...]:
        """Choices of each finite factor of an action; none for a box."""
        return self.sizes if self.kind == "one_hots" else (2,) * self.count if self.kind == "bits" else ()

    @property
    def features(self) -> int:
        """Numbers that a network reads of it: one a choice, one a bit, one a number."""
        return sum(self.sizes) if self.kind == "one_hots" else self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceLayout:
    """Places of the leaves in a row."""

    leaves: tuple[Leaf, ...]
    row_bytes: int
    """Bytes of a row of observations, padding included."""

    def view(self, rows: Any, leaf: Leaf) -> Any:  # noqa: ANN401 - numpy or torch
        """`[n, *shape]` values of a leaf in rows `[n, row_bytes]` of bytes: a view, no copy."""
        return rows[:, leaf.offset : leaf.offset + leaf.bytes].view(np.dtype(leaf.dtype)).reshape(-1, *leaf.shape)

    def leaf(self, path: str) -> Leaf:
        """The leaf of a path. Raises ConfigError naming those that there are."""
        leaf = next((one for one in self.leaves if one.path == path), None)
        if leaf is None:
            raise ConfigError(f"no leaf {path!r}; there are {', '.join(one.path for one in self.leaves)}")
        return leaf

    def write(self, rows: Array, value: Any) -> None:  # noqa: ANN401 - whatever the space holds
        """Put observations, of one environment or with a leading axis `[n]`, into rows `[n, row_bytes]`. Raises
        UserCodeError naming a leaf of another shape, and one that is not finite."""
        for leaf in self.leaves:
            part = _observed_part(value, leaf.path)
            into = self.view(rows, leaf)
            values = np.asarray(part)
            if values.size != into.size:
                raise UserCodeError(
                    f"the leaf {leaf.path!r} of the observation has shape {list(values.shape)}, and observation_space "
                    f"has {list(leaf.shape)}"
                )
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise UserCodeError(f"the leaf {leaf.path!r} of the observation is not finite: {values.ravel()[:8]}")
            into[:] = values.reshape(into.shape)


def leaf_from_json(spec: Mapping[str, Any]) -> Leaf:
    """The leaf that `dataclasses.asdict` described. Raises TypeError for other fields."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in spec.items()
    }
    return Leaf(**fields)


class RowSpace(spaces.Box):
    """Rows of bytes that hold the observations of a space of several parts."""

    def __init__(self, layout: SpaceLayout) -> None:
        super().__init__(0, 255, (layout.row_bytes,), np.uint8)
        self.layout = layout


class ActionRowSpace(spaces.Box):
    """Rows of numbers that hold the actions of a space of several factors, within its bounds."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        low, high = [np.concatenate([side(leaf) for leaf in leaves]) for side in (_low, _high)]
        finite = all(leaf.kind != "box" for leaf in leaves)
        kind = np.int64 if finite else np.float32
        super().__init__(low.astype(kind), high.astype(kind), dtype=kind)
        self.leaves = tuple(leaves)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:
        """A random action; the numbers of finite factors are whole."""
        row = super().sample(mask, probability)
        for leaf in self.leaves:
            if leaf.kind != "box":
                place = slice(leaf.offset, leaf.offset + leaf.count)
                row[place] = self.np_random.integers(_low(leaf), _high(leaf) + 1).astype(row.dtype)
        return row


def describe_leaves(leaves: Sequence[Leaf]) -> str:
    """The leaves in words: path, kind and size of each."""
    words = {"box": "numbers", "one_hots": "choices of", "bits": "bits"}
    words_of_leaves = [
        f"{leaf.path or 'it'} ({words[leaf.kind]} {list(leaf.sizes or leaf.shape)}"
        f"{f' {np.dtype(leaf.dtype).name}' if leaf.kind == 'box' else ''})"
        for leaf in leaves
    ]
    return ", ".join(words_of_leaves)


# ------------------------------------------------------------------------------------------------------------ making


def layout_of(space: spaces.Space[Any], *, ignore: Sequence[str] = ()) -> SpaceLayout | None:
    """Layout of observations without the leaves `ignore` (a path and all below it); None where the space is one leaf
    and nothing is ignored.

    Raises ConfigError with all leaves that no row can hold, and for paths of `ignore` that there are none of.
    """
    if isinstance(space, spaces.Box | spaces.Discrete):
        if ignore:
            raise ConfigError(f"env.ignore = {list(ignore)}: the observation is one leaf, {_one_line(space)}")
        return None
    parts = list(_leaves(space, ""))
    dropped = {path: [one for one, _ in parts if one == path or one.startswith(f"{path}.")] for path in ignore}
    if unknown := [path for path, gone in dropped.items() if not gone]:
        raise ConfigError(
            f"env.ignore = {list(ignore)}: the observation has no leaf {unknown[0]!r}; it has "
            f"{', '.join(repr(path) for path, _ in parts)}"
        )
    gone = {path for paths in dropped.values() for path in paths}
    kept = [(path, part) for path, part in parts if path not in gone]
    if faults := [_refusal("observation", path, part) for path, part in kept if _kind(part) is None]:
        raise ConfigError(*faults)
    if not kept:
        raise ConfigError(f"env.ignore = {list(ignore)}: nothing of the observation is left")
    leaves: list[Leaf] = []
    place = 0
    for path, part in kept:
        leaf = _leaf(path, part)
        if leaf.low:
            leaf = replace(leaf, low=(min(leaf.low),), high=(max(leaf.high),))  # a network asks for no more
        size = np.dtype(leaf.dtype).itemsize
        place = -(-place // size) * size
        leaves.append(replace(leaf, offset=place))
        place += leaf.bytes
    return SpaceLayout(leaves=tuple(leaves), row_bytes=-(-place // ROW_BYTES) * ROW_BYTES)


def layout_from_leaves(leaves: Sequence[Leaf]) -> SpaceLayout:
    """The layout of observations with these leaves, whose places they know."""
    end = max(leaf.offset + leaf.bytes for leaf in leaves)
    return SpaceLayout(leaves=tuple(leaves), row_bytes=-(-end // ROW_BYTES) * ROW_BYTES)


def action_leaves(space: spaces.Space[Any]) -> tuple[Leaf, ...] | None:
    """Factors of actions; None where the space is one leaf. Raises ConfigError with all factors that no row can
    hold."""
    if isinstance(space, spaces.Box | spaces.Discrete):
        return None
    parts = list(_leaves(space, ""))
    if faults := [_refusal("action", path, part) for path, part in parts if _kind(part) is None]:
        raise ConfigError(*faults)
    leaves: list[Leaf] = []
    place = 0
    for leaf in supported_leaves(space):
        leaves.append(replace(leaf, offset=place))
        place += leaf.count
    return tuple(leaves)


def supported_leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """Leaves of the parts of a space that a row can hold."""
    return [_leaf(path, part) for path, part in _leaves(space, "") if _kind(part) is not None]


def _leaves(space: spaces.Space[Any], path: str) -> Iterator[tuple[str, spaces.Space[Any]]]:
    """Parts of a space with their paths, in its own order: Gymnasium's."""
    prefix = f"{path}." if path else ""
    match space:
        case spaces.Dict():
            for name, part in space.spaces.items():
                yield from _leaves(part, f"{prefix}{name}")
        case spaces.Tuple():
            for number, part in enumerate(space.spaces):
                yield from _leaves(part, f"{prefix}{number}")
        case _:
            yield path, space


def _kind(space: spaces.Space[Any]) -> LeafKind | None:
    match space:
        case spaces.Box():
            return "box" if np.dtype(space.dtype).kind in "biuf" and all(space.shape) else None
        case spaces.Discrete() | spaces.MultiDiscrete():
            return "one_hots"
        case spaces.MultiBinary():
            return "bits"
        case _:
            return None


def _leaf(path: str, space: spaces.Space[Any]) -> Leaf:
    match space:
        case spaces.Discrete():
            sizes, starts, shape, dtype = (int(space.n),), (int(space.start),), (), np.int64
        case spaces.MultiDiscrete():
            sizes, starts = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
            shape, dtype = space.nvec.shape, np.int64
        case spaces.MultiBinary():
            return Leaf(path=path, kind="bits", shape=tuple(space.shape), dtype="|i1", offset=0)
        case spaces.Box():
            low, high = tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist())
            dtype = np.dtype(space.dtype).str
            return Leaf(path=path, kind="box", shape=tuple(space.shape), dtype=dtype, offset=0, low=low, high=high)
        case _:
            raise AssertionError(space)
    return Leaf(
        path=path, kind="one_hots", shape=shape, dtype=np.dtype(dtype).str, offset=0, sizes=sizes, starts=starts
    )


def _low(leaf: Leaf) -> NDArray[Any]:
    if leaf.kind == "box":
        return np.array(leaf.low)
    return np.array(leaf.starts) if leaf.kind == "one_hots" else np.zeros(leaf.count, np.int64)


def _high(leaf: Leaf) -> NDArray[Any]:
    if leaf.kind == "box":
        return np.array(leaf.high)
    return (
        np.array(leaf.starts) + np.array(leaf.sizes) - 1 if leaf.kind == "one_hots" else np.ones(leaf.count, np.int64)
    )


def _refusal(side: str, path: str, space: spaces.Space[Any]) -> str:
    """Why a leaf is refused, and what to do."""
    name = f"the leaf {path!r} of the {side} space" if path else f"the {side} space"
    remedy = (
        f'leave it out with env.ignore = ["{path}"], or make numbers of it with '
        "gymnasium.wrappers.TransformObservation(env, function, Box(...))"
        if side == "observation" and path
        else "make numbers of it with gymnasium.wrappers.TransformObservation(env, function, Box(...))"
        if side == "observation"
        else "write a gymnasium.ActionWrapper that makes such an action of a number or of a row of numbers"
    )
    if isinstance(space, spaces.Sequence) and side == "observation":
        remedy = f'fill it up with env.pad = {{"{path}" = n}}, n the most items that there can be, or {remedy}'
    why = "has no fixed size" if not isinstance(space, spaces.Box) else "holds no numbers"
    return f"{name}, {_one_line(space)}, is not supported, as it {why}: {remedy} (docs/howto/environments.md)"


def _one_line(space: spaces.Space[Any]) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else text[:77] + "..."


# ---------------------------------------------------------------------------------------------------------- wrappers


def part_of(value: Any, path: str) -> Any:  # noqa: ANN401 - whatever the space holds
    """The part of a value of a Dict or a Tuple at a path. Raises IndexError, KeyError or TypeError without it."""
    for name in path.split(".") if path else ():
        value = value[int(name) if isinstance(value, tuple | list) else name]
    return value


def _observed_part(observation: Any, path: str) -> Any:  # noqa: ANN401 - the user's
    """`part_of` an observation. Raises UserCodeError for one without it."""
    try:
        return part_of(observation, path)
    except (IndexError, KeyError, TypeError) as error:
        raise UserCodeError(f"the observation has no part {path!r}: {observation!r}") from error


class _RowsWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations and actions of several parts are rows."""

    def __init__(self, env: gymnasium.Env[Any, Any], layout: SpaceLayout | None, leaves: Sequence[Leaf] | None) -> None:
        super().__init__(env)
        self.layout = layout
        if layout is not None:
            self.observation_space = RowSpace(layout)
        self.to_env: Callable[[Array], Any] | None = None
        if leaves is not None:
            self.action_space = ActionRowSpace(leaves)
            self.to_env = action_reader(env.action_space, leaves)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        return self._row(seen), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the space's
        taken = action if self.to_env is None else self.to_env(np.asarray(action))
        seen, reward, terminated, truncated, info = self.env.step(taken)
        return self._row(seen), reward, terminated, truncated, info

    def _row(self, seen: Any) -> Any:  # noqa: ANN401 - the user's
        if self.layout is None:
            return seen
        row = np.zeros((1, self.layout.row_bytes), np.uint8)  # zeros between the leaves: equal values, equal rows
        self.layout.write(row, seen)
        return row[0]


class NativeRows(VectorWrapper):
    """A native vector form whose observations of several parts are rows."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], layout: SpaceLayout) -> None:
        super().__init__(envs)
        self.layout = layout
        self.single_observation_space = RowSpace(layout)
        self.observation_space = batch_space(self.single_observation_space, envs.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)  # pyright: ignore[reportArgumentType] - seeds of each
        return self._rows(seen, self.num_envs), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - Gymnasium's
        seen, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            last = [None if one is None else self._rows(one, 1)[0] for one in info["final_obs"]]
            info = {**info, "final_obs": last}
        return self._rows(seen, self.num_envs), reward, terminated, truncated, info

    def _rows(self, seen: Any, count: int) -> Array:  # noqa: ANN401 - the user's
        rows = np.zeros((count, self.layout.row_bytes), np.uint8)
        self.layout.write(rows, seen)
        return rows


def action_reader(space: spaces.Space[Any], leaves: Sequence[Leaf]) -> Callable[[Array], Any]:
    """Function of a row of numbers that returns the action in the structure of `space`."""
    held = {leaf.path: leaf for leaf in leaves}

    def read(part: spaces.Space[Any], path: str, row: Array) -> Any:  # noqa: ANN401 - the space's
        prefix = f"{path}." if path else ""
        match part:
            case spaces.Dict():
                return {name: read(inner, f"{prefix}{name}", row) for name, inner in part.spaces.items()}
            case spaces.Tuple():
                return tuple(read(inner, f"{prefix}{number}", row) for number, inner in enumerate(part.spaces))
            case spaces.Discrete():
                return np.int64(row[held[path].offset])
            case _:
                leaf = held[path]
                numbers = row[leaf.offset : leaf.offset + leaf.count]
                return numbers.astype(part.dtype).reshape(leaf.shape)

    return lambda row: read(space, "", row)


def with_rows(env: gymnasium.Env[Any, Any], *, ignore: Sequence[str] = ()) -> gymnasium.Env[Any, Any]:
    """The environment with rows for observations and actions of several parts; as it is where both are one leaf. An
    observation of which a single box or number is left is that box or number.

    Raises ConfigError with all leaves that no row can hold.
    """
    faults: list[str] = []
    layout, leaves = None, None
    try:
        layout = layout_of(env.observation_space, ignore=ignore)
    except ConfigError as fault:
        faults += fault.messages
    try:
        leaves = action_leaves(env.action_space)
    except ConfigError as fault:
        faults += fault.messages
    if faults:
        raise ConfigError(*faults)
    if layout is not None and len(layout.leaves) == 1:
        path = layout.leaves[0].path
        alone = dict(_leaves(env.observation_space, ""))[path]
        if isinstance(alone, spaces.Box | spaces.Discrete):
            env, layout = (
                gymnasium.wrappers.TransformObservation(env, lambda seen: _observed_part(seen, path), alone),
                None,
            )
    return env if layout is None and leaves is None else _RowsWrapper(env, layout, leaves)
