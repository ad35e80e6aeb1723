"""An answer in one packet. uvicorn writes the head of an answer and its body one after the other, which wakes the
client twice and costs the server a system call more.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class JoinedWrites(asyncio.Transport):
    """A connection that holds the head of an answer back until its body, or the end."""

    def __init__(self, inner: asyncio.Transport) -> None:
        super().__init__()
        self._inner = inner
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write, with a head that waits in front; a head itself waits, unless more heads follow it (100 Continue)."""
        piece = bytes(data)
        if self._head:
            piece, self._head = self._head + piece, b""
        elif piece.startswith(b"HTTP/1.1 ") and piece.endswith(b"\r\n\r\n") and piece[9:10] != b"1":
            self._head = piece
            return
        self._inner.write(piece)

    def close(self) -> None:
        """Write what waits, and close."""
        if self._head and not self._inner.is_closing():
            self._inner.write(self._head)
        self._head = b""
        self._inner.close()

    def is_closing(self) -> bool:
        """True once it is closed or about to be."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the connection knows of itself: `socket`, `peername` ..."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop reading."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to another protocol."""
        self._inner.set_protocol(protocol)

    def abort(self) -> None:
        """Close at once; what waits is lost."""
        self._inner.abort()


class OnePacketProtocol(HttpToolsProtocol):
    """uvicorn's protocol over `JoinedWrites`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection."""
        super().connection_made(JoinedWrites(cast("asyncio.Transport", transport)))
