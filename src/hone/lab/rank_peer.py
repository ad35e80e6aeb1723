"""The second rank of an experiment as a child process: `python -m hone.lab.rank_peer`, its task a line of JSON."""

import json

import torch

from hone.lab.experiments.two_ranks import measure
from hone.parallel.group import joined
from hone.parallel.ranked_job import READY, RankTask
from hone.process.parent import connect_to_parent


def main() -> None:
    """Measure with the parent until it has what it needs."""
    channel = connect_to_parent()
    task = RankTask.from_json(next(channel.lines()))
    torch.set_num_threads(1)
    channel.reply(READY)
    with joined(task.meeting) as group:
        measure(group.share(), **json.loads(task.config))


if __name__ == "__main__":
    main()
