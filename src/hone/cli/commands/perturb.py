"""`hone eval --perturb`: what the words and files after it mean, and the table of what came of it.

Belongs here: reading and laying out. What a perturbation does is `hone.evaluate.control.perturbations`'s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hone.cli.terminal.progress import compact_number
from hone.cli.terminal.screen import TerminalScreen
from hone.config.overrides import ConfigDocument, parse_overrides
from hone.config.resolve import read_document, resolve
from hone.core.errors import ConfigError
from hone.store.robustness import UNPERTURBED, PerturbedScore

if TYPE_CHECKING:
    from hone.evaluate.control.perturbations import PerturbationConfig

OPTION = "--perturb"


def parse_perturbations(texts: Sequence[str]) -> "list[PerturbationConfig]":
    """Each text is a row: `action_delay=2`, several together as `action_delay=2,sensor_noise=0.1`, several rows as
    `action_delay=[1,2,4]`, or all those of a `FILE.toml` with `[[perturb]]` tables.

    Raises ConfigError with every fault.
    """
    from hone.evaluate.control.perturbations import PerturbationFile  # noqa: PLC0415 - torch: not needed to parse options

    found: list[PerturbationConfig] = []
    rows: list[object] = []
    for text in texts:
        if text.endswith(".toml"):
            found += resolve(PerturbationFile, read_document(text)).config.perturb
        else:
            rows += _rows(text)
    if rows:
        found += resolve(PerturbationFile, ConfigDocument(name=OPTION, values={"perturb": rows})).config.perturb
    return found


def _rows(text: str) -> list[dict[str, object]]:
    parts = [text] if "[" in text or "{" in text else text.split(",")
    values = parse_overrides(parts)
    lists = [value for _, value in values if isinstance(value, list)]
    if not lists:
        return [_table([(path, value) for path, value in values])]
    path, several = values[0]
    if len(values) > 1 or not isinstance(several, list) or not several:
        raise ConfigError(f"{OPTION} {text}: a list of values makes a row of each, so it stands alone and is not empty")
    return [_table([(path, value)]) for value in several]


def _table(values: Sequence[tuple[tuple[str | int, ...], object]]) -> dict[str, object]:
    document = ConfigDocument(name=OPTION, values={})
    for path, value in values:
        document.set_value(path, value, source=OPTION)
    return document.values


def show_robustness(screen: TerminalScreen, rows: Sequence[PerturbedScore]) -> None:
    """Score, and difference to the score as it was, on the same seeds."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        score = f"{compact_number(row.mean)} ({compact_number(row.low)} to {compact_number(row.high)})"
        if row.name == UNPERTURBED:
            lines.append((row.name, score, "", ""))
            continue
        change = f"{_signed(row.difference)} ({_signed(row.difference_low)} to {_signed(row.difference_high)})"
        lines.append((row.name, score, change, f"{row.p_value:.2g}"))
    screen.table(("world", "score (95% interval)", "difference on the same seeds", "paired p"), lines)
    screen.line(f"{rows[0].n} episodes each")


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{compact_number(value)}"
