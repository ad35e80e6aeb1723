"""Tests of the sandbox need a rung of confinement; on a machine without one they are skipped."""

import pytest

from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox


@pytest.fixture(scope="session")
def best_rung() -> str:
    """The best rung of this machine."""
    with CodeSandbox(SandboxPolicy()) as sandbox:
        return sandbox.probe().rung


@pytest.fixture(scope="session", autouse=True)
def _needs_a_rung(best_rung: str) -> None:
    if not best_rung:
        pytest.skip("this machine cannot confine programs")
