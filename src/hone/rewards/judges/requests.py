"""Requests to a judge and their replies, with the content hash that names both in the cache."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from hone.core.conversation import Message
from hone.rewards.judges.verdicts import VerdictField, VerdictFormat

_MOST_SEED = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """One question to a judge: everything that its reply depends on beside the model."""

    instructions: str
    """The system message."""
    question: str
    """The user's message."""
    fields: tuple[VerdictField, ...] = ()
    """Fields of the verdict; none for free text."""
    form: VerdictFormat = "json"
    temperature: float = 0.0
    max_tokens: int = 512
    repeat: str = ""
    """Distinguishes repeated questions, so that each gets a reply of its own."""

    @property
    def messages(self) -> list[Message]:
        """Messages of a chat."""
        return [
            {"role": "system", "content": self.instructions},
            {"role": "user", "content": self.question},
        ]

    def key(self, model: str) -> str:
        """Hash of the content and of the judge's model: 64 hexadecimal digits."""
        content = [
            model,
            self.instructions,
            self.question,
            [repr(field) for field in self.fields],
            self.form,
            repr(self.temperature),
            self.max_tokens,
            self.repeat,
        ]
        return sha256(json.dumps(content).encode()).hexdigest()

    def seed(self, model: str) -> int:
        """Seed of the reply, in [0, 2^31): a function of the content only."""
        return int(self.key(model)[:16], 16) % _MOST_SEED

    def again(self, repeat: str, *, temperature: float | None = None) -> "JudgeRequest":
        """The same question once more, for another reply."""
        return replace(self, repeat=repeat, temperature=self.temperature if temperature is None else temperature)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """A judge's reply."""

    text: str
    finish_reason: str = "stop"
    """Reason as the server gives it; `length` if the reply was cut off."""
    read_tokens: int = 0
    """Tokens of the prompt."""
    written_tokens: int = 0
    """Tokens of the reply."""

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.read_tokens + self.written_tokens

    def to_json(self) -> dict[str, object]:
        """The reply as a JSON object."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "read_tokens": self.read_tokens,
            "written_tokens": self.written_tokens,
        }


def reply_from_json(value: object) -> JudgeReply | None:
    """The reply of `JudgeReply.to_json`; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    match dict(value.items()):
        case {
            "text": str(text),
            "finish_reason": str(reason),
            "read_tokens": int(read),
            "written_tokens": int(written),
        }:
            return JudgeReply(text=text, finish_reason=reason, read_tokens=read, written_tokens=written)
        case _:
            return None
