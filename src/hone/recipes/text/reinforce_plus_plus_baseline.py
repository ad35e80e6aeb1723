"""REINFORCE++-baseline: answers are compared within their group, and whitened over the batch (Hu, 2025).

A = whitened over the step's tokens of R - mean of the group; loss = -min(r A, clip(r, 1 - low, 1 + high) A), every
token alike.
"""

from hone.credit.reinforce import reinforce_plus_plus_baseline
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class ReinforcePlusPlusBaselineConfig(TextGradientRunConfig):
    """REINFORCE++ with a baseline per group."""

    requires = (require_groups,)
    algorithm: ClipConfig = ClipConfig()
    """Clip widths and penalties."""


def method(config: ReinforcePlusPlusBaselineConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    loss = clip_loss(chosen, token_mean)
    return TextMethod(credit=reinforce_plus_plus_baseline, learner=gradient_learner(config, policies, loss))


ENTRY = text_recipe_spec(
    summary="scores centred in their group and whitened over the batch, PPO's clip",
    paper="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusBaselineConfig,
    method=method,
    parts=RecipeParts(
        credit=(reinforce_plus_plus_baseline,), loss=(clipped_surrogate, kl_penalty), weights=(token_mean,)
    ),
    limitation="one deviation for all questions: those with the widest scores weigh most; groups of equal scores teach "
    "nothing.",
)
