"""Thompson sampling on bandit arms (Thompson, 1933): act on a draw from the posterior, update it in closed form.

Beta-Bernoulli for arms with rewards 0 or 1, linear-Gaussian for arms whose reward is linear in the context (Agrawal &
Goyal, 2013).
"""

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from hone.bandits.learning import BanditLearner, ThompsonActor
from hone.bandits.linear import LinearGaussianPosterior
from hone.bandits.policy import BanditPolicy, numbered_actions
from hone.bandits.posteriors import BetaBernoulliPosterior
from hone.bandits.saving import load_into, save_policy
from hone.bandits.thompson import thompson_policy
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.credit.returns import reward_as_advantage
from hone.envs.bandit_arms import ArmsWorld, BanditArms, BernoulliArms, LinearArms
from hone.estimators.means import bootstrap_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.job import EvaluationResult, OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource

EVALUATION_CONTEXTS = 1000
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


class ThompsonConfig(RunConfig):
    """A bandit."""

    run: RunSettings = RunSettings(threads=1, log_every=20)
    """Threads, logging, checkpoints and other settings of the run."""
    arms: BanditArms
    """The arms."""
    model: Annotated[BetaModel | LinearModel, Field(discriminator="kind")] = BetaModel()
    """Prior of the posterior distribution over the arms' rewards."""
    pulls: int = Field(default=1, ge=1)
    """Decisions per iteration, made before any of their rewards is observed."""


def build(config: ThompsonConfig, posterior: ThompsonPosterior) -> TrainingJob[BanditPolicy]:
    """Training job that updates `posterior`, the prior of the arms."""
    world = ArmsWorld(config.arms, pulls=config.pulls, seed=config.seed)
    policy, actions = thompson_policy(posterior), numbered_actions(world.arms)
    recipe = Recipe(
        source=LiveSource(world, ThompsonActor(policy, posterior, actions)),
        credit=reward_as_advantage,
        learner=BanditLearner(policy, posterior, actions),
    )

    def judge() -> EvaluationResult:
        """Expected reward of the arm believed best, and as a share of the truly best."""
        features = world.theta.shape[1] if isinstance(config.arms, LinearArms) else 0
        context = generator(config.seed, "judge").standard_normal((EVALUATION_CONTEXTS, features))
        worth = world.expected_rewards(context)
        chosen = worth[np.arange(EVALUATION_CONTEXTS), posterior.estimate_rows(context, actions).mean.argmax(axis=1)]
        estimate = bootstrap_mean(chosen)
        share = float(chosen.mean() / worth.max(axis=1).mean())
        return EvaluationResult(estimate=estimate, metrics={"eval/score": estimate.mean, "eval/of_best": share})

    return TrainingJob(
        recipe=recipe,
        save_policy=lambda folder: save_policy(policy, folder),
        load_policy=lambda folder: load_into(posterior, folder),
        evaluate=judge,
    )


def make_posterior(config: ThompsonConfig) -> ThompsonPosterior:
    """Prior of the arms: Beta-Bernoulli or linear-Gaussian, as the config says. Raises ConfigError where the model does
    not fit the arms' rewards."""
    model = config.model
    if isinstance(config.arms, BernoulliArms):
        if isinstance(model, BetaModel):
            return BetaBernoulliPosterior(len(config.arms.rates), alpha=model.alpha, beta=model.beta)
        raise ConfigError('model.kind = "linear" needs contexts, and arms.kind = "bernoulli" has none; use "beta"')
    if isinstance(model, BetaModel):
        raise ConfigError(
            'model.kind = "beta" learns from 0 and 1; arms.kind = "linear" pays other rewards: use "linear"'
        )
    return LinearGaussianPosterior(
        config.arms.arms, config.arms.features, noise=model.noise, prior_precision=model.prior_precision
    )


def open_run(config: ThompsonConfig) -> OpenedRun:
    """The prior of the arms. Raises ConfigError as `make_posterior`."""
    return opened_run(make_posterior(config), build)


def derive(config: ThompsonConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    return {"pulls": f"{config.steps} iterations x {config.pulls} = {config.steps * config.pulls}"}


ENTRY = RecipeSpec(
    summary="bandits: act on a draw from the posterior",
    paper="Thompson, On the likelihood that one unknown probability exceeds another, 1933",
    config=ThompsonConfig,
    open=open_run,
    derive=derive,
    parts=RecipeParts(source="Live(arms)", credit=(reward_as_advantage,), loss=(BanditLearner.update,)),
    limitation="the model must be of the arms' kind: a posterior that cannot be right is sure of something wrong.",
)
