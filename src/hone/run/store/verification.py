"""Verification of a checkpoint against its `manifest.json`: the size and sha256 of every file.

Belongs here: reading a checkpoint's manifest, and the search for faults. A file is read once per process, in pieces: a
file with unchanged size, inode and times of change is not read again.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from hone.core.errors import DataError
from hone.core.strict_json import Json
from hone.run.store.durable import read_json_object, sha256, to_json

CHECKPOINT_FORMAT = 1
MANIFEST = "manifest.json"
POLICY = "policy"
STATE = "state"


def require_known_format(folder: Path, manifest: Mapping[str, Json]) -> None:
    """Raise DataError if a newer hone wrote the checkpoint."""
    version = manifest.get("format")
    if isinstance(version, int) and version > CHECKPOINT_FORMAT:
        raise DataError(
            f"{folder} has checkpoint format {version}, this hone reads up to {CHECKPOINT_FORMAT}; "
            "upgrade hone, or choose an older checkpoint"
        )


def manifest_digest(manifest: Mapping[str, Json]) -> str:
    """Sha256 of a manifest without its own."""
    return hashlib.sha256(to_json({key: value for key, value in manifest.items() if key != "sha256"})).hexdigest()


def checkpoint_faults(
    folder: Path, manifest: Mapping[str, Json], *, inside: str = "", contents: bool = True
) -> Iterator[str]:
    """Yield the faults of a checkpoint, with file, hash and expected value; `inside` limits the search to a subfolder.
    Without `contents` no file is read, and only sizes are compared.

    A file of weights that the manifest does not list is a fault. Other unlisted files may be the user's own.
    """
    claimed, actual = manifest.get("sha256"), manifest_digest(manifest)
    files = manifest.get("files")
    if claimed != actual:
        yield f"{folder / MANIFEST} has sha256 {actual}, its own record has {claimed}"
        return
    if not isinstance(files, dict):
        yield f"{folder / MANIFEST} lists no files"
        return
    for name, expected in files.items():
        if not inside or name.startswith(f"{inside}/"):
            yield from _file_faults(folder, name, expected, contents=contents)
    for path in sorted((folder / inside).rglob("*.safetensors*")):
        if path.relative_to(folder).as_posix() not in files:
            yield f"{path} is not listed in {folder / MANIFEST}"


def checkpoint_of(path: Path) -> Path | None:
    """Checkpoint that a folder is, or whose `policy/` it is; None for any other folder, such as a copied policy."""
    places = (path, path.resolve(), path.resolve().parent)
    for place in places[: 3 if places[1].name == POLICY else 2]:
        if (place / POLICY).is_dir() and ((place / MANIFEST).is_file() or (place / STATE).is_dir()):
            return place
    return None


def verify_policy(path: Path) -> None:
    """Verify the policy of the checkpoint that `path` is, or whose `policy/` it is. Nothing to do for other folders.

    Raises DataError as `verify_checkpoint`.
    """
    checkpoint = checkpoint_of(path)
    if checkpoint is not None:
        verify_checkpoint(checkpoint, inside=POLICY)


def verify_checkpoint(checkpoint: Path, *, inside: str = "") -> None:
    """Verify a checkpoint, or its subfolder `inside`.

    Raises DataError with every fault, for a missing or damaged manifest, and for a newer format.
    """
    manifest = read_json_object(checkpoint / MANIFEST)
    require_known_format(checkpoint, manifest)
    faults = list(checkpoint_faults(checkpoint, manifest, inside=inside))
    if faults:
        raise DataError(
            *faults,
            f"{checkpoint} is damaged, and nothing of it was loaded; name another checkpoint, or its run, which stands "
            f"for the newest intact one. A policy that was changed on purpose opens from a copy of {POLICY}/ elsewhere",
        )


def _file_faults(folder: Path, name: str, expected: Json, *, contents: bool) -> Iterator[str]:
    path = folder / name
    if not path.is_file():
        yield f"{path} is missing"
    elif not isinstance(expected, dict):
        yield f"{folder / MANIFEST} does not describe {name}"
    elif (size := path.stat().st_size) != expected.get("bytes"):
        yield f"{path} has {size} bytes, expected {expected.get('bytes')}"
    elif contents:
        try:
            found = _sha256_once(path)
        except OSError as error:
            yield f"cannot read {path}: {error.strerror or error}"
        else:
            if found != expected.get("sha256"):
                yield f"{path} has sha256 {found}, expected {expected.get('sha256')}"


def _sha256_once(path: Path) -> str:
    about = path.stat()
    return _remembered_sha256(str(path.resolve()), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


@lru_cache(maxsize=4096)
def _remembered_sha256(path: str, inode: int, size: int, changed_ns: int, moved_ns: int) -> str:
    del inode, size, changed_ns, moved_ns  # they tell one content of the file from the next
    return sha256(Path(path))
