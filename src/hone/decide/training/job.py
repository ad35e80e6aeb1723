"""Wiring of the bandit recipes: arms or a log, a model of rewards, a rule that explores with it, and their evaluation.

Belongs here: what the recipes share. Does not: anything of one rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from hone.core.credit import Metrics
from hone.core.decisions import ActionSet
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.core.state import State, integer
from hone.credit.returns import reward_as_advantage
from hone.decide.bandits.learning import BanditLearner, PolicyActor, ThompsonActor
from hone.decide.bandits.models import JointLinearPosterior, LinearGaussianPosterior, RewardModel
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.saving import load_into, save_policy
from hone.decide.joins.parquet import read_view, view_hash
from hone.decide.simulators.drifting import ArmsWorld, BernoulliArms, LinearArms
from hone.decide.training.config import (
    BanditRunConfig,
    DecisionLogConfig,
    DisjointModel,
    JointModel,
    LinearBanditConfig,
)
from hone.estimators.means import bootstrap_mean
from hone.run.job import EvaluationResult, OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run
from hone.run.loop import Recipe
from hone.sources.live import LiveSource

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
class OpenedBandit:
    """A bandit before it has learnt anything, and what it learns from."""

    policy: BanditPolicy
    model: RewardModel
    actions: ActionSet
    logged: LoggedDecisions | None = None
    """None: it learns from the arms of its config."""


def bandit_recipe(
    *, summary: str, paper: str, config: type[C], rule: Callable[[C, RewardModel], BanditPolicy], limitation: str
) -> RecipeSpec:
    """Recipe of a bandit that explores by `rule(config, model)`."""

    def open_run(asked: C) -> OpenedRun:
        return opened_run(open_bandit(asked, lambda model: rule(asked, model)), _build_bandit)

    return RecipeSpec(
        summary=summary, paper=paper, config=config, open=open_run, derive=derive_bandit, limitation=limitation,
        parts=RecipeParts(source="Live(arms)", credit=(reward_as_advantage,), loss=(BanditLearner.update,)),
    )  # fmt: skip


def open_bandit(config: LinearBanditConfig, rule: Callable[[RewardModel], BanditPolicy]) -> OpenedBandit:
    """Prior of the config's model, and the logged decisions if it learns from a log.

    Raises ConfigError where model and decisions do not fit, DataError for a damaged log.
    """
    logged = None if config.log is None else read_decisions(config.log, steps=config.steps)
    if logged is None:
        actions, features = numbered_actions(arm_count(config.arms)), feature_count(config.arms)
    else:
        actions, features = logged.actions, logged.episodes.observations.shape[1]
    model = _make_model(config.model, features, actions)
    return OpenedBandit(policy=rule(model), model=model, actions=actions, logged=logged)


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


def _make_model(config: DisjointModel | JointModel, features: int, actions: ActionSet) -> RewardModel:
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


def _build_bandit(config: LinearBanditConfig, opened: OpenedBandit) -> TrainingJob[BanditPolicy]:
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
        evaluate=judge,
    )


def derive_bandit(config: BanditRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    if config.log is not None:
        return {"decisions": f"all of {config.log.path}, once, in {config.steps} parts"}
    return {"pulls": f"{config.steps} iterations x {config.pulls} = {config.steps * config.pulls}"}


def arm_count(arms: BernoulliArms | LinearArms | None) -> int:
    """Number of arms."""
    assert arms is not None
    return len(arms.rates) if isinstance(arms, BernoulliArms) else arms.arms


def feature_count(arms: BernoulliArms | LinearArms | None) -> int:
    """Features of a context; 0 for arms without contexts."""
    return arms.features if isinstance(arms, LinearArms) else 0


def _save(policy: BanditPolicy, folder: Path) -> None:
    save_policy(policy, folder)
