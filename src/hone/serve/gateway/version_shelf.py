"""Published versions of a policy, each in a folder named by the hash of its contents, kept for replay."""

import shutil
from pathlib import Path
from typing import Final

from hone.bandits.policy import BanditPolicy
from hone.bandits.saving import load_policy, policy_hash, save_policy
from hone.core.errors import DataError

_DIGITS: Final = 16
"""Digits of the hash in a version's name."""


class VersionShelf:
    """Folder of versions. A version is whole or not there: it is written beside its place, and renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, policy: BanditPolicy) -> str:
        """Keep a policy; -> the name of its version. One that is there already is left as it is."""
        name = policy_hash(policy)[:_DIGITS]
        place = self._folder / name
        if not place.is_dir():
            beside = self._folder / f".{name}.new"
            shutil.rmtree(beside, ignore_errors=True)
            save_policy(policy, beside)
            beside.rename(place)
        return name

    def get(self, version: str) -> BanditPolicy:
        """The policy of a version. Raises DataError for one that is not kept, or damaged."""
        if not version.isalnum() or not (self._folder / version).is_dir():
            raise DataError(f"version {version!r:.60} is not kept in {self._folder}")
        return load_policy(self._folder / version)
