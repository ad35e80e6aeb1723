"""Self-correction: two answers to each prompt, with a fixed nudge between them, in two stages (SCoRe, 2024).

Stage 1 pays the second answer and holds the first to the initial policy by a KL penalty on its tokens; stage 2 pays
both, the second with a multiple of its progress too. loss = -min(r A, clip(r, 1 - low, 1 + high) A), every token alike.
"""

from dataclasses import replace

from hone.credit.self_correction import SelfCorrectionCredit
from hone.text import recipe
from hone.text.evaluate.dialogues import SecondAnswer

NUDGE = "\nThere might be an error in the answer above. Correct it, if there is one, and answer again.\n"


class CorrectionStages(recipe.Config):
    """The nudge, and the pay of both answers in both stages."""

    nudge: str = recipe.Field(default=NUDGE, min_length=1)
    """Text between the two answers: a user's message in conversations."""
    first_stage_steps: int = recipe.Field(default=0, ge=0)
    """Iterations of the first stage, in which only the second answer is paid; the others are the second stage."""
    first_stage_kl: float = recipe.Field(default=2.0, ge=0)
    """Price of a nat per token that holds the first answer to the initial policy in the first stage, against advantages
    of about 1: with 0.3 the first answer follows the second, with 2 it stays."""
    progress_weight: float = recipe.Field(default=1.0, ge=0)
    """Factor of the progress, the second answer's score minus the first's, in the second's pay in the second stage; it
    gives the second answer 1 + this times the first's weight."""
    right_from: float = 1.0
    """Least score of a right answer, for the told shares of answers that became right and wrong."""


class SelfCorrectionAlgorithm(recipe.ClipConfig):
    """Stages, clip widths, and penalties in both stages."""

    correction: CorrectionStages = CorrectionStages()
    """The nudge and the stages."""


def _require_both_stages(config: recipe.TextRunConfig) -> None:
    """The second stage is what keeps the first answer good; rewards of steps are for single answers."""
    assert isinstance(config, SelfCorrectionConfig)
    first = config.algorithm.correction.first_stage_steps
    if config.steps and first >= config.steps:
        raise ValueError(
            f"algorithm.correction.first_stage_steps = {first} of steps = {config.steps} leaves no second stage; lower "
            "the one, or raise the other"
        )
    if config.rewards.step_end:
        raise ValueError(
            f"rewards.step_end = {config.rewards.step_end!r}: a conversation of two answers has scores of answers, not "
            "of steps; leave it out"
        )


class SelfCorrectionConfig(recipe.TextGradientRunConfig):
    """Self-correction by two answers to each prompt."""

    requires = (recipe.require_groups, _require_both_stages)
    algorithm: SelfCorrectionAlgorithm = SelfCorrectionAlgorithm()
    """Stages and loss."""

    def second_answer(self) -> SecondAnswer:
        chosen = self.algorithm.correction
        return SecondAnswer(chosen.nudge, chosen.right_from)

    @classmethod
    def planned(cls) -> recipe.PlannedRecipe:
        return replace(super().planned(), answers=2)

    def method(self, policies: recipe.TextPolicies) -> recipe.TextMethod:
        chosen = self.algorithm.correction
        held_to = policies.reference() if chosen.first_stage_steps else policies.policy
        credit = SelfCorrectionCredit(
            first_stage_steps=chosen.first_stage_steps,
            first_stage_kl=chosen.first_stage_kl,
            progress_weight=chosen.progress_weight,
            reference=policies.logp(held_to),
            right_from=chosen.right_from,
        )
        loss = recipe.clip_loss(self.algorithm, recipe.aggregation_scheme(self.algorithm, self.rollout.max_tokens))
        return recipe.TextMethod(
            credit=credit, learner=recipe.gradient_learner(self, policies, loss), credit_state=credit
        )


ENTRY = recipe.RecipeSpec(
    summary="two answers with a nudge between them, paid for correcting the first",
    paper="Kumar et al., Training Language Models to Self-Correct via Reinforcement Learning, 2024",
    config=SelfCorrectionConfig,
    limitation="two answers per prompt are generated, in training and in use; the gain is what a second look adds.",
)
