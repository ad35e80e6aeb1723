"""A second process for an experiment: both meet as the ranks of `run.ranks` do, and take the same measurements."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from hone.learner.share import BatchShare
from hone.parallel.group import RankMeeting, joined, open_meeting
from hone.parallel.launcher import LocalLauncher, rank_tasks

_PATIENCE_S = 120.0
_PEER = "hone.lab.rank_peer"


@contextmanager
def second_rank(name: str, asked: Mapping[str, int]) -> Iterator[BatchShare]:
    """The share of rank 0 of two, while a child process calls `measure` of an experiment with `asked`. The child is
    gone afterwards. Raises ResourceError where it cannot be started."""
    meeting = RankMeeting(rank=0, ranks=2, virtual=0, patience_s=_PATIENCE_S, device="cpu")
    place, port = open_meeting(meeting)
    meeting = replace(meeting, port=port)
    tasks = rank_tasks(meeting, recipe=name, config=json.dumps(dict(asked)))
    ranks = LocalLauncher(module=_PEER, threads=1).launch(tasks)
    try:
        ranks.wait_ready("started")
        with joined(meeting, place) as group:
            yield group.share()
    finally:
        ranks.close()
