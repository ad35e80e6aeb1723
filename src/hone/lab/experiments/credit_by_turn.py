"""Credit by turn: noise and bias of the gradient of a walk, when whole dialogues, turns or states are judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES, Values
from hone.core.episodes import Episodes, Transcript
from hone.core.ragged import offsets_of
from hone.core.random import generator
from hone.credit.group import group_relative
from hone.credit.grouping import CreditFunction
from hone.credit.returns import gae
from hone.credit.turns import anchored, per_turn
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot

_Floats = NDArray[np.float64]
_PLACES, _START, _TURNS, _GROUP, _SAID = 7, 3, 12, 16, 8
"""Places of a walk, its start, its longest number of turns, walks of a group, and tokens of a turn."""
_DECAY: Final = 0.9
WHOLE, STATES = "whole dialogue", "and turns that began alike"
TOKENS, OVER_TURNS = f"gae over tokens, lambda {_DECAY}", f"gae over turns, lambda {_DECAY}"
CREDITS: Final = (WHOLE, STATES, TOKENS, OVER_TURNS)


@dataclass(frozen=True, slots=True)
class _Walks:
    """E walks of one policy. A step goes right with the chance of its place; the right end pays 1, the left end 0."""

    chance: _Floats
    """`[PLACES]`."""
    place: NDArray[np.int64]
    """`[E, TURNS]` place before each turn."""
    right: NDArray[np.bool_]
    """`[E, TURNS]`."""
    going: NDArray[np.bool_]
    """`[E, TURNS]` whether the turn was taken."""
    score: _Floats
    """`[E]`."""


def _walk(chance: _Floats, count: int, *, seed: int, number: int) -> _Walks:
    """`count` walks from the start."""
    draws = generator(seed, "lab/credit-by-turn", number).random((count, _TURNS))
    place = np.full((count, _TURNS + 1), _START)
    going = np.ones((count, _TURNS + 1), np.bool_)
    for turn in range(_TURNS):
        step = np.where(draws[:, turn] < chance[place[:, turn]], 1, -1)
        place[:, turn + 1] = place[:, turn] + np.where(going[:, turn], step, 0)
        going[:, turn + 1] = going[:, turn] & (place[:, turn + 1] % (_PLACES - 1) != 0)
    right = draws < chance[place[:, :-1]]
    return _Walks(chance, place[:, :-1], right, going[:, :-1], (place[:, -1] == _PLACES - 1).astype(np.float64))


def _as_dialogues(walks: _Walks) -> Episodes:
    """Walks as dialogues: the environment names the place, and the first of a turn's `_SAID` tokens is the step."""
    turns = walks.going.sum(axis=1)
    spoken = np.concatenate([walks.place[..., None], np.zeros((*walks.place.shape, _SAID), np.int64)], axis=2)
    tokens = spoken[walks.going].reshape(-1).astype(np.int32)
    offsets, count = offsets_of(turns * _SAID), int(turns.sum()) * _SAID
    reward = np.zeros(count, np.float32)
    reward[offsets[1:] - 1] = walks.score
    ended = np.ones(len(turns), np.bool_)
    return Episodes(
        offsets=offsets,
        seen=Transcript(
            tokens=tokens,
            offsets=offsets_of(turns * (_SAID + 1)),
            at=np.flatnonzero(np.arange(len(tokens)) % (_SAID + 1)),
        ),
        chosen=np.zeros(count, np.int32),
        logp=np.zeros(count, np.float32),
        version=np.zeros(count, np.int32),
        reward=reward,
        group=np.arange(len(turns)) // _GROUP,
        terminated=ended,
        truncated=~ended,
        score=walks.score,
    )


def _true_gradient(chance: _Floats) -> _Floats:
    """`[PLACES]` gradient of the expected score in the logits of the chances: the sum over turns of the chance to stand
    at a place, times p (1 - p), times what a step to the right is worth more."""
    ends = np.arange(_PLACES) % (_PLACES - 1) == 0
    value = [np.where(np.arange(_PLACES) == _PLACES - 1, 1.0, 0.0)]
    for _ in range(_TURNS):
        after = value[-1]
        moved = chance * np.append(after[1:], 0.0) + (1 - chance) * np.append(0.0, after[:-1])
        value.append(np.where(ends, after, moved))
    there, measured = np.eye(_PLACES)[_START], np.zeros(_PLACES)
    for turn in range(_TURNS):
        after = value[_TURNS - turn - 1]
        better = np.append(after[1:], 0.0) - np.append(0.0, after[:-1])
        open_ = np.where(ends, 0.0, there)
        measured += open_ * chance * (1 - chance) * better
        there = np.where(ends, there, 0.0)
        there[1:] += (open_ * chance)[:-1]
        there[:-1] += (open_ * (1 - chance))[1:]
    return measured


def _credits() -> Mapping[str, CreditFunction]:
    """Credits by name; those by GAE are of a critic that knows nothing yet."""
    over_tokens = partial(gae, discount=1.0, gae_lambda=_DECAY)
    return {
        WHOLE: partial(group_relative, scale="none"),
        STATES: partial(anchored, scale="none", discount=1.0),
        TOKENS: over_tokens,
        OVER_TURNS: partial(per_turn, credit=over_tokens),
    }


@dataclass(frozen=True, slots=True)
class CreditErrors:
    """Errors of a credit's gradient at the length at which it fits the true one best, in that one's squared length."""

    noise: float
    """Variance of the gradient of one group."""
    bias: float
    """Squared bias."""
    reaches: float
    """Length of the expected gradient, of the true one's."""


def _errors_of(name: str, walks: _Walks) -> CreditErrors:
    """Errors of a credit on groups of walks of one policy."""
    episodes, credit = _as_dialogues(walks), _credits()[name]
    mean = np.full(episodes.decisions, walks.score.mean(), np.float32)
    known = Values(value=mean, final=np.zeros(len(episodes), np.float32))
    values = known if name in (TOKENS, OVER_TURNS) else NO_VALUES
    advantage = np.zeros(walks.place.shape)
    advantage[walks.going] = credit(episodes, values).advantage[::_SAID]
    slope = advantage * (walks.right - walks.chance[walks.place])
    walker = np.repeat(np.arange(len(slope)) // _GROUP, _TURNS) * _PLACES + walks.place.reshape(-1)
    groups = len(slope) // _GROUP
    gradient = (
        np.bincount(walker, weights=slope.reshape(-1), minlength=groups * _PLACES).reshape(groups, _PLACES) / _GROUP
    )
    true, measured = _true_gradient(walks.chance), gradient.mean(axis=0)
    size, noise = float(true @ true), float(gradient.var(axis=0, ddof=1).sum())
    scale = float(measured @ true) / size
    bias = float(((measured / scale - true) ** 2).sum()) - noise / scale**2 / groups
    return CreditErrors(noise / scale**2 / size, bias / size, scale)


def claims_of(errors: Mapping[str, CreditErrors]) -> list[BoundedClaim]:
    """Claims on the errors of all credits."""
    whole = errors[WHOLE].noise
    return [
        at_most("turns that began alike: noise, over whole dialogues", errors[STATES].noise / whole, 0.97),
        at_most("turns that began alike: squared bias", errors[STATES].bias, 0.03),
        at_least("gae over tokens: squared bias", errors[TOKENS].bias, 0.3),
        at_most("gae over tokens: length of the expected gradient, of the true one's", errors[TOKENS].reaches, 0.5),
        at_most("gae over turns: squared bias", errors[OVER_TURNS].bias, 0.1),
        at_most("gae over turns: noise, over whole dialogues", errors[OVER_TURNS].noise / whole, 0.85),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    policies, groups = (3, 150) if quick else (6, 600)
    chances = generator(seed, "lab/credit-by-turn/policies").uniform(0.35, 0.65, (policies, _PLACES))
    walks = [_walk(chance, groups * _GROUP, seed=seed, number=number) for number, chance in enumerate(chances)]
    each = {name: [_errors_of(name, one) for one in walks] for name in CREDITS}
    measured = {
        name: CreditErrors(*(float(np.mean(values)) for values in zip(*map(_figures, own), strict=True)))
        for name, own in each.items()
    }
    turns = float(np.mean([one.going.sum(axis=1).mean() for one in walks]))
    whole, states, tokens, over = (measured[name] for name in CREDITS)
    return ExperimentResult(
        header=("credit", "noise of a group", "squared bias", "length of the expected gradient"),
        rows=[
            (name, f"{one.noise:.3f}", f"{max(one.bias, 0.0):.3f}", f"{one.reaches:.2f}")
            for name, one in measured.items()
        ],
        panels=[
            bar_plot("noise of a group's gradient", {name: [one.noise for one in own] for name, own in each.items()}),
            bar_plot("squared bias", {name: [max(one.bias, 0.0) for one in own] for name, own in each.items()}),
        ],
        verdict=(
            f"Over dialogues of {turns:.1f} turns of {_SAID} tokens, comparing turns that began alike has "
            f"{states.noise / whole.noise:.2f} times the noise of comparing whole dialogues, without bias. GAE that "
            f"counts tokens lets the outcome fade within a few turns ({tokens.reaches:.2f} of the gradient's length is "
            f"left, squared bias {tokens.bias:.2f}); counted in turns {over.reaches:.2f} is left, with a squared bias "
            f"of {over.bias:.2f} and {over.noise / whole.noise:.2f} times the noise of whole dialogues."
        ),
        claims=claims_of(measured),
    )


def _figures(errors: CreditErrors) -> tuple[float, float, float]:
    return errors.noise, errors.bias, errors.reaches


EXPERIMENT = Experiment(
    title="Credit by turn",
    question="What is gained when turns of a dialogue are judged, instead of the whole of it or its tokens?",
    run=_run,
    source="Schulman et al., 2016; Feng et al. (GiGPO), 2025",
)
