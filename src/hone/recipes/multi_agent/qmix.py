"""QMIX: a team's value is a monotone mixture of its seats' values, by the state of the match (Rashid et al., 2018).

loss = (Q_tot(s, Q_1 .. Q_S) - [r + discount * Q_tot_target(s', best Q_1 .. Q_S)])^2 / 2; the weights of the mixture are
functions of the state and not negative, so that each seat's best action is the team's.
"""

from pydantic import Field

from hone.control.phases import TdAlgorithm
from hone.control.seats.team import TeamRunConfig
from hone.control.seats.training import evaluate_seats
from hone.core.config import new_default
from hone.run.job import RecipeSpec


class QmixAlgorithm(TdAlgorithm):
    """Discount factor, target networks and the mixer."""

    tau = new_default(0.01)
    mixer_units: int = Field(default=32, ge=1)
    """Hidden units of the mixer."""


class QmixConfig(TeamRunConfig):
    """A monotone mixture of the seats' values."""

    algorithm: QmixAlgorithm = QmixAlgorithm()  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Discount factor, target networks and the mixer."""

    state_mixer = True

    @property
    def mixer_units(self) -> int:
        return self.algorithm.mixer_units


ENTRY = RecipeSpec(
    summary="value decomposition: a monotone mixture of the seats' values, by the state of the match",
    paper="Rashid et al., QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent RL, 2018",
    config=QmixConfig,
    evaluate=evaluate_seats,
    limitation="cannot represent a team's value that falls with a seat's: no best action may depend on the others'.",
)
