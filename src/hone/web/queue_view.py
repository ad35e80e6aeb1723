"""Answers of the queue's page: shares against entitlements over time, claims on a time axis, and what each run cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hone.core.clock import Clock
from hone.core.errors import DataError
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue, TenantShare, UsedSpan

_MICRO: Final = 1_000_000
_POINTS: Final = 80
"""Moments of the curves."""
_SPANS: Final = 400
"""Claims that are drawn, the newest."""
_JOBS: Final = 500


def queue_view(address: str, clock: Clock) -> dict[str, Any]:
    """What the page shows of a queue: tenants, curves of their shares, spans of claims, jobs. Raises DataError where
    there is no such file, and ResourceError where it cannot be read."""
    if "://" not in address and not Path(address).is_file():
        raise DataError(f"there is no queue {address}; hone queue submit makes one")
    queue = RunQueue(open_queue_database(address), clock)
    try:
        shares, spans, jobs, admissions = queue.shares(), queue.claims(), queue.jobs(), queue.admissions()
    finally:
        queue.close()
    total, weights = sum(one.used_us for one in shares), sum(one.weight for one in shares)
    spent: dict[int, int] = {}
    for span in spans:
        spent[span.job] = spent.get(span.job, 0) + span.to_us - span.from_us
    names = {job.id: job.name for job in jobs}
    start_us = min((one.from_us for one in spans), default=0)
    return {
        "tenants": [
            {
                "name": one.name,
                "weight": one.weight,
                "entitled": one.weight / weights,
                "used": one.used_us / total if total else None,
                "seconds": one.used_us / _MICRO,
                "use": one.use.text,
                "running": one.running,
                "queued": one.queued,
                "slots": one.slots,
            }
            for one in shares
        ],
        "curves": share_curves(shares, spans),
        "spans": [
            {
                "job": one.job,
                "name": names.get(one.job, ""),
                "tenant": one.tenant,
                "from_s": (one.from_us - start_us) / _MICRO,
                "to_s": (one.to_us - start_us) / _MICRO,
                "lane": lane,
            }
            for one, lane in lanes_of(spans[-_SPANS:])
        ],
        "jobs": [
            {
                "id": job.id,
                "name": job.name,
                "tenant": job.tenant,
                "state": job.state,
                "claims": job.attempts,
                "seconds": spent.get(job.id, 0) / _MICRO,
                "part": spent.get(job.id, 0) / total if total else None,
                "why": admissions[job.id].why if job.id in admissions else job.why,
                "wait_s": admissions[job.id].wait_s if job.id in admissions else None,
            }
            for job in jobs[-_JOBS:]
        ],
        "began_s": start_us / _MICRO,
    }


def share_curves(shares: Sequence[TenantShare], spans: Sequence[UsedSpan]) -> dict[str, Any]:
    """Each tenant's part of what was used up to each of some moments, in seconds since the first claim."""
    if not spans:
        return {"x": [], "used": {}}
    start, end = min(one.from_us for one in spans), max(one.to_us for one in spans)
    moments = [start + (end - start) * place // _POINTS for place in range(1, _POINTS + 1)]
    used = {one.name: [0] * _POINTS for one in shares}
    for span in spans:
        own = used[span.tenant]
        for place, moment in enumerate(moments):
            own[place] += max(0, min(span.to_us, moment) - span.from_us)
    totals = [sum(own[place] for own in used.values()) for place in range(_POINTS)]
    return {
        "x": [(moment - start) / _MICRO for moment in moments],
        "used": {
            name: [value / total if total else None for value, total in zip(own, totals, strict=True)]
            for name, own in used.items()
        },
    }


def lanes_of(spans: Sequence[UsedSpan]) -> list[tuple[UsedSpan, int]]:
    """Each span with the first lane in which it overlaps none before it: as many lanes as claims at the same time."""
    ends, placed = list[int](), list[tuple[UsedSpan, int]]()
    for span in sorted(spans, key=lambda one: (one.from_us, one.token)):
        lane = next((place for place, end in enumerate(ends) if end <= span.from_us), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = max(span.to_us, span.from_us)
        placed.append((span, lane))
    return placed
