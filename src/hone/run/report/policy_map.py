"""Maps of a policy on a grid as inline SVG and as rows of text: colours show values, arrows show actions.

Belongs here: drawing. The colours are mixed from the page's own, so that light and dark mode both work.
"""

import base64

import numpy as np

from hone.run.report.html import EMPTY, Html, element, format_number, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import Attributes, IntervalRow, interval_plot, label
from hone.run.store.animation import EpisodeRecording
from hone.run.store.records import GridCell, GridSlice, PerturbedScore, PolicyMap

ARROWS = {"left": "←", "down": "↓", "right": "→", "up": "↑"}
TURNS = {"right": 0, "down": 90, "left": 180, "up": 270}
SIDE = 40.0
MAX_SLICES = 24


def draw_policy_map(grid: PolicyMap) -> Html:
    """Draw every grid of the map on one colour scale."""
    low, high = value_range(grid)
    grids = [_slice(one, low, high) for one in grid.slices[:MAX_SLICES]]
    words = (
        f"Arrows: actions of the policy of step {grid.step:,}. Colour: {grid.worth_is}, from {format_number(low)} to "
        f"{format_number(high)}."
    )
    parts = [styled("p", "note", text(words)), styled("div", "maps", *grids)]
    if len(grid.slices) > MAX_SLICES:
        parts.append(styled("p", "note", text(f"{MAX_SLICES} of {len(grid.slices)}.")))
    return join(parts)


def value_range(found: PolicyMap) -> tuple[float, float]:
    """Smallest and largest value of the map."""
    known = [cell.worth for one in found.slices for cell in one.cells if cell.worth is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _slice(one: GridSlice, low: float, high: float) -> Html:
    width, height = SIDE * one.columns, SIDE * one.rows
    cells = [
        _cell(cell, SIDE * (place % one.columns), SIDE * (place // one.columns), low, high)
        for place, cell in enumerate(one.cells)
    ]
    box: Attributes = {"viewBox": f"-1 -1 {width + 2:.0f} {height + 2:.0f}", "class": "map", "role": "img"}
    box["style"] = f"max-width: {min(1.2 * width, 1000):.0f}px"
    title = [styled("figcaption", "note", text(one.title))] if one.title else []
    return element("figure", *title, element("svg", *cells, attributes=box))


def _cell(cell: GridCell, x: float, y: float, low: float, high: float) -> Html:
    square: Attributes = {
        "x": x,
        "y": y,
        "width": SIDE,
        "height": SIDE,
        "class": "wall" if cell.mark == "#" else "floor",
    }
    if cell.worth is not None:
        share = 8 + 72 * (cell.worth - low) / ((high - low) or 1.0)
        square["style"] = f"fill: color-mix(in srgb, var(--plus) {share:.0f}%, var(--card))"
    # describe a cell in words
    moves = ", ".join(f"{name} {share:.0%}" if share < 0.995 else name for name, share in cell.moves.items())
    worth = "" if cell.worth is None else f"worth {format_number(cell.worth)}"
    parts = [
        element(
            "title", text("; ".join(part for part in (cell.mark.strip(), worth, moves) if part) or "no decision here")
        ),
        element("rect", attributes=square),
    ]
    if cell.mark.strip() and cell.mark != "#":
        parts.append(label(x + 5, y + 12, cell.mark, "mark"))
    others = [name for name in cell.moves if name not in TURNS]
    turns = {name: share for name, share in cell.moves.items() if name in TURNS}
    parts += [_arrow(x + SIDE / 2, y + SIDE / 2, name, share, alone=len(turns) == 1) for name, share in turns.items()]
    if others:
        parts.append(label(x + SIDE / 2, y + SIDE - 4, others[0], "act middle"))
    return element("g", *parts)


def _arrow(x: float, y: float, name: str, share: float, *, alone: bool) -> Html:
    """Draw an arrow: several start near the centre, a single one is centred and leaves the cell's text free."""
    size = 5 + 9 * share
    back, tip = (0.675 * size, 0.675 * size) if alone else (0.35 * size, size)
    points = f"M -{back:.1f} 0 H {tip:.1f} M {tip - 5:.1f} -4 L {tip:.1f} 0 L {tip - 5:.1f} 4"
    turn = f"translate({x:.1f} {y:.1f}) rotate({TURNS[name]})"
    style: Attributes = {"d": points, "transform": turn, "class": "arrow", "opacity": max(0.25, share**0.5)}
    return element("path", attributes=style)


def text_rows(one: GridSlice) -> list[list[str]]:
    """Rows for a terminal: the most probable action of each cell, or its mark."""
    rows: list[list[str]] = []
    for row in np.arange(len(one.cells)).reshape(one.rows, one.columns).tolist():
        rows.append([_cell_symbol(one.cells[place]) for place in row])
    return rows


def _cell_symbol(cell: GridCell) -> str:
    """One character: the most probable action, `+` for a tie of four or more, or the cell's mark."""
    if not cell.moves:
        return cell.mark.strip() or "·"
    if len(cell.moves) >= 4 and max(cell.moves.values()) - min(cell.moves.values()) < 1e-9:
        return "+"
    name = next(iter(cell.moves))
    return ARROWS.get(name, name[:1].upper())


# ------------------------------------------------------------------------------------------------------- policy section


def policy_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a language model."""
    parts: list[Html] = []
    if stage.episode is not None:
        parts.append(_episode_animation(*stage.episode))
    if stage.map is not None:
        parts.append(draw_policy_map(stage.map))
    head = [element(level, text("The policy"))] if parts else []
    return join([*head, *parts, _robustness(stage.robustness, level)])


def _episode_animation(about: EpisodeRecording, png: bytes | None) -> Html:
    if png is None:
        return styled("p", "note", text(f"No animation of an episode: {about.note or 'it would be too large'}."))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    words = f"An episode of step {about.step:,}: {about.steps:,} steps, return {format_number(about.score)}"
    words += f"; {about.note}" if about.note else ""
    image = Html(
        f'<img alt="{words}" src="{source}">'
    )  # the only picture that is not SVG; encoded here, so it is valid
    return styled("div", "card film", styled("p", "note", text(f"{words}.")), image)


def _robustness(rows: tuple[PerturbedScore, ...], level: str) -> Html:
    if not rows:
        return EMPTY
    plot = interval_plot([IntervalRow(label=row.name, mean=row.mean, low=row.low, high=row.high) for row in rows])
    lines = [
        [
            text(row.name),
            text(f"{format_number(row.mean)} ({format_number(row.low)} to {format_number(row.high)})"),
            text(
                f"{format_number(row.difference)} ({format_number(row.difference_low)} to "
                f"{format_number(row.difference_high)})"
            ),
            text(format_number(row.p_value)),
        ]
        for row in rows
    ]
    heads = ("world", "score", "difference on the same seeds", "paired p")
    words = f"Mean return of {rows[0].n:,} episodes in perturbed environments, with 95% intervals"
    card = styled("div", "card", styled("p", "note", text(words)), plot)
    return join([element(level, text("Robustness")), card, table(heads, lines, style="fit", numeric=(3,))])
