"""RL^2 (Duan et al., 2016; Wang et al., 2016): a recurrent policy whose hidden state does the learning.

A gated recurrent unit runs through whole trials, each a task of its own drawn from a family, and keeps its state from
one episode of a trial to the next. Proximal policy optimisation trains it to explore early and exploit late; once
trained, it learns a new task without a gradient. The defaults are those that match Thompson sampling on five Bernoulli
arms.
"""

from functools import partial

from hone.control import on_policy
from hone.control.environments.world import GymConfig, GymWorld
from hone.control.job import ControlEvaluationConfig
from hone.control.meta_rl import TrialRows, predict_trial_values, trial_rows, with_thompson_baseline
from hone.control.networks.mlp import MlpConfig, PolicySpaces
from hone.control.networks.recurrent import RecurrentActorCritic
from hone.control.spaces import world_spaces
from hone.core.config import new_default
from hone.learner.config import LearnerConfig, policy_phase
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.run.job import OpenedRun, RecipeSpec, RunSettings, TrainingJob


class Rl2Algorithm(on_policy.ClippedAlgorithm):
    """Credit and loss."""

    discount = new_default(0.9, "Discount factor (gamma), within a trial and across its episodes.")
    gae_lambda = new_default(0.3, "GAE's lambda.")
    entropy_weight = new_default(0.005)


class Rl2Config(on_policy.RolloutRunConfig):
    """Recurrent policy on trials."""

    run = new_default(
        RunSettings(threads=1, certify=False, log_every=10, checkpoint_every=100),
        "Threads, logging, checkpoints and other settings of the run; `certify` is off, because its invented episodes "
        "of uneven lengths are not trials.",
    )
    env: GymConfig
    """The task family: `hone/BanditTrials-v0`, `hone/ChainTrials-v0`, or one that marks the beginning of a trial."""
    rollout_steps = new_default(50, "Steps of each environment per iteration: a trial's `pulls`, or a multiple.")
    network = new_default(MlpConfig(hidden=[48]), "The recurrent unit: one layer.")
    learner = new_default(
        LearnerConfig(lr=1e-2, lr_decay="linear", epochs=3, minibatches=4, max_grad_norm=0.5),
        "The optimizer; `minibatches` of whole trials per epoch.",
    )
    algorithm: Rl2Algorithm = Rl2Algorithm()
    """Credit and loss."""
    evaluation = new_default(
        ControlEvaluationConfig(episodes=1000), "Trials of an evaluation, each with a task of its own."
    )

    def open(self) -> OpenedRun:
        return self.open_envs(_build, _require_fit)


def _objective(policy: RecurrentActorCritic, rows: TrialRows, *, algorithm: Rl2Algorithm) -> LossTerms:
    """Clipped surrogate + value_weight * value error - entropy_weight * entropy, through time."""
    now, clip = policy.evaluate_actions(rows.seen, rows.chosen), algorithm.clip
    surrogate = clipped_surrogate(now.logp, rows.logp.flatten(), rows.advantage.flatten(), low=clip, high=clip)
    return on_policy.actor_critic_loss(
        surrogate, now, rows.target.flatten(), algorithm.value_weight, algorithm.entropy_weight
    )


def _build(config: Rl2Config, world: GymWorld) -> TrainingJob[RecurrentActorCritic]:
    """Training job that acts in `world`."""
    policy, algorithm = RecurrentActorCritic(world_spaces(world), config.network, seed=config.seed), config.algorithm
    phase = policy_phase(policy, partial(_objective, algorithm=algorithm), config.learner)
    learner = on_policy.rollout_learner(
        config, config.learner, policy, [phase], layout=trial_rows, predict_values=predict_trial_values
    )
    credit = partial(on_policy.standardised_gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda)
    job = on_policy.rollout_job(config, world, credit, learner)
    return with_thompson_baseline(job, config.env, episodes=config.evaluation.episodes, seed=config.seed)


def _require_fit(config: Rl2Config, spaces: PolicySpaces) -> None:
    """Raises ConfigError for spaces and a network that make no recurrent policy."""
    RecurrentActorCritic(spaces, config.network, seed=0)


ENTRY = RecipeSpec(
    summary="meta-learning: a recurrent policy over whole trials",
    paper="Duan et al., RL^2: Fast Reinforcement Learning via Slow Reinforcement Learning, 2016",
    config=Rl2Config,
    parts=on_policy.control_parts(_build, source="Live(trials)"),
    limitation="generalises only to tasks of the training family, and to trials of the training length.",
)
