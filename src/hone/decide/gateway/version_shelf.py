"""Published versions of a policy, each in a folder named by the hash of its contents, kept for replay."""

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Final

from hone.core.errors import DataError
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import load_policy, policy_hash, save_policy

_DIGITS: Final = 16
"""Digits of the hash in a version's name."""


class VersionShelf:
    """Folder of versions. A version is whole or not there: it is written beside its place, and renamed.

    A version behind a shield is named `HASH+SHIELD`: the shield is part of its distribution, not of its folder.
    """

    def __init__(self, folder: Path, shield: str = "") -> None:
        self._folder = folder
        self._suffix = f"+{shield}" if shield else ""

    def named(self, name: str) -> str:
        """The name of a version behind the service's shield."""
        return name + self._suffix

    def put(self, policy: BanditPolicy) -> str:
        """Keep a policy; -> the name of its version. One that is there already is left as it is."""
        name = policy_hash(policy)[:_DIGITS]
        place = self._folder / name
        if not place.is_dir():
            beside = self._folder / f".{name}.new"
            shutil.rmtree(beside, ignore_errors=True)
            save_policy(policy, beside)
            beside.rename(place)
        return self.named(name)

    def get(self, version: str) -> BanditPolicy:
        """The policy of a version. Raises DataError for one that is not kept, or damaged."""
        name, _, shield = version.partition("+")
        if shield != self._suffix.removeprefix("+"):
            raise DataError(f"version {version!r:.60} was served behind another shield than {self._suffix or 'none'}")
        if not name.isalnum() or not (self._folder / name).is_dir():
            raise DataError(f"version {version!r:.60} is not kept in {self._folder}")
        return load_policy(self._folder / name)


def folder_version(folder: Path) -> str:
    """Name of a version whose policy is kept in a folder of its own: a hash of the files there."""
    digest = sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:_DIGITS]
