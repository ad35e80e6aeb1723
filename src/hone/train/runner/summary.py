"""What is said at the end of a run: where its time went, and what its updates reached of what the machine can do."""

from hone.core.clock import Clock
from hone.core.errors import HoneError
from hone.models.language.token_policy import TokenPolicy
from hone.report.timeline import step_timeline
from hone.store.folder import RunFolder
from hone.store.metrics import read_metrics
from hone.store.speed import speed_line, update_flops_per_s, write_matmul_rate
from hone.train.runner.throughput import matmul_rate


def closing_lines(folder: RunFolder, policy: object, clock: Clock) -> list[str]:
    """Lines for a person. Where work was counted, the machine's matmul rate is measured (0.1 s) and kept with the run.

    A finished run does not fail for want of them: what went wrong is logged.
    """
    try:
        metrics = read_metrics(folder.metrics_path)
        found = step_timeline(metrics)
        lines = [] if found is None else [found.bottleneck()]
        if isinstance(policy, TokenPolicy) and update_flops_per_s(metrics) is not None:
            rate = matmul_rate(policy, clock=clock)
            write_matmul_rate(folder.path, rate)
            lines.append(f"{speed_line(metrics, rate)}.")
    except HoneError as fault:
        folder.log(f"no figures of speed: {fault}", level="WARNING")
        return []
    return lines
