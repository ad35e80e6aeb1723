"""The lab's page and the questions' page say what there is, and what was measured."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from lab_page import DOCS, PLOTS, section, sections

from hone.lab.registry import experiment_names, load_experiment

NAMES = experiment_names()


def test_the_page_shows_every_experiment_with_its_plot() -> None:
    assert list(sections()) == NAMES, "run `python tests/lab/lab_page.py`"
    for name, text in sections().items():
        experiment = load_experiment(name)
        assert f"**{experiment.title}.** {experiment.question}" in text, name
        assert f"(lab/{name}.svg)" in text, name
        assert ElementTree.fromstring((PLOTS / f"{name}.svg").read_text(encoding="utf-8")).tag.endswith("svg"), name
    assert sorted(path.stem for path in PLOTS.glob("*.svg")) == NAMES


def test_every_verdict_on_the_page_holds() -> None:
    assert [name for name, text in sections().items() if "The verdict holds; least margin" not in text] == []


@pytest.mark.parametrize("name", ["baseline-variance", "kl-estimators", "std-normalisation"])
def test_the_figures_on_the_page_are_those_of_the_code(name: str) -> None:
    """Of experiments without draws: what is sampled may differ in its last digits between machines."""
    experiment = load_experiment(name)
    finding = experiment.run(0)
    margins = [float(value) for value in re.findall(r"\d\.\d\d", sections()[name].rsplit(":", 1)[1])]
    assert len(margins) == 3
    assert section(name, experiment, finding, margins).strip() == sections()[name].strip()


def test_all_questions_are_answered_and_point_to_experiments_that_exist() -> None:
    text = (DOCS / "questions.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\d+)\.", text, re.MULTILINE) == [str(number) for number in range(1, 36)]
    pointed = set(re.findall(r"lab\.md#([\w-]+)", text))
    assert pointed <= set(NAMES)
    assert set(NAMES) <= pointed, "an experiment answers no question"
