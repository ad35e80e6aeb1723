"""Tables of decisions from an address: a decision log joined with its outcomes, or a saved view."""

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from hone.core.decisions import DecisionRecord, DecisionTable
from hone.core.errors import DataError
from hone.store.decisions.opening import open_decision_log
from hone.store.decisions.protocol import DecisionLog
from hone.store.joins.config import JoinConfig
from hone.store.joins.join import build_view
from hone.store.joins.parquet import read_view
from hone.store.joins.view import take_decisions

_PAGE = 20_000


def read_decision_table(
    address: str,
    *,
    as_of_s: float,
    since_s: float = -math.inf,
    join: JoinConfig | None = None,
    tenant: str = "",
    schema: str = "",
) -> DecisionTable:
    """Read decisions with their rewards: a log (`decisions.db`, `postgresql://`, `redis://`), joined as of `as_of_s`
    (seconds since the epoch), or a view's folder or parquet file, as it was joined. Decisions before `since_s` are left
    out: those that a candidate has learnt from flatter it.

    Raises DataError where nothing is there, and for a log of several tenants or schemas without a choice.
    """
    path = Path(address)
    if "://" not in address and not path.exists():
        raise DataError(f"{address}: there is no such log or view; paths are relative to {Path.cwd()}")
    if "://" not in address and (path.is_dir() or path.suffix == ".parquet"):
        return _since(read_view(path).table, since_s)
    with closing(open_decision_log(address)) as log:
        view = build_view(
            _records(log, tenant), as_of_s=as_of_s, join=join, tenant=tenant or None, schema=schema or None
        )
    return _since(view.table, since_s)


def _since(table: DecisionTable, since_s: float) -> DecisionTable:
    return table if since_s == -math.inf else take_decisions(table, np.flatnonzero(table.at_s >= since_s))


def _records(log: DecisionLog, tenant: str) -> Iterator[DecisionRecord]:
    after = 0
    while page := log.read(after, _PAGE, tenant=tenant or None):
        after = page[-1].position
        yield from (one.record for one in page)
