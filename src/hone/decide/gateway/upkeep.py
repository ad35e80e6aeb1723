"""Upkeep of a service: a backup while it serves, its check and its restore, pruning of versions, rows of features, and
erasure of a unit.

    BACKUP/
      backup.json      what was copied: sha256 of each file, records of the log, watermarks of its sources
      service.toml     the service file
      folder/          the service's folder: log (if it is a file), versions, registry, queues, alarms

A backup is whole or not there. The log is copied by SQLite itself, so that it is one moment's log, with the checkpoint
of its learner, though the service writes on. Versions are copied after it, so each that the log names is there. A log
on a server is backed up by the server's own tools.
"""

import shutil
import sqlite3
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from hone.core.clock import Clock
from hone.core.decisions import Decision
from hone.core.errors import ConfigError, DataError, ErrorCollector, ResourceError
from hone.core.strict_json import Json, strict_json
from hone.decide.gateway.feature_join import FeatureJoin
from hone.decide.gateway.feature_opening import open_feature_store
from hone.decide.gateway.feature_store import EntityKey, FeatureRow
from hone.decide.gateway.opening import log_address, open_features, pages, read_service_file, service_folder
from hone.decide.gateway.requests import RequestError
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog, log_name
from hone.decide.log.retention import erase_unit
from hone.run.store.durable import read_json_object, remove_tree, replace_file, sha256, sync_path, to_json, writing

MANIFEST: Final = "backup.json"
SERVICE_FILE: Final = "service.toml"
FOLDER: Final = "folder"
FORMAT: Final = 1
YOUNG_S: Final = 3600.0
"""Versions that were made within these seconds are never pruned: no decision may have named them yet."""
_SQLITE: Final = b"SQLite format 3\0"
_LEFT: Final = ("lock", "instance", "issued")
"""Files of the running process, which no backup holds. A restored gateway takes a new name as a writer: numbers that it
gave out after the backup stay those of the old one."""


# --------------------------------------------------------------------------------------------------------------- backup


def backup_service(file: Path, target: Path, clock: Clock) -> dict[str, Json]:
    """Copy a service, which may be serving, into the new folder `target` -> the manifest.

    Raises ConfigError if the target exists, DataError if there is no service, and ResourceError if it cannot be copied.
    """
    config = read_service_file(file).config
    folder = service_folder(file, config)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no folder of this service yet; it is made by the first `hone serve`")
    if target.exists():
        raise ConfigError(f"{target} exists already; a backup never changes: name another folder")
    beside = target.with_name(f".{target.name}.tmp")
    if beside.exists():
        remove_tree(beside)
    own_log = None if "://" in config.log.address else folder / config.log.address
    try:
        with writing(target):
            copied = beside / FOLDER
            copied.mkdir(parents=True)
            beside.chmod(stat.S_IRWXU)
            shutil.copyfile(file, beside / SERVICE_FILE)
            _copy_folder(folder, copied, skipped={folder / "versions", *([own_log] if own_log else [])})
            if own_log is not None and own_log.is_file():
                _copy_file(own_log, copied / config.log.address)
            if (folder / "versions").is_dir():
                _copy_folder(folder / "versions", copied / "versions", skipped=set())
        log: dict[str, Json] = {"address": log_name(config.log.address)}
        address = str(copied / config.log.address) if own_log is not None else log_address(folder, config.log)
        with closing(open_decision_log(address)) as opened:
            log |= _log_facts(opened)
        files: dict[str, Json] = {
            path.relative_to(beside).as_posix(): sha256(path) for path in sorted(beside.rglob("*")) if path.is_file()
        }
        manifest: dict[str, Json] = {
            "backup": FORMAT, "service": folder.name, "at_s": clock.now_s(), "log": log, "files": files,
        }  # fmt: skip
        replace_file(beside / MANIFEST, to_json(manifest, indent=1))
        with writing(target):
            beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_path(target.parent)
    return manifest


def verify_backup(target: Path) -> dict[str, Json]:
    """Check every file of a backup, and its log -> the manifest. Raises DataError with every fault."""
    manifest = read_json_object(target / MANIFEST)
    if manifest.get("backup") != FORMAT:
        raise DataError(f"{target / MANIFEST} is a backup of format {manifest.get('backup')!r}, known is {FORMAT}")
    files, faults = cast("Mapping[str, str]", manifest["files"]), ErrorCollector(DataError)
    there = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()} - {MANIFEST}
    faults.extend(f"{target / name} is missing" for name in sorted(files.keys() - there))
    faults.extend(f"{target / name} is not part of the backup" for name in sorted(there - files.keys()))
    faults.extend(
        f"{target / name} is damaged: its sha256 is not that of the backup"
        for name in sorted(there & files.keys())
        if sha256(target / name) != files[name]
    )
    faults.raise_if_any()
    return manifest


def restore_service(target: Path, file: Path) -> dict[str, Json]:
    """Copy a backup to where `file` and its service's folder belong -> the manifest.

    A service file that is there already stays. Raises ConfigError if the service's folder is there, and DataError as
    `verify_backup`.
    """
    manifest = verify_backup(target)
    source = file if file.is_file() else target / SERVICE_FILE
    folder = service_folder(file, read_service_file(source).config)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: stop the service, move the folder aside, and restore again")
    beside = folder.with_name(f".{folder.name}.restored")
    with writing(folder):
        if beside.exists():
            remove_tree(beside)
        shutil.copytree(target / FOLDER, beside)
        if folder.exists():
            folder.rmdir()
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, (target / SERVICE_FILE).read_bytes())
        beside.rename(folder)
    sync_path(folder.parent)
    return manifest


def _copy_folder(source: Path, target: Path, skipped: set[Path]) -> None:
    """Copy what is whole: a folder of which a file goes away meanwhile, as an old checkpoint does, is left out."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path in skipped or path.name.startswith(".") or path.name.endswith((".new", "-wal", "-shm", "-journal")):
            continue
        if path.name in _LEFT:
            continue
        try:
            if path.is_dir():
                _copy_folder(path, target / path.name, skipped)
            elif path.is_file() and not path.is_symlink():
                _copy_file(path, target / path.name)
        except FileNotFoundError:
            if source.is_dir() and path.exists():
                raise
            shutil.rmtree(target, ignore_errors=True)
            return


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file; of an SQLite database that others write to, one moment."""
    with source.open("rb") as file:
        is_database = file.read(len(_SQLITE)) == _SQLITE
    target.parent.mkdir(parents=True, exist_ok=True)
    if not is_database:
        shutil.copyfile(source, target)
        return
    try:
        with closing(sqlite3.connect(source, timeout=30)) as old, closing(sqlite3.connect(target)) as new:
            old.backup(new, pages=-1)
    except sqlite3.Error as error:
        raise ResourceError(f"cannot copy {source}: {error}; run it again") from error


def _log_facts(log: DecisionLog) -> dict[str, Json]:
    counts = log.counts()
    return {
        "decisions": counts.decisions, "outcomes": counts.outcomes, "erased": counts.erased,
        "watermarks": [
            {"tenant": mark.tenant, "source": mark.source, "highest": mark.highest, "missing": mark.missing}
            for mark in log.watermarks()
        ],
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- pruning


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrunedVersions:
    """Versions of a service that were pruned."""

    removed: tuple[str, ...]
    kept: int


def prune_versions(file: Path, *, before_s: float, clock: Clock) -> _PrunedVersions:
    """Remove versions that no decision of the log since `before_s` was made by. The service may serve meanwhile.

    The version of each tenant's latest decision stays, however old, and so do versions of the last hour. Decisions of
    removed versions stay in the log with their probabilities; they cannot be replayed any more. Raises as the log.
    """
    config = read_service_file(file).config
    folder = service_folder(file, config)
    shelf = folder / "versions"
    listed = sorted(path for path in shelf.iterdir() if path.name.isalnum()) if shelf.is_dir() else []
    with closing(open_decision_log(log_address(folder, config.log))) as log:
        used = set(_used_versions(log, before_s))
    young_s = clock.now_s() - YOUNG_S
    removed = [path for path in listed if path.name not in used and path.stat().st_mtime < young_s]
    for path in removed:
        beside = path.with_name(f".{path.name}.old")  # a version is whole or not there
        with writing(path):
            path.rename(beside)
        remove_tree(beside)
    return _PrunedVersions(removed=tuple(path.name for path in removed), kept=len(listed) - len(removed))


def _used_versions(log: DecisionLog, before_s: float) -> Iterator[str]:
    """Names of versions, without their shield, that decisions since `before_s` were made by, and each tenant's last."""
    last: dict[str, tuple[float, str]] = {}
    for logged in pages(log):
        record = logged.record
        if not isinstance(record, Decision):
            continue
        name = record.version.partition("+")[0]
        if record.at_s >= before_s:
            yield name
        if record.at_s >= last.get(record.tenant, (float("-inf"), ""))[0]:
            last[record.tenant] = record.at_s, name
    yield from (name for _, name in last.values())


# ------------------------------------------------------------------------------------------------------------- features


def store_features(file: Path, rows_file: Path, clock: Clock) -> int:
    """Store the rows of a file in a service's feature store, which may be serving -> their number.

    A line is `{"group": ..., "rows": {ENTITY: {FEATURE: VALUE or null}}, "at_s": ..., "tenant": ...}`; without a tenant
    it is of the service's first one. Raises ConfigError for a service without a store, DataError with every wrong line
    (then nothing was stored), and ResourceError if the store does not answer: then store the file again.
    """
    config = read_service_file(file).config
    try:
        lines = rows_file.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{rows_file}: cannot read the rows of features: {error}") from error
    faults, rows = ErrorCollector(DataError), list[FeatureRow]()
    with closing(open_features(config, service_folder(file, config), clock)) as join:
        for number, line in enumerate(lines, start=1):
            try:
                rows += _feature_rows(line, join, config.service.tenants)
            except (ValueError, RequestError) as error:
                faults.add(f"{rows_file}:{number}: {error}")
        faults.raise_if_any()
        join.store.put(rows)
    return len(rows)


def erase_from_service(file: Path, unit: str, *, tenant: str = "", archive: str = "") -> list[str]:
    """Erase a unit from a service's feature store, then from its log and, if given, the log's `archive` -> what was
    erased, in sentences. The service may be serving.

    In the store the unit is the entity of every group that has no field of its own. Entities of the other groups are
    shops, items or whatever requests name: they stay, and a sentence says so. Raises ConfigError for a service of
    several tenants without `tenant`, ResourceError if the store or the log does not answer: then erase again.
    """
    config = read_service_file(file).config
    tenants = config.service.tenants
    if not tenant and len(tenants) > 1:
        raise ConfigError(f"--erase {unit}: {file} has {len(tenants)} tenants; name one by --tenant")
    name = tenant or tenants[0]
    if name not in tenants:
        raise DataError(f"{file} has no tenant {name!r:.60}; known: {', '.join(tenants)}")
    if archive and not Path(archive).is_dir():
        raise DataError(f"--archive {archive}: there is no such folder; nothing was erased")
    folder, lines = service_folder(file, config), list[str]()
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no folder of this service yet; nothing was erased")
    if (table := config.features) is not None and table.address != ":memory:":
        own = [group.name for group in table.groups if not group.entity]
        with closing(open_feature_store(log_address(folder, table), wait_s=30.0)) as store:
            erased = store.erase([EntityKey(name, group, unit) for group in own])
        lines.append(
            f"erased {erased} stored features of unit {unit} of tenant {name} ({', '.join(own) or 'no group'})"
        )
        lines += [
            f"group {group.name} is kept by {group.entity}: if that names {unit}, put null for its values"
            for group in table.groups if group.entity
        ]  # fmt: skip
    with closing(open_decision_log(log_address(folder, config.log))) as log:
        if archive:
            report = erase_unit(log, Path(archive), name, unit)
            lines.append(f"erased {report.from_files} records of unit {unit} of tenant {name} from {archive}")
            records = report.from_log
        else:
            records = log.erase(name, unit)
    lines.append(f"erased {records} records of unit {unit} of tenant {name}; views made before still hold them")
    return lines


def _feature_rows(line: bytes, join: FeatureJoin, tenants: Sequence[str]) -> list[FeatureRow]:
    """Rows of a line. Raises ValueError, RequestError."""
    value = strict_json(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    fields = cast("dict[str, object]", value)
    tenant = fields.pop("tenant", tenants[0])
    if not isinstance(tenant, str) or tenant not in tenants:
        raise ValueError(f"no tenant {tenant!r:.60}; known: {', '.join(tenants)}")
    return join.read_rows(tenant, fields)
