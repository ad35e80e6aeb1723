"""Lines of Vowpal Wabbit's contextual-bandit logs as examples: text of `--cb`, text of `--cb_explore_adf`, DSJSON.

Belongs here: the three formats. Does not: their meaning for the decision log (`vw_import`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from hone.core.strict_json import strict_json

SparseFeatures = dict[str, float]
"""Values by name, `namespace.name`; a text value is a category, `namespace.name=text`, of value 1."""


class VwLineError(ValueError):
    """A line that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VwExample:
    """One decision of Vowpal Wabbit."""

    line: int
    """First line in the file, from 1."""
    shared: SparseFeatures
    actions: Sequence[SparseFeatures]
    """Features of each action; empty: the format has none, actions are numbers."""
    executed: int
    """Number of the executed action, from 0."""
    cost: float
    probability: float
    count: int = 0
    """Number of actions, where `actions` is empty; 0: as many as the largest number in the file."""
    event: str = ""
    version: str = ""
    at_s: float = math.nan


@dataclass(slots=True)
class VwFaults:
    """Lines that cannot be read, and lines without a label."""

    messages: list[str] = field(default_factory=list[str])
    unlabelled: int = 0


def parse_text(lines: Iterable[str], faults: VwFaults) -> Iterator[VwExample]:
    """Examples of the text formats; an example of several lines ends with an empty line."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            multi = bool(block) or text.startswith(("shared ", "|")) or text.startswith("0:")
            if multi:
                block.append((number, text))
            else:
                yield from _sound(_single, [(number, text)], faults)
        elif block:
            yield from _sound(_multi, block, faults)
            block = []
    if block:
        yield from _sound(_multi, block, faults)


def parse_dsjson(lines: Iterable[str], faults: VwFaults) -> Iterator[VwExample]:
    """Examples of DSJSON, one object a line; lines that only hold a late outcome are not examples."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from _sound(_dsjson, [(number, line)], faults)


def _sound(
    parse: Callable[[Sequence[tuple[int, str]]], VwExample | None], block: Sequence[tuple[int, str]], faults: VwFaults
) -> Iterator[VwExample]:
    try:
        example = parse(block)
    except VwLineError as error:
        faults.messages.append(f"line {block[0][0]}: {error}")
        return
    if example is None:
        faults.unlabelled += 1
    else:
        yield example


def _single(block: Sequence[tuple[int, str]]) -> VwExample | None:
    """`action:cost:probability | features`, actions from 1."""
    number, text = block[0]
    labels, _, rest = text.partition("|")
    labelled = [label for label in labels.split() if label.count(":") == 2]
    if not labelled:
        return None
    if len(labelled) > 1:
        raise VwLineError(f"{len(labelled)} labelled actions; a decision executed one")
    action, cost, probability = _label(labelled[0])
    if action < 1:
        raise VwLineError(f"action {action}; actions are numbered from 1")
    shared = _features("|" + rest)
    return VwExample(
        line=number, shared=shared, actions=(), executed=action - 1, cost=cost, probability=probability
    )  # fmt: skip


def _multi(block: Sequence[tuple[int, str]]) -> VwExample | None:
    """`shared | features`, then a line for each action; that of the executed one has the label."""
    shared: SparseFeatures = {}
    actions: list[SparseFeatures] = []
    labels: list[tuple[int, tuple[int, float, float]]] = []
    for _, text in block:
        head, bar, rest = text.partition("|")
        words = head.split()
        if words and words[0] == "shared":
            shared = _features(bar + rest)
            continue
        labels += [(len(actions), _label(word)) for word in words if word.count(":") == 2]
        actions.append(_features(bar + rest))
    if not labels:
        return None
    if len(labels) > 1:
        raise VwLineError(f"{len(labels)} labelled actions; a decision executed one")
    place, (_, cost, probability) = labels[0]
    return VwExample(
        line=block[0][0], shared=shared, actions=actions, executed=place, cost=cost, probability=probability
    )  # fmt: skip


def _dsjson(block: Sequence[tuple[int, str]]) -> VwExample | None:
    number, text = block[0]
    try:
        value = strict_json(text)
    except ValueError as error:
        raise VwLineError(f"not JSON: {error!s:.100}") from None
    if not isinstance(value, dict):
        raise VwLineError("not an object")
    fields = cast("dict[str, object]", value)
    context, numbers, chances = fields.get("c"), fields.get("a"), fields.get("p")
    if context is None or "_label_cost" not in fields:
        return None
    if not isinstance(context, dict) or not isinstance(numbers, list) or not isinstance(chances, list):
        raise VwLineError("c must be an object, a and p lists")
    features = cast("dict[str, object]", context)
    multi = features.get("_multi", [])
    executed, ranked = _number(fields.get("_label_Action", _first(numbers))), cast("list[object]", chances)
    probability = _number(fields.get("_label_probability", _first(ranked)))
    state = fields.get("VWState")
    version = cast("dict[str, object]", state).get("m", "") if isinstance(state, dict) else ""
    return VwExample(
        line=number,
        shared=_flattened({name: one for name, one in features.items() if not name.startswith("_")}, ""),
        actions=[_flattened(one, "") for one in cast("list[object]", multi)] if isinstance(multi, list) else (),
        executed=int(executed) - 1,
        cost=_number(fields["_label_cost"]),
        probability=probability,
        count=len(numbers),
        event=str(fields.get("EventId", "")),
        version=str(version),
        at_s=_seconds(fields.get("Timestamp")),
    )


def _label(text: str) -> tuple[int, float, float]:
    action, cost, probability = text.split(":")
    try:
        return int(action), float(cost), float(probability)
    except ValueError:
        raise VwLineError(f"label {text!r:.60} is not action:cost:probability") from None


def _features(text: str) -> SparseFeatures:
    """`|ns a b:0.5 |other c`: values by `ns.name`; names without a namespace stand as they are."""
    found: SparseFeatures = {}
    for part in text.split("|")[1:]:
        words = part.split()
        space = ""
        if words and not part.startswith((" ", "\t")):
            space, _, scale = words.pop(0).partition(":")
            factor = _value(scale) if scale else 1.0
        else:
            factor = 1.0
        for word in words:
            name, colon, value = word.rpartition(":") if ":" in word else (word, "", "")
            key = f"{space}.{name}" if space else name
            found[key] = found.get(key, 0.0) + factor * (_value(value) if colon else 1.0)
    return found


def _flattened(value: object, name: str) -> SparseFeatures:
    """Values of nested JSON by dotted names."""
    match value:
        case dict():
            items = cast("dict[str, object]", value).items()
            inner = [_flattened(one, f"{name}.{key}" if name else key) for key, one in items if key[:1] != "_"]
            return {key: one for some in inner for key, one in some.items()}
        case list():
            inner = [_flattened(one, f"{name}.{place}") for place, one in enumerate(cast("list[object]", value))]
            return {key: one for some in inner for key, one in some.items()}
        case bool():
            return {name: 1.0} if value else {}
        case int() | float():
            return {name: _number(value)}
        case str():
            return {f"{name}={value}": 1.0}
        case _:
            return {}


def _value(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise VwLineError(f"feature value {text!r:.40} is no number") from None
    if not math.isfinite(number):
        raise VwLineError(f"feature value {text} is not finite")
    return number


def _first(values: Sequence[object]) -> object:
    return values[0] if values else None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise VwLineError(f"{value!r:.60} is no finite number")
    return float(value)


def _seconds(value: object) -> float:
    """Seconds since the epoch of an ISO time with up to seven digits of a second; NaN without one."""
    if not isinstance(value, str):
        return math.nan
    head, dot, rest = value.partition(".")
    digits = rest.rstrip("Z")[:6]
    try:
        return datetime.fromisoformat(f"{head.rstrip('Z')}{dot}{digits}+00:00").timestamp()
    except ValueError:
        raise VwLineError(f"Timestamp {value!r:.40} is no time") from None
