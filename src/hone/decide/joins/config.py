"""Rules of a join: the table `[join]` of a service file, and the options of `hone log`."""

from typing import Literal

from pydantic import Field

from hone.core.config import Config

JoinRule = Literal["sum", "first", "last", "max"]
"""Reward of a decision with several outcomes: their sum, the first, the last, or the greatest."""


class JoinConfig(Config):
    """How outcomes become the reward of their decision."""

    window_s: float = Field(default=86_400.0, gt=0)
    """Seconds after a decision in which its outcomes count. A later outcome makes a correction."""
    default: float = 0.0
    """Reward of a decision whose window closed without an outcome."""
    rule: JoinRule = "sum"
    """Reward of several outcomes: `sum`, `first`, `last` or `max`."""
    kind: str = Field(default="reward", min_length=1)
    """Kind of the outcomes that are rewards; others are counted and left out."""
