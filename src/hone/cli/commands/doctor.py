"""`hone doctor`: libraries and resources of this machine, reasons why a run could not start, exactness of the engine.

Belongs here: checks that need no config (exit code 5 if one fails), and the dispatch to `hone doctor engine`
(`doctor_engine.py`), `hone doctor loss` (`doctor_loss.py`), `hone doctor sandbox` (`doctor_sandbox.py`) and
`hone doctor --cluster` (`doctor_cluster.py`).
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import hone
from hone.cli.options import CommandCall
from hone.cli.terminal.screen import TerminalScreen, standard_screen
from hone.core.clock import counted
from hone.core.errors import ConfigError, ResourceError, did_you_mean
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox

LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "gymnasium", "reasoning-gym", "pyarrow")
CHECKS = ("", "machine", "engine", "loss", "sandbox")
LOW_DISK_BYTES = 2 * 2**30
LOW_MEMORY_BYTES = 4 * 2**30

MachineFact: TypeAlias = tuple[str, str, str]
"""Subject, result, and `ok`, `warn` or `fail`."""


def run(call: CommandCall) -> int:
    """Run the checks that the command names; returns the exit code."""
    screen = standard_screen()
    what = call.text("what")
    if call.switch("cluster"):
        from hone.cli.commands.doctor_cluster import check_cluster  # noqa: PLC0415 - Ray is an extra

        return check_cluster(call, screen)
    if what == "loss":
        from hone.cli.commands.doctor_loss import check_loss  # noqa: PLC0415 - torch: may be what is broken

        return check_loss(call, screen)
    if what not in CHECKS:
        raise ConfigError(f"hone doctor has no check {what!r}{did_you_mean(what, [name for name in CHECKS if name])}")
    if call.overrides or call.text("file"):
        extra = [word for word in (call.text("file"), *call.overrides) if word]
        raise ConfigError(f"hone doctor reads no config: {' '.join(extra)} is for hone doctor loss FILE")
    if what == "sandbox":
        from hone.cli.commands.doctor_sandbox import check_sandbox  # noqa: PLC0415 - hone --help starts at once

        return check_sandbox(screen)
    code = 0 if what == "engine" else _check_machine(screen, Path(call.text("runs")))
    if code or what == "machine":
        return code
    from hone.cli.commands.doctor_engine import check_engine  # noqa: PLC0415 - as above

    if not what:
        screen.line()
    return check_engine(screen)


def _check_machine(screen: TerminalScreen, runs: Path) -> int:
    """Print a row for each requirement of a run; returns the exit code."""
    screen.title(f"hone {hone.__version__}")
    checks: list[Callable[[], Iterator[MachineFact]]] = [
        python,
        libraries,
        machine,
        confinement,
        sandbox,
        devices,
        lambda: disk(runs),
    ]
    findings = [finding for check in counted(checks, "checks of the machine") for finding in check()]
    screen.rows([(what, value, "" if verdict == "ok" else verdict) for what, value, verdict in findings])
    failed = any(verdict == "fail" for _, _, verdict in findings)
    screen.line()
    screen.line("a run cannot start here; see the lines marked fail" if failed else "ready")
    return ResourceError.exit_code if failed else 0


def python() -> Iterator[MachineFact]:
    """Version of Python."""
    good = sys.version_info >= (3, 11)
    yield "python", f"{platform.python_version()} ({sys.executable})", "ok" if good else "fail"


def libraries() -> Iterator[MachineFact]:
    """Versions of the libraries that hone needs."""
    for name in LIBRARIES:
        try:
            yield name, importlib.metadata.version(name), "ok"
        except importlib.metadata.PackageNotFoundError:
            yield name, "not installed: pip install hone-rl", "fail"


def machine() -> Iterator[MachineFact]:
    """Operating system, cores and memory."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    yield "system", platform.platform(), "ok"
    yield "cores", str(cores), "ok"
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield "memory", f"{total_bytes / 2**30:.1f} GiB", "ok" if total_bytes >= LOW_MEMORY_BYTES else "warn"


def confinement() -> Iterator[MachineFact]:
    """Limits that reward functions can be held to, tried in a process of their own."""
    result = subprocess.run([sys.executable, "-m", "hone.process.confine"], capture_output=True, text=True, check=False)
    means = (*result.stdout.splitlines(), "", "")
    for limit, by in zip(("cannot signal the trainer", "cannot write into the run"), means, strict=False):
        yield "rewards", f"{limit} ({by})" if by else f"not held here: {limit}", "ok" if by else "warn"


def sandbox() -> Iterator[MachineFact]:
    """Rung on which programs of a model are confined; `hone doctor sandbox` tries it with hostile ones."""
    try:
        with CodeSandbox(SandboxPolicy()) as opened:
            report = opened.probe()
    except ResourceError as error:
        yield "sandbox", str(error), "warn"
        return
    missing = "; ".join(report.reasons)
    yield "sandbox", report.rung or f"programs of a model are not run here: {missing}", "ok" if report.rung else "warn"


def devices() -> Iterator[MachineFact]:
    """Threads and CUDA devices of torch."""
    try:
        import torch  # noqa: PLC0415 - takes seconds, and may be what is broken
    except (ImportError, OSError) as error:
        yield "device", f"torch cannot be imported: {error}", "fail"
        return
    yield "threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')})", "ok"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for index in range(count):
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield f"cuda:{index}", f"{name}, {free_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB free", "ok"
    if count == 0:
        yield "device", "cpu only: torch sees no CUDA device", "ok"


def disk(runs: Path) -> Iterator[MachineFact]:
    """Check that the runs folder is writable (by writing one byte), and report the free space."""
    existing = next(place for place in (runs, *runs.absolute().parents) if place.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".hone-doctor-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield "runs", f"{runs.absolute()} cannot be written: {error.strerror}", "fail"
        return
    free_bytes = shutil.disk_usage(existing).free
    verdict = "ok" if free_bytes >= LOW_DISK_BYTES else "warn"
    yield "runs", f"{runs.absolute()}, {free_bytes / 2**30:.1f} GiB free", verdict
