"""HTML page of an episode on a floor: figures, the map as a film with reservations, deliveries over time.

Belongs here: the record of an episode, the frames of the film, and the sections of the page.
"""

import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.control.warehouse.dispatcher import Chooser, play_floor
from hone.control.warehouse.floor import SKILLS, Floor, skill_versions
from hone.run.report.html import Html, element, format_number, page, styled, table, text
from hone.run.report.svg import CurveSeries, LabelledBar, band_plot, horizontal_bars, legend
from hone.run.store.animation import animated_png
from hone.run.store.durable import replace_file

Frame = NDArray[np.uint8]

STEPS_PER_HOUR: Final = 3600
"""At one step a second."""
FILM_STEPS: Final = 120
"""Steps of the film; the figures are of the whole episode."""
_CELL: Final = 18
_FRAME_S: Final = 0.25
_WAY, _SHELF, _REQUESTED, _GOAL, _CLOSED = (
    np.array(rgb, np.uint8) for rgb in ((244, 244, 240), (176, 160, 140), (214, 120, 40), (150, 200, 150), (60, 60, 60))
)
_ROBOTS: Final = np.array(
    [(31, 119, 180), (148, 103, 189), (23, 150, 160), (190, 60, 120), (40, 70, 140), (110, 140, 30), (120, 80, 60),
     (80, 80, 80)], np.uint8,
)  # fmt: skip


@dataclass(kw_only=True)
class _EpisodeRecord:
    """What happened on a floor."""

    floor: Floor
    name: str
    """Who assigned."""
    frames: list[Frame] = field(default_factory=list[Frame])
    deliveries: list[int] = field(default_factory=list[int])
    """Until each step."""
    skills: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SKILLS), np.int64))
    """Steps of robots in each skill."""

    @property
    def per_hour(self) -> float:
        """Deliveries an hour, at one step a second."""
        state = self.floor.state
        return float(state["deliveries"]) / float(state["time"]) * STEPS_PER_HOUR

    @property
    def idle_share(self) -> float:
        """Share of robots' steps without a task."""
        return float(self.floor.state["idle"]) / (float(self.floor.state["time"]) * self.floor.spec.robots)


def record_episode(floor: Floor, choose: Chooser, *, seed: int, name: str) -> _EpisodeRecord:
    """Play an episode and record it."""
    record = _EpisodeRecord(floor=floor, name=name)

    def watch(now: Floor) -> None:
        record.deliveries.append(int(now.state["deliveries"]))
        np.add.at(record.skills, now.robots["skill"], 1)
        if len(record.frames) < FILM_STEPS:
            record.frames.append(_draw_floor(now))

    play_floor(floor, choose, seed=seed, watch=watch)
    return record


def _draw_floor(floor: Floor) -> Frame:
    """The map `[height * 18, width * 18, 3]`: shelves, requested ones, goals, closed cells, robots with their heading,
    and the reserved cells of each as dots of its colour."""
    spec, state = floor.spec, floor.state
    marks = np.array([list(row) for row in spec.layout])
    colours = np.where((marks == "G")[..., None], _GOAL, _WAY).reshape(-1, 3)
    homes = state["shelf_cell"][: int(state["shelves"])]
    asked = np.isin(np.arange(len(homes)), state["queue"][: spec.requests])
    colours[homes[homes >= 0]] = _SHELF
    colours[homes[(homes >= 0) & asked]] = _REQUESTED
    colours[np.flatnonzero(state["blocked"][: len(colours)])] = _CLOSED
    board = colours.reshape(len(spec.layout), spec.width, 3)
    picture = np.kron(board, np.ones((_CELL, _CELL, 1), np.uint8))
    picture[::_CELL], picture[:, ::_CELL] = 225, 225
    for number, robot in enumerate(floor.robots):
        colour = _ROBOTS[number % len(_ROBOTS)]
        for pose in robot["plan"][robot["at"] : robot["steps"]]:
            row, column = divmod(int(pose) // 4, spec.width)
            picture[row * _CELL + 8 : row * _CELL + 11, column * _CELL + 8 : column * _CELL + 11] = colour
    for number, robot in enumerate(floor.robots):
        row, column = divmod(int(robot["cell"]), spec.width)
        top, left = row * _CELL, column * _CELL
        picture[top + 3 : top + 16, left + 3 : left + 16] = 0 if robot["dead"] else _ROBOTS[number % len(_ROBOTS)]
        if robot["carrying"] >= 0:
            requested = robot["carrying"] in state["queue"][: spec.requests]
            picture[top + 6 : top + 13, left + 6 : left + 13] = _REQUESTED if requested else _SHELF
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[int(robot["heading"])]
        y, x = top + 9 + 5 * down, left + 9 + 5 * right
        picture[y - 1 : y + 2, x - 1 : x + 2] = 255
    return picture


def write_replay_page(path: Path, records: list[_EpisodeRecord]) -> None:
    """Write the page of episodes under several dispatchers, the first of them as a film. Raises ResourceError."""
    first = records[0]
    spec = first.floor.spec
    title = f"Warehouse: {spec.robots} robots, {spec.requests} requests at a time"
    heads = ("dispatcher", "deliveries", "an hour", "idle", "collisions", "held back", "longest stand", "failed skills")
    rows = [
        [
            text(record.name), text(str(int(state["deliveries"]))), text(format_number(round(record.per_hour))),
            text(f"{record.idle_share:.1%}"), text(str(int(state["collisions"]))),
            text(str(int(state["interventions"]))), text(f"{int(state['longest_still'])} steps"),
            text(str(int(state["failures"]))),
        ]
        for record in records
        for state in (record.floor.state,)
    ]  # fmt: skip
    film = animated_png(np.stack(first.frames), frame_s=_FRAME_S)
    source = f"data:image/png;base64,{base64.b64encode(film).decode()}"
    picture = element("img", attributes={"src": source, "alt": "The floor, step by step", "style": "max-width: 100%"})
    shares = first.skills / max(1, first.skills.sum())
    bars = [
        LabelledBar(name=name, value=float(share), words=f"{share:.1%}")
        for name, share in zip(SKILLS, shares, strict=True)
        if share
    ]
    curves = [
        CurveSeries(name=record.name, colour=number, x=np.arange(1.0, 1 + len(counts)), middle=counts, low=counts,
                    high=counts)
        for number, record in enumerate(records)
        for counts in (np.array(record.deliveries, np.float64),)
    ]  # fmt: skip
    body = (
        element("header", styled("p", "kicker", text("warehouse")), element("h1", text(title))),
        element("h2", text("Figures")),
        styled("div", "card", table(heads, rows, style="plain", numeric=range(1, len(heads)))),
        styled("p", "note", text(f"One step a second. A robot that stands for more than 50 steps with a task elsewhere "
                                 f"counts as a deadlock. Skills and motion: version {skill_versions()['fetch']}.")),
        element("h2", text(f"The first {len(first.frames)} steps under {first.name}")),
        styled("div", "card film", styled("p", "note", text(
            "Brown: shelves, orange: requested ones, green: goals. Dots are the cells that a robot has reserved.")),
            picture),
        element("h2", text("Deliveries")),
        styled("div", "card", band_plot(curves, x_label="step"), legend([record.name for record in records])),
        element("h2", text("What robots do")),
        styled("div", "card", horizontal_bars(bars)),
    )  # fmt: skip
    document: Html = page(title, *body)
    replace_file(path, document.encode("utf-8", "replace"))
