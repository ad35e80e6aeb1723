"""Environments of verifiers (`verifiers.v1`): their tasks, harnesses and rubrics hold sessions with the policy.

The package runs in an interpreter that has it, beside hone or apart from it; its environments ask the policy by an
address, as they ask any model. `verifiers_program` is the other end.
"""

import queue
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hone.core.dialogue import PlannedSession, SessionReport
from hone.core.errors import ConfigError, HoneError, LostResourceError, UserCodeError
from hone.process.child import ForeignProgram
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.task import VERIFIERS

_PROGRAM: Final = Path(__file__).with_name("verifiers_program.py")


@dataclass(eq=False, kw_only=True)
class VerifiersDriver:
    """Implements `SessionDriver` with an environment of verifiers, in a process of its own."""

    name: str
    """The environment's package or module, as verifiers names it."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The environment's config as verifiers takes it, `{"agent": {"harness": {"id": "null"}}}`."""
    size: int = 1000
    """Most tasks to take from its taskset."""
    python: str = ""
    """Interpreter that has `verifiers`; empty: this one."""
    folder: Path = field(default_factory=Path.cwd)
    opening_s: float = 300.0
    """Longest wait for its tasks, which may be downloaded."""

    def __post_init__(self) -> None:
        self._program: ForeignProgram | None = None
        self._opened: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._report: Callable[[SessionReport], None] | None = None
        self._fault = ""

    def examples(self) -> ExampleDataset:
        """Open the environment, and return its tasks; the column `task` is the number of each.

        Raises ConfigError without the package, and UserCodeError where the environment cannot be opened.
        """
        tasks = self._open()
        self.close()
        rows = [self._example(place, task) for place, task in enumerate(tasks)]
        return build_examples(rows, source=f"{VERIFIERS}{self.name}")

    def begin(
        self, sessions: Sequence[PlannedSession], address: Callable[[str], str], report: Callable[[SessionReport], None]
    ) -> None:
        """Start the sessions; each is scored by the environment's rubric."""
        if self._program is None:
            self._open()
        assert self._program is not None
        self._report = report
        for one in sessions:
            self._program.send({"session": one.id, "task": one.columns["task"], "address": address(one.id)})

    def check(self) -> None:
        """Raise LostResourceError if the process ended, UserCodeError if the environment did."""
        reason = "" if self._program is None else self._program.ended()
        if self._fault:
            raise UserCodeError(f"{VERIFIERS}{self.name} failed: {self._fault}")
        if reason:
            raise LostResourceError(f"{VERIFIERS}{self.name}: the process of the environment is gone: {reason}")

    def close(self) -> None:
        """End the environment's process, and all that it started."""
        program, self._program = self._program, None
        if program is not None:
            program.close()

    def _open(self) -> list[dict[str, Any]]:
        """Start the process; its tasks."""
        self.close()
        self._opened = queue.SimpleQueue()
        program = ForeignProgram([self.python or sys.executable, str(_PROGRAM)], folder=self.folder, on_line=self._take)
        program.start()
        self._program = program
        environment = {**self.config, "taskset": {**self.config.get("taskset", {}), "id": self.name}}
        program.send({"environment": environment, "size": self.size})
        for _ in range(int(self.opening_s / 0.1)):
            message: dict[str, Any]
            try:
                message = self._opened.get(timeout=0.1)
            except queue.Empty:
                if not (reason := program.ended()):
                    continue
                message = {"fault": reason} if self._opened.empty() else self._opened.get()
            if "tasks" in message:
                return message["tasks"]
            self.close()
            raise self._cannot_open(message["fault"])
        output = program.last_output()
        self.close()
        raise UserCodeError(f"{VERIFIERS}{self.name} gave no tasks in {self.opening_s:g} s{output}")

    def _cannot_open(self, fault: str) -> HoneError:
        if "No module named 'verifiers'" in fault:
            return ConfigError(
                f"{VERIFIERS}{self.name}: {self.python or sys.executable} has no package verifiers; install it there "
                "(pip install verifiers), or name an interpreter that has it in user_code.agents.python"
            )
        return UserCodeError(f"{VERIFIERS}{self.name} cannot be opened: {fault}")

    def _take(self, told: dict[str, Any]) -> None:
        """A line of the program, on its thread."""
        if "session" not in told:
            self._fault = told.get("fault", "")
            self._opened.put(told)
        elif self._report is not None:
            self._report(
                SessionReport(
                    session=told["session"],
                    score=told.get("reward"),
                    error=told.get("error", ""),
                    without_roles=frozenset(told.get("without_roles", ())),
                    facts=told.get("facts", {}),
                )
            )

    def _example(self, place: int, task: Mapping[str, Any]) -> Example:
        system = [{"role": "system", "content": task["system"]}] if task["system"] else []
        return Example(
            id=f"{self.name}:{place}",
            prompt=[*system, {"role": "user", "content": task["prompt"]}],
            completion=None,
            columns={"task": place, "name": task["name"]},
            row=place + 1,
            source=f"{VERIFIERS}{self.name}",
        )
