"""Collecting: the answers of a policy, with their scores, become a data set in the run's folder."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hone.core.credit import Credits, Metrics, Values
from hone.core.episodes import Episodes, ScoreStatus
from hone.credit.returns import scored_decisions
from hone.models.language.tokenizers import Tokenizer, vocabulary_hash
from hone.run.store.checkpoints import step_name
from hone.run.store.durable import replace_file, writing
from hone.text.tasks.collection import FOLDER, CollectedAnswer, collection_bytes
from hone.text.tasks.world import TextWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionWriter:
    """Writes the answers of each step to a file of its own, so that a resumed run writes the same files again."""

    world: TextWorld
    tokenizer: Tokenizer
    rewards: Sequence[str]
    """Names of the reward functions' scores."""
    continuations: int = 0
    """Continuations behind each label of a step; 0 without labels."""
    extend: Callable[[Sequence[CollectedAnswer]], Sequence[CollectedAnswer]] | None = None
    """Adds revised answers, or reflections, to the answers of a step."""

    def __call__(self, folder: Path, step: int, episodes: Episodes) -> None:
        """Write a step's answers into the run's folder. Raises ResourceError."""
        path = folder / FOLDER / f"{step_name(step)}.parquet"
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        rows = self.rows(episodes) if self.extend is None else self.extend(self.rows(episodes))
        replace_file(path, collection_bytes(rows, vocabulary=vocabulary_hash(self.tokenizer)))

    def rows(self, episodes: Episodes) -> list[CollectedAnswer]:
        """One row for each answer."""
        samples: Counter[int] = Counter()
        rows: list[CollectedAnswer] = []
        for place in range(len(episodes)):
            group = int(episodes.group[place])
            rows.append(self._row(episodes, place, group, samples[group]))
            samples[group] += 1
        return rows

    def _row(self, episodes: Episodes, place: int, group: int, sample: int) -> CollectedAnswer:
        prompt, seen = self.world.prompt_of(group), episodes.transcript
        own = slice(int(episodes.offsets[place]), int(episodes.offsets[place + 1]))
        begin, end = int(seen.offsets[place]), int(seen.offsets[place + 1])
        scored = bool(episodes.scored[place])
        parts = np.zeros(0) if episodes.components is None else episodes.components[place]
        return CollectedAnswer(
            id=prompt.id,
            prompt=json.dumps(prompt.content, default=str),
            columns=json.dumps(dict(prompt.columns), default=str),
            group=group,
            sample=sample,
            completion=self.tokenizer.decode(seen.tokens[int(seen.at[own.start]) : end]),
            tokens=seen.tokens[begin:end].tolist(),
            at=(seen.at[own] - begin).tolist(),
            logp=episodes.logp[own].tolist(),
            version=episodes.version[own].tolist(),
            score=float(episodes.score[place]) if scored else None,
            status=ScoreStatus(int(episodes.status[place])).name.lower(),
            rewards={
                name: None if np.isnan(value) else float(value)
                for name, value in zip(self.rewards, parts, strict=False)
            },
            truncated=bool(episodes.truncated[place]),
            labels=self._exact(episodes.reward[own]).tolist() if self.continuations else None,
            steps=self._steps(episodes.chosen[own], episodes.reward[own]) if self.continuations else None,
        )

    def _steps(self, tokens: np.ndarray, labels: np.ndarray) -> list[str]:
        """Text of each labelled step; an end of sequence by itself is none."""
        pieces = np.split(tokens, np.flatnonzero(~np.isnan(labels)) + 1)[:-1]
        texts = [self.tokenizer.decode(piece) for piece in pieces]
        return texts if not texts or texts[-1] else texts[:-1]

    def _exact(self, labels: np.ndarray) -> np.ndarray:
        """Labels in double precision; as k of K where all K continuations were scored."""
        wide = labels.astype(np.float64)
        whole = np.rint(wide * self.continuations) / self.continuations
        return np.where(np.abs(whole - wide) < 1e-6, whole, wide)


def score_as_advantage(episodes: Episodes, values: Values) -> Credits:
    """A = the answer's score at each of its tokens, 0 where it is missing; nothing learns from it."""
    del values
    scored = scored_decisions(episodes)
    advantage = np.where(scored, episodes.score[episodes.owner], 0.0).astype(np.float32)
    return Credits(advantage=advantage, metrics=_collection_metrics(episodes))


def _collection_metrics(episodes: Episodes) -> Metrics:
    """Size of a step's collection, and how much its groups tell: a group of one score makes no pair."""
    groups = np.unique(episodes.group)
    differing = sum(len(np.unique(episodes.score[(episodes.group == group) & episodes.scored])) > 1 for group in groups)
    return {
        "collect/answers": float(len(episodes)),
        "collect/tokens": float(episodes.decisions),
        "collect/groups_with_pairs": differing / len(groups),
    }
