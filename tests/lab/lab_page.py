"""Writes docs/project/lab.md and its plots: `python tests/lab/lab_page.py` (minutes), or these only: `... NAME`.

Everything between the two marks is measured; what stands around them is written by hand.
"""

import re
import sys
import tempfile
from pathlib import Path

from hone.lab.finding import Experiment, ExperimentResult
from hone.lab.registry import experiment_names, load_experiment, save_result

DOCS = Path(__file__).resolve().parents[2] / "docs" / "project"
PAGE, PLOTS = DOCS / "lab.md", DOCS / "lab"
BEGIN, END = "<!-- experiments -->", "<!-- /experiments -->"
SEEDS = (0, 1, 2)


def section(name: str, experiment: Experiment, finding: ExperimentResult, margins: list[float]) -> str:
    """One experiment in Markdown; the figures are of the first seed."""
    source = f" ({experiment.source})" if experiment.source else ""
    header = "| " + " | ".join(map(cell, finding.header)) + " |"
    rule = "|---" * len(finding.header) + "|"
    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in finding.rows]
    seeds = ", ".join(f"{margin:.2f}" for margin in margins)
    word = "holds" if min(margins) > 0 else "does not hold everywhere"
    return "\n".join(
        [
            f"## {name}",
            "",
            f"**{experiment.title}.** {experiment.question}{source}",
            "",
            f"![{experiment.title}](lab/{name}.svg)",
            "",
            header,
            rule,
            *rows,
            "",
            f"> {finding.verdict}",
            "",
            f"The verdict {word}; least margin of its claims for seeds 0, 1 and 2: {seeds}.",
            "",
        ]
    )


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def measured(name: str) -> str:
    """Run one experiment for every seed, keep the first seed's plot, and return its section."""
    experiment = load_experiment(name)
    findings = [experiment.run(seed) for seed in SEEDS]
    with tempfile.TemporaryDirectory() as folder:
        place = save_result(findings[0], name=name, title=experiment.title, seed=SEEDS[0], folder=Path(folder))
        PLOTS.mkdir(exist_ok=True)
        (PLOTS / f"{name}.svg").write_bytes((place / "plot.svg").read_bytes())
    return section(name, experiment, findings[0], [finding.margin for finding in findings])


def sections() -> dict[str, str]:
    """What the page says of each experiment now."""
    text = PAGE.read_text(encoding="utf-8")
    kept = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    return {found[1]: found[0].strip() + "\n" for found in re.finditer(r"## (\S+)\n.*?(?=\n## |\Z)", kept, re.DOTALL)}


def main(names: list[str]) -> None:
    found = sections()
    for name in names or experiment_names():
        found[name] = measured(name)
        print(found[name], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    there = "\n".join(found[name] for name in experiment_names() if name in found)
    PAGE.write_text(f"{before}{BEGIN}\n\n{there}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
