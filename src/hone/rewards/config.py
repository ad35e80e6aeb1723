"""The rewards of an answer: functions, reward models and servers; their weights and limits."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from hone.core.config import Config
from hone.rewards.judges.config import JudgeModel, PairwiseQuestion, RewardJudge, ServerAccess


class RewardFunction(Config):
    """One function that scores answers, in worker processes."""

    kind: Literal["function"] = "function"
    """Kind of the reward; a table without `kind` is a function."""
    use: str = Field(min_length=1)
    """`path/to/file.py:name`, `package.module:name`, or a built-in one: `exact_match`, `math_answer`,
    `reasoning_gym`, `code_tests`, `visible_code_tests`."""
    weight: float = 1.0
    """Factor of its score in the sum over all rewards."""
    unit: Literal["sample", "group"] = "sample"
    """Smallest part of a batch that one call may get. With `sample` a batch is cut anywhere; `group` keeps the answers
    to one prompt together, for functions that compare them."""
    bounds: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """Lowest and highest valid score; a score outside stops the run."""
    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the function by name in each call."""

    @property
    def name(self) -> str:
        return self.use.rpartition(":")[2]


class RewardModel(Config):
    """A model with a scalar head, or several, which score the tokens of prompt and answer in the trainer's process."""

    kind: Literal["model"]
    """Kind of the reward."""
    path: str = Field(min_length=1)
    """Hugging Face folder of a sequence or token classifier with `num_labels = 1` and the policy's vocabulary, or a
    checkpoint or run of hone that holds one; `stage:NAME`: the one of an earlier stage."""
    members: list[Annotated[str, Field(min_length=1)]] = []
    """Further models of the same kind: the score is the mean over all of them, less `pessimism` times their spread."""
    pessimism: float = Field(default=0.0, ge=0)
    """Factor of the standard deviation over the members that is subtracted: answers that they disagree on score
    less."""
    at: Literal["last", "steps", "weakest"] = "last"
    """What is scored: the answer at its last token; each step at its own, divided by `rewards.step_end`; or the answer
    by the lowest score of its steps."""
    output: Literal["logit", "probability"] = "logit"
    """Scale of the scores: the model's number, or sigmoid of it, the chance that answer or step is right."""
    name: str = Field(default="model", min_length=1)
    """Name of its scores."""
    weight: float = 1.0
    """Factor of its score in the sum over all rewards."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Tokens that go through the model at a time."""

    @model_validator(mode="after")
    def _members_disagree(self) -> "RewardModel":
        if self.pessimism and not self.members:
            raise ValueError("pessimism is the price of disagreement between several models; name more in members")
        paths = [self.path, *self.members]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        if twice:
            raise ValueError(f"members: {', '.join(twice)} stands there twice; equal models always agree")
        return self

    @property
    def paths(self) -> list[str]:
        return [self.path, *self.members]


class RewardServer(ServerAccess):
    """A server that scores answers: JSON over HTTP, one request for the answers to one prompt."""

    kind: Literal["server"]
    """Kind of the reward."""
    url: str = Field(min_length=1)
    """Address that is POSTed to: `http://host:port/path`."""
    name: str = Field(default="server", min_length=1)
    """Name of its scores."""
    weight: float = 1.0
    """Factor of its score in the sum over all rewards."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds without a reply after which an attempt has failed."""
    attempts: int = Field(default=3, ge=1)
    """Attempts for one request; after the last its answers have no score."""


class RewardWorld(Config):
    """The rewards that a dialogue's world gives, turn by turn; a dialogue's rewards hold it if they do not name it."""

    kind: Literal["world"]
    """Kind of the reward."""
    name: str = Field(default="world", min_length=1)
    """Name of its scores."""
    weight: float = 1.0
    """Factor of its score in the sum over all rewards."""


def _default_kind(value: object) -> object:
    """A table without `kind` as that of a function: the form of configs from before there were other kinds."""
    return {"kind": "function", **cast("dict[str, object]", value)} if isinstance(value, dict) else value


Reward: TypeAlias = Annotated[
    RewardFunction | RewardModel | RewardServer | RewardJudge | RewardWorld,
    Field(discriminator="kind"),
    BeforeValidator(_default_kind),
]


class AgentSessionsConfig(Config):
    """Sessions of agents: the interpreter that holds them, and how long they are waited for."""

    python: str = ""
    """Interpreter that has the package of the environment; empty: this one."""
    deadline_s: float = Field(default=120.0, gt=0)
    """A session that neither asks nor reports for so many seconds has no score; a run whose sessions do not begin
    within five times as long stops."""


class UserCodeConfig(Config):
    """Processes and limits of reward functions and of worlds, in training and in evaluation."""

    workers: int = Field(default=2, ge=1, le=256)
    """Processes that run reward functions at the same time."""
    deadline_s: float = Field(default=10.0, gt=0)
    """Seconds of wall time that a reward function may take for one answer, and a world for one reply; then its process
    is killed, and the answer or dialogue has no score."""
    start_deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that the import of reward functions or of a world may take."""
    memory_bytes: int | None = Field(default=None, ge=2**26)
    """Address space of each process; None for no limit."""
    confined: bool = True
    """Keep the processes from signalling others and from writing into the run's folder, as far as the system can; a
    limit that it cannot hold is a warning."""
    max_abs_score: float = Field(default=1e6, gt=0)
    """Largest size of a score, of one turn's too, and of the weighted sum; an answer beyond it has no score."""
    missing_allowed: float = Field(default=0.05, ge=0, le=1)
    """Share of the last 200 answers that may lack a score before the run stops. Three batches in a row without a single
    score stop it whatever the share."""
    agents: AgentSessionsConfig | None = None
    """Sessions of agents, for the sources `verifiers:` and `agents:`."""


class LearnableConfig(Config):
    """Which answers of a step enter the loss and its denominators."""

    truncated: Literal["score", "mask", "missing"] = "score"
    """Treatment of answers that a limit cut (overlong filtering). `score`: as any other; `mask`: they have no part in
    the loss, and their scores enter the baselines of the others; `missing`: as if they had no reward."""
    count_missing: bool = False
    """Count answers without a reward in the denominators of the loss, as TRL does: the more rewards are missing, the
    smaller the step. False: they have no part in the loss."""


class RewardsConfig(Config):
    """All rewards of an answer."""

    functions: list[Reward] = Field(min_length=1)
    """Their weighted sum is the reward."""
    step_end: str = ""
    """Text that ends a step of an answer, such as ";" or a newline: functions may then return a list with one score
    for each piece of `answer.split(step_end)`, which is paid at the piece's last token; unset: answers have no
    steps."""

    @model_validator(mode="after")
    def _steps_have_an_end(self) -> "RewardsConfig":
        for place, reward in enumerate(self.functions):
            if isinstance(reward, RewardModel) and reward.at != "last" and not self.step_end:
                raise ValueError(
                    f'functions.{place}.at = "{reward.at}" scores the steps of answers; say what ends a step: step_end '
                    '= ";", or "\\n"'
                )
        return self

    def require_bounds_within(self, most: float) -> None:
        """Raise ValueError for declared bounds beyond `user_code.max_abs_score`."""
        for place, reward in enumerate(self.functions):
            if isinstance(reward, RewardFunction) and max(map(abs, reward.bounds or [0.0])) > most:
                raise ValueError(
                    f"functions.{place}.bounds = {reward.bounds} reaches beyond user_code.max_abs_score = {most:g}; "
                    "raise max_abs_score, or narrow the bounds"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards' scores, in their order."""
        return _unique_names([reward.name for reward in self.functions])

    @property
    def worker_functions(self) -> list[RewardFunction]:
        """The rewards that run in worker processes."""
        return [reward for reward in self.functions if isinstance(reward, RewardFunction)]

    @property
    def function_names(self) -> tuple[str, ...]:
        """Names of their scores."""
        return _unique_names([function.name for function in self.worker_functions])

    @property
    def judges(self) -> dict[str, RewardJudge]:
        """The judges by the names of their scores."""
        named = zip(self.names, self.functions, strict=True)
        return {name: reward for name, reward in named if isinstance(reward, RewardJudge)}

    @property
    def local_judges(self) -> list[str]:
        """Folders of the judges that run in the trainer's process."""
        return [judge.by.path for judge in self.judges.values() if isinstance(judge.by, JudgeModel)]

    def check_group_size(self, answers: int, key: str) -> None:
        """Raise ValueError where a judge compares the answers to a prompt and `key` gives it only one."""
        for name, judge in self.judges.items():
            if answers < 2 and isinstance(judge.ask, PairwiseQuestion) and judge.ask.reference is None:
                raise ValueError(
                    f"judge {name!r} compares answers to one prompt, and {key} gives it {answers}; set ask.reference "
                    "to a column with an answer to compare with, or take a rubric"
                )

    @property
    def has_model(self) -> bool:
        """True if a reward scores the policy's token ids, and so needs its tokenizer."""
        return any(isinstance(reward, RewardModel) for reward in self.functions)


def _unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names made unique: a, b, a#2."""
    seen: Counter[str] = Counter()
    unique: list[str] = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(unique)
