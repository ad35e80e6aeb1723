"""Search in an evaluation (plans, what scores the candidates, what ends a step, what is voted on), and what a user asks
for in place of a run's own evaluation.

Belongs here: nothing that imports torch: the commands read it before they load a model.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, model_validator

from hone.core.config import Config
from hone.core.strict_json import Json
from hone.rewards.config import Reward, RewardsConfig
from hone.rewards.functions import BUILTIN_FUNCTIONS
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


# -------------------------------------------------------------------------------------------------- a user's evaluation


FILE_SUFFIXES = (".jsonl", ".json", ".parquet")
GENERATED = "reasoning_gym:"
"""Prefix of the names of reasoning-gym's tasks in a config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTask:
    """Problems and rewards that a user asks for; empty values are those of the run."""

    task: str = ""
    """A file of prompts, or a reasoning-gym task, with or without `reasoning_gym:`."""
    rewards: tuple[str, ...] = ()
    """Reward functions: built-in names, or `file.py:name`."""
    max_tokens: int | None = None

    @property
    def source(self) -> str:
        """Value for `task.source`."""
        is_file = self.task.endswith(FILE_SUFFIXES) or Path(self.task).exists()
        return self.task if is_file or not self.task else GENERATED + self.task.removeprefix(GENERATED)


OWN_TASK = EvaluationTask()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Searches that a user asks for; empty values are those of the run's `[evaluation.search]`."""

    plans: tuple[str, ...] = ()
    """Plans in their short form: `beam:1x4`."""
    scorer: str = ""
    """A reward model's folder or run, or a reward function: a built-in name, or `file.py:name`."""
    step: str = ""
    answer: str = ""

    def fields(self) -> dict[str, Json]:
        """Values for `[evaluation.search]` that were given."""
        values: dict[str, Json] = {"plans": list(self.plans), "step": self.step, "answer": self.answer}
        if self.scorer and (":" in self.scorer or self.scorer in BUILTIN_FUNCTIONS):
            values["scorer"] = {"kind": "verifier", "functions": [{"use": self.scorer}]}
        elif self.scorer:
            values["scorer"] = {"kind": "model", "path": self.scorer}
        return {name: value for name, value in values.items() if value}


OWN_SEARCH = SearchOptions()
