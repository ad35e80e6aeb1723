"""Continuous batching: sequences take a slot as soon as one is free, and every step draws one token for each.

Belongs here: the order of work. A completion depends on its request, the seed, the round and the weights alone, bit for
bit on a CPU: draws are counter-based (sampler.py), linear layers do not depend on their number of rows (rows.py), and
attention does not depend on batch mates (cache.py).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.clock import Clock, SystemClock
from hone.core.errors import DivergedError
from hone.core.generation import Completion, Finish, Request
from hone.core.random import uniforms
from hone.engine.cache import KeyValues, Prefill
from hone.engine.checks import check_requests
from hone.engine.protocol import Model
from hone.engine.rows import RowLinear, padded
from hone.engine.sampler import draw
from hone.engine.slots import Decode, Running, Slots

_PREFILL_TOKENS: Final = 1024
"""Prompts are computed in batches of about this many tokens, ahead of need."""


@dataclass(slots=True)
class Stats:
    """Of the latest `generate`; time that the caller spends between completions is not counted."""

    slots: int = 0
    tokens: int = 0
    """Drawn."""
    prefill_tokens: int = 0
    steps: int = 0
    row_steps: int = 0
    """Sum of running sequences over steps."""
    seconds_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds_s if self.seconds_s else 0.0

    @property
    def occupancy(self) -> float:
        """Share of the slots that a step used, 0 to 1."""
        return self.row_steps / (self.steps * self.slots) if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A prompt that was computed: keys and values `[layers, kv_heads, 2, P, head_dim]`, next logits `[vocab]`."""

    pairs: Tensor
    logits: Tensor


class Engine:
    """Generates from `model` itself: an update of its weights is seen at once, and announced by `publish`."""

    def __init__(
        self,
        model: Model,
        decode: Decode | None = None,
        *,
        eos_id: int | tuple[int, ...],
        slots: int,
        max_len_tokens: int,
        seed: int,
        vocab_size_used: int | None = None,
    ) -> None:  # fmt: skip
        """`decode`: token ids -> text, needed for stop strings only. `slots`: sequences that run at once.
        `max_len_tokens`: most tokens of prompt and completion. `vocab_size_used`: ids from there on are never drawn.
        """
        self.stats = Stats(slots=slots)
        self.version = 0
        self._model, self._decode, self._seed = model, decode, seed
        self._eos = (eos_id,) if isinstance(eos_id, int) else eos_id
        self._slots_count, self._max_len = slots, max_len_tokens
        self._vocab = vocab_size_used or model.config.vocab_size
        self.clock: Clock = SystemClock()
        self._linear = RowLinear()
        self._cache: KeyValues | None = None
        self._slots: Slots | None = None
        self._prefixes: dict[str, _Prefix] = {}
        self._stale = False

    @property
    def exact(self) -> bool:
        """Whether completions are bitwise independent of batch mates, as far as was measured; False on CUDA."""
        return self._linear.exact

    def publish(self, version: int) -> None:
        """Say that the weights changed. Tokens from here on are drawn by `version`, and what is running has its keys
        and values computed anew first: no cache of older weights is read."""
        self.version = version
        self._prefixes.clear()
        self._stale = True
        if self._slots is not None:
            self._slots.mark(version)

    def generate(self, requests: Sequence[Request], *, round: int = 0) -> Iterator[Completion]:
        """Completions as they finish. Draws are keyed by (seed, `round`, request id, sample), so that ids need to be
        unique within a round only.

        Raises, before any work and with every fault, DataError for requests and ConfigError for settings that cannot be
        run. While it runs: RuntimeError when another `generate` of this engine has not ended, DivergedError when the
        model's logits are not finite.
        """
        context = min(self._max_len, self._model.config.max_positions)
        check_requests(requests, context=context, vocab=self._vocab)
        if self._decode is None and any(request.sampling.stop for request in requests):
            raise ValueError("stop strings need a decode function; give one to the Engine")
        return self._run(requests, round)

    def _run(self, requests: Sequence[Request], number: int) -> Iterator[Completion]:
        if self._slots is not None:
            raise RuntimeError("this engine is generating already; exhaust or close the earlier iterator first")
        model, rows = self._model, padded(self._slots_count)
        capacity = max((request.sampling.max_tokens for request in requests), default=1)
        self._slots = slots = Slots(rows=rows, capacity=capacity, device=model.device)
        self.stats = Stats(slots=self._slots_count)
        queue = deque(Running(request, sample) for request in requests for sample in range(request.samples))
        done: list[Completion] = []
        try:
            while queue or len(slots):
                began = self.clock.monotonic_s()
                if len(slots) and not self._stale:
                    done = self._step(slots, queue, number)
                else:
                    self._stale = False
                    self._recompute(slots)
                    done = self._admit(slots, [], queue, number)
                self.stats.seconds_s += self.clock.monotonic_s() - began
                yield from done
        finally:
            self._slots = None
            self._prefixes.clear()

    @torch.inference_mode()
    def _step(self, slots: Slots, queue: deque[Running], number: int) -> list[Completion]:
        """One token for every running sequence; then free slots are taken again."""
        count, cache = len(slots), self._keys_and_values()
        rows = padded(count)
        tokens, positions = slots.token[:rows], slots.position[:rows]
        cache.aim(positions, int(positions.max()))
        hidden = self._model.run(tokens, positions, cache, self._linear)
        logits = self._model.logits(hidden, self._linear)[:count]
        self.stats.steps += 1
        self.stats.row_steps += count
        ended = self._draw(slots, torch.arange(count, device=tokens.device), logits)
        done = [slots.completion(row, finish) for row, finish in ended]
        return done + self._admit(slots, [row for row, _ in ended], queue, number)

    @torch.inference_mode()
    def _admit(self, slots: Slots, free: list[int], queue: deque[Running], number: int) -> list[Completion]:
        """Fill the rows in `free`, then those behind the last, from the queue; close the holes that remain."""
        done: list[Completion] = []
        free = sorted(free)
        while queue and (free or len(slots) < self._slots_count):
            rows: list[int] = []
            logits: list[Tensor] = []
            while queue and (free or len(slots) < self._slots_count):
                running = queue.popleft()
                prefix = self._prefix(running, queue)
                row = free.pop(0) if free else len(slots)
                self._keys_and_values().load(row, prefix.pairs)
                request, sample = running.request, running.sample
                count = request.sampling.max_tokens
                running.versions.append((0, self.version))
                slots.seat(row, running, uniforms(self._seed, "sample", number, request.id, sample, count=count))
                rows.append(row)
                logits.append(prefix.logits)
                if sample == request.samples - 1:
                    del self._prefixes[request.id]
            ended = self._draw(slots, torch.tensor(rows, device=self._model.device), torch.stack(logits))
            done.extend(slots.completion(row, finish) for row, finish in ended)
            free.extend(row for row, _ in ended)
            free.sort()
        for row in reversed(free):
            last = len(slots) - 1
            if row != last:
                slots.move(last, row)
                self._keys_and_values().move(last, row)
            slots.drop_last()
        return done

    def _draw(self, slots: Slots, rows: Tensor, logits: Tensor) -> list[tuple[int, Finish]]:
        """Draw, record, and say which rows ended."""
        drawn = draw(logits[:, : self._vocab], slots.uniforms(rows), slots.settings(rows))
        if not bool(torch.isfinite(drawn.logp).all()):
            bad = rows[~torch.isfinite(drawn.logp)].tolist()
            self._cache = None  # non-finite keys would poison whoever takes the slot next
            names = ", ".join(repr(slots.running[row].request.id) for row in bad)
            raise DivergedError(f"the model's logits are not finite (version {self.version}, requests {names})")
        slots.record(rows, drawn)
        self.stats.tokens += len(rows)
        is_eos = torch.zeros(self._model.config.vocab_size, dtype=torch.bool, device=rows.device)
        is_eos[list(self._eos)] = True
        return slots.ended(rows, is_eos, self._decode)

    def _prefix(self, running: Running, queue: deque[Running]) -> _Prefix:
        """The computed prompt of `running`; computes it with those of the next requests if need be."""
        if running.request.id not in self._prefixes:
            batch: dict[str, Request] = {}
            tokens = 0
            for request in (running.request, *(other.request for other in queue)):
                if request.id in batch or request.id in self._prefixes:
                    continue
                if batch and tokens + len(request.prompt) > _PREFILL_TOKENS:
                    break
                batch[request.id] = request
                tokens += len(request.prompt)
            computed = self._prefill([request.prompt for request in batch.values()])
            self._prefixes.update(zip(batch, computed, strict=True))
        return self._prefixes[running.request.id]

    def _prefill(self, prompts: Sequence[NDArray[np.integer]]) -> list[_Prefix]:
        device, config = self._model.device, self._model.config
        lengths = [len(prompt) for prompt in prompts]
        total = sum(lengths)
        tokens, positions = np.zeros((2, padded(total)), np.int64)
        tokens[:total] = np.concatenate(prompts)
        positions[:total] = np.concatenate([np.arange(n) for n in lengths])
        attend = Prefill(config, lengths, dtype=self._model.dtype, device=device)
        hidden = self._model.run(
            torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device), attend, self._linear
        )
        last = np.zeros(padded(len(lengths)), np.int64)
        last[: len(lengths)] = np.cumsum(lengths) - 1
        logits = self._model.logits(hidden[torch.from_numpy(last).to(device)], self._linear)
        self.stats.prefill_tokens += total
        return [_Prefix(pairs, row) for pairs, row in zip(attend.prefixes(), logits[: len(lengths)], strict=True)]

    @torch.inference_mode()
    def _recompute(self, slots: Slots) -> None:
        """Keys and values of everything that is running, by the weights as they are now."""
        for row in range(len(slots)):
            (prefix,) = self._prefill([slots.sequence(row)])
            self._keys_and_values().load(row, prefix.pairs)

    def _keys_and_values(self) -> KeyValues:
        if self._cache is None:
            self._cache = KeyValues(
                self._model.config,
                slots=self._slots_count,
                capacity=self._max_len,
                dtype=self._model.dtype,
                device=self._model.device,
            )
        return self._cache
