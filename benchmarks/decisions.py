"""Acceptance of the systems of decisions in production: one JSON line a figure, negative controls included.

    python benchmarks/decisions.py                  all systems in full; rewrites their tables in RESULTS.md
    python benchmarks/decisions.py --fast           at most 20 seconds of processor time each; `make systems`
    python benchmarks/decisions.py --only rollout   some
    python benchmarks/decisions.py --peers          other libraries too, in environments of their own

A system is a module of `benchmarks/decision_systems/`. Exits with 1 if a figure misses its bar.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")

from decision_systems import AcceptanceLine
from tables import Row, grow, tell

HERE = Path(__file__).resolve().parent
SCRIPT = "benchmarks/decisions.py"


def system_names() -> list[str]:
    """Names of the systems, sorted."""
    return sorted(path.stem for path in (HERE / "decision_systems").glob("*.py") if path.stem != "__init__")


def row_of(title: str, line: AcceptanceLine) -> Row:
    """The line as a row of RESULTS.md."""
    bars = [f">= {line.at_least:g}"] if line.at_least is not None else []
    bars += [f"<= {line.at_most:g}"] if line.at_most is not None else []
    control = " (negative control)" if line.negative else ""
    words = f"; {line.words}" if line.words else ""
    return Row(
        row=f"{title}: {line.figure}{control}{words}; {line.cpu_s:.1f} CPU s", value=line.value, unit="",
        seeds=line.seeds, bar=" and ".join(bars) or None, met=line.met if bars else None,
    )  # fmt: skip


def run_system(name: str, module: ModuleType, *, fast: bool, peers: bool) -> list[AcceptanceLine]:
    """Lines of one system, each printed as it is measured; a full run keeps them in RESULTS.md."""
    lines: list[AcceptanceLine] = []

    def rows() -> Iterator[Row]:
        for line in module.acceptance(fast=fast):
            print(line.as_json(name), flush=True)
            lines.append(line)
            yield row_of(module.TITLE, line)

    if fast:
        list(rows())
    else:
        grow(f"System {name}", SCRIPT, rows(), threads=1, quick=False)
    if peers and "peers" in vars(module):
        tell(grow(f"System {name} beside peers", SCRIPT, module.peers(), threads=1, quick=False))
    return lines


def main() -> int:
    """Run the systems that the command line names."""
    names = system_names()
    parser = argparse.ArgumentParser(description="Run the acceptance of systems.")
    parser.add_argument("--fast", "--quick", action="store_true", help="fewer repetitions; RESULTS.md stays")
    parser.add_argument("--peers", action="store_true", help="other libraries too")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    asked = parser.parse_args()
    lines: list[AcceptanceLine] = []
    for name in asked.only:
        module = importlib.import_module(f"decision_systems.{name}")
        lines += run_system(name, module, fast=asked.fast, peers=asked.peers)
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
