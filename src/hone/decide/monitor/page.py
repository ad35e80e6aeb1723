"""The page of a monitor, from the state of the monitor and the versions that served."""

from collections.abc import Sequence
from pathlib import Path

from hone.decide.monitor.history import SignalHistory
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.pages.drift_page import AlarmMark, DriftPageData, ServedPeriod, write_drift_page


def write_monitor_page(
    path: Path, monitor: ServiceMonitor, tenant: str, *, served: Sequence[ServedPeriod] = ()
) -> None:  # fmt: skip
    """Write the page of a tenant. Raises ResourceError."""
    history = monitor.history.get(tenant, SignalHistory())
    shown = DriftPageData(
        tenant=tenant, signal=monitor.config.on, block=history.block, means=history.means,
        alarms=[AlarmMark(count=alarm.count, words=alarm.words) for alarm in history.alarms],
        shifts=monitor.shifts(tenant), served=served,
    )  # fmt: skip
    write_drift_page(path, shown)
