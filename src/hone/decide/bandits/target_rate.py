"""Dynamic difficulty: a policy that chooses the level at which a player succeeds at a target rate.

A level is an opponent with a rating, so that a player's chance to pass it is that of a game between the two (Weng and
Lin, 2011). The policy is a distribution over the levels, centred where that chance is the target: every choice has a
log-probability, and the log of a game answers what another target would have done.
"""

import numpy as np

from hone.core.decisions import ActionSet, Floats
from hone.core.errors import ConfigError, DataError
from hone.decide.bandits.policy import BanditPolicy, PolicyContents, PolicyDistribution


class TargetRatePolicy(BanditPolicy):
    """Policy over K levels with p_k proportional to exp(-(chance_k - target)^2 / (2 spread^2)).

    chance_k = 1 / (1 + exp(-(m - m_k) / sqrt(s^2 + s_k^2 + 2 beta^2))) for a player with the rating (m, s), the first
    two features of the context, and levels with ratings (m_k, s_k). Scores are the chances. Raises ConfigError for
    levels that are none, a target outside of (0, 1), and a spread or beta that is not above 0.
    """

    kind = "target_rate"

    def __init__(self, levels: Floats, *, target: float = 0.65, spread: float = 0.03, beta: float = 25 / 6) -> None:
        if levels.ndim != 2 or levels.shape[1] != 2 or not len(levels) or not np.isfinite(levels).all():
            raise ConfigError(f"levels must be [K, 2], a mean and a deviation each, got shape {levels.shape}")
        if not (0 < target < 1 and spread > 0 and beta > 0):
            raise ConfigError(
                f"target must be between 0 and 1, spread and beta above 0, got {target:g}, {spread:g} and {beta:g}"
            )
        self.levels = levels
        self.target, self.spread, self.beta = float(target), float(spread), float(beta)

    def distribution(self, context: Floats, actions: ActionSet) -> PolicyDistribution:
        """Raises DataError for another number of actions than of levels, and for a context without a rating."""
        logp, chances = self.distribution_rows(context[None], actions)
        return PolicyDistribution(logp[0], None if chances is None else chances[0])

    def distribution_rows(self, contexts: Floats, actions: ActionSet) -> PolicyDistribution:
        if len(actions) != len(self.levels) or contexts.shape[1] < 2:
            raise DataError(
                f"{len(actions)} actions and {contexts.shape[1]} features; this policy has {len(self.levels)} levels, "
                "and the first two features are the mean and the deviation of the player's rating"
            )
        variance = contexts[:, 1:2] ** 2 + self.levels[:, 1] ** 2 + 2 * self.beta**2
        chances = 1 / (1 + np.exp(np.minimum((self.levels[:, 0] - contexts[:, :1]) / np.sqrt(variance), 700.0)))
        logits = -0.5 * ((chances - self.target) / self.spread) ** 2
        logits -= logits.max(axis=1, keepdims=True)
        return PolicyDistribution(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), chances)

    def contents(self) -> PolicyContents:
        settings = {"target": self.target, "spread": self.spread, "beta": self.beta}
        return PolicyContents(settings=settings, arrays={"levels": self.levels})

    @classmethod
    def from_contents(cls, contents: PolicyContents) -> "TargetRatePolicy":
        return cls(
            contents.array("levels", None, 2), target=contents.number("target"), spread=contents.number("spread"),
            beta=contents.number("beta"),
        )  # fmt: skip
