"""Versions of policies: identity by content, files, and lineage."""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.core.errors import DataError
from hone.run.store.durable import failpoint, remove_tree, sha256, sync_path, writing

ID_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFile:
    """File of a version."""

    path: str
    """Relative, with `/`."""
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOrigin:
    """Everything beside the weights that a version was made from."""

    code: str = ""
    """Version of the code: a release or a commit."""
    config: str = ""
    """Config of the run, as text."""
    parent: str = ""
    """Version that it was trained from or beside; empty: none."""
    view: str = ""
    """Hash of the view of the decision log that it learnt from; empty: none."""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """Version of a policy in the registry."""

    id: str
    files: tuple[VersionFile, ...]
    origin: VersionOrigin
    at_s: float
    made_by: str


def version_id(files: Sequence[VersionFile], origin: VersionOrigin) -> str:
    """Identity of a version: hash of its files, code, config, parent, view and seeds -> 16 hexadecimal digits.

    The same content has the same identity on every machine and at every time.
    """
    content = {
        "files": sorted((file.path, file.sha256, file.size_bytes) for file in files),
        "code": origin.code,
        "config": origin.config,
        "parent": origin.parent,
        "view": origin.view,
        "seeds": list(origin.seeds),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_DIGITS]


def files_of(folder: Path) -> tuple[VersionFile, ...]:
    """Files of a policy's folder, sorted. Raises DataError for none, and for links and other special files."""
    if not folder.is_dir():
        raise DataError(f"no policy folder {folder}; name the folder that the policy was saved into")
    entries = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    odd = [str(path.relative_to(folder)) for path in entries if path.is_symlink() or not path.is_file()]
    if odd:
        raise DataError(f"{folder} has links or special files, which no version can hold: {', '.join(odd[:5])}")
    if not entries:
        raise DataError(f"{folder} is empty: a version needs the files of a policy")
    return tuple(
        VersionFile(path=path.relative_to(folder).as_posix(), sha256=sha256(path), size_bytes=path.stat().st_size)
        for path in entries
    )


def copy_version(source: Path, target: Path, files: Sequence[VersionFile]) -> None:
    """Copy the files into `target`, whole or not at all. Raises ResourceError, and DataError if one changed."""
    if target.is_dir() and not damaged_files(target, files):
        return  # left by an addition that was killed before its row was written
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if temporary.exists():
        remove_tree(temporary)
    for file in files:
        place = temporary / file.path
        with writing(place, file.size_bytes):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file.path, place)
        sync_path(place)
    changed = damaged_files(temporary, files)
    if changed:
        remove_tree(temporary)
        raise DataError(f"{source} changed while it was copied: {', '.join(changed)}; add it when nothing writes there")
    failpoint("registry.before_rename")
    if target.exists():
        remove_tree(target)  # damaged
    with writing(target):
        temporary.rename(target)
    sync_path(target.parent)


def damaged_files(folder: Path, files: Sequence[VersionFile]) -> list[str]:
    """Names of the files that are missing or have other content."""
    return [
        file.path for file in files if not (folder / file.path).is_file() or sha256(folder / file.path) != file.sha256
    ]
