"""Imitation: the loss of tokens that are to become likelier."""

from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.text.rows import TokenBatch


def token_nll(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """-log pi of each imitated token, in nats."""
    now = policy.token_logprobs(batch.packed, batch.at, batch.chosen)
    return LossTerms(loss=-batch.advantage * now.logp, compute_metrics=lambda: {"policy/nll_nats": -now.logp.detach()})
