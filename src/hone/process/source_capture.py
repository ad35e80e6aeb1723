"""Functions and classes as names and text, so that another process, and a later resume, finds them.

Belongs here: the reference of an importable function or class (`module:name`), and the text of a module for one that
is not importable: a script's, a notebook's, or one made inside a function. No pickle: the text can be read, kept with a
run, and compared.
"""

import __future__

import ast
import builtins
import contextlib
import inspect
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias

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


def module_text(thing: Definition) -> str:
    """The text of a module that defines `thing` and everything that it uses from its place: imports, constants,
    functions and classes.

    Raises ConfigError for what has no text (a lambda, a definition in an interactive session), and for a used value
    that is neither importable nor a constant.
    """
    capture = _SourceCapture(root=thing)
    capture.define(thing)
    return capture.text()


@dataclass(slots=True)
class _SourceCapture:
    """Collector of definitions, each after those that it uses."""

    root: Definition
    imports: dict[str, str] = field(default_factory=dict[str, str])
    constants: dict[str, str] = field(default_factory=dict[str, str])
    definitions: dict[str, str] = field(default_factory=dict[str, str])
    under_way: set[str] = field(default_factory=set[str])
    postponed_annotations: bool = False

    def text(self) -> str:
        future = ["from __future__ import annotations"] if self.postponed_annotations else []
        head = "\n".join([*future, *self.imports.values(), *self.constants.values()])
        return "\n\n\n".join(filter(None, [head, *self.definitions.values()])) + "\n"

    def define(self, thing: Definition) -> None:
        """Add a definition and, before it, everything that it names."""
        name = thing.__name__
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
        if isinstance(value, ModuleType):
            self.imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, re.Pattern):
            self.imports["re"] = "import re as re"
            self.constants[name] = f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
        elif _is_constant(value):
            self.constants[name] = f"{name} = {value!r}"
        elif isinstance(value, FunctionType | type) and importable_name(value) is None:
            self.define(value)
            if name != value.__name__:
                self.definitions[name] = f"{name} = {value.__name__}"
        elif (place := _import_of(value)) is not None:
            self.imports[name] = f"from {place[0]} import {place[1]} as {name}"
        else:
            raise ConfigError(
                f"{_described(self.root)} uses {name}, a {type(value).__name__} that another process cannot be given: "
                "make it inside the function, or move both to a file and name that: 'path/to/file.py:name'"
            )

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
        source = textwrap.dedent(_class_source(thing) if isinstance(thing, type) else _function_source(thing))
        if isinstance(thing, FunctionType) and thing.__code__.co_flags & __future__.annotations.compiler_flag:
            self.postponed_annotations = True
        return source.rstrip()


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _function_source(function: FunctionType) -> str:
    if not function.__name__.isidentifier():
        raise ConfigError(f"{_described(function)} is a lambda, which has no text of its own: write it with def")
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        raise _no_source(function) from None


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


def _described(thing: Callable[..., object]) -> str:
    kind = "class" if isinstance(thing, type) else "function"
    return f"the {kind} {thing.__qualname__}"
