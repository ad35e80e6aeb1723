"""`hone queue submit | work | status | cancel | tenant | manifest`: jobs of several teams on shared machines."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

from hone.cli.options import CommandCall, parse_number
from hone.cli.terminal.screen import standard_screen
from hone.config.toml import read_toml
from hone.core.clock import SystemClock
from hone.core.errors import ConfigError
from hone.run.queue.database import open_queue_database
from hone.run.queue.job_queue import Admission, RunQueue
from hone.run.queue.kueue import PodPlace, kueue_job
from hone.run.queue.limits import RunLimits
from hone.run.queue.local_worker import LocalWorker

_ACTIONS = ("submit", "work", "status", "cancel", "tenant", "manifest")


def run(call: CommandCall) -> int:
    """Do one thing with a queue; returns the exit code."""
    action, what, screen = call.text("action"), call.text("what"), standard_screen()
    if action not in _ACTIONS:
        raise ConfigError(f"hone queue {action}: no such action; known: {', '.join(_ACTIONS)}")
    if (action in ("submit", "cancel", "tenant", "manifest")) != bool(what):
        raise ConfigError(f"hone queue {action} {'needs what it is about' if not what else 'takes no second name'}")
    if call.overrides and action != "submit":
        raise ConfigError(f"{call.overrides[0]}: keys of a config are for hone queue submit FILE")
    half_life_s = 86_400 * parse_number(call.text("half_life"), "--half-life", least=1e-6, whole=False)
    lease_s = parse_number(call.text("lease"), "--lease", least=0.1, whole=False)
    queue = RunQueue(open_queue_database(call.text("queue")), SystemClock(), half_life_s, lease_s)
    try:
        match action:
            case "submit":
                _submit(call, queue)
            case "tenant":
                weight = parse_number(call.text("weight"), "--weight", least=0, whole=False)
                queue.set_tenant(what, weight=weight, slots=int(parse_number(call.text("slots"), "--slots", least=0)))
            case "cancel":
                state = queue.cancel(int(parse_number(what, "the job", least=1)))
                screen.line(f"job {what}: {'cancelled' if state == 'cancelled' else 'ends at its next sign of life'}")
            case "manifest":
                screen.line(_manifest(call, queue))
            case "work":
                return _work(call, queue)
            case _:
                _status(queue)
    finally:
        queue.close()
    return 0


def _submit(call: CommandCall, queue: RunQueue) -> None:
    config = Path(call.text("what"))
    if not config.is_file():
        raise ConfigError(f"{config} is not a file; submit takes the config of a run or of a training service")
    name = call.text("name") or config.stem
    if any(one.name == name and one.state in ("queued", "running") for one in queue.jobs()):
        raise ConfigError(f"a job {name} is queued or running already; give another --name")
    command = [str(config.absolute()), *call.overrides]
    serves = "recipe" not in read_toml(config).values
    if serves:
        if call.overrides:
            raise ConfigError(f"{call.overrides[0]}: keys of a training service stand in its file, {config}")
        command = ["serve", "training", *command, "--host", call.text("host"), "--port", call.text("port")]
    checked = [*command, "--dry-run"] if serves else ["train", *command, "--dry-run", "--yes"]
    done = subprocess.run([sys.executable, "-m", "hone", *checked], capture_output=True, text=True, check=False)
    if done.returncode:
        faults = [line.removeprefix("error: ") for line in done.stderr.strip().splitlines()]
        raise ConfigError(*faults or ["the config cannot be run"])
    priority = int(call.text("priority"))
    job = queue.submit(call.text("tenant"), name, command, priority=priority)
    standard_screen().line(f"job {job} of {call.text('tenant')}: {name}")


def _work(call: CommandCall, queue: RunQueue) -> int:
    """Returns the exit code: 1 where the only job was not done."""
    screen = standard_screen()
    memory = parse_number(call.text("memory"), "--memory", least=0, whole=False)
    cores = int(parse_number(call.text("cores"), "--cores", least=0))
    limits = RunLimits(memory_bytes=int(memory * 2**30), cores=cores)
    name, runs = f"{socket.gethostname()}:{os.getpid()}", Path(call.text("runs"))
    only = int(parse_number(call.text("only"), "--only", least=0))
    runner = None
    if address := call.text("ray"):
        from hone.parallel.connect import RayCommands, connect_to_ray  # noqa: PLC0415 - torch takes seconds

        if memory:
            raise ConfigError("--memory bounds runs on this machine; a task of Ray is bound by --cores alone")
        connect_to_ray(address)
        runner, runs = RayCommands(1, address=address, folder=Path.cwd(), cpus=cores or 1), runs.absolute()
    worker = LocalWorker(queue, name, runs, screen.line, limits, only, runner)

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        worker.stopping = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        done = worker.work(until_empty=call.switch("until_empty"))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    screen.line(f"{done} jobs done")
    return int(only > 0 and queue.job(only).state not in ("done", "cancelled"))


def _manifest(call: CommandCall, queue: RunQueue) -> str:
    """A job for Kubernetes, as JSON for `kubectl apply -f -`."""
    claim, _, folder = call.text("volume").partition(":")
    if not (claim and folder.startswith("/")):
        raise ConfigError(f"--volume {call.text('volume')!r}: give CLAIM:FOLDER, a volume claim and an absolute folder")
    place = PodPlace(
        image=call.text("image"),
        claim=claim,
        mount=Path(folder),
        runs=Path(call.text("runs")).absolute(),
        memory_gib=parse_number(call.text("memory"), "--memory", least=0, whole=False),
        cores=int(parse_number(call.text("cores"), "--cores", least=0)),
    )
    job = queue.job(int(parse_number(call.text("what"), "the job", least=1)))
    return json.dumps(kueue_job(job, place), indent=2)


def _status(queue: RunQueue) -> None:
    screen, shares = standard_screen(), queue.shares()
    total, weights = sum(one.used_us for one in shares), sum(one.weight for one in shares)
    for one in shares:
        used = one.used_us / total if total else 0.0
        screen.line(
            f"tenant {one.name}: {used:.1%} of {one.weight / weights:.1%}, {one.used_us / 1e6:.1f} slot-seconds, "
            f"{one.use.text}, {one.running} running, {one.queued} queued"
        )
    admissions = queue.admissions()
    for job in queue.jobs():
        why = _when(admissions[job.id]) if job.state == "queued" else job.why
        held = f" by {job.worker}" if job.worker else ""
        screen.line(f"job {job.id} of {job.tenant}: {job.name}, {job.state}{held}{f' ({why})' if why else ''}")


def _when(admission: Admission) -> str:
    """Why a job waits, and how long it will."""
    wait = "" if admission.wait_s is None else f", in about {admission.wait_s:.0f} s"
    return f"{admission.why}; {admission.before} jobs go first{wait}"
