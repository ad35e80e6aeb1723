"""Tables of decisions from an address: a decision log joined with its outcomes, or a saved view."""

import math
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from hone.core.decisions import DecisionTable
from hone.core.errors import DataError
from hone.decide.joins.config import JoinConfig
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import read_view
from hone.decide.joins.reading import log_columns
from hone.decide.joins.view import take_decisions
from hone.decide.log.opening import open_decision_log


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

    Raises DataError where nothing is there or no decision is left, and for a log of several tenants or schemas without
    a choice.
    """
    path = Path(address)
    if "://" not in address and not path.exists():
        raise DataError(f"{address}: there is no such log or view; paths are relative to {Path.cwd()}")
    if "://" not in address and (path.is_dir() or path.suffix == ".parquet"):
        table = read_view(path).table
    else:
        with closing(open_decision_log(address)) as log:
            columns = log_columns(log, tenant=tenant or None)
        table = build_view(columns, as_of_s=as_of_s, join=join, tenant=tenant or None, schema=schema or None).table
    kept = table if since_s == -math.inf else take_decisions(table, np.flatnonzero(table.at_s >= since_s))
    if not len(kept):
        whose = f" of tenant {tenant!r}" if tenant else ""
        since = f"; none of its {len(table)} is at {since_s:g} s or later" if len(table) else ""
        raise DataError(f"{named_source(address)}: no decisions{whose} to read{since}")
    return kept


def named_source(address: str) -> str:
    """A log's address without user, password and options: for messages, pages and evidence."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
