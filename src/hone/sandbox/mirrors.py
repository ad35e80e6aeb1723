"""Mirrors: what stands in one process of an examination for an object that lives in the other.

A class has a mirror class, so that `isinstance`, `except` and `type(x) is C` work as usual; an instance has an instance
of that. Operators, methods and attributes ask the other process. An instance of a subclass of `int`, `str`, `list` and
so on is one here too and holds the same value: what its class does not override is Python's own.
"""

import contextlib
import dataclasses
import operator
import sys
import types
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any, TypeAlias, cast, get_args

Value: TypeAlias = Any
"""A value of any type, which crosses between the processes."""
Ask: TypeAlias = Callable[..., Any]
"""What, of which object, with which arguments: the answer of the other process, which may raise."""
_asks: list[Ask] = []
_drivers: dict[int, Generator[None, None, object]] = {}
"""Coroutines of the other process that are awaited here, by `id` of their mirror."""

_BINARY = (
    "add",
    "sub",
    "mul",
    "matmul",
    "truediv",
    "floordiv",
    "mod",
    "divmod",
    "pow",
    "lshift",
    "rshift",
    "and",
    "xor",
    "or",
)
_UNARY = (
    "repr",
    "str",
    "bytes",
    "format",
    "lt",
    "le",
    "eq",
    "ne",
    "gt",
    "ge",
    "hash",
    "bool",
    "call",
    "len",
    "length_hint",
    "getitem",
    "setitem",
    "delitem",
    "missing",
    "iter",
    "next",
    "reversed",
    "contains",
    "neg",
    "pos",
    "abs",
    "invert",
    "complex",
    "int",
    "float",
    "index",
    "round",
    "trunc",
    "floor",
    "ceil",
    "enter",
    "exit",
    "aenter",
    "aexit",
    "await",
    "aiter",
    "anext",
    "get",
    "set",
    "delete",
    "fspath",
    "dir",
)
SPECIALS = frozenset(f"__{name}__" for name in (*_UNARY, *(way + name for name in _BINARY for way in ("", "r", "i"))))
"""Methods that the interpreter looks up on a class, and that are passed on."""
ATOMS: tuple[type, ...] = (int, float, complex, str, bytes, tuple, frozenset)
"""Types of immutable values: a mirror of an instance of a subclass holds its value."""
CONTAINERS: tuple[type, ...] = (Counter, OrderedDict, defaultdict, dict, list, set, bytearray, array, deque)
"""Types of containers, the most special first, of which there is a copy at both ends."""
DATA_MODULES = frozenset(
    (
        "builtins",
        "collections",
        "collections.abc",
        "datetime",
        "decimal",
        "fractions",
        "numbers",
        "abc",
        "enum",
        "typing",
        "types",
        "uuid",
    )
)
"""Modules whose classes are the same at both ends."""
_OF_CLASSES: Mapping[str, Callable[..., object]] = {
    "__iter__": iter,
    "__len__": len,
    "__getitem__": operator.getitem,
    "__contains__": operator.contains,
    "__reversed__": reversed,
}
_NAMED = (
    type,
    FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_NATIVE = frozenset(("__traceback__", "__context__", "__cause__", "__suppress_context__", "__notes__"))


def connect(ask: Ask) -> None:
    """Let the mirrors of this process ask by `ask`."""
    _asks[:] = [ask]


def global_path(value: object) -> tuple[str, str] | None:
    """Module and name under which Python's library, or numpy, has a class or function; None for any other."""
    if not (isinstance(value, _NAMED) or type(value).__module__ == "numpy"):
        return None
    owner = value.__objclass__ if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType) else value
    try:
        module, name = operator.attrgetter("__module__", "__qualname__")(owner)
        name = name if owner is value else f"{name}.{cast('Any', value).__name__}"
        path = (str(module), str(name))
        return path if resolve(*path) is value else None
    except (AttributeError, ImportError):
        return None


def resolve(module: str, name: str) -> object:
    """What Python's library, or numpy, has under a name. Raises ImportError and AttributeError."""
    top = module.partition(".")[0]
    if module not in sys.modules or not (top in sys.stdlib_module_names or top == "numpy"):
        raise ImportError(module)
    return operator.attrgetter(name)(sys.modules[module])


class _MirrorClass(type):
    """The class of mirror classes: calls, class attributes and so on ask the other process."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], members: dict[str, Any], /, **options: object
    ) -> "_MirrorClass":
        """A class of this process whose base is one of the other: there it is made too, with these members, and with
        the options of the class statement."""
        if not _asks:  # the roots below
            return type.__new__(cls, name, bases, members)
        made = type.__new__(cls, name, bases, {"__slots__": (), **members})
        left = {
            key: value for key, value in members.items() if key not in ("__module__", "__qualname__", "__classcell__")
        }
        _asks[0]("subclass", None, (name, bases, left, made), options)
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], /, **_: object) -> None:
        type.__init__(cls, name, bases, members)

    @property
    def __mro__(cls) -> tuple[type, ...]:
        """The classes that the other process has, without what makes mirrors of them."""
        return tuple(base for base in type.mro(cls) if base not in _ROOTS)

    @property
    def __bases__(cls) -> tuple[type, ...]:  # pyright: ignore - a view of it
        """The bases that the class has in the other process."""
        bases = vars(type)["__bases__"].__get__(cls)
        return tuple(base for base in bases if base not in _ROOTS) or (object,)

    def __call__(cls, *args: object, **named: object) -> object:
        return _asks[0]("call", cls, args, named)

    def __getattr__(cls, name: str) -> object:
        if cls is Mirror or name == "__abstractmethods__":
            raise AttributeError(name)
        return _asks[0]("read", cls, name=name)

    def __setattr__(cls, name: str, value: object) -> None:
        _asks[0]("write", cls, (value,), name=name)

    def __delattr__(cls, name: str) -> None:
        _asks[0]("erase", cls, name=name)

    def __iter__(cls) -> Iterator[Any]:
        return _asks[0]("special", cls, name="__iter__")

    def __reversed__(cls) -> Iterator[Any]:
        return _asks[0]("special", cls, name="__reversed__")

    def __len__(cls) -> int:
        return _asks[0]("special", cls, name="__len__")

    def __bool__(cls) -> bool:
        return True

    def __getitem__(cls, key: object) -> object:
        return _asks[0]("special", cls, (key,), name="__getitem__")

    def __contains__(cls, item: object) -> bool:
        return _asks[0]("special", cls, (item,), name="__contains__")


class Mirror(metaclass=_MirrorClass):
    """An object of the other process."""

    __slots__ = ("__weakref__",)

    def __getattr__(self, name: str) -> object:
        return _asks[0]("read", self, name=name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _NATIVE:
            object.__setattr__(self, name, value)
        else:
            _asks[0]("write", self, (value,), name=name)

    def __delattr__(self, name: str) -> None:
        _asks[0]("erase", self, name=name)

    @property
    def __dict__(self) -> dict[str, Any]:  # pyright: ignore - it lives there
        return _asks[0]("read", self, name="__dict__")

    def __copy__(self) -> object:
        return _asks[0]("copy", self)

    def __deepcopy__(self, _memo: object) -> object:
        return _asks[0]("deepcopy", self)

    def __reduce_ex__(self, _protocol: object) -> Value:
        return _asks[0]("reduce", self)


class _Attribute:
    """A name in a class of the other process that is no function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> object:
        return _asks[0]("read", owner if instance is None else instance, name=self.name)

    def __set__(self, instance: object, value: object) -> None:
        _asks[0]("write", instance, (value,), name=self.name)

    def __delete__(self, instance: object) -> None:
        _asks[0]("erase", instance, name=self.name)


class _Doc:
    """The docstring of a class, or of a function that is an instance of it."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type) -> object:
        return self.text if instance is None else _asks[0]("read", instance, name="__doc__")


def _forward(what: str, name: str, owner: int = 0) -> Callable[..., object]:
    def _function(self: object, *args: object, **named: object) -> object:
        return _asks[0](what, self, args, named, name=name, owner=owner)

    _function.__name__ = name
    return _function


_SPECIAL_FUNCTIONS = {name: _forward("special", name) for name in SPECIALS}


class _MirrorCoroutine(Mirror):
    """A coroutine of the other process, whose event loop runs it."""

    __slots__ = ()

    def _driver(self) -> Generator[None, None, object]:
        if id(self) not in _drivers:
            _drivers[id(self)] = cast("Generator[None, None, object]", _SPECIAL_FUNCTIONS["__await__"](self))
        return _drivers[id(self)]

    def send(self, value: None) -> object:
        """Let it run for a while."""
        return self._driver().send(value)

    def throw(self, *error: Value) -> object:
        """Raise an exception in what waits for it here."""
        return self._driver().throw(*error)

    def close(self) -> None:
        """Wait for it no more."""
        self._driver().close()


_ROOTS = (Mirror, _MirrorCoroutine)


# -------------------------------------------------------------------------------------------------------------- classes

_also: dict[type, tuple[type, ...]] = {}
"""Classes of Python's library of which a mirrored class is a subclass, though its mirror is not."""
_TYPES = {kind.__qualname__: kind for kind in vars(types).values() if isinstance(kind, type)}


@cache
def describe_class(kind: type) -> dict[str, Any]:
    """What the other process needs for a mirror of a class; `bases` are classes of its own, or data types."""
    members = kind.__dict__
    library = kind.__module__.partition(".")[0] in sys.stdlib_module_names or kind.__module__.startswith("numpy")
    if library:
        base = payload_type(kind)
        present = {name for one in kind.__mro__ for name in one.__dict__}
        own = {name for name in present & SPECIALS if _member(kind, name) is not _member(base, name)}
        bases, functions, others = (() if base is object else (base,)), list[str](), list[str]()
    else:
        own = {name for name in members if name in SPECIALS and members[name] is not None}
        bases = tuple(base for base in kind.__bases__ if base is not object)
        public = [name for name in members if not name.startswith("__") or name == "__init__"]
        functions = [name for name in public if isinstance(members[name], FunctionType)]
        others = [name for name in public if name not in functions]
    return {
        "name": kind.__name__,
        "module": str(kind.__module__),
        "qualname": kind.__qualname__,
        "doc": kind.__doc__ if isinstance(kind.__doc__, str) else None,
        "bases": bases,
        "specials": sorted(own),
        "methods": functions,
        "names": others,
        "unhashable": "__hash__" in members and members["__hash__"] is None,
        "also": [path for base in kind.__mro__ if (path := global_path(base)) and base is not object],
        "kind": kind.__qualname__ if library and kind.__qualname__ in _TYPES else "",
    }


def _member(kind: type, name: str) -> object:
    return next((one.__dict__[name] for one in kind.__mro__ if name in one.__dict__), None)


def make_class(number: int, facts: Mapping[str, Any], bases: Sequence[type]) -> type:
    """The mirror of a class that the other process described."""
    wrong = [name for name in (*facts["names"], *facts["methods"]) if name.startswith("__") and name != "__init__"]
    if wrong:
        raise ValueError(f"{wrong[0]} is not among the methods that a mirror passes on so")
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": str(facts["module"]),
        "__qualname__": str(facts["qualname"]),
        "__doc__": _Doc(facts["doc"]),
    }
    members |= {name: _Attribute(name) for name in facts["names"]}
    members |= {name: _forward("method", name, number) for name in facts["methods"]}
    members |= {name: _SPECIAL_FUNCTIONS[name] for name in facts["specials"]}
    if facts["unhashable"]:
        members["__hash__"] = None
    if (real := _TYPES.get(facts["kind"])) is not None:
        members["__class__"] = property(lambda _: real)
    root = _MirrorCoroutine if facts["kind"] == "coroutine" else Mirror
    mirrored = any(issubclass(base, Mirror) for base in bases)
    for parents in ((*bases,) if mirrored else (root, *bases), (root,)):
        try:
            made = type.__new__(_MirrorClass, str(facts["name"]), parents, members)
            break
        except TypeError:  # bases that cannot stand side by side here
            continue
    else:
        raise TypeError(f"class {facts['name']!r} has no mirror")
    also = [] if real is None else [real]
    for module, name in facts["also"]:
        with contextlib.suppress(ImportError, AttributeError):  # this process has no such module
            also.append(cast("type", resolve(str(module), str(name))))
    _also[made] = tuple(kind for kind in also if isinstance(kind, type))
    return made


def payload_type(kind: type) -> type:
    """The type of data that instances of a class are: an atom, a container, an exception, or object."""
    for base in kind.__mro__:
        if base in ATOMS or base in CONTAINERS or (base.__module__ == "builtins" and issubclass(base, BaseException)):
            return base
    return object


_TO_BASE: Mapping[type, Callable[[Any], Any]] = {
    int: int.__index__,
    float: float.__float__,
    str: str.__str__,
    complex: complex.__complex__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}


def atom(value: object, base: type) -> object:
    """The value of an instance of a subclass of an atom, by no method of that subclass."""
    return _TO_BASE[base](value)


def make_instance(kind: type, data: object, cause: BaseException | None = None) -> Value:
    """An instance of a mirror class, which holds `data`: the value of an atom, or the arguments of an exception."""
    base: Value = payload_type(kind)
    if issubclass(base, BaseException):
        arguments = cast("tuple[object, ...]", data)
        made = base.__new__(kind, *arguments)
        vars(BaseException)["args"].__set__(made, arguments)
        made.__cause__ = cause
        return made
    if base in ATOMS:
        return base.__new__(kind, data)
    return base.__new__(kind)


def is_subclass(kind: Value, kinds: Value) -> bool:
    """`issubclass` for tests: a mirror is also a subclass of the classes of Python's library that its class is."""
    if issubclass(kind, kinds):
        return True
    wanted = kinds if isinstance(kinds, tuple) else cast("tuple[Any, ...]", get_args(kinds)) or (kinds,)
    also = {other for base in cast("type", kind).__mro__ for other in _also.get(base, ())}
    return any(isinstance(one, type) and any(issubclass(other, one) for other in also) for one in wanted)


def find_special(value: object, name: str) -> Callable[..., Any]:
    """A method that the interpreter would look up on the class of a value. Raises AttributeError."""
    if isinstance(value, type) and name in _OF_CLASSES:
        function = _OF_CLASSES[name]
        return lambda *args: function(value, *args)
    for base in cast("type", type(value)).__mro__:
        if name in base.__dict__:
            member = base.__dict__[name]
            if member is None:
                break
            return member.__get__(value, type(value))
    raise AttributeError(f"{type(value).__name__!r} object has no {name}")


CONSTANTS: Mapping[str, object] = {
    "NotImplemented": NotImplemented,
    "Ellipsis": Ellipsis,
    **{name: vars(dataclasses)[name] for name in ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR")},
}
"""Objects of which there is one at each end."""
