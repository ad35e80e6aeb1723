"""Terms of the policy's own entropy: a bonus that keeps it up, and how strong the bonus is.

Belongs here: what needs the entropy `[n]` of each decision's distribution. Which high-entropy decisions alone carry the
gradient is chosen over the whole batch (`selection.high_entropy`) and applied by `terms.scaled`.
"""

from hone.objectives.ratios import at_least_float32
from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms


def entropy_bonus(entropy: PerDecision) -> LossTerms:
    """-H per decision, `entropy` in nats with gradient; add it with a weight: `add_terms(loss, bonus, weight=0.001)`.

    The published default weight is 0 everywhere but in classic PPO (0.01). Not proportional to the advantage.
    """
    return LossTerms(
        loss=-at_least_float32(entropy),
        compute_metrics=lambda: {"policy/entropy_nats": at_least_float32(entropy).detach()},
    )


def adapt_entropy_coef(weight: float, entropy_nats: float, *, target_nats: float = 0.2, step: float = 0.005) -> float:
    """The bonus's next weight: up by `step` while the measured entropy is at most the target, else down, never below 0.

    A controller after Skywork-OR1 (He et al., 2025); its target is 0.2 nats, its step is the user's to tune.
    """
    return weight + step if entropy_nats <= target_nats else max(0.0, weight - step)
