"""SimKO: right answers lift the likeliest tokens together, wrong ones press the top one down (Peng et al., 2025).

A as in GRPO; PPO's clip of r' and A' at forking tokens (entropy above the `fork_share` quantile of their answer), of r
and A elsewhere. Right answers: r' = (1 - mix) r + mix / K sum over the K likeliest tokens of sg[r / r_k] r_k, in value
r. Wrong answers: A' = boost A where the likeliest token was chosen. Every token alike.
"""

from pydantic import Field

from hone.core.config import Config
from hone.credit.group import group_relative
from hone.objectives.simko import Candidates, forking, simko
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.job import Parts
from hone.train.text.loss import Loss, TokenView
from hone.train.text.reference_policies import Policies
from hone.train.text.rl_job import Method, TextRl, by_gradient, groups, text_entry, untruncated


class SimkoAlgorithm(Config):
    """The numbers of the authors' scripts."""

    likeliest: int = Field(default=3, ge=1)
    """K: tokens over which the gradient of right answers is spread."""
    fork_share: float = Field(default=0.8, ge=0, lt=1)
    """Quantile of an answer's entropies above which a token is a fork."""
    mix: float = Field(default=0.01, ge=0, le=1)
    """Part of the gradient that is spread."""
    boost: float = Field(default=1.1, ge=1)
    """What the advantage of wrong answers is multiplied by where the likeliest token was chosen."""


class Simko(TextRl):
    """Simple pass@k optimisation."""

    requires = (groups, untruncated)
    algorithm: SimkoAlgorithm = SimkoAlgorithm()
    """Forks, candidates and weights."""


def method(config: Simko, policies: Policies) -> Method:
    chosen = config.algorithm

    def objective(view: TokenView) -> Terms:
        assert view.among is not None
        assert view.likeliest is not None
        assert view.entropy is not None
        first = view.chosen == view.likeliest.ids[:, 0]
        candidates = Candidates(now=view.among, then=view.likeliest.logp, first=first)
        forks = forking(view.entropy, view.sequence, share=chosen.fork_share)
        return simko(view.now, view.then, view.advantage, candidates, forks, mix=chosen.mix, boost=chosen.boost)

    loss = Loss(
        objective=objective, scheme=token_mean, proportional=True, entropy=True, likeliest=chosen.likeliest
    )  # fmt: skip
    return Method(credit=group_relative, learner=by_gradient(config, policies, loss))


ENTRY = text_entry(
    summary="probability spread over the top candidates of right answers, for pass@k",
    source="Peng et al., SimKO: Simple Pass@K Policy Optimization, 2025",
    config=Simko,
    method=method,
    parts=Parts(credit=(group_relative,), loss=(simko, forking), weights=(token_mean,)),
    limitation="the sign of the advantage stands for right and wrong: meant for scores of 0 and 1.",
)
