"""Pass@k training: answers are worth what they add to the best of k (Chen et al., 2025).

Of N answers W are wrong: P = 1 - C(W,k) / C(N,k), s = sqrt(P (1 - P)). A of a right one = (1 - P) / s, of a wrong one =
(1 - P - C(W-1,k-1) / C(N-1,k-1)) / s; loss = GRPO's clipped surrogate, every token alike. k = 1 is GRPO.
"""

from functools import partial

from hone.credit.passk import pass_at_k
from hone.credit.shaping import binarised, with_shaped_scores
from hone.text import recipe


class PasskAlgorithm(recipe.ClipConfig):
    """Number k of attempts, clip widths and penalties."""

    k: int = recipe.Field(ge=1)
    """k: the best of k answers counts."""
    threshold: float = 1.0
    """Lowest score of a right answer."""
    epsilon: float = recipe.Field(default=1e-6, ge=0)
    """Added to the standard deviation before it divides."""


def require_k_answers(config: "PasskConfig") -> None:
    """Raises ConfigError where a group has fewer than k answers."""
    samples = config.rollout.samples_per_prompt
    if samples < config.algorithm.k:
        raise ValueError(
            f"rollout.samples_per_prompt = {samples} is less than algorithm.k = {config.algorithm.k}: there is no best "
            "of k among fewer; raise the first or lower the second"
        )


class PasskConfig(recipe.TextGradientRunConfig):
    """Training for the best of k answers."""

    requires = (recipe.require_groups, require_k_answers)
    algorithm: PasskAlgorithm
    """Attempts, clip widths, penalties."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        credit = partial(
            with_shaped_scores,
            shapings=[partial(binarised, threshold=chosen.threshold)],
            credit=partial(pass_at_k, k=chosen.k, epsilon=chosen.epsilon),
        )
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        learner = recipe.gradient_learner(self, policies, loss)
        return recipe.TextMethod(credit=credit, learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="the advantage of all subsets of k answers, for scores of right and wrong",
    paper="Chen et al., Pass@k Training, 2025",
    config=PasskConfig,
    limitation="easy questions, which most subsets of k solve, teach next to nothing; pass@1 may suffer.",
)
