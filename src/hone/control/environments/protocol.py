"""Messages between the trainer and a process of environments: a line of JSON, then raw arrays.

Belongs here: messages and spaces as bytes, and back. Nothing here can run code, unlike pickle. The arrays of a step
pass through shared memory instead.
"""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.environments.layout import ActionRowSpace, RowSpace, SpaceLayout, leaf_from_json
from hone.core.state import State, array, substate

Json: TypeAlias = Any
Array: TypeAlias = NDArray[np.generic]
MAX_BYTES = 1 << 30
"""Largest message."""
HEADER_BYTES = mmap.ALLOCATIONGRANULARITY
"""Bytes of shared memory before the arrays. They hold two integers: calls so far, and the environment called."""
_ARRAYS = "arrays"
_ALIGNED_BYTES = 64
_WIDEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """A JSON object and named arrays."""

    head: Mapping[str, Json]
    arrays: Mapping[str, Array] = field(default_factory=dict[str, Array])


def encode(head: Mapping[str, Json], arrays: Mapping[str, Array] | None = None) -> bytes:
    """Bytes of a message; `MessageParser` reads them. Raises TypeError for a head that JSON cannot hold."""
    held = {name: np.asarray(value) for name, value in (arrays or {}).items()}
    specs = [[name, value.dtype.str, list(value.shape)] for name, value in held.items()]
    line = json.dumps({**head, _ARRAYS: specs} if specs else head, separators=(",", ":"))
    return b"".join([line.encode(), b"\n", *(value.tobytes() for value in held.values())])


class MessageParser:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[WorkerMessage]:
        """The messages that are complete now. Raises ValueError for invalid bytes."""
        self._data += data
        while (message := self._next()) is not None:
            yield message
        if len(self._data) > MAX_BYTES:
            raise ValueError(f"a message of more than {MAX_BYTES} bytes")

    def _next(self) -> WorkerMessage | None:
        end = self._data.find(b"\n")
        if end < 0:
            return None
        head = json.loads(self._data[:end])
        if not isinstance(head, dict):
            raise ValueError("a message that is not an object")
        arrays: dict[str, Array] = {}
        place = end + 1
        for name, kind, shape in head.pop(_ARRAYS, []):
            dtype = np.dtype(kind)
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            if place + size > len(self._data):
                return None
            arrays[name] = np.frombuffer(bytes(self._data[place : place + size]), dtype).reshape(shape).copy()
            place += size
        del self._data[:place]
        return WorkerMessage(head=head, arrays=arrays)


def space_to_json(space: spaces.Space[Any]) -> Json:
    """JSON of a Box, a Discrete, or a space of rows."""
    if isinstance(space, RowSpace):
        return {"row_bytes": space.layout.row_bytes, "leaves": [asdict(leaf) for leaf in space.layout.leaves]}
    if isinstance(space, ActionRowSpace):
        return {"factors": [asdict(leaf) for leaf in space.leaves]}
    if isinstance(space, spaces.Discrete):
        return {"n": int(space.n), "start": int(space.start)}
    assert isinstance(space, spaces.Box)
    bounds: dict[str, Json] = {}
    for name, values in (("low", space.low), ("high", space.high)):  # equal numbers as one: images have ten thousands
        first = values.flat[0]
        bounds[name] = first.item() if (values == first).all() else values.tolist()
    return {**bounds, "shape": list(space.shape), "dtype": np.dtype(space.dtype).str}


def space_from_json(spec: Json) -> spaces.Space[Any]:
    """The space that `space_to_json` described."""
    if "row_bytes" in spec:
        leaves = tuple(leaf_from_json(leaf) for leaf in spec["leaves"])
        return RowSpace(SpaceLayout(leaves=leaves, row_bytes=spec["row_bytes"]))
    if "factors" in spec:
        return ActionRowSpace([leaf_from_json(leaf) for leaf in spec["factors"]])
    if "n" in spec:
        return spaces.Discrete(spec["n"], start=spec["start"])
    dtype = np.dtype(spec["dtype"])
    low, high = (np.broadcast_to(np.asarray(spec[name], dtype), spec["shape"]) for name in ("low", "high"))
    return spaces.Box(low, high, dtype=dtype.type)


def state_to_message(state: State) -> WorkerMessage:
    """A snapshot of environments (`tree`, `arrays`), to be sent."""
    arrays = substate(state, "arrays")
    return WorkerMessage(head={"tree": state["tree"]}, arrays={name: array(arrays, name) for name in arrays})


def state_from_message(message: WorkerMessage) -> State:
    """The snapshot in a message of `state_to_message`."""
    return {"tree": message.head["tree"], "arrays": dict(message.arrays)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryLayout:
    """Arrays in the shared memory for k environments of one process."""

    count: int
    """Number of environments, k."""
    kind: str
    """Type of observations, as numpy writes it."""
    shape: list[int]
    """Shape of one observation."""
    action: list[int]
    """Shape of one action."""
    mask: int = 0
    """Bits of a mask of legal actions; 0: the environments tell none."""

    def array_specs(self) -> list[tuple[str, str, list[int]]]:
        """Name, type and shape of each array; a step's request gives the type of actions."""
        seen, flags = [self.count, *self.shape], [self.count]
        width = self.count * _WIDEST_BYTES * int(np.prod(self.action, dtype=np.int64))
        rows = [("chosen", "|u1", [width]), ("seen", self.kind, seen), ("final", self.kind, seen)]
        bits = [self.count, self.mask]
        return [
            *rows, ("reward", "<f8", flags), ("terminated", "|b1", flags), ("truncated", "|b1", flags),
            ("mask", "|b1", bits), ("final_mask", "|b1", bits),
        ]  # fmt: skip

    def total_bytes(self) -> int:
        """Size of the whole memory, its header included."""
        return HEADER_BYTES + sum(_aligned(kind, shape) for _, kind, shape in self.array_specs())


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStep:
    """One step of k environments, in shared memory."""

    chosen: Array
    """Bytes of `[k, *action]`."""
    seen: Array
    """`[k, *observation]`"""
    final: Array
    """`[k, *observation]` the last observation of episodes that ended, where `seen` is of the next one."""
    reward: Array
    """`[k]`"""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    """`[k, M]` legal actions in `seen`; M is 0 without masks."""
    final_mask: NDArray[np.bool_]
    """`[k, M]` legal actions in `final`."""

    def array(self, name: str) -> Array:
        """One of the arrays of steps."""
        flags: dict[str, Array] = {"terminated": self.terminated, "truncated": self.truncated}
        flags |= {"mask": self.mask, "final_mask": self.final_mask}
        return {"seen": self.seen, "final": self.final, "reward": self.reward, **flags}[name]

    def actions(self, kind: str, shape: list[int]) -> Array:
        """`[k, *action]` of this type, over the same memory."""
        dtype = np.dtype(kind)
        size = dtype.itemsize * len(self.reward) * int(np.prod(shape, dtype=np.int64))
        return self.chosen[:size].view(dtype).reshape(len(self.reward), *shape)


def map_shared_step(memory: mmap.mmap, layout: SharedMemoryLayout) -> SharedStep:
    """Views of the memory."""
    place = HEADER_BYTES
    arrays: dict[str, Any] = {}
    for name, kind, shape in layout.array_specs():
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(memory, np.dtype(kind), count=count, offset=place).reshape(shape)
        place += _aligned(kind, shape)
    return SharedStep(**arrays)


def _aligned(kind: str, shape: list[int]) -> int:
    size = np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64))
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
