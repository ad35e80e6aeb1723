"""The functions that score an answer, and their limits."""

from typing import Literal

from pydantic import Field, JsonValue

from hone.core.config import Config


class RewardFunction(Config):
    """One function that scores answers."""

    use: str = Field(min_length=1)
    """`path/to/file.py:name`, `package.module:name`, or a built-in one: `exact_match`, `math_answer`,
    `reasoning_gym`."""
    weight: float = 1.0
    """Factor of its score in the sum over all functions."""
    unit: Literal["sample", "group"] = "sample"
    """Smallest part of a batch that one call may get. With `sample` a batch is cut anywhere; `group` keeps the answers
    to one prompt together, for functions that compare them."""
    bounds: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """Lowest and highest valid score; a score outside stops the run."""
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the function by name in each call."""


class RewardsConfig(Config):
    """All functions that score an answer, and the processes that run them."""

    functions: list[RewardFunction] = Field(min_length=1)
    """Their weighted sum is the reward."""
    workers: int = Field(default=2, ge=1, le=256)
    """Processes that run them at the same time."""
    deadline_s: float = Field(default=10.0, gt=0)
    """Seconds of wall time that one answer may take; then the process is killed and the answer has no score."""
    start_deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that a worker may take to import the functions."""
    memory_bytes: int | None = Field(default=None, ge=2**26)
    """Address space of each worker; None for no limit."""
    missing_allowed: float = Field(default=0.05, ge=0, le=1)
    """Share of the last `missing_window` answers that may lack a score before the run stops."""
    missing_window: int = Field(default=200, ge=1)
    """Answers over which the share is taken."""
    max_unscored_batches: int = Field(default=3, ge=1)
    """Batches in a row without a single score after which the run stops."""
