"""A learner by rounds: gathered answers are left alone, and every round may start from the first policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import State, integer, substate
from hone.learner.gradient import GradientLearner, TensorBatch
from hone.learner.round_source import RoundSchedule

P = TypeVar("P", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


@dataclass
class RoundLearner(Generic[P, B]):
    """A gradient learner that steps on the learning steps of a round only.

    With `initial`, the first of them begins from these weights, with a new optimizer and a new learning-rate schedule:
    a round then learns its own selection and inherits no more than the answers (Singh et al., ReST-EM, 2024).
    """

    learner: GradientLearner[P, B]
    schedule: RoundSchedule
    initial: Sequence[Tensor] | None = None
    """Copies of the trained tensors as they were when the run began (`trained_tensors`); None: rounds go on from the
    policy of the one before."""
    initial_sha256: str = ""
    """Sha256 of these weights, whole, where a rank steps a part of them; empty: `initial` is whole."""
    steps: int = 0

    @property
    def policy(self) -> P:
        return self.learner.policy

    def values(self, episodes: Episodes) -> Values:
        return self.learner.values(episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Learn, or leave gathered answers alone and return the metrics of the credit."""
        number, place = self.schedule.place(self.steps)
        self.steps += 1
        if place < self.schedule.collect_steps:
            return dict(credits.metrics)
        if place == self.schedule.collect_steps and number > 0 and self.initial is not None:
            self._restart(self.initial)
        return self.learner.update(episodes, credits)

    def state(self) -> State:
        first = {} if self.initial is None else {"first": self.initial_sha256 or tensors_sha256(self.initial)}
        return {"steps": self.steps, "learner": self.learner.state(), **first}

    def restore(self, state: State) -> None:
        """Raises DataError when the first policy is not the one that the run was started with."""
        now = None if self.initial is None else self.initial_sha256 or tensors_sha256(self.initial)
        if now is not None and state.get("first") != now:
            raise DataError(
                f"the first policy (model.path) is not what this run was started with (was {state.get('first')}, is "
                f"{now}), and every round starts from it; put the old one back, or start a new run"
            )
        self.steps = integer(state, "steps")
        self.learner.restore(substate(state, "learner"))

    @torch.no_grad()
    def _restart(self, initial: Sequence[Tensor]) -> None:
        for now, then in zip(_trained(self.learner), initial, strict=True):
            now.copy_(then)
        for phase in self.learner.phases:
            phase.optimizer.reset()
            if phase.after_step is not None:
                phase.after_step(self.policy)  # an adapter is merged again
        self.learner.updates = 0


def trained_tensors(learner: GradientLearner[P, B]) -> list[Tensor]:
    """Copies of the tensors that a learner steps, as they are now."""
    return [tensor.detach().clone() for tensor in _trained(learner)]


def tensors_sha256(tensors: Sequence[Tensor]) -> str:
    """Sha256 of the bytes of `tensors`, one after another."""
    digest = sha256()
    for tensor in tensors:
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _trained(learner: GradientLearner[P, B]) -> list[Tensor]:
    return [tensor for phase in learner.phases for tensor in phase.parameters.owned]
