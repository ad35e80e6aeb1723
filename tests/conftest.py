"""Common conditions of all tests: one thread, no network, the same examples on every machine, listed metrics."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Set before torch or a tokenizer is imported by anything; setdefault, so that a caller may still choose.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from examples import FEWER
from hypothesis import settings
from warm_children import WarmSubprocess

from hone.cli.commands import train
from hone.process import child
from hone.run.store import metrics
from hone.run.store.metrics import OpenedMetrics

sys.path.append(str(Path(__file__).parent / "docs"))
from metric_names import listed

# A slow machine is no failure, and a failure seen once must be seen again: no deadline, fixed seeds.
settings.register_profile(FEWER, deadline=None, derandomize=True, print_blob=True, max_examples=15)
settings.register_profile("all", settings.get_profile(FEWER), max_examples=100)
settings.load_profile(FEWER)


def pytest_configure(config: pytest.Config) -> None:
    """With the slow tests, examples are as many as hypothesis would take, or as the test says (examples.py)."""
    if "not slow" not in config.option.markexpr and settings.get_current_profile_name() == FEWER:
        settings.load_profile("all")


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules stay: the collector need not look at them again and again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    WARM.close()


@pytest.fixture(autouse=True)
def threads_of_torch() -> Iterator[None]:
    """A run within a test sets its own number of threads; left behind, it would slow other tests and change sums."""
    yield
    torch = sys.modules.get("torch")
    wanted = int(os.environ["OMP_NUM_THREADS"])
    if torch is not None and torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)


os.fsync = lambda descriptor: None
"""A power cut costs nothing here, and a run syncs dozens of files. Tests of the order of syncs watch the calls."""

CERTIFIED = (
    "certify",
    "cli/commands/test_cli_doctor_loss.py",
    "recipes/reward_models/test_recipes_reward_models.py",
    "recipes/test_recipes_certify.py",
    "run/test_train_hangup.py",
)
"""Tests of certificates. Elsewhere a run in this process makes none: it takes half of the time of a short run."""


@dataclass
class Certificates:
    """Whether a run in this process makes its certificate."""

    made: bool = False

    def certify(self, *arguments: Any) -> Any:
        return CERTIFY(*arguments) if self.made else None


CERTIFY, CERTIFICATES = train._certify, Certificates()
train._certify = CERTIFICATES.certify


@pytest.fixture(scope="module", autouse=True)
def certificates(request: pytest.FixtureRequest) -> Iterator[Certificates]:
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    CERTIFICATES.made = place.startswith(CERTIFIED)
    yield CERTIFICATES
    CERTIFICATES.made = False


WARM = WarmSubprocess()
child.subprocess = WARM  # type: ignore[assignment]
"""Processes of environments, rewards and worlds are forks: new interpreters take a tenth of the suite's time."""


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of a test are no forks: what they leave behind is found by its environment in `/proc`."""
    monkeypatch.setattr(child, "subprocess", subprocess)


METRICS = listed()
DRIVER = "hone.run.run"
"""The module that opens the metrics file of a run."""


def checked_writers(opening: Callable[..., OpenedMetrics]) -> Callable[..., OpenedMetrics]:
    """`open_metrics`, of which the driver of runs gets a writer that refuses metrics that are not documented."""

    def open_metrics(path: Path, *, after_step: int = 0, every: int = 1) -> OpenedMetrics:
        writer, repairs = opening(path, after_step=after_step, every=every)
        if sys._getframe(1).f_globals["__name__"] == DRIVER:  # tests write metrics of their own, too
            writer = CheckedWriter(path=path, descriptor=writer.descriptor, last_step=writer.last_step)
        return OpenedMetrics(writer, repairs)

    return open_metrics


class CheckedWriter(metrics.MetricsWriter):
    """Fails the run whose metric is not listed in docs/reference/metrics.md."""

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        unknown = [name for name in metrics if not METRICS.fullmatch(name)]
        assert unknown == [], f"{unknown}: add them to src/hone/run/store/metrics.toml, with unit and meaning"
        super().append(step, metrics)


# Before anything imports the driver, which takes seconds: most tests never do.
metrics.open_metrics = checked_writers(metrics.open_metrics)
