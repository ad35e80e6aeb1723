"""Every verdict of the lab, with its margin over seeds; and the framework around them."""

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.lab.finding import (
    BarPlot,
    BoundedClaim,
    Experiment,
    ExperimentResult,
    LinePlot,
    PlotSeries,
    StackedBarPlot,
    at_least,
    at_most,
    bar_plot,
    error_bound,
    plot_by_step,
)
from hone.lab.picture import log_ticks, render_panels
from hone.lab.registry import experiment_names, load_experiment, result_json, save_result

NAMES = experiment_names()
SEEDS = (0, 1, 2)
"""Every run of the tests takes the first; all are seconds each, and there are dozens of experiments."""
ASKED_FOR = """no-clipping cispo-vs-clip baseline-variance std-normalisation length-bias kl-estimators kl-or-not
clip-higher group-size loss-reduced-twice sequence-or-token-ratio mismatch staleness passk dpo-reward-hacking
mc-td-gae sampling
kl-ce-mle trust-regions sft-then-rl"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As `hone lab` runs them: a run of another test may have left two threads, whose sums depend on the load."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(finding: ExperimentResult) -> None:
    wrong = [f"{claim.says}: {claim.value:.4g}" for claim in finding.claims if not claim.holds]
    assert wrong == []
    assert finding.holds
    assert finding.margin > 0
    assert all(len(row) == len(finding.header) for row in finding.rows)
    assert any(digit in finding.verdict for digit in "0123456789")
    assert "nan" not in finding.verdict
    assert finding.verdict.endswith(".")


def test_the_first_set_is_there() -> None:
    assert set(ASKED_FOR.split()) <= set(NAMES)


LONGEST = {
    "asynchronous-actors", "best-of-n-vs-rl", "clip-higher", "deadly-triad", "delayed-rewards", "direct-method-alone",
    "dpo-reward-hacking", "drift-with-and-without-recall", "duplicates-without-keys", "early-experience",
    "elo-without-deviation", "exploration", "fairness-under-borrowing", "flat-or-dispatched", "hindsight",
    "loss-reduced-twice", "memory-by-hand", "mismatch", "offline-shift", "old-keys-new-weights", "options",
    "over-optimisation", "prm-vs-orm-search", "rank-of-lora", "retokenised-turns", "routes-that-flip",
    "same-question-other-company", "sft-then-rl", "shaping", "shield-and-its-price", "staleness", "target-network",
    "trust-regions", "two-ranks",
}  # fmt: skip
"""Experiments of a processor second and more in quick form; `benchmarks/lab_seeds.py` runs them, too."""


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(name, seed, marks=pytest.mark.slow if seed or name in LONGEST else ())
        for name in NAMES
        for seed in SEEDS
    ],
)
def test_a_verdict_holds(name: str, seed: int) -> None:
    check(load_experiment(name).run(seed, quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_holds_at_full_size(name: str, seed: int) -> None:
    check(load_experiment(name).run(seed))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONGEST else ())
        for name in ("baseline-variance", "cispo-vs-clip", "mismatch", "passk", "sampling")
    ],
)
def test_a_seed_says_everything(name: str) -> None:
    experiment = load_experiment(name)
    once, twice, other = (experiment.run(seed, quick=True) for seed in (3, 3, 4))
    assert result_json(once, name=name, seed=3) == result_json(twice, name=name, seed=3)
    assert once.rows != other.rows


# ------------------------------------------------------------------------------------------ framework


def test_claims_know_their_margin() -> None:
    assert at_least("x", 3.0, 1.5).margin == pytest.approx(0.5)
    assert at_least("x", 1.0, 2.0).margin == pytest.approx(-0.5)
    assert at_most("x", 1.0, 2.0).margin == pytest.approx(0.5)
    assert not at_most("x", 2.0, 2.0).holds  # on the edge
    assert not at_least("x", math.nan, 0.0).holds
    with pytest.raises(ConfigError, match="one bound"):
        BoundedClaim(says="x", value=1.0)
    with pytest.raises(ConfigError, match="one bound"):
        BoundedClaim(says="x", value=1.0, at_least=0.0, at_most=2.0)


def test_rounding_errors_are_said_by_their_power_of_ten() -> None:
    assert [error_bound(error) for error in (3e-10, 1e-9, 0.0, 0.02)] == ["1e-9", "1e-9", "1e-12", "1e-1"]


def finding(*claims: BoundedClaim, value: float = 1.0) -> ExperimentResult:
    return ExperimentResult(
        header=("a", "b"),
        rows=[("1 < 2", "x")],
        panels=[
            plot_by_step("steps & more", {"first": [1.0, 2.0, value], "second": [3.0, 2.0, 1.0]}, log_y=True),
            BarPlot(title="bars", labels=["p", "q"], values=[1.0, -0.5]),
        ],
        verdict="It is 1.",
        claims=claims,
    )


def test_a_finding_is_as_good_as_its_worst_claim() -> None:
    found = finding(at_least("x", 3.0, 1.5), at_most("y", 0.9, 1.0))
    assert found.holds
    assert found.margin == pytest.approx(0.1)
    assert not finding(at_least("x", 3.0, 1.5), at_most("y", 1.1, 1.0)).holds


def test_a_finding_on_disk(tmp_path) -> None:
    found = finding(at_least("x", math.nan, 1.5), value=math.inf)
    place = save_result(found, name="some-name", title="A < B", seed=7, folder=tmp_path)
    said = json.loads((place / "finding.json").read_text())
    assert said["seed"] == 7
    assert said["holds"] is False
    assert said["claims"][0]["value"] is None  # JSON has no NaN
    assert said["panels"][0]["series"]["first"]["y"] == [1.0, 2.0, None]
    root = ElementTree.fromstring((place / "plot.svg").read_text())
    assert root.tag.endswith("svg")
    assert sum(1 for node in root.iter() if node.tag.endswith("polyline")) == 4  # two lines, two samples of them


def test_a_line_goes_where_its_values_are() -> None:
    panel = LinePlot(title="t", x_label="x", series=[PlotSeries(label="a", x=[0, 1, 2], y=[0.0, 10.0, 5.0])])
    root = ElementTree.fromstring(render_panels([panel], title="t"))
    first = next(node for node in root.iter() if node.tag.endswith("polyline"))
    (x0, y0), (x1, y1), (x2, y2) = (map(float, pair.split(",")) for pair in first.attrib["points"].split())
    assert (x0, x1, x2) == (58.0, 252.0, 446.0)  # left edge, middle, right edge
    assert y1 < y2 < y0  # larger is higher
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=0.01)


def test_runs_are_drawn_as_their_mean_in_a_band_from_least_to_largest(tmp_path) -> None:
    runs = np.array([[0.0, 2.0, 4.0], [2.0, 4.0, 10.0]])
    panel, bars = plot_by_step("t", {"a": runs, "alone": runs[0]}), bar_plot("b", {"p": [1.0, 3.0], "q": 2.0})
    assert (panel.series[0].y, panel.series[0].low, panel.series[0].high) == ([1, 3, 7], [0, 2, 4], [2, 4, 10])
    assert (panel.series[1].y, panel.series[1].low) == ([0, 2, 4], ())
    assert (bars.values, bars.low, bars.high) == ([2.0, 2.0], [1.0, 2.0], [3.0, 2.0])
    root = ElementTree.fromstring(render_panels([panel, bars], title="t"))
    (band,) = (node for node in root.iter() if node.tag.endswith("polygon"))
    corners = [tuple(map(float, pair.split(","))) for pair in band.attrib["points"].split()]
    assert [x for x, _ in corners] == [58.0, 252.0, 446.0, 446.0, 252.0, 58.0]  # along the top, and back
    assert all(high < low for (_, high), (_, low) in zip(corners[:3], corners[:2:-1], strict=True))
    assert sum(node.attrib.get("class") == "range" for node in root.iter()) == 1
    saved = result_json(replace(finding(), panels=[panel, bars], claims=[at_least("x", 1, 0)]), name="n", seed=0)
    assert saved["panels"][0]["series"]["a"]["high"] == [2, 4, 10]
    assert "high" not in saved["panels"][0]["series"]["alone"]
    assert saved["panels"][1]["low"] == [1.0, 2.0]


def test_a_stacked_bar_adds_its_parts_up_and_marks_what_was_measured() -> None:
    bars = StackedBarPlot(title="s", labels=["a", "b"], parts={"p": [1.0, 2.0], "q": [3.0, 1.0]}, marks=[4.0, 2.0])
    root = ElementTree.fromstring(render_panels([bars], title="t"))
    boxes = [node.attrib for node in root.iter() if node.tag.endswith("rect") and node.attrib.get("height") == "18"]
    spans = [(float(box["x"]), float(box["x"]) + float(box["width"])) for box in boxes]
    assert spans == [(150.0, 212.0), (212.0, 398.0), (150.0, 274.0), (274.0, 336.0)]  # 248 points for the sum of 4
    marks = [float(node.attrib["x1"]) for node in root.iter() if node.attrib.get("class") == "range"]
    assert marks == [398.0, 274.0]
    saved = result_json(replace(finding(), panels=[bars], claims=[at_least("x", 1, 0)]), name="n", seed=0)
    assert saved["panels"][0]["parts"] == {"p": [1.0, 2.0], "q": [3.0, 1.0]}
    assert saved["panels"][0]["marks"] == [4.0, 2.0]


def test_pictures_of_nothing_and_of_a_constant() -> None:
    nothing = LinePlot(title="t", x_label="x", series=[PlotSeries(label="a", x=[0], y=[math.nan])])
    constant = LinePlot(title="t", x_label="x", series=[PlotSeries(label="a", x=[0, 1], y=[2.0, 2.0])])
    for panel in (nothing, constant):
        ElementTree.fromstring(render_panels([panel], title="t"))


def test_log_ticks_by_hand() -> None:
    assert [round(10**tick, 6) for tick in log_ticks(-0.5, 0.8)] == [0.5, 1, 2, 5]
    assert [10**tick for tick in log_ticks(0.0, 4.0)] == [1, 10, 100, 1000, 10000]


# -------------------------------------------------------------------------------------------- command


def test_the_list_names_every_experiment(capsys) -> None:
    assert main(["lab", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)


def test_a_run_says_its_verdict_and_keeps_it(tmp_path, capsys) -> None:
    assert main(["lab", "run", "kl-estimators", "--out", str(tmp_path), "--seed", "5"]) == 0
    said = capsys.readouterr().out
    kept = json.loads((tmp_path / "kl-estimators" / "finding.json").read_text())
    assert kept["seed"] == 5
    assert kept["verdict"] in said
    assert said.count("holds") == len(kept["claims"])
    assert str(tmp_path / "kl-estimators") in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "kl-estimater"], "did you mean kl-estimators?"),
        (["run"], "needs the name of an experiment"),
        (["lst"], "did you mean list?"),
        (["all", "passk"], "did you mean hone lab run passk?"),
        (["run", "passk", "--seed", "x"], "--seed must be a whole number"),
        ([], "required"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(arguments, message, capsys) -> None:
    assert main(["lab", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_all_sums_up_and_says_what_failed(tmp_path, capsys, monkeypatch) -> None:
    ran = []

    def fake(name: str) -> Experiment:
        ran.append(name)
        value = 1.0 if name == "passk" else 3.0
        return Experiment(title=name, question="?", run=lambda seed, *, quick=False: finding(at_least("x", value, 2.0)))

    monkeypatch.setattr("hone.cli.commands.lab.load_experiment", fake)
    assert main(["lab", "all", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert ran == NAMES
    assert f"{len(NAMES) - 1} of {len(NAMES)} verdicts hold" in said
    assert "does not hold: passk: x: 1.000, at least 2" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
