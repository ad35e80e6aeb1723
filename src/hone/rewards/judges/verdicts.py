"""Verdicts: their fields, their JSON schema and line grammar, and how a judge's reply is read.

A reply that is no verdict raises `VerdictError` with the reason: the score is then missing, never 0.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from hone.core.strict_json import strict_json

VerdictFormat = Literal["json", "lines"]
VerdictValue = float | str
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_CODE_BLOCK = re.compile(r"\A```(?:json)?[ \t]*\n(.*?)\n?```\Z", re.DOTALL)
_SHOWN = 160


class VerdictError(ValueError):
    """A reply that holds no verdict of the wanted form."""


@dataclass(frozen=True, slots=True)
class NumberField:
    """A number of a verdict, within its bounds."""

    name: str
    lowest: float
    highest: float

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema."""
        return {"type": "number", "minimum": self.lowest, "maximum": self.highest}

    @property
    def form(self) -> str:
        """Its form in words."""
        return f"a number from {self.lowest:g} to {self.highest:g}"

    def read(self, value: object) -> float:
        """The value, checked. Raises VerdictError."""
        number = _number(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise VerdictError(f"{self.name} is {_shown(value)}, not {self.form}")
        if not self.lowest <= number <= self.highest:
            raise VerdictError(f"{self.name} is {_shown(value)}, outside {self.lowest:g} to {self.highest:g}")
        return float(number)


@dataclass(frozen=True, slots=True)
class ChoiceField:
    """One of several words of a verdict."""

    name: str
    options: tuple[str, ...]

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema."""
        return {"type": "string", "enum": list(self.options)}

    @property
    def form(self) -> str:
        """Its form in words."""
        return f"one of {', '.join(self.options)}"

    def read(self, value: object) -> str:
        """The value, checked; capital letters do not matter. Raises VerdictError."""
        for option in self.options:
            if isinstance(value, str) and value.strip().casefold() == option.casefold():
                return option
        raise VerdictError(f"{self.name} is {_shown(value)}, not {self.form}")


@dataclass(frozen=True, slots=True)
class TextField:
    """Free text of a reply, such as a revised answer."""

    name: str

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON schema."""
        return {"type": "string"}

    @property
    def form(self) -> str:
        """Its form in words."""
        return "text"

    def read(self, value: object) -> str:
        """The value, checked. Raises VerdictError."""
        if not isinstance(value, str) or not value.strip():
            raise VerdictError(f"{self.name} is {_shown(value)}, not text")
        return value


VerdictField = NumberField | ChoiceField | TextField


def json_schema(fields: Sequence[VerdictField]) -> dict[str, object]:
    """JSON schema of a verdict: a reason in words first, then the fields."""
    properties: dict[str, object] = {"reason": {"type": "string"}, **{field.name: field.schema for field in fields}}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def describe_format(fields: Sequence[VerdictField], form: VerdictFormat) -> str:
    """Instructions on the form of the reply."""
    if form == "lines":
        lines = "\n".join(f"{field.name}: {field.form}" for field in fields)
        return f"Think first if you like. End your reply with exactly these lines, and nothing after them:\n{lines}"
    keys = ", ".join(f'"{field.name}": {field.form}' for field in fields)
    return f'Reply with one JSON object and nothing else: {{"reason": one sentence, {keys}}}'


def read_verdict(text: str, fields: Sequence[VerdictField], form: VerdictFormat) -> dict[str, VerdictValue]:
    """The fields of a reply; a thought in `<think>` tags before it is skipped. Raises VerdictError.

    JSON must be the whole reply, or the only code block of it: an object quoted from the answer is no verdict. With
    `lines` the last lines must be the fields, in order.
    """
    rest = _THOUGHT.sub("", text).strip()
    if not rest:
        raise VerdictError("the reply is empty")
    values = _json_values(rest) if form == "json" else _line_values(rest, fields)
    missing = [field.name for field in fields if field.name not in values]
    if missing:
        raise VerdictError(f"the reply lacks {', '.join(missing)}: {_shown(rest)}")
    extra = sorted(values.keys() - {field.name for field in fields} - {"reason"})
    if extra:
        raise VerdictError(f"the reply has unknown keys {', '.join(map(repr, extra))}: {_shown(rest)}")
    return {field.name: field.read(values[field.name]) for field in fields}


def _json_values(text: str) -> Mapping[str, object]:
    block = _CODE_BLOCK.match(text)
    try:
        value = strict_json(block.group(1) if block else text)
    except ValueError as error:
        raise VerdictError(f"the reply is not JSON ({error}): {_shown(text)}") from None
    if not isinstance(value, dict):
        raise VerdictError(f"the reply is not a JSON object: {_shown(text)}")
    return cast("dict[str, object]", value)


def _line_values(text: str, fields: Sequence[VerdictField]) -> Mapping[str, object]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    values: dict[str, object] = {}
    for field, line in zip(fields, lines[-len(fields) :], strict=False):
        name, mark, value = line.partition(":")
        if not mark or name.strip().casefold() != field.name.casefold():
            raise VerdictError(f"the last lines are not the verdict; {field.name}: is missing in {_shown(line)}")
        values[field.name] = value.strip()
    return values


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,3})?", text) else None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
