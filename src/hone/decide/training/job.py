"""Wiring of the bandit recipes: arms or a log, a model of rewards, a rule that explores with it, and their evaluation.

Belongs here: what the recipes share. Does not: anything of one rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from hone.core.config import Config, new_default
from hone.core.credit import Metrics
from hone.core.decisions import ActionSet
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.core.state import State, integer
from hone.credit.returns import reward_as_advantage
from hone.decide.bandits.learning import BanditLearner, PolicyActor, ThompsonActor
from hone.decide.bandits.models import BanditModel, JointLinearPosterior, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.saving import load_into, save_policy
from hone.decide.joins.parquet import read_view, view_hash
from hone.decide.simulators.drifting import ArmsWorld, BanditArms, BernoulliArms, LinearArms
from hone.estimators.means import bootstrap_mean
from hone.run.job import (
    EvaluationResult,
    OpenedRun,
    RecipeParts,
    RunConfig,
    RunSettings,
    TrainingJob,
    episode_table,
    opened_run,
)
from hone.run.loop import Recipe
from hone.sources.live import LiveSource

# --------------------------------------------------------------------------------------------------------------- config


class PriorConfig(Config):
    """Prior and noise of a linear model of rewards, and how fast it forgets."""

    noise: float = Field(default=1.0, gt=0)
    """Assumed standard deviation of a reward around its mean."""
    prior_precision: float = Field(default=1.0, gt=0)
    """Precision (1 / variance) of the prior of a coefficient; the ridge parameter where `noise` is 1."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor by which a decision's weight falls with each later decision; below 1 for rewards that drift."""


class DisjointModel(PriorConfig):
    """One linear model an arm: for a fixed set of actions."""

    kind: Literal["disjoint"] = "disjoint"
    """Names this alternative."""
    intercept: bool = True
    """Add a feature that is always 1."""


class JointModel(PriorConfig):
    """One linear model for all actions, on the products of context and action features: for actions that change."""

    kind: Literal["joint"]
    """Names this alternative."""


class DecisionLogConfig(Config):
    """A frozen view of a decision log, learnt once, in the order of time."""

    path: str = Field(min_length=1)
    """Folder or parquet file that `hone log FILE --view` wrote."""


class BanditRunConfig(RunConfig):
    """A bandit that learns from arms, or from a log of decisions."""

    run = new_default(RunSettings(threads=1, log_every=20))
    arms: BanditArms | None = None
    """Simulated arms; leave out where `log` is given."""
    log: DecisionLogConfig | None = None
    """Logged decisions; leave out where `arms` is given."""
    pulls: int = Field(default=1, ge=1)
    """Decisions per iteration from `arms`, made before any of their rewards is observed."""

    @model_validator(mode="after")
    def _one_source(self) -> "BanditRunConfig":
        if (self.arms is None) == (self.log is None):
            which = "both" if self.arms is not None else "neither"
            raise ValueError(f"a bandit learns from [arms] or from [log], and {which} is given; give one of them")
        return self

    @classmethod
    def parts(cls) -> RecipeParts:
        return RecipeParts(source="Live(arms)", credit=(reward_as_advantage,), loss=(BanditLearner.update,))

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        if self.log is not None:
            return {"decisions": f"all of {self.log.path}, once, in {self.steps} parts"}
        return {"pulls": f"{self.steps} iterations x {self.pulls} = {self.steps * self.pulls}"}


class LinearBanditConfig(BanditRunConfig):
    """A bandit with a linear model of the rewards."""

    model: Annotated[DisjointModel | JointModel, Field(discriminator="kind")] = DisjointModel()
    """Model of the rewards."""

    def rule(self, model: BanditModel) -> BanditPolicy:
        """The policy that explores with `model`."""
        raise TypeError(f"{type(self).__name__} names no rule for {model}")

    def open(self) -> OpenedRun:
        return opened_run(_open_bandit(self, self.rule), _build_bandit)


# ------------------------------------------------------------------------------------------------------------- log pass


P = TypeVar("P")


@dataclass
class _LogPass(Generic[P]):
    """Source that reads each episode of a log once, in order, in `steps` parts of nearly equal size.

    A learner in closed form counts a row that it sees twice as two rows, so the log is not repeated.
    """

    log: Episodes
    steps: int
    """Parts; at most the number of episodes."""
    drawn: int = 0
    """Parts read so far."""

    def collect(self) -> Episodes:
        begin, end = (len(self.log) * place // self.steps for place in (self.drawn, self.drawn + 1))
        self.drawn += 1
        return self.log.take(np.arange(begin, end))

    def publish(self, policy: P) -> None:
        """A log does not act."""

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {"drawn": self.drawn}

    def restore(self, state: State) -> None:
        self.drawn = integer(state, "drawn")


# ------------------------------------------------------------------------------------------------------------------ job


C = TypeVar("C", bound=LinearBanditConfig)
EVALUATION_CONTEXTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDecisions:
    """Decisions of a frozen view with their rewards."""

    episodes: Episodes
    actions: ActionSet
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedBandit:
    """A bandit before it has learnt anything, and what it learns from."""

    policy: BanditPolicy
    model: BanditModel
    actions: ActionSet
    logged: LoggedDecisions | None = None
    """None: it learns from the arms of its config."""


def _open_bandit(config: LinearBanditConfig, rule: Callable[[BanditModel], BanditPolicy]) -> _OpenedBandit:
    """Prior of the config's model, and the logged decisions if it learns from a log.

    Raises ConfigError where model and decisions do not fit, DataError for a damaged log.
    """
    logged = None if config.log is None else read_decisions(config.log, steps=config.steps)
    if logged is None:
        actions, features = numbered_actions(arm_count(config.arms)), feature_count(config.arms)
    else:
        actions, features = logged.actions, logged.episodes.observations.shape[1]
    model = _make_model(config.model, features, actions)
    return _OpenedBandit(policy=rule(model), model=model, actions=actions, logged=logged)


def read_decisions(config: DecisionLogConfig, *, steps: int) -> LoggedDecisions:
    """Logged decisions of a view. Raises DataError, and ConfigError for more steps than decisions."""
    path = Path(config.path)
    if not path.exists():
        raise ConfigError(f"log.path: {path} does not exist; `hone log FILE --view FOLDER` makes a view")
    view = read_view(path)
    episodes = view.episodes()
    if steps > len(episodes):
        raise ConfigError(
            f"steps = {steps}, and {path} has {len(episodes)} decisions with a final reward; each is learnt "
            f"once: set steps to at most {len(episodes)}"
        )
    return LoggedDecisions(episodes=episodes, actions=view.table.action_sets[0], fingerprint=view_hash(view))


def _make_model(config: DisjointModel | JointModel, features: int, actions: ActionSet) -> BanditModel:
    """Prior of a linear model for contexts of `features` numbers. Raises ConfigError for actions that do not fit."""
    if isinstance(config, JointModel):
        if actions.features is None:
            raise ConfigError('model.kind = "joint" needs actions with features, and these have none; use "disjoint"')
        return JointLinearPosterior(
            features, actions.features.shape[1], noise=config.noise, prior_precision=config.prior_precision,
            discount=config.discount,
        )  # fmt: skip
    return LinearGaussianPosterior(
        len(actions), features, noise=config.noise, prior_precision=config.prior_precision, discount=config.discount,
        intercept=config.intercept or not features,
    )  # fmt: skip


def _build_bandit(config: LinearBanditConfig, opened: _OpenedBandit) -> TrainingJob[BanditPolicy]:
    """Training job of an opened bandit."""
    learner = BanditLearner(opened.policy, opened.model, opened.actions)
    if opened.logged is not None:
        return log_job(opened.logged, steps=config.steps, learner=learner)
    assert config.arms is not None
    world = ArmsWorld(config.arms, pulls=config.pulls, seed=config.seed)
    return arms_job(world, actor=PolicyActor(opened.policy, opened.actions), learner=learner)


def log_job(logged: LoggedDecisions, *, steps: int, learner: BanditLearner) -> TrainingJob[BanditPolicy]:
    """Training job on logged decisions. It has no evaluation: `hone estimate` judges the policy on a later log."""
    return TrainingJob(
        recipe=Recipe(
            source=_LogPass[BanditPolicy](logged.episodes, steps), credit=reward_as_advantage, learner=learner
        ),
        save_policy=lambda folder: _save(learner.policy, folder),
        load_policy=lambda folder: load_into(learner.model, folder),
        dataset_fingerprint=logged.fingerprint,
    )


def arms_job(
    world: ArmsWorld, *, actor: PolicyActor | ThompsonActor, learner: BanditLearner
) -> TrainingJob[BanditPolicy]:
    """Training job on simulated arms; its evaluation is the expected reward of the arm that the model believes best."""

    def judge() -> EvaluationResult:
        context = generator(world.seed, "judge").standard_normal((EVALUATION_CONTEXTS, feature_count(world.config)))
        worth = world.expected_rewards(context)
        chosen = worth[np.arange(EVALUATION_CONTEXTS), learner.model.mean_rows(context, learner.actions).argmax(axis=1)]
        estimate = bootstrap_mean(chosen)
        share = float(chosen.mean() / worth.max(axis=1).mean())
        return EvaluationResult(estimate=estimate, metrics={"eval/score": estimate.mean, "eval/of_best": share})

    return TrainingJob(
        recipe=Recipe(source=LiveSource(world, actor), credit=reward_as_advantage, learner=learner),
        save_policy=lambda folder: _save(learner.policy, folder),
        load_policy=lambda folder: load_into(learner.model, folder),
        rollouts=episode_table,
        evaluate=judge,
    )


def arm_count(arms: BernoulliArms | LinearArms | None) -> int:
    """Number of arms."""
    assert arms is not None
    return len(arms.rates) if isinstance(arms, BernoulliArms) else arms.arms


def feature_count(arms: BernoulliArms | LinearArms | None) -> int:
    """Features of a context; 0 for arms without contexts."""
    return arms.features if isinstance(arms, LinearArms) else 0


def _save(policy: BanditPolicy, folder: Path) -> None:
    save_policy(policy, folder)
