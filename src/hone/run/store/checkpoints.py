"""Atomic checkpoints.

Belongs here: the protocol. Write to a temporary sibling folder; fsync every file; write a manifest with the sha256 and
size of each; fsync the folders; rename to `step_00000123`; fsync the parent; only then prune, by renaming to a trash
name first. A process that dies at any instruction leaves version v or version v+1, never a mix.

A checkpoint contains `state/` (codec), `policy/` (written by the caller's callback) and `manifest.json`.

Verification compares the size and sha256 of every file with the manifest. A file is read once per process, in pieces: a
file with unchanged size, inode and times of change is not read again.
"""

import contextlib
import hashlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hone.core.errors import CheckpointWarning, DataError
from hone.core.state import State
from hone.core.strict_json import Json
from hone.run.store.codec import read_state, write_state
from hone.run.store.durable import (
    failpoint,
    finite_or_none,
    read_json_object,
    remove_tree,
    sha256,
    sync_path,
    to_json,
    write_file,
    writing,
    writing_tensors,
)

# --------------------------------------------------------------------------------------------------------- verification


CHECKPOINT_FORMAT = 1
MANIFEST = "manifest.json"
POLICY = "policy"
STATE = "state"


def _require_known_format(folder: Path, manifest: Mapping[str, Json]) -> None:
    """Raise DataError if a newer hone wrote the checkpoint."""
    version = manifest.get("format")
    if isinstance(version, int) and version > CHECKPOINT_FORMAT:
        raise DataError(
            f"{folder} has checkpoint format {version}, this hone reads up to {CHECKPOINT_FORMAT}; "
            "upgrade hone, or choose an older checkpoint"
        )


def _manifest_digest(manifest: Mapping[str, Json]) -> str:
    """Sha256 of a manifest without its own."""
    return hashlib.sha256(to_json({key: value for key, value in manifest.items() if key != "sha256"})).hexdigest()


def _checkpoint_faults(
    folder: Path, manifest: Mapping[str, Json], *, inside: str = "", contents: bool = True
) -> Iterator[str]:
    """Yield the faults of a checkpoint, with file, hash and expected value; `inside` limits the search to a subfolder.
    Without `contents` no file is read, and only sizes are compared.

    A file of weights that the manifest does not list is a fault. Other unlisted files may be the user's own.
    """
    claimed, actual = manifest.get("sha256"), _manifest_digest(manifest)
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
    _require_known_format(checkpoint, manifest)
    faults = list(_checkpoint_faults(checkpoint, manifest, inside=inside))
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
            about = path.stat()
            digest = _remembered_sha256(
                str(path.resolve()), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
            )
        except OSError as error:
            yield f"cannot read {path}: {error.strerror or error}"
        else:
            if digest != expected.get("sha256"):
                yield f"{path} has sha256 {digest}, expected {expected.get('sha256')}"


@lru_cache(maxsize=4096)
def _remembered_sha256(path: str, inode: int, size: int, changed_ns: int, moved_ns: int) -> str:
    del inode, size, changed_ns, moved_ns  # they tell one content of the file from the next
    return sha256(Path(path))


# ---------------------------------------------------------------------------------------------------------- checkpoints


_STEP_NAME = re.compile(r"step_(\d{8,})")
_TEMPORARY = ".tmp_"
_TRASH = ".trash_"
_REPLACED = ".replaced_"


def step_name(step: int) -> str:
    """Folder name of a step: `123 -> 'step_00000123'`."""
    return f"step_{step:08d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An intact checkpoint with verified hashes; `warnings` names skipped newer ones, with reasons."""

    step: int
    folder: Path
    score: float | None
    warnings: tuple[str, ...] = ()

    @property
    def policy_folder(self) -> Path:
        """Folder of the policy."""
        return self.folder / POLICY

    def state(self) -> State:
        """Read the resume state. Raises DataError."""
        return read_state(self.folder / STATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """The `checkpoints/` folder of a run. One process writes (guaranteed by the run's lock), any number read.

    After a save, the last `keep_last` checkpoints and the `keep_best` with the highest score remain.
    """

    folder: Path
    keep_last: int = 2
    keep_best: int = 1

    def save(
        self, step: int, state: State, *, write_policy: Callable[[Path], None] | None = None, score: float | None = None
    ) -> Path:
        """Save `step` and prune; returns the checkpoint's folder.

        `write_policy(folder)` fills an empty `policy/` folder with files of any kind. `score` (higher is better) is
        the criterion of `keep_best`. Raises ResourceError for the disk; earlier checkpoints are then intact.
        """
        target = self.folder / step_name(step)
        temporary = self.folder / f"{_TEMPORARY}{target.name}"
        try:
            self._start(temporary)
            self._fill(temporary, step, state, write_policy, score)
            failpoint("ckpt.before_rename")
            self._put_in_place(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)  # `remove_leftovers` removes the rest at the next start
            with contextlib.suppress(OSError):  # not empty
                self.folder.rmdir()  # an empty folder would mean that somebody took its checkpoints away
            raise
        failpoint("ckpt.after_rename")
        sync_path(self.folder)
        failpoint("ckpt.before_prune")
        self._prune(step)
        return target

    def steps(self) -> list[int]:
        """Steps with a folder, ascending, intact or not."""
        if not self.folder.is_dir():
            return []
        matches = (_STEP_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def newest_intact(self) -> Checkpoint:
        """Newest checkpoint with correct hashes.

        Raises DataError if there is none (a run never starts from scratch by itself), and if a newer hone wrote the
        newest one.
        """
        skipped: list[str] = []
        for step in reversed(self.steps()):
            checkpoint, fault = self._verify(step)
            if checkpoint is not None:
                return replace(checkpoint, warnings=tuple(skipped))
            skipped.append(f"checkpoint skipped: {fault}")
        if skipped:
            raise DataError(f"no intact checkpoint in {self.folder}; nothing was started or changed", *skipped)
        raise DataError(
            f"no checkpoint in {self.folder}, so the run cannot be resumed; to start from the beginning, omit "
            f"--resume and give a new --name, or remove {self.folder.parent}"
        )

    def newest_policy(self) -> Checkpoint:
        """`newest_intact`, for its policy: issues a CheckpointWarning for each damaged newer one, and names the one
        that is used instead."""
        checkpoint = self.newest_intact()
        for skipped in checkpoint.warnings:
            warnings.warn(f"{skipped}; {checkpoint.folder} is used instead", CheckpointWarning, stacklevel=2)
        return checkpoint

    def at(self, step: int) -> Checkpoint:
        """Checkpoint of one step, verified. Raises DataError if it is missing or damaged."""
        known = self.steps()
        if step not in known:
            raise DataError(f"no checkpoint of step {step} in {self.folder}; there are: {known or 'none'}")
        checkpoint, fault = self._verify(step)
        if checkpoint is None:
            raise DataError(fault)
        return checkpoint

    def faults(self, *, contents: bool) -> dict[int, str]:
        """First fault of each damaged or unreadable checkpoint by its step; without `contents`, by file sizes alone."""
        faults: dict[int, str] = {}
        for step in self.steps():
            try:
                _, fault = self._verify(step, contents=contents)
            except DataError as error:  # of a newer format
                fault = str(error)
            if fault:
                faults[step] = fault
        return faults

    def remove_leftovers(self) -> list[str]:
        """Remove the leftovers of a killed process; call it at start, under the run's lock. Returns messages."""
        if not self.folder.is_dir():
            return []
        done: list[str] = []
        for entry in sorted(self.folder.iterdir()):
            original = self.folder / entry.name.removeprefix(_REPLACED)
            if entry.name.startswith(_REPLACED) and not original.exists():
                _rename(entry, original)
                done.append(f"checkpoint {original.name} restored: a save over it did not finish")
            elif entry.name.startswith((_TEMPORARY, _TRASH, _REPLACED)):
                remove_tree(entry)
                done.append(f"unfinished checkpoint folder {entry.name} removed")
        return done

    def set_aside_after(self, step: int) -> list[str]:
        """Rename checkpoints of later steps to `aside_...`, so that a run resumed at `step` does not read them.

        They are damaged or abandoned; nothing is deleted. Returns messages.
        """
        done: list[str] = []
        for later in self.steps():
            if later > step:
                source = self.folder / step_name(later)
                target = self._free_name(f"aside_{source.name}")
                _rename(source, target)
                done.append(f"checkpoint {source.name} is later than the resumed step {step}: kept as {target.name}")
        return done

    def _start(self, temporary: Path) -> None:
        """Make the temporary folder, and with it that of all checkpoints: it is never there without something in it."""
        if temporary.exists():
            remove_tree(temporary)
        with writing(temporary):
            temporary.mkdir(parents=True)
        failpoint("ckpt.before_write")

    def _fill(
        self, folder: Path, step: int, state: State, write_policy: Callable[[Path], None] | None, score: float | None
    ) -> None:
        with writing(folder):
            (folder / STATE).mkdir()
        write_state(folder / STATE, state)
        failpoint("ckpt.after_state")
        if write_policy is not None:
            with writing_tensors(folder / POLICY):
                (folder / POLICY).mkdir()
                write_policy(folder / POLICY)
            failpoint("ckpt.after_policy")
        files = _file_hashes(folder)
        failpoint("ckpt.before_manifest")
        manifest: dict[str, Json] = {"format": CHECKPOINT_FORMAT, "step": step, "score": finite_or_none(score)}
        manifest |= {"files": files}
        write_file(folder / MANIFEST, to_json(manifest | {"sha256": _manifest_digest(manifest)}, indent=1))
        failpoint("ckpt.after_manifest")
        for place in (folder, *(entry for entry in folder.rglob("*") if entry.is_dir())):
            sync_path(place)

    def _put_in_place(self, temporary: Path, target: Path) -> None:
        if target.exists():  # a folder cannot replace a folder: move the old one aside; `remove_leftovers` can undo it
            replaced = self.folder / f"{_REPLACED}{target.name}"
            if replaced.exists():
                remove_tree(replaced)
            _rename(target, replaced)
            failpoint("ckpt.replacing")
            _rename(temporary, target)
            sync_path(self.folder)
            remove_tree(replaced)
        else:
            _rename(temporary, target)

    def _prune(self, saved: int) -> None:
        earlier = [step for step in self.steps() if step <= saved]
        keep = set(earlier[-max(self.keep_last, 1) :])
        scores = {step: score for step in earlier if (score := self._score(step)) is not None}
        keep |= set(sorted(scores, key=lambda step: (scores[step], step), reverse=True)[: self.keep_best])
        for step in earlier:
            if step not in keep:
                trash = self._free_name(f"{_TRASH}{step_name(step)}")
                _rename(self.folder / step_name(step), trash)
                failpoint("ckpt.prune_renamed")
                remove_tree(trash)
                failpoint("ckpt.pruned")

    def _score(self, step: int) -> float | None:
        try:
            score = read_json_object(self.folder / step_name(step) / MANIFEST).get("score")
        except DataError:  # damaged: it is not kept for its score, and `newest_intact` reports it when it is read
            return None
        return score if isinstance(score, float | int) else None

    def _free_name(self, name: str) -> Path:
        names = (name if number == 1 else f"{name}_{number}" for number in range(1, 1_000_000))
        return next(path for path in map(self.folder.joinpath, names) if not path.exists())

    def _verify(self, step: int, *, contents: bool = True) -> tuple[Checkpoint | None, str]:
        folder = self.folder / step_name(step)
        try:
            manifest = read_json_object(folder / MANIFEST)
        except DataError as error:
            return None, str(error)
        _require_known_format(folder, manifest)
        if fault := next(_checkpoint_faults(folder, manifest, contents=contents), ""):
            return None, fault
        if manifest.get("step") != step:
            return None, f"{folder / MANIFEST} has step {manifest.get('step')}"
        return Checkpoint(step=step, folder=folder, score=self._score(step)), ""


def _rename(source: Path, target: Path) -> None:
    with writing(target):
        source.rename(target)


def _file_hashes(folder: Path) -> dict[str, Json]:
    """Sync every file below `folder`; returns path -> size and hash."""
    files: dict[str, Json] = {}
    for path in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
        sync_path(path)
        name = path.relative_to(folder).as_posix()
        files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return files
