"""Checks that runner and trainer have the same weights: a hash, and the log-probabilities of a short text.

A generator with old or wrong weights trains without an error and learns nothing, so both are compared at every
publication.
"""

from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.episodes import Routing
from hone.core.errors import DivergedError
from hone.engine.protocol import GenerationModel, ModelShape
from hone.engine.work import ForwardBatch, ModelRunner, SamplerInput, SamplerOutput

_TOKENS: Final = 8
_SAMPLED: Final = 64
"""Number of hashed elements of each parameter."""
_TOLERANCE: Final = {torch.float32: 2e-4, torch.float64: 2e-5, torch.bfloat16: 0.1, torch.int8: 0.2}
"""Nats, mean over the canary's tokens: a hundred times the difference between two orders of summation, and ten times
what codes of 8 bits lose.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFingerprint:
    """Fingerprint of one version of the weights."""

    weight_hash: str
    """Hash of a sample of each parameter, hex."""
    mean_logp: float
    """Mean log-probability of the canary's tokens by the runner, nats."""
    mean_gap_nats: float
    """Mean |runner - trainer| over the canary's tokens, nats."""
    runner_bits: str = ""
    """The runner's log-probabilities of the canary's tokens to the bit, hex."""


class WeightCanary:
    """A text of a few tokens, the same in every run."""

    def __init__(
        self, model: GenerationModel, *, vocab: int, dtype: torch.dtype | None = None, tolerance: float | None = None
    ) -> None:
        """`vocab`: ids from there on have probability 0. `tolerance`: nats; by default according to the runner's
        `dtype`, which is the model's own by default.
        """
        self._model, self._vocab = model, vocab
        self._tolerance = _TOLERANCE[dtype or model.dtype] if tolerance is None else tolerance
        self._tokens = (np.arange(_TOKENS, dtype=np.int64) * 7919 + 1) % vocab
        self._kept: tuple[int, np.ndarray, str] | None = None

    def keep(self, version: int) -> None:
        """Compute the trainer's side of the checks of `version` now: its weights may move on before the last of them.
        For runners that tell no routes."""
        self._kept = version, self._trainer_logp(None), _hash_weights(self._model)

    def check(self, version: int, runner: ModelRunner, *, page: int) -> WeightFingerprint:
        """Score the canary with trainer and engine; overwrites `page` of the runner.

        Raises DivergedError when they differ, or when log-probabilities are not finite.
        """
        drawn = self._run(runner, page)
        kept, ours = self._kept, drawn.logp.astype(np.float64)
        if kept is None or kept[0] != version or drawn.routing is not None:
            kept = version, self._trainer_logp(drawn.routing), _hash_weights(self._model)
        _, theirs, weights = kept
        gap = float(np.abs(ours - theirs).mean())
        if not np.isfinite(theirs).all():
            raise DivergedError(f"the weights of version {version} give log-probabilities that are not finite")
        if not gap <= self._tolerance * (1 + float(np.abs(theirs).mean())):
            raise DivergedError(
                f"the engine ({runner.name}) does not sample from the weights of version {version} (hash {weights}): "
                f"it gives the canary's tokens {ours.mean():.6g} nats on average, the trainer {theirs.mean():.6g}, and "
                f"they differ by {gap:.3g}, tolerance {self._tolerance:g}; no token was sampled by this version"
            )
        return WeightFingerprint(
            weight_hash=weights,
            mean_logp=float(ours.mean()),
            mean_gap_nats=gap,
            runner_bits=drawn.logp.tobytes().hex(),
        )

    def _run(self, runner: ModelRunner, page: int) -> SamplerOutput:
        count = min(_TOKENS, runner.page_tokens)
        tokens = self._tokens[:count].astype(np.int32)
        work = ForwardBatch(
            tokens=tokens[:-1],
            positions=np.arange(count - 1, dtype=np.int32),
            sequence=np.zeros(count - 1, np.int32),
            pages=np.array([[page]], np.int32),
            draws=SamplerInput(
                token_index=np.arange(count - 1, dtype=np.int32),
                forced_token=tokens[1:],
                uniform=np.zeros(count - 1),
                temperature=np.ones(count - 1, np.float32),
                top_k=np.zeros(count - 1, np.int32),
                top_p=np.ones(count - 1, np.float32),
                min_p=np.zeros(count - 1, np.float32),
                greedy=np.zeros(count - 1, np.bool_),
            ),
        )
        return runner.run(work)

    @torch.inference_mode()
    def _trainer_logp(self, routing: Routing | None) -> np.ndarray:
        """Compute the canary's log-probabilities with the model's own forward pass, without pages and packing.

        A mixture of experts takes the runner's routes `[T, L, k]`: a route that rounding flips is no wrong weight.
        """
        tokens = torch.from_numpy(self._tokens).to(self._model.device)
        attend = partial(_dense, self._model.config)
        asked = (tokens[:-1], torch.arange(_TOKENS - 1, device=tokens.device), attend, functional.linear)
        if routing is None:
            hidden = self._model.run(*asked)
        else:
            replayed = torch.from_numpy(routing.astype(np.int64)).to(tokens.device)
            hidden, _ = self._model.run_routed(*asked, replayed)
        logits = self._model.logits(hidden, functional.linear)[:, : self._vocab]
        logp = torch.log_softmax(logits, dim=-1).gather(1, tokens[1:, None])[:, 0]
        return logp.double().cpu().numpy()


def _dense(shape: ModelShape, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over one text, head by head, by the windows and the bound of a model's scores."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    places, window = torch.arange(len(query), device=query.device), shape.window(layer)
    behind = places[:, None] - places
    seen = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
    if shape.score_cap is None:
        out = functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)
    k, v = (x.repeat_interleave(len(q) // len(k), dim=0) for x in (k, v))
    scores = torch.tanh(q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 / shape.score_cap) * shape.score_cap
    return (torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=-1) @ v).transpose(0, 1).flatten(1)


def _hash_weights(model: GenerationModel) -> str:
    """Hash of up to 64 numbers of each parameter, evenly spread; 32 hex digits."""
    digest = blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLED)][:_SAMPLED]
        digest.update(name.encode())
        digest.update(sample.double().cpu().numpy().tobytes())
    return digest.hexdigest()
