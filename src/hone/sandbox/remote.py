"""The program's end of an examination: tests in another process call its functions and use its objects."""

import ast
import builtins
import io
import os
import sys
import types
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from hone.sandbox import program
from hone.sandbox.bridge import ProcessBridge
from hone.sandbox.decoys import change
from hone.sandbox.mirrors import Value

if TYPE_CHECKING:
    import asyncio

CALLS_FD = 4
ANSWERS_FD = program.REPORT_FD
_MOST_TOLD = 16
_STEP_S = 0.01
"""Longest time that coroutines of the program run before those of the tests have a turn."""


def serve_program(prelude: str, code: str) -> None:
    """Run a program as the module `solution`, after the imports that come before it, then answer the tests."""
    module = program.new_module("solution")
    end = _ProgramEnd(module)
    try:
        program.run_source(prelude, module, "<setup>")
        program.run_source(code, module)
    except BaseException as error:  # noqa: BLE001 - the tests are told
        end.tell({"fault": program.fault(error)["error"]})
        return
    sys.set_int_max_str_digits(0)  # results may be long numbers
    warnings.simplefilter("always")  # the tests' process has filters of its own
    warnings.showwarning = lambda message, kind, *_: end.warned.append((message, kind))
    names = names_of(code, module.__dict__)
    end.tell({"loaded": True, **names, "values": end.functions(cast("dict[str, bool]", names["own"]))})
    while True:
        end.serve_next()


def names_of(code: str, scope: Mapping[str, object]) -> dict[str, object]:
    """Names of a program: all; those that it binds itself, and whether to a function or class; those that it uses and
    nobody has bound."""
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case _:
                continue
    present = scope.keys()
    return {
        "names": sorted(name for name in present if not name.startswith("__")),
        "own": {name: callable(scope[name]) for name in sorted(bound & present)},
        "wanted": sorted(used - present - builtins.__dict__.keys() - bound),
    }


class _ProgramEnd(ProcessBridge):
    """Serves the process of the tests."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(1, os.fdopen(CALLS_FD, "rb", closefd=False), ANSWERS_FD)
        self._module = module
        self._derived: set[type] = set()
        self._told: dict[str, object] = {}
        self.warned: list[tuple[object, type]] = []
        self._loop: "asyncio.AbstractEventLoop | None" = None

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message that nobody asked for."""
        self._write(self.crossing.seal(message))

    def functions(self, own: Mapping[str, bool]) -> dict[str, Any]:
        """Functions and classes of the program that the tests need not ask for, until a name is bound again."""
        names = [name for name, is_callable in own.items() if is_callable][:_MOST_TOLD]
        self._told = {name: self._module.__dict__[name] for name in names}
        return {name: self.crossing.encode(value) for name, value in self._told.items()}

    def serve_next(self) -> None:
        """Wait for a request, and answer it."""
        with self._lock:  # threads of the program wait with questions of their own
            request = self.receive()
        self.serve(request)

    def serve(self, request: dict[str, Any]) -> None:
        """Answer a request; standard streams are the program's own again afterwards."""
        kept = sys.stdin, sys.stdout, sys.stderr, builtins.input
        try:
            super().serve(request)
        finally:
            sys.stdin, sys.stdout, sys.stderr, builtins.input = kept

    def prepare(self, request: Mapping[str, Any]) -> None:
        """Take up names that the tests define, and streams that they redirected."""
        for name, value in request.get("define", {}).items():
            self._module.__dict__.setdefault(name, self.crossing.decode(value))
        if (streams := request.get("streams")) is not None:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
            if "stdin" in streams:
                sys.stdin = self.crossing.decode(streams["stdin"])
            if "input" in streams:
                builtins.input = self.crossing.decode(streams["input"])

    def add_printed(self, answer: dict[str, Any]) -> None:
        """Add names that were bound again, warnings, and what was printed, to the answer."""
        if self.warned:
            answer["warned"] = self.crossing.encode(self.warned[:_MOST_TOLD])
            self.warned = []
        scope = self._module.__dict__
        if again := [name for name, value in self._told.items() if scope.get(name) is not value]:
            answer["rebound"] = again
            for name in again:
                del self._told[name]
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            if isinstance(stream, io.StringIO) and (text := stream.getvalue()):
                answer[name] = text
                stream.seek(0)
                stream.truncate()

    def perform(self, request: Mapping[str, Any], of: Value, args: list[Any], named: dict[str, Any]) -> object:
        """What came of a request."""
        name = str(request.get("name", ""))
        match request["what"]:
            case "name":
                if name not in self._module.__dict__:
                    raise NameError(f"name {name!r} is not defined")
                return self._module.__dict__[name]
            case "method" if type(of) in self._derived:
                owner = cast("type", self.crossing.mine[int(request["owner"])])
                return owner.__dict__[name].__get__(of, type(of))(*args, **named)
            case "subclass":
                kind, bases, members = args
                made = types.new_class(kind, bases, named, lambda scope: scope.update(members))
                made.__module__ = "tests"
                self._derived.add(made)
                return self.crossing.number(made)
            case "decoy":
                other = change(of, int(args[0]))
                return None if other is of else other
            case "bind":
                return self._module.__dict__.update({name: args[0]})
            case "seed":
                return sys.modules[name].seed(*args) if name in sys.modules else None
            case "start":
                return self._start(of)
            case "step":
                return self._step(of)
            case _:
                return super().perform(request, of, args, named)

    def _start(self, awaitable: Value) -> object:
        """A task of the program's event loop that waits for something."""

        async def wait() -> object:
            return await awaitable

        if self._loop is None:
            import asyncio  # noqa: PLC0415 - few programs have coroutines, and all would be forked with it

            self._loop = asyncio.new_event_loop()
        return self._loop.create_task(wait())

    def _step(self, task: "asyncio.Task[object]") -> tuple[bool, object]:
        """Run the event loop for a while: whether a task is done, and its result."""
        loop = cast("asyncio.AbstractEventLoop", self._loop)
        if not task.done():
            timer = loop.call_later(_STEP_S, loop.stop)
            task.add_done_callback(lambda _: loop.stop())
            loop.run_forever()
            timer.cancel()
        return (True, task.result()) if task.done() else (False, None)
