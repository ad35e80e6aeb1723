"""A program of another interpreter, which has packages that this one need not have: lines of JSON in and out."""

import json
import os
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from hone.core.errors import ResourceError
from hone.process.descendants import TOKEN_VARIABLE, kill_family

_TAIL_BYTES = 2000


class ForeignProgram:
    """One program: `send` writes a line, `on_line` gets each line that it writes, from a thread of its own."""

    def __init__(self, command: Sequence[str], *, folder: Path, on_line: Callable[[dict[str, Any]], None]) -> None:
        self._command, self._folder, self._on_line = list(command), folder, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._log: IO[bytes] | None = None
        self._token = uuid.uuid4().hex
        self._ended = ""

    def start(self) -> None:
        """Start it in its folder, without this interpreter's packages. Raises ResourceError."""
        left = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**left, TOKEN_VARIABLE: self._token, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError as error:
            self.close()
            raise ResourceError(f"cannot start {self._command[0]}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, daemon=True, name="hone-foreign-program")
        self._reader.start()

    def send(self, line: dict[str, Any]) -> None:
        """Write a line; one that has ended takes none, and `ended` says why."""
        assert self._process is not None and self._process.stdin is not None, "start it first"
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def ended(self) -> str:
        """Why it ended, with what it printed last; empty while it runs."""
        if self._process is None:
            return "it was closed"
        code = self._process.poll()
        return "" if code is None else f"it ended with code {code}{self.last_output()}"

    def last_output(self) -> str:
        """`; it printed: ...`, or nothing."""
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f"; it printed: {' | '.join(lines[-6:])}" if lines else ""

    def close(self) -> None:
        """End it with everything that it started."""
        process, self._process = self._process, None
        if process is not None:
            kill_family(process.pid, self._token)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(5)
        if self._log is not None:
            self._log.close()
            self._log = None

    def _read(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        for line in process.stdout:
            self._on_line(json.loads(line))
