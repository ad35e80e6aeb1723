"""Report section about time: a step as a timeline, its bottleneck, and every part."""

from collections.abc import Sequence

from hone.run.report.html import EMPTY, Html, element, format_duration, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import LaneBlock, lane_plot, part_style
from hone.run.report.timeline import OTHER, Timeline, TimelineSpan, step_timeline
from hone.run.report.wait_graph import bottleneck_line, step_waits
from hone.run.store.speed import speed_line


def timing_section(stage: RunData, level: str) -> Html:
    """Render the section; empty without times."""
    timeline = step_timeline(stage.metrics)
    if timeline is None:
        return EMPTY
    parts = [
        element(level, text("Time per part of a step")),
        styled("p", "verdict", text(bottleneck_line(timeline))),
        styled("div", "card", *_picture(timeline), _table(timeline), _waits(timeline)),
    ]
    line = speed_line(stage.metrics, stage.matmul)
    if line:
        counted = "counted are the matrix products and the attention of its passes over the network"
        parts.append(styled("p", "note", text(f"{line[0].upper()}{line[1:]}; {counted}.")))
    return join(parts)


def _picture(timeline: Timeline) -> list[Html]:
    step_s = timeline.step_s
    scale, unit = (1000.0, "ms") if step_s < 2 else (1.0, "s")
    styles = _styles(timeline)

    def blocks(spans: Sequence[TimelineSpan]) -> list[LaneBlock]:
        return [
            LaneBlock(
                name=span.name,
                start=span.start_s * scale,
                size=span.seconds_s * scale,
                style=styles[span.name],
                title=f"{span.name}: {format_duration(span.seconds_s)}, {span.seconds_s / step_s:.1%} of a step",
            )
            for span in spans
        ]

    rows = [("a step", blocks(timeline.loop))]
    words = f"The mean of {timeline.steps:,} steps, one part after another"
    if timeline.collect_parts:
        rows.append(("collect", blocks(timeline.collect_parts)))
        words += "; below, the parts of collecting (model passes mix prefill and decoding)"
    if timeline.overlapping:
        rows.append(("beside it", blocks(timeline.overlapping)))
        words += "; below, work of a parallel thread: it overlaps the step and is not part of its time"
    return [styled("p", "note", text(f"{words}.")), lane_plot(rows, step_s * scale, unit)]


def _styles(timeline: Timeline) -> dict[str, str]:
    """One colour per name, in the order of appearance."""
    names = dict.fromkeys(
        span.name for spans in (timeline.loop, timeline.collect_parts, timeline.overlapping) for span in spans
    )
    return {name: part_style(name, index) for index, name in enumerate(names)}


def _table(timeline: Timeline) -> Html:
    """Table of all parts, largest first, each with its own parts below it; overlapping work at the end."""
    styles = _styles(timeline)
    rows: list[list[Html]] = []

    def row(span: TimelineSpan, words: str) -> None:
        rows.append(
            [
                join([element("span", attributes={"class": f"swatch {styles[span.name]}"}), text(words)]),
                text(f"{span.seconds_s / timeline.step_s:.1%}"),
                text(format_duration(span.seconds_s * timeline.steps)),
                text(f"{1000 * span.seconds_s:,.1f} ms"),
            ]
        )

    for span in sorted(timeline.loop, key=lambda part: (part.name == OTHER, -part.seconds_s)):
        row(span, span.name)
        for part in timeline.collect_parts if span.name == "collect" else ():
            row(part, f"of which {part.name}")
    for span in timeline.overlapping:
        row(span, f"in parallel {span.name}")
    return table(("part", "share", "in all", "a step"), rows, style="fit", numeric=(1, 2, 3))


def _waits(timeline: Timeline) -> Html:
    """Table of the waits of a step; empty where none is known."""
    rows = [
        [
            text(f"{one.waiter} for {one.waited_for}"),
            text(f"{one.seconds_s / timeline.step_s:.1%}"),
            text(format_duration(one.seconds_s * timeline.steps)),
            text(f"{1000 * one.seconds_s:,.1f} ms"),
        ]
        for one in step_waits(timeline)
    ]
    heads = ("who waited for whom", "share", "in all", "a step")
    return table(heads, rows, style="fit", numeric=(1, 2, 3)) if rows else EMPTY
