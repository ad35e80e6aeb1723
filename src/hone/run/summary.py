"""Closing lines of a run: its best evaluation, where its time went, and the share of the machine's speed it reached."""

import math
from collections.abc import Callable

import numpy as np

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.run.report.timeline import step_timeline
from hone.run.report.wait_graph import bottleneck_line
from hone.run.store.checkpoints import step_name
from hone.run.store.evaluations import read_evaluations
from hone.run.store.folder import RunFolder
from hone.run.store.metrics import MetricColumns, read_metrics
from hone.run.store.speed import MatmulRate, speed_line, update_flops_per_s, write_matmul_rate


def closing_lines(folder: RunFolder, measure_matmuls: Callable[[Clock], MatmulRate] | None, clock: Clock) -> list[str]:
    """Lines for a person. Where work was counted, the machine's matmul rate is measured (0.1 s) and kept with the run.

    A finished run does not fail for want of them: what went wrong is logged.
    """
    try:
        metrics = read_metrics(folder.metrics_path)
        found = step_timeline(metrics)
        lines = [] if found is None else [bottleneck_line(found)]
        if (line := mismatch_line(metrics)) is not None:
            lines.append(line)
        if measure_matmuls is not None and update_flops_per_s(metrics) is not None:
            rate = measure_matmuls(clock)
            write_matmul_rate(folder.path, rate)
            lines.append(f"{speed_line(metrics, rate)}.")
    except HoneError as fault:
        folder.log(f"no figures of speed: {fault}", level="WARNING")
        return []
    return lines


def evaluation_lines(folder: RunFolder) -> list[str]:
    """Warnings of a run's last evaluation; and a line that names the best and its checkpoint beside the last one, if
    there are two.

    Of equal scores the latest is the best, as `run.keep_best` keeps it. A damaged file is logged.
    """
    try:
        evaluations, _ = read_evaluations(folder.path)
    except HoneError as fault:
        folder.log(f"no best evaluation: {fault}", level="WARNING")
        return []
    warnings = [f"warning: {line}" for line in (evaluations[-1].warnings if evaluations else ())]
    steps = {one.stage.removeprefix("step "): one.mean for one in evaluations if one.stage.startswith("step ")}
    scores = {int(step): mean for step, mean in steps.items() if step.isdecimal() and math.isfinite(mean)}
    if len(scores) < 2:
        return warnings
    last, best = max(scores), max(scores, key=lambda step: (scores[step], step))
    found = f"best of {len(scores)} evaluations: {scores[best]:.5g} at step {best}"
    if best == last:
        return [*warnings, f"{found}, the last."]
    place = folder.checkpoints_folder / step_name(best)
    kept = f"kept in {place}" if place.is_dir() else "not kept (run.keep_best = 1 keeps it)"
    return [*warnings, f"{found}, {kept}; the last policy, of step {last}, scores {scores[last]:.5g}."]


def mismatch_line(metrics: MetricColumns) -> str | None:
    """A line on how far the answers' policy was from the trainer's, of a run that corrects for it; None otherwise."""
    divergence, above = metrics.values.get("mismatch/k3_nats"), metrics.values.get("mismatch/ratio_above_cap")
    if divergence is None or above is None or not np.isfinite(divergence).any():
        return None
    mean, worst = np.nanmean(divergence), np.nanmax(divergence)
    return (
        f"answers' policy against the trainer's: KL {mean:.2g} nats a token, {worst:.2g} in the worst step; "
        f"{np.nanmean(above):.2%} of the tokens beyond the correction's cap."
    )
