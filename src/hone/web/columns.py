"""Columns of a run's metrics, kept between looks: of a short file in memory, of a long one in the user's cache folder.

Belongs here: what `tail` read, appended metric by metric, and blocks of 64 rows with their least, greatest, sum and
count, from which `series` answers a request of any length. Nothing is written below the runs.
"""

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ResourceError
from hone.run.store.durable import remove_tree
from hone.run.store.metrics import STEP, MetricColumns
from hone.web.tail import CHUNK_BYTES, FilePlace, MetricRows, parse_lines, read_new_lines

BLOCK: Final = 64
"""Rows of a block."""
CACHED_BYTES: Final = 8 << 20
"""A file at least this long is kept on disk."""
_FORMAT: Final = 1
_META: Final = "meta.json"

Floats = NDArray[np.float64]


def cache_root() -> Path:
    """Folder of the caches: `$XDG_CACHE_HOME/hone/watch`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "hone" / "watch"


# --------------------------------------------------------------------------------------------------------------- blocks


@dataclass(slots=True)
class BlockSummary:
    """Least, greatest, sum and number of finite values of whole blocks of 64 rows, `[B]` each.

    A block without a finite value has NaN as its least and greatest.
    """

    least: Floats = field(default_factory=lambda: np.zeros(0))
    greatest: Floats = field(default_factory=lambda: np.zeros(0))
    total: Floats = field(default_factory=lambda: np.zeros(0))
    count: Floats = field(default_factory=lambda: np.zeros(0))

    def extend(self, column: Floats) -> None:
        """Add the blocks that `column` `[N]` has beyond those of before."""
        done, whole = len(self.least), len(column) // BLOCK
        if whole == done:
            return
        rows = np.asarray(column[done * BLOCK : whole * BLOCK]).reshape(-1, BLOCK)
        known = np.isfinite(rows)
        if known.all():  # the usual column, without copies of it
            least, greatest, total = rows.min(axis=1), rows.max(axis=1), rows.sum(axis=1)
            count = np.full(len(rows), float(BLOCK))
        else:
            count = known.sum(axis=1).astype(np.float64)
            some = count > 0
            least = np.where(some, np.where(known, rows, np.inf).min(axis=1), np.nan)
            greatest = np.where(some, np.where(known, rows, -np.inf).max(axis=1), np.nan)
            total = np.where(known, rows, 0.0).sum(axis=1)
        self.least = np.concatenate([self.least, least])
        self.greatest = np.concatenate([self.greatest, greatest])
        self.total = np.concatenate([self.total, total])
        self.count = np.concatenate([self.count, count])


# ---------------------------------------------------------------------------------------------------------------- store


class _MemoryStore:
    """Columns in memory, with room to grow."""

    def __init__(self) -> None:
        self._columns: dict[str, Floats] = {}

    def append(self, name: str, values: Floats, rows: int) -> None:
        """Append to a column that holds `rows` values; a new one begins with that many NaN."""
        column = self._columns.get(name)
        if column is None or len(column) < rows + len(values):
            grown = np.full(max(256, 2 * (rows + len(values))), np.nan)
            if column is not None:
                grown[:rows] = column[:rows]
            self._columns[name] = column = grown
        column[rows : rows + len(values)] = values

    def read(self, name: str, rows: int) -> Floats:
        """The first `rows` values of a column."""
        return self._columns[name][:rows]

    def clear(self) -> None:
        """Forget every column."""
        self._columns.clear()


class _FileStore:
    """Columns on disk, one file of float64 a metric, with a `meta.json` that names them and says how far they go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: list[str] = []
        self._maps: dict[str, Floats] = {}

    def load(self) -> dict[str, Any] | None:
        """What `save` wrote; None without a usable cache."""
        try:
            meta = json.loads((self.folder / _META).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
            return None
        self._names = list(meta["names"])
        need = 8 * int(meta["rows"])
        for place in range(len(self._names)):  # a row that was written after the last `save` goes
            path = self._path(place)
            if not path.is_file() or path.stat().st_size < need:
                return None
            os.truncate(path, need)
        return meta

    def save(self, rows: int, place: FilePlace) -> None:
        """Write down how far the columns go."""
        document = {"format": _FORMAT, "rows": rows, "names": self._names, "place": asdict(place)}
        fresh = self.folder / f"{_META}.tmp"
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(self.folder / _META)

    def append(self, name: str, values: Floats, rows: int) -> None:
        """Append to a column that holds `rows` values; a new one begins with that many NaN."""
        if name not in self._names:
            self._names.append(name)
            values = np.concatenate([np.full(rows, np.nan), values])
        with self._path(self._names.index(name)).open("ab") as file:
            file.write(np.ascontiguousarray(values, "<f8").tobytes())
        self._maps.pop(name, None)

    def read(self, name: str, rows: int) -> Floats:
        """The first `rows` values of a column."""
        if name not in self._maps or len(self._maps[name]) < rows:
            self._maps[name] = np.memmap(self._path(self._names.index(name)), "<f8", "r")
        return self._maps[name][:rows]

    def clear(self) -> None:
        """Remove every column."""
        self._names, self._maps = [], {}
        for path in self.folder.glob("*.f64"):
            path.unlink()
        (self.folder / _META).unlink(missing_ok=True)

    def _path(self, place: int) -> Path:
        return self.folder / f"{place}.f64"


# -------------------------------------------------------------------------------------------------------------- columns


class RunColumns:
    """Metrics of one run as columns, read on from where the last look ended.

    `cache` is the folder of all caches. A process that finds another one at this run's cache keeps its columns in
    memory.
    """

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        self.rows = 0
        self.names: list[str] = []
        self.damaged = 0
        self.generation = 0
        """Counts how often the file was cut or replaced."""
        self._cache = cache
        self._place = FilePlace()
        self._store: _MemoryStore | _FileStore = _MemoryStore()
        self._blocks: dict[str, BlockSummary] = {}
        self._lock: int | None = None
        self._opened = False

    @property
    def offset(self) -> int:
        """Bytes of the file that are read."""
        return self._place.offset

    def refresh(self, *, chunks: int = 1 << 30) -> bool:
        """Read what is new, at most so many chunks of 16 MB; returns True if something was. Raises ResourceError if the
        cache cannot be written."""
        try:
            if not self._opened:
                self._opened = True
                self._open_store()
            changed = False
            while chunks > 0 and (new := read_new_lines(self.path, self._place, limit=CHUNK_BYTES)) is not None:
                if new.restarted:
                    self._forget()
                last = int(self.steps[-1]) if self.rows else 0
                self._append(parse_lines(new.data, after_step=last))
                self._place = new.place
                if isinstance(self._store, _FileStore):
                    self._store.save(self.rows, self._place)
                changed, chunks = True, chunks - 1
                if not new.more:
                    break
        except OSError as error:
            raise ResourceError(f"cannot read {self.path} or write {self._cache}: {error.strerror}") from error
        return changed

    @property
    def steps(self) -> NDArray[np.int64]:
        """Step of each row `[N]`."""
        return self.column(STEP).astype(np.int64)

    def column(self, name: str) -> Floats:
        """A metric `[N]`, or the steps; NaN where a row lacks it. Raises KeyError for an unknown one."""
        if name != STEP and name not in self.names:
            raise KeyError(name)
        return self._store.read(name, self.rows) if self.rows else np.zeros(0)

    def blocks(self, name: str) -> BlockSummary:
        """Summary of the column's whole blocks."""
        summary = self._blocks.setdefault(name, BlockSummary())
        summary.extend(self.column(name))
        return summary

    def metric_columns(self, names: list[str] | None = None) -> MetricColumns:
        """The metrics, or some of them, as the reports' functions take them."""
        chosen = self.names if names is None else [name for name in names if name in self.names]
        return MetricColumns(self.steps, {name: self.column(name) for name in chosen})

    def close(self) -> None:
        """Let other processes have the cache."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open_store(self) -> None:
        try:
            long = self.path.stat().st_size >= CACHED_BYTES
        except FileNotFoundError:
            long = False
        if not long:
            return
        key = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]
        folder = self._cache / key
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        self._lock = lock
        store = _FileStore(folder)
        meta = store.load()
        if meta is None:
            store.clear()
        else:
            self.rows = int(meta["rows"])
            self.names = [name for name in cast("list[str]", meta["names"]) if name != STEP]
            self._place = FilePlace(**meta["place"])
        self._store = store

    def _forget(self) -> None:
        self._store.clear()
        self._blocks.clear()
        self.names, self.rows, self.damaged = [], 0, 0
        self._place = FilePlace()
        self.generation += 1

    def _append(self, new: MetricRows) -> None:
        self.damaged += new.damaged
        if not len(new.steps):
            return
        self._store.append(STEP, new.steps.astype(np.float64), self.rows)
        missing = np.full(len(new.steps), np.nan)
        for name in dict.fromkeys([*self.names, *new.values]):
            self._store.append(name, new.values.get(name, missing), self.rows)
        self.names += [name for name in new.values if name not in self.names]
        self.rows += len(new.steps)


def drop_old_caches(cache: Path, *, older_than_s: float, now_s: float) -> int:
    """Remove caches that no process used for so long; returns their number."""
    dropped = 0
    for lock in cache.glob("*/lock"):
        meta = lock.parent / _META
        used_s = (meta if meta.exists() else lock).stat().st_mtime
        if now_s - used_s > older_than_s:
            remove_tree(lock.parent)
            dropped += 1
    return dropped
