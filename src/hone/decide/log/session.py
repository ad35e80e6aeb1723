"""A connection to a database that holds a log's tables, and the forms of its statements."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from hone.decide.log.arrivals import StoredRow

Row: TypeAlias = tuple[Any, ...]
"""A row of a database."""
Item = TypeVar("Item")
DAY_S: Final = 86_400
_CHUNK: Final = 500
"""Values in one list of a statement."""


class DatabaseSession(Protocol):
    """A connection to a database that holds a log's tables."""

    @property
    def salt(self) -> bytes:
        """Key of the digests by which erased units are known; drawn when the log was made."""
        ...

    def transaction(self, *, write: bool) -> AbstractContextManager[None]:
        """Transaction of the only writer, or of a reader of one state; rolled back if the block raises."""
        ...

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run a statement -> its rows."""
        ...

    def run(self, statement: str, values: Sequence[object] = ()) -> None:
        """Run a statement without rows."""
        ...

    def insert(self, rows: Sequence[StoredRow]) -> None:
        """Insert new records, in this order."""
        ...

    def overwrite_erased(self) -> None:
        """Make sure that erased bytes are in no file of the database."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def chunks(values: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Parts of a list that are short enough for one statement."""
    for begin in range(0, len(values), _CHUNK):
        yield values[begin : begin + _CHUNK]


def marks(values: Sequence[object]) -> str:
    """Placeholders of a list of values: `(?, ?, ?)`."""
    return f"({', '.join('?' * len(values))})"
