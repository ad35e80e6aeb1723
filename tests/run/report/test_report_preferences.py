"""The section about preferences: what is drawn, and the figures at the end."""

import numpy as np
import pytest

from hone.run.report.dialogue_section import preference_section
from hone.run.report.html import format_number
from hone.run.report.run_data import RunData
from hone.run.store.metrics import MetricColumns


def stage_of(values: dict[str, list[float]]) -> RunData:
    count = max(len(one) for one in values.values())
    columns = MetricColumns(
        steps=np.arange(1, count + 1), values={name: np.array(one, np.float64) for name, one in values.items()}
    )
    return RunData(
        name="run",
        manifest=None,
        config={},
        metrics=columns,
        samples=(),
        log=(),
        evaluations=(),
        paired=(),
        side_by_side=(),
    )


def test_both_likelihoods_and_the_distance_are_drawn_and_told() -> None:
    count = 30
    page = preference_section(
        stage_of(
            {
                "preference/chosen_nats": [-0.1 * step for step in range(count)],
                "preference/rejected_nats": [-0.3 * step for step in range(count)],
                "preference/margin_nats": [0.2 * step for step in range(count)],
                "preference/accuracy": [0.75] * count,
                "preference/kl_to_start_nats": [2.5 if step == 9 else float("nan") for step in range(count)],
            }
        ),
        "h2",
    )
    assert "<h2>Preferences</h2>" in page
    assert page.count("stroke s") == 3
    # means of the last ten steps; of the distance, which was measured once, its value
    for value in (-2.45, -7.35, 4.9, 0.75, 2.5):
        assert f">{format_number(value)}<" in page, value


@pytest.mark.parametrize(
    "values", [{"reward/mean": [1.0]}, {"preference/chosen_nats": [1.0]}, {"preference/rejected_nats": [1.0]}]
)
def test_other_runs_have_no_section(values: dict[str, list[float]]) -> None:
    assert preference_section(stage_of(values), "h2") == ""


def test_missing_figures_are_left_out() -> None:
    nothing = [float("nan")] * 3
    page = preference_section(
        stage_of({"preference/chosen_nats": nothing, "preference/rejected_nats": [1.0, 2.0, 3.0]}), "h2"
    )
    assert "chosen answers" not in page
    assert "rejected answers" in page
