"""Routes that flip: an engine in bfloat16 and a trainer in float32 send some tokens to different experts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hone.core.random import permutation
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot
from hone.lab.puzzles import Floats
from hone.lab.tasks.chain_of_sums import ALPHABET, make_problems
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.init import new_model
from hone.models.packing import PackedBatch, pack_rows, row_targets
from hone.run.report.html import format_number

_COUNT, _PER_TOKEN, _WIDTH = 8, 2, 32
"""Experts of a layer, those of a token, and their width; the dense network is as wide as the experts of a token."""
_BATCH, _RATE = 48, 5e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundingGaps:
    """Log-probabilities of float32 minus those of bfloat16, for tokens of some texts."""

    free: Floats
    """`[n]` nats; each computation goes its own way."""
    replayed: Floats
    """`[n]` nats; float32 follows the routes of bfloat16."""
    flipped: np.ndarray
    """`[n, L]` whether the token that is predicted from went to other experts."""
    text: np.ndarray
    """`[n]` number of the token's text."""

    @property
    def flipped_tokens(self) -> np.ndarray:
        """`[n]` whether any layer did."""
        return np.asarray(self.flipped.any(axis=1))

    @property
    def flipped_share(self) -> float:
        """Share of the squared gap that flipped tokens carry."""
        return float((self.free[self.flipped_tokens] ** 2).sum() / max((self.free**2).sum(), 1e-30))

    def ratio_spread(self, *, by_text: bool) -> float:
        """Standard deviation of exp(gap), of tokens or of the geometric mean over a text."""
        gap = self.free
        if by_text:
            gap = np.bincount(self.text, weights=gap) / np.bincount(self.text)
        return float(np.exp(gap).std())


def _network(*, mixture: bool, seed: int) -> Decoder:
    """A small decoder, with experts or dense."""
    experts = ExpertsConfig(count=_COUNT, per_token=_PER_TOKEN, width=_WIDTH) if mixture else None
    config = ModelConfig(
        family="qwen3_moe" if mixture else "qwen3", vocab_size=len(ALPHABET) + 1, hidden_size=48,
        intermediate_size=_PER_TOKEN * _WIDTH, layers=3, heads=4, kv_heads=2, head_dim=12, experts=experts,
    )  # fmt: skip
    return new_model(config, seed=seed)


def _texts(count: int, seed: int) -> list[np.ndarray]:
    """Chains of sums with their solutions, as tokens; each ends in token 0."""
    places = {character: place for place, character in enumerate(ALPHABET, start=1)}
    solved = [one.prompt + one.solution for one in make_problems(count, seed=seed, terms=(3, 4))]
    return [np.array([places[character] for character in one] + [0], np.int32) for one in solved]


def _imitate(model: Decoder, data: Sequence[np.ndarray], *, steps: int, seed: int) -> None:
    """Steps of Adam on the mean negative log-likelihood of all tokens."""
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    for step in range(steps):
        chosen = permutation(seed, "lab/texts", step, count=len(data))[:_BATCH]
        packed = pack_rows([data[place] for place in chosen.tolist()])
        targets = row_targets(packed)
        look = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen)
        optimizer.zero_grad()
        (-look.logp.mean()).backward()
        optimizer.step()


@torch.no_grad()
def _text_logp(model: Decoder, packed: PackedBatch) -> tuple[Floats, torch.Tensor | None]:
    """Log-probabilities `[n]` of all tokens but first ones, and the routes `[T, L, k]` of all."""
    states, targets = model.states(packed), row_targets(packed)
    logp = model.token_logprobs(states.hidden[targets.at], targets.chosen).logp
    return logp.double().numpy(), None if states.routing is None else states.routing.chosen()


def _rounding_gaps(model: Decoder, data: Sequence[np.ndarray]) -> RoundingGaps:
    """Gaps between float32 and bfloat16 on texts."""
    packed = pack_rows(list(data))
    at = row_targets(packed).at
    exact, own = _text_logp(model, packed)
    model.set_compute_dtype("bfloat16")
    rounded, routes = _text_logp(model, packed)
    model.set_compute_dtype("float32")
    replayed, _ = _text_logp(model, replace(packed, routing=routes))
    flipped = np.zeros((len(at), 1), np.bool_)
    if own is not None and routes is not None:
        flipped = (own.sort(dim=2).values != routes.sort(dim=2).values).any(dim=2)[at].numpy()
    text = np.repeat(np.arange(len(data)), [len(one) - 1 for one in data])
    return RoundingGaps(free=exact - rounded, replayed=replayed - rounded, flipped=flipped, text=text)


def claims_of(mixture: RoundingGaps, dense: RoundingGaps) -> list[BoundedClaim]:
    """Claims on who carries the gap, what replay leaves of it, and what a sequence ratio does with it."""
    free, replayed = np.abs(mixture.free), np.abs(mixture.replayed)
    return [
        at_most("tokens sent elsewhere in some layer, share", mixture.flipped_tokens.mean(), 0.25),
        at_least(
            "their share of the squared gap over their share of the tokens",
            mixture.flipped_share / max(mixture.flipped_tokens.mean(), 1e-9), 5.0,
        ),
        at_most("largest gap, with replay over without", replayed.max() / free.max(), 0.5),
        at_least("largest gap, experts over dense", free.max() / np.abs(dense.free).max(), 1.5),
        at_most(
            "spread of ratios, sequence over token",
            mixture.ratio_spread(by_text=True) / mixture.ratio_spread(by_text=False), 0.5,
        ),
    ]  # fmt: skip


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, few = (40, 100) if quick else (150, 300)
    data, held_out = _texts(1500, 2 * seed), _texts(few, 2 * seed + 1)
    measured: dict[str, RoundingGaps] = {}
    for name in ("experts", "dense"):
        model = _network(mixture=name == "experts", seed=seed)
        _imitate(model, data, steps=steps, seed=seed)
        measured[name] = _rounding_gaps(model, held_out)
    mixture, dense = measured["experts"], measured["dense"]
    token_spread, text_spread = mixture.ratio_spread(by_text=False), mixture.ratio_spread(by_text=True)
    gaps = {"experts": mixture.free, "experts, routes replayed": mixture.replayed, "dense": dense.free}
    return ExperimentResult(
        header=("network", "mean gap, nats", "largest gap, nats", "k3, nats"),
        rows=[
            (name, format_number(np.abs(gap).mean()), format_number(np.abs(gap).max()),
             format_number((np.exp(gap) - 1 - gap).mean()))
            for name, gap in gaps.items()
        ],
        panels=[
            bar_plot("largest gap between float32 and bfloat16, nats", {k: np.abs(v).max() for k, v in gaps.items()}),
            bar_plot(
                "spread of the ratio trainer / engine, experts",
                {"of a token": token_spread, "of a sequence": text_spread},
            ),
        ],
        verdict=(
            f"In bfloat16 {mixture.flipped_tokens.mean():.1%} of the tokens go to other experts than in float32, in "
            f"{mixture.flipped.mean():.1%} of the (token, layer) places. They carry {mixture.flipped_share:.0%} of the "
            f"squared gap, and the largest is {np.abs(mixture.free).max():.2g} nats; with the routes of bfloat16 "
            f"replayed it is {np.abs(mixture.replayed).max():.2g}, and {np.abs(dense.free).max():.2g} in a dense "
            f"network of the same active size. The ratio of a token spreads by {token_spread:.2g}, the sequence ratio "
            f"by {text_spread:.2g}."
        ),
        claims=claims_of(mixture, dense),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Routes that flip",
    question="What does rounding do to a mixture of experts, and what does replaying its routes remove of it?",
    run=_run,
    source="rollout routing replay (arXiv 2510.11370); Zheng et al., 2025 (GSPO)",
)
