"""Logged decisions beside a target policy: the rows that every estimator of single decisions reads."""

from dataclasses import dataclass, replace

import numpy as np

from hone.core.decisions import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFeedback:
    """n logged decisions with known rewards, and the target policy's distribution in each of their contexts."""

    contexts: Floats
    """`[n, d]`."""
    action: Ints
    """`[n]` executed action, below K."""
    logp: Floats
    """`[n]` nats: log-probability of the executed action under the behaviour policy."""
    reward: Floats
    """`[n]`."""
    target_logp: Floats
    """`[n, K]` nats: the target policy's distribution; -inf for an action that is not offered or never taken."""
    unit: Ints
    """`[n]` numbers of the units. Rows of one unit may depend on each other; units are independent."""
    behaviour_logp: Floats | None = None
    """`[n, K]` nats: the behaviour policy's whole distribution; None: only the executed actions' is known."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def weight(self) -> Floats:
        """Importance weights `[n]`: target / behaviour probability of the executed action."""
        return np.exp(self.target_logp[np.arange(len(self)), self.action] - self.logp)

    @property
    def target(self) -> Floats:
        """Target probabilities `[n, K]`."""
        return np.exp(self.target_logp)

    def rows(self, chosen: Ints) -> "LoggedFeedback":
        """Some of the rows, by their numbers."""
        known = self.behaviour_logp
        return replace(
            self,
            contexts=self.contexts[chosen],
            action=self.action[chosen],
            logp=self.logp[chosen],
            reward=self.reward[chosen],
            target_logp=self.target_logp[chosen],
            unit=self.unit[chosen],
            behaviour_logp=None if known is None else known[chosen],
        )


def effective_sample_size(weight: Floats) -> float:
    """Effective sample size (sum w)^2 / sum w^2 of weights `[n]`: the rows of equal weight that are worth as much
    (Kish, 1965). 0 where all weights are 0."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares > 0 else 0.0
