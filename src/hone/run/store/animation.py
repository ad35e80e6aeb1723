"""Episode of a policy as an animated PNG, `policy.png`, with its description, `policy.json`.

Belongs here: the file format (PNG, third edition, W3C 2025). `hone.control.evaluate.video` plays the episode.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import Number, read_record, record_json

EPISODE_PNG = "episode.png"
EPISODE_JSON = "episode.json"

Frames = NDArray[np.uint8]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_UP = b"\x02"
"""Filter of a row: its difference from the row above, which compresses rendered environments best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecording:
    """Description of an animation."""

    step: int
    """Step of the checkpoint."""
    score: Number
    """Return of the episode."""
    steps: int
    """Length of the episode."""
    note: str = ""
    """Reason for missing frames, or that the episode goes on after the last one; empty otherwise."""


def animated_png(frames: Frames, *, frame_s: float) -> bytes:
    """Encode `frames` `[F, height, width, 3]` as a looping animation with `frame_s` seconds per frame."""
    count, height, width, _ = frames.shape
    parts = [_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    parts.append(_chunk(b"acTL", struct.pack(">II", count, 0)))
    number = 0
    delay = max(1, round(1000 * frame_s))
    for place in range(count):
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, delay, 1000, 0, 0)
        parts.append(_chunk(b"fcTL", control))
        number += 1
        data = _packed(frames[place])
        if place == 0:
            parts.append(_chunk(b"IDAT", data))
        else:
            parts.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
    return _SIGNATURE + b"".join(parts) + _chunk(b"IEND", b"")


def _packed(frame: Frames) -> bytes:
    rows = frame.reshape(len(frame), -1)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    lines = np.hstack(
        [np.frombuffer(_UP * len(rows), np.uint8)[:, None], rows - above]
    )  # modulo 256, as the format demands
    return zlib.compress(lines.tobytes(), 9)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_episode(folder: Path, about: EpisodeRecording, png: bytes | None) -> None:
    """Write the description of an episode, and its animation if there is one. Raises ResourceError."""
    if png is not None:
        replace_file(folder / EPISODE_PNG, png)
    else:
        (folder / EPISODE_PNG).unlink(missing_ok=True)
    replace_file(folder / EPISODE_JSON, to_json(record_json(about)))


def read_episode(folder: Path) -> tuple[EpisodeRecording, bytes | None] | None:
    """Read both files; None if there are none. Raises DataError for a damaged file."""
    about = read_record(EpisodeRecording, folder / EPISODE_JSON)
    if about is None:
        return None
    picture = folder / EPISODE_PNG
    png = picture.read_bytes() if picture.exists() else None
    if png is not None and not png.startswith(_SIGNATURE):
        raise DataError(f"{picture} is not a PNG file")
    return about, png


def frame_count(png: bytes) -> int:
    """Number of frames in an animation's header."""
    at = png.find(b"acTL")
    return int(struct.unpack(">I", png[at + 4 : at + 8])[0]) if at > 0 else 1


def episode_frame(png: bytes, place: int) -> bytes:
    """One frame of an animation that `animated_png` made, as a PNG of its own; the last one for a place beyond it."""
    header, frames = b"", list[bytes]()
    at = len(_SIGNATURE)
    while at + 12 <= len(png):
        size, kind = struct.unpack(">I", png[at : at + 4])[0], png[at + 4 : at + 8]
        data = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            header = data
        elif kind == b"IDAT":
            frames.append(data)
        elif kind == b"fdAT":
            frames.append(data[4:])
        at += 12 + size
    if not frames or not header:
        raise DataError("the animation has no frames")
    shown = frames[min(max(0, place), len(frames) - 1)]
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", shown) + _chunk(b"IEND", b"")


def downscale(frame: Frames, *, width: int) -> Frames:
    """Reduce `[height, width, 3]` to at most `width` pixels across by means of whole blocks."""
    size = math.ceil(frame.shape[1] / width)
    if size < 2:
        return frame
    rows, columns = frame.shape[0] // size, frame.shape[1] // size
    whole = frame[: rows * size, : columns * size]
    total = np.zeros((rows, columns, 3), np.uint32)
    for place in np.ndindex(size, size):  # many times faster than a mean over two axes of a view
        total += whole[place[0] :: size, place[1] :: size]
    return (total // size**2).astype(np.uint8)


def subsample_frames(frames: Sequence[Frames], most: int) -> list[Frames]:
    """Select at most `most` frames evenly, including the first and the last."""
    if len(frames) <= most:
        return list(frames)
    return [frames[place] for place in np.linspace(0, len(frames) - 1, most).round().astype(int)]
