"""What every benchmark shares: a row, and its table in RESULTS.md. Peers' environments are in `peers.py`."""

import datetime
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from hone.native.build import instruction_set_limit

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Row:
    row: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    bar: str | None = None
    met: bool | None = None


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def processor() -> str:
    """The processor's own name for itself, where the system tells it, else its architecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.machine()
    flags = facts.get("flags", "").split()
    sets = [name for name, flag in (("AMX", "amx_tile"), ("AVX-512", "avx512f"), ("AVX2", "avx2")) if flag in flags]
    limit = instruction_set_limit()
    lowered = f"; lowered to {limit}" if limit else ""
    return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']}; {', '.join(sets)}{lowered})"


def table(rows: Sequence[Row], *, threads: int, quick: bool) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "gymnasium"))
    lines = [
        f"{processor()}, {os.cpu_count()} cores, {'one thread' if threads == 1 else f'{threads} threads'}; "
        f"Python {platform.python_version()}, {packages}; {datetime.datetime.now(tz=datetime.UTC).date()}"
        + ("; quick run, decides nothing" if quick else ""),
        "",
        "| row | value | 95% interval | seeds | peer | ratio | bar | met |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        bounds = "" if row.low is None or row.high is None else f"{shown(row.low)} .. {shown(row.high)}"
        peer = "" if row.peer_value is None else f"{row.peer}: {shown(row.peer_value)}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = "" if row.met is None else "yes" if row.met else "no"
        figures = f"{shown(row.value)} {row.unit} | {bounds} | {row.seeds} | {peer} | {ratio} | {row.bar or ''} | {met}"
        lines.append(f"| {row.row} | {figures} |")
    return "\n".join(lines)


def rewrite(title: str, script: str, rows: Sequence[Row], *, threads: int, quick: bool) -> None:
    """Put the table between its markers in RESULTS.md; a quick run decides nothing, and is only printed.

    `$BENCHMARK_MACHINE` names a second machine, whose tables stand beside those of the first.
    """
    text = table(rows, threads=threads, quick=quick)
    title = ", ".join(part for part in (title, os.environ.get("BENCHMARK_MACHINE")) if part)
    if quick:
        print(f"{title} (quick)\n{text}", flush=True)
        return
    mark = title.lower().replace(", ", "-").replace(" ", "-")
    path, begin, end = HERE / "RESULTS.md", f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    page = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    if begin not in page:
        page = f"{page.rstrip()}\n\n## {title} (`{script}`)\n\n{begin}\n{end}\n"
    before, rest = page.split(begin, 1)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def grow(title: str, script: str, rows: Iterable[Row], *, threads: int, quick: bool) -> list[Row]:
    """Rewrite the table after every row, so that a run that is stopped leaves what it had."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        rewrite(title, script, found, threads=threads, quick=quick)
    return found


def tell(rows: Sequence[Row]) -> None:
    """One JSON line per row."""
    for row in rows:
        print(json.dumps(asdict(row)))
