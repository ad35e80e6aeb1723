"""The program inside an answer."""

import re

from hone.rewards.answers import extract_answer

_BLOCK = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL | re.IGNORECASE)


def extract_program(completion: str, pattern: str = "") -> str:
    """The program in a completion: the last fenced block of Python, else all of it; with a pattern its last match."""
    if pattern:
        return extract_answer(completion, pattern)
    blocks = _BLOCK.findall(completion)
    return blocks[-1] if blocks else completion
