"""Parts that many records share, stored once and numbered: sets of actions, and labels."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeVar

from hone.core.decisions import ActionSet
from hone.decide.log.codec import decode_actions, decode_labels, encode_actions, encode_labels
from hone.decide.log.session import DatabaseSession, chunks, marks

Item = TypeVar("Item")
Labels = tuple[str, ...]
_CACHED: Final = 1024
"""Parts of each kind that are kept in memory. A service that publishes versions makes new labels for as long as it
runs, and uses the latest only."""


@dataclass(slots=True)
class SharedParts:
    """The shared parts of a log, those in use kept in memory. Every call is inside a transaction."""

    session: DatabaseSession
    _actions: dict[object, int] = field(default_factory=dict[object, int])
    _labels: dict[Labels, int] = field(default_factory=dict[Labels, int])
    _actions_read: dict[int, ActionSet] = field(default_factory=dict[int, ActionSet])
    _labels_read: dict[int, Labels] = field(default_factory=dict[int, Labels])

    def forget(self) -> None:
        """Empty the memory: numbers given in a transaction that was rolled back, or deleted since, mean nothing."""
        self._actions.clear()
        self._labels.clear()
        self._actions_read.clear()
        self._labels_read.clear()

    def actions_number(self, actions: ActionSet) -> int:
        """Number of a set of actions; it is stored if it is new."""
        number = self._actions.get(key := _actions_key(actions))
        if number is None:
            number = self._number("action_sets", encode_actions(actions))
            _remember(self._actions, key, number)
        return number

    def known_actions(self, actions: ActionSet) -> int:
        """Number of a set of actions; -1: it is not stored."""
        number = self._actions.get(_actions_key(actions))
        return self._find("action_sets", encode_actions(actions)) if number is None else number

    def known_labels(self, labels: Labels) -> int:
        """Number of labels; -1: they are not stored."""
        number = self._labels.get(labels)
        return self._find("labels", encode_labels(labels)) if number is None else number

    def labels_number(self, labels: Labels) -> int:
        """Number of labels; they are stored if they are new."""
        number = self._labels.get(labels)
        if number is None:
            number = self._number("labels", encode_labels(labels))
            _remember(self._labels, labels, number)
        return number

    def actions(self, numbers: Iterable[int | None]) -> dict[int, ActionSet]:
        """Sets of actions by their numbers; equal ones are one object."""
        return self._read(self._actions_read, "action_sets", numbers, decode_actions)

    def labels(self, numbers: Iterable[int | None]) -> dict[int, Labels]:
        """Labels by their numbers."""
        return self._read(self._labels_read, "labels", numbers, decode_labels)

    def _number(self, table: str, data: bytes) -> int:
        number = self._find(table, data)
        if number < 0:
            statement = f"insert into {table} (digest, body) values (?, ?) returning id"
            number = int(self.session.rows(statement, (_digest(data), data))[0][0])
        return number

    def _find(self, table: str, data: bytes) -> int:
        found = self.session.rows(f"select id from {table} where digest = ?", (_digest(data),))
        return int(found[0][0]) if found else -1

    def _read(
        self, cache: dict[int, Item], table: str, numbers: Iterable[int | None], decode: Callable[[bytes], Item]
    ) -> dict[int, Item]:
        wanted = {number for number in numbers if number is not None}
        missing = sorted(wanted - cache.keys())
        if len(cache) + len(missing) > _CACHED:
            cache.clear()
            missing = sorted(wanted)
        for chunk in chunks(missing):
            for number, body in self.session.rows(f"select id, body from {table} where id in {marks(chunk)}", chunk):
                cache[number] = decode(bytes(body))
        return cache


def _actions_key(actions: ActionSet) -> object:
    return actions.names if actions.features is None else _digest(encode_actions(actions))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _remember(cache: dict[Item, int], key: Item, number: int) -> None:
    """Keep a number; the oldest one leaves when there are too many."""
    if len(cache) >= _CACHED:
        del cache[next(iter(cache))]
    cache[key] = number
