"""Everything of this folder that the file of a text recipe uses, under one name: `from hone.text import recipe`.

Losses come from `hone.objectives`, advantages from `hone.credit`, weights from `hone.objectives.weights`.
"""

# ruff: noqa: F401 - recipe files take these names from here

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.terms import LossTerms, add_terms, scale_terms
from hone.planner.run_settings import PlannedRecipe
from hone.run.recipe_parts import LIVE_SOURCE
from hone.run.wrapper import SourceWrapper
from hone.text.advantages import (
    AdvantageConfig,
    Ddof,
    DecisionUnit,
    RewardWhitening,
    Whitening,
    group_advantage,
    with_decision_unit,
    with_whitened_rewards,
    with_whitening,
)
from hone.text.loss import StepColumns, TokenFactors, TokenLossSpec, TokenView
from hone.text.loss_adapters import (
    Aggregation,
    AggregationConfig,
    ClipConfig,
    PenaltyConfig,
    RatioLevel,
    aggregation_scheme,
    clip_loss,
    clip_objective,
    clip_range,
    from_ratio_columns,
    from_selected_columns,
    from_sequence_columns,
    from_token_columns,
    importance_objective,
    penalised_loss,
    policy_gradient_loss,
    require_cap_beyond_clip,
    with_penalties,
)
from hone.text.reference_policies import FixedKlCoef, KlCoef, TextPolicies, with_kl_reward
from hone.text.rl_config import (
    GroupRunConfig,
    TextGradientRunConfig,
    TextMethod,
    TextRunConfig,
    require_full_distribution,
    require_groups,
    require_on_policy,
)
from hone.text.rl_job import gradient_learner, text_parts, text_recipe_spec

# ----------------------------------------------------------------------------------------------------- dynamic sampling


P = TypeVar("P")


@dataclass
class DynamicSampling(SourceWrapper[P]):
    """As many groups as one `collect` of `source` yields, those that are `wanted` first (DAPO, Yu et al., 2025).

    At most `most_rounds` collections; if they do not suffice, unwanted groups fill the batch up, so that its size, and
    with it the weight of a token, stays. Wanted groups beyond the batch are thrown away: kept for the next step, they
    would be older than its policy. Statistics of the source (`reward/mean`) stay those of everything that was asked.
    """

    is_informative: Callable[[Episodes], NDArray[np.bool_]]
    """Episodes -> `[E]`, all of a group alike."""
    max_rounds: int = 10
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def collect(self) -> Episodes:
        rounds = [self.source.collect()]
        size = len(np.unique(rounds[0].group))
        found, asked = np.unique(rounds[0].group[self.is_informative(rounds[0])]), size
        while len(found) < size and len(rounds) < self.max_rounds:
            more = self.source.collect()
            rounds.append(more)
            asked += len(np.unique(more.group))
            found = np.concatenate((found, np.unique(more.group[self.is_informative(more)])))
        everything = concatenate(rounds)
        kept = found[:size]
        if len(kept) < size:
            others = np.setdiff1d(everything.group, kept)
            kept = np.concatenate((kept, others[: size - len(kept)]))
        batch = everything.take(np.flatnonzero(np.isin(everything.group, kept)))
        self.last_metrics = {
            "dynamic_sampling/rounds": float(len(rounds)),
            "dynamic_sampling/informative_groups": len(found) / asked,
            "dynamic_sampling/filled_up_groups": float(max(0, size - len(found))),
            "dynamic_sampling/decisions_per_used": everything.decisions / max(batch.decisions, 1),
        }
        return batch

    def metrics(self) -> Metrics:
        told, self.last_metrics = self.last_metrics, {}
        return {**self.source.metrics(), **told}


# --------------------------------------------------------------------------------------------------------------- recipe
