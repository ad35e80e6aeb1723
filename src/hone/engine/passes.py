"""Forward passes that prefill prompts beside the running rows."""

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import PrefillGroup, SampleEvent, SampleState
from hone.engine.table import RunningBatch, likeliest_row, mask_token_ids
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput

_Number = TypeVar("_Number", bound=np.generic)

_NONE: Final = np.zeros(0, np.int32)
no_copies: Final = (_NONE, _NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChunk:
    """Tokens `start:stop` of a text that one pass prefills."""

    group: PrefillGroup
    start: int
    stop: int
    drawing_samples: list[SampleState]
    """Samples that sample a token after the last one."""

    @property
    def first_draw(self) -> int:
        """First of its tokens with a sampled or scored successor; `stop` if there is none."""
        return self.stop if self.group.tokens_to_score is None else max(self.start, self.group.first_draw)

    @property
    def draws(self) -> int:
        """Number of sampled or scored tokens."""
        return len(self.drawing_samples) if self.group.tokens_to_score is None else max(0, self.stop - self.first_draw)

    def append_first(self, drawn: SamplerOutput, place: int, version: int) -> None:
        """Append the token sampled after the prompt to each of its samples; `place`: the first of their logits."""
        until = place + self.draws
        tokens = drawn.token[place:until].copy()
        logp = np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]])
        sampling = self.drawing_samples[0].request.sampling
        bits = drawn.sampling_mask_bits if sampling.truncates else None
        for at, sample in enumerate(self.drawing_samples):
            sample.mark_reread(version)
            kept = None if bits is None else mask_token_ids(bits[place + at])
            sample.append_token(tokens[at : at + 1], logp[:, at : at + 1], kept, version)
            if sampling.top_logprobs:
                sample.likeliest.append(likeliest_row(drawn, place + at, sampling.top_logprobs))
            sample.apply_event(SampleEvent.FILLED)

    def append_scores(self, drawn: SamplerOutput, place: int) -> None:
        """Record the log-probabilities of its scored tokens."""
        until = place + self.draws
        self.group.scored_logp.append(np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]], axis=1))
        if top := self.group.members[0].request.sampling.top_logprobs:
            self.group.likeliest += [likeliest_row(drawn, row, top) for row in range(place, until)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass, with the owners of its logits: the rows first, then each chunk's."""

    batch: ForwardBatch
    rows: int
    chunks: list[PromptChunk]
    copy_sources: NDArray[np.int32]
    """Pages to be copied before the pass, `[k]`."""
    copy_targets: NDArray[np.int32]

    def request_ids(self, table: RunningBatch, draws: NDArray[np.int64]) -> list[str]:
        """Ids of the requests with these logits, before `table` changes; each once."""
        owners = list(table.samples[: self.rows])
        for chunk in self.chunks:
            owners += chunk.drawing_samples or [chunk.group.members[0]] * chunk.draws
        return list(dict.fromkeys(owners[draw].request.id for draw in draws.tolist()))


def mixed_batch(table: RunningBatch, chunks: list[PromptChunk]) -> ForwardBatch:
    """The table's rows, and behind them the tokens of `chunks`."""
    rows = table.forward_batch()
    n, lengths = len(table), [chunk.stop - chunk.start for chunk in chunks]
    pages = np.zeros((n + len(chunks), table.pages.shape[1]), np.int32)
    pages[:n] = rows.pages
    for place, chunk in enumerate(chunks, start=n):
        pages[place, : len(chunk.group.pages)] = chunk.group.pages
    numbers = np.repeat(np.arange(n, n + len(chunks), dtype=np.int32), lengths)
    return ForwardBatch(
        tokens=np.concatenate([rows.tokens, *(chunk.group.text[chunk.start : chunk.stop] for chunk in chunks)]),
        positions=np.concatenate(
            [rows.positions, *(np.arange(chunk.start, chunk.stop, dtype=np.int32) for chunk in chunks)]
        ),
        sequence=np.concatenate([rows.sequence, numbers]),
        pages=pages,
        draws=_draws(rows.draws, n, chunks),
    )


def _draws(rows: SamplerInput, tokens: int, chunks: list[PromptChunk]) -> SamplerInput:
    at: list[NDArray[np.int32]] = [rows.token_index]
    given: list[NDArray[np.int32]] = [rows.forced_token]
    uniform: list[float] = []
    owners: list[SampleState] = []
    for chunk in chunks:
        fill, count = chunk.group, chunk.draws
        if fill.tokens_to_score is None:
            at.append(np.full(count, tokens + chunk.stop - chunk.start - 1, np.int32))
            given.append(np.full(count, DRAW, np.int32))
            uniform.extend(float(sample.stream(len(sample.tokens) + 1)[-1]) for sample in chunk.drawing_samples)
        else:
            first = tokens + chunk.first_draw - chunk.start
            at.append(np.arange(first, first + count, dtype=np.int32))
            begin = chunk.first_draw - fill.first_draw
            given.append(fill.tokens_to_score[begin : begin + count])
            uniform.extend([0.0] * count)
        owners.append(fill.members[0])
        tokens += chunk.stop - chunk.start
    asked, counts = [one.request.sampling for one in owners], [chunk.draws for chunk in chunks]  # one request a text
    return SamplerInput(
        token_index=np.concatenate(at),
        forced_token=np.concatenate(given),
        uniform=np.concatenate([rows.uniform, np.array(uniform, np.float64)]),
        temperature=_with(rows.temperature, [one.temperature for one in asked], counts),
        top_k=_with(rows.top_k, [one.top_k for one in asked], counts),
        top_p=_with(rows.top_p, [one.top_p for one in asked], counts),
        min_p=_with(rows.min_p, [one.min_p for one in asked], counts),
        greedy=_with(rows.greedy, [one.greedy for one in asked], counts),
        top_logprobs=_top_logprobs(rows, [one.top_logprobs for one in asked], counts),
    )


def _top_logprobs(rows: SamplerInput, values: list[float], counts: list[int]) -> NDArray[np.int32] | None:
    if rows.top_logprobs is None and not any(values):
        return None
    own = np.zeros(len(rows.token_index), np.int32) if rows.top_logprobs is None else rows.top_logprobs
    return _with(own, values, counts)


def _with(rows: NDArray[_Number], values: list[float], counts: list[int]) -> NDArray[_Number]:
    """The rows' settings, and behind them each of `values` as often as its text draws."""
    return np.concatenate([rows, np.repeat(np.array(values, rows.dtype), counts)])
