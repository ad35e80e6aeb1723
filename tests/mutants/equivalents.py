"""Mutants that are the same function by a rule, and the list of other survivors, each with its reason.

The rules: arguments of a symmetric function, or addends, in another order; numpy's None where float64 is asked for,
which is the same; the last axis of a table as 1 instead of -1; and metrics that are not detached, because
`LossTerms.metrics` computes them without gradient and a test holds every loss to that. Texts of errors (`raise`) are
not mutated.
"""

import ast
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

SURVIVORS = Path(__file__).with_name("survivors.toml")
SYMMETRIC = frozenset(
    ("minimum", "maximum", "min", "max", "logaddexp", "dot", "mse_loss", "huber_loss", "logical_and", "logical_or")
)
"""Functions of two arguments whose order has no effect."""


class CanonicalForm(ast.NodeTransformer):
    """One form for all functions that are the same by a rule."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else _plain_name(node.func)
        if name in SYMMETRIC and len(node.args) >= 2:
            places = slice(None) if name in ("min", "max") else slice(2)
            node.args[places] = sorted(node.args[places], key=ast.dump)
        if name == "clip" and len(node.args) == 3:
            # min(max(x, low), high): x and low may change places
            node.args[:2] = sorted(node.args[:2], key=ast.dump)
        if name == "astype" and len(node.args) == 1 and _is_none(node.args[0]):
            node.args = [ast.parse("np.float64", mode="eval").body]
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        if node.arg == "dim" and ast.unparse(node.value) in ("+1", "-1"):
            node.value = ast.Constant(-1)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add):
            node.left, node.right = sorted((node.left, node.right), key=ast.dump)
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        node.values = [WithoutDetach().visit(value) for value in node.values]
        self.generic_visit(node)
        return node


class WithoutDetach(ast.NodeTransformer):
    """`x.detach()` as `x`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
            return node.func.value
        return node


def _plain_name(function: ast.expr) -> str:
    """Name of a function that is called by its name alone."""
    return function.id if isinstance(function, ast.Name) else ""


def same_by_rule(before: str, after: str) -> bool:
    """Whether two sources of a function have the same canonical form."""
    return _canonical(before) == _canonical(after)


def _canonical(source: str) -> str:
    return ast.dump(CanonicalForm().visit(ast.parse(textwrap.dedent(source))))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A mutant that no test kills, by the lines that it changes."""

    function: str
    """Module and name: `credit.group.batch_relative`."""
    was: str
    becomes: str


def listed_survivors() -> dict[Survivor, str]:
    """Survivors of `survivors.toml` with their reasons. Raises ValueError for one without a reason."""
    found: dict[Survivor, str] = {}
    for entry in tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", []):
        survivor = Survivor(function=entry["function"], was=entry["was"], becomes=entry["becomes"])
        if not entry["reason"].strip():
            raise ValueError(f"{SURVIVORS.name}: no reason for {survivor.function}: {survivor.becomes}")
        found[survivor] = entry["reason"]
    return found
