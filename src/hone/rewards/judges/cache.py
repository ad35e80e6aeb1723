"""Cache of replies on disk: one JSON file for each reply, named by the hash of its question.

A file is written under another name and renamed, so that several processes can share a folder. An entry that cannot be
read, or has a wrong checksum, is counted and asked again; it is never an error.
"""

import contextlib
import json
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from hone.core.errors import ResourceError
from hone.core.strict_json import strict_json
from hone.rewards.judges.requests import JudgeReply, reply_from_json


class ReplyCache:
    """Replies by the keys of their questions, in a folder; safe with several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.damaged: list[Path] = []
        """Entries that could not be read so far."""

    def load(self, key: str) -> JudgeReply | None:
        """The reply under `key`; None if there is none, or if its entry is damaged. Raises ResourceError."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ResourceError(f"cannot read {path}: {error.strerror}") from None
        reply = _parse(content, key)
        if reply is None:
            self.damaged.append(path)
        return reply

    def save(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply. Raises ResourceError."""
        path, body = self._path(key), reply.to_json()
        entry = {"key": key, "reply": body, "sha256": _checksum(key, body)}
        write_atomically(path, json.dumps(entry).encode())

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it; makes its folder. Raises ResourceError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ResourceError(
            f"cannot write the judge's file {path}: {error.strerror}; free some space, or set another cache"
        ) from None


def _parse(content: bytes, key: str) -> JudgeReply | None:
    try:
        entry = strict_json(content)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("key") != key:
        return None
    reply = reply_from_json(entry.get("reply"))
    return reply if reply is not None and entry.get("sha256") == _checksum(key, reply.to_json()) else None


def _checksum(key: str, body: dict[str, object]) -> str:
    return sha256(json.dumps([key, body], sort_keys=True).encode()).hexdigest()
