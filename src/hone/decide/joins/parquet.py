"""Views on disk: one parquet file with everything, and a frozen folder whose manifest holds its hash.

The same view is the same bytes. Rows are the columns of `DecisionTable` and `DecisionView`; the metadata under `hone`
hold the rules, counts and sets of actions as JSON. DuckDB, pandas and polars read the file.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# (pyarrow has no type information)

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hone.core.decisions import ActionSet, DecisionTable
from hone.core.errors import ConfigError, DataError
from hone.core.strict_json import Json
from hone.decide.joins.columns import column_floats, column_ints, column_texts, context_rows
from hone.decide.joins.config import JoinConfig
from hone.decide.joins.view import DecisionView, ViewCounts
from hone.run.store.durable import (
    failpoint,
    from_json,
    read_json_object,
    remove_tree,
    replace_file,
    sha256,
    sync_path,
    to_json,
    write_file,
    writing,
)

VIEW_FORMAT: Final = 1
ROWS_FILE: Final = "view.parquet"
MANIFEST_FILE: Final = "manifest.json"


def view_bytes(view: DecisionView) -> bytes:
    """The view as a parquet file."""
    table, sink = view.table, pa.BufferOutputStream()
    width = table.contexts.shape[1]
    flat = pa.array(np.ascontiguousarray(table.contexts).ravel())
    offsets = pa.array(np.arange(len(table) + 1, dtype=np.int32) * np.int32(width))
    rows = pa.table(
        {
            "id": pa.array(table.ids, pa.string()),
            "unit": pa.array(table.units, pa.string()),
            "at_s": table.at_s,
            "context": pa.ListArray.from_arrays(offsets, flat),
            "action_set": table.action_set,
            "executed": table.executed,
            "logp": table.logp,
            "reward": table.reward,
            "known": table.known,
            "version": pa.array(table.versions, pa.string()),
            "route": pa.array(table.routes or ("",) * len(table), pa.string()),
            "first_delay_s": view.first_delay_s,
            "reward_so_far": view.reward_so_far,
            "corrected": view.corrected,
        }
    )
    pq.write_table(rows.replace_schema_metadata({"hone": to_json(_facts(view))}), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _facts(view: DecisionView) -> dict[str, Json]:
    return view_facts(
        as_of_s=view.as_of_s, tenant=view.tenant, schema=view.schema, join=view.join, counts=view.counts,
        sets=view.table.action_sets,
    )  # fmt: skip


def view_facts(
    *, as_of_s: float, tenant: str, schema: str, join: JoinConfig, counts: ViewCounts, sets: Sequence[ActionSet]
) -> dict[str, Json]:
    """Facts about a view that its file holds beside the rows."""
    return {
        "format": VIEW_FORMAT,
        "as_of_s": as_of_s,
        "tenant": tenant,
        "schema": schema,
        "join": cast("dict[str, Json]", join.model_dump()),
        "counts": cast("dict[str, Json]", asdict(counts)),
        "action_sets": [
            {"names": list(one.names), "features": None if one.features is None else one.features.tolist()}
            for one in sets
        ],
    }


def read_view(path: Path) -> DecisionView:
    """Read a frozen folder, whose hash is checked, or a view's parquet file. Raises DataError."""
    if path.is_dir():
        return read_frozen_view(path)
    try:
        rows = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    facts = from_json((rows.schema.metadata or {}).get(b"hone", b"null"), f"{path}: metadata `hone`")
    match facts:
        case {"format": int(version)} if version > VIEW_FORMAT:
            raise DataError(f"{path} has view format {version}, this hone reads up to {VIEW_FORMAT}; upgrade hone")
        case {
            "as_of_s": float() | int() as as_of_s, "tenant": str(tenant), "schema": str(schema), "join": dict(join),
            "counts": dict(counts), "action_sets": list(sets),
        }:  # fmt: skip
            return DecisionView(
                table=_table(rows, tuple(_action_set(one, path) for one in sets), schema),
                as_of_s=float(as_of_s), join=JoinConfig.model_validate(join), tenant=tenant,
                counts=ViewCounts(**cast("dict[str, int]", counts)),
                first_delay_s=column_floats(rows, "first_delay_s"),
                reward_so_far=column_floats(rows, "reward_so_far"), corrected=column_floats(rows, "corrected"),
            )  # fmt: skip
        case _:
            raise DataError(f"{path} is not a view of a decision log: `hone log FILE --view FOLDER` makes one")


def view_action_sets(path: Path) -> tuple[ActionSet, ...]:
    """Sets of actions of a view's parquet file, without reading its rows. Raises DataError."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a complete parquet file: {error}") from error
    match from_json(metadata.get(b"hone", b"null"), f"{path}: metadata `hone`"):
        case {"action_sets": list(sets)}:
            return tuple(_action_set(one, path) for one in sets)
        case _:
            raise DataError(f"{path} is not a view of a decision log: `hone log FILE --export FILE` makes one")


def _action_set(facts: Json, path: Path) -> ActionSet:
    match facts:
        case {"names": list(names), "features": None}:
            return ActionSet(names=tuple(map(str, names)))
        case {"names": list(names), "features": list(features)}:
            return ActionSet(names=tuple(map(str, names)), features=np.array(features, np.float64))
        case _:
            raise DataError(f"{path}: metadata `hone`: an entry of action_sets has no names and features: {facts!r}")


def _table(rows: pa.Table, sets: tuple[ActionSet, ...], schema: str) -> DecisionTable:
    routes = column_texts(rows, "route")
    return DecisionTable(
        contexts=context_rows(rows),
        action_sets=sets,
        action_set=column_ints(rows, "action_set"),
        executed=column_ints(rows, "executed"),
        logp=column_floats(rows, "logp"),
        reward=column_floats(rows, "reward"),
        known=np.asarray(rows["known"].to_numpy(), np.bool_),
        at_s=column_floats(rows, "at_s"),
        ids=column_texts(rows, "id"),
        units=column_texts(rows, "unit"),
        versions=column_texts(rows, "version"),
        routes=routes if any(routes) else (),
        schemas=(schema,) * len(routes) if schema else (),
    )


def view_hash(view: DecisionView) -> str:
    """sha256 of the view's parquet file."""
    return hashlib.sha256(view_bytes(view)).hexdigest()


def freeze_view(view: DecisionView, folder: Path) -> str:
    """Write the view as a folder that never changes, whole or not at all -> its hash.

    Raises ConfigError if the folder exists, unless it holds this very view, and ResourceError if it cannot be written.
    """
    data = view_bytes(view)
    digest = hashlib.sha256(data).hexdigest()
    if folder.exists():
        if is_frozen_view(folder) and frozen_hash(folder) == digest:
            return digest
        raise ConfigError(f"{folder} exists already; a frozen view never changes: name another folder")
    manifest: dict[str, Json] = {"view": VIEW_FORMAT, "rows": len(view.table), "sha256": digest, **_facts(view)}
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    with writing(folder, len(data)):
        temporary.mkdir(parents=True)
        try:
            write_file(temporary / ROWS_FILE, data)
            failpoint("view.before_manifest")
            replace_file(temporary / MANIFEST_FILE, to_json(manifest, indent=2))
            temporary.rename(folder)
        except BaseException:
            remove_tree(temporary)
            raise
    sync_path(folder.parent)
    return digest


def is_frozen_view(folder: Path) -> bool:
    """True for a folder that `freeze_view` wrote."""
    return (folder / MANIFEST_FILE).is_file() and (folder / ROWS_FILE).is_file()


def frozen_hash(folder: Path) -> str:
    """Hash that the manifest of a frozen view names. Raises DataError."""
    match read_json_object(folder / MANIFEST_FILE):
        case {"view": int(), "sha256": str(digest)}:
            return digest
        case _:
            raise DataError(f"{folder / MANIFEST_FILE} is not the manifest of a frozen view")


def read_frozen_view(folder: Path) -> DecisionView:
    """Read a frozen view. Raises DataError if it is not what was frozen."""
    if not is_frozen_view(folder):
        raise DataError(f"{folder} is not a frozen view: it needs {ROWS_FILE} and {MANIFEST_FILE}")
    wanted, path = frozen_hash(folder), folder / ROWS_FILE
    if (digest := sha256(path)) != wanted:
        raise DataError(
            f"{path} has sha256 {digest[:12]}..., its manifest says {wanted[:12]}...: it was changed after it was "
            "frozen; freeze the log again"
        )
    return read_view(path)
