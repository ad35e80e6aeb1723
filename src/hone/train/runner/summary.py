"""What is said at the end of a run: where its time went, and what its updates reached of what the machine can do."""

from collections.abc import Callable

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.report.timeline import step_timeline
from hone.store.folder import RunFolder
from hone.store.metrics import read_metrics
from hone.store.speed import MatmulRate, speed_line, update_flops_per_s, write_matmul_rate


def closing_lines(folder: RunFolder, measure_matmuls: Callable[[Clock], MatmulRate] | None, clock: Clock) -> list[str]:
    """Lines for a person. Where work was counted, the machine's matmul rate is measured (0.1 s) and kept with the run.

    A finished run does not fail for want of them: what went wrong is logged.
    """
    try:
        metrics = read_metrics(folder.metrics_path)
        found = step_timeline(metrics)
        lines = [] if found is None else [found.bottleneck()]
        if measure_matmuls is not None and update_flops_per_s(metrics) is not None:
            rate = measure_matmuls(clock)
            write_matmul_rate(folder.path, rate)
            lines.append(f"{speed_line(metrics, rate)}.")
    except HoneError as fault:
        folder.log(f"no figures of speed: {fault}", level="WARNING")
        return []
    return lines
