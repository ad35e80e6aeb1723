"""Pass@k training: answers are worth what they add to the best of k (Chen et al., 2025).

Of N answers W are wrong: P = 1 - C(W,k) / C(N,k), s = sqrt(P (1 - P)). A of a right one = (1 - P) / s, of a wrong one =
(1 - P - C(W-1,k-1) / C(N-1,k-1)) / s; loss = GRPO's clipped surrogate, every token alike. k = 1 is GRPO.
"""

from functools import partial

from pydantic import Field

from hone.credit.passk import pass_at_k
from hone.credit.shaping import binarised, with_shaped_scores
from hone.objectives.kl import kl_penalty
from hone.objectives.policy import clipped_surrogate
from hone.objectives.weights import token_mean
from hone.train.job import RecipeParts
from hone.train.text.loss_adapters import ClipConfig, clip_loss
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rl_job import TextGradientRunConfig, TextMethod, gradient_learner, require_groups, text_recipe_spec


class PasskAlgorithm(ClipConfig):
    """How many attempts count."""

    k: int = Field(ge=1)
    """Answers of which the best counts."""
    threshold: float = 1.0
    """An answer is right from this score on."""


def require_k_answers(config: "PasskConfig") -> None:
    samples = config.rollout.samples_per_prompt
    if samples < config.algorithm.k:
        raise ValueError(
            f"rollout.samples_per_prompt = {samples} is less than algorithm.k = {config.algorithm.k}: there is no best "
            "of k among fewer; raise the first or lower the second"
        )


class PasskConfig(TextGradientRunConfig):
    """Training for the best of k answers."""

    requires = (require_groups, require_k_answers)
    algorithm: PasskAlgorithm
    """Attempts, clip widths, penalties."""


def method(config: PasskConfig, policies: TextPolicies) -> TextMethod:
    chosen = config.algorithm
    credit = partial(
        with_shaped_scores,
        credit=partial(pass_at_k, k=chosen.k),
        shapings=[partial(binarised, threshold=chosen.threshold)],
    )
    return TextMethod(credit=credit, learner=gradient_learner(config, policies, clip_loss(chosen, token_mean)))


ENTRY = text_recipe_spec(
    summary="the advantage of all subsets of k answers, for scores of right and wrong",
    paper="Chen et al., Pass@k Training, 2025",
    config=PasskConfig,
    method=method,
    parts=RecipeParts(
        credit=(with_shaped_scores, binarised, pass_at_k), loss=(clipped_surrogate, kl_penalty), weights=(token_mean,)
    ),
    limitation="easy questions, which most subsets of k solve, teach next to nothing; pass@1 may suffer.",
)
