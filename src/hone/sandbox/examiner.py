"""The tests' end of an examination: the process that runs the tests, and has never run a line of the program.

Names that the tests use and do not define are the program's. Values arrive as data; objects of the program's own
classes as mirrors, whose operators and methods ask the program. So their answers are claims: where a test compares by
the program's own `==`, it is asked about other values too, in an order that it cannot know, and an object that equals
everything fails the test. What has no form in the other process is noted, and the test says nothing.
"""

import ast
import builtins
import contextlib
import operator
import os
import sys
import types
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from types import ModuleType
from typing import Any, BinaryIO, NoReturn, cast

from hone.sandbox import examined_text, mirrors, program
from hone.sandbox.bridge import LostError, ProcessBridge
from hone.sandbox.crossing import CannotCrossError
from hone.sandbox.decoys import change

CALLS_FD, ANSWERS_FD = 4, 5
_RECURSION = 4000
_REASON_CHARACTERS = 200
_NUMBERS = (int, float, Decimal, Fraction)
_STOPS = (StopIteration, StopAsyncIteration)
"""They would end a loop of the tests, and with it the rest of its checks."""
_HIDDEN_PREFIXES = ("gi_", "cr_", "ag_", "f_", "tb_", "co_", "func_")
"""Attributes of generators, frames and the like: a program that reads them on a callback could find the tests."""
_UNSEEN = ("patch", "assertLogs")
"""What tests say that reach for the program's process; they hold nothing against a program."""
_SHOWN = frozenset(("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__dataclass_fields__"))


class _ProgramRaisedError(Exception):
    """The program raised something that must not arrive as what it is."""


class _TestsEnd(ProcessBridge):
    """Asks the program, and serves the callbacks that it was given."""

    def __init__(self, answers: BinaryIO) -> None:
        super().__init__(0, answers, CALLS_FD)
        self.names, self.wanted = frozenset[str](), set[str]()
        self.own: dict[str, bool] = {}
        self.values: dict[str, Any] = {}
        self.scope: dict[str, Any] = {}
        self.expects_stops = False
        self.named = set[str]()
        self.streams = (sys.stdin, sys.stdout, sys.stderr, builtins.input)
        self._gone = ""
        self.ever_asked = self.lacks_name = False
        self.raised_there: BaseException | None = None
        self.begin_test()

    def begin_test(self) -> None:
        """Forget what was noted about the last test."""
        self.asked, self.unsaid, self.lie, self.claim = False, "", "", ""
        self.failures = list[AssertionError]()

    def lost(self, why: str) -> NoReturn:
        """Note that the program's process is gone, for good, and raise LostError."""
        self._gone = self._gone or why
        raise LostError(self._gone)

    @property
    def gone(self) -> str:
        """Why the program's process is gone; empty while it is there."""
        return self._gone

    def cannot(self, why: str) -> BaseException:
        """Note what had no form in the other process; the test says nothing, whatever comes of it."""
        self.unsaid = self.unsaid or why
        return CannotCrossError(why)

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
        """The program's answer, as `ProcessBridge.ask`; one that must be checked is."""
        self.asked = self.ever_asked = True
        if self._gone:
            raise LostError(self._gone)
        if what == "special" and not isinstance(of, type):
            if name == "__await__":
                return self._await(of)
            if name == "__exit__" and args and args[0] is AssertionError:
                super().ask(what, of, args, named, name=name)
                return False  # no program takes back that a test has failed
            if name in _AUDITS:
                return _AUDITS[name](self, of, args[0], name)
        if what == "subclass":
            kind, bases, members, made = cast("Any", args)
            number = super().ask(what, None, (kind, bases, members), named)
            self.crossing.adopt(int(number), made)
            return made
        if what == "reduce":
            raise self.cannot("an object of the program's own class cannot be pickled in the process of the tests")
        return super().ask(what, of, args, named, name=name, owner=owner)

    def load(self, loaded: Mapping[str, Any]) -> None:
        """Take up what the program's process says of its names."""
        self.names = frozenset(map(str, loaded["names"]))
        self.own = {str(name): bool(known) for name, known in loaded["own"].items()}
        self.wanted = set(map(str, loaded["wanted"]))
        self.crossing.unseal(loaded)
        self.values = {str(name): self.crossing.decode(form) for name, form in loaded["values"].items()}
        self.crossing.release(loaded)

    def look_up(self, name: str) -> mirrors.Value:
        """What a name of the program stands for."""
        self.asked = self.ever_asked = True
        return self.values[name] if name in self.values else self.ask("name", name=name)

    def _await(self, awaitable: object) -> mirrors.Value:
        """Wait for a coroutine of the program, which its own event loop runs."""

        def steps() -> mirrors.Value:
            task = super(_TestsEnd, self).ask("start", awaitable)
            while True:
                done, result = super(_TestsEnd, self).ask("step", task, name="__anext__")
                if done:
                    return result
                yield

        return steps()

    def raised(self, _name: str, error: BaseException) -> BaseException:
        """The program's exception; one that would silently end a loop of the tests only where they expect it."""
        if isinstance(error, _STOPS) and _name not in ("__next__", "__anext__") and not self.expects_stops:
            error = _ProgramRaisedError(f"{type(error).__name__}: {error}")
        self.raised_there = error
        return error

    def perform(self, request: Mapping[str, Any], of: mirrors.Value, args: list[Any], named: dict[str, Any]) -> object:
        """What came of a request of the program, which may use what it was given, and nothing behind it."""
        what, name = request["what"], str(request.get("name", ""))
        is_data = not isinstance(of, type) and type(of).__module__ == "tests"
        hidden = name.startswith("__") and name not in _SHOWN and not (is_data and name == "__dict__")
        hidden = hidden or (name.startswith(_HIDDEN_PREFIXES) and not is_data)
        if what in ("read", "write", "erase", "method") and (hidden or not name.isidentifier()):
            raise AttributeError(f"{type(of).__name__!r} object has no attribute {name!r} for a program")
        if what in ("write", "erase") and not is_data:
            raise AttributeError(f"a program cannot change {name!r} of {type(of).__name__!r}")
        if what == "special" and name not in mirrors.SPECIALS:
            raise AttributeError(name)
        value = super().perform(request, of, args, named)
        if "asyncio" in sys.modules and isinstance(value, sys.modules["asyncio"].Future):
            raise self.cannot("the program waits for a coroutine of the tests that waits for an event of its own")
        return value

    def add_surroundings(self, request: dict[str, Any]) -> None:
        """Names that the program misses and the tests define by now; streams that they redirected."""
        if known := [name for name in self.wanted if name in self.scope]:
            request["define"] = {name: self.crossing.encode(self.scope[name]) for name in known}
            self.wanted.difference_update(known)
        stdin, stdout, stderr, ask = self.streams
        if sys.stdout is stdout and sys.stderr is stderr and sys.stdin is stdin and builtins.input is ask:
            return
        streams = request["streams"] = dict[str, Any]()
        if sys.stdin is not stdin:
            streams["stdin"] = self.crossing.encode(sys.stdin)
        if builtins.input is not ask:
            streams["input"] = self.crossing.encode(builtins.input)

    def take_surroundings(self, answer: Mapping[str, Any]) -> None:
        """Forget what the program bound again, warn as it did, and print where the tests redirected that to."""
        for message, kind in self.crossing.decode(answer["warned"]) if "warned" in answer else ():
            warnings.warn(message, kind, stacklevel=1)
        for name in answer.get("rebound", ()):
            self.values.pop(str(name), None)
        if "stdout" in answer:
            sys.stdout.write(str(answer["stdout"]))
        if "stderr" in answer:
            sys.stderr.write(str(answer["stderr"]))

    def failed(self, *message: object) -> AssertionError:
        """The exception of an assertion that fails, which is noted until the tests catch it."""
        self.failures.append(AssertionError(*message))
        return self.failures[-1]

    def caught(self) -> None:
        """Forget the failed assertion that a handler of the tests has caught, and those that led to it."""
        error: BaseException | None = sys.exc_info()[1]
        while error is not None:
            self.failures = [one for one in self.failures if one is not error]
            error = error.__cause__ or error.__context__

    # ------------------------------------------------------------------------------------------------------- audits

    def question(self, of: object, name: str, arg: object) -> mirrors.Value:
        """An operator's answer, unchecked."""
        return super().ask("special", of, (arg,), name=name)

    def among(self, of: object, name: str, real: object, decoys: Sequence[object]) -> list[Any]:
        """Answers to a question and to others like it, in an order by chance; the first is never the real one, so that
        no object can say yes to what it is asked first. Raises what the real one does."""
        answers: dict[int, Any] = {}
        failed: BaseException | None = None
        first = self._chance.randrange(1, len(decoys) + 1)
        later = [place for place in range(len(decoys) + 1) if place != first]
        self._chance.shuffle(later)
        for place in (first, *later):
            try:
                answers[place] = self.question(of, name, [real, *decoys][place])
            except Exception as error:  # noqa: BLE001 - an answer to a decoy may be any
                failed = error if place == 0 else failed
                answers[place] = NotImplemented
        if failed is not None:
            raise failed
        return [answers[place] for place in sorted(answers)]

    def decoys(self, value: object) -> list[Any]:
        """Values that differ from a given one, of the same class where that can be told: two by a little, two by much.
        Each two differences are successive numbers, so that they are not both the same as nothing where numbers go
        round in a circle."""
        sign, far = self._chance.choice((-1, 1)), self._chance.randrange(1_000, 100_000)
        steps = [sign * (step + more) for step in (self._chance.randrange(1, 8), far) for more in (0, 1)]
        if isinstance(value, mirrors.Mirror):
            others = [super(_TestsEnd, self).ask("decoy", value, (one,)) for one in steps]
        else:
            others = [change(value, one) for one in steps]
        return [object() if one is None or one is value else one for one in others]

    def name_lie(self, of: object, what: str) -> None:
        """Note that an object of the program answers what cannot be."""
        self.lie = self.lie or f"an object of the program's class {type(of).__name__} {what}"


def _is_true(answer: mirrors.Value) -> bool:
    try:
        return answer is not NotImplemented and bool(answer)
    except Exception:  # noqa: BLE001 - neither true nor false
        try:
            return bool(answer.all())  # a comparison of arrays, item by item
        except Exception:  # noqa: BLE001 - not such a one
            return False


def _audit(end: _TestsEnd, of: object, other: object, name: str) -> object:
    """The answer of an operator of the program's to a comparison with `other`, if it does not answer the same where
    that cannot be: to other values, to the end of all numbers, to something that nobody has put in."""
    is_number = type(other) in _NUMBERS
    match name:
        case "__eq__" | "__ne__" if of is not other:
            decoys, lie = end.decoys(other), "says the same of == with everything"
        case "__contains__":
            decoys, lie = [object(), object()], "holds everything"
        case "__lt__" | "__le__" if is_number:
            decoys, lie = [float("-inf"), -sys.float_info.max], "is smaller than every number"
        case "__gt__" | "__ge__" if is_number:
            decoys, lie = [float("inf"), sys.float_info.max], "is larger than every number"
        case "__ge__" | "__gt__" if type(other) in (set, frozenset):
            decoys, lie = [{*cast("set[Any]", other), object()} for _ in range(2)], "holds everything"
        case _:
            return _audit_claim(end, of, other, name, end.question(of, name, other))
    answers = end.among(of, name, other, decoys)
    wanted = name != "__ne__"
    agrees = [one is not NotImplemented and _is_true(one) is wanted for one in answers]
    if agrees[0] and any(all(agrees[place : place + 2]) for place in range(1, len(agrees), 2)):
        end.name_lie(of, lie)
        return not wanted
    return _audit_claim(end, of, other, name, answers[0])


def _audit_claim(end: _TestsEnd, of: mirrors.Value, other: object, name: str, answer: object) -> object:
    """The answer of an operator to a comparison with data: no evidence where the program's class, which the tests do
    not name, says yes, and the list, number and so on that its object is says no, or its object is none."""
    kind = type(of)
    is_library = kind.__module__.partition(".")[0] in (*sys.stdlib_module_names, "numpy")
    is_data = type(other) in (*_NUMBERS, *mirrors.ATOMS, *mirrors.CONTAINERS)
    if kind.__name__ in end.named or is_library or not (is_data and _is_true(answer)):
        return answer
    base: mirrors.Value = mirrors.payload_type(kind)
    if base in mirrors.ATOMS or base in mirrors.CONTAINERS:
        if name == "__ne__" or _is_true(operator.attrgetter(name)(base)(of, other)):
            return answer
    elif name in ("__ne__", "__contains__"):
        return answer
    end.claim = (
        f"an object of the program's class {kind.__name__}, which the tests do not name, is compared with data; what "
        "it says is no evidence"
    )
    return answer


def _audit_difference(end: _TestsEnd, of: object, other: object, name: str) -> object:
    """`-`, whose result must not be the same whatever is subtracted."""
    if type(other) not in _NUMBERS:
        return end.question(of, name, other)
    answer, *decoys = end.among(of, name, other, end.decoys(other)[:2])
    if (size := _size(answer)) is not None and all(size == _size(one) for one in decoys):
        end.name_lie(of, "has the same difference from all numbers")
    elif type(of).__name__ not in end.named:
        end.cannot(
            f"the tests subtract an object of the program's class {type(of).__name__}, which they do not name; what it "
            "says of the difference is no evidence"
        )
    return answer


def _size(value: mirrors.Value) -> object:
    """The absolute value of a difference, as far as it is a number or says one."""
    try:
        size = abs(value)
    except Exception:  # noqa: BLE001 - it has none
        return None
    return size if type(size) in _NUMBERS else None


_AUDITS: Mapping[str, Callable[[_TestsEnd, object, object, str], Any]] = {
    **dict.fromkeys(("__eq__", "__ne__", "__contains__", "__lt__", "__le__", "__gt__", "__ge__"), _audit),
    **dict.fromkeys(("__sub__", "__rsub__"), _audit_difference),
}


# ---------------------------------------------------------------------------------------------------------------- tests


class _Scope(dict[str, Any]):
    """Global names of the tests: a name that nobody has bound is the program's."""

    def __init__(self, end: _TestsEnd, tested: set[str]) -> None:
        super().__init__()
        self._end, self.tested = end, tested
        self._in_classes: dict[str, Any] = {}

    def __missing__(self, name: str) -> mirrors.Value:
        builtin = name in builtins.__dict__ and not (name in self.tested and name in self._end.own)
        if builtin or name not in self._end.names:
            raise KeyError(name)
        return self._end.look_up(name)

    def bind(self, tree: ast.Module) -> None:
        """Bind the program's names that stand in class statements: their bodies do not ask for those that miss."""
        bodies = [node for kind in ast.walk(tree) if isinstance(kind, ast.ClassDef) for node in ast.walk(kind)]
        for name in {node.id for node in bodies if isinstance(node, ast.Name)} - self.keys():
            with contextlib.suppress(KeyError):
                self._in_classes[name] = self[name] = self.__missing__(name)

    def unbind(self) -> None:
        """Leave these names to the program again, but for those that were bound to something else."""
        for name, value in self._in_classes.items():
            if self.get(name) is value:
                del self[name]
        self._in_classes = {}


class _ProgramModule(ModuleType):
    """The program as a module."""

    def __init__(self, end: _TestsEnd) -> None:
        super().__init__("solution")
        self.__dict__["_end"] = end

    def __getattr__(self, name: str) -> mirrors.Value:
        if name == "__all__":
            return sorted(self.__dict__["_end"].names)
        if name.startswith("__") or name not in self.__dict__["_end"].names:
            raise AttributeError(f"the program has no {name!r}")
        return self.__dict__["_end"].look_up(name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_end"].ask("bind", None, (value,), name=name)


def examine(setup: str, tests: Sequence[str], first: int) -> None:
    """Run tests one by one from the one at `first`, and report each. The first report is of the program."""
    end = _TestsEnd(os.fdopen(ANSWERS_FD, "rb", closefd=False))
    loaded = end.receive()
    if "fault" in loaded:
        program.report({"fault": str(loaded["fault"])})
        return
    end.load(loaded)
    program.report({"loaded": True})
    sys.setrecursionlimit(_RECURSION)
    sys.set_int_max_str_digits(0)
    try:
        prelude, trees = ast.parse(setup, "<setup>"), [ast.parse(test, "<test>") for test in tests]
    except (SyntaxError, ValueError) as error:
        program.report({"broken": f"SyntaxError: {error}"[:_REASON_CHARACTERS]})
        return
    try:
        scope = _open_scope(end, prelude, trees)
        scope.bind(prelude)
        foreign = end.names - scope.keys()
        program.run_tree(examined_text.watch(examined_text.guard(prelude), foreign), scope, "<setup>")
        scope.unbind()
    except LostError as lost:
        program.report({"passed": False, "reason": str(lost), "lost": True})
        return
    except BaseException as error:  # noqa: BLE001 - a fault of the program, or of the dataset
        reason = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]
        ours = not (end.asked or end.lacks_name or isinstance(error, NameError | AttributeError))
        program.report({"broken": reason} if ours else {"fault": f"the tests' setup cannot use it: {reason}"})
        return
    kept = dict(scope)
    for test, tree in list(zip(tests, trees, strict=True))[first:]:
        outcome = _run_test(end, test, tree, scope)
        program.report(outcome)
        if outcome.get("lost"):
            return
        _restore(scope, kept, end.own)


def _open_scope(end: _TestsEnd, setup: ast.Module, tests: Sequence[ast.Module]) -> _Scope:
    """The names that tests begin with."""
    scope = _Scope(end, examined_text.tested_builtins(setup, tests))
    nodes = [node for tree in (setup, *tests) for node in ast.walk(tree)]
    end.lacks_name = bool(examined_text.needed_names([setup, *tests]) - end.names)
    end.scope, end.named = scope, {node.id for node in nodes if isinstance(node, ast.Name)}
    end.named.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    module = program.new_module("tests")
    solution = sys.modules["solution"] = _ProgramModule(end)
    kept: dict[int, Any] = {}
    helpers = {
        examined_text.KEEP: lambda number, value: kept.__setitem__(number, _copy(value)),
        examined_text.KEPT: kept.__getitem__,
        examined_text.FAILED: end.failed,
        examined_text.CAUGHT: end.caught,
        examined_text.ALL_OF: lambda value: list(value) if type(value) in (list, dict, set) else value,
        "isinstance": lambda one, kinds: isinstance(one, kinds) or mirrors.is_subclass(type(one), kinds),
        "issubclass": mirrors.is_subclass,
    }
    scope.update(__name__="tests", __builtins__=builtins, **{examined_text.PROGRAM: solution})
    scope.update({name: one for name, one in helpers.items() if not (name in scope.tested and name in end.own)})
    module.__dict__.update(scope)
    _share_seeds(end)
    return scope


def _share_seeds(end: _TestsEnd) -> None:
    """Let `random.seed` of the tests hold for the program too."""
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            module, seed = sys.modules[name], sys.modules[name].seed

            def both(*args: mirrors.Value, _module: ModuleType = module, _seed: Callable[..., Any] = seed) -> None:
                _seed(*args)
                end.ask("seed", None, args, name=_module.__name__)

            module.__dict__["seed"] = both


def _copy(value: mirrors.Value) -> mirrors.Value:
    """A copy of plain containers, with all that is in them."""
    kind = type(value)
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    if kind in (list, tuple, set, deque):
        return kind(_copy(item) for item in value)
    return value[:] if kind in (bytearray, array) else value


def _restore(scope: _Scope, kept: Mapping[str, Any], own: Mapping[str, bool]) -> None:
    """Give names of the program's functions, which a test bound to values, back to the program."""
    scope.unbind()
    for name in [name for name in scope if own.get(name)]:
        value = scope[name]
        if name in kept:
            scope[name] = kept[name]
        elif not isinstance(value, types.FunctionType) and not (
            isinstance(value, type) and not issubclass(value, mirrors.Mirror)
        ):
            del scope[name]


def _run_test(end: _TestsEnd, test: str, tree: ast.Module, scope: _Scope) -> dict[str, object]:
    end.begin_test()
    end.expects_stops = "StopIteration" in test or "StopAsyncIteration" in test
    reason, checks = "", any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    try:
        scope.bind(tree)
        foreign = (end.names | {"solution"}) - scope.keys()
        program.run_tree(examined_text.watch(examined_text.guard(tree), foreign), scope, "<test>")
    except BaseException as error:  # noqa: BLE001 - a test that did not come to its end has failed
        reason = f"{type(error).__name__}: {error}".rstrip(": ")[:_REASON_CHARACTERS]
        if isinstance(error, OSError) and error is not end.raised_there:
            end.cannot(f"the tests need a file or a device, which their process does not have: {reason}")
        lacks_module = isinstance(error, ImportError) and error is not end.raised_there
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        lacks_name = end.lacks_name or isinstance(error, NameError) or bool(names & scope.tested)
        ours = lacks_module or not (end.ever_asked or lacks_name or isinstance(error, AssertionError))
        if ours and "solution" not in test and examined_text.PROGRAM not in test:
            return {"broken": reason}
    finally:
        sys.stdin, sys.stdout, sys.stderr, builtins.input = end.streams
    if end.gone:
        return {"passed": False, "reason": end.gone, "lost": True, "asked": True}
    if end.lie:
        reason = end.lie
    elif end.unsaid or (reason and not end.lacks_name and any(word in test for word in _UNSEEN)):
        why = end.unsaid or f"the tests look into another process, by patch or assertLogs; {reason}"
        return {"passed": False, "reason": why[:_REASON_CHARACTERS], "missing": True, "asked": True}
    elif not reason and end.failures:
        reason = f"AssertionError: {end.failures[0]}".rstrip(": ")[:_REASON_CHARACTERS]
        reason += "; the tests did not catch it"
    elif not reason and end.claim:
        return {"passed": False, "reason": end.claim, "missing": True, "asked": True}
    elif not reason and not end.asked and checks:
        reason = "the test asked the program for nothing"
    return {"passed": not reason, "reason": reason, "asked": end.asked}
