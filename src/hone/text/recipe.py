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

from hone.core.config import Config, new_default
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.random import generator
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.terms import LossTerms, add_terms, scale_terms
from hone.planner.run_settings import PlannedRecipe
from hone.run.job import RecipeSpec
from hone.run.loop import SourceWrapper
from hone.run.recipe_parts import LIVE_SOURCE
from hone.sources.live import DynamicSampling
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
from hone.text.rl import (
    TextGradientRunConfig,
    TextMethod,
    TextRunConfig,
    gradient_learner,
    require_full_distribution,
    require_groups,
    require_on_policy,
    text_parts,
)
