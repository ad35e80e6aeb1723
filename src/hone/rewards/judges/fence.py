"""Fences around text that a judge grades, so that the text cannot speak as the judge's instructions.

A fence carries a nonce: a hash of all fenced text. An author cannot write it into the text, because that changes the
hash. Text that looks like a fence, or like a special token of a chat template, is escaped as well, without loss.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b

_ESCAPED = re.compile(r"<(?=\\*<\\*<)|<(?=\\*\|)|>(?=\\*>\\*>)|\|(?=\\*>)")
_UNESCAPED = re.compile(r"<\\(?=\\*<\\*<)|<\\(?=\\*\|)|>\\(?=\\*>\\*>)|\|\\(?=\\*>)")


def escape(text: str) -> str:
    r"""Text without `<<<`, `>>>`, `<|` and `|>`: a backslash is put between their characters.

    Text that holds such a backslash already gets one more, so that `unescape` restores every text.
    """
    return _ESCAPED.sub(lambda found: f"{found.group()}\\", text)


def unescape(text: str) -> str:
    """The text that `escape` was given."""
    return _UNESCAPED.sub(lambda found: found.group()[:-1], text)


def nonce_of(parts: Mapping[str, str]) -> str:
    """16 hexadecimal digits that depend on every part and its name."""
    digest = blake2b(digest_size=8)
    for name, text in parts.items():
        for piece in (name.encode(), text.encode("utf-8", "surrogatepass")):
            digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()


def fence(name: str, text: str, nonce: str) -> str:
    """`text`, escaped, between two lines that hold its name and the nonce."""
    return f"<<<{name} {nonce}\n{escape(text)}\n{name} {nonce}>>>"
