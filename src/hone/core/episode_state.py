"""Episodes as saved state: one layout for every source and buffer that keeps episodes in a checkpoint."""

import numpy as np

from hone.core.episodes import Episodes, Seen, Transcript, column_table
from hone.core.errors import DataError
from hone.core.ragged import RaggedArray, offsets_of
from hone.core.routing import as_routing
from hone.core.state import State, array, substate


def pack_episodes(episodes: Episodes) -> State:
    """Every column that is there, by name."""
    saved: State = {"offsets": episodes.offsets, **episodes.columns()}
    seen = episodes.seen
    if not isinstance(seen, Transcript):
        return saved
    transcript: State = {"tokens": seen.tokens, "offsets": seen.offsets, "at": seen.at}
    if seen.kept is not None:
        transcript["kept"] = {"values": seen.kept.values, "offsets": seen.kept.offsets}
    if seen.routing is not None:
        transcript["routing"] = seen.routing
    return {**saved, "transcript": transcript}


def unpack_episodes(state: State) -> Episodes:
    """Inverse of `pack_episodes`. Raises DataError for a missing column and for one that is not declared.

    Older layouts are read as well: `lengths` instead of `offsets`, no `status` (all scored), None for absent columns.
    """
    table = column_table()
    if unknown := sorted(set(state) - set(table) - {"offsets", "lengths", "transcript"}):
        raise DataError(f"the saved episodes have columns that this version does not know: {', '.join(unknown)}")
    columns: dict[str, Seen] = {}
    for name, column in table.items():
        if name == "seen" and "transcript" in state:
            columns[name] = _transcript(substate(state, "transcript"))
        elif column.required or state.get(name) is not None:
            saved = array(state, name)
            columns[name] = saved if column.dtype is None else saved.astype(column.dtype)
    offsets = offsets_of(array(state, "lengths").astype(np.int64)) if "lengths" in state else array(state, "offsets")
    return Episodes.from_columns(offsets.astype(np.int64), columns)


def _transcript(state: State) -> Transcript:
    kept = None
    if "kept" in state:
        rows = substate(state, "kept")
        values, offsets = array(rows, "values").astype(np.int32), array(rows, "offsets").astype(np.int64)
        kept = RaggedArray(values=values, offsets=offsets)
    return Transcript(
        tokens=array(state, "tokens").astype(np.int32),
        offsets=array(state, "offsets").astype(np.int64),
        at=array(state, "at").astype(np.int64),
        kept=kept,
        routing=as_routing(array(state, "routing")) if "routing" in state else None,
    )
