"""Sequences of any length in an observation, filled up to a length: `env.pad = {cars = 4}`.

The `Sequence` at a path becomes two parts below it: `items`, so many of them, zeros where there is none, and `present`,
a bit for each. What follows (rows, networks, masks of seats, logs) then meets parts of a fixed size.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.core.errors import ConfigError, UserCodeError, did_you_mean

Space: TypeAlias = spaces.Space[Any]
Lengths: TypeAlias = Mapping[str, int]
"""The most items of the sequence at each path."""
ITEMS: Final = "items"
PRESENT: Final = "present"


def sequence_paths(space: Space, path: str = "") -> Iterator[str]:
    """Paths of the sequences in a space; `""` for a space that is one."""
    match space:
        case spaces.Sequence():
            yield path
        case spaces.Dict() | spaces.Tuple():
            for name, part in _parts(space):
                yield from sequence_paths(part, _below(path, name))
        case _:
            return


def require_sequences(known: list[str], lengths: Lengths) -> None:
    """Raises ConfigError for a path of `lengths` where there is no sequence."""
    if strange := [path for path in lengths if path not in known]:
        there = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        raise ConfigError(
            *(
                f"env.pad.{path}: the observation has no sequence {path!r}{did_you_mean(path, known)}; {there}"
                for path in strange
            )
        )


def padded_space(space: Space, lengths: Lengths, path: str = "") -> Space:
    """The space with its sequences of `lengths` as `items` and `present`; others stay. Raises ConfigError for items
    that have no fixed size themselves."""
    match space:
        case spaces.Sequence() if path in lengths:
            count = lengths[path]
            items = _repeated(space.feature_space, count, path)
            return spaces.Dict({ITEMS: items, PRESENT: spaces.MultiBinary(count)})
        case spaces.Dict():
            return spaces.Dict(
                {str(name): padded_space(part, lengths, _below(path, name)) for name, part in _parts(space)}
            )
        case spaces.Tuple():
            return spaces.Tuple([padded_space(part, lengths, _below(path, name)) for name, part in _parts(space)])
        case _:
            return space


def padded_value(space: Space, lengths: Lengths, value: Any, path: str = "") -> Any:  # noqa: ANN401 - of the space
    """An observation of `space` as one of `padded_space`. Raises UserCodeError for a sequence of more items than
    `lengths` has for it, and for items of another form than the space's."""
    match space:
        case spaces.Sequence() if path in lengths:
            return _padded_sequence(space, lengths[path], value, path)
        case spaces.Dict():
            return {
                name: padded_value(part, lengths, value[name], _below(path, name))
                for name, part in space.spaces.items()
            }
        case spaces.Tuple():
            return tuple(
                padded_value(part, lengths, value[number], _below(path, number))
                for number, part in enumerate(space.spaces)
            )
        case _:
            return value


def with_padding(env: gymnasium.Env[Any, Any], lengths: Lengths) -> gymnasium.Env[Any, Any]:
    """The environment with its sequences filled up. Raises ConfigError for paths without a sequence."""
    space = env.observation_space
    require_sequences(list(sequence_paths(space)), lengths)
    padded = padded_space(space, lengths)
    return gymnasium.wrappers.TransformObservation(env, partial(padded_value, space, lengths), padded)


def _parts(space: spaces.Dict | spaces.Tuple) -> list[tuple[str | int, Space]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else list(enumerate(space.spaces))


def _below(path: str, name: str | int) -> str:
    return f"{path}.{name}" if path else str(name)


def _repeated(item: Space, count: int, path: str) -> Space:
    """The space of `count` items, or of nothing in place of one: bounds include 0."""
    match item:
        case spaces.Box():
            low, high = np.minimum(item.low, 0), np.maximum(item.high, 0)
            kind: Any = item.dtype
            return spaces.Box(_stacked(low, count).astype(kind), _stacked(high, count).astype(kind), dtype=kind)
        case spaces.Discrete():
            return spaces.MultiDiscrete([int(item.n)] * count, start=[int(item.start)] * count)
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(_stacked(item.nvec, count), start=_stacked(item.start, count))
        case spaces.MultiBinary():
            return spaces.MultiBinary((count, *item.shape))
        case spaces.Dict():
            return spaces.Dict({str(name): _repeated(part, count, _below(path, name)) for name, part in _parts(item)})
        case spaces.Tuple():
            return spaces.Tuple([_repeated(part, count, _below(path, name)) for name, part in _parts(item)])
        case _:
            raise ConfigError(
                f"env.pad.{path}: items of the kind {type(item).__name__} have no fixed size either; make numbers of "
                "them with gymnasium.wrappers.TransformObservation"
            )


def _stacked(values: NDArray[Any], count: int) -> NDArray[Any]:
    return np.broadcast_to(values, (count, *np.shape(values))).copy()


def _padded_sequence(space: spaces.Sequence, count: int, value: Any, path: str) -> dict[str, Any]:  # noqa: ANN401
    held = _count(value, is_stacked=space.stack)
    if held > count:
        raise UserCodeError(
            f"the sequence {path!r} of the observation has {held} items, and env.pad holds {count}: set "
            f"env.pad.{path} to the most that there can be"
        )
    present = (np.arange(count) < held).astype(np.int8)
    try:
        return {ITEMS: _filled(space.feature_space, value, count, held, is_stacked=space.stack), PRESENT: present}
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise UserCodeError(
            f"the sequence {path!r} of the observation does not hold items of {space.feature_space}: {error!r}"
        ) from error


def _count(value: Any, *, is_stacked: bool) -> int:  # noqa: ANN401 - of the space
    """Items of a sequence; a stacked one of several parts has them along the first axis of each."""
    if is_stacked and isinstance(value, dict | tuple) and value:
        return _count(next(iter(value.values())) if isinstance(value, dict) else value[0], is_stacked=True)
    return len(value)


def _filled(item: Space, value: Any, count: int, held: int, *, is_stacked: bool) -> Any:  # noqa: ANN401
    """`count` items in the structure of one, the first `held` of them those of `value`."""
    if isinstance(item, spaces.Dict | spaces.Tuple):
        columns = {
            name: _filled(
                part, value[name] if is_stacked else [one[name] for one in value], count, held, is_stacked=is_stacked
            )
            for name, part in _parts(item)
        }
        return columns if isinstance(item, spaces.Dict) else tuple(columns.values())
    if isinstance(item, spaces.Discrete | spaces.MultiDiscrete):
        out = _stacked(np.asarray(item.start), count)  # nothing is the first choice: its bit tells it from a real one
    else:
        out = np.zeros((count, *(item.shape or ())), item.dtype)
    if held:
        out[:held] = np.asarray(value).reshape(held, *out.shape[1:])
    return out
