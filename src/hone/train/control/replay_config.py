"""How much is remembered, how much is looked at again, and when: `[replay]` of every recipe that replays.

Belongs here: the keys, so that they are called alike everywhere. The memories themselves are in `hone.replay`.
"""

from pydantic import Field

from hone.core.config import Config


class ReplayConfig(Config):
    """Replay buffer: capacity, batch size and warm-up; updates follow every step of the environments."""

    batch: int = Field(default=256, ge=1)
    """Transitions per update."""
    capacity: int = Field(default=1_000_000, ge=1)
    """Capacity of the replay buffer, transitions."""
    warmup: int = Field(default=100, ge=1)
    """Decisions before the first update; a deterministic policy takes them uniformly at random."""


class IterationReplayConfig(Config):
    """Replay buffer: capacity, batch size and steps per iteration; many steps, then many updates."""

    collect: int = Field(default=16, ge=1)
    """Steps of each environment per iteration; `learner.updates_per_iteration` updates follow."""
    batch: int = Field(default=64, ge=1)
    """Transitions per update."""
    capacity: int = Field(default=100_000, ge=1)
    """Capacity of the replay buffer, transitions."""
    warmup: int = Field(default=1000, ge=1)
    """Decisions taken at random before the first update."""
