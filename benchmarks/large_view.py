"""A view of many decisions as parquet files, written a file at a time: the log that a shop has after a year."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import view_bytes
from hone.decide.joins.view import JoinConfig
from hone.decide.simulators.logged_choices import LoggedChoiceWorld, logged_records

ROWS_OF_A_FILE = 500_000


def write_large_view(world: LoggedChoiceWorld, folder: Path, *, rows: int, seed: int) -> list[Path]:
    """Write `rows` decisions in files of 500,000; the metadata are those of a small view of the same world."""
    small = folder / "small.parquet"
    small.write_bytes(view_bytes(build_view(logged_records(world.log(10, seed=seed)), as_of_s=1e9, join=JoinConfig())))
    metadata = pq.read_schema(small).metadata
    paths: list[Path] = []
    for number in range(rows // ROWS_OF_A_FILE):
        table, begin = world.log(ROWS_OF_A_FILE, seed=seed + number), number * ROWS_OF_A_FILE
        width = table.contexts.shape[1]
        offsets = pa.array(np.arange(len(table) + 1, dtype=np.int32) * width)
        columns = pa.table(
            {
                "unit": pa.array(np.char.add("u", (begin + np.arange(len(table))).astype(str))),
                "at_s": table.at_s + begin,
                "context": pa.ListArray.from_arrays(offsets, pa.array(table.contexts.ravel())),
                "action_set": table.action_set,
                "executed": table.executed,
                "logp": table.logp,
                "reward": table.reward,
                "known": table.known,
            }
        )
        paths.append(folder / f"part_{number:04}.parquet")
        pq.write_table(columns.replace_schema_metadata(metadata), paths[-1], compression="zstd")
    return paths
