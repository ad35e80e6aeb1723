"""Nodes of syntax trees, of the whole source in seconds: `ast.walk` asks each node for fields that it does not have."""

import ast
from collections import deque
from collections.abc import Iterator


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The tree and every node below it, in the order of `ast.walk`."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        for value in vars(node).values():
            if isinstance(value, list):
                waiting += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below a node; expressions, which hold no definition, are not visited."""
    waiting = deque([tree])
    while waiting:
        for value in vars(waiting.popleft()).values():
            if isinstance(value, list):
                below = [one for one in value if isinstance(one, ast.AST) and not isinstance(one, ast.expr)]
                waiting += below
                yield from (one for one in below if isinstance(one, ast.stmt))
