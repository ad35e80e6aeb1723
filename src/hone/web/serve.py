"""`hone watch` as a process: from a folder of runs to a listening port, and what it prints without a browser."""

import gc
import hashlib
import itertools
import math
import secrets
import threading
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import uvicorn

from hone.core.errors import ConfigError, DataError, ResourceError, did_you_mean
from hone.native.build import return_freed_memory
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection
from hone.run.report.html import format_duration, format_number
from hone.run.report.timeline import step_timeline
from hone.run.report.timing_section import bottleneck_line
from hone.run.store.manifest import read_config
from hone.web.app import WatchParts, make_app
from hone.web.columns import RunColumns, cache_root, drop_old_caches
from hone.web.guard import TOKEN_BYTES, AccessRules
from hone.web.runs import RunListing, RunRow, load_figures

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
DEMO: Final = (Path(__file__).with_name("demo.zip"), Path(__file__).with_name("failures.zip"))
"""Recorded runs: GRPO on sums that holds its score, the same with too high a learning rate, and five that fail in their
own ways. `benchmarks/record_demo.py` trains and packs them."""
_LEAST_TOKEN: Final = 16
_OLD_CACHE_S: Final = 30 * 86400.0
_TRIM_S: Final = 30
"""Seconds between two times at which freed memory goes back to the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlace:
    """Where the page is served."""

    host: str
    port: int
    token_file: Path | None
    chat: bool = False

    def token(self) -> str:
        """The token: of the file, or a new one. Raises ConfigError."""
        if self.token_file is None:
            if self.host not in LOOPBACK:
                raise ConfigError(
                    f"--host {self.host} is reached by other machines: give --token-file FILE with your token, "
                    f"or forward a port: ssh -L {self.port}:127.0.0.1:{self.port} THIS_MACHINE"
                )
            return secrets.token_urlsafe(TOKEN_BYTES)
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {self.token_file} cannot be read: {error}") from None
        if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"--token-file {self.token_file}: a token has {_LEAST_TOKEN} printable characters or more, no space"
            )
        return token


def serve(parts: WatchParts, place: WatchPlace, tell: Callable[[str], None]) -> None:
    """Serve until a signal. Raises ConfigError or ResourceError."""
    token = place.token()
    drop_old_caches(parts.listing.cache, older_than_s=_OLD_CACHE_S, now_s=parts.clock.now_s())
    with ExitStack() as stack:
        signals = stack.enter_context(signals_end_quietly())
        listener = stack.enter_context(listening(place.host, place.port))
        port = listener.getsockname()[1]
        names = LOOPBACK if place.host in LOOPBACK else (place.host, *LOOPBACK)
        hosts = tuple(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names)
        app = make_app(parts, AccessRules(token=token, hosts=hosts, may_write=place.chat))
        stack.callback(app.state.routes.close)
        shown = f"[{place.host}]" if ":" in place.host else place.host
        tell(f"watching {parts.listing.root}; open http://{shown}:{port}/?{urlencode({'token': token})}")
        tell("the link is for you alone: its token opens the page; Ctrl-C ends")
        config = uvicorn.Config(
            app, http=TimedConnection, ws="none", lifespan="off", log_level="warning", access_log=False,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        threading.Thread(target=load_figures, daemon=True).start()  # the first page need not wait for its libraries
        gc.freeze()
        seconds = itertools.count(1)

        def tick() -> None:
            if next(seconds) % _TRIM_S == 0:  # each thread keeps what its parts of long columns took
                return_freed_memory()

        events = ServerEvents(stop=lambda: None, reload=lambda: None, tick=tick)
        RunningServer(config, events, signals).run(sockets=[listener])


# ---------------------------------------------------------------------------------------------------- without a browser


def find_row(listing: RunListing, name: str) -> RunRow:
    """The row of a run by its id or name. Raises DataError with the nearest name."""
    rows = listing.rows()
    named = [row for row in rows if name in (row.id, row.name)]
    if not named:
        known = [row.id for row in rows]
        raise DataError(f"no run {name!r} in {listing.root}{did_you_mean(name, known) or ', which contains no runs'}")
    return named[0]


def run_lines(listing: RunListing, row: RunRow) -> list[str]:
    """A run in a few lines: state, time left, score, bottleneck, alarms."""
    lines = [f"{row.id}: {row.recipe}, {row.state}, step {row.step}{f' of {row.steps}' if row.steps else ''}"]
    if row.fault:
        return [*lines, row.fault]
    if math.isfinite(row.left_s):
        lines.append(f"{format_duration(row.left_s)} left")
    if math.isfinite(row.score):
        ends = f" ({format_number(row.low)} to {format_number(row.high)})" if math.isfinite(row.low) else ""
        lines.append(f"{row.score_is}: {format_number(row.score)}{ends}")
    columns = RunColumns(listing.folder(row.id) / "metrics.jsonl", listing.cache)
    columns.refresh()
    timeline = step_timeline(columns.metric_columns())
    columns.close()
    if timeline is not None:
        lines.append(bottleneck_line(timeline, read_config(listing.folder(row.id) / "config.json")))
    cause = row.diagnosis
    return [*lines, *([] if cause is None else [cause.sentence]), *alarm_lines([row])]


def alarm_lines(rows: Sequence[RunRow]) -> list[str]:
    """A line for each alarm that is raised, red ones first."""
    raised = [(row, alarm) for row in rows for alarm in row.alarms if alarm.raised]
    raised.sort(key=lambda pair: pair[1].level != "red")
    lines: list[str] = []
    for row, alarm in raised:
        lines.append(f"{row.id}: {alarm.level} since step {alarm.step}: {alarm.name.replace('_', ' ')}: {alarm.words}")
        lines += [f"  to try: {alarm.remedy}"] if alarm.remedy else []
    return lines or ["no alarm is raised"]


# ----------------------------------------------------------------------------------------------------------------- demo


def unpack_demo(cache: Path | None = None) -> Path:
    """Folder of the recorded runs, unpacked into the user's cache where it is not there yet. Raises ResourceError."""
    digest = hashlib.sha256(b"".join(archive.read_bytes() for archive in DEMO)).hexdigest()
    folder = (cache or cache_root()) / f"demo-{digest[:12]}"
    done = folder / "unpacked"
    if done.exists():
        return folder / "runs"
    try:
        for path in DEMO:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder / "runs")  # which keeps every entry within the folder
        done.touch()
    except OSError as error:
        raise ResourceError(f"cannot unpack the recorded runs into {folder}: {error.strerror}") from error
    return folder / "runs"
