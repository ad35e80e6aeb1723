"""Folder of one run, `runs/<name>/`.

Belongs here: making, finding, locking and naming the files of a run (`config.json`, `manifest.json`, `metrics.jsonl`,
`events.jsonl`, `histograms.jsonl`, `rollouts/`, `checkpoints/`, `certificate.json`, `learning.json`, `speed.json`,
`lock`, `log.txt`, `report.html`), and refusing whatever would overwrite another run.
"""

import fcntl
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hone.core.clock import Clock
from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.durable import (
    raise_write_error,
    read_json_object,
    remove_tree,
    replace_file,
    require_space,
    to_json,
    write_all,
    writing,
)
from hone.run.store.events import EVENTS_FILE, EventLog
from hone.run.store.manifest import (
    NO_CHANGES,
    RUN_FORMAT,
    AllowedChanges,
    Manifest,
    RunChange,
    RunMetadata,
    config_diff,
    config_hash,
    read_config,
    read_manifest,
    refuse_differences,
    resume_differences,
    settings_json,
)
from hone.run.store.records import CERTIFICATE

# ----------------------------------------------------------------------------------------------------------------- lock


@dataclass(slots=True)
class RunLock:
    """Acquired lock."""

    path: Path
    descriptor: int | None

    @classmethod
    def acquire(cls, path: Path, run: str) -> "RunLock":
        """Acquire the lock without changing the file. Raises ResourceError naming pid, host and time of the holder."""
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise ResourceError(f"cannot lock {path}: {error.strerror}; is it on a disk without locks?") from error
            raise ResourceError(f"run {run} is in use by {_holder(path)}; wait for it, or give a new --name") from error
        lock = cls(path, descriptor)
        # A forked worker that outlives a killed trainer would keep the lock: it closes its handle at once.
        os.register_at_fork(after_in_child=lock.close)
        return lock

    def write_holder(self, since: str) -> None:
        """Write the holder to the file. Raises ResourceError."""
        if self.descriptor is None:
            raise ValueError("the lock was released")
        data = to_json({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with writing(self.path, len(data)):
            os.ftruncate(self.descriptor, 0)
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            write_all(self.descriptor, data)

    def release(self) -> None:
        """Release the lock; a second call has no effect."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        """Close this process's handle; other processes with the file open keep the lock."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _holder(path: Path) -> str:
    try:
        holder = read_json_object(path)
    except DataError:  # acquired just now, the holder is not written yet
        return "another process"
    return f"pid {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"


# --------------------------------------------------------------------------------------------------------------- folder


NAME_PATTERN = r"[A-Za-z0-9._-]{1,128}"
CONFIG = "config.json"
MANIFEST = "manifest.json"
LOCK = "lock"
LOG = "log.txt"
CAPSULE = "capsule"
"""Folder of the latest failure (`hone.run.capsule`)."""


def check_name(name: str) -> None:
    """Raise ConfigError unless `name` is a valid folder name of a run."""
    if not re.fullmatch(NAME_PATTERN, name) or name.startswith("."):
        raise ConfigError(
            f"run name {name[:80]!r} ({len(name)} characters) must be 1 to 128 letters (a-z), digits, _, - and ., "
            "and not begin with a dot"
        )


@dataclass(slots=True, kw_only=True)
class RunFolder:
    """Folder of a run, made by `create_run` or `resume_run` (locked until `close`), or by `open_run` for reading."""

    path: Path
    clock: Clock
    _lock: RunLock | None = field(default=None)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> EventLog:
        """Events of the run."""
        return EventLog(self.path / EVENTS_FILE, self.clock)

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / "checkpoints"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def log_path(self) -> Path:
        return self.path / LOG

    def checkpoints(self, *, keep_last: int = 2, keep_best: int = 1) -> CheckpointFolder:
        """Checkpoints of the run."""
        return CheckpointFolder(folder=self.checkpoints_folder, keep_last=keep_last, keep_best=keep_best)

    def config(self) -> dict[str, ConfigSetting]:
        """Read the resolved config with the origin of each value. Raises DataError."""
        return read_config(self.config_path)

    def manifest(self) -> Manifest:
        """Raises DataError."""
        return read_manifest(self.manifest_path)

    def log(self, message: str, *, level: str = "INFO") -> None:
        """Append a line `2026-01-31T12:00:00Z LEVEL message` to `log.txt`. Raises ResourceError."""
        line = f"{_iso(self.clock)} {level} {message}\n"
        with writing(self.log_path), self.log_path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(line)

    def record_resume(
        self, *, config: Mapping[str, ConfigSetting], metadata: RunMetadata, after_step: int
    ) -> list[str]:
        """Record the accepted differences of a resume and the settings that hold from now on; returns the differences.

        Raises ResourceError.
        """
        manifest, old = self.manifest(), self.config()
        lines = resume_differences(old, config, manifest.metadata, metadata).lines()
        if lines or manifest.metadata.code != metadata.code or config_hash(old) != config_hash(config):
            changed = replace(
                manifest,
                config_hash=config_hash(config),
                metadata=replace(manifest.metadata, code=metadata.code),
                changes=(*manifest.changes, *(RunChange(after_step=after_step, change=line) for line in lines)),
            )
            replace_file(self.manifest_path, to_json(changed.to_json(), indent=1))
            replace_file(self.config_path, to_json(settings_json(config), indent=1))
        return lines

    def discard_unused(self) -> None:
        """Remove a run that failed before it saved anything, so that its name is free for the next attempt.

        A folder with metrics, checkpoints, rollouts or unknown files stays as it is. One with the capsule of its
        failure stays as well, and is taken by the next run of its name.
        """
        if _saved_nothing(self.path) and not (self.path / CAPSULE).exists():
            remove_tree(self.path)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _saved_nothing(path: Path) -> bool:
    """True if the run at `path` failed before it saved anything but, at most, the capsule of its failure."""
    ours = {CONFIG, MANIFEST, LOCK, CERTIFICATE, LOG, EVENTS_FILE, CAPSULE}
    return all(
        entry.name in ours or not (any(entry.iterdir()) if entry.is_dir() else entry.stat().st_size)
        for entry in path.iterdir()
    )


def create_run(
    root: Path,
    name: str,
    *,
    config: Mapping[str, ConfigSetting],
    metadata: RunMetadata,
    clock: Clock,
    need_bytes: int = 0,
) -> RunFolder:
    """Make `root/name` for a new run and lock it.

    Raises ConfigError if the name is invalid or the run exists (with the difference of the configs), and ResourceError
    for an unusable root, too little space (`need_bytes`), or a run in use. Existing files are not changed.
    """
    check_name(name)
    path = root / name
    _check_place(root, path)
    require_space(root, need_bytes)
    _refuse_foreign(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    lock = RunLock.acquire(path / LOCK, name)
    try:
        _refuse_existing(path, config)
        if (path / CAPSULE).exists():
            remove_tree(path / CAPSULE)
            for former in (LOG, EVENTS_FILE):
                (path / former).unlink(missing_ok=True)
        lock.write_holder(_iso(clock))
        replace_file(path / CONFIG, to_json(settings_json(config), indent=1))
        manifest = Manifest(
            format=RUN_FORMAT, config_hash=config_hash(config), created_at=_iso(clock), metadata=metadata
        )
        replace_file(path / MANIFEST, to_json(manifest.to_json(), indent=1))
    except BaseException:
        lock.release()
        raise
    return RunFolder(path=path, clock=clock, _lock=lock)


def resume_run(
    root: Path,
    name: str,
    *,
    config: Mapping[str, ConfigSetting],
    metadata: RunMetadata,
    clock: Clock,
    allowed: AllowedChanges = NO_CHANGES,
) -> RunFolder:
    """Lock `root/name` to resume it; `RunFolder.record_resume` then records the differences.

    Config, dataset and code must be the run's own, except for `allowed` changes. Raises ConfigError naming every other
    difference, DataError without such a run, ResourceError if it is in use.
    """
    check_name(name)
    path = root / name
    _require_manifest(path)
    _check_place(root, path)
    manifest = read_manifest(path / MANIFEST)
    lock = RunLock.acquire(path / LOCK, name)
    try:
        differences = resume_differences(read_config(path / CONFIG), config, manifest.metadata, metadata)
        refuse_differences(f"run {name} cannot be resumed", differences, allowed)
        lock.write_holder(_iso(clock))
    except BaseException:
        lock.release()
        raise
    return RunFolder(path=path, clock=clock, _lock=lock)


def check_run(
    root: Path,
    name: str,
    *,
    config: Mapping[str, ConfigSetting],
    code: Mapping[str, str] | None = None,
    resume: bool,
    allowed: AllowedChanges = NO_CHANGES,
) -> None:
    """Raise the errors of `create_run` or `resume_run` in advance, but for those of the dataset. Changes nothing."""
    check_name(name)
    path = root / name
    _check_place(root, path)
    if resume:
        _require_manifest(path)
    else:
        _refuse_foreign(path)
    if (path / LOCK).exists():
        RunLock.acquire(path / LOCK, name).release()
    if resume:
        before = read_manifest(path / MANIFEST).metadata
        differences = resume_differences(read_config(path / CONFIG), config, before, replace(before, code=code))
        refuse_differences(f"run {name} cannot be resumed", differences, allowed)
    else:
        _refuse_existing(path, config)


def open_run(path: Path, *, clock: Clock) -> RunFolder:
    """Open a run for reading, without a lock. Raises DataError if `path` is not a run, or has a newer format."""
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path} is not a run: it has no {MANIFEST}")
    read_manifest(path / MANIFEST)
    return RunFolder(path=path, clock=clock)


def list_runs(root: Path) -> list[Path]:
    """Run folders directly under `root`, sorted by name."""
    return sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))


def _iso(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_place(root: Path, path: Path) -> None:
    """Raise ResourceError unless the run's folder can be created or written to."""
    for place in (root, path):
        if place.is_symlink():
            raise ResourceError(f"{place} is a symbolic link to {place.readlink()}; name the folder itself")
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise ResourceError(f"{existing} is not a folder, so no run can be saved at {path}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ResourceError(f"{existing} is not writable by this user, so no run can be saved at {path}")


def _require_manifest(path: Path) -> None:
    if not (path / MANIFEST).is_file():
        raise DataError(f"no run {path.name} in {path.parent} to resume: omit --resume to start it")


def _refuse_foreign(path: Path) -> None:
    """Raise ConfigError if `path` exists and is not a run: it may belong to the user, and stays as it is."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return
    ours = {LOCK, CONFIG, f".{CONFIG}.tmp", f".{MANIFEST}.tmp"}  # possible leftovers of a kill during `create_run`
    try:
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    except OSError as error:
        raise_write_error(path, error)
    if others:
        raise ConfigError(f"{path} exists, is not a run, and contains {', '.join(others[:5])}; give another --name")


def _refuse_existing(path: Path, config: Mapping[str, ConfigSetting]) -> None:
    if not (path / MANIFEST).exists() or ((path / CAPSULE).exists() and _saved_nothing(path)):
        return
    differences = config_diff(read_config(path / CONFIG), config)
    if differences:
        raise ConfigError(
            f"run {path.name} exists in {path.parent} with another config; give a new --name, or --resume with its "
            "config. Nothing was changed. The differences:",
            *(f"  {line}" for line in differences),
        )
    raise ConfigError(
        f"run {path.name} exists in {path.parent} with the same config; --resume continues it, "
        "a new --name starts another. Nothing was changed."
    )
