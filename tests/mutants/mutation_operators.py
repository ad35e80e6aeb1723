"""Mutations beyond those of mutmut: faults that are typical of losses.

Belongs here: operators in mutmut's form, from a node of libcst to its mutated forms. The file runs only in the
environment of `make mutants`.
"""

from collections.abc import Iterable, Iterator

import libcst as cst
from libcst import matchers

OPPOSITES = (
    ("low", "high"),
    ("log_low", "log_high"),
    ("lower", "upper"),
    ("max_increase", "max_decrease"),
    ("max_increase_nats", "max_decrease_nats"),
    ("positive", "negative"),
    ("praised", "blamed"),
    ("chosen", "rejected"),
    ("now", "then"),
    ("first", "second"),
    ("student", "teacher"),
)
"""Names that are easily confused, so that a block with both is also run with the two exchanged."""


class NameSwap(cst.CSTTransformer):
    """Exchange of two variables; keywords of calls and attributes stay."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__()
        self.partner = {one: other, other: one}

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        return updated_node.with_changes(value=self.partner.get(original_node.value, original_node.value))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)


def exchanged_opposites(node: cst.IndentedBlock) -> Iterator[cst.IndentedBlock]:
    """Exchange two opposite variables in a whole block: bounds that are swapped."""
    names = {found.value for found in matchers.findall(node, matchers.Name()) if isinstance(found, cst.Name)}
    for one, other in OPPOSITES:
        if one in names and other in names:
            swapped = cst.ensure_type(node.visit(NameSwap(one, other)), cst.IndentedBlock)
            if not swapped.deep_equals(node):
                yield swapped


def exchanged_arguments(node: cst.Call) -> Iterator[cst.Call]:
    """Exchange the values of two neighbouring arguments."""
    for place in range(len(node.args) - 1):
        first, second = node.args[place : place + 2]
        if first.star or second.star or first.value.deep_equals(second.value):
            continue
        swapped = (first.with_changes(value=second.value), second.with_changes(value=first.value))
        yield node.with_changes(args=[*node.args[:place], *swapped, *node.args[place + 2 :]])


def forgotten_detach(node: cst.Call) -> Iterator[cst.BaseExpression]:
    """Let a gradient through where it is stopped."""
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "detach" and not node.args:
        yield node.func.value


def exchanged_clamp(node: cst.Call) -> Iterable[cst.Call]:
    """Make an upper bound of a lower one, and the reverse."""
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in ("clamp", "clip"):
        return
    opposite = {"min": "max", "max": "min"}
    if any(one.keyword is None or one.keyword.value not in opposite for one in node.args):
        return
    yield node.with_changes(
        args=[one.with_changes(keyword=cst.Name(opposite[one.keyword.value])) for one in node.args if one.keyword]
    )


OPERATORS = (
    (cst.IndentedBlock, exchanged_opposites),
    (cst.Call, exchanged_arguments),
    (cst.Call, forgotten_detach),
    (cst.Call, exchanged_clamp),
)
"""Types of nodes with their operators, as in `mutmut.mutation.mutators.mutation_operators`."""
