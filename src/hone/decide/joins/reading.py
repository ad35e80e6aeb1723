"""Reading of a decision log, or of a part of it, into columns."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (pyarrow has no type information)

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from hone.decide.joins.columns import (
    DECISIONS,
    OUTCOMES,
    RecordColumns,
    column_ints,
    merged_action_sets,
    record_columns,
)
from hone.decide.log.protocol import DecisionLog

PAGE = 20_000
"""Records that are read at once."""


def log_columns(log: DecisionLog, *, tenant: str | None = None) -> RecordColumns:
    """Every record that a log holds, of one tenant or of all."""
    return _concatenate_columns(list(log_pages(log, tenant=tenant)))


def log_pages(log: DecisionLog, *, tenant: str | None = None, after: int = 0) -> Iterator[RecordColumns]:
    """The records of a log above a position, a page after another."""
    while page := log.read(after, PAGE, tenant=tenant):
        after = page[-1].position
        yield record_columns(one.record for one in page)


def _concatenate_columns(pieces: Sequence[RecordColumns]) -> RecordColumns:
    """The records of all pieces, with one numbering of the sets of actions."""
    every = [one for piece in pieces for one in piece.action_sets]
    sets, places = merged_action_sets(every)
    begins = np.cumsum([0, *(len(piece.action_sets) for piece in pieces)])
    at = DECISIONS.get_field_index("action_set")
    tables = [
        piece.decisions.set_column(
            at, "action_set", pa.array(places[begin + column_ints(piece.decisions, "action_set")])
        )
        for piece, begin in zip(pieces, begins, strict=False)
    ]
    return RecordColumns(
        decisions=pa.concat_tables([DECISIONS.empty_table(), *tables]),
        outcomes=pa.concat_tables([OUTCOMES.empty_table(), *(piece.outcomes for piece in pieces)]),
        action_sets=sets,
    )
