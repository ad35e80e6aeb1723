"""Online DPO: pairs that the policy draws itself, the best and the worst answer of each prompt (Guo et al., 2024).

A reward (a function, a reward model or a judge) scores the answers to a prompt; the best is the chosen one, the worst
the rejected one, and equal scores make no pair. loss = DPO's, or a variant's, against the policy as the run started.
"""

from typing import ClassVar

from pydantic import model_validator

from hone.credit.grouping import LabelCredit, best_and_worst
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.objectives.preference import dpo
from hone.objectives.weights import sequence_sum
from hone.run.job import RecipeParts
from hone.text import recipe
from hone.text.preference.pair_losses import PairAlgorithm
from hone.text.preference.preference_job import answer_learner


class OnlineDpoConfig(recipe.TextRunConfig):
    """DPO on the policy's own answers."""

    requires = (recipe.require_groups,)
    labels: ClassVar[LabelCredit | None] = staticmethod(best_and_worst)

    algorithm: PairAlgorithm = PairAlgorithm()
    """The loss, and the implicit rewards that it compares."""
    learner: LearnerConfig
    """The optimizer."""

    @model_validator(mode="after")
    def _check_learner(self) -> "OnlineDpoConfig":
        require_whole_minibatches(self.learner, self.rollout.prompts_per_step, "rollout.prompts_per_step")
        require_master_weights(self.learner, self.model.weights)
        return self

    def other_policies(self) -> list[str]:
        return [] if self.algorithm.reference is None else [self.algorithm.reference]

    @classmethod
    def planned(cls) -> recipe.PlannedRecipe:
        return recipe.PlannedRecipe(rows=("rollout.prompts_per_step",), factor=2, writes=True)

    def micro_batch_tokens(self) -> int:
        return self.learner.micro_batch_tokens

    def derive_updates(self) -> dict[str, str]:
        learner = self.learner
        return {
            "pairs per step": f"at most {self.rollout.prompts_per_step}, the best and the worst answer of each prompt",
            "optimizer steps": f"{self.steps} x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        }

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        path = self.algorithm.reference
        reference = policies.reference() if path is None else policies.teacher(path, key="algorithm.reference")
        learner = answer_learner(
            self.learner, policies, self.algorithm.spec(), seed=self.seed, steps=self.steps, reference=reference
        )
        return recipe.TextMethod(credit=best_and_worst, learner=learner)


ENTRY = recipe.RecipeSpec(
    summary="DPO on the best and the worst of the policy's own answers, by any reward",
    paper="Guo et al., Direct Language Model Alignment from Online AI Feedback, 2024",
    config=OnlineDpoConfig,
    parts=RecipeParts(source=recipe.LIVE_SOURCE, credit=(best_and_worst,), loss=(dpo,), weights=(sequence_sum,)),
    limitation="two answers of a group are learnt from, and scores only by their order.",
)
