"""A policy and a critic on text, as a config of recipes names them: the critic's start, its loss and its steps."""

from functools import partial
from pathlib import Path

from pydantic import Field

from hone.core.config import Config
from hone.core.errors import DataError, ErrorCollector
from hone.learner.config import learning_rate_schedule, policy_phase
from hone.learner.gradient import ComputeCost, GradientLearner
from hone.learner.share import shared_network
from hone.models.language.scalar_head import ValueNetwork, scored_tokens
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.weights import token_mean
from hone.run.saved_config import policy_folder
from hone.text.advantages import DecisionUnit
from hone.text.critic import ActorCriticLearner, CriticLossConfig, CriticView, SquaredErrorLoss
from hone.text.evaluate.open_policy import ModelSource, open_tokenizer
from hone.text.evaluate.reward_members import load_reward_model
from hone.text.flops import attended_pairs, forward_flops
from hone.text.learners import step_layout
from hone.text.loss import TokenLossSpec
from hone.text.reference_policies import TextPolicies
from hone.text.rl import TextGradientRunConfig, gradient_learner
from hone.text.rows import TokenBatch


class CriticConfig(Config):
    """The critic: a network of the policy's kind with its own optimizer steps. Keys of `[learner]` that are not here
    (minibatches, schedule, clipping of gradients) hold for both."""

    path: str | None = Field(default=None, min_length=1)
    """Initial weights: a folder of a reward model or of a policy with the policy's tokens, a run of hone or one of its
    checkpoints; unset: the policy that the run starts from."""
    loss: CriticLossConfig = SquaredErrorLoss()
    """Its values and their loss: `squared`, `sigmoid` for returns between two bounds such as scores in [0, 1], or
    `bins`, a classification."""
    lr: float | None = Field(default=None, gt=0)
    """Its peak learning rate; unset: `learner.lr`."""
    epochs: int = Field(default=1, ge=1)
    """Its passes over each step's episodes."""
    warmup_steps: int = Field(default=0, ge=0)
    """First iterations, in which the critic learns and the policy does not: a critic that begins with wrong values
    leads the policy astray (VC-PPO)."""

    def require_fit(self, tokenizer: Tokenizer, longest: int) -> None:
        """Raise DataError for a folder with another tokenizer than the policy's, or a shorter context than the
        `longest` prompt and answer, in tokens. A folder that cannot be read is told of by another check."""
        if self.path is None:
            return
        where = f"algorithm.critic.path = {self.path!r}"
        theirs, reads = open_tokenizer(ModelSource(path=self.path))
        faults, known = ErrorCollector(DataError), tokenizer.backend.get_vocab()
        if theirs.backend.get_vocab() != known:
            faults.add(
                f"{where}: its tokenizer ({theirs.size} tokens) is not the policy's ({tokenizer.size} tokens), so "
                "it cannot judge the policy's tokens; take a model of the same family, or leave it out"
            )
        if reads < longest:
            faults.add(
                f"{where}: it reads {reads} tokens, and the longest prompt with its answer has {longest}; lower "
                "rollout.max_tokens, shorten prompts, or leave it out"
            )
        faults.raise_if_any()


class AdvantageEstimation(Config):
    """Generalised advantage estimation over the sampled tokens or over turns, with a lambda of its own for the critic's
    targets."""

    unit: DecisionUnit = "token"
    """A decision, which discount and lambda count: a sampled token, or a turn of a dialogue, whose tokens share its
    advantage and its value target, and of which the critic is asked at the beginning."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount factor (gamma) of a decision."""
    policy_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the advantages: 0 trusts the critic, 1 the returns."""
    length_scale: float | None = Field(default=None, gt=0)
    """Length-adaptive lambda of the advantages, 1 - 1 / (length_scale x decisions of the answer), in place of
    `policy_lambda` (VAPO: 0.05); unset: `policy_lambda`."""
    critic_lambda: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the critic's targets: 1 takes the returns, which its own errors cannot bias (VC-PPO)."""


def actor_critic_learner(
    config: TextGradientRunConfig, policies: TextPolicies, loss: TokenLossSpec, critic: CriticConfig
) -> ActorCriticLearner:
    """The policy's learner with `loss`, and beside it the critic's."""
    actor = gradient_learner(config, policies, loss)
    network = shared_network(_open_critic(config, policies, critic))
    budget = config.learner.micro_batch_tokens
    mixed = network.decoder.is_mixed_precision
    layout = step_layout(token_mean, config.learner, config.run, mixed_precision=mixed)
    view = CriticView(critic.loss, layout, budget, config.rollout.learnable)
    learning = config.learner.model_copy(update={"lr": critic.lr or config.learner.lr, "epochs": critic.epochs})

    def cost(network: ValueNetwork, batch: TokenBatch) -> ComputeCost:
        """A forward and a backward pass over `batch`, and its share of the passes for values before the update: for the
        advantages, and for a clipped loss."""
        tokens = len(batch.packed.tokens)
        pairs = attended_pairs(network.decoder.config, batch.packed.positions)
        forward = forward_flops(network.decoder.config, tokens=tokens, logits=0, pairs=pairs)
        before = (1 + (batch.old_value is not None)) / learning.epochs
        return ComputeCost(tokens=tokens * (1 + before), flops=forward * (3 + before))

    learner = GradientLearner(
        policy=network,
        layout=partial(view.rows, network),
        phases=[policy_phase(network, view.objective, learning, name="critic")],
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        epochs=learning.epochs,
        minibatches=learning.minibatches,
        shuffle=learning.minibatches > 1,
        micro_batch_tokens=budget,
        compute_cost=cost,
    )
    return ActorCriticLearner(actor=actor, critic=learner, view=view, warmup_steps=critic.warmup_steps)


def _open_critic(config: TextGradientRunConfig, policies: TextPolicies, critic: CriticConfig) -> ValueNetwork:
    """The critic as it starts. Raises DataError for a damaged folder; `require_fit` has been asked."""
    policy, outputs, model = policies.policy, critic.loss.outputs, config.model
    scorer = None
    if critic.path is not None and scored_tokens(policy_folder(Path(critic.path))) is not None:
        scorer = load_reward_model(critic.path, model.weights, device=config.run.device, tokenizer=policy.tokenizer)
        decoder = scorer.decoder
        decoder.set_compute_dtype("bfloat16" if policy.decoder.is_mixed_precision else model.weights)
    else:
        decoder = policies.open_frozen(critic.path).decoder
    decoder.requires_grad_(requires_grad=True)
    decoder.save_memory_like(policy.decoder)
    network = ValueNetwork(decoder, outputs=outputs)
    if scorer is not None and outputs == 1:
        network.take_head(scorer)
    return network
