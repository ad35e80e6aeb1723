"""Curiosity, as a config of recipes names it: the bonus for what surprises a world model, and how the model starts.

The world model is a copy of the policy that the run starts from, with its own optimizer steps on the environment's
tokens of every batch. It never answers, and the policy never learns the environment's tokens.
"""

from pydantic import Field

from hone.core.config import Config
from hone.learner.ranked_build import shared_network
from hone.objectives.weights import token_mean
from hone.text.imitation import token_nll
from hone.text.learners import token_learner
from hone.text.reference_policies import TextPolicies
from hone.text.rl_config import TextGradientRunConfig
from hone.text.rows import TokenLayout
from hone.text.world_model import WorldModel


class CuriosityConfig(Config):
    """Bonus for what surprises a world model."""

    weight: float = Field(default=0.1, ge=0)
    """Score of a nat of surprise, the mean of -log p over what the environment said in a dialogue."""
    max_nats: float = Field(default=5.0, gt=0)
    """Surprise beyond this pays no more."""
    lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of the world model; unset: `learner.lr`."""
    epochs: int = Field(default=1, ge=1)
    """Its passes over each batch."""


def open_world_model(config: TextGradientRunConfig, policies: TextPolicies, curiosity: CuriosityConfig) -> WorldModel:
    """The world model as it starts: a copy of the policy that the run starts from."""
    model = policies.open_frozen(None).requires_grad_(requires_grad=True)
    model.decoder.save_memory_like(policies.policy.decoder)
    model = shared_network(model)
    changes = {"lr": curiosity.lr or config.learner.lr, "epochs": curiosity.epochs, "minibatches": 1}
    learner = token_learner(
        config.learner.model_copy(update=changes),
        model,
        layout=TokenLayout(scheme=token_mean, pad_to_size=model.decoder.is_mixed_precision, device=config.run.device),
        objective=token_nll,
        seed=config.seed,
        steps=config.steps,
    )
    return WorldModel(learner=learner, logp=policies.logp(model))
