"""Source files of user code: the files that references name and, from there, those that they import. Nothing is run.

Belongs here: the search by import statements, and a fingerprint of each file. Files of the standard library, of
installed packages and of hone are left out. A module that the code finds in another way (`sys.path` changed, a
computed name) is not found here.
"""

import ast
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import cast

_FILE = re.compile(r"(?P<file>.+\.py)(:\w+)?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_][\w.-]*")
_INSTALLED = ("site-packages", "dist-packages")
_WORLD = "dialogue:"
"""Beginning of a `task.source` that names a world."""
_IMPORTERS = ("import_module", "__import__")


def code_references(values: Iterable[object]) -> list[str]:
    """Texts among config values, lists and tables included, that name user code: `file.py`, `file.py:name` of an
    existing file, and `package.module:name`; those of worlds without `dialogue:`."""
    found: list[str] = []
    for value in values:
        if isinstance(value, str):
            reference = value.removeprefix(_WORLD)
            file = _FILE.fullmatch(reference)
            if Path(file["file"]).is_file() if file else _MODULE.fullmatch(reference):
                found.append(reference)
        elif isinstance(value, Mapping):
            found += code_references(cast("Mapping[object, object]", value).values())
        elif isinstance(value, list | tuple):
            found += code_references(cast("Sequence[object]", value))
    return found


def fingerprint_code(references: Iterable[str]) -> dict[str, str]:
    """Sha256 of each source file that `references` lead to, by its path relative to the working folder, sorted."""
    files = source_files(references)
    here = Path.cwd()
    names = {file: file.relative_to(here) if file.is_relative_to(here) else file for file in files}
    found = {name.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file, name in names.items()}
    return dict(sorted(found.items()))


def source_files(references: Iterable[str]) -> set[Path]:
    """Resolved paths of the files that `references` name, and of the user's files that these import."""
    invalidate_caches()
    named = list(references)
    files = [Path(match["file"]).resolve() for text in named if (match := _FILE.fullmatch(text))]
    search = [str(Path(entry or ".").absolute()) for entry in sys.path]
    search += [str(Path.cwd()), *dict.fromkeys(str(file.parent) for file in files)]
    waiting = files + [
        file
        for text in named
        if (match := _MODULE.fullmatch(text)) and not _FILE.fullmatch(text)
        for file in _module_files(match["module"], search)
    ]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found.add(file)
            waiting += _imported_files(file, search)
    return found


def _imported_files(file: Path, search: Sequence[str]) -> Iterator[Path]:
    """Files of the user that a source file imports, or names as `module:name`; none of a file that cannot be parsed."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = (file, *file.parents)[min(node.level, len(file.parents))]
            yield package / "__init__.py"
            for name in _imported_names(node):
                yield from _module_files(name, [str(package)], relative=True)
        else:
            for name in _imported_names(node):
                yield from _module_files(name, search)


def _imported_names(node: ast.AST) -> list[str]:
    """Dotted names that a part of a program may import; the last parts of a name may be attributes of a module."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names):
            return [".".join(filter(None, [module, alias.name])) for alias in names]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]):
            return [text] if name in _IMPORTERS else []
        case ast.Constant(value=str(text)):  # as in gymnasium.register(entry_point="package:Env")
            named = _MODULE.fullmatch(text)
            return [named["module"]] if named else []
        case _:
            return []


def _module_files(name: str, search: Sequence[str], *, relative: bool = False) -> Iterator[Path]:
    """The user's files that an import of `name` runs: the packages' `__init__.py` and the module's own, as far as the
    name is one of modules (its end may be an attribute). A `relative` import looks into the folders `search` only."""
    places = search
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:number]), places, hooks=number == 1 and not relative)
        if spec is None:
            return
        if spec.origin is not None and spec.has_location:
            file = Path(spec.origin).resolve()
            if not _is_users(file):
                return
            yield file
        if spec.submodule_search_locations is None:
            return
        places = list(spec.submodule_search_locations)


def _find_spec(name: str, places: Sequence[str], *, hooks: bool) -> ModuleSpec | None:
    """Spec of a module, found without importing anything; by import `hooks` too for a name without a package."""
    spec = PathFinder.find_spec(name, places)
    if spec is not None or not hooks:
        return spec
    try:
        return importlib.util.find_spec(name)  # found by a hook, as an editable installation may be
    except (ImportError, ValueError):
        return None


def _is_users(file: Path) -> bool:
    own = [str(Path(__file__).parents[1]), *(sysconfig.get_path(key) for key in ("stdlib", "platstdlib"))]
    return not any(file.is_relative_to(folder) for folder in own) and not any(part in _INSTALLED for part in file.parts)
