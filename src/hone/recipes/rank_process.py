"""A rank of a run as a child process: `python -m hone.recipes.rank_process`, its task a line of JSON."""

import json
from functools import partial

from hone.core.errors import HoneError
from hone.parallel.ranked_job import READY, RankTask, failure, serve_rank
from hone.process.parent import connect_to_parent
from hone.recipes.registry import load_recipe
from hone.run.job import RunConfig
from hone.run.run import prepare_device


def _task_config(task: RankTask) -> RunConfig:
    """The run's config, with the device of this rank."""
    config = load_recipe(task.recipe).config.model_validate_json(task.config)
    return config.model_copy(update={"run": config.run.model_copy(update={"device": task.meeting.device})})


def main() -> None:
    """Run one rank as a child process."""
    channel = connect_to_parent()
    lines = channel.lines()
    task = RankTask.from_json(next(lines))
    try:
        config = _task_config(task)
        prepare_device(config)
        channel.reply(READY)
        serve_rank(task, load_recipe(task.recipe).build, config, lines, partial(channel.reply, READY))
    except (HoneError, RuntimeError) as fault:  # another rank that ended is a RuntimeError of torch's here
        channel.reply(json.dumps({"error": failure(fault)}).encode() + b"\n")
        raise SystemExit(1) from fault


if __name__ == "__main__":
    main()
