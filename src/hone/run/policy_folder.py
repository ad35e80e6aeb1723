"""The folder of a saved policy: named itself, or by its checkpoint or run."""

from pathlib import Path

from hone.core.clock import SystemClock
from hone.run.store.folder import open_run
from hone.run.store.verification import verify_policy


def policy_folder(path: Path) -> Path:
    """Folder of weights for `path`: itself, a checkpoint's, or that of a run's newest intact checkpoint.

    Files of a checkpoint are verified. Raises DataError for damaged ones, and issues a CheckpointWarning for a newer
    checkpoint of a run that is damaged.
    """
    verify_policy(path)
    if (path / "policy").is_dir():
        return path / "policy"
    if (path / "checkpoints").is_dir():
        return open_run(path, clock=SystemClock()).checkpoints().newest_policy().policy_folder
    return path
