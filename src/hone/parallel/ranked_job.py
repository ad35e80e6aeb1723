"""The job of a run whose learner is spread over ranks: built in every rank, driven by rank 0."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol, Self

import torch

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, DivergedError, HoneError, LostRankError, ResourceError
from hone.learner.gradient import GradientLearner
from hone.learner.natural_gradient import TrustRegionLearner
from hone.learner.share import building_for
from hone.parallel.group import LOOPBACK, RankGroup, RankMeeting, joined, open_meeting
from hone.parallel.ranked_learner import RankedLearner, RankPeers, RankServant, RankWork
from hone.parallel.sharded_build import ShardedBuild
from hone.process.child import TICK_S, ChildLostError, ChildProcess, LineParser, pump_children
from hone.run.config import RunConfig
from hone.run.job import TrainingJob
from hone.run.loop import Learner

# ------------------------------------------------------------------------------------------------------------- launcher


READY: Final = b"{}\n"
"""Reply of a rank that has done what the driver waits for."""
FAULT_WAIT_S: Final = 3.0
"""Longest wait for the end of a process whose connection was lost."""
EXIT_WAIT_S: Final = 5.0
"""Time that a rank has to leave once its orders end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """All that a rank is told when it starts."""

    meeting: RankMeeting
    recipe: str
    config: str
    """The run's config as JSON."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps({"meeting": asdict(self.meeting), "recipe": self.recipe, "config": self.config})

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The task of a line of `to_json`."""
        message = json.loads(line)
        return cls(meeting=RankMeeting(**message["meeting"]), recipe=message["recipe"], config=message["config"])


class LaunchedRanks(RankPeers, Protocol):
    """Ranks that were started, as the driver holds them."""

    def wait_ready(self, what: str) -> None:
        """Wait until every rank is ready. Raises ResourceError with the rank that is not, and why."""
        ...

    def close(self) -> None:
        """End all ranks; none is left afterwards."""
        ...


class RankLauncher(Protocol):
    """Starts ranks 1, 2, ... of a run. Each of them carries out `serve_rank` with its task."""

    def launch(self, tasks: Sequence[RankTask]) -> LaunchedRanks: ...

    def address(self) -> str:
        """Address of this machine at which the other ranks reach rank 0."""
        ...

    def gpus_here(self, ranks: int) -> int:
        """Number of GPUs of this machine that `ranks` ranks take."""
        ...


class RankChild(Protocol):
    """The process of a rank, on this machine or another; the methods are those of `ChildProcess`."""

    @property
    def alive(self) -> bool: ...
    def send(self, data: bytes) -> None: ...
    def take_reply(self) -> bytes | ChildLostError | None: ...
    def last_output(self) -> str: ...
    def request_exit(self) -> None: ...
    def kill(self) -> None: ...


def rank_tasks(driver: RankMeeting, *, recipe: str, config: str) -> list[RankTask]:
    """Tasks of all ranks but the driver's; on GPUs, rank r has the one with number r."""
    device = "cuda" if driver.device.startswith("cuda") else driver.device
    return [
        RankTask(
            meeting=replace(driver, rank=rank, device=f"cuda:{rank}" if device == "cuda" else device),
            recipe=recipe,
            config=config,
        )
        for rank in range(1, driver.ranks)
    ]


@dataclass(slots=True)
class ChildRanks:
    """Ranks in child processes. Implements `LaunchedRanks`."""

    patience_s: float
    clock: Clock
    children: Mapping[int, RankChild]
    """Processes by rank."""
    pump: Callable[[Iterable[Any], float], None]
    """Waits until one of the processes has written something, for so many seconds at most."""
    closed: Callable[[], None] = lambda: None
    """Called when all have ended."""

    def wait_ready(self, what: str) -> None:
        waiting, limit_s = dict(self.children), self.clock.monotonic_s() + self.patience_s
        while waiting:
            self.pump(waiting.values(), TICK_S)
            for rank, child in list(waiting.items()):
                reply = child.take_reply()
                if reply is not None and (fault := _fault_of(rank, reply)) is not None:
                    raise ResourceError(f"{fault}; the ranks were not ready ({what}), and nothing was trained")
                if reply is not None:
                    del waiting[rank]
            if waiting and self.clock.monotonic_s() > limit_s:
                late, child = next(iter(waiting.items()))
                printed = child.last_output() or "; it printed nothing"
                raise ResourceError(
                    f"rank {late} was not ready ({what}) within run.patience_s = {self.patience_s:g}{printed}; raise "
                    "run.patience_s if the machine is slow"
                )

    def tell(self, order: str) -> None:
        if (fault := self._fault_now()) is not None:
            raise fault
        for child in self.children.values():
            child.send(order.encode() + b"\n")

    def fault(self) -> HoneError | None:
        limit_s = self.clock.monotonic_s() + FAULT_WAIT_S
        while (fault := self._fault_now()) is None and self.clock.monotonic_s() < limit_s:
            self.pump(self.children.values(), TICK_S)
        return fault

    def close(self) -> None:
        for child in self.children.values():
            child.request_exit()
        limit_s = self.clock.monotonic_s() + EXIT_WAIT_S
        while any(child.alive for child in self.children.values()) and self.clock.monotonic_s() < limit_s:
            self.pump(self.children.values(), TICK_S)
        for child in self.children.values():
            child.kill()
        self.closed()

    def _fault_now(self) -> HoneError | None:
        for rank, child in self.children.items():
            reply = child.take_reply()
            if reply is not None and (fault := _fault_of(rank, reply)) is not None:
                return fault
        return None


def _fault_of(rank: int, reply: bytes | ChildLostError) -> HoneError | None:
    """What a reply says of a rank: that it ended, that its own work failed, or nothing."""
    if isinstance(reply, ChildLostError):
        return LostRankError(f"rank {rank}: {reply}")
    answer = json.loads(reply)
    return ResourceError(f"rank {rank}: {answer['error']}") if "error" in answer else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Launcher of ranks as child processes of this machine, which end with the driver however that ends."""

    module: str
    """Module whose `main` is a rank."""
    threads: int
    clock: Clock = field(default_factory=SystemClock)

    def address(self) -> str:
        return LOOPBACK

    def gpus_here(self, ranks: int) -> int:
        return ranks

    def launch(self, tasks: Sequence[RankTask]) -> ChildRanks:
        children: dict[int, ChildProcess[bytes]] = {}
        patience_s = max((task.meeting.patience_s for task in tasks), default=0.0)
        ranks = ChildRanks(patience_s=patience_s, clock=self.clock, children=children, pump=pump_children)
        try:
            for task in tasks:
                child = ChildProcess(
                    self.module,
                    LineParser(),
                    clock=self.clock,
                    variables={"OMP_NUM_THREADS": str(self.threads)},  # numbers are added in the driver's order
                )
                children[task.meeting.rank] = child
                child.start()
                child.send(task.to_json().encode() + b"\n")
        except BaseException:
            ranks.close()
            raise
        return ranks


# ----------------------------------------------------------------------------------------------------------- ranked job


JobBuild = Callable[[Any], TrainingJob[Any]]
NOT_CERTIFIED = (
    "run.ranks: one process makes the certificate of a loss, and this run has none; hone doctor loss FILE makes it "
    "and compares the gradient of two ranks with that of one"
)


@dataclass
class RankedJobBuilder:
    """Builds the job of a run over ranks; a second call builds it anew, after a rank was lost."""

    opened: JobBuild
    """Builds the job on what the check of the config opened; for the first call."""
    reopen: JobBuild
    """Opens everything again, for later calls."""
    launcher: RankLauncher
    called: bool = False

    def __call__(self, config: RunConfig) -> TrainingJob[Any]:
        """The driver's job, whose `close` ends all ranks. Raises HoneError; no process is left then."""
        build = self.reopen if self.called else self.opened
        self.called = True
        meeting = _driver_meeting(config, self.launcher)
        with contextlib.ExitStack() as stack:
            place, port = open_meeting(meeting)
            meeting = replace(meeting, port=port)
            tasks = rank_tasks(meeting, recipe=config.recipe, config=config.model_dump_json())
            ranks = self.launcher.launch(tasks)
            stack.callback(ranks.close)
            ranks.wait_ready("started")
            group = stack.enter_context(joined(meeting, place))
            sharded = ShardedBuild(group)
            with building_for(sharded):
                job = build(config)
            stack.callback(job.close)
            work = _rank_work(job, group, sharded)
            ranks.wait_ready("built its learner")
            whole = [twin.whole for twin in sharded.twins if twin.sharded is work.learner.policy]
            learner = RankedLearner(policy=[*whole, work.learner.policy][0], work=work, peers=ranks)
            sharded.ask_ranks = learner.answer
            learner.take_weights()
            return replace(
                job,
                recipe=replace(job.recipe, learner=learner),
                warnings=[*job.warnings, *([NOT_CERTIFIED] if config.run.certify else [])],
                close=stack.pop_all().close,
            )


def _driver_meeting(config: RunConfig, launcher: RankLauncher) -> RankMeeting:
    """Where and how the ranks of a run meet, for rank 0. Raises ResourceError where there are too few GPUs."""
    run = config.run
    if run.device.startswith("cuda") and launcher.gpus_here(run.ranks) > torch.cuda.device_count():
        raise ResourceError(
            f"run.ranks = {run.ranks}: a rank needs a GPU of its own, and there are {torch.cuda.device_count()}"
        )
    device = "cuda:0" if run.device == "cuda" else run.device
    return RankMeeting(
        rank=0,
        ranks=run.ranks,
        tensor=run.tensor,
        virtual=run.virtual_ranks,
        patience_s=run.patience_s,
        device=device,
        address=launcher.address(),
    )


def _rank_work(job: TrainingJob[Any], group: RankGroup, sharded: ShardedBuild) -> RankWork:
    """The work of this rank on its job's learner. Raises ConfigError for a learner that ranks cannot share."""
    learner: Learner[Any] = job.recipe.learner
    phases = learner.phases if isinstance(learner, GradientLearner) else []
    if alone := [one.name for one in phases if one.on_micro_batch is not None and one.step_metrics is None]:
        raise ConfigError(
            f"run.ranks: {', '.join(alone)}: this recipe listens to each micro-batch (on_micro_batch), of which a rank "
            "has a part; leave run.ranks out, or join what the ranks heard in step_metrics"
        )
    if group.tensor is not None and not sharded.twins:
        raise ConfigError(
            f"run.tensor = {group.meeting.tensor}: this recipe trains no language model whose layers could be cut; "
            "leave it out"
        )
    if group.meeting.virtual and (not sharded.networks or isinstance(learner, TrustRegionLearner)):
        raise ConfigError(
            f"run.virtual_ranks = {group.meeting.virtual}: the sums of this recipe's steps are not those of a fixed "
            "number of shares; virtual ranks are for networks on text that AdamW trains; leave run.virtual_ranks out"
        )
    return RankWork(learner=learner, group=group, twins=sharded.twins, questions=sharded.questions)


def serve_rank(
    task: RankTask, build: JobBuild, config: RunConfig, lines: Iterator[bytes], ready: Callable[[], None]
) -> None:
    """Be a rank that is not the driver: meet the others, build the same job, keep its learner, carry out orders.

    `answer` are lines with the names of orders, `ready` answers the driver.
    """
    with joined(task.meeting) as group:
        sharded = ShardedBuild(group)
        with building_for(sharded):
            job = build(config)
        job.close()
        work = _rank_work(job, group, sharded)
        del job
        for twin in sharded.twins:
            twin.forget_whole()
        ready()
        servant = RankServant(work)
        for line in lines:
            with contextlib.suppress(DivergedError):  # raised by every rank: the driver reports it
                servant.obey(line.strip().decode())


def failure(fault: Exception) -> str:
    """What a rank tells the driver of its end."""
    return "; ".join(fault.messages) if isinstance(fault, HoneError) else f"{type(fault).__name__}: {fault}"
