"""Any saved policy as a decision policy: a bandit's folder, or a network with numbered actions.

torch is imported for networks only, so that a service of a bandit starts at once.
"""

from pathlib import Path

from hone.bandits.policy import BanditPolicy
from hone.bandits.saving import is_policy_folder, load_policy
from hone.core.clock import SystemClock
from hone.core.errors import DataError
from hone.store.folder import open_run
from hone.store.verification import verify_policy
from hone.tabular.tables import KINDS, policy_kind


def open_decision_policy(path: Path) -> BanditPolicy:
    """Open the policy of `path`: a policy's folder, a checkpoint, or a run, whose newest intact checkpoint is taken.

    Raises DataError for a damaged or missing policy, and for one that cannot decide among numbered actions.
    """
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a policy's folder, a checkpoint or a run")
    folder = decision_policy_folder(path)
    if is_policy_folder(folder):
        return load_policy(folder)
    if not (folder / "policy.json").is_file():
        found = "a language model" if (folder / "config.json").is_file() else "no policy"
        raise DataError(f"{folder}: it holds {found}; decisions need a bandit, or a network with numbered actions")
    if policy_kind(folder) in KINDS:
        raise DataError(f"{folder}: a table of states cannot be served; train a bandit, or a network, on features")
    from hone.evaluate.control.decision_network import open_network  # noqa: PLC0415 - torch, which a bandit needs not

    return open_network(folder)


def decision_policy_folder(path: Path) -> Path:
    """Folder of the policy's files: of a folder, a checkpoint or a run. Those of a checkpoint are verified."""
    verify_policy(path)
    if (path / "policy").is_dir():
        return path / "policy"
    if (path / "checkpoints").is_dir():
        return open_run(path, clock=SystemClock()).checkpoints().newest_policy().policy_folder
    return path
