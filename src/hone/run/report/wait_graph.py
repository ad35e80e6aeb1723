"""Who waited for whom in a step, and the bottleneck with what would shorten it.

Belongs here: the waits that follow from a timeline, and sentences about them. `timeline` orders the parts.
"""

from dataclasses import dataclass
from typing import Final

from hone.run.report.html import format_duration
from hone.run.report.timeline import HELD, OTHER, Timeline

_LEAST: Final = 0.05
"""Smallest share of a step that the sentence mentions."""

_PARTS: Final = {
    "collect": "collecting episodes (collect)",
    "values": "the critic's values (values)",
    "credit": "assigning credit (credit)",
    "update": "the learner's update (update)",
    "publish": "publishing the weights (publish)",
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
_REMEDIES: Final = {
    "collect": "more environments at once (env.num_envs) would shorten it",
    "update": "larger micro-batches (learner.micro_batch_tokens), bfloat16 products or more ranks would shorten it",
    "evaluate": "a larger evaluation.every would shorten it",
    "save": "larger values of run.log_every, run.samples_every and run.checkpoint_every would shorten it",
    "decode": "more answers at once (rollout.max_concurrent) or more replicas would shorten it",
    "prefill": "shorter prompts, or more answers to each, would shorten it",
    "tools": "more answers at once (rollout.max_concurrent) would fill it, and faster tools shorten it",
    "rewards": "more reward processes (rewards.workers) or faster reward functions would shorten it",
}
_OVERLAP: Final = "rollout.max_staleness = 1 would generate during the update"
_GENERATED: Final = ("decode", "prefill", "bookkeeping")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWait:
    """Mean time of a step for which one part of a run waited for another."""

    waiter: str
    waited_for: str
    seconds_s: float


def step_waits(timeline: Timeline) -> list[StepWait]:
    """Waits of a step, the longest first; none for a run that generates nothing and collects in the loop."""
    parts = {span.name: span.seconds_s for span in (*timeline.collect_parts, *timeline.overlapping)}
    loop = {span.name: span.seconds_s for span in timeline.loop}
    made = sum(parts.get(name, 0.0) for name in _GENERATED)
    found: list[tuple[str, str, float]] = [
        ("generation", "tools", parts.get("tools", 0.0)),
        ("generation", "rewards", parts.get("rewards", 0.0)),
    ]
    if timeline.is_parallel:
        awaited = timeline.awaited_s
        awaited = loop.get("collect", 0.0) + loop.get("publish", 0.0) if awaited is None else awaited
        found += [("learner", "rollout", awaited), ("rollout", "learner", parts.get(HELD, 0.0))]
    elif made:
        found += [
            ("learner", "rollout", loop.get("collect", 0.0)),
            ("rollout", "learner", timeline.step_s - loop.get("collect", 0.0)),
        ]
    found = [one for one in found if one[2] > 0]
    return [
        StepWait(waiter=waiter, waited_for=other, seconds_s=seconds)
        for waiter, other, seconds in sorted(found, key=lambda one: -one[2])
    ]


def bottleneck_line(timeline: Timeline) -> str:
    """Sentence about the slowest part of a step: its share, and what would shorten it."""
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
    remedies = [_REMEDIES[name]] if name in _REMEDIES else []
    if not timeline.is_parallel and timeline.collect_parts and name in (*_GENERATED, "tools", "rewards", "update"):
        remedies.append(_OVERLAP)
    return f"{'; '.join([line, ', and '.join(remedies)] if remedies else [line])}."
