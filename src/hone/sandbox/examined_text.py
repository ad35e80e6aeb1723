"""The text of tests: names that they use, and what they compare with what the program could change."""

import ast
import builtins
from collections.abc import Collection, Sequence
from typing import Any, cast

_BUILTINS = frozenset(dir(builtins))
PROGRAM = "__program__"
"""Name under which tests find the program's names, also those that Python has."""
KEEP, KEPT, ALL_OF = "__hone_keep", "__hone_kept", "__hone_all_of"
"""Functions that rewritten tests call: remember what a variable holds; read it again; what is in a container now."""
FAILED, CAUGHT = "__hone_failed", "__hone_caught"
"""Functions that rewritten tests call: the exception of an assertion that fails; the tests themselves caught it."""


def tested_builtins(setup: ast.Module, tests: Sequence[ast.Module]) -> set[str]:
    """Names of Python's own functions that are tested: those in a test that uses no other name of somebody else's.

    In `assert sum(1, 2) == 3` it is the program's `sum` that is tested; in `assert abs(f(1) - 0.5) < 1e-9` it is the
    program's `f`, and `abs` is a means of the tests.
    """
    tested: set[str] = set()
    common = _defined(setup)
    for tree in tests:
        used = _used(tree)
        own = _bound_first(tree) | _defined(tree) | common
        if not used - _BUILTINS - own:
            tested |= used & _BUILTINS - own
    return tested


def needed_names(trees: Sequence[ast.Module]) -> set[str]:
    """Names that a setup and tests use, and that neither they themselves nor earlier ones have bound: the program's."""
    needed: set[str] = set()
    bound = set(_BUILTINS)
    for tree in trees:
        bound |= _bound_first(tree) | _defined(tree)
        needed |= _used(tree) - bound
    return needed


def _used(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound_first(tree: ast.Module) -> set[str]:
    """Variables and parameters of a test, but for those of `x = x(...)`."""
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    circular = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
        and any(isinstance(part, ast.Name) and part.id == target.id for part in ast.walk(node.value))
    }
    return bound - circular | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _defined(tree: ast.Module) -> set[str]:
    """Names of functions, classes and imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update((alias.asname or alias.name).split(".")[0] for alias in aliases)
            case _:
                continue
    return names


def imports_of(setup: str) -> str:
    """The import statements of a text, as a text; empty for one that does not parse."""
    try:
        tree = ast.parse(setup)
    except (SyntaxError, ValueError):
        return ""
    return "\n".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))


def guard(tree: ast.Module) -> ast.Module:
    """Tests that look at what was there before, whatever the program does to its arguments: in `f(xs) == sorted(xs)`
    the right side sees `xs` as it was when the left began, and `for x in xs: ... f(xs)` goes through all of it."""
    names = _loaded([tree])
    if len(names) == len(set(names)):  # nothing is both handed over and looked at again
        return tree
    guarded = cast("ast.Module", _Guard().visit(tree))
    return ast.fix_missing_locations(guarded)


def watch(tree: ast.Module, program: Collection[str]) -> ast.Module:
    """Tests whose failed assertions are noted, until a handler of theirs catches them: not one that names an exception
    by a name of the `program`, nor the program itself. Tests that expect an AssertionError are left as they are."""
    raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
    raised |= {id(part) for one in ast.walk(tree) if isinstance(one, ast.ExceptHandler) and one.type
               for part in ast.walk(one.type)}  # fmt: skip
    if any(
        isinstance(node, ast.Name) and node.id == "AssertionError" and id(node) not in raised for node in ast.walk(tree)
    ):
        return tree
    return ast.fix_missing_locations(cast("ast.Module", _Watch(frozenset(program)).visit(tree)))


class _Watch(ast.NodeTransformer):
    """Rewrites assertions and the handlers of exceptions. `assert False` in a function that is no part of a `try` may
    be there for the program to catch."""

    def __init__(self, program: frozenset[str]) -> None:
        self._program, self._in_function, self._in_foreign = program, False, False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Assertions of a function."""
        kept, self._in_function = self._in_function, True
        self.generic_visit(node)
        self._in_function = kept
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Assertions of a coroutine."""
        return self.visit_FunctionDef(cast("Any", node))

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        """`assert x, y` -> `if not x: raise failed(y)`."""
        constant = not any(isinstance(one, ast.Name) for one in ast.walk(node.test))
        if constant and self._in_function and not self._in_foreign:
            return node
        failed = ast.Raise(_call(FAILED, *([node.msg] if node.msg else [])), None)
        return ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), node.test), [failed], []), node)

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        """`raise AssertionError(y)` -> `raise failed(y)`."""
        error = node.exc
        kind = error.func if isinstance(error, ast.Call) else error
        if isinstance(kind, ast.Name) and kind.id == "AssertionError":
            node.exc = _call(FAILED, *(error.args if isinstance(error, ast.Call) else []))
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """A handler of the tests' own begins with the note that it caught what it did."""
        foreign = [
            one.type is not None and bool({*_loaded([one.type])} & self._program - _BUILTINS) for one in node.handlers
        ]
        kept, self._in_foreign = self._in_foreign, self._in_foreign or any(foreign)
        self.generic_visit(node)
        self._in_foreign = kept
        for handler, is_foreign in zip(node.handlers, foreign, strict=True):
            if not is_foreign:
                handler.body.insert(0, ast.Expr(_call(CAUGHT)))
        return node


class _Guard(ast.NodeTransformer):
    """Rewrites comparisons and loops."""

    def __init__(self) -> None:
        self._count = 0

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """`f(xs) == sorted(xs)` -> `(keep(0, xs), f(xs) == sorted(kept(0)))[1]`, one copy for each name."""
        self.generic_visit(node)
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            return node
        passed = _names_in_calls([node.left])
        again = [name for name in _loaded(node.comparators) if name in passed]
        keeps: list[ast.expr] = []
        for name in dict.fromkeys(again):
            self._count += 1
            keeps.append(_call(KEEP, ast.Constant(self._count), ast.Name(name, ast.Load())))
            swap = _Swap(name, self._count)
            node.comparators = [swap.visit(one) for one in node.comparators]
        if not keeps:
            return node
        pair = ast.Tuple([*keeps, node], ast.Load())
        return ast.copy_location(ast.Subscript(pair, ast.Constant(len(keeps)), ast.Load()), node)

    def visit(self, node: ast.AST) -> ast.AST:
        """A node with the blocks of statements in it."""
        visited = super().visit(node)
        for block in (part for _, part in ast.iter_fields(visited) if isinstance(part, list)):
            for place, statement in enumerate(block):
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    self._keep_arguments(statement, statement.targets[0].id, block[place + 1 :])
        return visited

    def _keep_arguments(self, call: ast.Assign, result: str, later: Sequence[ast.stmt]) -> None:
        """`r = f(xs)` and then `r == sorted(xs)`: as if it were one comparison, until the tests change `xs`."""
        for name in sorted(_names_in_calls([call.value], foreign=True) - {result}):
            self._count += 1
            swap = _SwapLater(_Swap(name, self._count), result)
            for statement in later:
                if _changes(statement, name) or _changes(statement, result):
                    break
                swap.visit(statement)
            if swap.swapped:
                keep = _call(KEEP, ast.Constant(self._count), ast.Name(name, ast.Load()))
                pair = ast.Tuple([keep, call.value], ast.Load())
                call.value = ast.copy_location(ast.Subscript(pair, ast.Constant(1), ast.Load()), call.value)

    def visit_For(self, node: ast.For) -> ast.For:
        """`for x in xs` -> `for x in all_of(xs)`, if a call in the loop gets `xs` and nothing else changes it."""
        self.generic_visit(node)
        node.iter = self._loop_over(node.iter, node.body)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        """Nothing of a comprehension can change what it goes through but the program."""
        self.generic_visit(node)
        if isinstance(node.iter, ast.Name):
            node.iter = _call(ALL_OF, node.iter)
        return node

    def _loop_over(self, over: ast.expr, body: Sequence[ast.stmt]) -> ast.expr:
        if not isinstance(over, ast.Name) or over.id not in _names_in_calls(body):
            return over
        nodes = [node for statement in body for node in ast.walk(statement)]
        if any(isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == over.id for n in nodes):
            return over  # the tests change it themselves
        return _call(ALL_OF, over)


class _SwapLater(ast.NodeTransformer):
    """Replaces a variable by what it held, where statements compare it, in a call, with a result, or loop over it and
    look at the result."""

    def __init__(self, swap: "_Swap", result: str) -> None:
        self._swap, self._result, self.swapped = swap, result, False

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """The sides without the result see what was there before."""
        sides = [node.left, *node.comparators]
        if self._result in _loaded(sides) and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            for place, side in enumerate(sides):
                if self._swap.name in _names_in_calls([side]) and self._result not in _loaded([side]):
                    sides[place] = self._swap.visit(side)
                    self.swapped = True
        node.left, node.comparators = sides[0], sides[1:]
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """A loop over the variable goes through what was there before."""
        if isinstance(node.iter, ast.Name) and node.iter.id == self._swap.name and self._result in _loaded(node.body):
            node.iter, self.swapped = self._swap.visit(node.iter), True
        self.generic_visit(node)
        return node


class _Swap(ast.NodeTransformer):
    """Replaces a variable by what it held."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self._number = name, number

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The kept value instead of the variable."""
        return _call(KEPT, ast.Constant(self._number)) if node.id == self.name else node


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _loaded(nodes: Sequence[ast.AST]) -> list[str]:
    return [one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)]


def _changes(statement: ast.stmt, name: str) -> bool:
    """True for a statement that binds a variable, hands it over, or calls a method of it."""
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=other, ctx=ast.Store() | ast.Del()) if other == name:
                return True
            case ast.Attribute(value=ast.Name(id=other)) | ast.Subscript(value=ast.Name(id=other), ctx=ast.Store()):
                if other == name:
                    return True
            case _:
                continue
    return not isinstance(statement, ast.Assert | ast.For) and name in _names_in_calls([statement], foreign=True)


def _names_in_calls(nodes: Sequence[ast.AST], *, foreign: bool = False) -> set[str]:
    """Names that stand among the arguments of calls; `foreign`: of calls of others than Python's own functions."""
    calls = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
    if foreign:
        calls = [one for one in calls if not (isinstance(one.func, ast.Name) and one.func.id in _BUILTINS)]
    return set(_loaded([argument for call in calls for argument in [*call.args, *call.keywords]]))
