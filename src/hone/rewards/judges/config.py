"""Config of a judge: which model grades, its question, its limits, and the canaries that check it."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from hone.core.config import Config


class ServerAccess(Config):
    """How a server that judges answers is asked."""

    api_key_env: str | None = None
    """Environment variable with a key, sent as a bearer token."""
    max_concurrent: int = Field(default=8, ge=1, le=256)
    """Requests under way at the same time."""


class JudgeServer(ServerAccess):
    """A model behind a server that speaks OpenAI's protocol."""

    kind: Literal["server"]
    """Kind of the judge's model."""
    url: str = Field(min_length=1)
    """`http://host:port`; a path before `/v1/chat/completions` may follow."""
    model: str = Field(min_length=1)
    """Name of the model, as the server lists it."""
    deadline_s: float = Field(default=120.0, gt=0)
    """Seconds after which an attempt has failed, however slowly its reply drips in."""
    attempts: int = Field(default=5, ge=1)
    """Attempts for one verdict; after the last it is missing."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait between two attempts. A server that asks for a longer one (`Retry-After`) is not asked again."""
    response_format: Literal["auto", "never"] = "auto"
    """`auto`: ask for JSON of the verdict's schema, but not after a refusal (status 400 or 422)."""


class JudgeModel(Config):
    """A local model, which answers on hone's engine in the trainer's process."""

    kind: Literal["model"]
    """Kind of the judge's model."""
    path: str = Field(min_length=1)
    """Hugging Face folder, or a run or checkpoint of hone."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    max_concurrent: int = Field(default=16, ge=1)
    """Verdicts that are generated at the same time."""


JudgeSource: TypeAlias = Annotated[JudgeServer | JudgeModel, Field(discriminator="kind")]


class RubricCriterion(Config):
    """One criterion of a rubric."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=40)
    """Name in the verdict: letters, digits and `_`."""
    text: str = Field(min_length=1)
    """Description for the judge: when an answer deserves a high score."""
    weight: float = Field(default=1.0, gt=0)
    """Weight in the score."""
    lowest: float = 0.0
    """Worst score."""
    highest: float = 10.0
    """Best score."""

    @model_validator(mode="after")
    def _check_scale(self) -> "RubricCriterion":
        if not self.lowest < self.highest:
            raise ValueError(
                f"criterion {self.name}: highest = {self.highest:g} must be above lowest = {self.lowest:g}"
            )
        return self


class RubricQuestion(Config):
    """Grade one answer by criteria; the score is the weighted mean of the criteria."""

    kind: Literal["rubric"]
    """Kind of the question."""
    criteria: list[RubricCriterion] = Field(min_length=1, max_length=12)
    """Criteria, graded in one request."""
    reference: str | None = None
    """Dataset column with a reference answer that the judge is shown."""
    instructions: str = ""
    """Text put before the criteria."""
    rescale: bool = True
    """Map each criterion's scale to 0 to 1 first; otherwise the score is in the criteria's own units."""

    @model_validator(mode="after")
    def _check_names(self) -> "RubricQuestion":
        names = [one.name for one in self.criteria]
        twice = sorted({name for name in names if names.count(name) > 1} | ({"reason"} & set(names)))
        if twice:
            raise ValueError(f"criteria need names of their own, and `reason` is taken: {', '.join(twice)}")
        return self


class ReferenceQuestion(Config):
    """Compare one answer with a reference: 1 if it is correct, else 0."""

    kind: Literal["reference"]
    """Kind of the question."""
    column: str = Field(default="answer", min_length=1)
    """Dataset column with the reference answer."""
    instructions: str = ""
    """Text put before the question."""


class PairwiseQuestion(Config):
    """Compare two answers to one prompt, in both orders. The score is the share of wins; a tie counts 1/2."""

    kind: Literal["pairwise"]
    """Kind of the question."""
    opponents: int = Field(default=2, ge=1, le=64)
    """Other answers to the same prompt that each answer is compared with (the next ones of its group, in a ring)."""
    reference: str | None = None
    """Dataset column with an answer that every answer is compared with, in place of those of its group."""
    instructions: str = ""
    """Text put before the question."""


JudgeQuestion: TypeAlias = Annotated[RubricQuestion | ReferenceQuestion | PairwiseQuestion, Field(discriminator="kind")]


class JudgeBudget(Config):
    """Limits of rate and cost; the run stops with a checkpoint when a total is spent."""

    requests_per_minute: float | None = Field(default=None, ge=1)
    """Requests sent in any minute."""
    tokens_per_minute: float | None = Field(default=None, ge=1)
    """Tokens, read and written, in any minute."""
    requests: int | None = Field(default=None, ge=1)
    """Requests of the whole run, repeated attempts included."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens of the whole run, read and written."""
    money: float | None = Field(default=None, gt=0)
    """Cost of the whole run, in the unit of the prices."""
    price_read: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens."""
    price_written: float = Field(default=0.0, ge=0)
    """Price of a million generated tokens."""

    @model_validator(mode="after")
    def _check_prices(self) -> "JudgeBudget":
        if self.money is not None and self.price_read == self.price_written == 0:
            raise ValueError(
                f"money = {self.money:g} needs a price: set price_read and price_written (per million tokens)"
            )
        return self


class CanaryConfig(Config):
    """Known-good and known-bad answers that are graded between the others, and the floor of agreement."""

    path: str = Field(min_length=1)
    """JSONL file with rows `{"prompt": ..., "good": ..., "bad": ...}` and the column that the question needs."""
    rate: float = Field(default=0.05, gt=0, le=1)
    """Canaries for each graded answer."""
    floor: float = Field(default=0.7, ge=0, le=1)
    """The run stops when the 95% interval of the agreement lies below this."""
    window: int = Field(default=100, ge=4)
    """Canaries over which agreement and biases are measured."""
    repeats: int = Field(default=2, ge=1, le=8)
    """Times that each canary is asked; from the second on at `temperature`, for the self-consistency."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of the repeated questions."""


class RewardJudge(Config):
    """A language model that grades answers."""

    kind: Literal["judge"]
    """Kind of the reward."""
    name: str = Field(default="judge", pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of its scores."""
    weight: float = 1.0
    """Factor of its score in the sum over all rewards."""
    by: JudgeSource
    """The model that grades: a server, or a local model."""
    ask: JudgeQuestion
    """The question: a rubric, a comparison with a reference, or pairwise comparisons."""
    verdict: Literal["json", "lines"] = "json"
    """Form of the verdict: a JSON object, or `name: value` lines at the end of the reply."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the judge; 0 is greedy."""
    max_tokens: int = Field(default=512, ge=1)
    """Largest number of tokens of a reply; a verdict that was cut off is missing."""
    cache: str | None = "judge_cache"
    """Folder that keeps each reply by the hash of its question, shared by all runs and processes; unset: none."""
    budget: JudgeBudget = JudgeBudget()
    """Limits of rate and cost."""
    canaries: CanaryConfig | None = None
    """Known answers that check the judge during the run."""

    @model_validator(mode="after")
    def _check_budget(self) -> "RewardJudge":
        _check_rate(self.by, self.budget)
        return self

    def describe_cost(self, answers: int) -> str:
        """The largest number of requests for this many answers, in words."""
        each = 1.0
        if isinstance(self.ask, PairwiseQuestion):
            each = 2.0 if self.ask.reference else 2.0 * self.ask.opponents
        canaries = 0.0 if self.canaries is None else 2 * self.canaries.rate * self.canaries.repeats
        limits = self.budget.model_dump(exclude_defaults=True)
        budget = ", ".join(f"{key} = {value:g}" for key, value in limits.items())
        return (
            f"at most {round(answers * (each + canaries))} requests of at most {self.max_tokens} generated tokens; "
            f"budget: {budget or 'none'}"
        )

    @property
    def column(self) -> str | None:
        """The dataset column that the question needs."""
        return self.ask.column if isinstance(self.ask, ReferenceQuestion) else self.ask.reference


class RevisionConfig(Config):
    """Constitutional revision: a model criticises an answer by a principle, and revises it (Bai et al., 2022)."""

    by: JudgeSource
    """The model that criticises and revises: a server, or a local model."""
    principles: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """The constitution. Each round takes one principle, drawn by the answer's id."""
    rounds: int = Field(default=1, ge=1, le=8)
    """Rounds of criticism and revision."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the replies; 0 is greedy."""
    max_tokens: int = Field(default=512, ge=1)
    """Largest number of tokens of a reply."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draws of principles."""
    cache: str | None = "judge_cache"
    """Folder that keeps each reply by the hash of its question; unset: none."""
    budget: JudgeBudget = JudgeBudget()
    """Limits of rate and cost."""

    @model_validator(mode="after")
    def _check_budget(self) -> "RevisionConfig":
        _check_rate(self.by, self.budget)
        return self


def _check_rate(by: JudgeSource, budget: JudgeBudget) -> None:
    if isinstance(by, JudgeModel) and (budget.requests_per_minute or budget.tokens_per_minute):
        raise ValueError("budget: a local model has no rate; leave out requests_per_minute and tokens_per_minute")
