"""A finished control run pictured: a film of its policy, and a map where its world is a grid, kept in its folder.

Belongs here: what is made at the end of a run for its report. A run whose policy cannot be pictured is no worse for it:
what went wrong is a note.
"""

from pathlib import Path

from hone.core.clock import SystemClock
from hone.core.errors import DataError
from hone.evaluate.checkpoint import config_tree
from hone.evaluate.control.policy_maps import grid_layout, policy_map, policy_map_on
from hone.evaluate.control.returns import is_control, load_policy_and_env
from hone.evaluate.control.video import record_episode
from hone.store.animation import write_episode
from hone.store.checkpoints import step_name
from hone.store.folder import open_run
from hone.store.maps import PolicyMap, write_map


def write_policy_pictures(run: Path) -> list[str]:
    """Write what can be made of the newest checkpoint's policy; returns what was written, in words."""
    if not (run / "checkpoints").is_dir():
        return []
    opened = open_run(run, clock=SystemClock())
    found = opened.checkpoints()
    steps = found.steps()
    if not steps:
        return []
    step = steps[-1]
    if not is_control(found.folder / step_name(step) / "policy"):  # before anything is verified: it may be gigabytes
        return []
    folder = found.newest_intact().policy_folder
    config = config_tree(run)
    made: list[str] = []
    if isinstance(config.get("env"), dict):
        policy, env = load_policy_and_env(folder, config)
        about, png = record_episode(policy, env, seed=0, step=step)
        write_episode(run, about, png)
        made.append("an episode" if png is not None else "why there is none")
    try:
        layout = grid_layout(folder, config)
        if layout is not None:
            write_map(run, policy_map_on(layout, folder, step=step))
            made.append("a map")
    except DataError as fault:
        opened.log(f"no map of the policy: {fault}", level="WARNING")
    return made


def newest_map(run: Path) -> PolicyMap:
    """The map of the newest checkpoint's policy. Raises DataError where there can be none."""
    found = open_run(run, clock=SystemClock()).checkpoints()
    folder = found.newest_intact().policy_folder
    if not is_control(folder):
        raise DataError(f"{run}: its policy writes text; a map is of a control policy on a grid")
    return policy_map(folder, config_tree(run), step=found.steps()[-1])
