"""Fairness under borrowing: a tenant that used slots that nobody else wanted should not pay for them without end."""

import tempfile
from pathlib import Path

import numpy as np

from hone.core.decisions import Floats
from hone.core.random import generator
from hone.decide.simulators.recommendation import SimulatedClock
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import RunQueue

_SLOTS, _JOB_S = 4, 300.0
"""Slots, and the mean of a job's exponential time."""
_AWAY_S, _BIN_S, _BINS = 8 * 3600.0, 1800.0, 16
"""Seconds for which one tenant queues nothing, and the half hours after it that are looked at."""
FADES, NEVER = "use fades", "use counts for ever"
_HALF_LIVES_S = {FADES: 1800.0, NEVER: 1e12}


def _shares_after_absence(seed: int, run: int, half_life_s: float) -> Floats:
    """Share of the slots' time that the tenant who had borrowed has in each half hour after the other's return
    `[_BINS]`, by hone's queue."""
    clock = SimulatedClock(time_s=0.0)
    with tempfile.TemporaryDirectory() as folder:
        database = open_queue_database(str(Path(folder) / "queue.db"))
        queue = RunQueue(database, clock, lease_s=1e9, half_life_s=half_life_s)
        used = _used_after_absence(queue, clock, generator(seed, "borrowing", run))
        queue.close()
    return used[1] / used.sum(0)


def _used_after_absence(queue: RunQueue, clock: SimulatedClock, draws: np.random.Generator) -> Floats:
    """Seconds of the slots that the lender and the borrower use in each half hour `[2, _BINS]`."""
    used, edges = np.zeros((2, _BINS)), _AWAY_S + _BIN_S * np.arange(_BINS + 1)
    arrivals = {"borrower": 0.0, "lender": _AWAY_S}
    running: list[tuple[float, int, int, int, float]] = []
    while clock.time_s < edges[-1]:
        for tenant in [name for name, at_s in arrivals.items() if at_s <= clock.time_s]:
            del arrivals[tenant]
            for _ in range(_SLOTS):
                queue.submit(tenant, "job", ["x.toml"])
        while len(running) < _SLOTS and (job := queue.claim("worker")) is not None:
            queue.submit(job.tenant, "job", ["x.toml"])  # as many wait as before
            end = clock.time_s + float(draws.exponential(_JOB_S))
            running.append((end, job.id, job.token, int(job.tenant == "borrower"), clock.time_s))
        ended = min(running)
        running.remove(ended)
        clock.time_s = ended[0]
        queue.finish(ended[1], ended[2], "done")
        used[ended[3]] += np.diff(np.clip(edges, ended[4], ended[0]))
    return used


def claims_of(shares: dict[str, Floats]) -> list[BoundedClaim]:
    """Claims on the borrower's share by half hours `[runs, bins]`; the tenants' weights are equal."""
    fades, never = shares[FADES].mean(0), shares[NEVER].mean(0)
    return [
        at_most("share in the first half hour, fading use", float(fades[0]), 0.45),
        at_least("share in the last four half hours, fading use", float(fades[-4:].mean()), 0.45),
        at_most("share in the last four half hours, fading use, from above", float(fades[-4:].mean()), 0.55),
        at_most("share in the last four half hours, use that counts for ever", float(never[-4:].mean()), 0.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    runs = 2 if quick else 12
    shares = {
        way: np.array([_shares_after_absence(seed, run, half_life_s) for run in range(runs)])
        for way, half_life_s in _HALF_LIVES_S.items()
    }
    hours = _AWAY_S / 3600
    last = {way: values.mean(0)[-4:].mean() for way, values in shares.items()}
    return ExperimentResult(
        header=("use", "first half hour", "second hour", "last two hours"),
        rows=[
            (way, f"{mean[0]:.0%}", f"{mean[2:4].mean():.0%}", f"{mean[-4:].mean():.0%}")
            for way, mean in ((way, values.mean(0)) for way, values in shares.items())
        ],
        panels=[
            line_plot(
                "share of the tenant that had borrowed", "hours after the other's return",
                _BIN_S / 3600 * (np.arange(_BINS) + 0.5), {way: values.mean(0) for way, values in shares.items()},
            )
        ],
        verdict=(
            f"For {hours:.0f} hours one of two equal teams used all slots, since the other wanted none. If use counts "
            f"for ever, it has {last[NEVER]:.0%} of the slots in the last two of the next eight hours: it pays for "
            "slots that would have stood idle. If use fades by half in half an hour, the one that returns goes first, "
            f"and in those hours the borrower has {last[FADES]:.0%}."
        ),
        claims=claims_of(shares),
        figures={"hours of borrowing": hours},
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Fairness under borrowing",
    question="Should a tenant pay for slots that it borrowed while nobody else wanted them?",
    run=_run,
    source="Kay and Lauder, 1988",
)
