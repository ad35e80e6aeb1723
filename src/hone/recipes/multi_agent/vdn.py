"""VDN: a team's value is the sum of its seats' values (Sunehag et al., 2018).

loss = (sum_i Q_i(o_i, a_i) - [r + discount * sum_i Q_i_target(o_i', best a_i)])^2 / 2, with one network for all seats.
"""

from hone.control.seats.team import TeamRunConfig
from hone.control.seats.training import evaluate_seats
from hone.run.job import RecipeSpec


class VdnConfig(TeamRunConfig):
    """A sum of the seats' values."""


ENTRY = RecipeSpec(
    summary="value decomposition: a team's value is the sum of its seats' values",
    paper="Sunehag et al., Value-Decomposition Networks for Cooperative Multi-Agent Learning, 2018",
    config=VdnConfig,
    evaluate=evaluate_seats,
    limitation="cannot represent a seat's value that depends on the actions of others: the two-step game pays 7 of 8.",
)
