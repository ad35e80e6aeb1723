"""An expert that is a user's function, in a process of its own: asked what to do, it answers for many observations.

Belongs here: starting that process, asking it under a deadline, and killing it; and the child, which is this module as
a command. The function is `f(observations [n, *observation]) -> actions [n, *action]`, on numpy arrays; nothing of its
file is imported in the trainer.
"""

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, UserCodeError, did_you_mean

Array = NDArray[np.generic]
READ_BYTES = 1 << 16


def check_expert(use: str) -> None:
    """Raises ConfigError unless `use` is `path/to/file.py:name` of a file that is there."""
    place, _, name = use.rpartition(":")
    if not place.endswith(".py") or not name.isidentifier():
        raise ConfigError(f"expert {use!r}: write path/to/file.py:name")
    if not Path(place).is_file():
        near = did_you_mean(Path(place).name, [entry.name for entry in Path(place).parent.glob("*.py")])
        raise ConfigError(f"expert {use!r}: no such file {place}{near}")


@dataclass
class ExpertProcess:
    """Asks `use`, `path/to/file.py:name`. The process is started with the first question."""

    reference: str
    deadline_s: float = 60.0
    clock: Clock = field(default_factory=SystemClock)
    process: "subprocess.Popen[bytes] | None" = None

    def numpy_policy(self) -> Self:
        return self

    def best(self, seen: Array) -> Array:
        """Actions `[n, *action]` for `[n, *observation]`.

        Raises UserCodeError where the function raises, answers something else, or takes too long.
        """
        child = self._ensure_started()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps({"seen": seen.tolist(), "type": str(seen.dtype)}).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            raise UserCodeError(f"expert {self.reference!r}: its process ended with code {child.wait()}") from None
        answer = self._answer(child)
        if "fault" in answer:
            self.close()
            raise UserCodeError(f"expert {self.reference!r} failed: {answer['fault']}")
        actions = np.array(answer["actions"])
        if len(actions) != len(seen) or actions.dtype.kind not in "if" or not np.isfinite(actions).all():
            raise UserCodeError(
                f"expert {self.reference!r} returned {actions.dtype}{list(actions.shape)} for {len(seen)} "
                f"observations; it "
                "must return one action of finite numbers for each"
            )
        return actions

    def close(self) -> None:
        child, self.process = self.process, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()

    def _ensure_started(self) -> "subprocess.Popen[bytes]":
        if self.process is None:
            paths = [entry or str(Path.cwd()) for entry in sys.path]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hone.envs.expert_process", self.reference],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        return self.process

    def _answer(self, child: "subprocess.Popen[bytes]") -> dict[str, Any]:
        assert child.stdout is not None
        end, said = self.clock.monotonic_s() + self.deadline_s, b""
        while not said.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, end - self.clock.monotonic_s()))
            if not ready:
                self.close()
                raise UserCodeError(
                    f"expert {self.reference!r} did not answer within {self.deadline_s:g} s and was killed; make it "
                    f"faster, "
                    "or raise expert.deadline_s"
                )
            more = os.read(child.stdout.fileno(), READ_BYTES)
            if not more:
                code = child.wait()
                self.close()
                raise UserCodeError(f"expert {self.reference!r}: its process ended with code {code}")
            said += more
        return json.loads(said)


def run_expert_worker(use: str) -> None:
    """The child: one line of JSON in, one out, until the trainer goes."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no answer
    function: Callable[[Array], Any] | None = None
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        try:
            function = function or load_expert(use)
            actions = np.asarray(function(np.array(asked["seen"], np.dtype(asked["type"])))).tolist()
            answer: dict[str, Any] = {"actions": actions}
        except BaseException as error:  # noqa: BLE001 - whatever the user's code does is told to the trainer
            answer = {"fault": f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}"}
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


def load_expert(use: str) -> Callable[[Array], Any]:
    """The function; raises ImportError, KeyError or whatever its file does."""
    place, _, name = use.rpartition(":")
    path = Path(place).resolve()
    sys.path.append(str(path.parent))  # its neighbours are importable, but never in place of a library
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name not in vars(module):
        raise ImportError(
            f"{place} has no {name!r}{did_you_mean(name, [key for key in vars(module) if key[0] != '_'])}"
        )
    return vars(module)[name]


if __name__ == "__main__":
    run_expert_worker(sys.argv[1])
