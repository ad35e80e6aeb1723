"""Names of user code: `path/to/file.py:name` and `package.module:name`, checked without an import, then imported."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

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
