"""A process group of torch: joining it, and what is sent over it beside gradients."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - where torch documents it
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hone.core.errors import ResourceError
from hone.core.reduction import Array, Reduction
from hone.core.state import State
from hone.learner.share import BatchShare
from hone.models.language.decoder_layer import ProcessTensorGroup
from hone.run.store.codec import state_bytes, state_from_bytes

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class GroupReduction:
    """Reduction over the ranks of a process group."""

    rank: int
    """Position in the group."""
    group: dist.ProcessGroup | None = None
    """None: all processes."""

    def gather(self, column: Array) -> Sequence[Array]:
        ranks = range(dist.get_world_size(self.group))
        counts = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
        dist.all_gather(counts, torch.tensor([len(column)]), group=self.group)
        rows = [int(count) for count in counts]
        padded = np.zeros((max(rows), *column.shape[1:]), column.dtype)
        padded[: len(column)] = column
        sent = torch.from_numpy(np.frombuffer(padded.tobytes(), np.uint8).copy())
        parts = [torch.zeros_like(sent) for _ in ranks]
        dist.all_gather(parts, sent, group=self.group)
        return [
            np.frombuffer(part.numpy().tobytes(), column.dtype).reshape(padded.shape)[:count]
            for part, count in zip(parts, rows, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeeting:
    """Where the ranks of a run meet, and what each of them must know to join."""

    rank: int
    ranks: int
    virtual: int
    """Virtual ranks; 0: none."""
    tensor: int = 1
    """Ranks, neighbours by number, that hold a language model's heads and MLP columns together, for the same rows."""
    patience_s: float
    """Longest wait for another rank."""
    device: str
    address: str = LOOPBACK
    port: int = 0
    """Port of rank 0; 0 on rank 0 itself: the system chooses a free one."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a run as one of them sees the others."""

    meeting: RankMeeting
    mesh: DeviceMesh
    """`data` x `tensor`: ranks that share out the rows, times those that share out each layer."""
    reduction: Callable[[int, dist.ProcessGroup | None], Reduction] = GroupReduction
    """Position in a process group, and the group -> the reduction over its ranks."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.meeting.rank

    @property
    def is_driver(self) -> bool:
        """True for rank 0."""
        return self.meeting.rank == 0

    @property
    def data(self) -> DeviceMesh:
        """Ranks that share out the rows with this one."""
        return self.mesh["data"]

    @property
    def tensor(self) -> ProcessTensorGroup | None:
        """Ranks that compute each layer together with this one; None: it computes alone."""
        return None if self.meeting.tensor == 1 else ProcessTensorGroup(self.mesh.get_group("tensor"))

    def everybody(self) -> Reduction:
        """Reduction over all ranks of the run."""
        return self.reduction(self.rank, None)

    def share(self) -> BatchShare:
        """This rank's share of every batch; the ranks of a tensor group have the same."""
        ranks, group = self.data.size(), self.data.get_group()
        return BatchShare(
            reduction=self.reduction(self.data.get_local_rank(), group),
            ranks=ranks,
            shares=self.meeting.virtual or ranks,
            add=partial(dist.all_reduce, group=group),
        )

    def send(self, state: "State | None") -> State:
        """`state` of rank 0 on every rank; the others give None."""
        data = torch.from_numpy(state_bytes(state)) if state is not None else torch.zeros(0, dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, src=0)
        if state is None:
            data = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, src=0)
        return state if state is not None else state_from_bytes(data.numpy())

    def collect(self, state: "State | None") -> list[State]:
        """The states of all others, by rank, on rank 0, which gives None; nothing on the others."""
        if state is not None:
            data = torch.from_numpy(state_bytes(state))
            dist.send(torch.tensor([len(data)]), dst=0)
            dist.send(data, dst=0)
            return []
        states = list[State]()
        for rank in range(1, self.meeting.ranks):
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, src=rank)
            data = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(data, src=rank)
            states.append(state_from_bytes(data.numpy()))
        return states

    def copy_from_driver(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite `tensors` by those of rank 0."""
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def open_meeting(meeting: RankMeeting) -> tuple[TCPStore, int]:
    """The place where the ranks meet, opened by rank 0, and its port. Raises ResourceError."""
    if not dist.is_available():
        raise ResourceError("run.ranks: this build of torch has no torch.distributed; install one that has")
    if dist.is_initialized():
        raise ResourceError(
            "run.ranks: this process is in a process group of torch already; start the run from another"
        )
    try:
        place = TCPStore(
            meeting.address,
            meeting.port,
            world_size=meeting.ranks,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=meeting.patience_s),
        )
    except (RuntimeError, ValueError) as fault:
        where = f"{meeting.address}, port {meeting.port or 'of the system'}"
        raise ResourceError(f"run.ranks: rank 0 cannot listen on {where}: {fault}; nothing was started") from fault
    return place, place.port


@contextmanager
def joined(meeting: RankMeeting, place: TCPStore | None = None) -> Iterator[RankGroup]:
    """Context of a process group. Raises ResourceError where the ranks do not meet within the patience."""
    wait, cuda = timedelta(seconds=meeting.patience_s), meeting.device.startswith("cuda")
    try:
        with _loopback_only(meeting.address):
            place = place or TCPStore(meeting.address, meeting.port, meeting.ranks, timeout=wait)
            if cuda:
                torch.cuda.set_device(meeting.device)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=place,
                rank=meeting.rank,
                world_size=meeting.ranks,
                timeout=wait,
            )
    except (RuntimeError, ValueError) as fault:
        raise ResourceError(
            f"run.ranks = {meeting.ranks}: rank {meeting.rank} did not meet the others at {meeting.address}:"
            f"{meeting.port} within run.patience_s = {meeting.patience_s:g}: {fault}"
        ) from fault
    try:
        sides = (meeting.ranks // meeting.tensor, meeting.tensor)
        mesh = init_device_mesh("cuda" if cuda else "cpu", sides, mesh_dim_names=("data", "tensor"))
        yield RankGroup(meeting, mesh)
    finally:
        dist.destroy_process_group()


@contextmanager
def _loopback_only(address: str) -> Iterator[None]:
    """Keep gloo from looking this machine's name up where all ranks are on it."""
    name = "GLOO_SOCKET_IFNAME"
    if address != LOOPBACK or sys.platform != "linux" or name in os.environ:
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]


# ----------------------------------------------------------------------------------------------------------- fake group


_NO_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class _EchoReduction:
    """Reduction in which every rank says what this one does."""

    rank: int
    group: dist.ProcessGroup | None = None

    def gather(self, column: Array) -> Sequence[Array]:
        return [column] * dist.get_world_size(self.group)


@contextmanager
def fake_ranks(ranks: int, *, tensor: int = 1, virtual: int = 0, rank: int = 0) -> Iterator[RankGroup]:
    """Context of `rank` of that many ranks on CPUs, the only one that there is.

    Raises ResourceError where this process is in a process group, or torch has none.
    """
    if not dist.is_available():
        raise ResourceError("this build of torch has no torch.distributed")
    if dist.is_initialized():
        raise ResourceError("this process is in a process group of torch already")
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 - registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks // tensor, tensor), mesh_dim_names=("data", "tensor"))
        meeting = RankMeeting(
            rank=rank, ranks=ranks, tensor=tensor, virtual=virtual, patience_s=_NO_WAIT_S, device="cpu"
        )
        yield RankGroup(meeting, mesh, _EchoReduction)
    finally:
        dist.destroy_process_group()
