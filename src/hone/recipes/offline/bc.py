"""Behaviour cloning (Pomerleau, 1989): the policy under which the logged actions are likeliest."""

from hone.control.networks.actor_critic import ActorCritic, entropy_metrics
from hone.control.networks.mlp import GaussianMlpConfig, PolicySpaces
from hone.control.offline import OfflineRunConfig
from hone.control.phases import LearningMethod
from hone.control.rows import StepRows, split_decision_rows, step_rows
from hone.control.spaces import gaussian_spaces
from hone.core.config import new_default
from hone.credit.returns import reward_as_advantage
from hone.learner.config import ReplayLearnerConfig, policy_phase
from hone.objectives.offline import behaviour_cloning
from hone.objectives.terms import LossTerms
from hone.recipes.decision_logs import read_decisions
from hone.run.job import RecipeSpec, RunSettings


class BcConfig(OfflineRunConfig):
    """A policy from a log of decisions."""

    read_log = staticmethod(read_decisions)

    run = new_default(RunSettings(threads=1, log_every=100, checkpoint_every=5000))
    network: GaussianMlpConfig = GaussianMlpConfig(  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
        hidden=[256, 256], activation="relu"
    )
    """Shape of the policy's network, and form of a Gaussian policy."""
    learner = new_default(ReplayLearnerConfig(lr=1e-3, max_grad_norm=None), "The optimizer.")

    def method(self, spaces: PolicySpaces) -> LearningMethod[ActorCritic]:
        """The policy's network alone, on the log as it is."""
        own = gaussian_spaces(spaces, self.network)
        policy = ActorCritic(own, self.network, seed=self.seed, critic=False).to(self.run.device)
        return LearningMethod(
            policy=policy,
            phases=[policy_phase(policy, objective, self.learner)],
            layout=lambda decisions, credits, _: step_rows(decisions, credits, device=self.run.device),
            credit=reward_as_advantage,
            split=split_decision_rows,
        )


def objective(policy: ActorCritic, rows: StepRows) -> LossTerms:
    """-log probability of the logged action."""
    now = policy.evaluate_actions(rows.seen, rows.chosen, rows.mask)
    terms = behaviour_cloning(now.logp)
    return LossTerms(
        loss=terms.loss, compute_metrics=lambda: {**terms.metrics, **entropy_metrics(now.entropy().detach(), now.mask)}
    )


ENTRY = RecipeSpec(
    summary="imitation of a log",
    paper="Pomerleau, ALVINN: An Autonomous Land Vehicle in a Neural Network, 1989",
    config=BcConfig,
    limitation="as good as the log's own policy, and lost where the log has never been.",
)
