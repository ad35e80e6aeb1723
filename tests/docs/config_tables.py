"""The pages of docs/reference/configuration/, made from the config classes: `python tests/docs/config_tables.py`.

A page for each family of recipes, and one for the tables that several families share.
"""

import inspect
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import annotated_types
from pages import anchor, made_by, slug, table, write
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hone.core.config import Config
from hone.recipes.registry import recipes_by_family
from hone.run.job import RecipeSpec, RunConfig

FOLDER = "reference/configuration"
SHARED = "shared"
"""The page of tables that recipes of several families take."""
WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "unset"}
INDEX = f"""# Configuration keys

{made_by("config_tables.py")}

One page per family of recipes lists every key with its type, its default and its meaning. [Shared tables](shared.md)
are the tables that recipes of several families take. [Configuration](../../howto/configure.md) explains how a file is
written and how keys are set on the command line.

A table in the column *value* links to its own keys. The defaults of a recipe's table are those of the column *default*,
and beyond them those of the linked table. `name` is required, but a file without one is given its own name. "Unset" is
the absence of a value; TOML has no way to write it.
"""


def pages() -> dict[str, str]:
    members = recipes_by_family()
    homes = homes_of(members)
    written = {f"{FOLDER}/index.md": index(members)}
    for family, entries in members.items():
        written[f"{FOLDER}/{slug(family)}.md"] = Page(slug(family), homes).family(family, entries)
    written[f"{FOLDER}/{SHARED}.md"] = Page(SHARED, homes).shared()
    return written


def homes_of(members: Mapping[str, Mapping[str, RecipeSpec]]) -> dict[type[Config], str]:
    """Each inner config class -> the page that holds its table."""
    found: dict[type[Config], set[str]] = {}
    for family, entries in members.items():
        for entry in entries.values():
            base = base_of(entry.config)
            for config in {*within(entry.config), *([base, *within(base)] if base is not None else [])}:
                found.setdefault(config, set()).add(slug(family))
    assert len({config.__name__ for config in found}) == len(found), "a name twice"
    return {config: next(iter(places)) if len(places) == 1 else SHARED for config, places in found.items()}


def index(members: Mapping[str, Mapping[str, RecipeSpec]]) -> str:
    rows = [
        (
            f"[{family}]({slug(family)}.md)",
            ", ".join(f"[`{name}`]({slug(family)}.md#{anchor(name)})" for name in entries),
        )
        for family, entries in members.items()
    ]
    return f"{INDEX}\n{table(('family', 'recipes'), rows)}\n"


class Page:
    """One page of tables; links to tables on other pages name their file."""

    def __init__(self, name: str, homes: Mapping[type[Config], str]) -> None:
        self.name, self.homes = name, homes

    def family(self, family: str, entries: Mapping[str, RecipeSpec]) -> str:
        """Every recipe's own keys, then the tables that only this family takes."""
        title = f"# Configuration: {family}"
        parts = [title, made_by("config_tables.py"), "How to read the tables: [Configuration keys](index.md)."]
        for name, entry in entries.items():
            parts += [f"## {name}", f"{entry.summary} ({entry.paper})", self.own_keys(entry.config)]
        return "\n\n".join([*parts, "## Tables inside these tables", *self.tables()]) + "\n"

    def shared(self) -> str:
        intro = "Tables that recipes of several families take. How to read them: [Configuration keys](index.md)."
        return (
            "\n\n".join(["# Configuration: shared tables", made_by("config_tables.py"), intro, *self.tables()]) + "\n"
        )

    def tables(self) -> Iterator[str]:
        here = sorted(
            (config for config, home in self.homes.items() if home == self.name), key=lambda one: one.__name__
        )
        for config in here:
            yield f"### {config.__name__}"
            yield " ".join((config.__doc__ or "").split())
            yield self.table_of(config)

    def own_keys(self, config: type[RunConfig]) -> str:
        """The whole table of a recipe that stands alone; of others the keys that they add to their base's."""
        base = base_of(config)
        if base is None:
            return self.table_of(config)
        added = [key for key in config.model_fields if key not in base.model_fields]
        text = f"The keys of {self.link(base)}"
        return f"{text}, and:\n\n{self.table_of(config, only=added)}" if added else f"{text}."

    def table_of(self, config: type[Config], only: Sequence[str] | None = None) -> str:
        rows = [
            (f"`{name}`", f"{self.kind(field.annotation)}{bounds(field)}", default(field), field.description or "")
            for name, field in config.model_fields.items()
            if only is None or name in only
        ]
        return table(("key", "value", "default", "meaning"), rows)

    def link(self, config: type[Config]) -> str:
        home = self.homes[config]
        page = "" if home == self.name else f"{home}.md"
        return f"[{config.__name__}]({page}#{anchor(config.__name__)})"

    def kind(self, annotation: Any) -> str:
        """The values that the key takes, in words."""
        if isinstance(annotation, type) and issubclass(annotation, Config):
            return f"table {self.link(annotation)}"
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.kind(inner[0])
        if origin is Literal:
            return ", ".join(f"`{json.dumps(value)}`" for value in inner)
        if origin in (Union, types.UnionType):
            return " or ".join(self.kind(part) for part in inner)
        if origin is list:
            return f"list of {self.kind(inner[0])}"
        if origin is dict:
            return "table"
        return WORDS[annotation]


def base_of(config: type[RunConfig]) -> type[RunConfig] | None:
    """The config that a recipe shares most of its keys with; None where it stands alone.

    A base without keys of its own, which only asks more of them, is passed over.
    """
    base = config.__bases__[0]
    while not inspect.get_annotations(base):
        base = base.__bases__[0]
    return base if base is not RunConfig else None


def within(config: type[Config]) -> Iterator[type[Config]]:
    """Every config class below this one."""
    for field in config.model_fields.values():
        for inner in configs_in(field.annotation):
            yield inner
            yield from within(inner)


def configs_in(annotation: Any) -> list[type[Config]]:
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return [annotation]
    return [config for part in get_args(annotation) for config in configs_in(part)]


def bounds(field: FieldInfo) -> str:
    limits: list[str] = []
    for mark in field.metadata:
        match mark:
            case annotated_types.Ge(ge=limit):
                limits.append(f">= {limit}")
            case annotated_types.Gt(gt=limit):
                limits.append(f"> {limit}")
            case annotated_types.Le(le=limit):
                limits.append(f"<= {limit}")
            case annotated_types.Lt(lt=limit):
                limits.append(f"< {limit}")
            case annotated_types.MinLen(min_length=limit):
                limits.append(f"at least {limit} long")
            case annotated_types.MaxLen(max_length=limit):
                limits.append(f"at most {limit} long")
    return f", {', '.join(limits)}" if limits else ""


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
    if isinstance(value, list):
        entries = cast("list[object]", value)
        value = [
            one.model_dump(mode="json", exclude_unset=True) if isinstance(one, BaseModel) else one for one in entries
        ]
    return "unset" if value is None else f"`{toml(value)}`"


def toml(value: object) -> str:
    text = "unset" if value is None else "{}" if value == {} else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:30]}..."


if __name__ == "__main__":
    write(pages())
