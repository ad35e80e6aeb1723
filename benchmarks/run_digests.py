"""Digests of short runs of every recipe, to see that a change of the code changes no number.

`python benchmarks/run_digests.py before.json` on the code before the change, then
`python benchmarks/run_digests.py after.json --against before.json` on the code after it: every difference is listed
(run, item, first differing step), and the exit code is 1. `PYTHONPATH=OTHER_TREE/src` runs another tree's code.
`--renamed old=new` (repeatable) says that a metric, a tensor or a column has a new name; where `old` ends with `/`,
every name that begins so. `--only NAME` (repeatable) takes some of the runs.

Uses hone's Python door only, on one thread. Bits are those of one machine: both sides must come from the same one.
"""

import argparse
import contextlib
import hashlib
import json
import math
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import pyarrow.parquet as pq
from digest_runs import NEEDS, RUNS, lay_out
from safetensors.numpy import load_file

from hone import api

Document = dict[str, Any]
UNCOUNTED = {
    "config.json", "manifest.json", "certificate.json", "speed.json", "memory.json", "log.txt", "lock", "report.html",
    "metrics.jsonl", "events.jsonl", "episode.png", "episode.json",
}  # fmt: skip
"""Files that speak of settings, machine, clock or wording; metrics are taken apart by name."""
CLOCKS = ("time/", "clock/", "machine/")
"""Beginnings of metrics, keys and files that speak of the clock."""


# ---------------------------------------------------------------------------------------------- one run


def metrics_of(path: Path) -> dict[str, Document]:
    """`metrics.jsonl` by column, without what the clock says: steps, values (null: not finite), sha256 of both."""
    columns: dict[str, list[tuple[int, float | None]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        missing = row.pop("non_finite", [])
        step = row.pop("step")
        for name, value in row.items():
            if not name.startswith(CLOCKS):
                columns.setdefault(name, []).append((step, None if name in missing else value))
    return {
        name: {
            "sha256": sha256(json.dumps(pairs).encode()),
            "steps": [step for step, _ in pairs],
            "values": [value for _, value in pairs],
        }
        for name, pairs in columns.items()
    }


def items_of(path: Path, name: str) -> Iterator[tuple[str, Document]]:
    """What a saved file holds: each tensor, each column of a table, the values of a JSON document, or its bytes."""
    if path.suffix == ".safetensors":
        for tensor, values in load_file(path).items():
            head = f"{values.dtype}{values.shape}".encode()
            norm = float(np.linalg.norm(values.astype(np.float64).ravel()))
            yield f"{name}:{tensor}", {"sha256": sha256(head + values.tobytes()), "norm": norm}
    elif path.suffix == ".parquet":
        for column, values in pq.read_table(path).to_pydict().items():
            yield f"{name}:{column}", {"sha256": sha256(repr(values).encode())}
    elif path.suffix == ".json":
        for key, part in leaves(json.loads(path.read_text(encoding="utf-8"))):
            yield f"{name}:{key}", {"sha256": sha256(json.dumps(part, sort_keys=True).encode())}
    else:
        yield name, {"sha256": sha256(path.read_bytes())}


def leaves(document: object, at: str = "") -> Iterator[tuple[str, object]]:
    """What a JSON document holds, by its path, but for the keys of the clock; a list is one value."""
    if not isinstance(document, dict) or not document:
        yield at, document
        return
    for key, value in document.items():
        if not key.startswith(CLOCKS):
            yield from leaves(value, f"{at}/{key}")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def counted(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files of a run whose values must not change, with their names. A checkpoint's manifest only repeats them."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        of_checkpoint = path.name == "manifest.json" and path.parent.parent.name == "checkpoints"
        if path.is_file() and name not in UNCOUNTED and not of_checkpoint and not name.startswith(CLOCKS):
            yield path, name


def digest(name: str) -> Document:
    """Train one run in the working folder -> what came of it. What it raises is part of the result."""
    begun = cpu_seconds()
    try:
        folder = api.train(f"{name}.toml").folder
    except Exception as error:  # noqa: BLE001 - a run that fails must not hide the others
        return {"failed": f"{type(error).__name__}: {error}", "seconds": cpu_seconds() - begun}
    items = dict(item for path, place in counted(folder) for item in items_of(path, place))
    return {
        "metrics": metrics_of(folder / "metrics.jsonl"),
        "items": items,
        "seconds": round(cpu_seconds() - begun, 2),
    }


def cpu_seconds() -> float:
    """Of this process and of the workers that have ended."""
    spent = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def digests(names: Sequence[str]) -> dict[str, Document]:
    """All runs, in a folder that is thrown away."""
    found: dict[str, Document] = {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        lay_out(Path())
        for name in names:
            found[name] = digest(name)
            print(f"{name:24} {found[name]['seconds']:6.2f} s  {found[name].get('failed', '')}", flush=True)
    return found


# ---------------------------------------------------------------------------------------------- two of them


def renamed(name: str, names: Mapping[str, str]) -> str:
    """What a metric, or the part of an item behind its file, is called now."""
    place, colon, own = name.rpartition(":")
    prefix = next((old for old in names if old.endswith("/") and own.startswith(old)), "")
    return place + colon + (names[prefix] + own[len(prefix) :] if prefix else names.get(own, own))


def first_difference(before: Document, after: Document) -> str:
    """Where two columns of metrics part, and how far they are apart at most."""
    if before["steps"] != after["steps"]:
        return f"logged at steps {before['steps']} before, {after['steps']} after"
    pairs = list(zip(before["steps"], before["values"], after["values"], strict=True))
    step, old, new = next(pair for pair in pairs if pair[1] != pair[2])
    apart = [abs(b - a) / max(abs(a), abs(b)) for _, a, b in pairs if a is not None and b is not None and a != b]
    most = max(apart, default=math.nan)
    return f"first at step {step}: {old!r} before, {new!r} after; relative difference up to {most:.1e}"


def differences(before: Document, after: Document, names: Mapping[str, str]) -> list[str]:
    """Every item that two digests of one run do not have in common."""
    if "failed" in before or "failed" in after:
        told = [run.get("failed", "it ran") for run in (before, after)]
        return [] if told[0] == told[1] else [f"before: {told[0]}; after: {told[1]}"]
    found: list[str] = []
    for kind in ("metrics", "items"):
        old = {renamed(name, names): value for name, value in before[kind].items()}
        new = after[kind]
        found += [f"{kind}: {name} is only there before" for name in old if name not in new]
        found += [f"{kind}: {name} is only there after" for name in new if name not in old]
        for name in (name for name in old if name in new and old[name]["sha256"] != new[name]["sha256"]):
            if kind == "metrics":
                found.append(f"metrics: {name}: {first_difference(old[name], new[name])}")
            else:
                norms = [f"{side[name]['norm']!r}" for side in (old, new) if "norm" in side[name]]
                found.append(f"items: {name}" + (f" (norm {norms[0]} before, {norms[1]} after)" if norms else ""))
    return found


def compare(before: Mapping[str, Document], after: Mapping[str, Document], names: Mapping[str, str]) -> int:
    """Prints every difference -> how many there are."""
    count = 0
    both = [run for run in before if run in after]
    for run in both:
        found = differences(before[run], after[run], names)
        count += len(found)
        for line in found:
            print(f"{run}: {line}")
    print(f"{count} differences in {len(both)} runs")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description="Digests of short runs of every family.")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="a file written before, to compare with")
    parser.add_argument("--renamed", action="append", default=[], metavar="OLD=NEW", help="a name that has changed")
    parser.add_argument("--only", action="append", choices=RUNS, help="these runs, and those that they read")
    asked = parser.parse_args()
    out, names = asked.out.absolute(), dict(one.split("=", 1) for one in asked.renamed)
    before = None if asked.against is None else json.loads(asked.against.read_text(encoding="utf-8"))
    only = asked.only or list(RUNS)
    found = digests([name for name in RUNS if name in only or any(NEEDS.get(one) == name for one in only)])
    out.write_text(json.dumps({"runs": found}, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, run in found.items() if "failed" in run]
    print(f"{len(found)} runs, {cpu_seconds():.0f} s of CPU time, failed: {', '.join(failed) or 'none'}")
    return 1 if (before is not None and compare(before["runs"], found, names)) or failed else 0


if __name__ == "__main__":
    sys.exit(main())
