"""Pictures of a finished control run: an animation of its policy, and a map if its environment is a grid.

Belongs here: pictures for the report, made at the end of a run and saved in its folder. A failure becomes a note.
"""

from pathlib import Path

from hone.core.clock import SystemClock
from hone.core.errors import DataError
from hone.run.saved_config import config_tree, is_control
from hone.run.store.animation import write_episode
from hone.run.store.checkpoints import step_name
from hone.run.store.folder import open_run
from hone.run.store.records import MAP


def write_policy_pictures(run: Path) -> list[str]:
    """Write the possible pictures of the newest checkpoint's policy; returns their names."""
    if not (run / "checkpoints").is_dir():
        return []
    opened = open_run(run, clock=SystemClock())
    checkpoints = opened.checkpoints()
    steps = checkpoints.steps()
    if not steps:
        return []
    # Before the checksums are verified: the checkpoint may have gigabytes.
    if not is_control(checkpoints.folder / step_name(steps[-1]) / "policy"):
        return []
    config = config_tree(run)
    if not any(isinstance(config.get(key), dict) for key in ("env", "finite")):
        return []  # a bandit
    from hone.control.evaluate.policy_maps import grid_layout, policy_map_on  # noqa: PLC0415 - the wing of the run
    from hone.control.evaluate.returns import run_environment  # noqa: PLC0415 - as above
    from hone.control.evaluate.video import record_saved_policy  # noqa: PLC0415 - as above

    newest = checkpoints.newest_policy()
    folder, step = newest.policy_folder, newest.step
    made: list[str] = []
    if isinstance(config.get("env"), dict):
        about, png = record_saved_policy(folder, run_environment(folder, config), seed=0, step=step)
        write_episode(run, about, png)
        made.append("an episode" if png is not None else "the reason why there is no episode")
    try:
        layout = grid_layout(folder, config)
        if layout is not None:
            MAP.write(run, policy_map_on(layout, folder, step=step))
            made.append("a map")
    except DataError as fault:
        opened.log(f"no map of the policy: {fault}", level="WARNING")
    return made
