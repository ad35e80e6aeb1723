"""The model that a server offers: its name, tokenizer and context, and the fingerprint of each version."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hone.models.language.tokenizers import Tokenizer
from hone.text.serving.completions.token_text import TokenText
from hone.text.tools.formats import ToolFormat

_SHOWN: Final = 12
"""Digits of a hash in a fingerprint."""


def fingerprint(run: str, step: int | None, weight_hash: str) -> str:
    """`run@step-hash` of served weights; without the step where the folder is not a checkpoint's."""
    return f"{run}{'' if step is None else f'@{step}'}-{weight_hash[:_SHOWN]}"


@dataclass(eq=False, kw_only=True)
class ServedModel:
    """A model under its name."""

    name: str
    tokenizer: Tokenizer
    context: int
    """Most tokens of a prompt and its answer."""
    fingerprint_of: Callable[[int], str]
    """`system_fingerprint` of the weights of a version (`Completion.version`)."""
    tool_format: ToolFormat | None = None
    """Format in which the model calls tools; None: it has none."""
    token_text: TokenText = field(init=False)

    def __post_init__(self) -> None:
        self.token_text = TokenText(self.tokenizer)
