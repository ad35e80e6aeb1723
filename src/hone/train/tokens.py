"""How episodes of tokens are laid out for a gradient.

A row is a group of sequences that share their prompt: the prompt is computed once and each answer branches off it, so a
group of eight answers to a long question costs little more than one. Without a shared prompt a row is one sequence.
No padding is laid out, and only positions at which the policy decided are ever turned into log-probabilities, so that
nothing a prompt or a tool said can reach a loss.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, offsets_of, owner_of, ranges
from hone.models.packed import Packed
from hone.objectives.weights import Scheme
from hone.train.budget import within_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """n decisions of some rows, as tensors."""

    packed: Packed
    at: Tensor
    """`[n]` position in the packed tokens whose hidden state decided."""
    chosen: Tensor
    """`[n]` int64."""
    logp: Tensor
    """`[n]` nats, of whoever acted."""
    advantage: Tensor
    """`[n]`."""
    weight: Tensor
    """`[n]`."""
    anchor: Tensor | None
    """`[n]` nats, of the reference policy."""
    sequence: Tensor
    """`[n]` number of the decision's sequence within this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """What all rows of a run have in common."""

    scheme: Scheme
    """Aggregation: lengths of the step's sequences -> weight of a decision of each."""
    share_prompts: bool = True
    skip_zero_advantage: bool = False
    """Leave out sequences whose advantages are all 0. Right only for losses that are proportional to the advantage."""
    max_row_tokens: int = 1 << 62
    """A group is cut into several rows (each with its prompt) before a row grows above this."""
    device: str = "cpu"

    def __call__(self, episodes: Episodes, credits: Credits) -> "TokenRows":
        starts = _row_starts(episodes, self.max_row_tokens) if self.share_prompts else np.ones(len(episodes), bool)
        row_offsets = np.append(np.flatnonzero(starts), len(episodes)).astype(np.int64)
        return TokenRows(layout=self, episodes=episodes, advantage=credits.advantage, row_offsets=row_offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """R rows of E sequences; implements `learner.Rows`."""

    layout: TokenLayout
    episodes: Episodes
    advantage: NDArray[np.float32]
    """`[N]`."""
    row_offsets: Ints
    """`[R+1]` sequences of each row."""
    scale: NDArray[np.float64] | None = None
    """`[E]` weight of each decision of a sequence, once fixed."""
    anchor: NDArray[np.float32] | None = None
    """`[N]` log-probability under the reference policy, in nats."""

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def sizes(self) -> NDArray[np.int64]:
        prompts, bodies = self._spans()
        starts = self.row_offsets[:-1]
        return prompts[starts] + np.add.reduceat(bodies, starts) if len(self) else np.zeros(0, np.int64)

    def take(self, rows: NDArray[np.int64]) -> Self:
        counts = np.diff(self.row_offsets)[rows]
        return self._sequences(ranges(self.row_offsets[:-1][rows], counts), offsets_of(counts))

    def weighted(self) -> Self:
        lengths = self.episodes.lengths
        rows = replace(self, scale=self.layout.scheme(lengths))
        if not self.layout.skip_zero_advantage:
            return rows
        size = np.bincount(self.episodes.owner, weights=np.abs(self.advantage), minlength=len(lengths))
        kept = np.flatnonzero(size > 0)
        per_row = np.bincount(owner_of(self.row_offsets)[kept], minlength=len(self))
        return rows._sequences(kept, offsets_of(per_row[per_row > 0]))

    def with_anchor(self, logp_of: Callable[[TokenBatch], Tensor], budget_tokens: int) -> Self:
        """The same rows with the reference policy's log-probabilities, computed without gradient."""
        anchor = np.empty(self.episodes.decisions, dtype=np.float32)
        with torch.no_grad():
            for rows in within_budget(self.sizes(), budget_tokens):
                counts = np.diff(self.row_offsets)[rows]
                sequences = ranges(self.row_offsets[:-1][rows], counts)
                where = ranges(self.episodes.offsets[:-1][sequences], self.episodes.lengths[sequences])
                anchor[where] = logp_of(self.take(rows).tensors()).cpu().numpy()
        return replace(self, anchor=anchor)

    def tensors(self) -> TokenBatch:
        packed, at = self._pack()
        owner = self.episodes.owner
        scale = np.zeros(len(self.episodes)) if self.scale is None else self.scale
        device = self.layout.device

        def column(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device)

        return TokenBatch(
            packed=packed,
            at=column(at),
            chosen=column(self.episodes.chosen.astype(np.int64)),
            logp=column(self.episodes.logp),
            advantage=column(self.advantage),
            weight=column(scale[owner].astype(np.float32)),
            anchor=None if self.anchor is None else column(self.anchor),
            sequence=column(owner),
        )

    def _sequences(self, index: Ints, row_offsets: Ints) -> Self:
        where = ranges(self.episodes.offsets[:-1][index], self.episodes.lengths[index])
        return replace(
            self,
            episodes=self.episodes.take(index),
            advantage=self.advantage[where],
            row_offsets=row_offsets,
            scale=None if self.scale is None else self.scale[index],
            anchor=None if self.anchor is None else self.anchor[where],
        )

    def _spans(self) -> tuple[Ints, Ints]:
        """Tokens of each sequence's prompt, and of the rest that has to be read (its last token predicts nothing)."""
        seen = self.episodes.transcript
        prompts = seen.at[self.episodes.offsets[:-1]] - seen.offsets[:-1]
        return prompts, np.diff(seen.offsets) - prompts - 1

    def _pack(self) -> tuple[Packed, Ints]:
        """The rows' tokens, and for each decision where in them it was decided.

        A row is laid out as its prompt (branch 0) and then, for each of its sequences, what follows (branch 1, 2, ...).
        """
        seen, offsets = self.episodes.transcript, self.row_offsets
        prompts, bodies = self._spans()
        first, row = offsets[:-1], owner_of(offsets)
        trunk = first + np.arange(len(self))  # where each row's prompt stands among all segments
        body = np.arange(len(self.episodes)) + row + 1
        starts, lengths, positions, branches = np.zeros((4, len(trunk) + len(body)), dtype=np.int64)
        starts[trunk], lengths[trunk] = seen.offsets[:-1][first], prompts[first]
        starts[body], lengths[body] = seen.offsets[:-1] + prompts, bodies
        positions[body] = prompts
        branches[body] = np.arange(len(self.episodes)) - first[row] + 1
        segments = offsets_of(lengths)
        shared = len(self) < len(self.episodes)
        device = self.layout.device
        packed = Packed(
            tokens=torch.from_numpy(seen.tokens[ranges(starts, lengths)].astype(np.int64)).to(device),
            positions=torch.from_numpy(ranges(positions, lengths)).to(device),
            offsets=segments[np.append(trunk, len(lengths))],
            branch=torch.from_numpy(np.repeat(branches, lengths)).to(device) if shared else None,
        )
        owner = self.episodes.owner
        before = seen.at - seen.offsets[:-1][owner] - 1 - prompts[owner]  # -1: decided at the prompt's last token
        at = np.where(before < 0, segments[1:][trunk][row][owner] - 1, segments[:-1][body][owner] + before)
        return packed, at


def _row_starts(episodes: Episodes, max_row_tokens: int) -> NDArray[np.bool_]:
    """`[E]` whether a sequence begins a row: it does unless it shares group and prompt with the one before."""
    seen, offsets = episodes.transcript, episodes.transcript.offsets
    prompt_ends = seen.at[episodes.offsets[:-1]]
    starts = np.ones(len(episodes), dtype=np.bool_)
    prompt, filled = seen.tokens[:0], 0
    for number in range(len(episodes)):
        mine = seen.tokens[offsets[number] : prompt_ends[number]]
        body = int(offsets[number + 1] - prompt_ends[number]) - 1
        together = number > 0 and episodes.group[number] == episodes.group[number - 1] and np.array_equal(mine, prompt)
        if together and filled + body <= max_row_tokens:
            starts[number] = False
            filled += body
        else:
            prompt, filled = mine, len(mine) + body
    return starts
