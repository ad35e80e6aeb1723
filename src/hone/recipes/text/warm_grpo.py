"""GRPO with a warm buffer: groups of collected answers, demonstrations among them, beside the policy's own.

Advantages and loss are GRPO's, with r = pi / pi of whoever wrote the answer, as recorded: a token that the policy has
made likelier than 1 + high times that counts no more, and one that it has made unlikely counts little. A batch holds
`share` of the buffer's groups (Zhang et al., Agent Learning via Early Experience, 2025; Hester et al., 2018).
"""

from functools import partial

from hone.sources.logged import MixedSource
from hone.text import recipe, warm


class WarmGrpoAlgorithm(warm.WarmAlgorithm):
    """The buffer, and the numbers of GRPO."""

    advantage: recipe.AdvantageConfig = recipe.AdvantageConfig()
    """Baseline, divisor and whitening of the advantages."""


class WarmGrpoConfig(warm.WarmRunConfig):
    """Group-relative policy optimisation with a warm buffer."""

    algorithm: WarmGrpoAlgorithm  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The buffer and the loss."""

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm
        log, notes = self.warm_log(policies)
        loss = recipe.clip_loss(chosen, recipe.aggregation_scheme(chosen, self.rollout.max_tokens))
        return recipe.TextMethod(
            credit=recipe.group_advantage(chosen.advantage),
            learner=recipe.gradient_learner(self, policies, loss),
            wrap_source=partial(MixedSource, log=log),
            pop_notes=notes,
        )


ENTRY = recipe.RecipeSpec(
    summary="GRPO with collected answers and demonstrations mixed into every batch",
    paper="Zhang et al., Agent Learning via Early Experience, 2025; Hester et al., Learning from Demonstrations, 2018",
    config=WarmGrpoConfig,
    limitation="what the policy has become unlikely to say is learnt slowly; an answer that nobody drew has only an "
    "estimated log-probability.",
)
