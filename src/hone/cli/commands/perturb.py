"""`hone eval --perturb`: parsing of its arguments and files, and the table of results.

Belongs here: parsing and layout. `hone.control.evaluate.perturbations` applies the perturbations.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen
from hone.config.resolve import read_document, resolve
from hone.config.toml import ConfigDocument, parse_overrides
from hone.core.errors import ConfigError
from hone.run.store.records import UNPERTURBED, PerturbedScore

if TYPE_CHECKING:
    from hone.control.evaluate.perturbations import PerturbationConfig

OPTION = "--perturb"


def parse_perturbations(texts: Sequence[str]) -> "list[PerturbationConfig]":
    """Parse perturbations: `action_delay=2`, two at once as `action_delay=2,sensor_noise=0.1`, three rows as
    `action_delay=[1,2,4]`, or a file `NAME.toml` with `[[perturb]]` tables.

    Raises ConfigError with every error.
    """
    from hone.control.evaluate.perturbations import PerturbationFile  # noqa: PLC0415 - torch: not needed to parse options

    perturbations: list[PerturbationConfig] = []
    rows: list[object] = []
    for text in texts:
        if text.endswith(".toml"):
            perturbations += resolve(PerturbationFile, read_document(text)).config.perturb
        else:
            rows += _rows(text)
    if rows:
        perturbations += resolve(PerturbationFile, ConfigDocument(name=OPTION, values={"perturb": rows})).config.perturb
    return perturbations


def _rows(text: str) -> list[dict[str, object]]:
    parts = [text] if "[" in text or "{" in text else text.split(",")
    values = parse_overrides(parts)
    lists = [value for _, value in values if isinstance(value, list)]
    if not lists:
        return [_table([(path, value) for path, value in values])]
    path, several = values[0]
    if len(values) > 1 or not isinstance(several, list) or not several:
        raise ConfigError(
            f"{OPTION} {text}: a list gives one row per value; it must not be empty or combined with other settings"
        )
    return [_table([(path, value)]) for value in several]


def _table(values: Sequence[tuple[tuple[str | int, ...], object]]) -> dict[str, object]:
    document = ConfigDocument(name=OPTION, values={})
    for path, value in values:
        document.set_value(path, value, source=OPTION)
    return document.values


def show_robustness(screen: TerminalScreen, rows: Sequence[PerturbedScore]) -> None:
    """Print the scores, and the differences from the unperturbed score on the same seeds."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        score = f"{compact_number(row.mean)} ({compact_number(row.low)} to {compact_number(row.high)})"
        if row.name == UNPERTURBED:
            lines.append((row.name, score, "", ""))
            continue
        change = f"{_signed(row.difference)} ({_signed(row.difference_low)} to {_signed(row.difference_high)})"
        lines.append((row.name, score, change, f"{row.p_value:.2g}"))
    screen.table(("environment", "score (95% interval)", "difference on the same seeds", "paired p"), lines)
    screen.line(f"{rows[0].n} episodes each")


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{compact_number(value)}"
