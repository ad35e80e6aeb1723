"""Report sections about time and memory.

A step as a timeline, who waited for whom, the bottleneck with what would shorten
it, and the planned components of memory beside the most that was measured.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from hone.run.report.html import EMPTY, Html, element, format_duration, join, styled, table, text
from hone.run.report.run_data import RunData
from hone.run.report.svg import LaneBlock, lane_plot, part_style
from hone.run.report.timeline import HELD, OTHER, Timeline, TimelineSpan, step_timeline
from hone.run.store.durable import human_bytes
from hone.run.store.records import MemoryUse, memory_line, speed_line

# ----------------------------------------------------------------------------------------------------------- wait graph


_LEAST: Final = 0.05
"""Smallest share of a step that the sentence mentions."""

_PARTS: Final = {
    "collect": "collecting episodes (collect)",
    "values": "the critic's values (values)",
    "credit": "assigning credit (credit)",
    "update": "the learner's update (update)",
    "publish": "publishing the weights (publish)",
    "distance": "answers that measure the distance from the start (distance)",
    "evaluate": "the evaluation (evaluate)",
    "save": "writing metrics, samples and checkpoints (save)",
    "decode": "generation (decode)",
    "prefill": "reading prompts (prefill)",
    "bookkeeping": "the engine's bookkeeping (bookkeeping)",
    "tools": "tools and environments, while nothing was generated (tools)",
    "rewards": "rewards or worlds, while nothing was generated (rewards)",
    "episodes": "putting episodes together (episodes)",
    "waiting": "episodes that are collected in parallel (collect and publish)",
    OTHER: "unaccounted time (other)",
}
REMEDIES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "collect": (("env.num_envs", "more environments at once (env.num_envs)"),),
    "update": (
        ("model.compute", "larger micro-batches (learner.micro_batch_tokens)"),
        ("model.compute", "products in bfloat16 (model.compute)"),
        ("learner.products", "products in bfloat16 (learner.products)"),
        ("run.ranks", "more ranks (run.ranks)"),
    ),
    "distance": (("samples.every", "a larger samples.every, or fewer samples.prompts"),),
    "evaluate": (("evaluation.every", "a larger evaluation.every"),),
    "save": (("run.log_every", "larger values of run.log_every, run.rollouts_every and run.checkpoint_every"),),
    "decode": (
        ("rollout.max_concurrent", "more answers at once (rollout.max_concurrent)"),
        ("rollout.max_concurrent", "more replicas (cluster.rollout.replicas)"),
    ),
    "prefill": (("rollout.max_concurrent", "shorter prompts or more answers to each"),),
    "tools": (("rollout.max_concurrent", "more answers at once (rollout.max_concurrent) or faster tools"),),
    "rewards": (("user_code.workers", "more reward processes (user_code.workers) or faster reward functions"),),
}
"""What would shorten a part, each with the key that a recipe must have for it."""
_OVERLAP: Final = ("rollout.max_staleness", "rollout.max_staleness = 1 would generate during the update")
_GENERATED: Final = ("decode", "prefill", "bookkeeping")


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepWait:
    """Mean time of a step for which one part of a run waited for another."""

    waiter: str
    waited_for: str
    seconds_s: float


def step_waits(timeline: Timeline) -> list[_StepWait]:
    """Waits of a step, the longest first; none for a run that generates nothing and collects in the loop."""
    parts = {span.name: span.seconds_s for span in (*timeline.collect_parts, *timeline.overlapping)}
    loop = {span.name: span.seconds_s for span in timeline.loop}
    made = sum(parts.get(name, 0.0) for name in _GENERATED)
    waits: list[tuple[str, str, float]] = [
        ("generation", "tools", parts.get("tools", 0.0)),
        ("generation", "rewards", parts.get("rewards", 0.0)),
    ]
    if timeline.is_parallel:
        awaited = timeline.awaited_s
        awaited = loop.get("collect", 0.0) + loop.get("publish", 0.0) if awaited is None else awaited
        waits += [("learner", "rollout", awaited), ("rollout", "learner", parts.get(HELD, 0.0))]
    elif made:
        waits += [
            ("learner", "rollout", loop.get("collect", 0.0)),
            ("rollout", "learner", timeline.step_s - loop.get("collect", 0.0)),
        ]
    waits = [one for one in waits if one[2] > 0]
    return [
        _StepWait(waiter=waiter, waited_for=other, seconds_s=seconds)
        for waiter, other, seconds in sorted(waits, key=lambda one: -one[2])
    ]


def bottleneck_line(timeline: Timeline, keys: Container[str]) -> str:
    """Sentence about the slowest part of a step: its share, and what would shorten it.

    `keys` are those of the run's config: a setting that the recipe does not have is not proposed.
    """
    name, seconds = timeline.finest_parts()[0]
    share = (
        f"{seconds / timeline.step_s:.0%} of a step, {format_duration(seconds)} of {format_duration(timeline.step_s)}"
    )
    beside = [span for span in timeline.overlapping if span.name != HELD]
    if name == "waiting" and beside:
        name = max(beside, key=lambda span: span.seconds_s).name
        line = f"The bottleneck is {_PARTS.get(name, name)}, beside the loop: the learner waited for {share}"
    else:
        line = f"The bottleneck is {_PARTS.get(name, name)}: {share}"
    if name in _GENERATED and timeline.tail_s >= _LEAST * timeline.step_s:
        line += (
            f"; {format_duration(timeline.tail_s)} of slot time passed while only the longest answers were unfinished"
        )
    remedies = " or ".join(words for key, words in REMEDIES.get(name, ()) if key in keys)
    clauses = [f"{remedies} would shorten it"] if remedies else []
    if not timeline.is_parallel and timeline.collect_parts and name in (*_GENERATED, "tools", "rewards", "update"):
        clauses += [_OVERLAP[1]] if _OVERLAP[0] in keys else []
    return f"{'; '.join([line, ', and '.join(clauses)] if clauses else [line])}."


# ------------------------------------------------------------------------------------------------------- timing section


def timing_section(stage: RunData, level: str) -> Html:
    """Render the section; empty without times."""
    timeline = step_timeline(stage.metrics)
    if timeline is None:
        return EMPTY
    # table of the waits of a step; empty where none is known
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
    parts = [
        element(level, text("Time per part of a step")),
        styled("p", "verdict", text(bottleneck_line(timeline, stage.config))),
        styled(
            "div",
            "card",
            *_picture(timeline),
            _table(timeline),
            (table(heads, rows, style="fit", numeric=(1, 2, 3)) if rows else EMPTY),
        ),
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


# ------------------------------------------------------------------------------------------------------- memory section


_MIB = 1 << 20
_MEASURED = "measured"


def memory_section(stage: RunData, level: str) -> Html:
    """Render the section; empty for a run that was not planned, or not measured."""
    use = stage.memory
    if use is None or not use.planned_bytes:
        return EMPTY
    line = memory_line(use)
    note = "Measured is the growth of the whole process: evaluation, data and what an allocator keeps are in it, too."
    rows = [
        [
            join([element("span", attributes={"class": f"swatch {part_style(name, index)}"}), text(name)]),
            text(human_bytes(size)),
        ]
        for index, (name, size) in enumerate(use.components.items())
    ]
    rows += [[text(f"peak of {name}"), text(human_bytes(size))] for name, size in use.phases.items()]
    return join(
        [
            element(level, text("Memory, planned and measured")),
            styled("p", "verdict", text(f"{line[0].upper()}{line[1:]}.")),
            styled(
                "div",
                "card",
                styled("p", "note", text(note)),
                _memory_picture(use),
                table(("planned", "bytes"), rows, style="fit", numeric=(1,)),
            ),
        ]
    )


def _memory_picture(use: MemoryUse) -> Html:
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
