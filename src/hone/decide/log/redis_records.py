"""Records as a Redis server holds them: one text of bytes, with digests in place of the parts that records share."""

import struct
from hashlib import blake2b
from typing import Final

from hone.decide.log.arrivals import StoredRow
from hone.decide.log.codec import EncodedRecord, encode_actions, encode_labels

HEAD: Final = struct.Struct("<cd16s16sII")
"""Kind (d, o), at_s, digests of the actions and of the labels, bytes of the decision's id and of the unit."""


def pack_record(one: EncodedRecord) -> tuple[bytes, bytes]:
    """The record as the server holds it, and the digest of its actions (empty: an outcome)."""
    decision, unit = one.decision.encode(), b"" if one.unit is None else one.unit.encode()
    actions = b"" if one.actions is None else part_digest(encode_actions(one.actions))
    kind = b"o" if one.unit is None else b"d"
    head = HEAD.pack(kind, one.at_s, actions, part_digest(encode_labels(one.labels)), len(decision), len(unit))
    return head + decision + unit + one.body, actions


def stored_row(data: bytes) -> StoredRow:
    """The record's columns, with digests in place of its shared parts."""
    kind, at_s, actions, labels, decision, unit = HEAD.unpack_from(data)
    begin = HEAD.size
    middle, end = begin + decision, begin + decision + unit
    is_decision = kind == b"d"
    return StoredRow(
        0, 0, at_s, data[begin:middle].decode(), data[middle:end].decode() if is_decision else None,
        actions if is_decision else None, labels, data[end:],
    )  # fmt: skip


def place_of(value: bytes) -> tuple[str, str]:
    """Number of the source and seq of an entry of the stream."""
    number, _, seq = text_of(value).partition(":")
    return number, seq


def position_of(entry: str) -> int:
    """Position of a stream's entry: both halves of its id in one number."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds) << 64 | int(number)


def entry_id(position: int) -> str:
    """Id of the entry at a position."""
    return f"{position >> 64}-{position & (2**64 - 1)}"


def part_digest(data: bytes) -> bytes:
    """Digest of a shared part -> 16 bytes."""
    return blake2b(data, digest_size=16).digest()


def text_of(value: str | bytes) -> str:
    """A reply as text."""
    return value if isinstance(value, str) else value.decode()
