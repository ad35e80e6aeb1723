"""Statistics that a small policy keeps beside its weights, and that every rank must have alike."""

from abc import ABC, abstractmethod

from torch import nn

from hone.core.state import State


class SharedStatistics(nn.Module, ABC):
    """A policy into which its source and its credit put statistics; a language model has none.

    Ranks take them up from rank 0 before an update: the buffers of the module, and `statistics`.
    """

    @abstractmethod
    def statistics(self) -> State:
        """What the source has put into the policy, such as the mean and scale of observations; {} if nothing."""

    @abstractmethod
    def take_statistics(self, given: State) -> None:
        """Take up another policy's `statistics()`."""
