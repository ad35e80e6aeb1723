"""The job of a run whose learner is spread over ranks: built in every rank, driven by rank 0."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hone.core.clock import Clock, SystemClock
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes, pack_episodes, unpack_episodes
from hone.core.errors import ConfigError, DivergedError, HoneError, LostRankError, ResourceError
from hone.core.state import State, array, integer, substate
from hone.credit.moments import NoveltyCredits
from hone.learner.gradient import GradientLearner
from hone.learner.natural_gradient import TrustRegionLearner
from hone.learner.share import SharedStatistics, building_for, sharing
from hone.parallel.group import LOOPBACK, RankGroup, RankMeeting, joined, open_meeting
from hone.parallel.sharded_build import ShardedBuild
from hone.process.child import TICK_S, ChildLostError, ChildProcess, LineParser, pump_children
from hone.run.job import RunConfig, TrainingJob
from hone.run.loop import Learner

if TYPE_CHECKING:
    from hone.learner.share import Question
    from hone.parallel.sharded_build import ShardedTwin

# ------------------------------------------------------------------------------------------------- the learner of ranks


P = TypeVar("P")
T = TypeVar("T")
VALUES: Final = "values"
UPDATE: Final = "update"
QUESTION: Final = "question"
STATE: Final = "state"
RESTORE: Final = "restore"
WEIGHTS: Final = "weights"
STATISTICS: Final = "statistics"
CREDIT_COLUMNS: Final = ("advantage", "target", "discount", "novelty_target")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What one rank does of an update. All ranks call the same methods in the same order."""

    learner: Learner[Any]
    group: "RankGroup"
    twins: "Sequence[ShardedTwin]" = ()
    """Sharded policies; without them every rank holds, and steps, whole networks."""
    questions: "Sequence[Question]" = ()
    """Questions to networks that no rank has whole, which the driver's credit may ask."""

    def values(self, episodes: Episodes) -> Values:
        """Values of the learner's critic."""
        self._take_buffers()
        with sharing(self.group.share()):
            return self.learner.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Update the policy; afterwards rank 0's whole policy has the new weights."""
        self._take_buffers()
        with sharing(self.group.share()):
            metrics = self.learner.update(episodes, credits)
        for twin in self.twins:
            twin.gather(self.group)
        return metrics

    def answer(self, number: int, episodes: Episodes) -> NDArray[Any]:
        """Answer of a question about episodes; all ranks have it."""
        with sharing(self.group.share()):
            return self.questions[number](episodes)

    def state(self) -> State:
        """State of the learner, whole on rank 0."""
        return self.learner.state()

    def restore(self, state: State) -> None:
        """Take up a whole state."""
        self.learner.restore(state)
        for twin in self.twins:
            twin.gather(self.group)

    def take_weights(self) -> None:
        """Take up the weights of rank 0's policy."""
        for twin in self.twins:
            twin.scatter(self.group)
        policy = self.learner.policy
        if not self.twins and isinstance(policy, nn.Module):
            with torch.no_grad():
                self.group.copy_from_driver([*policy.parameters(), *policy.buffers()])

    def _take_buffers(self) -> None:
        """Take up the buffers of rank 0's small policy: its credit keeps statistics there."""
        policy = self.learner.policy
        if isinstance(policy, SharedStatistics):
            with torch.no_grad():
                self.group.copy_from_driver(list(policy.buffers()))

    def take_statistics(self, message: State) -> None:
        """Take up what the driver's source has put into a small policy: statistics that normalise observations."""
        policy = self.learner.policy
        if isinstance(policy, SharedStatistics) and STATISTICS in message:
            policy.take_statistics(substate(message, STATISTICS))


@dataclass(kw_only=True)
class _RankedLearner(Generic[P]):
    """The learner of a run over several ranks. Implements `Learner` in the driver."""

    policy: P
    """The whole policy: it acts, is evaluated and saved."""
    work: RankWork
    peers: "ChildRanks"

    def values(self, episodes: Episodes) -> Values:
        inner = self.work.learner
        if isinstance(inner, GradientLearner) and inner.predict_values is None:
            return NO_VALUES
        message: State = {"episodes": pack_episodes(episodes), **_source_statistics(self.policy)}
        return self._together(VALUES, message, lambda: self.work.values(episodes))

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        message: State = {
            "episodes": pack_episodes(episodes),
            "credits": _pack_credits(credits),
            **_source_statistics(self.policy),
        }
        return self._together(UPDATE, message, lambda: self.work.update(episodes, credits))

    def answer(self, number: int, episodes: Episodes) -> NDArray[Any]:
        """Answer of all ranks together to a question about episodes."""
        message: State = {"number": number, "episodes": pack_episodes(episodes)}
        return self._together(QUESTION, message, lambda: self.work.answer(number, episodes))

    def state(self) -> State:
        return self._together(STATE, {}, self.work.state)

    def restore(self, state: State) -> None:
        self.take_weights()
        self._together(RESTORE, state, lambda: self.work.restore(state))

    def take_weights(self) -> None:
        """Give all ranks the weights of the whole policy."""
        self._together(WEIGHTS, {}, self.work.take_weights)

    def _together(self, order: str, message: State, act: Callable[[], T]) -> T:
        """Carry out an order on all ranks. Raises LostRankError where another rank ended or did not answer."""
        self.peers.tell(order)
        try:
            self.work.group.send(message)
            return act()
        except HoneError:
            raise
        except RuntimeError as error:  # what torch raises for a lost connection and for a collective that took too long
            raise self._lost(order, error) from error

    def _lost(self, order: str, error: RuntimeError) -> Exception:
        fault, asked = self.peers.fault(), self.work.group.meeting
        if fault is not None:
            return type(fault)(f"{fault}, while all {asked.ranks} ranks carried out {order!r}")
        if isinstance(error, torch.distributed.DistError) or "imed out" in str(error):
            return LostRankError(
                f"a rank did not answer within run.patience_s = {asked.patience_s:g} while all {asked.ranks} ranks "
                f"carried out {order!r}: {error}"
            )
        return error


@dataclass(frozen=True, slots=True)
class _RankServant:
    """The side of a rank that is not the driver: it carries out one order after another."""

    work: RankWork

    def obey(self, order: str) -> None:
        """Carry out an order with the data that rank 0 sends for it."""
        message = self.work.group.send(None)
        self.work.take_statistics(message)
        if order == VALUES:
            self.work.values(unpack_episodes(substate(message, "episodes")))
        elif order == UPDATE:
            credits = _unpack_credits(substate(message, "credits"))
            self.work.update(unpack_episodes(substate(message, "episodes")), credits)
        elif order == QUESTION:
            self.work.answer(integer(message, "number"), unpack_episodes(substate(message, "episodes")))
        elif order == STATE:
            self.work.state()
        elif order == RESTORE:
            self.work.restore(message)
        else:
            assert order == WEIGHTS, f"unknown order {order!r}"
            self.work.take_weights()


def _source_statistics(policy: object) -> State:
    """What sources put into a policy beside its weights; empty for a language model."""
    statistics = policy.statistics() if isinstance(policy, SharedStatistics) else {}
    return {STATISTICS: statistics} if statistics else {}


def _pack_credits(credits: Credits) -> State:
    """Credits as a state, without those columns that are not there."""
    columns = {"advantage": credits.advantage, "target": credits.target, "discount": credits.discount}
    if isinstance(credits, NoveltyCredits):
        columns["novelty_target"] = credits.novelty_target
    present: State = {name: column for name, column in columns.items() if column is not None}
    return {**present, "metrics": {name: float(value) for name, value in credits.metrics.items()}}


def _unpack_credits(state: State) -> Credits:
    """Inverse of `_pack_credits`."""
    metrics = {name: float(value) for name, value in substate(state, "metrics").items() if isinstance(value, float)}
    columns = {name: array(state, name).astype(np.float32) for name in CREDIT_COLUMNS if name in state}
    advantage, target, discount = columns["advantage"], columns.get("target"), columns.get("discount")
    if "novelty_target" not in columns:
        return Credits(advantage=advantage, target=target, discount=discount, metrics=metrics)
    return NoveltyCredits(
        advantage=advantage,
        target=target,
        discount=discount,
        metrics=metrics,
        novelty_target=columns["novelty_target"],
    )


# ------------------------------------------------------------------------------------------------------------- launcher
# Start of the ranks beside the driver, and the channel by which the driver reaches them.
#
# `RankLauncher` is the seam: ranks are child processes of the driver, or of actors of a Ray cluster (`ray_launcher`).


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


class RankLauncher(Protocol):
    """Starts ranks 1, 2, ... of a run. Each of them carries out `serve_rank` with its task."""

    def launch(self, tasks: Sequence[RankTask]) -> "ChildRanks": ...

    def address(self) -> str:
        """Address of this machine at which the other ranks reach rank 0."""
        ...

    def gpus_here(self, ranks: int) -> int:
        """Number of GPUs of this machine that `ranks` ranks take."""
        ...


class _RankChild(Protocol):
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
    """Ranks in child processes, as the driver holds them."""

    patience_s: float
    clock: Clock
    children: Mapping[int, _RankChild]
    """Processes by rank."""
    pump: Callable[[Iterable[Any], float], None]
    """Waits until one of the processes has written something, for so many seconds at most."""
    closed: Callable[[], None] = lambda: None
    """Called when all have ended."""

    def wait_ready(self, what: str) -> None:
        """Wait until every rank is ready. Raises ResourceError with the rank that is not, and why."""
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
        """Announce what all ranks do next. Raises LostRankError where one has ended."""
        if (fault := self._fault_now()) is not None:
            raise fault
        for child in self.children.values():
            child.send(order.encode() + b"\n")

    def fault(self) -> HoneError | None:
        """The fault of the first rank that has ended or failed; None: all of them live."""
        limit_s = self.clock.monotonic_s() + FAULT_WAIT_S
        while (fault := self._fault_now()) is None and self.clock.monotonic_s() < limit_s:
            self.pump(self.children.values(), TICK_S)
        return fault

    def close(self) -> None:
        """End all ranks; none is left afterwards."""
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
            learner = _RankedLearner(policy=[*whole, work.learner.policy][0], work=work, peers=ranks)
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
        servant = _RankServant(work)
        for line in lines:
            with contextlib.suppress(DivergedError):  # raised by every rank: the driver reports it
                servant.obey(line.strip().decode())


def failure(fault: Exception) -> str:
    """What a rank tells the driver of its end."""
    return "; ".join(fault.messages) if isinstance(fault, HoneError) else f"{type(fault).__name__}: {fault}"
