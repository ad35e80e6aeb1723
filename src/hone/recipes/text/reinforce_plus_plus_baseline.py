"""REINFORCE++-baseline: answers are compared within their group, and whitened over the batch (Hu, 2025).

A = whitened over the step's tokens of R - mean of the group; loss = -min(r A, clip(r, 1 - low, 1 + high) A), every
token alike.
"""

from hone.credit.reinforce import reinforce_plus_plus_baseline
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss_adapters import Clip, clip_loss
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry


class ReinforcePlusPlusBaseline(TextRl):
    """REINFORCE++ with a baseline per group."""

    requires = (groups,)
    algorithm: Clip = Clip()
    """Clip widths and penalties."""


def method(config: ReinforcePlusPlusBaseline, policies: Policies) -> Method:
    chosen = config.algorithm
    loss = clip_loss(chosen, token_mean)
    return Method(credit=reinforce_plus_plus_baseline, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="scores centred in their group and whitened over the batch, PPO's clip",
    source="Hu, REINFORCE++, 2025",
    config=ReinforcePlusPlusBaseline,
    method=method,
    parts=Parts(credit=(reinforce_plus_plus_baseline,), loss=(clipped, kl_penalty), weights=(token_mean,)),
    limitation="one deviation for all questions: those with the widest scores weigh most; groups of equal scores teach "
    "nothing.",
)
