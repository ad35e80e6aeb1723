"""The child of the tests beside this file: does what each line says, and answers with a line."""

import os
import signal
import subprocess
import sys
import time

from hone.process.parent import connect_to_parent


def act(word: str) -> str:
    match word:
        case "pid":
            return str(os.getpid())
        case "hang":
            time.sleep(1000)
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        case "crash":
            print("no licence", flush=True)
            os._exit(7)
        case "flood":
            for _ in range(300):
                os.write(1, b"x" * 5000)
                os.write(2, b"y" * 5000)
        case "endless":
            while True:
                os.write(1, b"z" * 65536)
        case "breed":
            program = [sys.executable, "-c", "import time; time.sleep(1000)"]
            return " ".join(str(subprocess.Popen(program, start_new_session=own).pid) for own in (False, True))
    return word


def main() -> None:
    if sys.argv[4:] == ["crash at start"]:
        sys.exit("cannot begin")
    channel = connect_to_parent()
    for line in channel.lines():
        word = line.decode().strip()
        if word == "fork" and (copy := os.fork()):  # the copy comes back too, and before this process
            os.waitpid(copy, 0)
        if word == "unending line":
            while True:
                channel.reply(b"a" * 65536)
        channel.reply(f"{act(word)}\n".encode())


main()
