"""Experiments by name, and their results on disk: `finding.json` and `plot.svg` in a folder with that name.

A file `no_clipping.py` under `experiments/` is the experiment `no-clipping`.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path

from hone.core.errors import ConfigError, did_you_mean
from hone.core.strict_json import Json
from hone.lab import experiments
from hone.lab.finding import BarPlot, Experiment, ExperimentResult, Panel, PlotSeries, StackedBarPlot
from hone.lab.picture import render_panels
from hone.run.store.durable import finite_or_none, replace_file, to_json, writing
from hone.run.store.records import record_json


def experiment_names() -> list[str]:
    """Names of all experiments, without importing them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(experiments.__path__))


def load_experiment(name: str) -> Experiment:
    """Experiment by name. Raises ConfigError for an unknown one."""
    if name not in experiment_names():
        raise ConfigError(f"no experiment {name!r}{did_you_mean(name, experiment_names())}")
    experiment = importlib.import_module(f"{experiments.__name__}.{name.replace('-', '_')}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment


# -------------------------------------------------------------------------------------------------------------- results


def save_result(finding: ExperimentResult, *, name: str, title: str, seed: int, folder: Path) -> Path:
    """Write both files under `folder / name` and return that folder. Raises ResourceError."""
    place = folder / name
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
    replace_file(place / "finding.json", to_json(result_json(finding, name=name, seed=seed), indent=1))
    replace_file(place / "plot.svg", render_panels(finding.panels, title=title).encode())
    return place


def result_json(finding: ExperimentResult, *, name: str, seed: int) -> Json:
    """The result as JSON; numbers that are not finite are null."""
    return {
        "experiment": name,
        "seed": seed,
        "verdict": finding.verdict,
        "holds": finding.holds,
        "margin": finite_or_none(finding.margin),
        "claims": [record_json(claim) | {"margin": finite_or_none(claim.margin)} for claim in finding.claims],
        "figures": {key: finite_or_none(float(value)) for key, value in finding.figures.items()},
        "table": {"header": list(finding.header), "rows": [list(row) for row in finding.rows]},
        "panels": [_panel(panel) for panel in finding.panels],
    }


def _panel(panel: Panel) -> Json:
    if isinstance(panel, BarPlot):
        bars: dict[str, Json] = {
            "title": panel.title,
            "bars": dict(zip(panel.labels, map(float, panel.values), strict=True)),
        }
        return bars | ({"low": _numbers(panel.low), "high": _numbers(panel.high)} if panel.low else {})
    if isinstance(panel, StackedBarPlot):
        stacks: dict[str, Json] = {name: _numbers(sizes) for name, sizes in panel.parts.items()}
        return {"title": panel.title, "bars": list(panel.labels), "parts": stacks, "marks": _numbers(panel.marks)}
    series: dict[str, Json] = {line.label: _line(line) for line in panel.series}
    return {"title": panel.title, "x": panel.x_label, "series": series}


def _line(line: PlotSeries) -> Json:
    path: dict[str, Json] = {"x": _numbers(line.x), "y": _numbers(line.y)}
    return path | ({"low": _numbers(line.low), "high": _numbers(line.high)} if line.low else {})


def _numbers(values: Sequence[float]) -> Json:
    return [finite_or_none(float(value)) for value in values]
