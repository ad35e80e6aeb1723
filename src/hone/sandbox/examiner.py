"""The tests' end of an examination: they run in a process that holds nothing of the program but its plain answers.

A name that the tests use and do not define is the program's: calling it asks the program's process. So no program can
read what is expected, compare by an equality of its own, change `assert`, or claim that the tests have passed: the
process that says so has never run a line of it.
"""

import ast
import builtins
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, BinaryIO, cast

from hone.process.wire import pack, unpack
from hone.sandbox import program

CALLS_FD, ANSWERS_FD = 4, 5
_STOPS = (StopIteration, StopAsyncIteration)
"""They would end a loop of the tests, and with it the rest of its checks."""
_REASON_CHARACTERS = 200


class _ProgramLostError(BaseException):
    """The program's process ended, or answered nonsense; not caught by tests that expect an exception."""


class _ProgramRaisedError(Exception):
    """The program raised an exception of a class of its own."""


class _ProgramChannel:
    """Calls to the program's process, one at a time."""

    def __init__(self, answers: BinaryIO, max_bytes: int) -> None:
        self._answers, self._max_bytes = answers, max_bytes

    def receive(self) -> dict[str, Any]:
        """The next answer. Raises _ProgramLostError."""
        line = self._answers.readline(self._max_bytes)
        if not line.endswith(b"\n"):
            raise _ProgramLostError("its answer is too long" if len(line) >= self._max_bytes else "its process ended")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise _ProgramLostError("its process answered nonsense") from None
        if not isinstance(answer, dict):
            raise _ProgramLostError("its process answered nonsense")
        return cast("dict[str, Any]", answer)

    def ask(
        self, what: str, of: object, arguments: Sequence[object] = (), detail: Mapping[str, object] | None = None
    ) -> object:
        """The value of a call; `detail` are further parts of the request. Raises what the program raised, or
        _ProgramLostError."""
        request = {"what": what, "of": of, "arguments": [_given(one) for one in arguments], **(detail or {})}
        try:
            data = memoryview(json.dumps(request).encode() + b"\n")
            while data:
                data = data[os.write(CALLS_FD, data) :]
        except BrokenPipeError:
            raise _ProgramLostError("its process ended") from None
        answer = self.receive()
        try:
            if "raised" in answer:
                raise _exception(str(answer["raised"][0]), str(answer["raised"][1]))
            for place, packed in dict(answer.get("changed", {})).items():
                _change(arguments[int(place)], unpack(packed["plain"]))
            return _RemoteObject(self, int(answer["handle"])) if "handle" in answer else unpack(answer["value"])
        except (KeyError, IndexError, ValueError, TypeError, ArithmeticError, RecursionError):
            if "raised" in answer:
                raise
            raise _ProgramLostError("its process answered nonsense") from None


class _RemoteObject:
    """Something of the program's that is no plain data, or one of its names. Equal to itself only."""

    def __init__(self, channel: _ProgramChannel, of: object) -> None:
        self.__dict__.update(_channel=channel, _of=of)

    def __call__(self, *arguments: object, **named: object) -> object:
        """Call it in the program's process."""
        kwargs = {name: _given(value) for name, value in named.items()}
        return self.__dict__["_channel"].ask("call", self.__dict__["_of"], arguments, {"named": kwargs})

    def __getattr__(self, name: str) -> object:
        """Read an attribute there."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_channel"].ask("read", self.__dict__["_of"], (), {"name": name})

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute there."""
        self.__dict__["_channel"].ask("set", self.__dict__["_of"], [value], {"name": name})

    def __iter__(self) -> Iterator[object]:
        """Go through it there, to its end, then through the items here."""
        return iter(cast("list[object]", self.__dict__["_channel"].ask("iterate", self.__dict__["_of"])))


def examine(setup: str, tests: Sequence[str], max_bytes: int) -> None:
    """Run tests one by one, and report each: `{"passed": ..., "reason": ...}`. The first report is of the program."""
    channel = _ProgramChannel(os.fdopen(ANSWERS_FD, "rb", closefd=False), max_bytes)
    loaded = channel.receive()
    if "fault" in loaded:
        program.report({"fault": str(loaded["fault"])})
        return
    program.report({"loaded": True})
    sys.set_int_max_str_digits(0)
    module = program.new_module("tests")
    try:
        module.__dict__.update((name, _RemoteObject(channel, name)) for name in free_names([setup, *tests]))
        program.run_source(setup, module, "<setup>")
    except _ProgramLostError as lost:
        program.report({"passed": False, "reason": str(lost), "lost": True})
        return
    except Exception as error:  # noqa: BLE001 - a fault of the dataset
        program.report({"broken": f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]})
        return
    for test in tests:
        outcome = _run_test(test, module)
        program.report(outcome)
        if outcome.get("lost"):
            return


def _run_test(test: str, module: ModuleType) -> dict[str, object]:
    try:
        program.run_source(test, module, "<test>")
    except _ProgramLostError as lost:
        return {"passed": False, "reason": str(lost), "lost": True}
    except BaseException as error:  # noqa: BLE001 - a test that did not come to its end has failed
        return {"passed": False, "reason": f"{type(error).__name__}: {error}".rstrip(": ")[:_REASON_CHARACTERS]}
    return {"passed": True, "reason": ""}


def free_names(sources: Sequence[str]) -> list[str]:
    """Names that the sources use and neither define nor find among Python's own, sorted. Raises SyntaxError."""
    used: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for source in sources:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        for node in tree.body:
            bound.update(_defined(node))
    return sorted(used - bound)


def _defined(node: ast.stmt) -> set[str]:
    """Names that a statement of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).split(".")[0] for alias in aliases}
        case _:
            return set()


def _given(argument: object) -> dict[str, object]:
    if isinstance(argument, _RemoteObject):
        return {"handle": argument.__dict__["_of"]}
    return {"plain": pack(argument)}


def _change(argument: object, value: object) -> None:
    """Give an argument the contents that the program gave its copy."""
    if isinstance(argument, list) and isinstance(value, list):
        argument[:] = value
    elif isinstance(argument, dict) and isinstance(value, dict):
        argument.clear()
        argument.update(cast("Mapping[object, object]", value))
    elif isinstance(argument, set) and isinstance(value, set):
        argument.clear()
        argument.update(cast("set[object]", value))


def _exception(name: str, message: str) -> Exception:
    """An exception like the program's: of the same class where that is one of Python's."""
    kind = builtins.__dict__.get(name)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _STOPS):
        try:
            return cast("Callable[[str], Exception]", kind)(message)
        except TypeError:  # it wants other arguments
            return _ProgramRaisedError(f"{name}: {message}")
    return _ProgramRaisedError(f"{name}: {message}")
