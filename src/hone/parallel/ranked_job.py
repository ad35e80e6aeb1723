"""The job of a run whose learner is spread over ranks: built in every rank, driven by rank 0."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from hone.core.errors import ConfigError, DivergedError, HoneError, ResourceError
from hone.learner.gradient import GradientLearner
from hone.learner.natural_gradient import TrustRegionLearner
from hone.learner.ranked_build import building_for
from hone.parallel.group import RankGroup, RankMeeting, joined, open_meeting
from hone.parallel.launcher import RankLauncher, RankTask, rank_tasks
from hone.parallel.ranked_learner import RankedLearner, RankServant, RankWork
from hone.parallel.sharded_build import ShardedBuild
from hone.run.job import RunConfig, TrainingJob
from hone.run.loop import Learner

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
        meeting = driver_meeting(config, self.launcher)
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


def driver_meeting(config: RunConfig, launcher: RankLauncher) -> RankMeeting:
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
    task: RankTask, build: JobBuild, config: RunConfig, told: Iterator[bytes], ready: Callable[[], None]
) -> None:
    """Be a rank that is not the driver: meet the others, build the same job, keep its learner, carry out orders.

    `told` are lines with the names of orders, `ready` answers the driver.
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
        for line in told:
            with contextlib.suppress(DivergedError):  # raised by every rank: the driver reports it
                servant.obey(line.strip().decode())


def failure(fault: Exception) -> str:
    """What a rank tells the driver of its end."""
    return "; ".join(fault.messages) if isinstance(fault, HoneError) else f"{type(fault).__name__}: {fault}"
