"""The table `[policy]` of a service file: which policy serves, and how it learns from rewards."""

from abc import abstractmethod
from typing import ClassVar, Literal, TypeAlias

from pydantic import Field

from hone.core.config import Config
from hone.decide.bandits.greedy import BoltzmannPolicy, EpsilonGreedyPolicy, SquareCbPolicy
from hone.decide.bandits.linear import JointLinearPosterior, LinearGaussianPosterior
from hone.decide.bandits.models import RewardModel
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.thompson import thompson_policy
from hone.decide.bandits.ucb import LinUcbPolicy


class UniformServiceConfig(Config):
    """Every action with equal probability: the first data of a new service."""

    needs_actions: ClassVar[bool] = False
    kind: Literal["uniform"] = "uniform"
    """Names this alternative."""


class FolderServiceConfig(Config):
    """A saved policy: a bandit's folder, or the checkpoint of a run. It does not learn while it serves."""

    needs_actions: ClassVar[bool] = False
    kind: Literal["folder"]
    """Names this alternative."""
    path: str = Field(min_length=1)
    """The folder, or a run's name."""
    floor: float = Field(default=0.02, ge=0, le=1)
    """Probability of a uniform action; 0: the policy as it is."""
    guard: bool = True
    """Let it act on a thread of its own, so that a late answer falls back at the deadline."""


class LearningServiceConfig(Config):
    """What all learning policies have: a linear model of each action's reward, and a floor."""

    needs_actions: ClassVar[bool] = True
    floor: float = Field(default=0.02, gt=0, le=1)
    """Probability of a uniform action: without it no other policy can be estimated from the log."""
    noise: float = Field(default=1.0, gt=0)
    """Standard deviation of a reward around its mean."""
    prior_precision: float = Field(default=1.0, gt=0)
    """Strength of the ridge penalty."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Weight of old rewards at each new one; below 1 the policy follows drift."""
    publish_every: int = Field(default=100, ge=1)
    """Rewards between two published versions."""

    def reward_model(self, arms: int, features: int, action_features: int) -> RewardModel:
        """The model: joint over the features of actions where there are some, else one for each of `arms` actions."""
        noise, precision, discount = self.noise, self.prior_precision, self.discount
        if action_features:
            return JointLinearPosterior(
                features, action_features, noise=noise, prior_precision=precision, discount=discount
            )
        return LinearGaussianPosterior(
            arms, features, intercept=True, noise=noise, prior_precision=precision, discount=discount
        )

    @abstractmethod
    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """The policy without its floor."""


class LinUcbServiceConfig(LearningServiceConfig):
    """LinUCB: optimism in the face of uncertainty (Li et al., 2010)."""

    kind: Literal["linucb"]
    """Names this alternative."""
    alpha: float = Field(default=1.0, ge=0)
    """Width of the confidence bound, in standard deviations."""

    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """LinUCB over a model."""
        return LinUcbPolicy(model, self.alpha)


class ThompsonServiceConfig(LearningServiceConfig):
    """Thompson sampling, its probabilities by quadrature."""

    kind: Literal["thompson"]
    """Names this alternative."""

    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """Thompson sampling over a model."""
        return thompson_policy(model)


class EpsilonGreedyServiceConfig(LearningServiceConfig):
    """Epsilon-greedy."""

    kind: Literal["epsilon_greedy"]
    """Names this alternative."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Probability of a uniform action, beside the floor."""

    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """Epsilon-greedy over a model."""
        return EpsilonGreedyPolicy(model, self.epsilon)


class BoltzmannServiceConfig(LearningServiceConfig):
    """Boltzmann exploration: softmax of the expected rewards."""

    kind: Literal["boltzmann"]
    """Names this alternative."""
    temperature: float = Field(default=0.1, gt=0)
    """Temperature, in units of the reward."""

    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """Softmax over a model."""
        return BoltzmannPolicy(model, self.temperature)


class SquareCbServiceConfig(LearningServiceConfig):
    """SquareCB: inverse gap weighting (Foster and Rakhlin, 2020)."""

    kind: Literal["squarecb"]
    """Names this alternative."""
    gamma_scale: float = Field(default=10.0, gt=0)
    """Scale of the learning rate."""
    gamma_exponent: float = Field(default=0.5, ge=0)
    """Power of the number of rewards in the learning rate."""

    def policy_of(self, model: RewardModel) -> BanditPolicy:
        """SquareCB over a model."""
        return SquareCbPolicy(model, self.gamma_scale, self.gamma_exponent)


ServicePolicy: TypeAlias = (
    UniformServiceConfig
    | FolderServiceConfig
    | LinUcbServiceConfig
    | ThompsonServiceConfig
    | EpsilonGreedyServiceConfig
    | BoltzmannServiceConfig
    | SquareCbServiceConfig
)
