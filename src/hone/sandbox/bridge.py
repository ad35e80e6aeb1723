"""Requests between the process of the tests and that of the program: one at a time, each end may ask while it serves.

Every request has a number drawn by chance, which its answer repeats: answers that were written in advance fit none.
"""

import copy
import json
import operator
import os
import random
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NoReturn, cast

from hone.sandbox import mirrors
from hone.sandbox.crossing import MAX_MESSAGE_BYTES, CannotCrossError, Crossing

_FRAMES_OF_A_REQUEST = 16
"""Frames that a request takes while another is served; the limit of recursion is raised by so many."""
_NONSENSE = (KeyError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, ImportError)


class LostError(BaseException):
    """The other process ended, or answered nonsense; not caught by tests that expect an exception."""


class ProcessBridge:
    """One end."""

    def __init__(self, side: int, requests: BinaryIO, answers_fd: int) -> None:
        self._reader, self._writer_fd = requests, answers_fd
        self.crossing = Crossing(side)
        self.crossing.call = self.ask
        self._lock = threading.RLock()
        self._chance = random.SystemRandom()
        mirrors.connect(self.ask)

    def ask(
        self,
        what: str,
        of: object = None,
        args: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
        *,
        name: str = "",
        owner: int = 0,
    ) -> mirrors.Value:
        """The answer of the other process. Raises what it raised there, LostError and CannotCrossError."""
        with self._lock:
            encode = self.crossing.encode
            number = self._chance.getrandbits(40)
            request: dict[str, Any] = {"ask": number, "what": what, "of": encode(of)}
            if args:
                request["args"] = [encode(one) for one in args]
            if named:
                request["named"] = {key: encode(value) for key, value in named.items()}
            if name:
                request["name"] = name
            if owner:
                request["owner"] = owner
            self.add_surroundings(request)
            self._write(self.crossing.seal(request))
            while (answer := self.receive()).get("answer") != number:
                if "ask" not in answer:
                    self.lost("its process answered nonsense")
                self.serve(answer)
        return self._read_answer(name, answer)

    def _read_answer(self, name: str, answer: dict[str, Any]) -> mirrors.Value:
        try:
            try:
                self.crossing.unseal(answer)
                value = self.crossing.decode(answer["raised" if "raised" in answer else "value"])
                self.take_surroundings(answer)
            finally:
                self.crossing.release(answer)
        except _NONSENSE as error:
            if "cannot" in answer:
                raise self.cannot(str(answer["cannot"])) from None
            self.lost(f"its process answered nonsense ({type(error).__name__})")
        if "raised" not in answer:
            return value
        if not isinstance(value, BaseException):
            self.lost("its process answered nonsense")
        raise self.raised(name, value) from value.__cause__

    def serve(self, request: dict[str, Any]) -> None:
        """Do what the other process asks, and answer."""
        answer: dict[str, Any] = {"answer": request.get("ask")}
        crossing = self.crossing
        sys.setrecursionlimit(sys.getrecursionlimit() + _FRAMES_OF_A_REQUEST)
        of = args = named = value = None
        try:
            try:
                crossing.unseal(request)
                self.prepare(request)
                of = crossing.decode(request["of"])
                args = [crossing.decode(one) for one in request.get("args", ())]
                named = {key: crossing.decode(one) for key, one in request.get("named", {}).items()}
            finally:
                crossing.release(request)
            value = self.perform(request, of, args, named)
            del of, args, named  # what nothing else holds is given up with the answer
            answer["value"] = crossing.encode(value)
        except CannotCrossError as error:
            answer["cannot"] = str(error)
        except LostError:
            raise
        except BaseException as error:  # noqa: BLE001 - the other end is told, and may expect it
            answer["raised"] = crossing.encode(error)
            error.__traceback__ = None
        finally:
            sys.setrecursionlimit(max(_FRAMES_OF_A_REQUEST, sys.getrecursionlimit() - _FRAMES_OF_A_REQUEST))
        self.add_printed(answer)
        try:
            data = crossing.seal(answer)
        except CannotCrossError as error:
            data = json.dumps({"answer": answer["answer"], "cannot": str(error)}).encode() + b"\n"
        self._write(data)

    def perform(self, request: Mapping[str, Any], of: mirrors.Value, args: list[Any], named: dict[str, Any]) -> object:
        """What came of a request."""
        name = str(request.get("name", ""))
        match request["what"]:
            case "call":
                return of(*args, **named)
            case "special":
                return mirrors.find_special(of, name)(*args, **named)
            case "method":
                return operator.attrgetter(name)(of)(*args, **named)
            case "read":
                return operator.attrgetter(name)(of)
            case "write":
                return cast("Any", type(of)).__setattr__(of, name, *args)
            case "erase":
                return cast("Any", type(of)).__delattr__(of, name)
            case "copy":
                return copy.copy(of)
            case "deepcopy":
                return copy.deepcopy(of)
            case what:
                raise CannotCrossError(f"{what} of an object of another process")

    def receive(self) -> dict[str, Any]:
        """The next message. Raises LostError."""
        line = self._reader.readline(MAX_MESSAGE_BYTES + 1)
        if not line.endswith(b"\n"):
            self.lost("its answer is too long" if len(line) > MAX_MESSAGE_BYTES else "its process ended")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self.lost("its process answered nonsense")
        if not isinstance(message, dict):
            self.lost("its process answered nonsense")
        return cast("dict[str, Any]", message)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._writer_fd, left) :]
        except OSError:
            self.lost("its process ended")

    def lost(self, why: str) -> NoReturn:
        """Raise LostError."""
        raise LostError(why)

    def cannot(self, why: str) -> BaseException:
        """The exception for something that has no form in the other process."""
        return TypeError(why)

    def raised(self, _name: str, error: BaseException) -> BaseException:
        """What is raised here for an exception of the other process, of a method of that name."""
        return error

    def prepare(self, request: Mapping[str, Any]) -> None:
        """Take up what a request tells beside its question."""

    def add_surroundings(self, request: dict[str, Any]) -> None:
        """Add to a request what the tests redirected."""

    def add_printed(self, answer: dict[str, Any]) -> None:
        """Add to an answer what was printed where the asker redirected it."""

    def take_surroundings(self, answer: Mapping[str, Any]) -> None:
        """Take up what an answer holds of that."""
