"""The tables of docs/howto/configure.md, made from the config classes themselves.

`python tests/docs/config_tables.py` writes them into the page; a test fails while the page says something else.
"""

import json
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hone.core.config import Config
from hone.recipes.registry import load_recipe, recipe_names
from hone.train.config import RunConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "configure.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->"
HEAD = "| key | value | default | meaning |\n|---|---|---|---|"
WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "unset"}


def tables() -> str:
    """Every recipe's own keys, then each table that a key of theirs holds, once."""
    entries = {name: load_recipe(name) for name in recipe_names()}
    parts: list[str] = []
    for name, entry in entries.items():
        parts += [f"### {name}", "", f"{entry.summary} ({entry.source})", "", own_keys(entry.config), ""]
    inside = {config for entry in entries.values() for config in within(entry.config)}
    inside |= {base for entry in entries.values() if (base := family_of(entry.config)) is not None}
    shared = {config.__name__: config for config in inside}
    assert len(shared) == len(inside), "a name twice"
    parts += ["### Tables inside these tables", ""]
    for name in sorted(shared):
        parts += [f"#### {name}", "", " ".join((shared[name].__doc__ or "").split()), "", table_of(shared[name]), ""]
    return "\n".join(parts)


def family_of(config: type[RunConfig]) -> type[RunConfig] | None:
    """The config that a recipe shares most of its keys with; None where it stands alone."""
    base = config.__bases__[0]
    return base if base is not RunConfig else None


def own_keys(config: type[RunConfig]) -> str:
    """The whole table of a recipe that stands alone; of others what they add to their family's."""
    family = family_of(config)
    if family is None:
        return table_of(config)
    name = family.__name__
    added = [key for key in config.model_fields if key not in family.model_fields]
    said = f"The keys of [{name}](#{name.lower()})"
    return f"{said}, and:\n\n{table_of(config, only=added)}" if added else f"{said}."


def written(page: str) -> str:
    """The page with its tables as they are now."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{PAGE} needs {BEGIN.strip()} ... {END}"
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def within(config: type[Config]) -> Iterator[type[Config]]:
    """Every config class below this one."""
    for field in config.model_fields.values():
        for inner in configs_in(field.annotation):
            yield inner
            yield from within(inner)


def configs_in(annotation: Any) -> list[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [found for part in get_args(annotation) for found in configs_in(part)]


def table_of(config: type[Config], only: Sequence[str] | None = None) -> str:
    rows = [
        f"| `{name}` | {kind(field.annotation)}{bounds(field)} | {default(field)} | {meaning(field)} |"
        for name, field in config.model_fields.items()
        if only is None or name in only
    ]
    return "\n".join([HEAD, *rows])


def kind(annotation: Any) -> str:
    """What may be written there, in words."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return f"table [{annotation.__name__}](#{annotation.__name__.lower()})"
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(kind(part) for part in inner)
    if origin is list:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return "table"
    return WORDS[annotation]


def bounds(field: FieldInfo) -> str:
    said: list[str] = []
    for mark in field.metadata:
        match mark:
            case annotated_types.Ge(ge=limit):
                said.append(f">= {limit}")
            case annotated_types.Gt(gt=limit):
                said.append(f"> {limit}")
            case annotated_types.Le(le=limit):
                said.append(f"<= {limit}")
            case annotated_types.Lt(lt=limit):
                said.append(f"< {limit}")
            case annotated_types.MinLen(min_length=limit):
                said.append(f"at least {limit} long")
            case annotated_types.MaxLen(max_length=limit):
                said.append(f"at most {limit} long")
    return f", {', '.join(said)}" if said else ""


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        own = {name: value.model_dump(mode="json")[name] for name in value.model_fields_set}
        return (
            ", ".join(f"`{key} = {toml(own[key])}`" for key in type(value).model_fields if key in own)
            or "see the table"
        )
    return "unset" if value is None else f"`{toml(value)}`"


def toml(value: object) -> str:
    text = "unset" if value is None else "{}" if value == {} else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:30]}..."


def meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
