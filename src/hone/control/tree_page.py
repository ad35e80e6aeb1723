"""HTML page of a distilled tree: its measures, the drawn tree, what each number contributes, decisions explained.

Belongs here: the sections of the page and the layout of the drawing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from hone.control.distill import DistilledTree
from hone.control.networks.decision_tree import LEAF, DecisionTree, Explanation, explain
from hone.estimators.means import Estimate
from hone.run.report.html import Html, collapsible, element, format_number, join, page, styled, table, text
from hone.run.report.svg import IntervalRow, LabelledBar, curve_plot, horizontal_bars, interval_plot, label
from hone.run.store.durable import replace_file

_MOST_ENDS: Final = 8
"""Boxes side by side in the drawing; what is below stands in the code."""
_WIDE, _LEVEL_HEIGHT, _BOX_HEIGHT = 960.0, 84.0, 40.0
_EXAMPLES: Final = 4


def write_tree_page(path: Path, made: DistilledTree, name: str) -> None:
    """Write the page of a tree as an HTML document, atomically. Raises ResourceError."""
    title = f"{name}: a tree of {made.tree.leaf_count} leaves"
    html = page(
        title,
        element("header", styled("p", "kicker", text("decision tree")), element("h1", text(title))),
        _verdict(made),
        _measures(made),
        _drawing(made.tree),
        _importance(made),
        _examples(made),
        _rounds(made),
        element("h2", text("The tree as code")),
        collapsible("Python, without any package", styled("pre", "words log", text(made.tree.as_code()))),
    )
    replace_file(path, html.encode("utf-8", "replace"))


# ------------------------------------------------------------------------------------------------------------ measures


def _verdict(made: DistilledTree) -> Html:
    m = made.measures
    share = 0.0 if m.teacher.mean == 0 else m.difference.difference / abs(m.teacher.mean)
    settled = (
        "the interval includes 0: not significant" if m.difference.low <= 0 <= m.difference.high else "significant"
    )
    sentence = (
        f"The tree's return is {format_number(m.tree.mean)}, the teacher's {format_number(m.teacher.mean)}: "
        f"{share:+.1%} ({settled}, {m.difference.n} episodes each)."
    )
    return styled("p", "verdict", text(sentence))


def _measures(made: DistilledTree) -> Html:
    m = made.measures
    returns = [_row("teacher", m.teacher), _row("tree", m.tree), _row("tree, teacher helps", m.combined)]
    shares = [
        _row("fidelity, tree acts", m.fidelity),
        _row("agreement, teacher acts", m.agreement),
        _row("handed over", m.handed_over),
        _row("fidelity of the rest", m.fidelity_of_kept),
    ]
    note = (
        "Fidelity: share of decisions that are the teacher's (of a box, 1 - squared error / variance). Handed over: "
        f"decisions in leaves that lose more than {made.config.most_regret:.0%} of the teacher's margin, or outside a "
        "leaf's training data. Intervals: 95%, over fresh episodes."
    )
    return join(
        [
            element("h2", text("Return")),
            styled("div", "card", interval_plot(returns, unit_axis=False)),
            element("h2", text("Fidelity")),
            styled("div", "card", interval_plot([row for row in shares if np.isfinite(row.mean)], emphasised=[0])),
            styled("p", "note", text(note)),
        ]
    )


def _row(name: str, estimate: Estimate) -> IntervalRow:
    return IntervalRow(label=name, mean=estimate.mean, low=estimate.low, high=estimate.high)


# ------------------------------------------------------------------------------------------------------------ drawing


def _drawing(tree: DecisionTree) -> Html:
    places: dict[int, tuple[float, int]] = {}
    levels = max(count for count in range(tree.leaf_count) if len(_ends(tree, 0, count)) <= _MOST_ENDS)
    ends, width = _ends(tree, 0, levels), _WIDE

    def place(node: int, depth: int) -> float:
        if node in ends:
            across = (ends.index(node) + 0.5) * width / len(ends)
        else:
            children = (int(tree.left[node]), int(tree.right[node]))
            across = sum(place(child, depth + 1) for child in children) / 2
        places[node] = (across, depth)
        return across

    place(0, 0)
    depth = max(level for _, level in places.values())
    parts: list[Html] = []
    for node, (x, level) in places.items():
        y = level * _LEVEL_HEIGHT + 8
        if node in ends:
            continue
        for child, words in ((int(tree.left[node]), "yes"), (int(tree.right[node]), "no")):
            there, below = places[child][0], (level + 1) * _LEVEL_HEIGHT + 8
            line = {"x1": x, "y1": y + _BOX_HEIGHT, "x2": there, "y2": below, "class": "axis", "stroke": "currentColor"}
            parts.append(element("line", attributes={**line, "stroke-opacity": "0.35"}))
            parts.append(label((x + there) / 2, (y + _BOX_HEIGHT + below) / 2 - 4, words, "tick middle"))
    parts += [_box(tree, node, x, level, asks=node not in ends) for node, (x, level) in places.items()]
    box = f"0 0 {width:.0f} {(depth + 1) * _LEVEL_HEIGHT:.0f}"
    drawn = element("svg", *parts, attributes={"viewBox": box, "class": "wide", "role": "img", "width": f"{width:.0f}"})
    hidden = tree.leaf_count - sum(tree.feature[node] == LEAF for node in ends)
    note = (
        f"The first {levels} levels; {hidden} leaves are below (...), and in the code at the end of this page."
        if hidden
        else "Every question and every leaf."
    )
    return join([element("h2", text("The tree")), styled("div", "card", drawn), styled("p", "note", text(note))])


def _ends(tree: DecisionTree, node: int, levels: int) -> list[int]:
    """Nodes at which a drawing of so many levels below `node` ends, from left to right."""
    if tree.feature[node] == LEAF or not levels:
        return [node]
    return [end for child in (tree.left[node], tree.right[node]) for end in _ends(tree, int(child), levels - 1)]


def _box(tree: DecisionTree, node: int, x: float, level: int, *, asks: bool) -> Html:
    """A node: its question, or its action, with its share of the training data."""
    is_leaf, width, y = tree.feature[node] == LEAF, 112.0, level * _LEVEL_HEIGHT + 8
    name = tree.features[tree.feature[node]] if asks else tree.action_text(node)
    first = name if asks or is_leaf else f"... {name}"
    share = f"{tree.samples[node] / tree.samples[0]:.1%}"
    second = f"<= {tree.threshold[node]:.3g} ({share})" if asks else f"{share}, regret {tree.regret[node]:.0%}"
    question = tree.question(node) if asks else first
    title = element("title", text(f"{question}; {tree.samples[node]:,} states; regret {tree.regret[node]:.1%}"))
    frame = {"x": x - width / 2, "y": y, "width": width, "height": _BOX_HEIGHT, "rx": 5, "stroke": "currentColor"}
    fill = {"fill": "var(--card)"} if asks else {"fill": "var(--code)"}
    return element(
        "g",
        title,
        element("rect", attributes={**frame, **fill, "stroke-opacity": "0.4"}),
        label(x, y + 17, first if len(first) <= 18 else f"{first[:17]}…", "label middle"),
        label(x, y + 33, second, "tick middle"),
    )


# -------------------------------------------------------------------------------------------------------- attributions


def _importance(made: DistilledTree) -> Html:
    tree = made.tree
    shares = np.array([np.abs(tree.attribution(seen)[1]).sum(axis=1) for seen in made.states])
    means = shares.mean(axis=0)
    order = np.argsort(-means)[:20]
    bars = [
        LabelledBar(name=tree.features[n], value=float(means[n]), words=format_number(float(means[n]))) for n in order
    ]
    note = (
        f"Mean size of what a number adds to the outputs on the way to the leaf, over {len(shares)} states that the "
        "tree met. For one decision the additions and the root's output sum to the leaf's output."
    )
    return join(
        [
            element("h2", text("Contribution of each number")),
            styled("div", "card", horizontal_bars(bars)),
            styled("p", "note", text(note)),
        ]
    )


def _examples(made: DistilledTree) -> Html:
    """Decisions of different leaves, the most frequent first, then one that is handed over."""
    tree = made.tree
    leaves = tree.leaves(made.states)
    frequent = [int(leaf) for leaf in np.argsort(-np.bincount(leaves)) if (leaves == leaf).any()]
    rows = [int(np.flatnonzero(leaves == leaf)[0]) for leaf in frequent[: _EXAMPLES - 1]]
    handed = np.flatnonzero(tree.hands_over(made.states, most_regret=made.config.most_regret))
    rows += [int(row) for row in handed[:1] if int(row) not in rows]
    cards = [
        _example(tree, made.states[row], explain(tree, made.states[row], most_regret=made.config.most_regret))
        for row in rows
    ]
    return join([element("h2", text("Decisions explained")), *cards])


def _example(tree: DecisionTree, seen: np.ndarray, why: Explanation) -> Html:
    numbers = ", ".join(f"{name} = {value:.4g}" for name, value in zip(tree.features, seen.ravel(), strict=True))
    handed = "; the tree hands this decision over" if why.handed_over else ""
    parts: list[Sequence[Html]] = [[text("root"), text(_signed(why.base))]]
    parts += [[text(name), text(_signed(share))] for name, share in why.shares.items() if share]
    parts += [[element("b", text("leaf")), element("b", text(format_number(why.output)))]]
    return styled(
        "div",
        "card",
        element("p", element("b", text(f"action {why.action}")), text(handed)),
        styled("p", "note", text(numbers)),
        styled("p", "words", text("\n".join(why.rules) or "no question")),
        table(["", "adds"], parts, style="plain", numeric=[1]),
    )


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_number(value)}"


def _rounds(made: DistilledTree) -> Html:
    steps = np.arange(1, len(made.rounds) + 1)
    curve = curve_plot(steps, np.array([one.mean_return for one in made.rounds]))
    rows = [
        [text(f"{number + 1}{' (kept)' if number == made.best_round else ''}"), text(f"{one.states:,}"),
         text(str(one.leaves)), text(format_number(one.mean_return))]
        for number, one in enumerate(made.rounds)
    ]  # fmt: skip
    rounds = table(["round", "states", "leaves", "return"], rows, style="plain", numeric=[1, 2, 3])
    return join([element("h2", text("Rounds")), styled("div", "curves", styled("div", "curve", curve)), rounds])
