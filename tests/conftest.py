"""Common conditions of all tests: one thread, no network, the same examples on every machine, listed metrics."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

# Set before torch or a tokenizer is imported by anything; setdefault, so that a caller may still choose.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

from hone.store.metrics import MetricsWriter

sys.path.append(str(Path(__file__).parent / "docs"))
from metric_names import listed

# A slow machine is no failure, and a failure seen once must be seen again: no deadline, fixed seeds.
settings.register_profile("hone", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("hone")

METRICS = listed()


@pytest.fixture(autouse=True)
def every_metric_of_a_run_is_documented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run that writes a metric which docs/reference/metrics.md does not list fails, in whichever test it is made."""
    append = MetricsWriter.append

    def checked(writer: MetricsWriter, step: int, metrics: Mapping[str, float]) -> None:
        if (writer.path.parent / "config.json").is_file():  # a run's folder, not a file of the store's own tests
            unknown = [name for name in metrics if not METRICS.fullmatch(name)]
            assert unknown == [], f"{unknown}: add them to tests/docs/metrics.toml, with unit and meaning"
        append(writer, step, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsWriter, "append", checked)
        yield
