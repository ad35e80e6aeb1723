"""From scores to advantages, as a config of recipes names it: what is compared, baseline, divisor, whitening."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.credit.group import Center, Ddof, Scale, group_relative
from hone.credit.grouping import CreditFunction, turn_ends
from hone.credit.reinforce import whitened, whitened_answers, whitened_rewards
from hone.credit.turns import per_turn, step_group_relative, with_turn_discount

Compared = Literal["dialogue", "turn"]
DecisionUnit = Literal["token", "turn"]
Whitening = Literal["none", "answers", "decisions"]
RewardWhitening = Literal["none", "scale", "standardise"]


class AdvantageConfig(Config):
    """Advantages of whole answers or dialogues: (score - baseline) / (deviation + epsilon), and a whitening of the
    result; or of the turns of dialogues."""

    compare: Compared = "dialogue"
    """What is compared within a group: whole dialogues (single answers are such), by their scores; or turns, by their
    rewards: (reward - mean) / (deviation + epsilon) of all turns of the group, summed over the turn and those after
    it."""
    turn_discount: float = Field(default=1.0, ge=0, le=1)
    """Discount factor (gamma) of a turn: of its reward in the score of a dialogue, so that what is reached in fewer
    turns is worth more; with `compare = "turn"`, of later turns in the sum."""

    center: Center = "group"
    """Baseline of a score: the mean of its group, of the group's other answers, of all scores of the step, or none."""
    scale: Scale = "group"
    """Divisor of the centred scores: the group's standard deviation, that of the batch's scores, that of the centred
    scores of the batch (`centred_batch`) or of the group (`centred_group`: both AReaL's, about the baseline), or
    none."""
    ddof: Ddof = 1
    """Degrees of freedom taken from each standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to each standard deviation before it divides."""
    whiten: Whitening = "none"
    """Standardise the advantages once more over the step: over its answers, or over its tokens (`decisions`), where
    long answers count more; none is off."""

    @model_validator(mode="after")
    def _turns_have_one_normalisation(self) -> Self:
        default = {name: type(self).model_fields[name].default for name in ("center", "scale", "ddof")}
        own = {"center": self.center, "scale": self.scale, "ddof": self.ddof}
        if self.compare == "turn" and own != default:
            changed = ", ".join(f"{name} = {value!r}" for name, value in own.items() if value != default[name])
            raise ValueError(
                'compare = "turn" takes the mean and the deviation (ddof 1) of the rewards of all turns of a group; '
                f"leave {changed} out, which are for whole dialogues"
            )
        return self


_TURN_DISCOUNTS: Final[Mapping[bool, Callable[..., CreditFunction]]] = {
    False: lambda credit, discount: credit,  # noqa: ARG005 - both forms are called alike
    True: lambda credit, discount: partial(with_turn_discount, credit=credit, discount=discount),
}
"""By whether there is a discount."""


def _compare_dialogues(config: AdvantageConfig) -> CreditFunction:
    credit = partial(group_relative, center=config.center, scale=config.scale, ddof=config.ddof, epsilon=config.epsilon)
    return _TURN_DISCOUNTS[config.turn_discount < 1](credit, discount=config.turn_discount)


_COMPARISONS: Final[Mapping[Compared, Callable[[AdvantageConfig], CreditFunction]]] = {
    "dialogue": _compare_dialogues,
    "turn": lambda config: partial(
        step_group_relative, step_ends=turn_ends, discount=config.turn_discount, epsilon=config.epsilon
    ),
}
_WHITENINGS: Final[Mapping[str, Callable[..., CreditFunction]]] = {
    "none": lambda credit, ddof, epsilon: credit,  # noqa: ARG005 - all forms are called alike
    "answers": lambda credit, ddof, epsilon: partial(whitened_answers, credit=credit, ddof=ddof, epsilon=epsilon),
    "decisions": lambda credit, ddof, epsilon: partial(whitened, credit=credit, ddof=ddof, epsilon=epsilon),
}
_DECISION_UNITS: Final[Mapping[DecisionUnit, Callable[[CreditFunction], CreditFunction]]] = {
    "token": lambda credit: credit,
    "turn": lambda credit: partial(per_turn, credit=credit),
}
_REWARD_WHITENINGS: Final[Mapping[str, Callable[[CreditFunction], CreditFunction]]] = {
    "none": lambda credit: credit,
    "scale": lambda credit: partial(whitened_rewards, credit=credit),
    "standardise": lambda credit: partial(whitened_rewards, credit=credit, shift=True),
}


def group_advantage(config: AdvantageConfig) -> CreditFunction:
    """Group-relative advantages with the comparison, baseline, divisor and whitening of a config."""
    return with_whitening(_COMPARISONS[config.compare](config), config.whiten, ddof=config.ddof, epsilon=config.epsilon)


def with_decision_unit(credit: CreditFunction, unit: DecisionUnit) -> CreditFunction:
    """The credit of rewards with tokens or turns as decisions."""
    return _DECISION_UNITS[unit](credit)


def with_whitening(
    credit: CreditFunction, whiten: Whitening, *, ddof: Ddof = 1, epsilon: float = 1e-4
) -> CreditFunction:
    """The credit, standardised over the step's answers or tokens, or as it is."""
    return _WHITENINGS[whiten](credit, ddof=ddof, epsilon=epsilon)


def with_whitened_rewards(credit: CreditFunction, whitening: RewardWhitening) -> CreditFunction:
    """The credit of rewards that are whitened over the step's tokens first."""
    return _REWARD_WHITENINGS[whitening](credit)
