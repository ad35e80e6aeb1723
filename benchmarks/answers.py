"""The reward of the language benchmarks, in a file of its own that peers can import."""


def right(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """1 where the text behind the last `=` or `;` is the answer."""
    del columns
    texts = [text.replace("=", ";").split(";")[-1].strip() for text in completions]
    return [float(text == wanted) for text, wanted in zip(texts, answer, strict=True)]
