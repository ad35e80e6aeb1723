"""Rows of a pass shared out among ranks: processes that hold the base, each of which computes some of the rows.

A row has the bits that it has alone, so that it does not matter who computed it: rank 0, which is the service, adds
gradients in the order of the rows, as it does without the others. Ranks start as those of `hone train` do, as child
processes of this machine or of a Ray cluster. They have no state but the base: where one is lost, rank 0 goes on alone.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from hone.core.errors import HoneError, ResourceError
from hone.core.ragged import Ints
from hone.core.state import State, array, integer, number, substate
from hone.models.language.lora import LoraAdapter
from hone.parallel.group import RankGroup, RankMeeting, joined, open_meeting
from hone.parallel.ranked_job import READY, ChildRanks, LocalLauncher, RankTask, failure, rank_tasks
from hone.process.parent import connect_to_parent
from hone.text.training_service.learner import ServedBase, open_base
from hone.text.training_service.losses import RowLoss
from hone.text.training_service.messages import Datum
from hone.text.training_service.rows import RowModel, RowResult, TrainedRow
from hone.text.training_service.service_config import TrainingServiceConfig

_MODULE: Final = "hone.text.training_service.row_ranks"
_ROWS: Final = "rows"


def ranks_of_rows(tokens: Ints, ranks: int) -> list[int]:
    """The rank that computes each row, ascending: the one in whose share of the tokens the row's middle lies, of two
    the first."""
    ends = np.cumsum(tokens)
    return (-(-(2 * ends - tokens) * ranks // (2 * ends[-1])) - 1).tolist()


@dataclass(slots=True, eq=False)
class RowRanks:
    """All ranks, as rank 0 asks them."""

    rows: RowModel
    group: RankGroup
    peers: ChildRanks
    close: Callable[[], None]
    """Ends the others."""
    size: int
    """Ranks; 1 where the others were lost."""
    core_s: float = 0.0
    """Seconds that the others' threads computed for the last call."""

    def compute(self, rows: Sequence[TrainedRow], *, gradients: bool) -> list[RowResult]:
        """Results of rows in their order: those of `RowModel.compute`, to the bit."""
        self.core_s = 0.0
        sizes = np.array([len(row.tokens) for row in rows])
        owners = ranks_of_rows(sizes, self.size)
        if not any(owners):
            return self.rows.compute(rows, gradients=gradients)
        try:
            self.peers.tell(_ROWS)
            message: State = {"gradients": gradients, "sizes": sizes, "ranks": self.size}
            self.group.send({**message, **_packed_rows(rows, owners)})
        except (HoneError, RuntimeError) as fault:
            self._go_on_alone(fault)
            return self.rows.compute(rows, gradients=gradients)
        own = owners.count(0)
        try:
            results = self.rows.compute(rows[:own], gradients=gradients) if own else []
        finally:  # also where this fails: the others answer
            answers = None
            try:
                answers = self.group.collect(None)
            except RuntimeError as fault:
                self._go_on_alone(self.peers.fault() or fault)
        if answers is None:
            return results + self.rows.compute(rows[own:], gradients=gradients)
        for rank, answer in enumerate(answers, start=1):
            if "error" in answer:
                raise ResourceError(f"rank {rank}: {answer['error']}")
            self.core_s += number(answer, "core_s")
            mine = [row for row, owner in zip(rows, owners, strict=True) if owner == rank]
            for place, row in enumerate(mine):
                result, gradient = substate(answer, str(place)), None
                if "gradient" in result:
                    gradient = [torch.from_numpy(array(result, "gradient").astype(np.float32, copy=False))]
                logprobs = array(result, "logprobs").astype(np.float32).reshape(row.targets.shape)
                results.append(RowResult(logprobs=logprobs, loss=number(result, "loss"), gradient=gradient))
        return results

    def _go_on_alone(self, fault: Exception) -> None:
        sys.stderr.write(f"{failure(fault)}; rank 0 computes all rows from here on, with the same bits\n")
        self.size = 1
        self.close()


def _packed_rows(rows: Sequence[TrainedRow], owners: Sequence[int]) -> State:
    adapters = {id(row.adapter): row.adapter for row in rows if row.adapter is not None}
    places = {key: place for place, key in enumerate(adapters)}
    message: State = {}
    for key, adapter in adapters.items():
        message[f"adapter {places[key]}"] = adapter.packed()
    for place, (row, owner) in enumerate(zip(rows, owners, strict=True)):
        if not owner:
            continue
        assert isinstance(row.loss, RowLoss)
        message[f"row {place}"] = {
            "adapter": -1 if row.adapter is None else places[id(row.adapter)],
            "tokens": row.tokens,
            "loss": row.loss.name,
            "options": dict(row.loss.options),
            "inputs": dict(row.loss.datum.inputs),
        }
    return message


def open_row_ranks(config: TrainingServiceConfig, rows: RowModel, *, beside: Path) -> RowRanks:
    """Start the ranks beside this process. Raises ResourceError; no process is left then."""
    if config.cluster is None or config.cluster.learner is None:
        launcher = LocalLauncher(module=_MODULE, threads=config.threads)
    else:
        from hone.parallel.ray_launcher import RayLauncher  # noqa: PLC0415 - Ray: an extra

        launcher = RayLauncher(module=_MODULE, threads=config.threads, cluster=config.cluster)
    run = config.run
    meeting = RankMeeting(
        rank=0, ranks=run.ranks, virtual=0, patience_s=run.patience_s, device="cpu", address=launcher.address()
    )
    shared = config.model_copy(update={"tenants": []}).model_dump_json()
    task = json.dumps({"config": shared, "beside": str(beside.resolve()), "reach": rows.reach})
    with contextlib.ExitStack() as stack:
        place, port = open_meeting(meeting)
        meeting = replace(meeting, port=port)
        peers = launcher.launch(rank_tasks(meeting, recipe=_ROWS, config=task))
        stack.callback(peers.close)
        peers.wait_ready("started")
        group = stack.enter_context(joined(meeting, place))
        peers.wait_ready("read the base")
        return RowRanks(rows=rows, group=group, peers=peers, close=stack.pop_all().close, size=run.ranks)


# -------------------------------------------------------------------------------------------------------- another rank


@dataclass(slots=True, eq=False)
class _RowServant:
    """A rank that is not the service."""

    base: ServedBase
    rank: int

    def answer(self, message: State) -> State:
        """Results of this rank's rows; of a failure its words."""
        began = time.thread_time()
        try:
            rows = list(self._rows(message))
            results = self.base.rows.compute(rows, gradients=bool(message["gradients"])) if rows else []
        except Exception as error:  # noqa: BLE001 - rank 0 tells whoever waits
            return {"error": failure(error)}
        answer: State = {"core_s": time.thread_time() - began}
        for place, one in enumerate(results):
            result: State = {"logprobs": one.logprobs, "loss": one.loss}
            if one.gradient is not None:
                flat = torch.cat([piece.flatten() for piece in one.gradient]) if one.gradient else torch.zeros(0)
                result["gradient"] = flat.numpy()
            answer[str(place)] = result
        return answer

    def _rows(self, message: State) -> Iterator[TrainedRow]:
        adapters = dict[int, LoraAdapter]()
        sizes = array(message, "sizes").astype(np.int64)
        for place, owner in enumerate(ranks_of_rows(sizes, integer(message, "ranks"))):
            if owner != self.rank:
                continue
            row = substate(message, f"row {place}")
            of = integer(row, "adapter")
            if of >= 0 and of not in adapters:
                adapters[of] = LoraAdapter.unpacked(self.base.rows.decoder, substate(message, f"adapter {of}"))
            inputs = {name: array(substate(row, "inputs"), name) for name in substate(row, "inputs")}
            tokens, targets = array(row, "tokens").astype(np.int64), inputs["target_tokens"].astype(np.int64)
            options = {name: number(substate(row, "options"), name) for name in substate(row, "options")}
            loss = RowLoss(name=str(row["loss"]), datum=Datum(tokens=tokens, inputs=inputs), options=options)
            yield TrainedRow(adapter=adapters.get(of), tokens=tokens, targets=targets, loss=loss)


def main() -> None:
    """Be a rank, as a child process that reads its task from a line of JSON."""
    channel = connect_to_parent()
    lines = channel.lines()
    task = RankTask.from_json(next(lines))
    asked = json.loads(task.config)
    config = TrainingServiceConfig.model_validate_json(asked["config"])
    try:
        torch.set_num_threads(config.threads)
        channel.reply(READY)
        with joined(task.meeting) as group:
            _, base, context = open_base(config, Path(asked["beside"]))
            base.rows.prepare(context, exact=not asked["reach"])
            if base.rows.reach != asked["reach"]:
                raise ResourceError(
                    f"compiled kernels compute rows of up to {asked['reach']} tokens on rank 0 and {base.rows.reach} "
                    'here: rows would have other bits; give this machine the same compiler, or set runner = "torch"'
                )
            channel.reply(READY)
            servant = _RowServant(base, task.meeting.rank)
            for _ in lines:
                group.collect(servant.answer(group.send(None)))
    except (HoneError, RuntimeError) as fault:  # another rank that ended is a RuntimeError of torch's here
        channel.reply(json.dumps({"error": failure(fault)}).encode() + b"\n")
        raise SystemExit(1) from fault


if __name__ == "__main__":
    main()
