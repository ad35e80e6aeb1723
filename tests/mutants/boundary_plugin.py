"""pytest plug-in of `boundaries.py`: runs all tests once, then those at equality for every comparison in a fork."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

MOST_FAILED = 5
"""Tests that may fail in the copy without an exchange; they judge nothing."""
TRIED_S = 4
"""Seconds of the tests that are tried on one comparison, the quickest first: a case at equality is a quick test."""
LIMIT_S = 60
"""A comparison whose tests run longer than this has changed how the work ends: it is noticed."""


class _Outcome:
    failed: set[str] = set()
    seconds: dict[str, float] = {}


def pytest_sessionstart() -> None:
    """hypothesis does not shrink the examples that notice an exchange."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "boundaries", parent=settings.get_profile("hone"), max_examples=40, phases=phases, database=None
    )
    settings.load_profile("boundaries")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    from hone.comparison_runtime import Notes

    Notes.test = item.nodeid
    start = time.perf_counter()
    result = yield
    _Outcome.seconds[item.nodeid] = time.perf_counter() - start
    Notes.test = ""
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _Outcome.failed.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[Any]:
    """After the tests: one fork for each comparison."""
    from hone.comparison_runtime import Notes

    result = yield
    if len(_Outcome.failed) > MOST_FAILED:
        return result
    # One that counts calls, say, fails in the copy
    used = {test for tests in Notes.equal.values() for test in tests} - _Outcome.failed
    _Outcome.failed.clear()
    items = {item.nodeid: item for item in session.items if item.nodeid in used}
    # A test that fails when it runs a second time would notice everything
    items = {name: item for name, item in items.items() if not _fails_in_fork(-2, [item])}
    killed: list[int] = []
    for number in json.loads(Path("sites.json").read_text(encoding="utf-8")):
        tests = _quickest(Notes.equal.get(number, {}))
        if tests and _fails_in_fork(number, [items[name] for name in tests if name in items]):
            killed.append(number)
        verdict = "noticed" if killed[-1:] == [number] else "survives"
        sys.stderr.write(f"{number} {verdict}, {len(tests)} tests reach it\n")
        sys.stderr.flush()
    Path("killed.json").write_text(json.dumps(killed), encoding="utf-8")
    return result


def _quickest(names: Iterable[str]) -> list[str]:
    """Tests with their first one, that took this long together at most."""
    ordered = sorted(names, key=lambda name: _Outcome.seconds[name])
    spent = accumulate(_Outcome.seconds[name] for name in ordered)
    return [name for name, seconds in zip(ordered, spent, strict=True) if seconds < TRIED_S or name == ordered[0]]


def _fails_in_fork(number: int, items: list[pytest.Item]) -> bool:
    """Whether a test fails in a process of its own where this comparison is exchanged; -2: none is."""
    from hone.comparison_runtime import Notes

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        Notes.exchanged = number
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        for item in items:
            if isinstance(item, pytest.Function):
                item._initrequest()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if _Outcome.failed:
                os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status != 0
