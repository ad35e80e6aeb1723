"""The process that runs a program: it confines itself, runs the text, and reports to its supervisor.

The report is a claim of the program, as anything that its process writes: what it is worth is decided elsewhere.
"""

import ast
import fcntl
import io
import json
import linecache
import os
import random
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from hone.process.wire import pack

PROGRAM_NAME = "<program>"
REPORT_FD = 3
MEMORY_EXIT = 77
"""Exit code of a process that has no memory left to report."""
_FRAMES = 12
_RECURSION = 1000
_ERROR_CHARACTERS = 4000


class UnconfinedError(Exception):
    """A process could not be confined; nothing ran in it."""


def start_program(confine: Callable[[], None], descriptors: list[int], folder: str, body: Callable[[], None]) -> int:
    """Fork a process that has only `descriptors`, as 0, 1, 2 ..., is confined, and runs `body`; its number.

    Raises UnconfinedError. It is told through a pipe that is closed before `body` begins: no program can claim it.
    """
    read_end, tell = os.pipe()
    child = os.fork()
    if child == 0:
        _become_program(confine, [*descriptors, tell], folder, body)
    os.close(tell)
    with os.fdopen(read_end, "rb") as reader:
        if fault := reader.read():
            os.waitpid(child, 0)
            raise UnconfinedError(fault.decode(errors="replace"))
    return child


def _become_program(
    confine: Callable[[], None], descriptors: list[int], folder: str, body: Callable[[], None]
) -> NoReturn:
    tell = len(descriptors) - 1
    try:
        os.setsid()
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(descriptors)) for descriptor in descriptors]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, place, inheritable=place < REPORT_FD)
        os.closerange(len(high), 1 << 16)
        os.chdir(folder or "/")
        confine()
        os.close(tell)
    except BaseException as error:  # noqa: BLE001 - nothing may run here unconfined
        os.write(tell, (str(error) or type(error).__name__).encode(errors="replace"))
        os._exit(1)
    try:
        # make this an interpreter as if it had just been started in `folder`; without one, anywhere
        sys.setrecursionlimit(_RECURSION)
        os.environ.clear()
        os.environ.update({"HOME": folder or "/", "TMPDIR": folder or "/", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"})
        sys.path[:0] = [folder] if folder else []
        sys.argv[:] = [PROGRAM_NAME]
        tempfile.tempdir = None
        random.seed(0)  # after the fork, at which it draws a seed of its own
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
        for number, name in ((1, "stdout"), (2, "stderr")):
            raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", line_buffering=number == 2)
            sys.__dict__[name] = sys.__dict__[f"__{name}__"] = stream
        body()
        _join_threads()
        _flush()
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except BaseException:  # noqa: BLE001 - the report says what happened, or that there is none
        os._exit(1)
    os._exit(0)


def run_text(code: str) -> None:
    """Run a program as `__main__`, and report the value of its last expression or its error."""
    try:
        value = run_source(code, new_module("__main__"))
        _join_threads()
    except SystemExit as leave:
        report({} if leave.code in (None, 0) else {"error": f"SystemExit: {leave.code!r}"})
    except BaseException as error:  # noqa: BLE001 - every end of a program is told
        report(fault(error))
    else:
        report(_shown(value))


def new_module(name: str) -> ModuleType:
    """A fresh module of this name, which imports find."""
    module = ModuleType(name)
    sys.modules[name] = module
    return module


def run_source(code: str, module: ModuleType, name: str = PROGRAM_NAME) -> object:
    """Run a text in a module; the value of the last statement where it is an expression. Raises what the text does."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    return run_tree(ast.parse(code, name), module.__dict__, name)


def run_tree(tree: ast.Module, scope: dict[str, object], name: str) -> object:
    """Run a parsed text with these global names, as `run_source`."""
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), scope)  # noqa: S102 - what a sandbox is for
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), scope)  # noqa: S307


@cache
def _function_factory(parameters: str, arguments: str, *, is_async: bool) -> Callable[..., Callable[..., object]]:
    head, wait = ("async def", "await ") if is_async else ("def", "")
    source = f"""
def make(_call_there, _defaults):
    {head} function({parameters}):
        return {wait}_call_there({arguments})
    return function
"""
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102 - nothing of it but names of parameters comes from outside
    return scope["make"]


def make_function(
    parameters: Sequence[tuple[str, int, Sequence[object]]],
    call: Callable[[tuple[object, ...], dict[str, object]], object],
    *,
    is_async: bool,
) -> Callable[..., object]:
    """A function with these parameters (name, kind as in `inspect.Parameter`, default or nothing), which hands its
    arguments over to `call`. Raises ValueError for a name that is none."""
    if wrong := [name for name, _, _ in parameters if not name.isidentifier()]:
        raise ValueError(f"a parameter is named {wrong[0]!r}")
    stars = {int(Parameter.VAR_POSITIONAL): "*", int(Parameter.VAR_KEYWORD): "**"}
    heads: list[str] = []
    for place, (name, kind, default) in enumerate(parameters):
        if kind == Parameter.KEYWORD_ONLY and not any(head.startswith("*") for head in heads):
            heads.append("*")
        heads.append(stars.get(kind, "") + name + (f" = _defaults[{place}][0]" if default else ""))
        if kind == Parameter.POSITIONAL_ONLY and [one[1] for one in parameters[place + 1 : place + 2]] != [kind]:
            heads.append("/")
    by_name = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    places = "".join(f"{stars.get(kind, '')}{name}, " for name, kind, _ in parameters if kind not in by_name)
    named = ", ".join(
        f"**{name}" if kind in stars else f"{name!r}: {name}" for name, kind, _ in parameters if kind in by_name
    )
    factory = _function_factory(", ".join(heads), f"({places}), {{{named}}}", is_async=is_async)
    return factory(call, [default for _, _, default in parameters])


def fault(error: BaseException) -> dict[str, object]:
    """The report of an error: the program's part of the traceback."""
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != PROGRAM_NAME:
        place = place.tb_next
    message = "".join(traceback.format_exception(type(error), error, place, limit=-_FRAMES)).rstrip()
    if len(message) > _ERROR_CHARACTERS:
        message = f"{message[: _ERROR_CHARACTERS // 2]}\n...\n{message[-_ERROR_CHARACTERS // 2 :]}"
    return {"error": message, "memory": isinstance(error, MemoryError)}


def _shown(value: object) -> dict[str, object]:
    """The report of a value: as plain data where it is such, and as Python shows it."""
    if value is None:
        return {}
    try:
        packed = {"value": pack(value)}
    except (TypeError, ValueError, RecursionError):
        packed = {}
    return {**packed, "shown": repr(value)}


def report(message: dict[str, object]) -> None:
    """Write the report; what the program printed goes before it."""
    _flush()
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(REPORT_FD, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _join_threads() -> None:
    """Wait for the threads that a program started, as Python does at its end."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
