"""Scored answers to learn from, as episodes: pairs, labelled answers, answers with labelled steps, good answers.

A recipe reads with `read_answers` and lays out with `encode_answers`, the two functions that `TextInputs` asks for. The
answers come from a file, as text, or from the folder of a run that collected them, as tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.models.language.tokenizers import Tokenizer, vocabulary_hash
from hone.text.sft_data import encode_answer, encode_examples
from hone.text.tasks.answer_episodes import answer_episodes, answer_tokens
from hone.text.tasks.collected_answers import AnswerKind, PairRule, select_answers
from hone.text.tasks.collection import is_collection, read_collection
from hone.text.tasks.dataset import DatasetKind, Example, ExampleDataset, read_examples
from hone.text.tasks.files import MAX_FAULTS_SHOWN, SUFFIXES
from hone.text.tasks.row_checks import PromptContent
from hone.text.tasks.scored_rows import AnswerTokens, ScoredAnswer
from hone.text.tasks.step_rewards import text_ends
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import supervised_episodes

_FILE_KINDS: Final[Mapping[AnswerKind, DatasetKind]] = {
    "preference": "preference",
    "unpaired": "unpaired",
    "outcome": "unpaired",
    "stepwise": "stepwise",
    "imitation": "prompt-completion",
    "experience": "prompt-completion",
}


class AnswersConfig(Config):
    """Use of the answers of the data."""

    separator: str = Field(default="\n", min_length=1)
    """Text between the steps of a stepwise row, where a step does not end with it already."""
    min_score: float = 0.5
    """Score from which a collected answer is right: labelled 1, or imitated."""
    pairs: PairRule = "best_worst"
    """Pairs of the collected answers to a prompt: the best with the worst, or every two with different scores."""
    max_per_prompt: int | None = Field(default=None, ge=1)
    """Most collected answers to one prompt that are imitated; unset: all."""


class AnswerTaskConfig(TaskConfig):
    """Questions with scored answers."""

    answers: AnswersConfig = AnswersConfig()
    """Use of the answers of the data."""

    @model_validator(mode="after")
    def _answers_fit_the_source(self) -> "AnswerTaskConfig":
        # A stage's folder may not be there yet; a file is known by its name.
        collected = not self.is_generated and Path(self.source).suffix.lower() not in SUFFIXES
        usual = AnswersConfig().model_dump()
        changed = {name for name, value in self.answers.model_dump().items() if value != usual[name]}
        idle = sorted(changed & {"separator"} if collected else changed - {"separator"})
        if idle:
            what = "a file of steps, not for collected answers" if collected else "collected answers, not for a file"
            raise ValueError(f"answers.{', answers.'.join(idle)}: for {what} ({self.source}); leave it out")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLog:
    """Scored answers to learn from."""

    episodes: Episodes
    """One episode for each answer; answers of one example have one `group`."""
    ids: tuple[str, ...]
    """Ids of the examples, by group."""


def read_answers(task: AnswerTaskConfig, kind: AnswerKind) -> ExampleDataset:
    """Examples with scored answers. Raises DataError with all faults at once."""
    if is_collection(task.source):
        chosen = task.answers
        return select_answers(
            read_collection(task.source),
            kind,
            min_score=chosen.min_score,
            pairs=chosen.pairs,
            max_per_prompt=chosen.max_per_prompt,
        )
    if task.is_generated:
        raise DataError(
            f"{task.source} has questions and no scored answers; give a file, or stage:NAME of a collection"
        )
    return read_examples(
        task.source, need=_FILE_KINDS[kind], on_bad_row=task.on_bad_row, on_duplicate_id=task.on_duplicate_id
    )


def encode_answers(
    examples: ExampleDataset, task: AnswerTaskConfig, tokenizer: Tokenizer, *, context: int, kind: AnswerKind
) -> tuple[AnswerLog, list[str]]:
    """Answers as episodes, and warnings. The end of sequence is part of an answer.

    Raises DataError naming the examples that do not fit in the `context`, unless `task.on_long_prompt` says what to do
    with them; an answer is never cut, and a pair is dropped as a whole.
    """
    if examples.vocabulary not in (None, vocabulary_hash(tokenizer)):
        raise DataError(
            f"{examples.source}: the answers were collected as tokens of another vocabulary than the model's; collect "
            "with a policy of this vocabulary, or export them as text (`hone dataset`)"
        )
    rows = examples.apply(lambda example: _encode(example, task, tokenizer))
    rows, notes = _fit(examples, rows, task, context)
    groups = [(group, answer, score) for group, row in enumerate(rows) for answer, score in row.answers]
    episodes = answer_episodes(
        [answer for _, answer, _ in groups],
        scores=[score for _, _, score in groups],
        groups=[group for group, _, _ in groups],
        steps=kind == "stepwise",
    )
    return AnswerLog(episodes=episodes, ids=tuple(row.id for row in rows)), notes


def imitation_episodes(
    examples: ExampleDataset, task: AnswerTaskConfig, tokenizer: Tokenizer, *, context: int
) -> tuple[Episodes, list[str]]:
    """Examples to imitate as episodes whose every decision was worth 1, and warnings; collected answers as they were
    drawn. Raises DataError as `encode_answers`."""
    if examples.vocabulary is None:
        (prompts, completions), notes = encode_examples(examples, task, tokenizer, context=context)
        return supervised_episodes(prompts, completions), notes
    log, notes = encode_answers(examples, task, tokenizer, context=context, kind="imitation")
    return replace(log.episodes, reward=np.ones_like(log.episodes.reward)), notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncodedExample:
    id: str
    answers: tuple[tuple[AnswerTokens, float], ...]
    """Answers with their scores."""

    @property
    def size(self) -> int:
        """Tokens of the longest answer with its question."""
        return max(len(answer.tokens) for answer, _ in self.answers)

    def without_beginning(self, count: int) -> "_EncodedExample | None":
        """The example without the first tokens of its question; None if the question is shorter."""
        if any(count > answer.at[0] for answer, _ in self.answers):
            return None
        cut = tuple(
            (replace(answer, tokens=answer.tokens[count:], at=answer.at - count), score)
            for answer, score in self.answers
        )
        return replace(self, answers=cut)


def _encode(example: Example, task: AnswerTaskConfig, tokenizer: Tokenizer) -> _EncodedExample:
    prompt = task.fill_template(example.prompt, example.columns)
    answers: list[tuple[AnswerTokens, float]] = []
    for answer in example.answers:
        tokens = answer.tokens
        if tokens is None and answer.steps:
            tokens = _encode_steps(prompt, answer, task.answers.separator, tokenizer)
        elif tokens is None:
            tokens = answer_tokens(*encode_answer(prompt, answer.content, tokenizer))
        answers.append((tokens, answer.score))
    return _EncodedExample(id=example.id, answers=tuple(answers))


def _encode_steps(prompt: PromptContent, answer: ScoredAnswer, separator: str, tokenizer: Tokenizer) -> AnswerTokens:
    """Steps, joined and encoded as one text, with their labels; the last label stands at the end of sequence too."""
    last = len(answer.steps) - 1
    pieces = [
        step if step.endswith(separator) or place == last else step + separator
        for place, step in enumerate(answer.steps)
    ]
    asked, said = encode_answer(prompt, "".join(pieces), tokenizer)
    ends = text_ends(said, tokenizer.decode, "".join(pieces), np.cumsum([len(piece) for piece in pieces]).tolist())
    ended = [*ends[:last], *(ends[last:] if pieces[last].endswith(separator) else []), len(said) - 1]
    labels = [*answer.labels, answer.labels[last]][: len(ended)]
    return answer_tokens(asked, said, step_ends=ended, step_labels=labels)


def _fit(
    examples: ExampleDataset, rows: Sequence[_EncodedExample], task: AnswerTaskConfig, context: int
) -> tuple[list[_EncodedExample], list[str]]:
    """Examples that fit in the context, and a note on the others. Raises DataError as `task.on_long_prompt` says."""
    long = sorted((row for row in rows if row.size > context), key=lambda row: -row.size)
    if not long:
        return list(rows), []
    said = (
        f"{examples.source}: {len(long)} of {len(rows)} examples are longer than the model's context of {context} "
        f"tokens: {', '.join(f'{row.id} ({row.size} tokens)' for row in long[:MAX_FAULTS_SHOWN])}"
        f"{', ...' if len(long) > MAX_FAULTS_SHOWN else ''}"
    )
    cut = task.on_long_prompt == "truncate"
    fitting = [
        row if row.size <= context else row.without_beginning(row.size - context) if cut else None for row in rows
    ]
    kept = [row for row in fitting if row is not None]
    if task.on_long_prompt == "error" or not kept:
        raise DataError(f'{said}; shorten them, take a model with more positions, or set task.on_long_prompt = "drop"')
    dropped = len(rows) - len(kept)
    return kept, [f"{said} ({len(long) - dropped} prompts lost their beginnings, {dropped} examples dropped)"]
