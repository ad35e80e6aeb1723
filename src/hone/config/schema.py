"""What a config class could hold at a place: the keys, the members of unions, the range of a number.

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
class Shape:
    """The config classes that may stand at a place; by which key they are told apart; what its elements may be."""

    models: list[type[BaseModel]] = field(default_factory=list[type[BaseModel]])
    tag: str | None = None
    element: object = None
    keyed: bool = False
    """Elements are found by a key of the user's own choosing, not by a number."""

    def known(self) -> list[str]:
        """The keys of all its models, sorted."""
        return sorted({name for model in self.models for name in model.model_fields})

    def field(self, name: str | int) -> FieldInfo | None:
        return next((model.model_fields[str(name)] for model in self.models if name in model.model_fields), None)

    def tagged(self, value: str | int) -> "Shape":
        """The member of a tagged union that carries this tag."""
        return Shape(models=[model for model in self.models if value in tags(model, self.tag or "")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a fault is: the key as the user writes it, the table around it, and the field if there is one."""

    path: KeyPath
    table: Shape
    here: Shape
    info: FieldInfo | None
    union: Shape | None = None
    """When the table is one member of a tagged union: all its members."""


def shape_of(annotation: object, tag: str | None = None) -> Shape:
    """Read an annotation: a config, a union of them, a list or dict of them, or a plain value."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        notes = [note for note in arguments[1:] if isinstance(note, FieldInfo) and note.discriminator]
        return shape_of(arguments[0], str(notes[0].discriminator) if notes else tag)
    if origin in (Union, types.UnionType):
        members = [shape_of(argument, tag) for argument in arguments]
        return Shape(
            models=[model for member in members for model in member.models],
            tag=tag or next((member.tag for member in members if member.tag), None),
            element=next((member.element for member in members if member.element is not None), None),
            keyed=any(member.keyed for member in members),
        )
    if origin in (list, tuple, Sequence):
        return Shape(element=arguments[0])
    if origin in (dict, Mapping):
        return Shape(element=arguments[1], keyed=True)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Shape(models=[annotation], tag=tag)
    return Shape()


def find(model: type[BaseModel], location: Sequence[int | str], *, unknown_key: bool = False) -> Place:
    """Follow pydantic's `loc` through `model`, leaving out the union members that it names on the way."""
    path: KeyPath = ()
    table = here = Shape(models=[model])
    info: FieldInfo | None = None
    union: Shape | None = None
    around: Shape | None = None
    for depth, part in enumerate(location):
        found = here.field(part)
        if here.tag is not None and here.models:
            around, here = here, here.tagged(part)
            continue
        if found is not None:
            inside = shape_of_field(found)
        elif here.element is not None and isinstance(part, str) == here.keyed:
            inside = shape_of(here.element)
        elif unknown_key and depth == len(location) - 1:
            inside = Shape()
        else:
            continue  # pydantic's name for a member of a union, no key
        path, table, info, union = (*path, part), here, found, around
        here, around = inside, None
    return Place(path=path, table=table, here=here, info=info, union=union)


def shape_of_field(info: FieldInfo) -> Shape:
    """What a field may hold, its union's tag included, which pydantic keeps apart from the annotation."""
    return shape_of(info.annotation, str(info.discriminator) if info.discriminator else None)


def tags(model: type[BaseModel], tag: str) -> tuple[Any, ...]:
    """The values of the tag's Literal."""
    info = model.model_fields.get(tag)
    return get_args(info.annotation) if info is not None and get_origin(info.annotation) is Literal else ()


def range_of(info: FieldInfo | None) -> str:
    """`> 0 and <= 1`, or nothing where any number will do."""
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
    # `Annotated[float, Gt(0)] | None` keeps its bounds inside.
    for argument in (info.annotation, *get_args(info.annotation)):
        if get_origin(argument) is Annotated:
            for note in get_args(argument)[1:]:
                yield from note.metadata if isinstance(note, FieldInfo) else (note,)


def every_key(model: type[BaseModel], prefix: KeyPath = (), depth: int = 6) -> Iterator[KeyPath]:
    """All keys of a config and of the configs in it."""
    for name, info in model.model_fields.items():
        yield (*prefix, name)
        if depth > 0:
            for child in shape_of_field(info).models:
                yield from every_key(child, (*prefix, name), depth - 1)
