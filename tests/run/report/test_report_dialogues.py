"""The section about dialogues: ends, waits, and what keeps a run from learning."""

import numpy as np
import pytest
from test_report_preferences import stage_of

from hone.run.report.dialogue_section import dialogue_findings, dialogue_section, dialogue_turns


def columns(**values: float) -> dict[str, list[float]]:
    return {name.replace("__", "/"): [value] * 12 for name, value in values.items()}


def test_ends_calls_and_waits_are_told() -> None:
    figures = columns(
        stops__done=0.75, stops__turns=0.25, stops__deadline=0.0, turns__mean=3.5, tools__called=0.9, world__wait_s=0.02
    )
    page = dialogue_section(stage_of(figures), "h2")
    assert "<h2>Dialogues</h2>" in page
    assert page.count("stroke s") == 2, "reasons that never occurred are left out"
    for words in ("stop: done", "75.0%", "stop: turns", "25.0%", "3.50", "0.900", "0.02 s"):
        assert words in page, words
    assert "stop: deadline" not in page


def test_one_reason_is_a_row_and_reasons_that_never_occurred_have_no_curve() -> None:
    stage = stage_of(columns(stops__done=1.0, stops__deadline=0.0))
    page = dialogue_section(stage, "h2")
    assert "100.0%" in page
    assert "<svg" not in page
    moving, constant = stage.curves()
    assert "stops/deadline" not in {*moving, *constant}
    assert constant["stops/done"] == 1.0


def test_other_runs_have_no_section() -> None:
    assert dialogue_section(stage_of({"reward/mean": [1.0]}), "h2") == ""


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"stops/deadline": 0.04, "stops/world_died": 0.03}, "7% of the last dialogues have no score"),
        ({"stops/max_tokens": 0.5}, "50% of the last dialogues were cut by rollout.max_tokens"),
        ({"stops/context": 0.3}, "cut by rollout.context"),
        ({"stops/turns": 0.9}, "cut by task.turns"),
        ({"tools/called": 0.01}, "Tools were called in 1.0% of the last dialogues"),
        ({"tools/called": 1.0, "tools/invalid": 0.4}, "40% of the last dialogues had a call that could not be read"),
    ],
)
def test_a_run_that_cannot_learn_is_told_why(figures: dict[str, float], words: str) -> None:
    values = {name: np.array([np.nan, value]) for name, value in figures.items()}
    (finding,) = dialogue_findings(values)
    assert words in finding
    assert words in dialogue_section(
        stage_of({"stops/done": [0.5, 0.5], **{n: [v, v] for n, v in figures.items()}}), "h2"
    )


def test_a_healthy_run_and_one_without_figures_are_told_nothing() -> None:
    healthy = columns(stops__done=0.9, stops__turns=0.1, tools__called=0.8, tools__invalid=0.1)
    assert dialogue_findings({name: np.array(own) for name, own in healthy.items()}) == []
    assert dialogue_findings({"stops/done": np.full(3, np.nan), "tools/called": np.full(3, np.nan)}) == []


def test_text_of_worlds_is_escaped_and_has_its_speaker() -> None:
    page = dialogue_turns([("policy", "<b>hi</b>"), ("environment", "<script>")])
    assert "&lt;b&gt;hi" in page
    assert "<script>" not in page
    assert page.index(">policy<") < page.index(">world<")
