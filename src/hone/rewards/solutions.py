"""Worked answers from a user's function: what an example knows of itself -> the completion to imitate.

The function `f(prompt, **columns) -> str` runs in a process of its own with a deadline; nothing of it is imported here.
The child is this module as a command: one JSON object on standard input (tagged as in `wire.py`, so that tuples and
dates arrive as they are), one on standard output.
"""

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from hone.core.errors import ConfigError, DataError, UserCodeError, did_you_mean
from hone.rewards.functions import describe_error, users_traceback
from hone.rewards.wire import decode, encode


def check_solution(use: str) -> None:
    """Raises ConfigError unless `use` is `path/to/file.py:name` of a file that exists, or `package.module:name`."""
    place, _, name = use.rpartition(":")
    if not place or not name.isidentifier():
        raise ConfigError(f"solution function {use!r}: write path/to/file.py:name or package.module:name")
    if place.endswith(".py") and not Path(place).is_file():
        near = did_you_mean(Path(place).name, [entry.name for entry in Path(place).parent.glob("*.py")])
        raise ConfigError(f"solution function {use!r}: no such file {place}{near}")


def run_solutions(reference: str, rows: Sequence[dict[str, object]], *, deadline_s: float) -> list[str]:
    """One completion per row. Raises UserCodeError: it raises, returns something else than text, or takes too long;
    DataError: a column holds what no message can."""
    command = [sys.executable, "-P", "-m", "hone.rewards.solutions", reference]
    paths = [*(entry or str(Path.cwd()) for entry in sys.path), str(Path.cwd())]
    try:
        question = encode({"rows": list(rows)}).decode()
    except TypeError as error:
        raise DataError(f"the columns cannot be handed to solution function {reference!r}: {error}") from None
    try:
        child = subprocess.run(
            command,
            input=question,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        raise UserCodeError(
            f"solution function {reference!r} was killed after {deadline_s:g} s for {len(rows)} examples; "
            "make it faster, or raise solution.deadline_s"
        ) from None
    if child.returncode != 0:
        last = child.stderr.strip().splitlines()[-30:]
        raise UserCodeError(f"solution function {reference!r} failed (exit code {child.returncode}):", *last)
    answers = json.loads(child.stdout.rpartition("\n")[2])
    if "fault" in answers:
        raise UserCodeError(*answers["fault"])
    return answers["completions"]


def _child(use: str, rows: Sequence[dict[str, object]]) -> dict[str, list[str]]:
    place, _, name = use.rpartition(":")
    try:
        function = _function(place, name, use)
        named = inspect.signature(function).parameters
        everything = any(one.kind is one.VAR_KEYWORD for one in named.values())
        completions: list[str] = []
        for number, row in enumerate(rows):
            text = function(**{key: value for key, value in row.items() if everything or key in named})
            if not isinstance(text, str):
                raise TypeError(f"returned {type(text).__name__} {text!r} for example {number}, not text")
            completions.append(text)
    except UserCodeError as fault:
        return {"fault": list(fault.messages)}
    except BaseException as error:  # noqa: BLE001 - whatever the user's code does is reported to the parent
        return {"fault": [f"solution function {use!r} failed with {describe_error(error)}", users_traceback(error)]}
    return {"completions": completions}


def _function(place: str, name: str, use: str) -> Callable[..., object]:
    module = _module(place)
    if name not in vars(module):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserCodeError(f"solution function {use!r}: {place} has no {name!r}{did_you_mean(name, known)}")
    return vars(module)[name]


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    sys.path.append(str(path.parent))  # its neighbours are importable, but never in place of a library of the same name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    asked = cast("dict[str, list[dict[str, object]]]", decode(sys.stdin.buffer.readline()))
    result = _child(sys.argv[1], asked["rows"])
    sys.stdout.write("\n" + json.dumps(result))
