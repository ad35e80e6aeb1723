"""Comparisons of a module, and its source with each of them as a call that can be noted and exchanged."""

import ast
from dataclasses import dataclass

ORDINALS = ("1st", "2nd", "3rd", "4th", "5th")
NEIGHBOURS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSite:
    """One `<`, `<=`, `>` or `>=`."""

    number: int
    module: str
    line: int
    operator: str
    comparison: str
    """Source of the whole comparison, for a chain with the place of the operator: `0 < x <= 1 (2nd)`."""


class _Calls(ast.NodeTransformer):
    """Comparisons as calls of `hone.comparison_runtime`."""

    def __init__(self, module: str, first: int) -> None:
        self.module, self.next = module, first
        self.sites: list[ComparisonSite] = []

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        if not any(type(one) in NEIGHBOURS for one in node.ops):
            self.generic_visit(node)
            return node
        source = ast.unparse(node)
        parts: list[ast.expr] = []
        for place, operator in enumerate(node.ops):
            sign = NEIGHBOURS.get(type(operator), "")
            parts.append(ast.Constant(self.next if sign else -1))
            if sign:
                text = source if len(node.ops) == 1 else f"{source} ({ORDINALS[place]})"
                self.sites.append(
                    ComparisonSite(
                        number=self.next, module=self.module, line=node.lineno, operator=sign, comparison=text
                    )
                )
                self.next += 1
        self.generic_visit(node)
        name = ast.Name("_noted_comparison", ast.Load())
        if len(node.ops) == 1:
            sign = ast.Constant(NEIGHBOURS[type(node.ops[0])])
            return ast.Call(name, [parts[0], sign, node.left, node.comparators[0]], [])
        return self._chain(node, parts, name)

    def _chain(self, node: ast.Compare, numbers: list[ast.expr], name: ast.Name) -> ast.expr:
        """`a < b <= c` as `a < b and b <= c`, with b evaluated once."""
        tests: list[ast.expr] = []
        left = node.left
        for place, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            kept, again = right, right
            if place < len(node.ops) - 1 and not isinstance(right, ast.Name | ast.Constant):
                held = f"_held_{self.next}_{place}"
                kept = ast.NamedExpr(ast.Name(held, ast.Store()), right)
                again = ast.Name(held, ast.Load())
            sign = NEIGHBOURS.get(type(operator), "")
            tests.append(
                ast.Call(name, [numbers[place], ast.Constant(sign), left, kept], [])
                if sign
                else ast.Compare(left, [operator], [kept])
            )
            left = again
        return ast.BoolOp(ast.And(), tests)


def instrumented(source: str, module: str, first: int) -> tuple[str, list[ComparisonSite]]:
    """The source with comparisons as calls, and the comparisons, numbered from `first`."""
    tree = ast.parse(source)
    calls = _Calls(module, first)
    tree = calls.visit(tree)
    if calls.sites:
        place = next(
            index
            for index, node in enumerate(tree.body)
            if not isinstance(node, ast.Expr) and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        )
        line = ast.ImportFrom("hone.comparison_runtime", [ast.alias("compared", "_noted_comparison")], 0)
        tree.body.insert(place, line)
    return ast.unparse(ast.fix_missing_locations(tree)), calls.sites
