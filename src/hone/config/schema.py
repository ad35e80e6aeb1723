"""Schema of config classes: the keys, the members of unions, the range of a number.


Belongs here: following pydantic's location of a fault through the annotations of a config, which is needed because
pydantic writes the tag or the type of a union's member between the keys.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hone.config.toml import KeyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaNode:
    """Config classes allowed at a path, the key that distinguishes them, and the schema of elements."""

    models: list[type[BaseModel]] = field(default_factory=list[type[BaseModel]])
    tag: str | None = None
    element: object = None
    user_keyed: bool = False
    """True if elements have keys chosen by the user, not indices."""

    def known_keys(self) -> list[str]:
        """Keys of all models, sorted."""
        return sorted({name for model in self.models for name in model.model_fields})

    def field(self, name: str | int) -> FieldInfo | None:
        return next((model.model_fields[str(name)] for model in self.models if name in model.model_fields), None)

    def tagged_member(self, value: str | int) -> "SchemaNode":
        """Member of a tagged union with this tag."""
        return SchemaNode(models=[model for model in self.models if value in tag_values(model, self.tag or "")])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLocation:
    """Location of an error: the key as the user writes it, its table, and the field if there is one."""

    path: KeyPath
    table: SchemaNode
    node: SchemaNode
    field_info: FieldInfo | None
    union: SchemaNode | None = None
    """All members, if the table is a member of a tagged union."""


def _schema_of(annotation: object, tag: str | None = None) -> SchemaNode:
    """Convert an annotation: a config, a union of them, a list or dict of them, or a plain value."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, FieldInfo) and note.discriminator]
        return _schema_of(arguments[0], str(notes[0].discriminator) if notes else tag)
    if origin in (Union, types.UnionType):
        members = [_schema_of(argument, tag) for argument in arguments]
        return SchemaNode(
            models=[model for member in members for model in member.models],
            tag=tag or next((member.tag for member in members if member.tag), None),
            element=next((member.element for member in members if member.element is not None), None),
            user_keyed=any(member.user_keyed for member in members),
        )
    if origin in (list, tuple, Sequence):
        return SchemaNode(element=arguments[0])
    if origin in (dict, Mapping):
        return SchemaNode(element=arguments[1], user_keyed=True)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return SchemaNode(models=[annotation], tag=tag)
    return SchemaNode()


def locate_key(model: type[BaseModel], location: Sequence[int | str], *, unknown_key: bool = False) -> KeyLocation:
    """Follow pydantic's `loc` through `model`, without the names of union members."""
    path: KeyPath = ()
    table = here = SchemaNode(models=[model])
    info: FieldInfo | None = None
    union: SchemaNode | None = None
    around: SchemaNode | None = None
    for depth, part in enumerate(location):
        found = here.field(part)
        if here.tag is not None and here.models:
            around, here = here, here.tagged_member(part)
            continue
        if found is not None:
            inside = _field_schema(found)
        elif here.element is not None and isinstance(part, str) == here.user_keyed:
            inside = _schema_of(here.element)
        elif unknown_key and depth == len(location) - 1:
            inside = SchemaNode()
        else:
            continue  # pydantic's name of a union member, not a key
        path, table, info, union = (*path, part), here, found, around
        here, around = inside, None
    return KeyLocation(path=path, table=table, node=here, field_info=info, union=union)


def _field_schema(info: FieldInfo) -> SchemaNode:
    """Schema of a field, including its union's tag, which pydantic stores apart from the annotation."""
    return _schema_of(info.annotation, str(info.discriminator) if info.discriminator else None)


def tag_values(model: type[BaseModel], tag: str) -> tuple[Any, ...]:
    """Values of the tag's Literal."""
    info = model.model_fields.get(tag)
    return get_args(info.annotation) if info is not None and get_origin(info.annotation) is Literal else ()


def bounds_text(info: FieldInfo | None) -> str:
    """Format bounds as `> 0 and <= 1`; empty without bounds."""
    bounds: list[str] = []
    for note in _notes(info):
        match note:
            case annotated_types.Gt(gt=bound):
                bounds.append(f"> {bound}")
            case annotated_types.Ge(ge=bound):
                bounds.append(f">= {bound}")
            case annotated_types.Lt(lt=bound):
                bounds.append(f"< {bound}")
            case annotated_types.Le(le=bound):
                bounds.append(f"<= {bound}")
            case annotated_types.MultipleOf(multiple_of=step):
                bounds.append(f"a multiple of {step}")
            case _:
                pass
    return " and ".join(bounds)


def _notes(info: FieldInfo | None) -> Iterator[object]:
    if info is None:
        return
    yield from info.metadata
    # `Annotated[float, Gt(0)] | None` keeps its bounds inside; those inside a list are its elements'.
    inside = get_args(info.annotation) if get_origin(info.annotation) in (Union, types.UnionType) else ()
    for argument in (info.annotation, *inside):
        if get_origin(argument) is Annotated:
            for note in get_args(argument)[1:]:
                yield from note.metadata if isinstance(note, FieldInfo) else (note,)


def all_keys(model: type[BaseModel], prefix: KeyPath = (), depth: int = 6) -> Iterator[KeyPath]:
    """Keys of a config and of its nested configs."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        if depth > 0:
            for child in _field_schema(info).models:
                yield from all_keys(child, (*prefix, name), depth - 1)
