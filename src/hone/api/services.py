"""Decisions in production from Python: the service of a service file, in this process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hone.core.clock import Clock, SystemClock
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.rollout.driver import RolloutDriver

LOGGER: Final = logging.getLogger("hone.decisions")


@contextmanager
def serve_decisions(file: str | Path, *, clock: Clock | None = None) -> Iterator[OpenedService]:
    """Open the service of a file for the block: `decide`, `reward`, `view`, `replay`.

    Faults and fallbacks are warnings of the logger `hone.decisions`. Raises ConfigError with all faults of the file,
    DataError for a damaged policy or log, ResourceError if another process serves the file.
    """
    opened = open_service(Path(file), clock=clock or SystemClock(), tell=LOGGER.warning)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def ship(
    policy: str | Path, *, to: str | Path, name: str = "", parent: str = "", clock: Clock | None = None
) -> Iterator[RolloutDriver]:
    """Begin a staged rollout of a policy in the service of a file, for the block, as `hone ship POLICY --to FILE` does.

    Each `step()` looks at the decision log once and returns the transitions that the evidence asks for; `back(words)`
    sends every unit back; `plan` and `state` tell where it is. Its end leaves the rollout where it is, and
    `hone ship FILE` goes on. `parent` is the version that the policy was trained from; empty: none.
    Raises ConfigError with everything that is in its way, DataError for a policy that cannot decide.
    """
    with open_rollouts(Path(to), clock or SystemClock()) as rollouts:
        version = rollouts.add(Path(policy), parent)
        yield rollouts.start(rollouts.plan(version.id, name))
