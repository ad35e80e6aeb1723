"""Schemas of tools from type hints and docstrings, and checks of arguments against them."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jsonschema
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from referencing import Registry

from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import did_you_mean

# ------------------------------------------------------------------------------------------------------------ call text

_SHOWN = 60


def quoted(text: str) -> str:
    """The beginning of a text, in quotes."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def schema_of(tool: Mapping[str, Any]) -> ToolSchema:
    """The schema of a tool in OpenAI's form, `{"type": "function", "function": {"name": ..., ...}}`."""
    function = cast("Mapping[str, Any]", tool["function"])
    return ToolSchema(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {"type": "object", "properties": {}},
    )


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}")
_RESERVED = {"reset": "`reset` begins an episode of an environment, and a policy never calls it"}
_SECTION = re.compile(r"^(?:Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+)\s*(?:\([^)\n]*\))?:\s*(.*?)(?=^\w+\s*(?:\([^)\n]*\))?:|\Z)", re.MULTILINE | re.DOTALL)
_NO_REFERENCES: Registry[Any] = Registry()
"""Schemas that a schema names by address: none, and nothing is fetched."""


def function_schema(function: Callable[..., object], name: str) -> tuple[ToolSchema | None, list[str]]:
    """Schema of a function, and its faults: parameters without a type hint, or with one that JSON cannot express.

    The description is the docstring up to its first section; descriptions of parameters are those of a Google-style
    section `Args:`, or of `Annotated[..., Field(description=...)]`.
    """
    faults = _name_faults(name)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # written in C, without one
        return None, [*faults, f"tool {name} has no signature; wrap it in a Python function"]
    for one in parameters:
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            faults.append(f"tool {name} takes {one}; give each parameter a name that a call can use")
        elif one.annotation is inspect.Parameter.empty:
            faults.append(f"tool {name}: parameter {one.name!r} has no type hint; write {one.name}: str, say")
    if faults:
        return None, faults
    try:
        schema = TypeAdapter[Any](cast("Any", function)).json_schema(mode="validation")
    except (PydanticUserError, NameError) as error:
        first = str(error).partition("\n")[0]
        return None, [f"tool {name}: a type hint cannot be written as JSON ({first})"]
    description, arguments = docstring_parts(inspect.getdoc(function) or "")
    return ToolSchema(name=name, description=description, parameters=_plain_schema(schema, arguments)), []


def _name_faults(name: str) -> list[str]:
    if name in _RESERVED:
        return [f"a tool is called {name!r}: {_RESERVED[name]}; give it another name"]
    if not _NAME.fullmatch(name):
        return [f"tool name {quoted(name)}: a name is 1 to 64 letters, digits or any of _ . / -"]
    return []


def docstring_parts(text: str) -> tuple[str, dict[str, str]]:
    """Description of a docstring, and those of its parameters by name (section `Args:`)."""
    section = _SECTION.search(text)
    if section is None:
        return " ".join(text.split()), {}
    description = " ".join(text[: section.start()].split())
    if not section.group().startswith(("Args", "Arguments", "Parameters")):
        return description, {}
    rest = text[section.end() :]
    following = _SECTION.search(rest)
    body = inspect.cleandoc("\n" + (rest if following is None else rest[: following.start()]))
    return description, {name: " ".join(says.split()) for name, says in _ARGUMENT.findall(body)}


def unknown_tool(name: str, tools: Sequence[ToolSchema]) -> str:
    """The fault of a call of a tool that does not exist."""
    return f"unknown tool {quoted(name)}{did_you_mean(name, [one.name for one in tools])}"


def argument_faults(call: ToolCall, tool: ToolSchema) -> list[str]:
    """Faults of a call's arguments: missing, unknown, or of another type than declared."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    faults: list[str] = []
    if not tool.parameters.get("additionalProperties", False):
        unknown = [key for key in call.arguments if key not in properties]
        faults += [f"{tool.name} has no parameter {key!r}{did_you_mean(key, list(properties))}" for key in unknown]
    schema = {key: value for key, value in tool.parameters.items() if key != "additionalProperties"}
    validator = jsonschema.Draft202012Validator(schema, registry=_NO_REFERENCES)
    errors = sorted(validator.iter_errors(dict(call.arguments)), key=lambda one: [str(part) for part in one.path])
    return faults + [_sentence(tool.name, one) for one in errors]


def check_schema(tool: ToolSchema) -> list[str]:
    """Faults of a schema that a server gave."""
    try:
        jsonschema.Draft202012Validator.check_schema(dict(tool.parameters))
    except jsonschema.SchemaError as error:
        return [f"tool {tool.name}: its schema is none: {error.message}"]
    return _name_faults(tool.name)


def _sentence(name: str, error: jsonschema.ValidationError) -> str:
    where = ".".join(str(part) for part in error.path)
    wanted = cast("Any", error.validator_value)
    if error.validator == "required":
        return f"{name} needs {', '.join(key for key in wanted if key not in cast('Any', error.instance))}"
    if error.validator == "type":
        kinds = wanted if isinstance(wanted, list) else [wanted]
        return f"{name}: {where} is {quoted(repr(error.instance))}, not of type {' or '.join(kinds)}"
    return f"{name}: {where} {error.message if len(error.message) <= 200 else error.message[:200] + '...'}"


def _plain_schema(schema: Mapping[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    """A schema without titles, with the descriptions of a docstring, in the usual order of chat templates."""
    plain = _without_titles(schema)
    plain.pop("additionalProperties", None)
    for name, property_schema in plain.get("properties", {}).items():
        if name in descriptions:
            property_schema.setdefault("description", descriptions[name])
    return {
        "type": "object",
        "properties": plain.pop("properties", {}),
        **{k: v for k, v in plain.items() if k != "type"},
    }


def _without_titles(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without `title`; a property of that name stays."""
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            copy[key] = {name: _without_titles(one) for name, one in value.items()}
        elif isinstance(value, dict) and key != "default":
            copy[key] = _without_titles(value)
        elif isinstance(value, list):
            copy[key] = [_without_titles(one) if isinstance(one, dict) else one for one in value]
        elif key != "title":
            copy[key] = value
    return copy
