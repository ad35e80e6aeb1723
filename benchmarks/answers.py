"""The rewards of the language benchmarks, in a file of its own that peers can import."""

import zlib
from collections.abc import Mapping, Sequence


def right(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 where the text behind the last `=` or `;` is the answer."""
    del columns
    texts = [text.replace("=", ";").split(";")[-1].strip() for text in completions]
    return [float(text == wanted) for text, wanted in zip(texts, answer, strict=True)]


def even(completions: Sequence[str | Sequence[Mapping[str, str]]], **columns: object) -> list[float]:
    """1 for about half of all texts, whatever they say: a model that knows nothing has something to learn from. An
    answer in a conversation is its turns."""
    del columns
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [float(zlib.crc32(text.encode()) % 2 == 0) for text in texts]
