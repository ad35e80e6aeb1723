"""One rank of a process group that sends nothing: what it would hold can be counted, of tensors without numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hone.core.errors import ResourceError
from hone.core.reduction import Array
from hone.parallel.group import RankGroup, RankMeeting

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
