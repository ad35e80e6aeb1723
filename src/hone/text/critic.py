"""The critic of a language model: a network of its own with its own optimizer steps, beside the policy's learner.

Belongs here: values of decisions, the critic's rows and steps, its warm-up, and what is told about it. Does not:
advantages (`credit.decoupled_gae`), how a value is represented (`value_losses`).
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError, ErrorCollector
from hone.core.ragged import ranges
from hone.core.state import State, integer, number, substate
from hone.learner.config import learning_rate_schedule, policy_phase
from hone.learner.gradient import GradientLearner
from hone.learner.metrics import ComputeCost
from hone.learner.parameter_store import ParameterStore
from hone.learner.ranked_build import shared_network
from hone.learner.stored_weights import restore_weights, stored_weights
from hone.models.language.scalar_head import scored_tokens
from hone.models.language.tokenizers import Tokenizer
from hone.models.language.value_network import ValueNetwork
from hone.objectives.distributional import ValueSupport, c51_loss, hl_gauss, logits_mean, two_hot
from hone.objectives.terms import LossTerms
from hone.objectives.value import bounded_cross_entropy, clipped_value, squared_error
from hone.objectives.weights import token_mean
from hone.run.policy_folder import policy_folder
from hone.text.advantages import DecisionUnit
from hone.text.evaluate.open_policy import ModelSource, open_tokenizer
from hone.text.evaluate.reward_models import load_reward_model
from hone.text.flops import forward_flops
from hone.text.learners import step_layout
from hone.text.loss import TokenLossSpec
from hone.text.memory import WEIGHT_BYTES
from hone.text.reference_policies import TextPolicies
from hone.text.rl_config import TextGradientRunConfig
from hone.text.rl_job import gradient_learner
from hone.text.rows import TokenBatch, TokenLayout, TokenRows
from hone.text.saved_optimizer import TwoNetworkLearner

# --------------------------------------------------------------------------------------------------------- value losses


class SquaredErrorLoss(Config):
    """The value is a number of any size, learned by half the squared error."""

    outputs: ClassVar[int] = 1
    """Numbers that the head gives for each decision."""

    kind: Literal["squared"] = "squared"
    """Names this alternative."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update (PPO2: 0.2), in units of the
    return: with returns far from 1 nearly every gradient is clipped to 0. Unset: no clipping."""

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return outputs[:, 0]

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """(V - target)^2 / 2, or its clipped form."""
        value = self.value(outputs)
        if self.clip_range is None or old_value is None:
            return squared_error(value, target)
        return clipped_value(value, old_value, target, clip_range=self.clip_range)


class SigmoidValueLoss(Config):
    """The value lies between two bounds, low + (high - low) * sigmoid, learned by cross-entropy: for scores."""

    outputs: ClassVar[int] = 1
    """Numbers that the head gives for each decision."""

    kind: Literal["sigmoid"]
    """Names this alternative."""
    low: float = 0.0
    """Lowest return."""
    high: float = 1.0
    """Highest return. Returns beyond the bounds count as the nearest; `value/target_clipped` tells their share."""
    clip_range: float | None = Field(default=None, gt=0)
    """Largest change of a value that lowers its loss, around the value before the update. Unset: no clipping."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def clips(self) -> bool:
        """True if the loss looks at the values before the update."""
        return self.clip_range is not None

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, 1]` -> `[n]`."""
        return self.low + (self.high - self.low) * torch.sigmoid(outputs[:, 0])

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy against the target as a share of the range."""
        return bounded_cross_entropy(
            outputs[:, 0], old_value, target, low=self.low, high=self.high, clip_range=self.clip_range
        )


class BinnedValueLoss(Config):
    """The value is the mean of a distribution over bins, learned by classification (HL-Gauss, two-hot)."""

    clips: ClassVar[bool] = False
    """The loss does not look at the values before the update."""

    kind: Literal["bins"]
    """Names this alternative."""
    low: float
    """Centre of the lowest bin: the lowest return."""
    high: float
    """Centre of the highest bin: the highest return."""
    size: int = Field(default=51, ge=2, le=4096)
    """Number of bins."""
    spread: float = Field(default=0.75, ge=0)
    """Standard deviation, in bins, of the normal distribution around a target (HL-Gauss, Farebrother et al., 2024); 0
    splits a target between its two nearest bins (two-hot)."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        _require_range(self.low, self.high)
        return self

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each decision."""
        return self.size

    @property
    def support(self) -> ValueSupport:
        """The bins."""
        return ValueSupport(low=self.low, high=self.high, size=self.size)

    def value(self, outputs: Tensor) -> Tensor:
        """`[n, size]` -> `[n]`."""
        return logits_mean(outputs, self.support)

    def loss(self, outputs: Tensor, old_value: Tensor | None, target: Tensor) -> LossTerms:
        """Cross-entropy of the bins against the target's distribution."""
        del old_value
        if self.spread == 0:
            return c51_loss(outputs, two_hot(target, self.support), support=self.support)
        return c51_loss(outputs, hl_gauss(target, self.support, spread=self.spread), support=self.support)


def _require_range(low: float, high: float) -> None:
    """Raises ValueError for an empty range of returns."""
    if not low < high:
        raise ValueError(f"low = {low:g} is not below high = {high:g}: they bound the returns; set both")


CriticLossConfig: TypeAlias = Annotated[
    SquaredErrorLoss | SigmoidValueLoss | BinnedValueLoss, Field(discriminator="kind")
]


# --------------------------------------------------------------------------------------------------------------- critic


JUDGED_STEPS: Final = 10
"""Steps after the warm-up over which a critic is judged."""
LEAST_EXPLAINED: Final = 0.1
"""Explained variance below which a critic is called useless."""


@dataclass(frozen=True, slots=True)
class CriticView:
    """Questions to a value network about decisions, in the representation of a loss."""

    form: CriticLossConfig
    layout: TokenLayout
    micro_batch_tokens: int

    def values(self, network: ValueNetwork, episodes: Episodes) -> Values:
        """Values `[N]` of the text before each decision, and 0 beyond every episode's end.

        An answer that a limit cut is scored as it stands, and nothing can follow it: it is not bootstrapped.
        """
        value = self._ask(network, episodes)
        return Values(value=value.astype(np.float32), final=np.zeros(len(episodes), np.float32))

    def rows(self, network: ValueNetwork, episodes: Episodes, credits: Credits) -> TokenRows:
        """Rows of the episodes that have a score, with targets and, for a clipped loss, the critic's values before the
        update."""
        assert credits.target is not None, "a critic learns from the targets of a credit with values"
        kept = np.flatnonzero(episodes.scored)
        kept = kept if len(kept) else np.arange(len(episodes))
        where = ranges(episodes.offsets[:-1][kept], episodes.lengths[kept])
        episodes = episodes.take(kept)
        rows = self.layout(episodes, Credits(advantage=credits.advantage[where]))
        old = self._ask(network, episodes) if self.form.clips else None
        known = replace(rows.precomputed, value_target=credits.target[where], old_value=old)
        return replace(rows, precomputed=known)

    def objective(self, network: ValueNetwork, batch: TokenBatch) -> LossTerms:
        """The loss of the critic's values, `[n]`."""
        assert batch.value_target is not None
        return self.form.loss(network.outputs(batch.packed, batch.at), batch.old_value, batch.value_target)

    def _ask(self, network: ValueNetwork, episodes: Episodes) -> NDArray[np.generic]:
        def question(batch: TokenBatch) -> tuple[Tensor]:
            return (self.form.value(network.outputs(batch.packed, batch.at)),)

        rows = self.layout(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32)))
        return rows.evaluate(question, self.micro_batch_tokens)[0]


@dataclass
class CriticWatch:
    """Judges a critic by the variance that it explained in the first steps after its warm-up."""

    total: float = 0.0
    steps: int = 0
    notes: list[str] = field(default_factory=list[str])

    def observe(self, metrics: Metrics, cost: float) -> None:
        """Count a step after the warm-up; `cost` is the compute of an update with the critic, in updates without."""
        explained = metrics.get("critic/explained_variance")
        if explained is None or self.steps == JUDGED_STEPS:
            return
        self.total, self.steps = self.total + explained, self.steps + 1
        mean = self.total / self.steps
        if self.steps == JUDGED_STEPS and mean < LEAST_EXPLAINED:
            self.notes.append(
                f"the critic explains {max(mean, 0.0):.0%} of the variance of the returns (mean of the {self.steps} "
                f"steps after its warm-up): an update costs {cost:.1f} times as much as without it, and it steers with "
                "noise; raise algorithm.critic.warmup_steps, epochs or lr, or take a recipe without a critic such as "
                "grpo"
            )

    def pop_notes(self) -> list[str]:
        """Notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def state(self) -> State:
        return {"total": self.total, "steps": self.steps}

    def restore(self, state: State) -> None:
        self.total, self.steps = number(state, "total"), integer(state, "steps")


@dataclass
class ActorCriticLearner(TwoNetworkLearner):
    """A policy's learner and a critic's, each with its own optimizer, on the same episodes.

    In the first `warmup_steps` iterations only the critic learns. Implements `Learner`.
    """

    critic: GradientLearner[ValueNetwork, TokenBatch]
    view: CriticView
    warmup_steps: int = 0
    iterations: int = 0
    watch: CriticWatch = field(default_factory=CriticWatch)

    def values(self, episodes: Episodes) -> Values:
        return self.view.values(self.critic.policy, episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Metrics of both: the policy's under its names, the critic's as `critic/...` and `value/...`."""
        learned = self.critic.update(episodes, credits)
        rate, tokens, flops = (learned.pop(name, 0.0) for name in ("learner/lr", "learner/tokens", "learner/flops"))
        self.iterations += 1
        warming = self.iterations <= self.warmup_steps
        metrics = {**learned, "critic/lr": rate, "critic/warming_up": float(warming)}
        if warming:
            return {**metrics, "learner/tokens": tokens, "learner/flops": flops}
        stepped = self.actor.update(episodes, credits)
        own = stepped.get("learner/flops", 0.0)
        self.watch.observe(learned, 1.0 + flops / own if own else math.inf)
        stepped["learner/tokens"] = stepped.get("learner/tokens", 0.0) + tokens
        return {**metrics, **stepped, "learner/flops": own + flops}

    @property
    def _parameters(self) -> ParameterStore:
        (phase,) = self.critic.phases
        return phase.parameters

    def state(self) -> State:
        """The policy's learner as ever, and beside it the critic: weights, optimizer, and what is known about it."""
        critic: State = {"network": stored_weights(self._parameters), "learner": self.critic.state()}
        return {
            **self.actor.state(),
            "critic": {**critic, "watch": self.watch.state(), "iterations": self.iterations},
        }

    def restore(self, state: State) -> None:
        """Raises DataError where the state has no critic, or another one."""
        self.actor.restore(state)
        critic = substate(state, "critic")
        remedy = "a resumed run needs the critic that it was started with; put algorithm.critic back"
        restore_weights(self._parameters, substate(critic, "network"), what="critic", remedy=remedy)
        self.critic.restore(substate(critic, "learner"))
        self.watch.restore(substate(critic, "watch"))
        self.iterations = integer(critic, "iterations")


# --------------------------------------------------------------------------------------------------------- actor critic


class CriticConfig(Config):
    """The critic: a network of the policy's kind with its own optimizer steps. Keys of `[learner]` that are not here
    (minibatches, schedule, clipping of gradients) hold for both."""

    path: str | None = Field(default=None, min_length=1)
    """Initial weights: a folder of a reward model or of a policy with the policy's tokens, a run of hone or one of its
    checkpoints; unset: the policy that the run starts from."""
    loss: CriticLossConfig = SquaredErrorLoss()
    """Its values and their loss: `squared`, `sigmoid` for returns between two bounds such as scores in [0, 1], or
    `bins`, a classification."""
    lr: float | None = Field(default=None, gt=0)
    """Its peak learning rate; unset: `learner.lr`."""
    epochs: int = Field(default=1, ge=1)
    """Its passes over each step's episodes."""
    warmup_steps: int = Field(default=0, ge=0)
    """First iterations, in which the critic learns and the policy does not: a critic that begins with wrong values
    leads the policy astray (VC-PPO)."""


class AdvantageEstimation(Config):
    """Generalised advantage estimation over the sampled tokens or over turns, with a lambda of its own for the critic's
    targets."""

    unit: DecisionUnit = "token"
    """A decision, which discount and lambda count: a sampled token, or a turn of a dialogue, whose tokens share its
    advantage and its value target, and of which the critic is asked at the beginning."""
    discount: float = Field(default=1.0, ge=0, le=1)
    """Discount factor (gamma) of a decision."""
    policy_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the advantages: 0 trusts the critic, 1 the returns."""
    length_scale: float | None = Field(default=None, gt=0)
    """Length-adaptive lambda of the advantages, 1 - 1 / (length_scale x decisions of the answer), in place of
    `policy_lambda` (VAPO: 0.05); unset: `policy_lambda`."""
    critic_lambda: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the critic's targets: 1 takes the returns, which its own errors cannot bias (VC-PPO)."""


def actor_critic_learner(
    config: TextGradientRunConfig, policies: TextPolicies, loss: TokenLossSpec, critic: CriticConfig
) -> ActorCriticLearner:
    """The policy's learner with `loss`, and beside it the critic's."""
    actor = gradient_learner(config, policies, loss)
    network = shared_network(_open_critic(config, policies, critic))
    budget = config.learner.micro_batch_tokens
    mixed = network.decoder.is_mixed_precision
    layout = step_layout(token_mean, config.learner, config.run, mixed_precision=mixed)
    view = CriticView(critic.loss, layout, budget)
    learning = config.learner.model_copy(update={"lr": critic.lr or config.learner.lr, "epochs": critic.epochs})

    def cost(network: ValueNetwork, batch: TokenBatch) -> ComputeCost:
        """A forward and a backward pass over `batch`, and its share of the passes for values before the update: for the
        advantages, and for a clipped loss."""
        tokens = len(batch.packed.tokens)
        pairs = batch.packed.positions.sum().double() + tokens
        forward = forward_flops(network.decoder.config, tokens=tokens, logits=0, pairs=pairs)
        before = (1 + (batch.old_value is not None)) / learning.epochs
        return ComputeCost(tokens=tokens * (1 + before), flops=forward * (3 + before))

    learner = GradientLearner(
        policy=network,
        layout=partial(view.rows, network),
        phases=[policy_phase(network, view.objective, learning, name="critic")],
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        epochs=learning.epochs,
        minibatches=learning.minibatches,
        shuffle=learning.minibatches > 1,
        micro_batch_tokens=budget,
        compute_cost=cost,
    )
    return ActorCriticLearner(actor=actor, critic=learner, view=view, warmup_steps=critic.warmup_steps)


def _open_critic(config: TextGradientRunConfig, policies: TextPolicies, critic: CriticConfig) -> ValueNetwork:
    """The critic as it starts. Raises DataError for a damaged folder; `require_fitting_critic` has been asked."""
    policy, outputs, model = policies.policy, critic.loss.outputs, config.model
    scorer = None
    if critic.path is not None and scored_tokens(policy_folder(Path(critic.path))) is not None:
        scorer = load_reward_model(critic.path, model.weights, device=config.run.device, tokenizer=policy.tokenizer)
        decoder = scorer.decoder
        decoder.set_compute_dtype("bfloat16" if policy.decoder.is_mixed_precision else model.weights)
    else:
        decoder = policies.open_frozen(critic.path).decoder
    decoder.requires_grad_(requires_grad=True)
    decoder.save_memory_like(policy.decoder)
    network = ValueNetwork(decoder, outputs=outputs)
    if scorer is not None and outputs == 1:
        network.take_head(scorer)
    return network


def require_fitting_critic(critic: CriticConfig, tokenizer: Tokenizer, longest: int) -> None:
    """Raise DataError for a folder with another tokenizer than the policy's, or a shorter context than the `longest`
    prompt and answer, in tokens. A folder that cannot be read is told of by another check."""
    if critic.path is None:
        return
    where = f"algorithm.critic.path = {critic.path!r}"
    theirs, reads = open_tokenizer(ModelSource(path=critic.path))
    faults, known = ErrorCollector(DataError), tokenizer.backend.get_vocab()
    if theirs.backend.get_vocab() != known:
        faults.add(
            f"{where}: its tokenizer ({theirs.size} tokens) is not the policy's ({tokenizer.size} tokens), so "
            "it cannot judge the policy's tokens; take a model of the same family, or leave it out"
        )
    if reads < longest:
        faults.add(
            f"{where}: it reads {reads} tokens, and the longest prompt with its answer has {longest}; lower "
            "rollout.max_tokens, shorten prompts, or leave it out"
        )
    faults.raise_if_any()


def critic_copies(model: ModelSource, critic: CriticConfig) -> dict[str, int]:
    """Bytes per parameter of the policy that the critic takes: weights (of a folder they are counted there),
    gradients and two moments."""
    copies = 4 if critic.path is None else 3
    return {"critic": copies * WEIGHT_BYTES[model.weights]}
