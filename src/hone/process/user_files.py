"""Files of the user: what kind of file a path is, and code: its names (`file.py:name`, `package.module:name`), checked
without an import, and its source files.

A name's files are those that it names and, from there, those that they import; nothing is run. Files of the standard
library, of installed packages and of hone are left out. A module that the code finds in another way (`sys.path`
changed, a computed name) is not found here.
"""

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import re
import stat
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final, cast

from hone.core.errors import ConfigError, UserCodeError, did_you_mean

_OWN_FILES = (str(Path(__file__).parents[1]), "<frozen importlib")
_ERROR_CHARACTERS = 200


def check_reference(reference: str, *, kind: str, modules: bool = True) -> None:
    """Check the form of a reference, and that its file exists; nothing is imported.

    `kind` names the thing in messages ("reward function"); without `modules` it must be in a file. Raises ConfigError.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier() or not (modules or place.endswith(".py")):
        forms = "path/to/file.py:name" + (" or package.module:name" if modules else "")
        raise ConfigError(f"{kind} {reference!r}: write {forms}")
    if place.endswith(".py") and not Path(place).is_file():
        near = did_you_mean(Path(place).name, [entry.name for entry in Path(place).parent.glob("*.py")])
        raise ConfigError(f"{kind} {reference!r}: no such file {place}{near}")


def load_reference(reference: str, *, kind: str, prefix: str = "") -> object:
    """The object that a reference names, from `load_module`. Raises UserCodeError: the import fails, or the module has
    no such name."""
    place, _, name = reference.rpartition(":")
    module = load_module(reference, kind=kind, prefix=prefix)
    if name not in vars(module):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserCodeError(f"{kind} {reference!r}: {place} has no {name!r}{did_you_mean(name, known)}")
    return vars(module)[name]


def load_module(reference: str, *, kind: str, prefix: str = "") -> ModuleType:
    """Import the module of a reference; a file runs anew with each call, as the module `prefix` + its stem.

    Raises UserCodeError with the user's part of the traceback.
    """
    place = reference.rpartition(":")[0]
    try:
        return _run_file(Path(place).resolve(), prefix) if place.endswith(".py") else importlib.import_module(place)
    except BaseException as error:
        raise UserCodeError(
            f"{kind} {reference!r}: importing {place} failed with {describe_error(error)}", user_traceback(error)
        ) from error


def describe_error(error: BaseException) -> str:
    """`ValueError: no digits`, cut after 200 characters."""
    if isinstance(error, SystemExit):
        return f"sys.exit({error.code!r})"
    return f"{type(error).__name__}: {shorten(error)}" if str(error) else type(error).__name__


def user_traceback(error: BaseException) -> str:
    """The traceback from the first line of user code on, without hone's own frames before it."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_OWN_FILES):
        frames.pop(0)
    lines = ["Traceback (most recent call last):\n", *frames.format(), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


def shorten(value: object) -> str:
    """A value as text, cut after 200 characters."""
    text = str(value)
    return text if len(text) <= _ERROR_CHARACTERS else f"{text[:_ERROR_CHARACTERS]}..."


def _run_file(path: Path, prefix: str) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its neighbours are importable, but never in place of a library
    name = prefix + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes of the file find their module by its name
    spec.loader.exec_module(module)
    return module


# --------------------------------------------------------------------------------------------------------- source files


_FILE = re.compile(r"(?P<file>.+\.py)(:\w+)?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_][\w.-]*")
_INSTALLED = ("site-packages", "dist-packages")
_WORLD = "dialogue:"
"""Beginning of a `task.source` that names a world."""
_IMPORTERS = ("import_module", "__import__")


def code_references(values: Iterable[object]) -> list[str]:
    """Texts among config values, lists and tables included, that name user code: `file.py`, `file.py:name` of an
    existing file, and `package.module:name`; those of worlds without `dialogue:`."""
    references: list[str] = []
    for value in values:
        if isinstance(value, str):
            reference = value.removeprefix(_WORLD)
            file = _FILE.fullmatch(reference)
            if Path(file["file"]).is_file() if file else _MODULE.fullmatch(reference):
                references.append(reference)
        elif isinstance(value, Mapping):
            references += code_references(cast("Mapping[object, object]", value).values())
        elif isinstance(value, list | tuple):
            references += code_references(cast("Sequence[object]", value))
    return references


def fingerprint_code(references: Iterable[str]) -> dict[str, str]:
    """Sha256 of each source file that `references` lead to, by its path relative to the working folder, sorted."""
    files = source_files(references)
    here = Path.cwd()
    names = {file: file.relative_to(here) if file.is_relative_to(here) else file for file in files}
    hashes = {name.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file, name in names.items()}
    return dict(sorted(hashes.items()))


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
    reached: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file not in reached and file.is_file():
            reached.add(file)
            waiting += _imported_files(file, search)
    return reached


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


# ------------------------------------------------------------------------------------------------------ kinds of files


_SPECIAL: Final[Mapping[int, str]] = {
    stat.S_IFIFO: "a pipe, which can be read only once, and hone reads a file again when it checks, hashes or resumes: "
    "write its content to a file, and name that",
    stat.S_IFSOCK: "a socket; name a file",
    stat.S_IFCHR: "a device; name a file",
    stat.S_IFBLK: "a device; name a file",
}
"""Kinds of paths that are no files, by the type in their mode."""
_CONTENTS: Final[Mapping[bytes, tuple[str, tuple[str, ...]]]] = {
    b"\x1f\x8b": ("compressed by gzip: decompress it (gunzip)", (".gz",)),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd: decompress it (unzstd)", (".zst",)),
    b"\xfd7zXZ\x00": ("compressed by xz: decompress it (unxz)", (".xz",)),
    b"BZh": ("compressed by bzip2: decompress it (bunzip2)", (".bz2",)),
    b"PK\x03\x04": ("a zip archive: unpack it", (".zip",)),
    b"PAR1": ("a parquet file: name it .parquet", (".parquet",)),
    b"SQLite format 3\x00": ("a SQLite database: name it .db, or export its rows", (".db", ".sqlite", ".sqlite3", "")),
    b"\x89HDF": ("an HDF5 file: name it .hdf5", (".hdf5", ".h5", ".hdf")),
    b"\xff\xfe": ("text in UTF-16: save it as UTF-8", ()),
    b"\xfe\xff": ("text in UTF-16: save it as UTF-8", ()),
    b"version https://git-lfs": ("a pointer of Git LFS and not the file: fetch it (git lfs pull)", ()),
}
"""First bytes of a file -> its kind with what to do, and the endings under which such a file is expected."""


def file_fault(path: Path) -> str:
    """The reason why the path cannot be read as the file that its name says: a link to nothing, a pipe, a device, or
    content of another kind, such as gzip under the name of JSON Lines; "" for any other, also where there is nothing.
    """
    if path.is_symlink() and not path.exists():
        return f"{path} is a link to {path.readlink()}, which does not exist; fix the link, or name the file itself"
    if not path.exists() or path.is_dir():
        return ""
    if special := _SPECIAL.get(stat.S_IFMT(path.stat().st_mode)):
        return f"{path} is {special}"
    with contextlib.suppress(OSError), path.open("rb") as file:  # whoever reads it tells why it cannot be opened
        head = file.read(max(map(len, _CONTENTS)))
        for magic, (kind, endings) in _CONTENTS.items():
            if head.startswith(magic) and path.suffix.lower() not in endings:
                return f"{path} is {kind}"
    return ""
