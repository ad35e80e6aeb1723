"""Chosen answers that become less likely while their pairs are told apart better: noticed, and said in one sentence.

A loss on pairs looks at the margin. It can grow while both answers of a pair lose probability to answers that stand in
no pair; the accuracy on pairs does not show it.
"""

from dataclasses import dataclass

from hone.core.credit import Metrics
from hone.core.state import State, integer, number

FIRST_STEPS = 5
"""Steps whose means are the beginning that later ones are compared with."""
WEIGHT = 0.2
"""Weight of the newest step in the running means."""
FALL_NATS = 1.0
RISE = 0.05
"""What chosen answers must have lost, and the accuracy gained, for the sentence."""


@dataclass
class PreferenceWatch:
    """Running means of a preference run's `chosen_nats` and `accuracy`; part of a run's state."""

    steps: int = 0
    first_nats: float = 0.0
    first_accuracy: float = 0.0
    nats: float = 0.0
    accuracy: float = 0.0
    was_said: bool = False

    def see(self, step: int, metrics: Metrics) -> list[str]:
        """Take in a step; the sentence, at the first step at which it holds."""
        if "preference/chosen_nats" not in metrics or "preference/accuracy" not in metrics:
            return []
        nats, accuracy = metrics["preference/chosen_nats"], metrics["preference/accuracy"]
        self.steps += 1
        if self.steps <= FIRST_STEPS:
            self.first_nats += (nats - self.first_nats) / self.steps
            self.first_accuracy += (accuracy - self.first_accuracy) / self.steps
            self.nats, self.accuracy = self.first_nats, self.first_accuracy
            return []
        self.nats += WEIGHT * (nats - self.nats)
        self.accuracy += WEIGHT * (accuracy - self.accuracy)
        if self.was_said or not self._falls:
            return []
        self.was_said = True
        return [f"step {step}: {self._words()}"]

    def summary(self) -> list[str]:
        """The sentence, where it holds at the end."""
        words = self._words()
        return [words[0].upper() + words[1:]] if self._falls else []

    @property
    def _falls(self) -> bool:
        fell, rose = self.first_nats - self.nats, self.accuracy - self.first_accuracy
        return self.steps > FIRST_STEPS and fell > FALL_NATS and rose > RISE

    def _words(self) -> str:
        fell = self.first_nats - self.nats
        return (
            f"chosen answers became {fell:.1f} nats less likely while the accuracy on pairs rose from "
            f"{self.first_accuracy:.2f} to {self.accuracy:.2f}: probability moves to answers that are in no pair. "
            'Judge the policy on its own samples; a larger beta, the recipe rpo, or algorithm.loss.kind = "nca" or '
            '"apo_zero" keeps chosen answers likely'
        )

    def state(self) -> State:
        """State for a checkpoint."""
        return {
            "steps": self.steps,
            "first_nats": self.first_nats,
            "first_accuracy": self.first_accuracy,
            "nats": self.nats,
            "accuracy": self.accuracy,
            "was_said": int(self.was_said),
        }

    def restore(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.steps, self.was_said = integer(state, "steps"), bool(integer(state, "was_said"))
        self.first_nats, self.first_accuracy = number(state, "first_nats"), number(state, "first_accuracy")
        self.nats, self.accuracy = number(state, "nats"), number(state, "accuracy")
