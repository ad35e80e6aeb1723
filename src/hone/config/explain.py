"""Validation errors as messages for the author of a config.

Belongs here: one message per error, with the key, its line, the value, the allowed values and the nearest valid one.
Does not: the rules; the config classes contain them.
"""

import math
import re
import sys
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hone.config.overrides import COMMAND_LINE, ConfigDocument, dotted
from hone.config.schema import KeyLocation, SchemaNode, all_keys, bounds_text, locate_key, tag_values
from hone.config.toml import KeyPath
from hone.core.errors import nearest_name

# pydantic's type of an error -> expected value
_KINDS: Mapping[str, str] = {
    "float_type": "a number",
    "float_parsing": "a number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "none_required": "left out",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of")
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


def explain(
    error: ValidationError, model: type[BaseModel], document: ConfigDocument, prefix: KeyPath = ()
) -> list[str]:
    """List one message per validation error, in the order of the file, without duplicates.

    `prefix` is the path of `model` in the document: `("stage", 0)` for the config of the first stage.
    """
    faults = [_ValidationFault(details, model, document, prefix) for details in error.errors(include_url=False)]
    faults.sort(key=lambda fault: fault.line)
    return list(dict.fromkeys(_merge_unions([fault.message() for fault in faults])))


class _ValidationFault:
    """One validation error with its document."""

    def __init__(
        self, details: ErrorDetails, model: type[BaseModel], document: ConfigDocument, prefix: KeyPath
    ) -> None:
        self.kind = details["type"]
        self.value: object = details["input"]
        self.text = details["msg"]
        self.context = details.get("ctx", {})
        self.model = model
        self.document = document
        self.prefix = prefix
        self.place: KeyLocation = locate_key(model, details["loc"], unknown_key=self.kind == "extra_forbidden")

    @property
    def key(self) -> str:
        return dotted((*self.prefix, *self.place.path))

    @property
    def line(self) -> int:
        """Sort key: the line in the file; the command line comes last."""
        _, _, line = self.document.source_of((*self.prefix, *self.place.path)).rpartition(":")
        return int(line) if line.isdecimal() else sys.maxsize

    @property
    def where(self) -> str:
        """Key and location: `learner.lr in run.toml:7`."""
        path = (*self.prefix, *self.place.path)
        return self._at(path, self.key or "the config")

    def _at(self, path: KeyPath, name: str) -> str:
        source = self.document.source_of(path)
        return f"{name} on the {source}" if source == COMMAND_LINE else f"{name} in {source}"

    def message(self) -> str:
        match self.kind:
            case "extra_forbidden":
                return f"unknown key {self.where}{self._suggestion()}"
            case "missing":
                return self._missing()
            case "union_tag_not_found":
                return f"{self.where} needs {self.place.node.tag} = {self._alternatives()}"
            case "union_tag_invalid":
                return self._unknown_tag()
            case "literal_error" | "enum":
                return self._literal()
            case "finite_number":
                return f"{self.where} must be a finite number{self._allowed()}, got {format_value(self.value)}"
            case kind if kind in _BOUNDS or kind in ("string_pattern_mismatch", "too_short"):
                return f"{self.where} must {self._rule()}, got {format_value(self.value)}"
            case kind if kind in _KINDS:
                return f"{self.where} must be {_KINDS[kind]}{self._allowed()}, got {self._described()}"
            case "value_error" | "assertion_error":
                return f"{self.where}: {self._plain()}"
            case _:
                return f"{self.where}: {self._plain()}, got {format_value(self.value)}"

    def _rule(self) -> str:
        """The rule of a field in words: no reader of a config should have to read a regular expression."""
        if self.kind == "too_short":
            least = self.context.get("min_length", 1)
            return f"have at least {least} {'entry' if least == 1 else 'entries'}"
        if self.kind in _BOUNDS:
            own = " and ".join(f"{_SIGNS[name]} {bound}" for name, bound in self.context.items() if name in _SIGNS)
            return f"be {bounds_text(self.place.field_info) or own or self._plain()}"
        extra = self.place.field_info.json_schema_extra if self.place.field_info is not None else None
        rule = extra.get("rule") if isinstance(extra, dict) else None
        return f"be {rule}" if rule else f"match {self.context.get('pattern')}"

    def _plain(self) -> str:
        return re.sub(r"^(Value error, |Assertion failed, |Input should be )", "", self.text)

    def _allowed(self) -> str:
        bounds = bounds_text(self.place.field_info)
        return f" {bounds}" if bounds else ""

    def _missing(self) -> str:
        info = self.place.field_info
        reason = f" ({info.description.strip().rstrip('.')})" if info is not None and info.description else ""
        return f"{self.where} is missing{reason}"

    def _described(self) -> str:
        hint = ""
        if isinstance(self.value, str) and self.kind.startswith(("float", "int", "bool")) and _is_number(self.value):
            hint = "; remove the quotes"
        return f"{_type_name(self.value)}{format_value(self.value)}{hint}"

    def _alternatives(self) -> str:
        shape = self.place.node
        names = [value for model in shape.models for value in tag_values(model, shape.tag or "")]
        return " or ".join(format_value(name) for name in names)

    def _unknown_tag(self) -> str:
        shape = self.place.node
        tag_path = (*self.prefix, *self.place.path, shape.tag or "")
        given = str(self.context.get("tag", ""))
        known = [str(value) for model in shape.models for value in tag_values(model, shape.tag or "")]
        return (
            f"{self._at(tag_path, dotted(tag_path))} must be {self._alternatives()}, "
            f"got {format_value(given)}{_near(given, known, quoted=True)}"
        )

    def _literal(self) -> str:
        expected = str(self.context.get("expected", ""))
        known = re.findall(r"'([^']*)'", expected)
        near = _near(self.value, known, quoted=True) if isinstance(self.value, str) else ""
        return f"{self.where} must be {expected.replace(chr(39), chr(34))}, got {format_value(self.value)}{near}"

    def _suggestion(self) -> str:
        """Suggest the nearest key of the same table, or another table with such a key, or list the table's keys."""
        name = str(self.place.path[-1])
        known = self.place.table.known_keys()
        table = (*self.prefix, *self.place.path[:-1])
        close = nearest_name(name, known)
        if close is not None:
            return f"; did you mean {dotted((*table, close))}?"
        if self.place.union is not None and name in self.place.union.known_keys():
            return self._other_member(name, self.place.union)
        elsewhere = [path for path in all_keys(self.model) if path[-1] == name]
        if elsewhere:
            return f"; did you mean {dotted((*self.prefix, *elsewhere[0]))}?"
        return f"; known here: {', '.join(known)}" if known else ""

    def _other_member(self, name: str, union: SchemaNode) -> str:
        tag = union.tag or ""
        owners = [value for model in union.models if name in model.model_fields for value in tag_values(model, tag)]
        own = [value for model in self.place.table.models for value in tag_values(model, tag)]
        has = " or ".join(f"{tag} = {format_value(owner)}" for owner in owners)
        return f": {tag} = {format_value(own[0])} has no {name}, {has} has"


def format_value(value: object, limit: int = 60) -> str:
    """Format a value as TOML, truncated for a message."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = '"' + value.replace("\n", "\\n") + '"'
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key} = {format_value(child, 20)}" for key, child in list(value.items())[:10]) + "}"
    elif isinstance(value, list):
        text = "[" + ", ".join(format_value(child, 20) for child in value[:10]) + "]"
    else:
        text = "unset" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 4] + " ..." + text[-1:]


def _type_name(value: object) -> str:
    match value:
        case bool():
            return ""
        case str():
            return "the string "
        case list():
            return "the list "
        case dict():
            return "the table "
        case _:
            return ""


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return text in ("true", "false")


def _near(name: str, known: list[str], *, quoted: bool) -> str:
    close = nearest_name(name, known)
    return "" if close is None else f"; did you mean {format_value(close) if quoted else close}?"


def _merge_unions(messages: list[str]) -> list[str]:
    """Merge `x must be a number, got "a"` and `x must be a list, got "a"`, the errors of a union, into one message."""
    merged: dict[tuple[str, str], list[str]] = {}
    for message in messages:
        match = re.fullmatch(r"(.*?) must be (.*?)(, got .*)", message, re.DOTALL)
        head, middle, tail = match.groups() if match else (message, "", "")
        merged.setdefault((head, tail), []).append(middle)
    return [
        f"{head} must be {' or '.join(dict.fromkeys(kinds))}{tail}" if tail else head
        for (head, tail), kinds in merged.items()
    ]
