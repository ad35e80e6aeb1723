"""AlphaZero (Silver et al., 2018): a network learns what its own tree search finds, and who won.

Both seats search with the network's priors and values. loss = sum_a pi(a) (log pi(a) - log p(a)) + value_weight *
(v - z)^2 / 2, with the shares pi of the search's visits and the result z for the seat that is to move.
"""

from functools import partial

import torch
from pydantic import Field

from hone.control.networks.seats import PolicyValueNetwork
from hone.control.seats.search_training import SearchMethod, SearchRows, SearchRunConfig, evaluate_search
from hone.core.config import Config
from hone.credit.returns import discounted_returns
from hone.objectives.distill import forward_kl
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import RecipeParts, RecipeSpec


class AlphaZeroAlgorithm(Config):
    """Weight of the values, and the matches that are learned from."""

    value_weight: float = Field(default=1.0, ge=0)
    """Weight of the error of the values."""
    window: int = Field(default=10, ge=1)
    """Steps whose matches are learned from in each step."""
    mirror: bool = True
    """Learn from every position and its mirror image, where the game is symmetric."""


class AlphaZeroConfig(SearchRunConfig):
    """A policy and a value from tree search."""

    algorithm: AlphaZeroAlgorithm = AlphaZeroAlgorithm()
    """Weight of the values, and the matches that are learned from."""

    def method(self) -> SearchMethod:
        """Credit and loss of the recipe."""

        def objective(policy: PolicyValueNetwork, rows: SearchRows) -> LossTerms:
            logits, value = policy.outputs(rows.seen)
            logp = torch.log_softmax(logits.masked_fill(~rows.mask, -torch.inf), dim=1)
            searched, error = forward_kl(logp, rows.search_policy.log()), squared_error(value, rows.target)
            loss = torch.add(searched.loss, error.loss, alpha=self.algorithm.value_weight)
            return LossTerms(loss=loss, compute_metrics=lambda: {**searched.metrics, **error.metrics})

        algorithm = self.algorithm
        return SearchMethod(
            credit=partial(discounted_returns, discount=1.0),
            objective=objective,
            window=algorithm.window,
            mirror=algorithm.mirror,
        )


ENTRY = RecipeSpec(
    summary="board games: a network learns from its own tree search",
    paper="Silver et al., A General Reinforcement Learning Algorithm that Masters Chess, Shogi and Go, 2018",
    config=AlphaZeroConfig,
    parts=RecipeParts(
        source="RecentMatches(search)", credit=[discounted_returns], loss=[forward_kl, squared_error],
        weights=[token_mean],
    ),
    evaluate=evaluate_search,
    limitation="the search is compiled, and knows Connect Four.",
)  # fmt: skip
