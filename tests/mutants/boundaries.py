"""Tests at equality: every `<`, `<=`, `>` and `>=` of the mathematics needs a case on it whose value a test knows.

    python tests/mutants/boundaries.py                            all folders, some minutes
    python tests/mutants/boundaries.py --folders decide/shield

`a < b` and `a <= b` differ only where both are equal. So the tests run once in a copy whose comparisons note the tests
that reach equality; then every comparison is exchanged with its neighbour (`<` with `<=`, `>` with `>=`), and those
tests run again, until one fails. Where none is left, the boundary is untested. Both forms may be right, because
nothing depends on the boundary: such comparisons are listed in `boundaries.toml`, with the reason. Exit code 1: a
survivor that is not listed, or a listed one that is none.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comparison_sites import ComparisonSite, instrumented

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".mutants" / "boundaries"
"""Copy in which the comparisons are noted and exchanged."""
LISTED = Path(__file__).with_name("boundaries.toml")
FOLDERS = ("credit", "objectives", "estimators", "decide/estimators", "decide/shield")
COPIED = ("src", "tests", "docs", "examples", "pyproject.toml", "README.md", "CONTRIBUTING.md", "benchmarks")
RUNTIME = Path(__file__).with_name("comparison_runtime.py")
FORKING = Path(__file__).with_name("boundary_plugin.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBoundary:
    """A comparison of which both forms are right, or that no test of its folder can reach at equality."""

    module: str
    """Path below `src/hone`."""
    comparison: str
    """Source of the comparison."""
    reason: str


def listed_boundaries() -> list[ListedBoundary]:
    """Entries of `boundaries.toml`. Raises ValueError for one without a reason."""
    result: list[ListedBoundary] = []
    for entry in tomllib.loads(LISTED.read_text(encoding="utf-8")).get("boundary", []):
        if not entry["reason"].strip():
            raise ValueError(f"{LISTED.name}: no reason for {entry['module']}: {entry['comparison']}")
        result.append(ListedBoundary(**entry))
    return result


def prepare(folder: str) -> list[ComparisonSite]:
    """Copy the project, and instrument the modules of a folder; returns its comparisons."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, WORK / name, ignore=shutil.ignore_patterns("__pycache__", ".peers", ".work"))
        else:
            shutil.copy(source, WORK / name)
    shutil.copy(RUNTIME, WORK / "src" / "hone" / "comparison_runtime.py")
    sites: list[ComparisonSite] = []
    for path in sorted((WORK / "src" / "hone" / folder).rglob("*.py")):
        text, here = instrumented(
            path.read_text(encoding="utf-8"), path.relative_to(WORK / "src" / "hone").as_posix(), len(sites)
        )
        path.write_text(text, encoding="utf-8")
        sites += here
    return sites


def survivors(folder: str, sites: Sequence[ComparisonSite]) -> list[ComparisonSite]:
    """Comparisons whose exchange no test of the folder notices."""
    (WORK / "sites.json").write_text(json.dumps([site.number for site in sites]), encoding="utf-8")
    plugins = ("boundary_plugin", "no:cacheprovider", "no:xdist")
    command = [sys.executable, "-m", "pytest", "-q", *(word for name in plugins for word in ("-p", name))]
    paths = [str(FORKING.parent), str(WORK / "src"), str(WORK / "tests" / "docs")]
    subprocess.run(
        [*command, "-o", "faulthandler_timeout=0", f"tests/{folder}"],
        cwd=WORK,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(paths)},
        check=False,
    )
    killed = set(json.loads((WORK / "killed.json").read_text(encoding="utf-8")))
    return [site for site in sites if site.number not in killed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", nargs="+", default=list(FOLDERS), help="folders of src/hone and of tests")
    options = parser.parse_args()
    listed = {(one.module, one.comparison) for one in listed_boundaries()}
    left: list[ComparisonSite] = []
    total = 0
    for folder in options.folders:
        sites = prepare(folder)
        left += survivors(folder, sites)
        total += len(sites)
    keys = {(site.module, site.comparison) for site in left}
    unlisted = [site for site in left if (site.module, site.comparison) not in listed]
    tried = tuple(f"{name}/" for name in options.folders)
    stale = [one for one in listed if one[0].startswith(tried) and one not in keys]
    print(f"\n{total} comparisons, {len(left)} exchanged without notice, {len(left) - len(unlisted)} of them listed")
    for site in unlisted:
        print(f"{site.module}:{site.line}: no test at equality of {site.operator}: {site.comparison}")
    for module, comparison in stale:
        print(f"boundaries.toml: no survivor any more, take it out: {module}: {comparison}")
    return int(bool(unlisted or stale))


if __name__ == "__main__":
    sys.exit(main())
