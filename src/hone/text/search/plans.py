"""Plans of a search: what is drawn, and how one answer is selected. Each has a short form, such as `beam:4x4`."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from hone.core.config import Config
from hone.core.errors import did_you_mean


class _WholeAnswersPlan(Config):
    """Plan that draws whole answers and selects among them."""

    n: int = Field(ge=1, le=4096)
    """Answers that are drawn."""

    @property
    def answers(self) -> int:
        """Answers that are under way at the same time."""
        return self.n


class BestOfPlan(_WholeAnswersPlan):
    """Draw `n` answers and take the one with the highest score."""

    kind: Literal["best_of"] = "best_of"
    """Kind of the plan."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.n}"


class MajorityPlan(_WholeAnswersPlan):
    """Draw `n` answers and take the most frequent final answer (self-consistency; Wang et al., 2022)."""

    kind: Literal["majority"] = "majority"
    """Kind of the plan."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.n}"


class WeightedVotePlan(_WholeAnswersPlan):
    """Draw `n` answers and take the final answer with the largest sum of scores, in its best-scored form."""

    kind: Literal["weighted_vote"] = "weighted_vote"
    """Kind of the plan."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.n}"


class BeamPlan(Config):
    """Beam search over steps: each of `width` beginnings is continued by `branch` steps, the best `width` are kept."""

    kind: Literal["beam"] = "beam"
    """Kind of the plan."""
    width: int = Field(ge=1, le=1024)
    """Beginnings that are kept after each step. A wide beam gives the scorer more chances to be wrong."""
    branch: int = Field(ge=1, le=1024)
    """Continuations of each."""
    steps: int = Field(default=64, ge=1)
    """Largest number of steps; what has not ended then is written to its end without a choice."""

    @property
    def answers(self) -> int:
        """Answers that are under way at the same time."""
        return self.width * self.branch

    def __str__(self) -> str:
        return f"{self.kind}:{self.width}x{self.branch}"


class TreesPlan(Config):
    """Diverse trees: `trees` independent beams of width 1 and `branch` continuations, and the best of their answers
    (Beeching et al., "Scaling test-time compute", 2024)."""

    kind: Literal["trees"] = "trees"
    """Kind of the plan."""
    trees: int = Field(ge=1, le=1024)
    """Independent beams."""
    branch: int = Field(ge=1, le=1024)
    """Continuations at each step of each."""
    steps: int = Field(default=64, ge=1)
    """Largest number of steps; what has not ended then is written to its end without a choice."""

    @property
    def answers(self) -> int:
        """Answers that are under way at the same time."""
        return self.trees * self.branch

    def __str__(self) -> str:
        return f"{self.kind}:{self.trees}x{self.branch}"


PoolPlan: TypeAlias = BestOfPlan | MajorityPlan | WeightedVotePlan
"""Plans that select among whole answers."""
StepPlan: TypeAlias = BeamPlan | TreesPlan
"""Plans that select after every step."""
_FORMS: Final[Mapping[str, tuple[str, ...]]] = {
    "best_of": ("n",),
    "majority": ("n",),
    "weighted_vote": ("n",),
    "beam": ("width", "branch"),
    "trees": ("trees", "branch"),
}
SHORT_FORMS: Final = "best_of:N, majority:N, weighted_vote:N, beam:WIDTHxBRANCH, trees:TREESxBRANCH"


def _from_short_form(value: object) -> object:
    """The fields of a short form such as `beam:4x4`; other values as they are. Raises ValueError."""
    if not isinstance(value, str):
        return value
    kind, _, sizes = value.strip().partition(":")
    names = _FORMS.get(kind)
    if names is None:
        raise ValueError(f"{value!r} is no search plan{did_you_mean(kind, list(_FORMS))} Plans are {SHORT_FORMS}")
    numbers = sizes.split("x")
    if len(numbers) != len(names) or not all(number.strip().isdecimal() for number in numbers):
        form = next(form for form in SHORT_FORMS.split(", ") if form.startswith(f"{kind}:"))
        raise ValueError(f"{value!r} is not of the form {form}, with whole numbers from 1 on")
    return {"kind": kind, **{name: int(number) for name, number in zip(names, numbers, strict=True)}}


SearchPlan: TypeAlias = Annotated[
    BestOfPlan | MajorityPlan | WeightedVotePlan | BeamPlan | TreesPlan,
    Field(discriminator="kind"),
    BeforeValidator(_from_short_form),
]
"""A plan, as a table with its `kind` or in its short form."""


def needs_scorer(plan: PoolPlan | StepPlan) -> bool:
    """Whether the plan selects by scores."""
    return not isinstance(plan, MajorityPlan)
