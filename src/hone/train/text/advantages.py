"""From scores to advantages, as a config of recipes names it: baseline, divisor, whitening."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal

from pydantic import Field

from hone.core.config import Config
from hone.credit.columns import CreditFunction
from hone.credit.group import Center, Ddof, Scale, group_relative
from hone.credit.reinforce import whitened, whitened_answers, whitened_rewards

Whitening = Literal["none", "answers", "decisions"]
RewardWhitening = Literal["none", "scale", "standardise"]


class AdvantageConfig(Config):
    """Advantages of whole answers: (score - baseline) / (deviation + epsilon), and a whitening of the result."""

    center: Center = "group"
    """Baseline of a score: the mean of its group, of the group's other answers, of all scores of the step, or none."""
    scale: Scale = "group"
    """Divisor of the centred scores: the group's standard deviation, that of the batch's scores, that of the batch's
    centred scores (`centred_batch`: AReaL), or none."""
    ddof: Ddof = 1
    """Degrees of freedom taken from each standard deviation: 1 for that of a sample, 0 for that of a population."""
    epsilon: float = Field(default=1e-6, ge=0)
    """Added to each standard deviation before it divides."""
    whiten: Whitening = "none"
    """Standardise the advantages once more over the step: over its answers, or over its tokens (`decisions`), where
    long answers count more; none is off."""


def unchanged(credit: CreditFunction, *, ddof: Ddof, epsilon: float) -> CreditFunction:
    """The credit itself: no whitening."""
    del ddof, epsilon
    return credit


def whitened_over_answers(credit: CreditFunction, *, ddof: Ddof, epsilon: float) -> CreditFunction:
    """The credit, standardised over the step's answers."""
    return partial(whitened_answers, credit=credit, ddof=ddof, epsilon=epsilon)


def whitened_over_decisions(credit: CreditFunction, *, ddof: Ddof, epsilon: float) -> CreditFunction:
    """The credit, standardised over the step's tokens."""
    return partial(whitened, credit=credit, ddof=ddof, epsilon=epsilon)


WHITENINGS: Final[Mapping[str, Callable[..., CreditFunction]]] = {
    "none": unchanged,
    "answers": whitened_over_answers,
    "decisions": whitened_over_decisions,
}


def group_advantage(config: AdvantageConfig) -> CreditFunction:
    """Group-relative advantages with the baseline, divisor and whitening of a config."""
    credit = partial(group_relative, center=config.center, scale=config.scale, ddof=config.ddof, epsilon=config.epsilon)
    return with_whitening(credit, config.whiten, ddof=config.ddof, epsilon=config.epsilon)


def with_whitening(
    credit: CreditFunction, whiten: Whitening, *, ddof: Ddof = 1, epsilon: float = 1e-4
) -> CreditFunction:
    """The credit, standardised over the step's answers or tokens, or as it is."""
    return WHITENINGS[whiten](credit, ddof=ddof, epsilon=epsilon)


def rewards_as_paid(credit: CreditFunction) -> CreditFunction:
    """The credit of the rewards as they are."""
    return credit


def scaled_rewards(credit: CreditFunction) -> CreditFunction:
    """The credit of rewards divided by their deviation around their mean."""
    return partial(whitened_rewards, credit=credit)


def standardised_rewards(credit: CreditFunction) -> CreditFunction:
    """The credit of rewards of mean 0 and deviation 1."""
    return partial(whitened_rewards, credit=credit, shift=True)


REWARD_WHITENINGS: Final[Mapping[str, Callable[[CreditFunction], CreditFunction]]] = {
    "none": rewards_as_paid,
    "scale": scaled_rewards,
    "standardise": standardised_rewards,
}


def with_whitened_rewards(credit: CreditFunction, whitening: RewardWhitening) -> CreditFunction:
    """The credit of rewards that are whitened over the step's tokens first."""
    return REWARD_WHITENINGS[whitening](credit)
