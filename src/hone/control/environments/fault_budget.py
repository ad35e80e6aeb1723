"""The number of environment processes that may be lost before a run stops, and the message of a loss. A pure state
machine."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from hone.core.errors import LostResourceError
from hone.core.state import State, array, integer


class LostTooOftenError(LostResourceError):
    """Environments took their processes down more often than `env.faults_allowed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvProcessLoss:
    """The loss of an environment process that died or was killed."""

    env_range: str
    """`environment 3`, or `environments 0 to 7` where they are stepped as one."""
    seeds: str
    """Seeds of the last reset: `seed 17`, or `seeds 17, 18 ...`."""
    step: int
    """Steps since that reset."""
    reason: str
    """Reason for the end of the process."""
    lost_episodes: int
    """Number of running episodes that were lost."""
    timeout: bool = False
    """True if it was killed because no answer came before the deadline."""

    def message(self) -> str:
        """The loss as one line."""
        others = f" with the running episodes of {self.lost_episodes} environments" if self.lost_episodes > 1 else ""
        return f"{self.env_range} ({self.seeds}, step {self.step} since then){others} was lost: {self.reason}"


@dataclass(kw_only=True)
class FaultBudget:
    """Allows `allowed` losses within the last `window` steps; one more stops the run."""

    allowed: int
    window: int
    steps: int = 0
    """Environment steps so far."""
    losses: int = 0
    """Losses since the run began."""
    recent: deque[int] = field(default_factory=deque[int])
    """Steps at which processes were lost, within the window."""

    def count_step(self) -> None:
        """Count one environment step."""
        self.steps += 1

    def count_loss(self, loss: EnvProcessLoss) -> None:
        """Count a loss. Raises LostTooOftenError with the last one when they are too many."""
        self.losses += 1
        self.recent.append(self.steps)
        while self.recent and self.recent[0] <= self.steps - self.window:
            self.recent.popleft()
        if len(self.recent) > self.allowed:
            times, steps = _with_unit(len(self.recent), "time"), _with_unit(self.window, "step")
            raise LostTooOftenError(
                f"processes of environments were lost {times} within {steps}, allowed are {self.allowed} "
                f"(env.faults_allowed); the last: {loss.message()}",
                "fix the environment, then resume from the newest checkpoint with --resume",
            )

    def state(self) -> State:
        return {"steps": self.steps, "losses": self.losses, "recent": np.array(self.recent, dtype=np.int64)}

    def restore(self, state: State) -> None:
        self.steps, self.losses = integer(state, "steps"), integer(state, "losses")
        self.recent = deque(array(state, "recent").tolist())


def _with_unit(count: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
