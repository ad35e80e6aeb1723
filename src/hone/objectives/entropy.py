"""The entropy bonus, on the entropy `[n]` of each decision's distribution.

To restrict the gradient to high-entropy decisions, select them over the whole batch (`selection.high_entropy_mask`) and
apply the mask with `terms.scale_terms`.
"""

from hone.objectives.ratios import at_least_float32
from hone.objectives.shapes import PerDecision
from hone.objectives.terms import LossTerms


def entropy_bonus(entropy: PerDecision) -> LossTerms:
    """-H per decision, `entropy` in nats with gradient; add it with a weight: `add_terms(loss, bonus, weight=0.001)`.

    The published default weight is 0 except in classic PPO (0.01). Not proportional to the advantage.
    """
    return LossTerms(
        loss=-at_least_float32(entropy),
        compute_metrics=lambda: {"policy/entropy_nats": at_least_float32(entropy).detach()},
    )
