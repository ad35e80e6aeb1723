"""The section about judges: agreement with its floor, measurements out of range, costs, and judges without canaries."""

import re

import numpy as np

from hone.core.config import ConfigSetting
from hone.run.report.dialogue_section import judge_section
from hone.run.report.run_data import RunData
from hone.run.store.metrics import MetricColumns

NAN = float("nan")


def section(metrics: dict[str, list[float]], config: dict[str, object] | None = None) -> str:
    """The section's text, without markup."""
    steps = np.arange(1, 1 + max((len(values) for values in metrics.values()), default=0))
    columns = MetricColumns(steps, {name: np.array(values, np.float64) for name, values in metrics.items()})
    run = RunData(
        name="run",
        manifest=None,
        config={key: ConfigSetting(value=value) for key, value in (config or {}).items()},  # type: ignore[arg-type]
        metrics=columns,
        samples=(),
        log=(),
        evaluations=(),
        paired=(),
        side_by_side=(),
    )
    return " ".join(re.sub(r"<[^>]+>", " ", judge_section(run, "h2")).split())


def test_a_run_without_judges_has_no_section() -> None:
    assert section({"reward/mean": [1.0]}) == ""


def test_agreement_is_drawn_with_its_floor_and_what_is_out_of_range_is_marked() -> None:
    name = "judge/polite"
    shown = section(
        {
            f"{name}/missing": [0.0, 0.5],
            f"{name}/agreement": [NAN, 0.75],
            f"{name}/agreement_low": [NAN, 0.5],
            f"{name}/agreement_high": [NAN, 0.9],
            f"{name}/canaries": [NAN, 24.0],
            f"{name}/first_preferred": [0.8, 0.9],
            f"{name}/order_consistency": [0.9, 0.9],
            f"{name}/tokens": [1000.0, 500.0],
            f"time/{name}/requests": [10.0, 30.0],
            f"time/{name}/money": [0.1, 0.25],
        },
        {"rewards.functions.0.name": "polite", "rewards.functions.0.canaries.floor": 0.6},
    )
    assert (
        "polite : the good answer won in 75% of the last canaries (95% interval 0.500 to 0.900); 24 canaries" in shown
    )
    assert "the run stops when the interval lies below 0.600" in shown
    assert "answer shown first wins 0.900 0.850 0.5 without bias of position look at this" in shown
    assert "same winner in both orders 0.900 0.900 1 for a judge that reads answers" in shown, "no mark between them"
    assert "answers without a verdict 0.500 0.250 missing scores, never 0 look at this" in shown
    assert "30 requests, which cost 0.250; the verdicts of the steps that are shown hold 1,500 tokens." in shown


def test_a_judge_without_canaries_is_said_to_be_unknown() -> None:
    shown = section({"judge/a/missing": [0.0], "judge/b#2/missing": [0.0]})
    assert shown.count("no canaries, so that nobody knows whether it is right") == 2
    assert "b#2" in shown
