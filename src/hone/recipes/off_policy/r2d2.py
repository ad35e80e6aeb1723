"""R2D2: recurrent double DQN on replayed sequences with stored states and burn-in (Kapturowski et al., 2019).

The policy reads each observation through a GRU or LSTM, so that it may act by what it saw before. The replay buffer
keeps the pieces of episodes that rollouts of `replay.collect` steps leave, each with the state that the acting policy
had before it. That state is stale: a sampled piece is read behind the piece before it, whose decisions rebuild the
state without a gradient. y = h(sum of n rewards + discount^n h^-1(Q_target(s_n, argmax Q(s_n, .)))), within the piece;
h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x. A sequence is sampled by 0.9 max + 0.1 mean of its absolute errors.
"""

from functools import partial

from pydantic import Field

from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.encoding import RecurrentUnitConfig
from hone.control.networks.memory import RecurrentDqnPolicy
from hone.control.networks.mlp import EncodedMlpConfig, MlpConfig, PolicySpaces
from hone.control.normalise import NormaliseConfig, with_normalisation
from hone.control.off_policy import (
    IterationReplayConfig,
    OffPolicyMethod,
    ScheduledExplorer,
    off_policy_parts,
)
from hone.control.phases import optimizer_phase
from hone.control.recurrent_rows import (
    RecurrentValueRows,
    recurrent_objective,
    recurrent_value_rows,
)
from hone.control.replay.sequences import SequenceBuffer
from hone.control.value_based import ScheduledValueRunConfig, ValueAlgorithm, followers
from hone.control.value_rows import PrioritizedBuffer, priority_schedule, with_recency
from hone.core.config import new_default
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.terms import LossTerms
from hone.run.job import RecipeSpec, RunSettings


class RecurrentValueNetworkConfig(EncodedMlpConfig):
    """Network that computes action values: encoder of observations, recurrent unit, hidden layers."""

    memory: RecurrentUnitConfig = RecurrentUnitConfig(kind="gru")
    """The recurrent unit."""
    dueling: bool = False
    """A value and advantages in place of action values (Wang et al., 2016), as the paper has them."""


class R2d2Algorithm(ValueAlgorithm):
    """DQN's numbers, and those of sequences."""

    length: int = Field(default=5, ge=1)
    """Steps that a target looks ahead, within a sequence."""
    burn_in: bool = True
    """Read each sequence behind the one before it, to rebuild the state of the memory; otherwise from the stored
    state."""
    rescale: bool = True
    """Learn h(return) instead of the return, so that one learning rate serves returns of any size."""
    double: bool = True
    """Select the next action by the network that learns, and evaluate it by the target network."""
    exponent: float = Field(default=0.9, ge=0, le=1)
    """Exponent of the priorities: 0 samples uniformly, 1 in proportion to the error."""
    correction: float = Field(default=0.6, ge=0, le=1)
    """Exponent of the importance weights at the first iteration; at the last it is 1."""
    mix: float = Field(default=0.9, ge=0, le=1)
    """Share of the largest absolute error in a sequence's priority; the rest is the mean."""
    average_rate = new_default(0.001)


class R2d2Config(ScheduledValueRunConfig):
    """Recurrent deep Q-learning."""

    run = new_default(RunSettings(threads=1, log_every=50, checkpoint_every=500))
    learner = new_default(ReplayLearnerConfig(lr=1e-3, max_grad_norm=10.0, updates_per_iteration=8))
    replay = new_default(
        IterationReplayConfig(collect=32, batch=16),
        "The replay buffer: an update has `batch` sequences, of up to `collect` decisions.",
    )
    network: RecurrentValueNetworkConfig = RecurrentValueNetworkConfig(hidden=[64], activation="relu")  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The Q network."""
    algorithm: R2d2Algorithm = R2d2Algorithm()
    """Discount, target network, sequences and priorities."""

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        return encoded_spaces(spaces, self.network)

    def describe_update(self) -> str:
        return f"{self.replay.batch} sequences of up to {self.replay.collect} decisions"

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[RecurrentDqnPolicy]:
        """Network, replay buffer of sequences, behaviour policy and target updates."""
        chosen, replay, network = self.algorithm, self.replay, self.network
        plain = MlpConfig(hidden=network.hidden, activation=network.activation)
        policy = RecurrentDqnPolicy(spaces, plain, seed=self.seed, memory=network.memory, dueling=network.dueling).to(
            self.run.device
        )
        capacity = max(1, replay.capacity // replay.collect)
        priorities = priority_schedule(chosen.exponent, chosen.correction, iterations=self.steps)
        buffer = PrioritizedBuffer(
            capacity,
            discount=chosen.discount,
            priorities=with_recency(priorities, replay.half_life / replay.collect),
            sequences=SequenceBuffer(capacity, length=replay.collect, burn_in=chosen.burn_in),
        )

        def layout(episodes: Episodes, credits: Credits, _: int) -> RecurrentValueRows:
            return recurrent_value_rows(policy, buffer, episodes, credits, steps=chosen.length)

        def on_micro_batch(rows: RecurrentValueRows, terms: LossTerms) -> None:
            errors = terms.metrics["value/error_abs"]
            buffer.add_errors(rows.sample_index, rows.priorities(errors, mix=chosen.mix))

        phase = optimizer_phase(
            "values",
            partial(recurrent_objective, rescale=chosen.rescale, double=chosen.double),
            policy.values.parameters(),
            self.learner,
        )
        phase.on_micro_batch, phase.step_metrics = on_micro_batch, buffer.finish_step
        normalise = NormaliseConfig(observations=chosen.normalise_observations and spaces.inputs.has_scale)
        updates = self.learner.optimizer_steps(1)
        return OffPolicyMethod(
            policy=policy,
            phases=[phase],
            layout=layout,
            credit=buffer.credit,
            buffer=buffer,
            actor=ScheduledExplorer(policy.numpy_policy(), exploration_policy=self.exploration_policy),
            wrap_source=lambda source: with_normalisation(
                source, normalise, size=spaces.inputs.number_size, discount=chosen.discount
            ),
            after_step=followers(policy.values, policy.target, policy.average, chosen, updates=updates),
            shuffle=True,
        )


ENTRY = RecipeSpec(
    summary="recurrent double DQN on prioritized sequences with stored states and burn-in",
    paper="Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, 2019",
    config=R2d2Config,
    limitation="finite actions only; targets end with their sequence, and its states are those of older weights.",
    parts=off_policy_parts(
        R2d2Config.method, recurrent_objective, source="Replay(Live(Gymnasium)), sequences by priority"
    ),
)
