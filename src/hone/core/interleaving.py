"""Versions of the policy that sampled the tokens of one answer, where weights change while answers are written."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hone.core.generation import Completion

AnswerKey: TypeAlias = tuple[str, int, int]
"""Request id, turn and sample of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVersions:
    """Versions of one answer's tokens, as runs of equal versions."""

    starts: tuple[int, ...]
    """First token of each run, ascending from 0."""
    versions: tuple[int, ...]
    """Version that sampled the tokens of each run."""
    reread_at: tuple[int, ...] = ()
    """Tokens before which the whole text was read again by newer weights."""

    def version_at(self, token: int) -> int:
        """Version that samples token number `token`."""
        return self.versions[bisect_right(self.starts, token) - 1]


def answer_versions(completion: Completion) -> AnswerVersions:
    """The versions of a completion's tokens."""
    starts = np.append(0, np.flatnonzero(np.diff(completion.version)) + 1)
    return AnswerVersions(
        starts=tuple(starts.tolist()),
        versions=tuple(completion.version[starts].tolist()),
        reread_at=completion.reread_at,
    )
