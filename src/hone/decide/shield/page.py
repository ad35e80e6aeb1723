"""HTML page of a shield: the verdict, the map of its region, interventions in a rehearsal, the counterexample.

Belongs here: the rehearsal, the sections of the page and the frames of the animation.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, ActionShield
from hone.core.random import generator
from hone.decide.shield.certificate import Counterexample, ShieldCertificate
from hone.decide.shield.game import GridAxis, StateGrid, state_grid
from hone.decide.shield.guard import project_action
from hone.decide.shield.model import ControlModel
from hone.run.report.html import EMPTY, Html, element, format_number, join, page, styled, table, text
from hone.run.report.svg import Attributes, LinearScale, axes, curve_plot, labelled_ticks
from hone.run.store.animation import animated_png
from hone.run.store.durable import replace_file

# ------------------------------------------------------------------------------------------------------------ rehearsal


Floats = NDArray[np.float64]
HELD_STEPS: Final = 20
"""Steps for which the driver wants the same action."""
RESTART_STEPS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShieldRehearsal:
    """T steps on a model."""

    intervened: NDArray[np.bool_]
    """`[T]` another action than the wanted one was executed."""
    unsafe: NDArray[np.bool_]
    """`[T]` the step ended in an unsafe state."""
    unshielded: NDArray[np.bool_]
    """`[T]` the same driver without the shield ended the step unsafe, and began again."""


def rehearse_shield(model: ControlModel, shield: ActionShield, *, steps: int, seed: int) -> _ShieldRehearsal:
    """Drive `steps` steps of the model with and without the shield, from the least dangerous state.

    The driver wants one action for 20 steps, then another; others choose an extreme disturbance in each step.
    """
    draws = generator(seed, "rehearse shield")
    actions = _model_actions(model)
    wanted = np.repeat(draws.integers(0, len(actions), steps // HELD_STEPS + 1), HELD_STEPS)[:steps]
    corners = model.corners()
    moves = draws.integers(0, len(corners), steps)
    safest = [float(axis.values()[0 if axis.exact else -1]) for axis in state_grid(model).axes]
    best = dict(zip(model.variables, safest, strict=True))
    here, bare = dict(best), dict(best)
    flags = np.zeros((3, steps), np.bool_)
    for step in range(steps):
        if step % RESTART_STEPS == 0:
            here, bare = dict(best), dict(best)
        action, corner = int(wanted[step]), corners[int(moves[step])]
        context = np.array([here[name] for name in model.variables])
        executed = project_action(shield, context, actions, action)
        here = {name: float(value) for name, value in model.after(dict(here), executed, corner).items()}
        bare = {name: float(value) for name, value in model.after(dict(bare), action, corner).items()}
        flags[:, step] = executed != action, not model.is_safe(dict(here)), not model.is_safe(dict(bare))
        here, bare = (best if flags[1, step] else here), (best if flags[2, step] else bare)
    return _ShieldRehearsal(intervened=flags[0], unsafe=flags[1], unshielded=flags[2])


def _model_actions(model: ControlModel) -> ActionSet:
    """Actions of a model, with their columns as features."""
    return ActionSet(names=model.actions, features=model.action_features())


# ---------------------------------------------------------------------------------------------------------- shield page


WINDOW: Final = 50
"""Steps of a rehearsal that are counted together."""
FRAME_S: Final = 0.4
_MAP: Final = (300.0, 210.0, 44.0, 36.0)
"""Width, height, left and bottom margin of a map, in pixels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShieldPageData:
    """What the page shows; a shield that was not proved has a reason, and perhaps a counterexample."""

    name: str
    model: ControlModel
    certificate: ShieldCertificate | None
    shield: ActionShield | None
    rehearsal: _ShieldRehearsal | None = None
    reasons: Sequence[str] = ()
    counterexample: Counterexample | None = None

    def write(self, path: Path) -> None:
        """Write a shield as an HTML document, atomically. Raises ResourceError."""
        tried = "proved, but not with other constants" if self.certificate is not None else "not proved"
        title = f"{self.name}: {tried if self.reasons else 'proved'}"
        html = page(
            title,
            element("header", styled("p", "kicker", text("shield")), element("h1", text(title))),
            join(styled("p", "verdict", element("b", text("Refused: ")), text(reason)) for reason in self.reasons),
            _verdict(self.certificate),
            _counterexample(self),
            _region(self),
            _rehearsal(self.rehearsal),
            _claims(self.certificate),
        )
        replace_file(path, html.encode("utf-8", "replace"))


def _verdict(certificate: ShieldCertificate | None) -> Html:
    if certificate is None:
        return EMPTY
    words = f"sha256 {certificate.sha256}; proved again whenever it is opened."
    return join([styled("p", "verdict", text(certificate.proved[0])), styled("p", "note", text(words))])


def _claims(certificate: ShieldCertificate | None) -> Html:
    if certificate is None:
        return EMPTY
    rows = [[text("assumed"), text(one)] for one in certificate.assumed]
    rows += [[text("proved"), text(one)] for one in certificate.proved]
    return join([element("h2", text("Claims")), styled("div", "card", table(["", "claim"], rows, style="plain"))])


# --------------------------------------------------------------------------------------------------- the region


def _region(shown: ShieldPageData) -> Html:
    if shown.shield is None or len(shown.model.variables) < 2:
        return EMPTY
    grid = state_grid(shown.model)
    maps = [
        _slice(shown, shown.shield, grid, np.array(rest))
        for rest in _other_values(grid)
    ]  # fmt: skip
    across, up = grid.names[:2]
    words = (
        f"Safe actions by {across} (across) and {up} (up). Dark: all {len(shown.model.actions)}; lighter: fewer; "
        "empty: no action is known to be safe, and the fallback is taken."
    )
    return join([element("h2", text("Region")), styled("p", "note", text(words)), styled("div", "maps", *maps)])


def _other_values(grid: StateGrid) -> list[list[float]]:
    """Values of the variables from the third on, for each map: the first of them low, in the middle and high."""
    if len(grid.axes) == 2:
        return [[]]
    middle = [float(np.median(axis.values())) for axis in grid.axes[3:]]
    values = np.sort(grid.axes[2].values())
    picked = [values[0], values[len(values) // 2], values[-1]]
    return [[float(value), *middle] for value in dict.fromkeys(picked)]


def safe_counts(
    shield: ActionShield, model: ControlModel, grid: StateGrid, rest: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Number of safe actions `[cells of the second variable, cells of the first]`, both ascending; the others are
    `rest`."""
    actions = _model_actions(model)
    across, up = np.sort(grid.axes[0].values()), np.sort(grid.axes[1].values())
    return np.array(
        [[int(shield.allowed(np.array([x, y, *rest]), actions).sum()) for x in across] for y in up], np.int64
    )


def _slice(shown: ShieldPageData, shield: ActionShield, grid: StateGrid, rest: NDArray[np.float64]) -> Html:
    counts = safe_counts(shield, shown.model, grid, rest)
    wide, high, left, bottom = _MAP
    x, y = (
        LinearScale(*_ends(axis), *place)
        for axis, place in zip(grid.axes[:2], ((left, wide - 6), (high - bottom, 6.0)), strict=True)
    )
    parts = _blocks(counts, x, y, len(shown.model.actions))
    parts += axes(x, y, grid.names[0], y_ticks=labelled_ticks(y.low, y.high, 4), x_count=4)
    box: Attributes = {"viewBox": f"0 0 {wide:.0f} {high:.0f}", "role": "img", "style": f"max-width: {wide:.0f}px"}
    fixed = ", ".join(f"{name} {format_number(v)}" for name, v in zip(grid.names[2:], rest, strict=True))
    return element("figure", styled("figcaption", "note", text(fixed)), element("svg", *parts, attributes=box))


def _ends(axis: GridAxis) -> tuple[float, float]:
    values = np.sort(axis.values())
    half = 0.5 / abs(axis.scale)
    return float(values[0]) - half, float(values[-1]) + half


def _blocks(counts: NDArray[np.int64], x: LinearScale, y: LinearScale, most: int) -> list[Html]:
    """Rectangles of neighbouring cells with equal counts, row by row."""
    rows, columns = counts.shape
    width, height = (x.end - x.start) / columns, (y.start - y.end) / rows
    blocks: list[Html] = []
    for row, line in enumerate(counts):
        bounds = [0, *(np.flatnonzero(np.diff(line)) + 1), columns]
        for begin, end in pairwise(bounds):
            share = round(100 * int(line[begin]) / most)
            if share:
                place: Attributes = {
                    "x": x.start + width * float(begin), "y": y.start - height * (row + 1),
                    "width": width * float(end - begin), "height": height + 0.3,
                    "style": f"fill: color-mix(in srgb, var(--plus) {share}%, var(--card))",
                }  # fmt: skip
                blocks.append(element("rect", attributes=place))
    return blocks


# ------------------------------------------------------------------------------------- rehearsal, counterexample


def _rehearsal(found: _ShieldRehearsal | None) -> Html:
    if found is None:
        return EMPTY
    count = len(found.intervened) // WINDOW
    shares = found.intervened[: count * WINDOW].reshape(count, WINDOW).mean(axis=1)
    words = (
        f"{len(found.intervened):,} steps of the model with a driver that wants one action for 20 steps, and others "
        f"that choose extremes: {int(found.intervened.sum()):,} interventions, {int(found.unsafe.sum())} unsafe "
        f"states; without the shield {int(found.unshielded.sum())}. The curve is the share of interventions in "
        f"{WINDOW} steps."
    )
    curve = curve_plot(np.arange(1, count + 1, dtype=np.int64) * WINDOW, shares)
    small = element("div", curve, attributes={"class": "curve", "style": "max-width: 420px"})
    return join([element("h2", text("Interventions")), styled("p", "note", text(words)), small])


def _counterexample(shown: ShieldPageData) -> Html:
    counterexample = shown.counterexample
    if counterexample is None:
        return EMPTY
    source = f"data:image/png;base64,{base64.b64encode(counterexample_png(counterexample, shown.model)).decode()}"
    picture = element("img", attributes={"src": source, "alt": counterexample.summary(), "style": "max-width: 100%"})
    bars = ", ".join(f"{name} ({one.low:g} to {one.high:g})" for name, one in shown.model.config.variables.items())
    rows = [
        [text(str(step)), *(text(format_number(value)) for value in row), text(move)]
        for step, (row, move) in enumerate(zip(counterexample.states, [*counterexample.actions, "end"], strict=True))
    ]
    return join(
        [
            element("h2", text("Counterexample")),
            styled("p", "note", text(f"{counterexample.summary()}. Bars, from above: {bars}; red: unsafe.")),
            styled("div", "card", picture),
            table(
                ["step", *counterexample.variables, "action"],
                rows,
                style="plain",
                numeric=range(len(counterexample.variables) + 1),
            ),
        ]
    )


def counterexample_png(found: Counterexample, model: ControlModel) -> bytes:
    """Animation of a counterexample: a bar for each variable, frame by frame, red in an unsafe state."""
    last = [found.states[-1]] * 3  # the end stays on for a moment
    return animated_png(np.stack([_frame(row, model) for row in [*found.states, *last]]), frame_s=FRAME_S)


def _frame(state: NDArray[np.float64], model: ControlModel) -> NDArray[np.uint8]:
    width, height = 480, 26
    picture = np.full((height * len(state) + 6, width, 3), 250, np.uint8)
    safe = bool(model.is_safe(dict(zip(model.variables, map(float, state), strict=True))))
    colour = (47, 111, 219) if safe else (210, 70, 60)
    for row, (value, name) in enumerate(zip(state, model.variables, strict=True)):
        variable = model.config.variables[name]
        share = (float(value) - variable.low) / (variable.high - variable.low)
        top = 6 + row * height
        picture[top : top + height - 6, 10 : width - 10] = 226
        picture[top : top + height - 6, 10 : 10 + round(min(max(share, 0.008), 1.0) * (width - 20))] = colour
    return picture
