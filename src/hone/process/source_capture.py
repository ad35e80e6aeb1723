"""Functions, classes and callable objects as names and text, so that another process, and a later resume, finds them.

Belongs here: the reference of an importable function or class (`module:name`), and the text of a module for one that
is not importable: a script's, a notebook's, one made inside a function, a lambda, a partial, or an object that is
called. No pickle: the text can be read, kept with a run, and compared.
"""

import __future__

import ast
import builtins
import contextlib
import functools
import hashlib
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias, TypeGuard, cast

from hone.core.errors import ConfigError

Definition: TypeAlias = FunctionType | type


def importable_name(thing: Definition) -> str | None:
    """`module:name` if another process can import a function or class by it; None for a script's, a notebook's, or one
    made inside a function."""
    module, name = thing.__module__, thing.__qualname__
    home = sys.modules.get(module)
    if module == "__main__" or home is None or not home.__spec__ or not name.isidentifier():
        return None
    return f"{module}:{name}" if vars(home).get(name) is thing else None


def module_text(thing: Callable[..., object]) -> tuple[str, str]:
    """A name, and the text of a module that defines `thing` by it, with everything that it uses from its place:
    imports, constants, functions, classes, and objects as they are now.

    Raises ConfigError for what has no text (a definition in an interactive session, a function written in C), and for a
    used value that is neither importable nor made of constants.
    """
    capture = _SourceCapture(root=thing)
    if isinstance(thing, FunctionType | type) and thing.__name__.isidentifier():
        capture.define(thing)
        return thing.__name__, capture.text()
    expression = capture.expression(thing)
    inner = thing
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[object]", inner).func
    word = inner.__name__ if isinstance(inner, FunctionType | type | MethodType) else type(inner).__name__
    name = f"{word.strip('<>')}_{hashlib.sha256(expression.encode()).hexdigest()[:6]}"
    capture.definitions[name] = f"{name} = {expression}"
    return name, capture.text()


@dataclass(slots=True)
class _SourceCapture:
    """Collector of definitions, each after those that it uses."""

    root: Callable[..., object]
    imports: dict[str, str] = field(default_factory=dict[str, str])
    constants: dict[str, str] = field(default_factory=dict[str, str])
    definitions: dict[str, str] = field(default_factory=dict[str, str])
    under_way: set[str] = field(default_factory=set[str])
    held: dict[str, object] = field(default_factory=dict[str, object])
    """Everything that is defined, by its name."""
    postponed_annotations: bool = False

    def text(self) -> str:
        future = ["from __future__ import annotations"] if self.postponed_annotations else []
        head = "\n".join([*future, *self.imports.values(), *self.constants.values()])
        return "\n\n\n".join(filter(None, [head, *self.definitions.values()])) + "\n"

    def define(self, thing: Definition) -> None:
        """Add a definition and, before it, everything that it names."""
        name = thing.__name__
        self._hold(name, thing)
        if name in self.definitions or name in self.under_way:
            return
        self.under_way.add(name)
        source = self._source(thing)
        tree = ast.parse(source)
        seen = _namespace(thing)
        self._refuse_missing(tree, seen)
        for used in sorted(_names_in(tree) - {name}):
            if used in seen:
                self._add(used, seen[used])
        self.definitions[name] = source

    def _add(self, name: str, value: object) -> None:
        self._hold(name, value)
        if isinstance(value, ModuleType):
            self.imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, re.Pattern):
            self.imports["re"] = "import re as re"
            self.constants[name] = f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
        elif _is_constant(value):
            self.constants[name] = f"{name} = {value!r}"
        elif _is_definition(value) and importable_name(value) is None:
            self.define(value)
            if name != value.__name__:
                self.definitions[name] = f"{name} = {value.__name__}"
        elif (place := _import_of(value)) is not None:
            self.imports[name] = f"from {place[0]} import {place[1]} as {name}"
        elif name not in self.under_way:
            self.under_way.add(name)
            self.definitions[name] = f"{name} = {self.expression(value, name)}"

    def _hold(self, name: str, value: object) -> None:
        """Raise ConfigError for another value of a name: definitions of different places see different ones."""
        if self.held.setdefault(name, value) is not value and not (_is_constant(value) and self.held[name] == value):
            raise ConfigError(
                f"{_described(self.root)} uses two things named {name}, of different places: rename one of them"
            )

    def expression(self, value: object, name: str = "") -> str:
        """An expression that makes a value again; what it needs is defined before. `name` is that of the value.

        Raises ConfigError for a value that is neither importable, nor a constant, nor made of such.
        """
        if _is_constant(value):
            return repr(value)
        if _is_definition(value):
            self._add(value.__name__, value)
            return value.__name__
        if isinstance(value, FunctionType):
            return self._lambda(value)
        if isinstance(value, BuiltinFunctionType) and (place := _import_of(value)) is not None:
            self._add(place[1], value)
            return place[1]
        if isinstance(value, MethodType):
            return f"{self.expression(value.__self__, name)}.{value.__name__}"
        if isinstance(value, functools.partial):
            self.imports["functools"] = "import functools as functools"
            bound = cast("functools.partial[object]", value)
            parts = [bound.func, *bound.args]
            written = [self.expression(part, name) for part in parts]
            written += [f"{key}={self.expression(part, key)}" for key, part in bound.keywords.items()]
            return f"functools.partial({', '.join(written)})"
        kind = type(value)
        has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        if kind.__new__ is object.__new__ and not has_slots and "__dict__" in dir(kind):
            self.definitions["_with_state"] = _WITH_STATE
            state = [f"{key!r}: {self.expression(part, f'{name}.{key}')}" for key, part in vars(value).items()]
            return f"_with_state({self.expression(kind, name)}, {{{', '.join(state)}}})"
        raise ConfigError(
            f"{_described(self.root)} uses {name.strip('.') or 'a value'}, a {kind.__name__} that another process "
            "cannot be given: make it inside the function, or move both to a file and name that: 'path/to/file.py:name'"
        )

    def _lambda(self, function: FunctionType) -> str:
        """The text of a lambda, with its defaults as they are; everything that it names is defined before."""
        node, seen = _lambda_node(function), _namespace(function)
        for used in sorted(_names_in(node.body)):
            if used in seen:
                self._add(used, seen[used])

        def written(value: object) -> ast.expr:
            return ast.parse(self.expression(value), mode="eval").body

        named = function.__kwdefaults__ or {}
        node.args.defaults = [written(value) for value in function.__defaults__ or ()]
        node.args.kw_defaults = [written(named[one.arg]) if one.arg in named else None for one in node.args.kwonlyargs]
        return ast.unparse(node)

    def _refuse_missing(self, tree: ast.Module, seen: Mapping[str, object]) -> None:
        """Raise ConfigError for a decorator, default or base class that only the function around it knew."""
        for node in tree.body:
            early: list[ast.AST] = []
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                early += node.decorator_list
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                early += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            if isinstance(node, ast.ClassDef):
                early += [*node.bases, *node.keywords]
            missing = set[str]().union(*map(_names_in, early)) - seen.keys() - vars(builtins).keys()
            if missing:
                raise ConfigError(
                    f"{_described(self.root)} needs {', '.join(sorted(missing))} where it is defined, which is "
                    "local to a function: move it to the top of the file"
                )

    def _source(self, thing: Definition) -> str:
        try:
            source = textwrap.dedent(_class_source(thing) if isinstance(thing, type) else inspect.getsource(thing))
        except (OSError, TypeError):
            raise _no_source(thing) from None
        if isinstance(thing, FunctionType) and thing.__code__.co_flags & __future__.annotations.compiler_flag:
            self.postponed_annotations = True
        return source.rstrip()


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _lambda_node(function: FunctionType) -> ast.Lambda:
    """The lambda's place in the text of its file: the innermost one around all its instructions."""
    code = function.__code__
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        raise _no_source(function) from None
    spans = [span for span in code.co_positions() if None not in span and span[2] != span[3]]
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda)
        and all(
            (node.lineno, node.col_offset) <= (span[0], span[2])
            and (span[1], span[3]) <= (node.end_lineno, node.end_col_offset)
            for span in cast("list[tuple[int, int, int, int]]", spans)
        )
    ]
    if not spans or not around:
        raise _no_source(function)
    return max(around, key=lambda node: (node.lineno, node.col_offset))


def _class_source(made: type) -> str:
    """Text of a class. The standard library finds none in a notebook: there its methods know the cell."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(made)
    for code in _codes(made):
        lines = linecache.getlines(code.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if not isinstance(node, ast.ClassDef) or node.name != made.__name__:
                continue
            if node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):  # not another class of this name
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno])
    raise _no_source(made)


def _codes(made: type) -> list[CodeType]:
    return [member.__code__ for member in vars(made).values() if isinstance(member, FunctionType)]


def _no_source(thing: Definition) -> ConfigError:
    return ConfigError(
        f"{_described(thing)} was typed where Python keeps no text of it (an interactive session, or standard input): "
        "write it to a file and run that, or name it: 'path/to/file.py:name'"
    )


def _namespace(thing: Definition) -> dict[str, object]:
    """Names that a definition sees, without the builtins: those of its module, and those of a function around it."""
    if isinstance(thing, FunctionType):
        functions, seen = [inspect.unwrap(thing)], dict[str, object]()
    else:
        functions = [member for member in vars(thing).values() if isinstance(member, FunctionType)]
        seen = {
            **(vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}),
            **{base.__name__: base for base in thing.__mro__[1:]},
        }
    for function in functions:
        seen |= function.__globals__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        seen |= {name: cell.cell_contents for name, cell in cells if name != "__class__"}
    return {name: value for name, value in seen.items() if vars(builtins).get(name) is not value}


def _is_constant(value: object) -> bool:
    """True for numbers, text and containers of them: their text is their value."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _import_of(value: object) -> tuple[str, str] | None:
    """Module and name of anything that a module holds under its own name: functions written in C, classes, aliases."""
    if isinstance(value, FunctionType | type):
        name = importable_name(value)
        return None if name is None else (name.partition(":")[0], name.partition(":")[2])
    places = [
        (home.__name__, name)
        for home in list(sys.modules.values())
        if isinstance(home, ModuleType) and home.__name__ != "__main__" and home.__spec__ is not None
        for name, held in list(vars(home).items())
        if held is value and name.isidentifier() and not name.startswith("_")
    ]
    # The shortest name, so that the text does not depend on what happens to be imported in which order.
    return min(places, key=lambda place: (place[0].count("."), place), default=None)


def _is_definition(value: Any) -> TypeGuard[Definition]:  # noqa: ANN401 - anything
    """True for a class, and for a function with a name."""
    return isinstance(value, type) or (isinstance(value, FunctionType) and value.__name__.isidentifier())


def _described(thing: Callable[..., object]) -> str:
    if isinstance(thing, FunctionType | type):
        return f"the {'class' if isinstance(thing, type) else 'function'} {thing.__qualname__}"
    return f"the {type(thing).__name__} object"


_WITH_STATE: Final = """
def _with_state(kind, state):
    made = kind.__new__(kind)
    vars(made).update(state)
    return made
""".strip()
"""Makes an object with the attributes that another one had."""
