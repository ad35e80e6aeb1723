"""Child process that runs one command of hone and answers with its exit code and its errors.

The command is in the child's process group, so it dies with the child, and the child with its parent. A request,
whatever it says, asks the command to save and stop (SIGTERM).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial

from hone.process.commands import ended_core_us
from hone.process.linux import PR_SET_PDEATHSIG, prctl
from hone.process.parent import ParentChannel, connect_to_parent

OUTPUT_TAIL_LINES = 12
"""Lines told of a failed command without a message of hone's."""


def error_lines(output: str, code: int) -> list[str]:
    """The errors of a failed command, or the end of its output."""
    lines = output.splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors or lines[-OUTPUT_TAIL_LINES:] or [f"ended with code {code} without a message"]


def _stop_on_request(channel: ParentChannel, command: "subprocess.Popen[bytes]") -> None:
    for _ in channel.lines():
        command.terminate()


def _die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends: Ray kills a worker's children one by one, and a group
    without its leader would live on."""
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def main() -> None:
    """Run the command that the arguments name, until it ends."""
    channel = connect_to_parent()
    with tempfile.TemporaryFile() as output:
        command = subprocess.Popen(
            [sys.executable, "-P", "-m", "hone", *channel.arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(_die_with, os.getpid()),
        )
        threading.Thread(target=_stop_on_request, args=(channel, command), daemon=True).start()
        code = command.wait()
        output.seek(0)
        lines = error_lines(output.read().decode("utf-8", "replace"), code) if code else []
    channel.reply(json.dumps({"code": code, "lines": lines, "core_us": ended_core_us()}).encode() + b"\n")


if __name__ == "__main__":
    main()
