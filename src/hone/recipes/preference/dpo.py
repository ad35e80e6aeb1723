"""DPO: learn from pairs of answers without a reward model (Rafailov et al., 2023).

s = log pi(y) / pi_ref(y) of a whole answer; loss = -log sigmoid(beta (s_chosen - s_rejected)), the mean over pairs. The
reference is the policy as the run starts, asked once. `algorithm.loss.kind` names the variants, from IPO to AOT.
"""

from hone.objectives.preference import dpo
from hone.run.job import RecipeSpec
from hone.text.preference.answer_loss import AnswerLossSpec
from hone.text.preference.pair_losses import PairAlgorithm
from hone.text.preference.preference_job import PreferenceRunConfig, preference_parts


class DpoConfig(PreferenceRunConfig):
    """Direct preference optimisation."""

    algorithm: PairAlgorithm = PairAlgorithm()
    """The loss, and the implicit rewards that it compares."""

    def loss(self) -> AnswerLossSpec:
        return self.algorithm.spec()

    def reference(self) -> str | None:
        return self.algorithm.reference


ENTRY = RecipeSpec(
    summary="pairs of answers, one preferred: raise the margin between their log-ratios to the reference",
    paper="Rafailov et al., Direct Preference Optimization, 2023",
    config=DpoConfig,
    parts=preference_parts(DpoConfig, dpo),
    limitation="widens the margin even where both answers become less likely; it never sees its own answers.",
)
