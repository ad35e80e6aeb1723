"""Rows of the value-based family: sampled transitions, with the target network's outputs for their next observations.

Belongs here: the rows, and the replay buffer that hands them out and takes back their TD errors. The target network is
constant during an iteration, so it is evaluated once, on all transitions of the iteration.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.control.networks.q_networks import DqnPolicy
from hone.control.replay.priority import PrioritizedSampler, PriorityParams
from hone.control.replay.ring import RingBuffer
from hone.control.replay.sequences import SequenceBuffer
from hone.control.replay.sharded import ShardedSampler
from hone.control.replay.steps import StepBuffer
from hone.control.rows import TransitionRows, row_picker, transition_rows
from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.core.state import State
from hone.credit.returns import one_step_target
from hone.learner.share import current_share
from hone.objectives.terms import LossTerms

S = TypeVar("S", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class ReplayedRows(TransitionRows):
    """Transitions that tell which of a sample they are, so that their errors become its priorities."""

    sample_index: Tensor
    """`[n]` index among the transitions that the replay buffer sampled."""


@dataclass(frozen=True, kw_only=True)
class ValueRows(ReplayedRows):
    """Transitions from a replay buffer, with actions as the network numbers them. The weight holds importance weights,
    which `weighted` divides by the number of rows; the noise `[n, 2, weights]` holds this update's two draws of noise
    for the weights, the same in every row, and is empty without."""

    target_outcomes: Tensor
    """`[n, choices, size]` outputs of the target network for `next_seen`."""

    def take(self, rows: NDArray[np.int64]) -> Self:
        pick = row_picker(rows, self.weight.device)
        return type(self)(**{name: pick(column) for name, column in self.columns().items()})

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        return replace(self, weight=self.weight / total(len(self), reduction))


def split_value_rows(
    rows: ValueRows, order: NDArray[np.int64], count: int, reduction: Reduction = ONE_PROCESS
) -> Iterator[ValueRows]:
    """`split_by_rows` for columns: each column is gathered once for all `count` minibatches, which are views of it."""
    sizes = [len(part) for part in np.array_split(order, count)]
    parts = {name: column.split(sizes) for name, column in rows.take(order).columns().items()}
    for number, size in enumerate(sizes):
        columns = {name: part[number] for name, part in parts.items()}
        columns["weight"] = columns["weight"] / total(size, reduction)
        yield type(rows)(**columns)


class PrioritizedBuffer:
    """A memory of transitions, of steps that make them, or of sequences; what it last handed out, and how wrong the
    policy was on that: priorities are handed back once all of it was heard of."""

    def __init__(
        self,
        capacity: int,
        *,
        steps: int = 1,
        discount: float,
        priorities: PriorityParams | None,
        frames: int = 1,
        sequences: SequenceBuffer | None = None,
        sampler: ShardedSampler | None = None,
    ) -> None:
        """`steps` > 1: transitions cover so many of them; `frames` > 1: observations are stacks of so many, of which
        each is kept once; `sequences` holds whole sequences instead. Without `priorities` all are as likely. `sampler`:
        shards in place of one buffer. Raises ConfigError where shards cannot hold such transitions."""
        if sampler is not None and (steps > 1 or frames > 1):
            raise ConfigError("the log of a fleet has single steps: use a recipe of one-step targets, without frames")
        self.buffer: RingBuffer | StepBuffer | SequenceBuffer | ShardedSampler
        self.prioritised_buffer: PrioritizedSampler | ShardedSampler | None = sampler
        if sampler is not None:
            self.buffer = sampler
        else:
            self.buffer = held = (
                sequences
                if sequences is not None
                else RingBuffer(capacity)
                if steps == frames == 1
                else StepBuffer(capacity, n_steps=steps, discount=discount, frames=frames)
            )
            self.prioritised_buffer = None if priorities is None else PrioritizedSampler(held, priorities)
        self.discount = discount
        self._last_sample: Episodes | None = None
        self._errors = np.zeros(0, np.float32)
        self._reported = 0
        self._step: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        """Index and error of the rows of this step that this process has heard of."""

    def __len__(self) -> int:
        return self.buffer.decisions if isinstance(self.buffer, SequenceBuffer) else len(self.buffer)

    def add(self, episodes: Episodes) -> object:
        return self._sampled_buffer.add(episodes)

    def sample(self, count: int, draws: np.random.Generator) -> Episodes:
        self._last_sample = self._sampled_buffer.sample(count, draws)
        self._errors, self._reported = np.zeros(count, np.float32), 0
        return self._last_sample

    def metrics(self) -> Metrics:
        """Figures of the shards; none without."""
        return self.buffer.metrics() if isinstance(self.buffer, ShardedSampler) else {}

    def credit(self, episodes: Episodes, values: Values) -> Credits:
        """Rewards and discounts of what was handed out last; other transitions cover one step."""
        if isinstance(self.buffer, StepBuffer) and episodes is self._last_sample:
            return self.buffer.credit(episodes, values)
        return one_step_target(episodes, values, discount=self.discount)

    def burned(self, episodes: Episodes) -> NDArray[np.int64]:
        """`[E]` decisions of sequences that only rebuild a state; 0 of what was not handed out last."""
        sample = self.buffer.last_sample if isinstance(self.buffer, SequenceBuffer) else None
        if sample is None or episodes is not sample.episodes:
            return _from_holder(np.zeros(len(episodes), np.int64), is_sampled=False)
        return _from_holder(sample.burned, is_sampled=True)

    def importance_weights(self, episodes: Episodes) -> NDArray[np.float32]:
        """`[n]` weights of what was handed out last; of other transitions 1."""
        weights = np.ones(len(episodes), np.float32)
        if self.prioritised_buffer is None:
            return weights
        is_sampled = episodes is self._last_sample
        if is_sampled:
            weights = self.prioritised_buffer.last_sample.importance_weight
        return _from_holder(weights, is_sampled=is_sampled)

    def on_micro_batch(self, rows: ReplayedRows, terms: LossTerms) -> None:
        """Keep the errors of these rows until the end of the step: the absolute TD error, the KL divergence of a
        distribution, else the loss."""
        metrics = terms.metrics
        wrong = next((metrics[name] for name in ("value/error_abs", "value/kl_nats") if name in metrics), terms.loss)
        self.add_errors(rows.sample_index, wrong)

    def add_errors(self, index: Tensor, errors: Tensor) -> None:
        """Keep the errors `[n]` of rows `index` `[n]` of the sample until the end of the step."""
        self._step.append((index.cpu().numpy(), errors.detach().cpu().numpy()))

    def finish_step(self, policy: nn.Module) -> Metrics:
        """Take up the errors of a step, of all ranks; update the priorities once those of a whole sample are there."""
        del policy
        index = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in self._step)])
        wrong = np.concatenate([np.zeros(0, np.float32), *(one for _, one in self._step)])
        self._step.clear()
        if (share := current_share()) is not None:
            index = np.concatenate(share.reduction.gather(index)).astype(np.int64)
            wrong = np.concatenate(share.reduction.gather(wrong)).astype(np.float32)
        if self.prioritised_buffer is None or self._last_sample is None:
            return {}  # another rank has the buffer
        self._errors[index] = wrong
        self._reported += len(index)
        if self._reported == len(self._errors):
            self.prioritised_buffer.update_priorities(self._errors)
            self._reported = 0
        return {}

    def state(self) -> State:
        return self._sampled_buffer.state()

    def restore(self, state: State) -> None:
        self._sampled_buffer.restore(state)
        self._last_sample = None

    @property
    def _sampled_buffer(self) -> RingBuffer | StepBuffer | SequenceBuffer | PrioritizedSampler | ShardedSampler:
        return self.buffer if self.prioritised_buffer is None else self.prioritised_buffer


def _from_holder(values: NDArray[S], *, is_sampled: bool) -> NDArray[S]:
    """Numbers of a sample `[n]`: of several ranks, one has the buffer, and the others get its own."""
    share = current_share()
    if share is None:
        return values
    shares = [one for one in share.reduction.gather(values if is_sampled else values[:0]) if len(one)]
    return shares[0].astype(values.dtype) if shares else values


def priority_schedule(exponent: float, correction: float, *, iterations: int) -> PriorityParams:
    """Schedule for a run of so many iterations, each of which samples once; in the last the weights undo the bias."""
    return PriorityParams(alpha=exponent, beta=correction, beta_anneal_draws=max(1, iterations - 1))


def with_recency(priorities: PriorityParams | None, half_life: float) -> PriorityParams | None:
    """Priorities, or those of rows that are as likely as others of their age."""
    if not half_life:
        return priorities
    return replace(PriorityParams(alpha=0.0) if priorities is None else priorities, half_life=half_life)


def value_rows(
    policy: DqnPolicy, buffer: PrioritizedBuffer, seed: int, transitions: Episodes, credits: Credits, *, iteration: int
) -> ValueRows:
    """All rows of an iteration, with the target network's outputs for the next observations."""
    device = str(policy.get_buffer("atoms").device)
    rows = transition_rows(transitions, credits, np.zeros((len(transitions), 2, 0), np.float32), device=device)
    drawn = None
    if policy.noise_size:
        numbers = generator(seed, "slow weights", iteration).standard_normal(policy.noise_size, "float32")
        drawn = torch.from_numpy(numbers).to(device)
    importance = torch.from_numpy(buffer.importance_weights(transitions)).to(device)
    columns = {**vars(rows), "weight": importance, "chosen": policy.action_indices(rows.chosen)}
    return ValueRows(
        **columns,
        target_outcomes=policy.target_return_outputs(rows.next_seen, drawn, rows.next_mask),
        sample_index=torch.arange(len(rows), device=device),
    )


def with_weight_noise(policy: DqnPolicy, rows: ValueRows, number: int, reduction: Reduction, *, seed: int) -> ValueRows:
    """Rows of update `number` with its random draws of the weights, which are the same on all ranks."""
    del reduction
    drawn = generator(seed, "weights of an update", number).standard_normal((2, policy.noise_size), "float32")
    noise = torch.from_numpy(drawn).to(rows.weight.device)
    return replace(rows, noise=noise.expand(len(rows), *noise.shape))


def weight_noise(rows: ValueRows, which: int) -> Tensor | None:
    """`[noise]` numbers of one draw of the weights; None: the network has no noise, or acts by its means."""
    return rows.noise[0, which] if rows.noise.shape[2] else None


def outcomes_of_action(outcomes: Tensor, number: Tensor) -> Tensor:
    """`[n, choices, size]` at the choices `[n]` -> `[n, size]`."""
    index = number[:, None, None].expand(-1, 1, outcomes.shape[2])
    return outcomes.gather(1, index).squeeze(1)


def legal_values(values: Tensor, mask: Tensor | None) -> Tensor:
    """Values `[n, choices]`, -inf for the illegal choices of `mask`: their maximum is that of the legal ones. Masks of
    last observations have a legal choice, so that no maximum is -inf (`environments.masks.with_choices`)."""
    return values if mask is None else values.masked_fill(~mask, -torch.inf)


ActionSelector: TypeAlias = Callable[[DqnPolicy, ValueRows], Tensor]
"""Selects the next actions `[n]` of a target."""


def argmax_target(policy: DqnPolicy, rows: ValueRows) -> Tensor:
    """`[n]` greedy next actions of the target network."""
    return legal_values(policy.q_values(rows.target_outcomes), rows.next_mask).argmax(dim=1)


@torch.no_grad()
def argmax_online(policy: DqnPolicy, rows: ValueRows) -> Tensor:
    """`[n]` the choice that the values of now think best of what was seen next (double Q-learning)."""
    ahead = policy.q_values(policy.return_outputs(rows.next_seen, weight_noise(rows, 1), rows.next_mask))
    return legal_values(ahead, rows.next_mask).argmax(dim=1)
