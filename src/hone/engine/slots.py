"""The running sequences: rows 0..n-1 of a few arrays, so that a step works on slices.

Belongs here: bookkeeping of what was drawn and when a sequence ends. Does not: the model, keys and values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.generation import Completion, Finish, Request
from hone.engine.sampler import Drawn, Settings

Decode = Callable[[Sequence[int]], str]

_STOP_MARGIN: Final = 32
"""Tokens decoded besides those that a stop string may span, so that the border of the window does not matter."""


@dataclass(slots=True)
class Running:
    """One sample of a request."""

    request: Request
    sample: int
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(first token, version that draws from there on)."""


class Slots:
    """State of the sequences in up to `rows` rows."""

    def __init__(self, *, rows: int, capacity: int, device: torch.device) -> None:
        self.running: list[Running] = []
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)
        """Drawn last, and not in the cache yet."""
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        """Where `token` goes."""
        self._drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self._most = torch.zeros(rows, dtype=torch.int64, device=device)
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._greedy = torch.zeros(rows, dtype=torch.bool, device=device)
        self._temperature = torch.ones(rows, dtype=torch.float64, device=device)
        self._top_p = torch.ones(rows, dtype=torch.float64, device=device)
        self._uniform = torch.zeros(rows, capacity, dtype=torch.float64, device=device)
        self._tokens = torch.zeros(rows, capacity, dtype=torch.int32, device=device)
        self._logp = torch.zeros(rows, capacity, 2, dtype=torch.float32, device=device)

    def __len__(self) -> int:
        return len(self.running)

    def seat(self, row: int, running: Running, uniform: NDArray[np.float64]) -> None:
        """Start a sequence in a row that is free or next; `uniform` `[max_tokens]` decides its draws."""
        if row == len(self.running):
            self.running.append(running)
        else:
            self.running[row] = running
        sampling = running.request.sampling
        self.position[row] = len(running.request.prompt) - 1
        self._drawn[row] = 0
        self._most[row] = sampling.max_tokens
        self._top_k[row] = sampling.top_k
        self._greedy[row] = sampling.greedy
        self._temperature[row] = sampling.temperature
        self._top_p[row] = sampling.top_p
        self._uniform[row, : len(uniform)] = torch.from_numpy(uniform)

    def move(self, source: int, target: int) -> None:
        """Copy one row's sequence over another."""
        self.running[target] = self.running[source]
        for column in (
            self.token, self.position, self._drawn, self._most, self._top_k, self._greedy, self._temperature,
            self._top_p, self._uniform, self._tokens, self._logp,
        ):  # fmt: skip
            column[target] = column[source]

    def drop_last(self) -> None:
        """Free the last row; a padded step will find a harmless token at position 0 in it."""
        row = len(self.running) - 1
        self.running.pop()
        self.token[row] = 0
        self.position[row] = 0

    def uniforms(self, rows: Tensor) -> Tensor:
        """`[n]` in [0, 1): what decides the next draw of each row."""
        return self._uniform[rows, self._drawn[rows]]

    def settings(self, rows: Tensor) -> Settings:
        return Settings(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            greedy=self._greedy[rows],
        )

    def record(self, rows: Tensor, drawn: Drawn) -> None:
        """Take up what was drawn for `rows` `[n]`."""
        at = self._drawn[rows]
        self._tokens[rows, at] = drawn.tokens.to(torch.int32)
        self._logp[rows, at] = torch.stack((drawn.logp, drawn.sampled_logp), dim=1).float()
        self.token[rows] = drawn.tokens
        self.position[rows] += 1
        self._drawn[rows] = at + 1

    def ended(self, rows: Tensor, is_eos: Tensor, decode: Decode | None) -> list[tuple[int, Finish]]:
        """Rows, ascending, whose last token ended them. `is_eos` `[vocab]` bool. EOS counts before a stop string, and
        that before the length."""
        eos = is_eos[self.token[rows]]
        full = self._drawn[rows] >= self._most[rows]
        found: dict[int, Finish] = {}
        if bool((eos | full).any()):
            found.update((row, "length") for row in rows[full].tolist())
            found.update((row, "eos") for row in rows[eos].tolist())
        if decode is not None:
            for row in rows.tolist():
                if self.running[row].request.sampling.stop and found.get(row) != "eos" and self._stops(row, decode):
                    found[row] = "stop"
        return sorted(found.items())

    def _stops(self, row: int, decode: Decode) -> bool:
        stops = self.running[row].request.sampling.stop
        # A token carries at least a byte of text, special tokens aside: more tokens than this cannot be spanned.
        window = max(len(stop.encode()) for stop in stops) + _STOP_MARGIN
        count = int(self._drawn[row])
        text = decode(self._tokens[row, max(0, count - window) : count].tolist())
        return any(stop in text for stop in stops)

    def sequence(self, row: int) -> NDArray[np.int64]:
        """Prompt and tokens of a row, without the last: what the cache holds."""
        drawn = self._tokens[row, : int(self._drawn[row]) - 1].cpu().numpy()
        return np.concatenate([self.running[row].request.prompt, drawn]).astype(np.int64)

    def mark(self, version: int) -> None:
        """From here on every running sequence is drawn by `version`."""
        for row, running in enumerate(self.running):
            running.versions.append((int(self._drawn[row]), version))

    def completion(self, row: int, finish: Finish) -> Completion:
        count, running = int(self._drawn[row]), self.running[row]
        version = np.zeros(count, np.int32)
        for start, number in running.versions:
            version[start:] = number
        logp = self._logp[row, :count].cpu().numpy()
        return Completion(
            request=running.request.id,
            sample=running.sample,
            tokens=self._tokens[row, :count].cpu().numpy().copy(),
            logp=logp[:, 0].copy(),
            sampled_logp=logp[:, 1].copy(),
            version=version,
            finish=finish,
        )
