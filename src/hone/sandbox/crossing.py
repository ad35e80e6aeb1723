"""Values that cross between the process of a program and that of its tests, as lines of JSON.

plain values   None, bool, int, float and str as they are; other immutable ones of Python's library as `[tag, ...]`
containers     list, dict, set and the like: a copy at each end under one number. A message carries the contents of
               those that changed since the last one, so both ends see one object
the rest       stays in the process where it was made, under a number; the other end gets a mirror
"""

import base64
import datetime
import decimal
import fractions
import importlib
import inspect
import json
import operator
import sys
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType, TracebackType
from typing import Any, cast

from hone.sandbox import mirrors
from hone.sandbox.program import make_function

MAX_MESSAGE_BYTES = 1 << 24
_PLAIN = frozenset((type(None), bool, int, float, str))
_PURE_MODULES = frozenset(
    (
        "math",
        "cmath",
        "json",
        "re",
        "collections",
        "itertools",
        "functools",
        "heapq",
        "bisect",
        "string",
        "datetime",
        "statistics",
        "fractions",
        "decimal",
        "copy",
        "operator",
        "hashlib",
        "numpy",
        "typing",
    )
)

_NUMERIC = "biufcSUmM"
"""Kinds of numpy's data types whose bytes are their values."""
_KEPT = 2
"""References to a container that nothing but the table of containers holds, when they are counted."""


class CannotCrossError(Exception):
    """A value has no form in the other process."""


@dataclass(slots=True)
class _Shared:
    """A container that both ends hold."""

    value: mirrors.Value
    base: type
    pinned: bool
    """Its class is one of a program or of tests, so its methods live at one end: it is never given up."""
    last: list[Any] | None = None
    """Its items when they were last sent or received."""


def container_items(value: mirrors.Value, base: type) -> list[Any]:
    """Contents of a container, by the methods of Python's own class."""
    if base is bytearray:
        return [base64.b64encode(value).decode()]
    if base is array or base is _array_type():
        return [base64.b64encode(value.tobytes()).decode()]
    if issubclass(base, dict):
        return [part for pair in cast("Any", base).items(value) for part in pair]
    return [*cast("Any", base).__iter__(value)]


def fill_container(value: mirrors.Value, base: mirrors.Value, items: list[Any]) -> None:
    """Give a container these contents."""
    if base is bytearray:
        value[:] = base64.b64decode(items[0])
    elif base is array:
        value[:] = array(value.typecode, base64.b64decode(items[0]))
    elif base is _array_type():
        numpy = cast("Any", sys.modules["numpy"])
        value[...] = numpy.frombuffer(base64.b64decode(items[0]), value.dtype).reshape(value.shape)
    elif issubclass(base, dict):
        base.clear(value)
        for place in range(0, len(items), 2):
            base.__setitem__(value, items[place], items[place + 1])
    elif base is list:
        list.__setitem__(value, slice(None), items)
    else:
        base.clear(value)
        (base.update if base is set else base.extend)(value, items)


def _same(now: list[Any], before: list[Any] | None, base: type) -> bool:
    if before is None or len(now) != len(before):
        return False
    raw = base in (bytearray, array) or base is _array_type()
    return now == before if raw else all(map(operator.is_, now, before))


def _array_type() -> mirrors.Value:
    return sys.modules["numpy"].ndarray if "numpy" in sys.modules else None


@dataclass(slots=True)
class Crossing:
    """The tables of one end, and what the next message must tell beside its own content."""

    side: int
    """0 for the process of the tests, 1 for that of the program: numbers of the one are even."""
    mine: dict[int, object] = field(default_factory=dict[int, object])
    theirs: dict[int, Any] = field(default_factory=dict[int, Any])
    call: mirrors.Ask = print
    """How a function of the other end is called."""
    _my_numbers: dict[int, int] = field(default_factory=dict[int, int])
    _their_numbers: dict[int, int] = field(default_factory=dict[int, int])
    _shared: dict[int, _Shared] = field(default_factory=dict[int, _Shared])
    _shared_numbers: dict[int, int] = field(default_factory=dict[int, int])
    _next: int = 0
    _unsent: list[int] = field(default_factory=list[int])
    _new: list[Any] = field(default_factory=list[Any])
    _classes: list[Any] = field(default_factory=list[Any])
    _told: set[int] = field(default_factory=set[int])
    _filling: set[int] = field(default_factory=set[int])
    _dropped: list[int] = field(default_factory=list[int])
    _reading: int = 0
    """Messages that are being read: the hash of an object, say, is asked for while a set is filled."""

    # ----------------------------------------------------------------------------------------------------- messages

    def seal(self, body: dict[str, Any]) -> bytes:
        """A message of a body of encoded values, with what the other end must know to read it. Raises
        CannotCrossError."""
        contents: list[Any] = []
        for number, shared in list(self._shared.items()):
            if number not in self._filling and shared.last is not None:
                self._add_contents(number, shared, contents)
        while self._unsent:
            number = self._unsent.pop()
            self._add_contents(number, self._shared[number], contents)
        dropped = self._give_up()
        for key, value in (("new", self._new), ("classes", self._classes), ("contents", contents), ("drop", dropped)):
            if value:
                body[key] = value
        data = json.dumps(body).encode() + b"\n"
        self._new, self._classes = [], []
        if len(data) > MAX_MESSAGE_BYTES:
            raise CannotCrossError(f"a value of {len(data)} bytes; {MAX_MESSAGE_BYTES} are the most that cross at once")
        return data

    def _add_contents(self, number: int, shared: _Shared, contents: list[Any]) -> None:
        items = container_items(shared.value, shared.base)
        if not _same(items, shared.last, shared.base):
            shared.last = items
            contents.append([number, [self.encode(item) for item in items]])

    def _give_up(self) -> list[int]:
        """Numbers of containers that nothing at this end holds any more."""
        dropped: list[int] = []
        for number in list(self._shared):
            shared = self._shared[number]
            if not shared.pinned and number not in self._filling and sys.getrefcount(shared.value) <= _KEPT:
                self._forget(number)
                dropped.append(number)
        return dropped

    def _forget(self, number: int) -> None:
        shared = self._shared.pop(number, None)
        if shared is not None:
            del self._shared_numbers[id(shared.value)]

    def unseal(self, message: Mapping[str, Any]) -> None:
        """Take up what a message tells beside its own content; `release` comes when that has been decoded too."""
        self._reading += 1
        for facts in message.get("classes", ()):
            number = int(facts["number"])
            if number not in self.theirs:
                self._keep(number, mirrors.make_class(number, facts, [self.decode(base) for base in facts["bases"]]))
        for number, name, kind, detail in message.get("new", ()):
            self._make_shared(number, name, kind, detail)
        contents = message.get("contents", ())
        self._filling.update(number for number, _ in contents)
        for number, items in contents:
            shared = self._shared[number]
            fill_container(shared.value, shared.base, [self.decode(item) for item in items])
            shared.last = container_items(shared.value, shared.base)
            self._filling.discard(number)

    def release(self, message: Mapping[str, Any]) -> None:
        """Give up what the other end gave up."""
        self._reading -= 1
        self._dropped += message.get("drop", ())
        if not self._reading:
            for number in self._dropped:
                self._forget(number)
            self._dropped = []

    def _keep(self, number: int, value: mirrors.Value) -> mirrors.Value:
        self.adopt(number, value)
        return value

    def adopt(self, number: int, value: object) -> None:
        """Take a value of this end for the mirror of an object of the other."""
        self.theirs[number] = value
        self._their_numbers[id(value)] = number

    def number(self, value: object) -> int:
        """The number of an object of this end, which is kept from now on."""
        number = self._my_numbers.get(id(value))
        if number is None:
            number = self._number()
            self.mine[number] = value
            self._my_numbers[id(value)] = number
        return number

    def _number(self) -> int:
        self._next += 2
        return self._next + self.side

    # --------------------------------------------------------------------------------------------------- containers

    def _share(self, value: mirrors.Value, kind: type, base: type) -> list[Any]:
        number = self._shared_numbers.get(id(value))
        if number is None:
            number = self._number()
            own = kind is not base
            self._shared[number] = _Shared(value, base, pinned=own)
            self._shared_numbers[id(value)] = number
            detail: Any = None
            if base is deque:
                detail = value.maxlen
            elif base is array:
                detail = value.typecode
            elif base is defaultdict:
                detail = self.encode(value.default_factory)
            elif base is _array_type():
                detail = [value.dtype.str, list(value.shape)]
            self._new.append([number, base.__name__, self._class(kind) if own else None, detail])
            self._unsent.append(number)
        return ["@", number]

    def _make_shared(self, number: int, name: str, kind: mirrors.Value, detail: mirrors.Value) -> None:
        base: Any = _array_type() if name == "ndarray" else _CONTAINERS[name]
        value: Any
        if base is _array_type():
            numpy = cast("Any", sys.modules["numpy"])
            value = numpy.zeros(detail[1], dtype=numpy.dtype(detail[0]))
        elif kind is not None:
            value = base.__new__(self.theirs[kind], *([detail] if base is array else []))
        elif base is array:
            value = array(detail)
        elif base is deque:
            value = deque[Any](maxlen=detail)
        else:
            value = base()
        if base is defaultdict:
            vars(defaultdict)["default_factory"].__set__(value, self.decode(detail))
        self._shared[number] = _Shared(value, base, pinned=kind is not None)
        self._shared_numbers[id(value)] = number

    # ------------------------------------------------------------------------------------------------------- values

    def encode(self, value: mirrors.Value) -> mirrors.Value:
        """A value as JSON. What has no other form is numbered, and stays here. Raises CannotCrossError."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if (number := self._their_numbers.get(id(value))) is not None:
            return ["o", number]
        if (number := self._shared_numbers.get(id(value))) is not None:
            return ["@", number]
        if (pack := _PACK.get(kind)) is not None:
            try:
                return pack(self, value)
            except RecursionError:
                raise CannotCrossError("a value that is nested too deep") from None
        if kind in _CONTAINERS.values():
            return self._share(value, kind, kind)
        if kind is _array_type() and value.dtype.kind in _NUMERIC:
            return self._share(value, kind, kind)
        return self._encode_object(value, kind)

    def _encode_object(self, value: mirrors.Value, kind: type) -> mirrors.Value:
        """The form of what is neither plain nor a container of Python's own."""
        if isinstance(value, type):
            return self._encode_class(value)
        if isinstance(value, ModuleType) and (self.side == 0 or value.__name__ in _PURE_MODULES):
            return ["m", value.__name__]
        if (
            kind.__module__ == "numpy"
            and isinstance(value, sys.modules["numpy"].generic)
            and value.dtype.kind in _NUMERIC
        ):
            return ["n", value.dtype.str, base64.b64encode(value.tobytes()).decode()]
        for name, constant in mirrors.CONSTANTS.items():
            if value is constant:
                return ["k", name]
        if self.side == 0:  # functions of Python's library are the program's own there; what it hands over is not ours
            if (path := mirrors.global_path(value)) is not None:
                return ["g", *path]
            if isinstance(value, FunctionType):
                return self._encode_function(value)
            if isinstance(value, TracebackType):  # of the tests' frames, in which a program has nothing to look for
                return None
        return self._encode_instance(value, kind)

    def _encode_instance(self, value: mirrors.Value, kind: type) -> mirrors.Value:
        base = mirrors.payload_type(kind)
        if base in mirrors.CONTAINERS:
            return self._share(value, kind, base)
        if issubclass(base, BaseException):
            parts = [vars(BaseException)["args"].__get__(value), value.__cause__]
            if mirrors.global_path(kind):
                return ["e", self.encode(kind), *map(self.encode, parts)]
            return ["h", self.number(value), self._class(kind), *map(self.encode, parts)]
        data = [] if base is object else [self.encode(mirrors.atom(value, base))]
        return ["h", self.number(value), self._class(kind), *data]

    def _encode_class(self, value: type) -> mirrors.Value:
        path = mirrors.global_path(value)
        if path is not None and (self.side == 0 or _is_common(path[0], value)):
            loaded = self.side == 0 or path[0] in mirrors.DATA_MODULES  # others only where the tests imported them
            return ["g", *path] if loaded else ["g", *path, self._class(value)]
        return ["c", self._class(value)]

    def _class(self, kind: type) -> int:
        """The number of a class, which the next message describes if none did."""
        if (theirs := self._their_numbers.get(id(kind))) is not None:
            return theirs
        number = self.number(kind)
        if number not in self._told:
            self._told.add(number)
            facts = mirrors.describe_class(kind)
            bases = [self._encode_base(base) for base in facts["bases"]]
            self._classes.append({**facts, "number": number, "bases": bases})
        return number

    def _encode_base(self, base: type) -> mirrors.Value:
        is_data = base in mirrors.ATOMS or base in mirrors.CONTAINERS or issubclass(base, BaseException)
        return self.encode(base) if is_data or id(base) in self._their_numbers else ["c", self._class(base)]

    def _encode_function(self, value: FunctionType) -> mirrors.Value:
        number = self.number(value)
        try:
            parameters = list(inspect.signature(value).parameters.values())
        except (TypeError, ValueError):
            parameters = [
                inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD),
            ]
        facts = [
            [one.name, int(one.kind), *([] if one.default is one.empty else [self.encode(one.default)])]
            for one in parameters
        ]
        doc = value.__doc__ if isinstance(value.__doc__, str) else None
        return ["f", number, value.__name__, value.__qualname__, doc, facts, inspect.iscoroutinefunction(value)]

    def decode(self, form: mirrors.Value) -> mirrors.Value:
        """The value of a form. Raises KeyError, ValueError and the like for a form that is none."""
        if not isinstance(form, list):
            return form
        tag = cast("list[Any]", form)[0]
        return _UNPACK[tag](self, *form[1:])

    def _decode_object(
        self, number: int, kind: int, data: mirrors.Value = None, cause: mirrors.Value = None
    ) -> mirrors.Value:
        if number in self.theirs:
            return self.theirs[number]
        made = mirrors.make_instance(self.theirs[kind], self.decode(data), self.decode(cause))
        return self._keep(number, made)

    def _decode_global(self, module: str, name: str, otherwise: int | None = None) -> mirrors.Value:
        if self.side == 1:
            importlib.import_module(module)
        elif module not in sys.modules and otherwise is not None:
            return self.theirs[otherwise]
        value = mirrors.resolve(module, name)
        if self.side == 0 and not (isinstance(value, type) and _is_common(module, value)):
            raise ValueError(f"{module}.{name} is none of the classes that both ends have")
        return value

    def _decode_module(self, name: str) -> mirrors.Value:
        if self.side == 0 and name not in _PURE_MODULES:
            raise ValueError(name)
        return importlib.import_module(name)

    def _decode_exception(self, kind: mirrors.Value, arguments: mirrors.Value, cause: mirrors.Value) -> BaseException:
        made_of: Any = self.decode(kind)
        values = self.decode(arguments)
        try:
            error = made_of(*values)
        except Exception:  # noqa: BLE001 - it wants other arguments than it keeps
            error = made_of.__new__(made_of)
            error.args = values
        error.__cause__ = self.decode(cause)
        return error

    def _decode_function(
        self, number: int, name: str, qualname: str, doc: mirrors.Value, facts: mirrors.Value, is_async: mirrors.Value
    ) -> mirrors.Value:
        if number not in self.theirs:
            parameters = [(one[0], one[1], [self.decode(value) for value in one[2:]]) for one in facts]
            function = make_function(
                parameters, lambda args, named: self.call("call", self.theirs[number], args, named), is_async=is_async
            )
            function.__name__, function.__qualname__, function.__doc__ = name, qualname, doc
            self._keep(number, function)
        return self.theirs[number]


def _is_common(module: str, kind: type) -> bool:
    return module in mirrors.DATA_MODULES or issubclass(kind, BaseException)


def _scalar(dtype: str, data: str) -> mirrors.Value:
    numpy = cast("Any", sys.modules["numpy"])
    return numpy.frombuffer(base64.b64decode(data), numpy.dtype(dtype))[0]


def _moment(end: Crossing, value: mirrors.Value) -> mirrors.Value:
    names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    if isinstance(value, datetime.time):
        names = names[3:]
    parts = [operator.attrgetter(name)(value) for name in names]
    tag = "time" if isinstance(value, datetime.time) else "datetime"
    return [tag, parts, end.encode(value.tzinfo), value.fold]


_CONTAINERS: dict[str, type] = {kind.__name__: kind for kind in mirrors.CONTAINERS}
_PACK: Mapping[type, Callable[[Crossing, Any], Any]] = {
    bytes: lambda _, value: ["b", base64.b64encode(value).decode()],
    complex: lambda _, value: ["j", value.real, value.imag],
    tuple: lambda end, value: ["t", *map(end.encode, value)],
    frozenset: lambda end, value: ["s", *map(end.encode, value)],
    range: lambda _, value: ["range", value.start, value.stop, value.step],
    slice: lambda end, value: ["slice", *map(end.encode, (value.start, value.stop, value.step))],
    decimal.Decimal: lambda _, value: ["decimal", str(value)],
    fractions.Fraction: lambda _, value: ["fraction", value.numerator, value.denominator],
    datetime.date: lambda _, value: ["date", value.year, value.month, value.day],
    datetime.datetime: _moment,
    datetime.time: _moment,
    datetime.timedelta: lambda _, value: ["timedelta", value.days, value.seconds, value.microseconds],
    datetime.timezone: lambda end, value: ["timezone", end.encode(value.utcoffset(None)), value.tzname(None)],
}
_UNPACK: Mapping[str, Callable[..., Any]] = {
    "o": lambda end, number: end.mine[number],
    "@": lambda end, number: end._shared[number].value,
    "b": lambda _, data: base64.b64decode(data),
    "j": lambda _, real, imag: complex(real, imag),
    "t": lambda end, *items: tuple(map(end.decode, items)),
    "s": lambda end, *items: frozenset(map(end.decode, items)),
    "k": lambda _, name: mirrors.CONSTANTS[name],
    "n": lambda _, dtype, data: _scalar(dtype, data),
    "c": lambda end, number: end.theirs[number],
    "h": Crossing._decode_object,
    "g": Crossing._decode_global,
    "m": Crossing._decode_module,
    "e": Crossing._decode_exception,
    "f": Crossing._decode_function,
    "range": lambda _, *parts: range(*parts),
    "slice": lambda end, *parts: slice(*map(end.decode, parts)),
    "decimal": lambda _, text: decimal.Decimal(text),
    "fraction": lambda _, above, below: fractions.Fraction(above, below),
    "date": lambda _, *parts: datetime.date(*parts),
    "datetime": lambda end, parts, zone, fold: datetime.datetime(*parts, tzinfo=end.decode(zone), fold=fold),
    "time": lambda end, parts, zone, fold: datetime.time(*parts, tzinfo=end.decode(zone), fold=fold),
    "timedelta": lambda _, *parts: datetime.timedelta(*parts),
    "timezone": lambda end, offset, name: datetime.timezone(end.decode(offset), name),
}
