"""REINFORCE with the optimal token baseline: at each position the baseline of least variance (as in verl).

A_t = G_t - B_t, B_t = sum of G W / sum of W over the group's answers that reach position t, W the squared gradient of
log pi with respect to the logits, summed up to t: 1 - 2 pi + sum over the vocabulary of pi^2; loss = -A log pi, summed
over an answer's tokens, averaged over answers, over `max_tokens`.
"""

from functools import partial

from hone.credit.reinforce import optimal_token_baseline
from hone.objectives.policy import reinforce
from hone.objectives.weights import constant_length
from hone.train.job import Parts
from hone.train.text.loss import Loss
from hone.train.text.loss_adapters import policy_gradient
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, one_update, text_entry, untruncated


class OptimalTokenBaseline(TextRl):
    """REINFORCE with the optimal token baseline."""

    requires = (groups, one_update, untruncated)


def method(config: OptimalTokenBaseline, policies: Policies) -> Method:
    scheme = partial(constant_length, length=config.rollout.max_tokens)
    loss = Loss(objective=policy_gradient, scheme=scheme, proportional=True)
    credit = partial(optimal_token_baseline, collision=policies.collision())
    return Method(credit=credit, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="REINFORCE with a baseline of least variance at each position of an answer",
    source="optimal token baseline, as in verl, 2026",
    config=OptimalTokenBaseline,
    method=method,
    parts=Parts(credit=(optimal_token_baseline,), loss=(reinforce,), weights=(constant_length,)),
    limitation="beyond the length of all other answers nothing is learned; one more forward pass over the whole "
    "vocabulary; one update per rollout.",
)
