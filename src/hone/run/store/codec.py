"""State trees on disk: arrays in `state.safetensors`, everything else in `state.json`, no pickle.

Belongs here: the conversion between `hone.core.state.State` and a folder. Arrays are named by JSON pointer (RFC 6901),
so that names are unique; a key that starts with `$` is escaped by another `$`, because `{"$array": name}` and
`{"$float": "nan"}` represent values that JSON lacks.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save, save_file  # pyright: ignore[reportUnknownVariableType] - PathLike

from hone.core.errors import DataError
from hone.core.state import State, StateLeaf, share_arrays
from hone.core.strict_json import Json
from hone.run.store.durable import failpoint, read_json_object, sync_path, to_json, write_file, writing_tensors

STATE_FORMAT = 1
ARRAYS = "state.safetensors"
TREE = "state.json"

StateArrays: TypeAlias = dict[str, NDArray[np.generic]]
_KINDS = "biuf"  # bool, signed, unsigned, float
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def write_state(folder: Path, state: State) -> None:
    """Write `state` into an existing folder and sync it. Arrays of any layout are stored in C order.

    Raises TypeError naming every leaf that is not a `StateLeaf`, and ResourceError for the disk.
    """
    tree, arrays = _encode_state(state)
    path = folder / ARRAYS
    size = sum(array.nbytes for array in arrays.values())
    with writing_tensors(path, size):
        save_file(arrays, path)
        share_arrays(path)
    sync_path(path)
    failpoint("codec.after_arrays")
    write_file(folder / TREE, to_json({"format": STATE_FORMAT, "tree": tree}))


def read_state(folder: Path) -> State:
    """Read the state of `write_state`: same keys in the same order, same dtypes, shapes and bits.

    Raises DataError for a missing or damaged file, and for a newer format.
    """
    document = read_json_object(folder / TREE)
    version = document.get("format")
    if version != STATE_FORMAT:
        raise DataError(f"{folder / TREE} has format {version}, this hone reads format {STATE_FORMAT}; upgrade hone")
    path = folder / ARRAYS
    try:
        arrays = cast("StateArrays", load_file(path))
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    tree = document.get("tree")
    if not isinstance(tree, dict):
        raise DataError(f"{folder / TREE} has no tree")
    return _decode_tree(tree, arrays, folder)


def state_bytes(state: State) -> NDArray[np.uint8]:
    """`state` as bytes `[n]`, for another process of the same version: the tree's length, the tree, the arrays.

    Raises TypeError as `write_state` does.
    """
    tree, arrays = _encode_state(state)
    text = json.dumps(tree).encode()
    return np.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + save(arrays)), np.uint8)


def state_from_bytes(data: NDArray[np.uint8]) -> State:
    """The state of `state_bytes`. Raises DataError for other bytes."""
    length = 8 + int.from_bytes(data[:8].tobytes(), "little")
    try:
        arrays = cast("StateArrays", load(data[length:].tobytes()))
        tree = json.loads(data[8:length].tobytes())
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{len(data)} bytes are no state: {error!s:.200}") from error
    return _decode_tree(tree, arrays, Path())


def _encode_state(state: State) -> tuple[dict[str, Json], StateArrays]:
    arrays: StateArrays = {}
    faults: list[str] = []
    tree = _encode(state, "", arrays, faults)
    if faults:
        raise TypeError("a state contains arrays and JSON scalars only: " + "; ".join(faults))
    return tree, arrays


def _encode(tree: State, at: str, arrays: StateArrays, faults: list[str]) -> dict[str, Json]:
    encoded: dict[str, Json] = {}
    for key, value in tree.items():
        here = f"{at}/{key.replace('~', '~0').replace('/', '~1')}"
        name = f"${key}" if key.startswith("$") else key
        if isinstance(value, dict):
            encoded[name] = _encode(value, here, arrays, faults)
        elif isinstance(value, np.ndarray):
            encoded[name] = {"$array": here}
            if value.dtype.kind not in _KINDS or value.dtype.itemsize > 8:
                faults.append(f"{here} is an array of {value.dtype}")
            else:  # safetensors writes the raw buffer: a strided view would be stored wrongly
                arrays[here] = np.asarray(value, order="C")  # ascontiguousarray would turn a 0-d array into a 1-d one
        else:
            encoded[name] = _encode_scalar(value, here, faults)
    return encoded


def _encode_scalar(value: object, here: str, faults: list[str]) -> Json:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        value = float(value)  # of numpy's floats, too
        return value if math.isfinite(value) else {"$float": repr(value)}
    if _is_list(value) and all(type(item) in (int, float, str) for item in value):
        return [_encode_scalar(item, here, faults) for item in value]
    faults.append(f"{here} is {type(value).__name__} {str(value)[:60]}")
    return None


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _decode_tree(tree: Mapping[str, Json], arrays: StateArrays, folder: Path) -> State:
    decoded: State = {}
    for name, value in tree.items():
        key = name[1:] if name.startswith("$") else name
        decoded[key] = _decode(value, arrays, folder)
    return decoded


def _decode(value: Json, arrays: StateArrays, folder: Path) -> "StateLeaf | State":
    match value:
        case {"$array": str(name)}:
            if name not in arrays:
                raise DataError(f"{folder / ARRAYS} lacks the array {name} that {TREE} names")
            return arrays[name]
        case {"$float": str(text)} if text in _FLOATS:
            return _FLOATS[text]
        case dict():
            return _decode_tree(value, arrays, folder)
        case list():
            return cast("StateLeaf", [_decode(item, arrays, folder) for item in value])
        case _:
            return value
