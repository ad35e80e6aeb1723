"""PPO with a critic for language models: a policy, a critic, a frozen reference, and a reward (Schulman et al., 2017).

A = GAE over the sampled tokens of values V and of rewards that hold -weight * k1 of each token, whitened over the step;
loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike. With `gae.unit = "turn"` a turn of a dialogue is one
decision: one delta, one step of discount and lambda, and one advantage for its tokens. The critic is a second decoder
with a head, stepped by its own loss against returns; it is warmed up alone, and has a lambda of its own (VC-PPO, VAPO,
2025).
"""

from dataclasses import replace
from functools import partial
from typing import Literal

from hone.credit.returns import decoupled_gae
from hone.objectives.value import squared_error
from hone.text import actor_critic, recipe


class PpoTextAlgorithm(recipe.ClipConfig):
    """Advantages, critic, price of the distance to the reference, and clip widths."""

    gae: actor_critic.AdvantageEstimation = actor_critic.AdvantageEstimation()
    """Discount factor and lambdas."""
    critic: actor_critic.CriticConfig = actor_critic.CriticConfig()
    """The critic."""
    kl_in_reward: recipe.KlCoef = recipe.FixedKlCoef(weight=0.0)
    """Coefficient of the KL penalty to the initial policy, in the reward of each token."""
    whiten: Literal["decisions", "none"] = "decisions"
    """Standardise the advantages over the step's tokens (`decisions`), or leave them (`none`)."""


def _require_longer_than_warmup(config: recipe.TextRunConfig) -> None:
    """A run that ends within the critic's warm-up trains no policy."""
    assert isinstance(config, PpoTextConfig)
    warmup = config.algorithm.critic.warmup_steps
    if config.steps and warmup >= config.steps:
        raise ValueError(
            f"algorithm.critic.warmup_steps = {warmup} of steps = {config.steps}: the policy would never be trained; "
            "lower the one, or raise the other"
        )


def _require_trained_weights(config: recipe.TextRunConfig) -> None:
    """The critic starts as the policy, and all of its weights are trained."""
    config.model.refuse_codes("the critic trains all of its weights")


class PpoTextConfig(recipe.TextGradientRunConfig):
    """PPO of a language model with a critic; groups of one answer are allowed."""

    requires = (_require_longer_than_warmup, _require_trained_weights)
    algorithm: PpoTextAlgorithm = PpoTextAlgorithm()
    """Advantages, critic and loss."""

    def other_policies(self) -> tuple[str, ...]:
        path = self.algorithm.critic.path
        return () if path is None else (path,)

    def check_folders(self, tokenizer: recipe.Tokenizer, longest: int) -> None:
        self.algorithm.critic.require_fit(tokenizer, longest)

    @classmethod
    def planned(cls) -> recipe.PlannedRecipe:
        return replace(super().planned(), networks={"critic": 4})

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen, gae = self.algorithm, self.algorithm.gae
        estimation = partial(
            decoupled_gae,
            discount=gae.discount,
            policy_lambda=gae.policy_lambda,
            critic_lambda=gae.critic_lambda,
            length_scale=gae.length_scale,
        )
        advantages = recipe.with_decision_unit(estimation, gae.unit)
        priced, memory = recipe.with_kl_reward(advantages, chosen.kl_in_reward, policies)
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = actor_critic.actor_critic_learner(self, policies, loss, chosen.critic)
        credit = recipe.with_whitening(priced, chosen.whiten)
        return recipe.TextMethod(credit=credit, learner=learner, credit_state=memory, pop_notes=learner.watch.pop_notes)


ENTRY = recipe.RecipeSpec(
    summary="PPO's clip with a critic: advantages token by token, and groups of one answer",
    paper="Schulman et al., Proximal Policy Optimization Algorithms, 2017; Yuan et al., VC-PPO, 2025; Yue et al., "
    "VAPO, 2025",
    config=PpoTextConfig,
    parts=recipe.text_parts(PpoTextConfig, squared_error),
    limitation="a second network of the policy's size, which steers with noise where it explains little.",
)
