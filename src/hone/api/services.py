"""Decisions in production from Python: the service of a service file, in this process."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hone.core.clock import Clock, SystemClock
from hone.serve.gateway.opening import OpenedService, open_service

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
