"""Re-tokenised turns: how often a turn's text, encoded again, is other tokens than were drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

import numpy as np
import tokenizers as hf
from numpy.typing import NDArray

from hone.core.random import uniforms
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot

_TEMPERATURES = (0.7, 1.0, 1.3)
_LENGTHS = (8, 16, 32, 64)
"""Tokens of a turn."""
TURN, TURNS = 32, 8
_VOCABULARY = 2000
_ANY_TOKEN = 0.05
"""Weight of the tokens' frequencies beside the pairs': a model gives every continuation some probability."""

_Floats = NDArray[np.float64]
Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairModel:
    """Byte pairs learnt from prose, and how often each token follows each other one there."""

    tokenizer: hf.Tokenizer
    frequency: _Floats
    """`[V]`"""
    following: _Floats
    """`[V, V]` probability of the column after the row, at temperature 1."""

    def at(self, temperature: float) -> _Floats:
        """`[V, V]` the policy at a temperature: p ** (1 / temperature), normalised."""
        heated = self.following ** (1 / temperature)
        return heated / heated.sum(axis=1, keepdims=True)

    def draw(self, count: int, temperature: float, seed: int, *, tokens: int) -> Tokens:
        """`[count, tokens]` turns."""
        size = len(self.frequency)
        # One sorted line for all rows: row r ends at r + 1.
        line = (np.minimum(self.at(temperature).cumsum(axis=1), 1.0) + np.arange(size)[:, None]).reshape(-1)
        draws = uniforms(seed, "lab/turns", round(10 * temperature), count=count * tokens).reshape(tokens, count)
        turns = np.empty((tokens, count), np.int64)
        turns[0] = np.minimum(np.searchsorted(self.frequency.cumsum(), draws[0]), size - 1)
        for place in range(1, tokens):
            before = turns[place - 1]
            turns[place] = np.clip(np.searchsorted(line, before + draws[place]) - before * size, 0, size - 1)
        return turns.T

    def encoded_again(self, turns: Tokens) -> list[list[int]]:
        """Tokens of the text of each turn."""
        return [self.tokenizer.encode(text).ids for text in self.tokenizer.decode_batch(turns.tolist())]


def pair_model() -> PairModel:
    """A model of the prose in Python's own manual, as the interpreter carries it for `help()`."""
    prose = "\n".join(topics.values())
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        initial_alphabet=sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(prose.splitlines(keepends=True), trainer)
    ids, size = np.array(tokenizer.encode(prose).ids), tokenizer.get_vocab_size()
    frequency = np.bincount(ids, minlength=size) / len(ids)
    pairs = np.zeros((size, size))
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    seen = pairs.sum(axis=1, keepdims=True)
    pairs = np.where(seen > 0, pairs / np.maximum(seen, 1), frequency)
    return PairModel(tokenizer, frequency, (1 - _ANY_TOKEN) * pairs + _ANY_TOKEN * frequency)


def _changed(turns: Tokens, again: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """`[count]` turns whose text has other tokens than were drawn."""
    return np.array([list(other) != drawn for other, drawn in zip(again, turns.tolist(), strict=True)])


def _lost_nats(logp: _Floats, drawn: Sequence[int], again: Sequence[int]) -> float:
    """Log-probability of the drawn tokens less that of the same text's other tokens, after the first, in nats."""
    return float(logp[drawn[:-1], drawn[1:]].sum() - logp[again[:-1], again[1:]].sum())


def claims_of(share: dict[float, float], dialogue: float, lost: float) -> list[BoundedClaim]:
    """Claims on the share of changed turns by temperature, of changed dialogues, and on the nats of a changed turn."""
    return [
        at_least(f"turns of {TURN} tokens with other tokens, temperature 1", share[1.0], 0.03),
        at_least("the same at 1.3 over 0.7", share[1.3] / max(share[0.7], 1e-6), 2.0),
        at_least(f"dialogues of {TURNS} such turns with other tokens, temperature 1", dialogue, 0.25),
        at_least("nats that a changed turn loses", lost, 2.0),
        at_most("turns that are changed, temperature 0.7", share[0.7], 0.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    model, count = pair_model(), 1600 if quick else 8000
    shares: dict[float, list[float]] = {}
    lost: dict[float, float] = {}
    dialogue = 0.0
    for temperature in _TEMPERATURES:
        logp, shares[temperature] = np.log(np.maximum(model.at(temperature), 1e-12)), []
        drawn = model.draw(count, temperature, seed, tokens=max(_LENGTHS))
        for length in _LENGTHS:
            turns = drawn[:, :length]
            again = model.encoded_again(turns)
            other = _changed(turns, again)
            shares[temperature].append(float(other.mean()))
            if length == TURN:
                gaps = [_lost_nats(logp, turns[at].tolist(), again[at]) for at in np.flatnonzero(other).tolist()]
                lost[temperature] = float(np.median(gaps)) if gaps else 0.0
                dialogue = float(other.reshape(-1, TURNS).any(axis=1).mean()) if temperature == 1.0 else dialogue
    short = {temperature: each[_LENGTHS.index(TURN)] for temperature, each in shares.items()}
    return ExperimentResult(
        header=("temperature", *(f"{length} tokens" for length in _LENGTHS), "nats lost by a changed turn"),
        rows=[
            (f"{temperature:g}", *(f"{value:.1%}" for value in each), f"{lost[temperature]:.1f}")
            for temperature, each in shares.items()
        ],
        panels=[
            line_plot(
                "turns whose text has other tokens than were drawn",
                "tokens of a turn",
                _LENGTHS,
                {f"temperature {temperature:g}": each for temperature, each in shares.items()},
            )
        ],
        verdict=(
            f"At temperature 1, {short[1.0]:.1%} of turns of {TURN} tokens are other tokens when their text is encoded "
            f"again ({short[0.7]:.1%} at 0.7, {short[1.3]:.1%} at 1.3), and so are {dialogue:.0%} of dialogues of "
            f"{TURNS} such turns. The policy gives the other tokens of a changed turn {lost[1.0]:.0f} nats less than "
            "those that it drew: trained on them, it learns from what nobody said. Tokens that are kept do not change."
        ),
        claims=claims_of(short, dialogue, lost[1.0]),
    )


EXPERIMENT = Experiment(
    title="Re-tokenised turns",
    question="How often does a turn that is decoded and encoded again become other tokens than were drawn?",
    run=_run,
    source="verl and others, on multi-turn rollouts, 2025",
)
