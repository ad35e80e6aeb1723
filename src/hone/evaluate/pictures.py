"""A finished control run pictured: a film of its policy, and a map where its world is a grid, kept in its folder.

Belongs here: what is made at the end of a run for its report. A run whose policy cannot be pictured is no worse for it:
what went wrong is a note.
"""

from pathlib import Path

from hone.core.clock import SystemClock
from hone.core.errors import DataError
from hone.evaluate.checkpoint import tree_of
from hone.evaluate.control.policy_maps import layout_of, map_of, map_on
from hone.evaluate.control.returns import is_control, load_judged
from hone.evaluate.control.video import watch
from hone.store.animation import write_episode
from hone.store.checkpoints import step_name
from hone.store.folder import open_run
from hone.store.maps import PolicyMap, write_map


def picture(run: Path) -> list[str]:
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
    folder = found.newest_whole().policy_folder
    config = tree_of(run)
    made: list[str] = []
    if isinstance(config.get("env"), dict):
        policy, env = load_judged(folder, config)
        about, png = watch(policy, env, seed=0, step=step)
        write_episode(run, about, png)
        made.append("an episode" if png is not None else "why there is none")
    try:
        layout = layout_of(folder, config)
        if layout is not None:
            write_map(run, map_on(layout, folder, step=step))
            made.append("a map")
    except DataError as fault:
        opened.log(f"no map of the policy: {fault}", level="WARNING")
    return made


def newest_map(run: Path) -> PolicyMap:
    """The map of the newest checkpoint's policy. Raises DataError where there can be none."""
    found = open_run(run, clock=SystemClock()).checkpoints()
    folder = found.newest_whole().policy_folder
    if not is_control(folder):
        raise DataError(f"{run}: its policy writes text; a map is of a control policy on a grid")
    return map_of(folder, tree_of(run), step=found.steps()[-1])
