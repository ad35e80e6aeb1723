"""Logs of Vowpal Wabbit and of Azure Personalizer in the decision log: estimates and learners read them as any other.

A cost is a negative reward. Probabilities are those that were logged; a decision without one is refused by its line,
as no estimate can weight it. Lines are read as Vowpal Wabbit 9.11 reads them, or refused: it reads a probability of 1.5
as 1, a label that touches the bar as a tag, and nothing of what contradicts a label.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome, schema_hash
from hone.core.errors import DataError
from hone.core.strict_json import strict_json
from hone.decide.log.protocol import DecisionLog
from hone.process.user_files import file_fault

# ----------------------------------------------------------------------------------------------------------- vw parsing


SparseFeatures = dict[str, float]
"""Values by name, `namespace.name`; a text value is a category, `namespace.name=text`, of value 1."""


_Text = TypeVar("_Text")
_LeftOut = Literal["unlabelled", "skipped"]
_LARGEST: Final = 3.4e38
"""Vowpal Wabbit's numbers have 32 bits; it takes the largest cost for none."""
SLACK: Final = 1e-3
"""Relative difference of two probabilities that is rounding."""


class _VwLineError(ValueError):
    """A line that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _VwExample:
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
class _VwFaults:
    """Lines that cannot be read, and lines that are left out."""

    messages: list[str] = field(default_factory=list[str])
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Number of lines by the reason: `unlabelled`, `skipped`."""


@dataclass(frozen=True, slots=True)
class _TextLine:
    """A line of the text formats."""

    number: int
    words: tuple[str, ...]
    """Words of the label; a tag is none of them."""
    features: str
    """The first bar and what follows."""

    def labels(self) -> list[tuple[int, float, float]]:
        """Actions with a cost. Raises _VwLineError for one without a probability, and for other forms."""
        return [_label(word) for word in self.words if ":" in word]


_OTHER_FORMATS: Final = {"ccb": "conditional contextual bandits", "slates": "slates", "ca": "continuous actions"}
VwFormat = Literal["text", "cb", "cb_adf", "dsjson"]


def _parse_text(lines: Iterable[str], faults: _VwFaults, kind: VwFormat) -> Iterator[_VwExample]:
    """Examples of the text formats; an example of several lines ends with an empty line."""
    block: list[_TextLine] = []
    broken = False
    for number, line in enumerate((*lines, ""), start=1):
        text = line.strip()
        if text.startswith("#"):
            continue
        if text:
            try:
                block.append(_text_line(number, text))
            except _VwLineError as error:
                faults.messages.append(f"line {number}: {error}")
                broken = True
        else:
            if block and not (broken and any("shared" in one.words for one in block)):
                yield from _block_examples(block, faults, kind)
            block, broken = [], False


def _text_line(number: int, text: str) -> _TextLine:
    """Split a line as Vowpal Wabbit does: a last word that touches the bar, or begins with ', is a tag."""
    head, bar, rest = text.partition("|")
    if "\t" in head:
        raise _VwLineError("a tab before the bar: Vowpal Wabbit reads no label before it; write spaces")
    words = head.split(" ")
    tag = words.pop() if words[-1] else ""
    words = [word for word in words if word]
    if words and not tag and words[-1].startswith("'"):
        tag = words.pop()
    if tag == "shared" or (":" in tag and not tag.startswith("'")):
        raise _VwLineError(f"{tag!r:.60} touches the {'bar' if bar else 'end'}: to Vowpal Wabbit it is a tag, not "
                           "a label; write a space and a bar after it")  # fmt: skip
    if words and words[0] in _OTHER_FORMATS:
        raise _VwLineError(f"{words[0]}: {_OTHER_FORMATS[words[0]]} are not converted, contextual bandits alone are")
    return _TextLine(number, tuple(words), bar + rest)


def _block_examples(block: Sequence[_TextLine], faults: _VwFaults, kind: VwFormat) -> Iterator[_VwExample]:
    """Examples of consecutive lines: one of several lines (ADF), or one of each."""
    first, counts = block[0], [sum(word.count(":") == 2 for word in line.words) for line in block]
    labelled = sum(map(bool, counts))
    zero = any(word.startswith("0:") for line in block for word in line.words)
    shared = any("shared" in line.words for line in block)
    adf = kind == "cb_adf" or (kind == "text" and (shared or labelled == 0 or (zero and labelled == 1)))
    if kind == "text" and not adf and labelled == 1 and len(block) > 1:
        faults.messages.append(
            f"line {first.number}: {len(block)} lines without `shared` and with one label are one decision of "
            f'kind = "cb_adf", or {len(block)} of kind = "cb": name the kind'
        )  # fmt: skip
    elif adf:
        yield from _sound(_multi, block, faults, first.number)
    else:
        for line in block:
            yield from _sound(_single, line, faults, line.number)


def _parse_dsjson(lines: Iterable[str], faults: _VwFaults) -> Iterator[_VwExample]:
    """Examples of DSJSON, one object a line; lines that only hold a late outcome are not examples."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from _sound(partial(_dsjson, number), line, faults, number)


def _sound(
    parse: Callable[[_Text], _VwExample | _LeftOut], text: _Text, faults: _VwFaults, number: int
) -> Iterator[_VwExample]:
    try:
        example = parse(text)
    except _VwLineError as error:
        faults.messages.append(f"line {number}: {error}")
        return
    if isinstance(example, _VwExample):
        yield example
    else:
        faults.left_out[example] += 1


def _single(line: _TextLine) -> _VwExample | _LeftOut:
    """`action:cost:probability | features`, actions from 1."""
    if "shared" in line.words:
        raise _VwLineError('`shared` belongs to decisions of several lines: kind = "cb_adf"')
    labelled, shared = line.labels(), _features(line.features)
    if not labelled:
        return "unlabelled"
    if len(labelled) > 1:
        raise _VwLineError(f"{len(labelled)} labelled actions; a decision executed one")
    action, cost, probability = labelled[0]
    if action < 1:
        raise _VwLineError(f"action {action}; actions are numbered from 1")
    return _VwExample(
        line=line.number, shared=shared, actions=(), executed=action - 1, cost=cost, probability=probability
    )  # fmt: skip


def _multi(block: Sequence[_TextLine]) -> _VwExample | _LeftOut:
    """`shared | features`, which may be left out, then a line for each action; that of the executed one has the
    label. Its place counts, and the number in the label does not."""
    first = block[0]
    has_shared = bool(first.words) and first.words[0] == "shared"
    for line in block[has_shared:]:
        if any(word == "shared" or word.startswith("shared:") for word in line.words):
            raise _VwLineError(f"`shared` in line {line.number}: it is the first line of a decision, and has no cost")
    if has_shared and (len(first.words) > 1 or len(block) == 1):
        raise _VwLineError(f"`shared` with {' '.join(first.words[1:]) or 'no action after it'!r:.60}")
    shared = _features(first.features) if has_shared else {}
    lines = block[has_shared:]
    actions = [_features(line.features) for line in lines]
    labels = [(place, label) for place, line in enumerate(lines) for label in line.labels()]
    if not labels:
        return "unlabelled"
    if len(labels) > 1:
        raise _VwLineError(f"{len(labels)} labelled actions; a decision executed one")
    place, (_, cost, probability) = labels[0]
    return _VwExample(
        line=first.number, shared=shared, actions=actions, executed=place, cost=cost, probability=probability
    )  # fmt: skip


_OTHER_KEYS: Final = ("_outcomes", "_label_ca", "_label", "_slots")


def _dsjson(number: int, text: str) -> _VwExample | _LeftOut:
    fields = _dsjson_fields(text)
    context, skipped = fields.get("c"), fields.get("_skipLearn", False)
    if wrong := [key for key in ("EventId", "Timestamp") if not isinstance(fields.get(key), str | None)]:
        raise _VwLineError(f"{wrong[0]} is no text, so that Vowpal Wabbit reads no decision")
    if skipped is True:
        return "skipped"
    if context is None or fields.get("_label_cost") is None:
        return "unlabelled"
    if skipped is not False:
        raise _VwLineError(f"_skipLearn = {skipped!r:.40} is neither true nor false")
    if _number(fields.get("pdrop", 0)) != 0:
        raise _VwLineError(f"pdrop = {fields['pdrop']}: Vowpal Wabbit weights this line by 1 / (1 - pdrop), as lines "
                           "like it were dropped, and a decision log has no weights")  # fmt: skip
    if not isinstance(context, dict) or not isinstance(fields.get("a"), list) or not isinstance(fields.get("p"), list):
        raise _VwLineError("c must be an object, a and p lists")
    features = cast("dict[str, object]", context)
    multi = features.get("_multi")
    if not isinstance(multi, list) or not multi:
        raise _VwLineError("c has no list _multi of actions, so that Vowpal Wabbit reads no decision")
    executed, probability, count = _logged_choice(fields, len(cast("list[object]", multi)))
    state = fields.get("VWState")
    version = cast("dict[str, object]", state).get("m", "") if isinstance(state, dict) else ""
    return _VwExample(
        line=number,
        shared=_flattened({name: one for name, one in features.items() if name == "_text" or name[:1] != "_"}, ""),
        actions=[_flattened(one, "") for one in cast("list[object]", multi)],
        executed=executed,
        cost=_number(fields["_label_cost"]),
        probability=probability,
        count=count,
        event=str(fields.get("EventId", "")),
        version=str(version),
        at_s=_seconds(fields.get("Timestamp")),
    )


def _dsjson_fields(text: str) -> dict[str, object]:
    try:
        value = strict_json(text)
    except ValueError as error:
        raise _VwLineError(f"not JSON: {error!s:.100}") from None
    if not isinstance(value, dict):
        raise _VwLineError("not an object")
    fields = cast("dict[str, object]", value)
    context = fields.get("c")
    inner = cast("dict[str, object]", context) if isinstance(context, dict) else {}
    others = [name for name in _OTHER_KEYS if name in fields or name in inner]
    if others and fields.get("_skipLearn") is not True:
        raise _VwLineError(f"{others[0]}: decisions of several slots, of continuous actions and labels of other forms "
                           "are not converted")  # fmt: skip
    return fields


def _logged_choice(fields: Mapping[str, object], count: int) -> tuple[int, float, int]:
    """Executed action from 0, its probability, and the number of actions. Raises _VwLineError where two places of the
    line contradict each other: the lists `a` and `p`, `_multi`, and the keys of the label."""
    numbers = [_number(one) for one in cast("list[object]", fields["a"])]
    chances = [_number(one) for one in cast("list[object]", fields["p"])]
    if sorted(numbers) != list(range(1, len(numbers) + 1)) or len(numbers) != count:
        raise _VwLineError(f"a = {fields['a']!r:.60} are not the numbers from 1 to {count} of the actions in _multi")
    if len(chances) != count or min(chances) < 0 or abs(sum(chances) - 1) > SLACK:
        raise _VwLineError(
            f"p = {fields['p']!r:.60} is no distribution over {count} actions; its sum is {sum(chances):.6g}"
        )
    if not fields.keys() & {"_label_Action", "_labelIndex"} or "_label_probability" not in fields:
        raise _VwLineError("a cost without _label_Action or _labelIndex, and _label_probability")
    action = _number(fields.get("_label_Action", numbers[0]))
    if "_labelIndex" in fields:
        place = _number(fields["_labelIndex"])
        if "_label_Action" in fields and action != place + 1:
            raise _VwLineError(f"_label_Action = {action:g} and _labelIndex = {place:g} name two actions; "
                               "_labelIndex counts from 0")  # fmt: skip
        action = place + 1
    if action not in numbers:
        raise _VwLineError(f"action {action:g} of {count}")
    listed = chances[numbers.index(action)]
    probability = _number(fields["_label_probability"])
    if abs(probability - listed) > SLACK * max(probability, listed):
        raise _VwLineError(
            f"_label_probability = {probability:g} contradicts p, where action {action:g} has {listed:g}"
        )
    return int(action) - 1, probability, count


def _label(text: str) -> tuple[int, float, float]:
    parts = text.split(":")
    if len(parts) == 2:
        raise _VwLineError(f"label {text!r:.60} has no probability, without which no estimate can weight it")
    try:
        action, cost, probability = parts
        if "_" in text:  # which Python reads as a part of a number
            raise ValueError
        return int(action), float(cost), float(probability)
    except ValueError:
        raise _VwLineError(f"label {text!r:.60} is not action:cost:probability") from None


def _features(text: str) -> SparseFeatures:
    """`|ns a b:0.5 |other c`: values by `ns.name`; names without a namespace stand as they are."""
    features: SparseFeatures = {}
    for part in text.split("|")[1:]:
        words = part.split()
        space = ""
        if words and not part.startswith((" ", "\t")):
            space, colon, scale = words.pop(0).partition(":")
            factor = _value(scale) if colon else 1.0
        else:
            factor = 1.0
        for word in words:
            name, colon, value = word.rpartition(":") if ":" in word else (word, "", "")
            if not name:
                raise _VwLineError(f"feature {word!r:.40} has no name")
            key = f"{space}.{name}" if space else name
            features[key] = features.get(key, 0.0) + factor * (_value(value) if colon else 1.0)
    return features


def _flattened(value: object, name: str) -> SparseFeatures:
    """Values of nested JSON by dotted names."""
    match value:
        case dict():
            items = cast("dict[str, object]", value).items()
            inner = [_flattened(one, f"{name}.{key}" if name else key) for key, one in items if key[:1] != "_"]
            if wrong := [key for key, one in items if key in ("_text", "_tag") and not isinstance(one, str | None)]:
                raise _VwLineError(f"{wrong[0]} is no text, so that Vowpal Wabbit reads no decision")
            texts = [str(one or "").split() for key, one in items if key == "_text"]
            inner += [
                {f"{name}.{word}" if name else word: float(words.count(word)) for word in words} for words in texts
            ]
            return {key: one for some in inner for key, one in some.items()}
        case list():
            if wrong := [one for one in cast("list[object]", value) if isinstance(one, str | bool | list)]:
                raise _VwLineError(f"a list with {wrong[0]!r:.40}: Vowpal Wabbit reads lists of numbers and objects, "
                                   "and no decision from this line")  # fmt: skip
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
        number = float("" if "_" in text else text)
    except ValueError:
        raise _VwLineError(f"feature value {text!r:.40} is no number") from None
    if not abs(number) <= _LARGEST:
        raise _VwLineError(f"feature value {text} is not finite in 32 bits")
    return number


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise _VwLineError(f"{value!r:.60} is no finite number of 32 bits")
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
        raise _VwLineError(f"Timestamp {value!r:.40} is no time") from None


# ------------------------------------------------------------------------------------------------------------ vw import


MAX_FEATURES: Final = 2000
_SHOWN: Final = 20
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _VwLog:
    """A converted log."""

    records: tuple[DecisionRecord, ...]
    """Each decision, and its outcome after it."""
    features: tuple[str, ...]
    """Names of the features, in their order."""
    action_features: tuple[str, ...]
    """Names of the actions' features; empty: actions are told apart by their numbers."""
    unlabelled: int
    """Examples without a label: nothing was executed, or its cost never came."""
    skipped: int
    """Lines with `_skipLearn`, which Vowpal Wabbit leaves out."""


def read_vw_log(path: Path, *, kind: VwFormat, tenant: str = "default", start_s: float = 0.0) -> _VwLog:
    """Convert a file: `cb` is the text of `--cb`, `cb_adf` that of `--cb_explore_adf`, `text` whichever of these a
    block of lines can only be, and `dsjson` the logs of Azure Personalizer.

    Examples without a time are a second apart from `start_s` on. Raises DataError with every line that cannot be read,
    contradicts itself or has a probability outside of (0, 1]; then nothing was converted.
    """
    faults = _VwFaults()
    if fault := file_fault(path):
        raise DataError(fault)
    try:
        with path.open(encoding="utf-8-sig") as file:
            examples = list(_parse_dsjson(file, faults) if kind == "dsjson" else _parse_text(file, faults, kind))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from None
    count = max((one.count or one.executed + 1 for one in examples), default=0)
    faults.messages += [f"line {one.line}: {words}" for one in examples for words in _example_faults(one)]
    lines = {one.event: one.line for one in reversed(examples) if one.event}
    faults.messages += [
        f"line {one.line}: EventId {one.event!r:.60} is that of line {lines[one.event]}, too"
        for one in examples if one.event and lines[one.event] != one.line
    ]  # fmt: skip
    if faults.messages:
        more = [f"and {len(faults.messages) - _SHOWN} more lines"] if len(faults.messages) > _SHOWN else []
        raise DataError(*(f"{path.name}: {words}" for words in faults.messages[:_SHOWN]), *more)
    features = _names((one.shared for one in examples), path)
    inner = _names((action for one in examples for action in one.actions), path)
    source = f"vw:{path.name}"
    made = _RecordMaker(features, inner, count, tenant, source, start_s)
    records = tuple(record for place, one in enumerate(examples) for record in made.records(place, one))
    return _VwLog(records=records, features=features, action_features=inner, unlabelled=faults.left_out["unlabelled"],
                  skipped=faults.left_out["skipped"])  # fmt: skip


def import_vw_log(path: Path, log: DecisionLog, *, kind: VwFormat, tenant: str = "default") -> _VwLog:
    """Convert a file and append it to a log; importing it again changes nothing. Raises DataError."""
    converted = read_vw_log(path, kind=kind, tenant=tenant)
    for first in range(0, len(converted.records), _BATCH):
        log.append(converted.records[first : first + _BATCH])
    return converted


def _example_faults(one: _VwExample) -> Iterator[str]:
    if not 0.0 < one.probability <= 1.0:
        yield f"probability {one.probability:g} is not above 0 and at most 1"
    if not abs(one.cost) <= _LARGEST:
        yield f"cost {one.cost} is not finite in 32 bits"
    offered = len(one.actions) or one.count
    if one.executed < 0 or (offered and one.executed >= offered):
        yield f"action {one.executed + 1} of {offered}"


def _names(rows: Iterator[SparseFeatures], path: Path) -> tuple[str, ...]:
    names = sorted({name for row in rows for name in row})
    if len(names) > MAX_FEATURES:
        raise DataError(
            f"{path.name}: {len(names)} features, at most {MAX_FEATURES} are converted; Vowpal Wabbit hashes them, "
            "hone names them: leave out categories with many values, such as ids"
        )
    return tuple(names)


@dataclass(frozen=True, slots=True)
class _RecordMaker:
    features: Sequence[str]
    action_features: Sequence[str]
    count: int
    tenant: str
    source: str
    start_s: float

    def records(self, place: int, one: _VwExample) -> tuple[Decision, Outcome]:
        """The decision and its outcome."""
        at_s = self.start_s + place if math.isnan(one.at_s) else one.at_s
        logp = math.log(one.probability)
        name = one.event or f"{self.source}:{one.line}"
        decision = Decision(
            id=name, tenant=self.tenant, unit=name, at_s=at_s, context=_dense(one.shared, self.features),
            actions=self._actions(one), choice=Choice(action=one.executed, logp=logp), executed=one.executed,
            executed_logp=logp, version=f"vw:{one.version}" if one.version else "vw", source=self.source,
            schema=schema_hash(self.features), seq=2 * place,
        )  # fmt: skip
        outcome = Outcome(
            decision_id=name, tenant=self.tenant, value=-one.cost, at_s=at_s, source=self.source, seq=2 * place + 1
        )
        return decision, outcome

    def _actions(self, one: _VwExample) -> ActionSet:
        offered = len(one.actions) or one.count or self.count
        names = tuple(str(number) for number in range(1, offered + 1))
        if not self.action_features:
            return ActionSet(names=names)
        return ActionSet(names=names, features=np.array([_dense(row, self.action_features) for row in one.actions]))


def _dense(row: Mapping[str, float], names: Sequence[str]) -> Floats:
    return np.array([row.get(name, 0.0) for name in names], dtype=np.float64)
