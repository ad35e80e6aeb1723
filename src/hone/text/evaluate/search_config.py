"""Config of the search in an evaluation: plans, what scores the candidates, what ends a step, what is voted on."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, model_validator

from hone.core.config import Config
from hone.rewards.config import Reward, RewardsConfig
from hone.text.search.plans import BeamPlan, SearchPlan, TreesPlan, needs_scorer


class SearchNetworkScorer(Config):
    """A scorer that runs a network of its own."""

    weights: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens that go through the model at a time."""


class SearchModelScorer(SearchNetworkScorer):
    """A reward model as scorer: of whole sequences, or of steps."""

    kind: Literal["model"] = "model"
    """Kind of the scorer; a table without `kind` is a model."""
    path: str = Field(min_length=1)
    """Hugging Face folder of a sequence or token classifier with `num_labels = 1` and the policy's vocabulary, or a
    checkpoint or run of hone that holds one. A token classifier scores every step, and the end of the answer."""
    steps: Literal["weakest", "product", "last"] = "weakest"
    """How the probabilities of steps become a score, for a model of steps. `product` prefers short answers."""

    @property
    def name(self) -> str:
        return self.path


class SearchVerifierScorer(Config):
    """Reward functions or servers as scorer: a verifier. One that sees the right answer shows what a perfect scorer
    would reach."""

    kind: Literal["verifier"]
    """Kind of the scorer."""
    functions: list[Reward] = Field(min_length=1)
    """Their weighted sum is the score of a whole answer."""
    beginnings: list[Reward] = []
    """Rewards of beginnings of answers, for plans that select after each step; empty: `functions` score them too."""

    @property
    def name(self) -> str:
        return ", ".join(reward.name for reward in self.functions)

    def rewards(self, functions: Sequence[Reward]) -> RewardsConfig:
        return RewardsConfig(functions=list(functions))


class SearchWorldModelScorer(SearchNetworkScorer):
    """A language model that has learnt what the environment says, as scorer: the probability of the wanted answer."""

    kind: Literal["world_model"]
    """Kind of the scorer."""
    path: str = Field(min_length=1)
    """Folder of the model, with the policy's vocabulary: a run with `learn.world`, or one of its checkpoints."""
    wanted: str = Field(min_length=1)
    """Column with the answer of the environment that an action should lead to."""

    @property
    def name(self) -> str:
        return f"p({self.wanted}) under {self.path}"


def _default_kind(value: object) -> object:
    return {"kind": "model", **cast("dict[str, object]", value)} if isinstance(value, dict) else value


SearchScorer: TypeAlias = Annotated[
    SearchModelScorer | SearchVerifierScorer | SearchWorldModelScorer,
    Field(discriminator="kind"),
    BeforeValidator(_default_kind),
]


class SearchConfig(Config):
    """Search at test time, beside the evaluation of single answers."""

    plans: list[SearchPlan] = Field(min_length=1)
    """Plans, as tables or short: `best_of:16`, `majority:16`, `weighted_vote:16`, `beam:1x4`, `trees:4x4`."""
    scorer: SearchScorer | None = None
    """What the plans select by; needed by all but `majority`."""
    step: str = Field(default="\n", min_length=1)
    """Text that ends a step of an answer."""
    answer: str = ""
    """Regular expression of the final answer that votes count: its last match, or the first group of it. Empty: the
    last line."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of sampling."""

    @model_validator(mode="after")
    def _fits(self) -> "SearchConfig":
        faults: list[str] = []
        try:
            re.compile(self.answer)
        except re.error as error:
            faults.append(f"answer = {self.answer!r} is no regular expression: {error}")
        names = [str(plan) for plan in self.plans]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            faults.append(f"plans name {', '.join(twice)} twice")
        wanting = [str(plan) for plan in self.plans if needs_scorer(plan) and plan.answers > 1]
        if self.scorer is None and wanting:
            faults.append(f"{', '.join(wanting)} select by scores: give a scorer, or leave only majority:N")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def pool(self) -> int:
        """Whole answers that are drawn for each problem: as many as the largest plan has under way."""
        return max(plan.answers for plan in self.plans)

    @property
    def step_plans(self) -> list[BeamPlan | TreesPlan]:
        """The plans that select after each step."""
        return [plan for plan in self.plans if isinstance(plan, BeamPlan | TreesPlan)]
