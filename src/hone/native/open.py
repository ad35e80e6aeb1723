"""Loading of a library by ctypes, with the types of its functions."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hone.core.errors import ResourceError

LibraryFunctions: TypeAlias = "dict[str, Callable[..., Any]]"


def load_functions(path: Path, what: str, signatures: Mapping[str, tuple[Any, Sequence[Any]]]) -> LibraryFunctions:
    """Load functions by name -> (result type, argument types). Raises ResourceError if `path` cannot be loaded."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ResourceError(f"{what} {path} cannot be loaded: {error}") from error
    functions: LibraryFunctions = {}
    for name, (result, arguments) in signatures.items():
        function = library[name]
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions
