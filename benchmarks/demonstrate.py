"""What `preferences.py` and `dialogues.py` share: a folder of demonstrations, its seeds, and a row for each figure.

A demonstration is a module; `demonstrations/__init__.py` says what it holds. Every figure is a row: the mean over seeds
with a 95% bootstrap interval, the worst seed by name where there is a bar, and the bar.
"""

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from demonstrations import Bar
from tables import Row, rewrite, tell

from hone.estimators.means import bootstrap_mean

HERE = Path(__file__).resolve().parent


def demonstration_names(folder: str) -> list[str]:
    """Names of the demonstrations of a folder beside this file, sorted."""
    return sorted(path.stem for path in (HERE / folder).glob("*.py") if path.stem != "__init__")


def figure_row(
    title: str, figure: str, found: dict[int, float], bar: Bar | None, seconds: Sequence[float], *, decides: bool
) -> Row:
    """Row of one figure: seed -> its value."""
    seeds, values = list(found), np.array(list(found.values()))
    estimate = bootstrap_mean(values) if len(values) > 1 and np.isfinite(values).all() else None
    worst = ""
    if bar is not None and len(seeds) > 1:
        place = int(values.argmin() if bar.at_least is not None else values.argmax())
        worst = f" (worst seed {seeds[place]}: {values[place]:.4g})"
    return Row(
        row=f"{title}: {figure}{worst}" + (f"; {np.median(seconds):.0f} CPU s a seed" if bar is not None else ""),
        value=float(values.mean()), unit="", low=None if estimate is None else estimate.low,
        high=None if estimate is None else estimate.high, seeds=len(values), bar=None if bar is None else str(bar),
        met=bar.reached(values) if bar is not None and decides else None,
    )  # fmt: skip


def demonstrate(module: ModuleType, script: str, seeds: Sequence[int], *, quick: bool) -> list[Row]:
    """Rows of one demonstration, each seed told as it ends. Its table in RESULTS.md is rewritten after every seed."""
    found: dict[str, dict[int, float]] = {}
    seconds: list[float] = []
    bars: dict[str, Bar] = {bar.figure: bar for bar in module.BARS}
    rows: list[Row] = []
    name = module.__name__.rpartition(".")[2]
    for seed in seeds:
        begin = time.process_time()
        for figure, value in module.figures(seed, quick=quick).items():
            found.setdefault(figure, {})[seed] = float(value)
        seconds.append(time.process_time() - begin)
        told = ", ".join(f"{figure} {values[seed]:.4g}" for figure, values in found.items())
        print(f"{name}, seed {seed}, {seconds[-1]:.0f} CPU s: {told}", flush=True)
        if missing := [figure for figure in bars if figure not in found]:
            raise ValueError(f"{name} has bars for figures that it does not return: {', '.join(missing)}")
        decides = not quick and len(seconds) == len(module.SEEDS)
        rows = [
            figure_row(module.TITLE, figure, values, bars.get(figure), seconds, decides=decides)
            for figure, values in found.items()
        ]
        rewrite(f"Demonstration {name}", script, rows, threads=1, quick=quick)
    return rows


def run_demonstrations(folder: str, script: str) -> None:
    """Run the demonstrations of a folder as the command line asks."""
    names = demonstration_names(folder)
    parser = argparse.ArgumentParser(description="Run the demonstrations.")
    parser.add_argument("--quick", action="store_true", help="one seed, made short")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seeds", type=int, help="seeds of each; fewer than it has decide nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in asked.only:
        module = importlib.import_module(f"{folder}.{name}")
        rows += demonstrate(module, script, module.SEEDS[: 1 if asked.quick else asked.seeds], quick=asked.quick)
    tell(rows)
