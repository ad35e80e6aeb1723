"""Requests to the sandbox: a length of four bytes, then so many bytes of JSON.

A reader takes exactly one request from the pipe, so that the next one is never in its memory.
"""

import os
import struct

_LENGTH = struct.Struct("!I")
MAX_REQUEST_BYTES = 1 << 26


def frame(data: bytes) -> bytes:
    """A request as it is sent. Raises ValueError for one of more than 64 MiB."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ValueError(f"{len(data)} bytes are more than the {MAX_REQUEST_BYTES} of a request")
    return _LENGTH.pack(len(data)) + data


def read_frame(descriptor: int) -> bytes | None:
    """The next request; None at the end of the channel."""
    head = _read(descriptor, _LENGTH.size)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0])


def _read(descriptor: int, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
