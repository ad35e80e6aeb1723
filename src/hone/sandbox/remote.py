"""The program's end of an examination: tests in another process call its functions through a pipe.

Arguments and results cross as plain data. What is none, such as an instance of a class, stays here, and the tests get a
handle: they may call it, read and set its attributes, and go through it.
"""

import json
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

from hone.process.wire import pack, unpack
from hone.sandbox import program

CALLS_FD = 4
ANSWERS_FD = program.REPORT_FD
_MOST_ITEMS = 100_000
Request = Mapping[str, Any]


def serve_program(code: str) -> None:
    """Run a program as the module `solution`, then answer calls until the tests are done."""
    module = program.new_module("solution")
    try:
        program.run_source(code, module)
    except BaseException as error:  # noqa: BLE001 - the tests are told
        _answer({"fault": program.fault(error)["error"]})
        return
    sys.set_int_max_str_digits(0)  # results may be long numbers
    _answer({"loaded": True})
    handles: list[object] = []
    for line in _lines(CALLS_FD):
        _answer(_reply(json.loads(line), module, handles))


def _reply(request: Request, module: ModuleType, handles: list[object]) -> dict[str, object]:
    """What came of a call: a value or a handle, with the arguments that it changed, or an exception."""
    arguments = [_argument(one, handles) for one in request["arguments"]]
    before = [_packed(argument) for argument in arguments]
    try:
        value = _perform(request, arguments, module, handles)
        after = [_packed(argument) for argument in arguments]
    except Exception as error:  # noqa: BLE001 - the tests are told, and may expect it
        return {"raised": [type(error).__name__, str(error)]}
    changed = {str(place): after[place] for place in range(len(arguments)) if after[place] != before[place]}
    packed = _packed(value)
    if packed is not None:
        return {"value": packed["plain"], "changed": changed}
    handles.append(value)
    return {"handle": len(handles) - 1, "changed": changed}


def _perform(request: Request, arguments: Sequence[object], module: ModuleType, handles: Sequence[object]) -> object:
    what, of = request["what"], request["of"]
    if isinstance(of, str) and of not in module.__dict__:
        raise NameError(f"name {of!r} is not defined")
    target = module.__dict__[of] if isinstance(of, str) else handles[of]
    if what == "call":
        named = {name: _argument(value, handles) for name, value in request["named"].items()}
        return cast("Callable[..., object]", target)(*arguments, **named)
    if what == "read":
        return operator.attrgetter(request["name"])(target)
    if what == "set":
        object.__setattr__(target, request["name"], arguments[0])
        return None
    items = [item for _, item in zip(range(_MOST_ITEMS), cast("Sequence[object]", target), strict=False)]
    return items if what == "iterate" else None


def _argument(given: Mapping[str, Any], handles: Sequence[object]) -> object:
    return handles[given["handle"]] if "handle" in given else unpack(given["plain"])


def _packed(value: object) -> dict[str, object] | None:
    """A value as plain data; None where it is none."""
    try:
        return {"plain": pack(value)}
    except (TypeError, ValueError, RecursionError):
        return None


def _lines(descriptor: int) -> Iterator[bytes]:
    """Lines from a descriptor as they come."""
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        yield from file


def _answer(message: dict[str, object]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(ANSWERS_FD, data) :]
