"""The warm process that programs are forked from: `python -m hone.sandbox.zygote`, started by `process.child`.

It has imported what programs import, and has entered a rung of confinement. For each request it forks a supervisor,
which reads the request; its own memory never holds one, so a program finds nothing of an earlier call, and nothing of
the tests that it will face. When the supervisor has answered, everything that the program left is killed and deleted.
"""

import ast
import contextlib
import gc
import importlib
import json
import os
import sys
from dataclasses import replace
from typing import cast

from hone.process.linux import PR_SET_DUMPABLE, prctl
from hone.process.parent import ParentChannel, connect_to_parent
from hone.sandbox import examined_text, program, remote
from hone.sandbox.crossing import Crossing
from hone.sandbox.frames import read_frame
from hone.sandbox.rungs import ConfinementRung, ProgramLimits, choose_rung, library_paths
from hone.sandbox.supervisor import supervise

_REHEARSALS = 20


def main() -> None:
    """Entry point: one line with limits in, one with the rung out; then one answer for each request."""
    channel = connect_to_parent()
    hello = cast("dict[str, object]", json.loads(read_frame(channel.request_fd) or b"{}"))
    values = cast("dict[str, object]", hello["limits"])
    limits = ProgramLimits(**{**values, "readable": tuple(cast("list[str]", values["readable"]))})  # pyright: ignore[reportArgumentType]
    missing = _import_libraries(cast("list[str]", hello["libraries"]))
    rung, reasons = choose_rung(limits, str(hello["rung"]), unsafe=bool(hello["unsafe"]))
    channel = replace(channel, pid=os.getpid())  # a rung may have gone on in a fork
    prctl(PR_SET_DUMPABLE, 0)  # no program may look into this process; earlier, it could not have entered namespaces
    name = "" if rung is None else rung.name
    _reply(channel, {"rung": name, "reasons": reasons, "missing": missing})
    if rung is not None:
        _serve(channel, rung, limits)


def _import_libraries(names: list[str]) -> list[str]:
    """Import libraries, so that programs need not; those that are not there."""
    sys.path[:] = [path for path in sys.path if path.startswith(library_paths())]
    missing: list[str] = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)  # every call begins with the same numbers
    _rehearse()
    gc.collect()
    gc.freeze()  # the collector of a program leaves shared memory alone
    return missing


def _rehearse() -> None:
    """Run what every examination runs, so that the interpreter has adapted to it before the forks: each would do so
    anew, in memory that it shares until then."""
    test, scope = "assert f(1, [2]) == (3,)", {"f": lambda _, items: (3, *items[:0])}
    for _ in range(_REHEARSALS):
        tests, solution = Crossing(0), Crossing(1)
        function = _cross({"value": solution.encode(scope["f"])}, solution, tests)
        for _ in range(4):
            call = {"ask": 1, "what": "special", "value": tests.encode([function, 1, [2], "a", (1, 2)]), "name": "f"}
            _cross({"answer": 1, "value": solution.encode(_cross(call, tests, solution))}, solution, tests)
        trees = [ast.parse(test)]
        examined_text.tested_builtins(ast.parse(""), trees)
        remote.names_of("def f(a):\n    return a", {})
        program.run_tree(examined_text.guard(trees[0]), {**scope}, "<rehearsal>")


def _cross(message: dict[str, object], sender: Crossing, receiver: Crossing) -> object:
    arrived = json.loads(sender.seal(message))
    receiver.unseal(arrived)
    value = receiver.decode(arrived["value"])
    receiver.release(arrived)
    return value


def _serve(channel: ParentChannel, rung: ConfinementRung, limits: ProgramLimits) -> None:
    """Fork a supervisor for each request, before it comes; the end of the channel ends it."""
    while True:
        folder = rung.open_folder()
        supervisor = os.fork()
        if supervisor == 0:
            supervise(channel, rung, limits, folder)
        _, status = os.waitpid(supervisor, 0)
        rung.clean_up(folder)
        if status:  # the end of the channel, or of a supervisor; the caller sees that this process is gone
            return


def _reply(channel: ParentChannel, message: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):
        channel.reply(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
