"""Thompson sampling on bandit arms (Thompson, 1933): act on a draw from the posterior, update it in closed form.

Beta-Bernoulli for arms with rewards 0 or 1, linear-Gaussian for arms whose reward is linear in the context (Agrawal &
Goyal, 2013).
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.credit.returns import reward_as_advantage
from hone.decide.bandits.greedy import thompson_policy
from hone.decide.bandits.learning import BanditLearner, ThompsonActor
from hone.decide.bandits.models import BetaBernoulliPosterior, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.simulators.drifting import ArmsWorld, BernoulliArms, LinearArms
from hone.decide.training.job import (  # fmt: skip
    BanditRunConfig,
    LoggedDecisions,
    arm_count,
    arms_job,
    feature_count,
    log_job,
    read_decisions,
)
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run

ThompsonPosterior: TypeAlias = BetaBernoulliPosterior | LinearGaussianPosterior


class BetaModel(Config):
    """Each arm's rate ~ Beta(alpha, beta)."""

    kind: Literal["beta"] = "beta"
    """Names this alternative."""
    alpha: float = Field(default=1.0, gt=0)
    """Prior successes."""
    beta: float = Field(default=1.0, gt=0)
    """Prior failures."""


class LinearModel(Config):
    """Each arm pays a linear function of the context, with normal weights and noise."""

    kind: Literal["linear"]
    """Names this alternative."""
    noise: float = Field(default=0.5, gt=0)
    """Assumed standard deviation of a reward around its mean."""
    prior_precision: float = Field(default=1.0, gt=0)
    """Precision (1 / variance) of the prior of a weight."""
    intercept: bool = False
    """Add a feature that is always 1, for rewards that are not 0 where all features are."""


class ThompsonConfig(BanditRunConfig):
    """Thompson sampling."""

    model: Annotated[BetaModel | LinearModel, Field(discriminator="kind")] = BetaModel()
    """Prior of the posterior distribution over the arms' rewards."""

    def open(self) -> OpenedRun:
        """The prior of the arms. Raises ConfigError as `make_posterior`, DataError for a damaged log."""
        logged = None if self.log is None else read_decisions(self.log, steps=self.steps)
        return opened_run(_OpenedThompson(posterior=make_posterior(self, logged), logged=logged), _build)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedThompson:
    """A prior, and the logged decisions if it is updated by a log."""

    posterior: ThompsonPosterior
    logged: LoggedDecisions | None


def _build(config: ThompsonConfig, opened: _OpenedThompson) -> TrainingJob[BanditPolicy]:
    """Training job that updates the prior."""
    posterior, policy = opened.posterior, thompson_policy(opened.posterior)
    if opened.logged is not None:
        learner = BanditLearner(policy, posterior, opened.logged.actions)
        return log_job(opened.logged, steps=config.steps, learner=learner)
    assert config.arms is not None
    world = ArmsWorld(config.arms, pulls=config.pulls, seed=config.seed)
    actions = numbered_actions(world.arms)
    learner = BanditLearner(policy, posterior, actions)
    return arms_job(world, actor=ThompsonActor(policy, posterior, actions), learner=learner)


def make_posterior(config: ThompsonConfig, logged: LoggedDecisions | None) -> ThompsonPosterior:
    """Prior of the arms: Beta-Bernoulli or linear-Gaussian, as the config says. Raises ConfigError where the model does
    not fit the arms' rewards."""
    model, arms = config.model, config.arms
    if isinstance(model, BetaModel):
        if isinstance(arms, LinearArms):
            raise ConfigError(
                'model.kind = "beta" learns from 0 and 1; arms.kind = "linear" pays other rewards: use "linear"'
            )
        count = arm_count(arms) if logged is None else len(logged.actions)
        return BetaBernoulliPosterior(count, alpha=model.alpha, beta=model.beta)
    if isinstance(arms, BernoulliArms):
        raise ConfigError('model.kind = "linear" needs contexts, and arms.kind = "bernoulli" has none; use "beta"')
    count, features = (
        (arm_count(arms), feature_count(arms))
        if logged is None
        else (len(logged.actions), logged.episodes.observations.shape[1])
    )
    return LinearGaussianPosterior(
        count, features, noise=model.noise, prior_precision=model.prior_precision, intercept=model.intercept
    )


ENTRY = RecipeSpec(
    summary="bandits: act on a draw from the posterior",
    paper="Thompson, On the likelihood that one unknown probability exceeds another, 1933",
    config=ThompsonConfig,
    parts=RecipeParts(source="Live(arms)", credit=(reward_as_advantage,), loss=(BanditLearner.update,)),
    limitation="the model must be of the arms' kind: a posterior that cannot be right is sure of something wrong.",
)
