"""Decisions laid out for policies with a memory: sequences with their states, and stacks of observations.

A piece of an episode knows the state before its first decision (`Episodes.memory`). The learner walks through each
piece once with the weights that it has, and so finds the states before the later sequences, the values of all
decisions, and that of the final observation.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hone.control.networks.memory import MemoryActorCritic
from hone.control.rows import SequenceRows, as_tensor, step_rows
from hone.core.credit import Credits, Values
from hone.core.episodes import Array, Episodes
from hone.core.ragged import Ints


@dataclass(frozen=True, slots=True)
class _Walk:
    """Outcome of a walk through all pieces."""

    lengths: Ints
    """`[S]` decisions of each sequence."""
    states: Tensor
    """`[S, H]` before each sequence."""
    values: Tensor
    """`[N]`; zeros without a critic."""
    final: Tensor
    """`[E]` values of the final observations."""


def sequence_rows(
    policy: MemoryActorCritic, episodes: Episodes, credits: Credits, *, device: str = "cpu"
) -> SequenceRows:
    """On-policy rows: sequences of at most `network.memory.sequence` decisions; the weight is set by the learner."""
    rows, walk = step_rows(episodes, credits, device=device), _walk(policy, episodes)
    return SequenceRows(**vars(rows), lengths=walk.lengths, state=walk.states)


def predict_memory_values(policy: MemoryActorCritic, episodes: Episodes) -> Values:
    """The critic's values of everything seen, and of what was seen last, from the states that lead there."""
    walk = _walk(policy, episodes)
    return Values(value=walk.values.cpu().numpy(), final=walk.final.cpu().numpy())


@torch.no_grad()
def _walk(policy: MemoryActorCritic, episodes: Episodes) -> _Walk:
    assert episodes.final is not None
    device, most = str(next(policy.parameters()).device), policy.memory.sequence
    seen, count = as_tensor(episodes.observations, device), len(episodes)
    parts = -(-episodes.lengths // most)
    owner = np.repeat(np.arange(count), parts)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    lengths = np.minimum(most, episodes.lengths[owner] - number * most)
    starts = np.cumsum(lengths) - lengths
    memory = np.zeros((count, sum(policy.state_sizes)), np.float32) if episodes.memory is None else episodes.memory
    state = as_tensor(memory, device).to(next(policy.parameters()).dtype).clone()
    states, values = state.new_zeros((len(owner), state.shape[1])), state.new_zeros(episodes.decisions)
    for part in range(int(parts.max(initial=0))):
        rows = np.flatnonzero(number == part)
        own = torch.from_numpy(owner[rows]).to(device)
        states[torch.from_numpy(rows).to(device)] = state[own]
        places = torch.from_numpy(_places(starts[rows], lengths[rows])).to(device)
        features, after = policy.recall(seen[places], lengths[rows], state[own])
        state[own] = after
        if policy.critic is not None:
            values[places] = policy.critic(features[1]).squeeze(-1)
    features, _ = policy.recall(as_tensor(episodes.final, device), np.ones(count, np.int64), state)
    final = values.new_zeros(count) if policy.critic is None else policy.critic(features[1]).squeeze(-1)
    return _Walk(lengths, states, values, final)


def _places(starts: Ints, lengths: Ints) -> Ints:
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))


def stack_frames(episodes: Episodes, frames: int) -> Episodes:
    """`episodes` whose observations are the newest `frames` of their episode, oldest first: `[N, frames, *observation]`
    and `[E, frames, *observation]`.

    Before a piece, observations are those of `memory`, and its first where the episode begins.
    """
    seen, final = episodes.observations, episodes.final
    assert final is not None
    shape, earlier = seen.shape[1:], frames - 1
    firsts = seen[episodes.offsets[:-1].clip(max=len(seen) - 1)]
    before = np.repeat(firsts[:, None], earlier, axis=1)
    if episodes.memory is not None:
        known = episodes.memory.reshape(len(episodes), earlier, *shape)
        before = np.where(np.isnan(known), before, known).astype(seen.dtype)
    owner, time = episodes.owner, np.arange(episodes.decisions) - episodes.offsets[:-1][episodes.owner]
    windows = _windows(seen, before, owner, time, np.arange(episodes.decisions), earlier)
    ends = episodes.offsets[1:]
    tail = _windows(seen, before, np.arange(len(episodes)), episodes.lengths, ends, earlier)[:, :-1]
    return replace(episodes, seen=windows, final=np.concatenate((tail, final[:, None]), axis=1))


def _windows(seen: Array, before: Array, owner: Ints, time: Ints, place: Ints, earlier: int) -> Array:
    """`[n, earlier + 1, *observation]` observations at `place` - earlier .. `place` of pieces `owner`, `time` decisions
    after their begins."""
    back = np.arange(-earlier, 1)
    inside = time[:, None] + back >= 0
    index = np.where(inside, place[:, None] + back, 0).clip(max=len(seen) - 1)
    windows = seen[index]
    row, column = np.nonzero(~inside)
    windows[row, column] = before[owner[row], earlier + time[row] + back[column]]
    return windows
