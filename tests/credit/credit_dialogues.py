"""Dialogues of given turns for the tests of credit."""

from dataclasses import dataclass

import numpy as np

from hone.core.credit import Values
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.ragged import offsets_of


@dataclass(frozen=True)
class Turn:
    """A turn of `length` sampled tokens, after `heard` and with its reward."""

    heard: list[int]
    length: int
    reward: float = 0.0


Dialogue = list[Turn]


def dialogues(
    talks: list[Dialogue], groups: list[int] | None = None, *, missing: tuple[int, ...] = (), cut: tuple[int, ...] = ()
) -> Episodes:
    """Episodes of these dialogues; sampled tokens are 1, 2, 3 ... of their dialogue, plus 100."""
    tokens: list[int] = []
    at: list[int] = []
    reward: list[float] = []
    starts, counts, turn = [0], [], []
    for talk in talks:
        said = 0
        for number, one in enumerate(talk):
            tokens += one.heard
            at += range(len(tokens), len(tokens) + one.length)
            tokens += range(101 + said, 101 + said + one.length)
            reward += ([0.0] * (one.length - 1) + [one.reward]) if one.length else []
            turn += [number] * one.length
            said += one.length
        starts.append(len(tokens))
        counts.append(said)
    count = len(talks)
    status = np.full(count, ScoreStatus.SCORED, np.uint8)
    status[list(missing)] = ScoreStatus.TIMEOUT
    truncated = np.isin(np.arange(count), cut)
    flat = np.array(tokens, np.int32)
    score = np.array([sum(one.reward for one in talk) for talk in talks], np.float64)
    return Episodes(
        offsets=offsets_of(np.array(counts)),
        seen=Transcript(tokens=flat, offsets=np.array(starts), at=np.array(at, np.int64)),
        chosen=flat[at],
        logp=np.full(len(at), -0.5, np.float32),
        version=np.zeros(len(at), np.int32),
        reward=np.array(reward, np.float32),
        group=np.array(groups or [0] * count, np.int64),
        terminated=~truncated,
        truncated=truncated,
        score=np.where(status == ScoreStatus.SCORED, score, np.nan),
        status=status,
        turn=np.array(turn, np.int32),
    )


def critic(episodes: Episodes, seed: int) -> Values:
    rng = np.random.default_rng(seed)
    return Values(
        value=rng.normal(size=episodes.decisions).astype(np.float32),
        final=rng.normal(size=len(episodes)).astype(np.float32),
    )
