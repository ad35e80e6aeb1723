"""Canaries: known-good and known-bad answers, read from a file and picked evenly between the graded answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hone.core.conversation import Message
from hone.core.errors import DataError, ErrorCollector, did_you_mean
from hone.core.random import permutation
from hone.core.strict_json import strict_json
from hone.process.user_files import file_fault
from hone.rewards.references import describe_missing

_ANSWERS = ("good", "bad")
_KEYS = ("prompt", *_ANSWERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryItem:
    """A prompt with a good and a bad answer."""

    place: str
    """File and line, for messages."""
    prompt: str | Sequence[Message]
    good: str
    bad: str
    columns: Mapping[str, object]
    """The other columns, such as a reference answer."""


def read_canaries(path: Path, *, column: str | None) -> list[CanaryItem]:
    """The canaries of a JSONL file; `column` must be in each row. Raises DataError with every fault and its line."""
    if fault := file_fault(path):
        raise DataError(f"canaries.path: {fault}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"canaries.path = {str(path)!r} cannot be read: {error}") from None
    faults = ErrorCollector(DataError)
    items: list[CanaryItem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = strict_json(line)
        except ValueError as error:
            faults.add(f"{place}: {error}")
            continue
        if not isinstance(row, dict):
            faults.add(f"{place}: the row is {line.strip()[:40]!r}, expected a JSON object")
            continue
        wrong = _row_faults(cast("dict[str, object]", row), column)
        faults.extend(f"{place}: {fault}" for fault in wrong)
        if not wrong:
            items.append(_item(place, cast("dict[str, object]", row)))
    if not items and not faults.messages:
        faults.add(f'{path} holds no canary; write rows {{"prompt": ..., "good": ..., "bad": ...}}')
    faults.raise_if_any()
    return items


def _row_faults(row: Mapping[str, object], column: str | None) -> list[str]:
    faults: list[str] = []
    extra = () if column is None or column in _KEYS else (column,)
    for key in (*_KEYS, *extra):
        value = row.get(key)
        is_chat = isinstance(value, list) and all(isinstance(one, dict) for one in cast("list[object]", value))
        if key not in row:
            faults.append(f"{key!r} is missing{did_you_mean(key, sorted(row))}")
        elif key == "prompt" and not (value and (isinstance(value, str) or is_chat)):
            faults.append(f"{key!r} is {value!r}, expected text or a list of messages")
        elif key in _ANSWERS and not (isinstance(value, str) and value.strip()):
            faults.append(f"{key!r} is {value!r}, expected text")
        elif describe_missing(value, blank=True):
            faults.append(f"{key!r} is {value!r}, expected a reference")
    if not faults and str(row["good"]).strip() == str(row["bad"]).strip():
        faults.append("'good' and 'bad' are the same answer")
    return faults


def _item(place: str, row: Mapping[str, object]) -> CanaryItem:
    prompt = row["prompt"]
    return CanaryItem(
        place=place,
        prompt=prompt if isinstance(prompt, str) else cast("Sequence[Message]", prompt),
        good=str(row["good"]),
        bad=str(row["bad"]),
        columns={key: value for key, value in row.items() if key not in _KEYS},
    )


def due_canaries(answers_before: int, answers: int, *, rate: float) -> range:
    """Numbers, from 0, of the canaries that are due with `answers` further answers: `rate` for each answer, evenly."""
    return range(int(answers_before * rate), int((answers_before + answers) * rate))


def pick_canary(number: int, count: int) -> int:
    """Place of canary `number` among `count` items: all items once in each epoch, in a fresh order."""
    epoch, place = divmod(number, count)
    return int(permutation(0, "canaries", epoch, count=count)[place])
