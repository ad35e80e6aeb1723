"""Rows of recurrent value learning: whole sequences, with targets over several steps that stay within them.

A sequence is the burn-in, the decisions that are trained, and the observation after them. Burn-in and that observation
have no loss: the first rebuilds the state, the second is only looked at.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hone.control.networks.memory import RecurrentDqnPolicy, RecurrentQNetwork
from hone.control.networks.mlp import Floats
from hone.control.rows import DecisionRows, as_tensor, row_picker
from hone.control.value_rows import PrioritizedBuffer, legal_values
from hone.core.credit import Credits
from hone.core.episodes import Array, Episodes
from hone.core.ragged import Ints, ranges
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.objectives.td import rescaled_target, td_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import huber


@dataclass(frozen=True, kw_only=True)
class RecurrentValueRows(DecisionRows):
    """Sequences, one after another. A row is a whole sequence; columns have one entry for each of its observations."""

    seen: Tensor
    chosen: Tensor
    """`[N]` as the network numbers actions; 0 after the last decision."""
    reward: Tensor
    """`[N]` discounted sum of the rewards up to the observation that the target is taken of."""
    discount: Tensor
    """`[N]` of the value there; 0 where the episode terminated on the way."""
    jump: Tensor
    """`[N]` observations until there, int64."""
    target_values: Tensor
    """`[N, choices]` of the target network, -inf at illegal choices."""
    mask: Tensor | None
    """`[N, choices]` legal choices; None: all."""
    lengths: Ints
    """`[S]` observations of each sequence, the last one included."""
    burned: Ints
    """`[S]` of them at its begin that only rebuild the state."""
    state: Tensor
    """`[S, H]` stored states before the sequences."""
    sample_index: Tensor
    """`[S]` index among the sequences that the replay buffer sampled."""

    def __len__(self) -> int:
        return len(self.lengths)

    def sizes(self) -> Ints:
        return self.lengths

    def take(self, rows: Ints) -> Self:
        starts = np.cumsum(self.lengths) - self.lengths
        pick, own = (row_picker(one, self.weight.device) for one in (ranges(starts[rows], self.lengths[rows]), rows))
        by_sequence = {"lengths", "burned", "state", "sample_index"}
        columns = {name: pick(column) for name, column in self.columns().items() if name not in by_sequence}
        return type(self)(
            **{"mask": None, **columns}, lengths=self.lengths[rows], burned=self.burned[rows], state=own(self.state),
            sample_index=own(self.sample_index),
        )  # fmt: skip

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> Self:
        """Every trained decision counts by the importance weight of its sequence."""
        return replace(self, weight=self.weight / total(len(self.trained), reduction))

    @property
    def trained(self) -> Ints:
        """Places of the decisions that have a loss."""
        starts = np.cumsum(self.lengths) - self.lengths
        return ranges(starts + self.burned, self.lengths - self.burned - 1)

    def priorities(self, errors: Tensor, *, mix: float) -> Tensor:
        """`[S]` from the absolute errors of the trained decisions: mix * largest + (1 - mix) * mean."""
        trained, own = self.lengths - self.burned - 1, errors.cpu().numpy()
        starts = np.cumsum(trained) - trained
        most, mean = np.maximum.reduceat(own, starts), np.add.reduceat(own, starts) / trained
        return torch.from_numpy((mix * most + (1.0 - mix) * mean).astype(np.float32))


def recurrent_value_rows(
    policy: RecurrentDqnPolicy, buffer: PrioritizedBuffer, episodes: Episodes, credits: Credits, *, steps: int
) -> RecurrentValueRows:
    """Rows of what the buffer handed out last, with the target network's values; targets look `steps` ahead."""
    assert episodes.final is not None
    assert credits.discount is not None
    device = str(next(policy.parameters()).device)
    reward, discount, jump = n_step_sums(episodes.offsets, credits.advantage, credits.discount, steps)
    lengths = episodes.lengths + 1
    burned = buffer.burned(episodes)
    weight = buffer.importance_weights(episodes)
    size = policy.values.unit.state_size
    memory = np.zeros((len(episodes), size), np.float32) if episodes.memory is None else episodes.memory

    def with_final(column: Array, last: Array) -> Tensor:
        return as_tensor(np.insert(column, episodes.offsets[1:], last, axis=0), device)

    def padded(column: Array) -> Tensor:
        return with_final(column, np.zeros(len(episodes), column.dtype))

    mask = None
    if episodes.mask is not None and episodes.final_mask is not None:
        mask = with_final(episodes.mask, episodes.final_mask)
    actions = policy.action_indices(as_tensor(episodes.chosen, device)).cpu().numpy()
    rows = RecurrentValueRows(
        weight=as_tensor(np.repeat(weight, lengths).astype(np.float32), device),
        seen=with_final(episodes.observations, episodes.final),
        chosen=padded(actions),
        reward=padded(reward),
        discount=padded(discount),
        jump=padded(jump),
        target_values=torch.zeros(0),
        mask=mask,
        lengths=lengths,
        burned=burned,
        state=as_tensor(memory, device),
        sample_index=torch.arange(len(episodes), device=device),
    )
    with torch.no_grad():
        values = sequence_values(policy, policy.target, rows)
    return replace(rows, target_values=legal_values(values, mask))


def n_step_sums(offsets: Ints, reward: Floats, discount: Floats, steps: int) -> tuple[Floats, Floats, Ints]:
    """Rewards and discounts `[N]` of single steps -> sum of up to `steps` discounted rewards, the discount after them,
    and how many there are, `[N]` each: fewer at the end of a piece."""
    ends = np.repeat(offsets[1:], np.diff(offsets))
    place = np.arange(len(reward))
    jump = np.minimum(steps, ends - place)
    summed, factor = np.zeros(len(reward), np.float32), np.ones(len(reward), np.float32)
    for ahead in range(steps):
        there = np.flatnonzero(jump > ahead)
        summed[there] += factor[there] * reward[there + ahead]
        factor[there] *= discount[there + ahead]
    return summed, factor, jump


def sequence_values(policy: RecurrentDqnPolicy, network: RecurrentQNetwork, rows: RecurrentValueRows) -> Tensor:
    """Values `[N, choices]` of all observations after the burn-in, whose own are zeros; no gradient goes into it."""
    x = policy.spaces.inputs.tensor(rows.seen)
    starts, state = np.cumsum(rows.lengths) - rows.lengths, rows.state.to(next(network.parameters()).dtype)
    behind = np.flatnonzero(rows.burned)
    if len(behind):
        places = torch.from_numpy(ranges(starts[behind], rows.burned[behind])).to(x.device)
        own = torch.from_numpy(behind).to(x.device)
        with torch.no_grad():
            _, after = network(x[places], rows.burned[behind], state[own])
        state = state.index_copy(0, own, after)
    left = rows.lengths - rows.burned
    places = torch.from_numpy(ranges(starts + rows.burned, left)).to(x.device)
    values, _ = network(x[places], left, state, None if rows.mask is None else rows.mask[places])
    return values.new_zeros((len(x), values.shape[1])).index_copy(0, places, values)


def recurrent_objective(
    policy: RecurrentDqnPolicy, rows: RecurrentValueRows, *, rescale: bool, double: bool
) -> LossTerms:
    """Huber's loss of Q(s_t, a_t) against h(sum of rewards + discount * h^-1(Q_target(s_t+n, a*))), where a* is the
    best action there by the values that learn (`double`) or by the target network; without `rescale` h is the
    identity."""
    values = sequence_values(policy, policy.values, rows)
    place = torch.from_numpy(rows.trained).to(values.device)
    there = place + rows.jump[place]
    with torch.no_grad():
        judge = legal_values(values.detach(), rows.mask) if double else rows.target_values
        best = judge[there].argmax(dim=1, keepdim=True)
        worth = rows.target_values[there].gather(1, best).squeeze(1)
        worth = torch.where(rows.discount[place] > 0, worth, 0.0)
        parts = (rows.reward[place], rows.discount[place], worth)
        target = rescaled_target(*parts) if rescale else td_target(*parts)
    terms = huber(values[place].gather(1, rows.chosen[place, None]).squeeze(1), target)
    return replace(terms, weight=rows.weight[place])
