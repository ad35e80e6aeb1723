"""The page of `hone profile`: spans of a step, functions by their own time, memory over the steps, a flame graph."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from hone.run.profiling import MemorySlope, Stack, function_times, memory_slope
from hone.run.report.html import EMPTY, Html, element, page, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import curve_plot, label
from hone.run.report.timing_section import timing_section
from hone.run.store.durable import human_bytes

FUNCTIONS_SHOWN: Final = 25
_WIDE: Final = 960.0
_ROW: Final = 18.0
_LEAST_WIDTH: Final = 0.8
"""Narrower blocks are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile:
    """What was measured."""

    name: str
    steps: int
    counts: Counter[Stack]
    sizes: Sequence[int]
    """Resident bytes after each step."""


def profile_lines(profile: RunProfile) -> list[str]:
    """The profile in two sentences: the function with the most time, and the memory."""
    times = function_times(profile.counts) if profile.counts else []
    lines = [f"{times[0].own:.0%} of the time is in {times[0].name} itself"] if times else ["the run took no time"]
    slope = memory_slope(profile.sizes)
    return lines if slope is None else [*lines, slope_line(slope)]


def slope_line(slope: MemorySlope) -> str:
    """Growth of memory, and whether it is one."""
    size, error = human_bytes(round(abs(slope.bytes_per_step))), human_bytes(round(slope.half_width))
    if slope.grows:
        return f"resident memory grows by {size} a step (\N{PLUS-MINUS SIGN} {error}) in the second half"
    return "resident memory does not grow steadily in the second half of the steps"


def profile_page(profile: RunProfile, run: RunData) -> Html:
    """The whole page, which loads nothing and has no scripts."""
    parts = [
        element("h1", text(f"Profile of {profile.name}")),
        *(styled("p", "verdict", text(line)) for line in profile_lines(profile)),
        styled("p", "note", text(f"{profile.steps} steps, {profile.counts.total():,} samples of the training thread.")),
        timing_section(run, "h2"),
    ]
    if profile.counts:
        shown = [
            [text(one.name), text(f"{one.own:.1%}"), text(f"{one.whole:.1%}")]
            for one in function_times(profile.counts)[:FUNCTIONS_SHOWN]
        ]
        note = "Time in torch, numpy and other libraries counts for the function that calls them."
        parts += [
            element("h2", text("Functions")),
            styled("p", "note", text(note)),
            styled(
                "div", "card", table(("function", "itself", "with what it calls"), shown, style="fit", numeric=(1, 2))
            ),
            element("h2", text("Flame graph")),
            styled("p", "note", text("Width is time; a block stands below its caller. Point at one for its name.")),
            styled("div", "card", flame_graph(profile.counts)),
        ]
    if any(profile.sizes):
        steps, mib = np.arange(1, len(profile.sizes) + 1), np.array(profile.sizes, np.float64) / 2**20
        parts += [
            element("h2", text("Resident memory, MiB")),
            styled("div", "curves", styled("div", "curve", curve_plot(steps.astype(np.int64), mib))),
        ]
    return page(f"Profile of {profile.name}", *parts)


@dataclass(slots=True)
class _Block:
    count: int = 0
    below: dict[str, "_Block"] = field(default_factory=dict[str, "_Block"])


def flame_graph(counts: Counter[Stack]) -> Html:
    """Blocks of functions, each below its caller, as wide as their share of the samples."""
    root = _Block()
    for stack, count in counts.items():
        place = root
        place.count += count
        for name in stack:
            place = place.below.setdefault(name, _Block())
            place.count += count
    parts: list[Html] = []
    depth = _draw(root, 0.0, 0, _WIDE / max(1, root.count), root.count, parts)
    box = f"0 0 {_WIDE:.0f} {(depth + 1) * _ROW:.0f}"
    return element("svg", *parts, attributes={"viewBox": box, "class": "wide", "role": "img"}) if parts else EMPTY


def _draw(block: _Block, left: float, depth: int, scale: float, total: int, parts: list[Html]) -> int:
    """Draw what is below a block, widest first; returns the greatest depth."""
    deepest = depth
    for name, one in sorted(block.below.items(), key=lambda pair: -pair[1].count):
        width = one.count * scale
        if width < _LEAST_WIDTH:
            break
        box: dict[str, str | float] = {"x": left, "y": depth * _ROW, "width": width - 0.5, "height": _ROW - 1, "rx": 2}
        title = element("title", text(f"{name}: {one.count / total:.1%}"))
        parts.append(element("rect", title, attributes=box | {"class": f"p{sum(name.partition(':')[0].encode()) % 7}"}))
        short = name.rpartition(".")[2]
        room = int((width - 8) / 6.2)
        if room >= 4:
            words = short if len(short) <= room else f"{short[: room - 1]}\N{HORIZONTAL ELLIPSIS}"
            parts.append(label(left + 4, depth * _ROW + 12.5, words, "on-part"))
        deepest = max(deepest, _draw(one, left, depth + 1, scale, total, parts))
        left += width
    return deepest
