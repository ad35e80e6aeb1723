"""Files with `[[stage]]` tables: several runs, shared settings, and references from one stage to an earlier one.

Belongs here: completing the stages of such a document. `commands/train.py` runs them.
"""

import re
from collections.abc import Container, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import cast

from hone.config.resolve import leaves
from hone.config.toml import ConfigDocument, KeyPath
from hone.core.config import STAGE_PREFIX
from hone.core.errors import did_you_mean
from hone.recipes.registry import is_recipe, load_recipe

STAGE = "stage"
SHARED = "shared"
_REFERENCE = re.compile(rf"{STAGE_PREFIX}[A-Za-z0-9_-][A-Za-z0-9._-]*")
TOP_LEVEL_KEYS = ("name", SHARED, STAGE)


def default_run_name(document: ConfigDocument) -> str:
    """Default name of a run: the name of its config file."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(document.name).stem).strip("-") or "run"


def pipeline_name(document: ConfigDocument) -> str:
    """Name of the run or pipeline that a document describes."""
    return str(document.values.get("name", default_run_name(document)))


def apply_shared(document: ConfigDocument) -> list[str]:
    """Copy each `[shared]` key to the stages whose recipe has it and that do not set it; returns the errors."""
    faults: list[str] = []
    for key in document.values.keys() - {*TOP_LEVEL_KEYS}:
        places = [f"{STAGE}.{index}.{key}" for index, known in _stages(document) if key in known]
        hint = did_you_mean(key, TOP_LEVEL_KEYS)
        if places:
            hint = f": it is a stage's: {' or '.join(places)}, or {SHARED}.{key} for all"
        faults.append(f"unknown key {key} in {document.source_of((key,))}{hint}")
    faults.sort()
    shared = document.values.get(SHARED, {})
    if not isinstance(shared, dict):
        return [*faults, f"{SHARED} in {document.source_of((SHARED,))} must be a table"]
    unused = set(cast("dict[str, object]", shared))
    for index, known in _stages(document):
        names = sorted(known & set(cast("dict[str, object]", shared)))
        unused -= set(names)
        faults.extend(fault for name in names for fault in _apply_shared_key(document, index, name, shared[name]))
    return [
        *faults,
        *(
            f"unknown key {SHARED}.{name} in {document.source_of((SHARED, name))}: no stage has it"
            for name in sorted(unused)
        ),
    ]


def resolve_stage_references(document: ConfigDocument, folder: Path, names: Sequence[str]) -> set[int]:
    """Replace each `stage:NAME` by that stage's run folder. Returns the indices of the stages that read more of an
    earlier one than its model, and so must be opened when their turn comes."""
    waiting: set[int] = set()
    for index in range(len(names)):
        for path, name in _references(_table(document, index), (STAGE, index)):
            document.set_value(path, str(folder / name), source=document.source_of(path))
            if path[2:] != ("model", "path"):
                waiting.add(index)
    return waiting


def stage_reference_faults(document: ConfigDocument, names: Sequence[str], collecting: Container[str]) -> list[str]:
    """Messages about references to stages that do not come before, and about answers of a stage that collects none.
    `names` are those of the stages (none: a file without stages), `collecting` of those that leave answers behind."""
    if not names:
        return [
            f'{_key(path)} = "{STAGE_PREFIX}{name}" in {document.source_of(path)} names a stage, and the file has no '
            "[[stage]] tables; give the folder of a run"
            for path, name in _references(document.values, ())
        ]
    faults: list[str] = []
    for index in range(len(names)):
        for path, name in _references(_table(document, index), (STAGE, index)):
            place = f'{_key(path[2:])} = "{STAGE_PREFIX}{name}" in {document.source_of(path)}'
            if name not in names[:index]:
                near = did_you_mean(name, names[:index])
                faults.append(f"{place}: no stage before {names[index]} has this name{near}")
            elif path[-2:] == ("task", "source") and name not in collecting:
                faults.append(f'{place}: stage {name} leaves no answers behind; a stage with recipe = "collect" does')
    return faults


def _references(table: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield the place of each value `stage:NAME` below `path`, and the name."""
    for place, value in list(leaves(table, path)):
        if isinstance(value, str) and _REFERENCE.fullmatch(value):
            yield place, value[len(STAGE_PREFIX) :]


def _key(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _stages(document: ConfigDocument) -> Iterator[tuple[int, set[str]]]:
    """Yield the index of each stage with a known recipe, and the config keys of that recipe."""
    for index in range(len(cast("list[object]", document.values[STAGE]))):
        recipe = _table(document, index).get("recipe")
        if isinstance(recipe, str) and is_recipe(recipe):
            yield index, set(load_recipe(recipe).config.model_fields)


def _apply_shared_key(document: ConfigDocument, index: int, name: str, value: object) -> list[str]:
    """Apply one shared key to a stage where the stage does not set it; returns the errors."""
    stage = _table(document, index)
    if name in stage and not isinstance(stage[name], dict):
        return []
    faults: list[str] = []
    for path, leaf in list(_values(value, (name,))):
        if _sets_key(stage, path):
            continue
        faults.extend(
            document.set_value((STAGE, index, *path), deepcopy(leaf), source=document.source_of((SHARED, *path)))
        )
        for inner, _ in leaves(leaf) if isinstance(leaf, list) else ():
            document.sources[STAGE, index, *path, *inner] = document.source_of((SHARED, *path, *inner))
    return faults


def _values(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    """Yield each value below `path`; a list is one value, because lists are not merged."""
    if isinstance(value, dict) and value:
        for key, child in cast("dict[str, object]", value).items():
            yield from _values(child, (*path, key))
    else:
        yield path, value


def _table(document: ConfigDocument, index: int) -> dict[str, object]:
    table = cast("list[object]", document.values[STAGE])[index]
    return cast("dict[str, object]", table) if isinstance(table, dict) else {}


def _sets_key(table: object, path: KeyPath) -> bool:
    """True if a stage sets this key; a list is set as a whole."""
    place = table
    for part in path:
        if isinstance(place, list):
            return True
        if not isinstance(place, dict) or part not in place:
            return False
        place = cast("dict[object, object]", place)[part]
    return True
