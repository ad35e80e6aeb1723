"""The process that runs a program: it confines itself, runs the text, and reports to its supervisor.

The report is a claim of the program, as anything that its process writes: what it is worth is decided elsewhere.
"""

import ast
import io
import json
import linecache
import os
import random
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from types import CodeType, ModuleType, TracebackType

from hone.process.wire import pack

PROGRAM_NAME = "<program>"
REPORT_FD = 3
MEMORY_EXIT, UNCONFINED_EXIT = 77, 78
"""Exit codes of a process that has no memory left to report, and of one that could not be confined."""
_FRAMES = 12
_ERROR_CHARACTERS = 4000


def start_program(confine: Callable[[], None], descriptors: list[int], folder: str, body: Callable[[], None]) -> int:
    """Fork a process that has only `descriptors`, as 0, 1, 2 ..., is confined, and runs `body`; its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        _take_descriptors(descriptors)
        os.chdir(folder)
        confine()
    except BaseException as error:  # noqa: BLE001 - nothing may run here unconfined
        os.write(2, str(error).encode(errors="replace"))
        os._exit(UNCONFINED_EXIT)
    try:
        _clean_interpreter(folder)
        body()
        _join_threads()
        _flush()
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except BaseException:  # noqa: BLE001 - the report says what happened, or that there is none
        os._exit(1)
    os._exit(0)


def _take_descriptors(descriptors: list[int]) -> None:
    high = [os.dup2(descriptor, 100 + place) for place, descriptor in enumerate(descriptors)]
    for place, descriptor in enumerate(high):
        os.dup2(descriptor, place, inheritable=place < REPORT_FD)
    os.closerange(len(high), 1 << 16)


def _clean_interpreter(folder: str) -> None:
    """An interpreter as if it had just been started in `folder`."""
    os.environ.clear()
    os.environ.update({"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"})
    sys.path.insert(0, folder)
    sys.argv[:] = [PROGRAM_NAME]
    tempfile.tempdir = None
    random.seed(0)  # after the fork, at which it draws a seed of its own
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="replace", line_buffering=number == 2)
        sys.__dict__[name] = sys.__dict__[f"__{name}__"] = stream


def run_text(code: str) -> None:
    """Run a program as `__main__`, and report the value of its last expression or its error."""
    module = new_main()
    try:
        body, last = compile_program(code)
        exec(body, module.__dict__)  # noqa: S102 - what a sandbox is for
        value = eval(last, module.__dict__) if last is not None else None  # noqa: S307
        _join_threads()
    except SystemExit as leave:
        report({} if leave.code in (None, 0) else {"error": f"SystemExit: {leave.code!r}"})
        return
    except BaseException as error:  # noqa: BLE001 - every end of a program is told
        report(fault(error))
        return
    report(_shown(value))


def new_main() -> ModuleType:
    """A fresh module `__main__`."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    return module


def compile_program(code: str) -> tuple[CodeType, CodeType | None]:
    """The statements, and the last one apart where it is an expression. Raises SyntaxError, ValueError and others."""
    linecache.cache[PROGRAM_NAME] = (len(code), None, code.splitlines(keepends=True), PROGRAM_NAME)
    tree = ast.parse(code, PROGRAM_NAME)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return compile(tree, PROGRAM_NAME, "exec"), None
    body = ast.Module(body=tree.body[:-1], type_ignores=[])
    return compile(body, PROGRAM_NAME, "exec"), compile(ast.Expression(last.value), PROGRAM_NAME, "eval")


def fault(error: BaseException) -> dict[str, object]:
    """The report of an error: the program's part of the traceback."""
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename != PROGRAM_NAME:
        place = place.tb_next
    told = "".join(traceback.format_exception(type(error), error, place, limit=-_FRAMES)).rstrip()
    if len(told) > _ERROR_CHARACTERS:
        told = f"{told[: _ERROR_CHARACTERS // 2]}\n...\n{told[-_ERROR_CHARACTERS // 2 :]}"
    return {"error": told, "memory": isinstance(error, MemoryError)}


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
