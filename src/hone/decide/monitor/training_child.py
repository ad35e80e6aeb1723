"""Child process that runs one command of hone under an address-space limit, and answers with its exit code.

The command is a process of the child's group: it dies with the child, and the child with the worker.
"""

import json
import resource
import subprocess
import sys

from hone.process.parent import connect_to_parent


def main() -> None:
    """Run the command that the arguments name: the limit in bytes (0: none), then the command line."""
    channel = connect_to_parent()
    limit, command = int(channel.arguments[0]), channel.arguments[1:]
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    code = subprocess.run([sys.executable, "-P", "-m", "hone", *command], check=False).returncode
    channel.reply(json.dumps({"code": code}).encode() + b"\n")


if __name__ == "__main__":
    main()
