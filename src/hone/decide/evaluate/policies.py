"""Any saved policy as a decision policy: a bandit's folder, or whatever an installed package knows how to open.

A policy that is no bandit is opened by an entry point of the group `hone.decision_policies`: a function that takes the
policy's folder and returns a `BanditPolicy`, or raises DataError. hone declares one itself, for networks of control, so
that a service of a bandit starts without torch and this wing knows nothing of the other.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from hone.core.errors import DataError
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import is_policy_folder, load_policy
from hone.run.saved_config import policy_folder

ENTRY_POINT_GROUP: Final = "hone.decision_policies"


def open_decision_policy(path: Path) -> BanditPolicy:
    """Open the policy of `path`: a policy's folder, a checkpoint, or a run, whose newest intact checkpoint is taken.

    Raises DataError for a damaged or missing policy, and for one that cannot decide among numbered actions.
    """
    if not path.is_dir():
        raise DataError(f"{path}: there is no such folder; name a policy's folder, a checkpoint or a run")
    folder = policy_folder(path)
    if is_policy_folder(folder):
        return load_policy(folder)
    if not (folder / "policy.json").is_file():
        content = "a language model" if (folder / "config.json").is_file() else "no policy"
        raise DataError(f"{folder}: it holds {content}; decisions need a bandit, or a network with numbered actions")
    refusals: list[str] = []
    for opener in entry_points(group=ENTRY_POINT_GROUP):
        try:
            policy = opener.load()(folder)
        except DataError as refusal:
            refusals.append(str(refusal))
        else:
            assert isinstance(policy, BanditPolicy), f"{opener.value} returned {type(policy).__name__}"
            return policy
    raise DataError(*(refusals or [f"{folder}: no installed package opens it (entry points {ENTRY_POINT_GROUP})"]))
