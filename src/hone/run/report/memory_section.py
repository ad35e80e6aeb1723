"""Report section about memory: the planned components as one stack, beside the most that was measured."""

from hone.run.report.html import EMPTY, Html, element, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import LaneBlock, lane_plot, part_style
from hone.run.store.durable import human_bytes
from hone.run.store.memory_use import MemoryUse, memory_line

_MIB = 1 << 20
_MEASURED = "measured"


def memory_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run that was not planned, or not measured."""
    use = stage.memory
    if use is None or not use.planned_bytes:
        return EMPTY
    line = memory_line(use)
    note = "Measured is the growth of the whole process: evaluation, data and what an allocator keeps are in it, too."
    return join(
        [
            element(level, text("Memory, planned and measured")),
            styled("p", "verdict", text(f"{line[0].upper()}{line[1:]}.")),
            styled("div", "card", styled("p", "note", text(note)), _picture(use), _table(use)),
        ]
    )


def _picture(use: MemoryUse) -> Html:
    """The components one after another, and the measured bytes below them, in MiB."""
    blocks: list[LaneBlock] = []
    begin = 0.0
    for index, (name, size) in enumerate(use.components.items()):
        part = size / _MIB
        title = f"{name}: {human_bytes(size)}"
        blocks.append(LaneBlock(name=name, start=begin, size=part, style=part_style(name, index), title=title))
        begin += part
    taken = use.taken_bytes / _MIB
    style = part_style(_MEASURED, len(blocks))
    measured = LaneBlock(
        name=_MEASURED, start=0.0, size=taken, style=style, title=f"measured: {human_bytes(use.taken_bytes)}"
    )
    return lane_plot([("planned", blocks), (_MEASURED, [measured])], max(begin, taken), "MiB")


def _table(use: MemoryUse) -> Html:
    rows = [
        [join([_swatch(name, index), text(name)]), text(human_bytes(size))]
        for index, (name, size) in enumerate(use.components.items())
    ]
    rows += [[text(f"peak of {name}"), text(human_bytes(size))] for name, size in use.phases.items()]
    return table(("planned", "bytes"), rows, style="fit", numeric=(1,))


def _swatch(name: str, index: int) -> Html:
    """The colour of a component."""
    return element("span", attributes={"class": f"swatch {part_style(name, index)}"})
