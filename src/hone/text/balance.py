"""Load of a mixture of experts over each optimizer step: what is told of it, and the loss or bias that balances it.

The load is a figure of the whole step, over all micro-batches and ranks. The loss takes it as data that is known before
the first micro-batch (from recorded routes, or by a forward pass of its own), so that a batch's division changes no
gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Metrics
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.engine.clients.http import ServerEngine
from hone.learner.share import current_share
from hone.models.language.decoder_layer import DecoderLayer
from hone.models.language.expert_config import BiasBalance, ExpertTrainingConfig, LossBalance
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.value import balanced_bias, load_balance
from hone.text.rollout_config import RolloutConfig
from hone.text.rows import ExpertLoad, TokenBatch, TokenRows

TokenObjective = Callable[[TokenPolicy, TokenBatch], LossTerms]
PrepareRows = Callable[[TokenPolicy, TokenRows, int, Reduction], TokenRows]


def missing_routes(policy: TokenPolicy, rollout: RolloutConfig) -> list[str]:
    """A warning where nothing can be replayed."""
    if policy.decoder.config.experts is None or not isinstance(rollout.runner, ServerEngine):
        return []
    return [
        "a server does not say to which experts it sends the tokens, so that no routes are replayed: tokens that its "
        "rounding sends elsewhere have wrong ratios. Watch mismatch/value_max; a correction in learner.ratio, or "
        'recipe = "gspo", limits what they do'
    ]


@dataclass
class ExpertBalance:
    """Counts where the decisions of each optimizer step go, and balances that."""

    training: ExpertTrainingConfig
    micro_batch_tokens: int
    reduction: Reduction = ONE_PROCESS
    counts: Tensor | None = field(default=None, init=False)
    """`[L, E]` decisions of this step so far, on this rank."""
    _latest: Tensor | None = field(default=None, init=False)
    """`[L, E]` decisions of the latest micro-batch, which may only fill a pass of several ranks up."""

    def prepare(self, inner: PrepareRows | None) -> PrepareRows:
        """`inner`, and the step's load where the loss needs it."""

        def run(policy: TokenPolicy, rows: TokenRows, update: int, reduction: Reduction) -> TokenRows:
            config, self.reduction = policy.decoder.config, reduction
            experts = config.experts
            assert experts is not None
            self.counts = torch.zeros(config.routed_layers, experts.count, dtype=torch.float64)
            rows = rows if inner is None else inner(policy, rows, update, reduction)
            if not isinstance(self.training.balance, LossBalance):
                return rows
            routes = self._routes(policy, rows)
            whole = np.sum(reduction.gather(_expert_counts(policy, routes)), axis=0)
            decisions = max(float(whole[0].sum()) / routes.shape[2], 1.0)
            return replace(rows, expert_load=ExpertLoad(shares=whole / decisions, decisions=decisions))

        return run

    def objective(self, inner: TokenObjective) -> TokenObjective:
        """`inner`, whose routes are counted, plus the loss of the load."""

        def run(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
            with policy.decoder.recording_routes() as records:
                terms = inner(policy, batch)
            if not records:
                return terms
            record, load = records[-1], batch.expert_load
            self._latest = torch.from_numpy(_expert_counts(policy, record.chosen()[batch.at].cpu().numpy()))
            balance = self.training.balance
            if load is None or not isinstance(balance, LossBalance):
                return terms
            logits = record.logits(batch.at)
            shares = torch.from_numpy(load.shares).to(logits.device)
            each = load_balance(logits, shares)
            weight = torch.full_like(each, 1 / load.decisions)
            aside = LossTerms(loss=each, weight=weight, compute_metrics=lambda: {"moe/balance_loss": each.detach()})
            return add_terms(terms, aside, weight=balance.loss)

        return run

    def on_micro_batch(self, batch: TokenBatch, terms: LossTerms) -> None:
        """Count a micro-batch of this process."""
        del batch, terms
        assert self.counts is not None and self._latest is not None
        self.counts += self._latest

    def finish(self, policy: TokenPolicy) -> Metrics:
        """Figures of the step that was taken, over all ranks; its load moves the biases of the choice."""
        if self.counts is None:
            return {}
        share = current_share()
        reduction = self.reduction if share is None else share.reduction
        load = torch.from_numpy(np.sum(reduction.gather(self.counts.numpy()), axis=0))
        self.counts = None
        balance = self.training.balance
        if isinstance(balance, BiasBalance):
            for layer, one in zip(policy.decoder.layers[policy.decoder.config.dense_layers :], load, strict=True):
                assert isinstance(layer, DecoderLayer) and layer.selection_bias is not None
                one = one.to(layer.selection_bias.device)
                layer.selection_bias.copy_(balanced_bias(layer.selection_bias, one, rate=balance.bias))
        mean = load.mean(dim=1, keepdim=True).clamp(min=1e-9)
        return {"moe/load_max": float((load / mean).max()), "moe/dead": float((load == 0).sum())}

    def _routes(self, policy: TokenPolicy, rows: TokenRows) -> NDArray[np.integer]:
        """`[N, L, k]` experts of each decision: as recorded, or by a forward pass."""
        seen = rows.episodes.transcript
        if seen.routing is not None and rows.layout.replay_routing:
            return seen.routing[seen.at - 1]

        def question(batch: TokenBatch) -> tuple[Tensor]:
            return (policy.chosen_experts(batch.replayed)[batch.at],)

        (routes,) = rows.evaluate(question, self.micro_batch_tokens)
        return routes.astype(np.int64)


def _expert_counts(policy: TokenPolicy, routes: NDArray[np.integer]) -> NDArray[np.float64]:
    """`[n, L, k]` routes -> `[L, E]` decisions that went to each expert."""
    experts, layers = policy.decoder.config.experts, routes.shape[1]
    assert experts is not None
    places = routes.astype(np.int64) + np.arange(layers)[:, None] * experts.count
    counts = np.bincount(places.reshape(-1), minlength=layers * experts.count)
    return counts.reshape(layers, experts.count).astype(np.float64)
