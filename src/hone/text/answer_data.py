"""Scored answers to learn from, as episodes: pairs, labelled answers, answers with labelled steps, good answers.

A recipe reads with `read_answers` and lays out with `encode_answers`, the two functions that `TextInputs` asks for. The
answers come from a file, as text, or from the folder of a run that collected them, as tokens.

Scored answers as episodes of a log, for reward models and preference losses.

Answers of one example have one `group`: of a pair the episode with the higher `score` is preferred. The reward stands
at an answer's last token; of an answer with labelled steps each label stands at the last token of its step, and every
other reward is NaN: no label.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.models.language.tokenizers import Tokenizer, vocabulary_hash
from hone.rewards.solutions import check_solution, run_solutions
from hone.text.open_text import LanguageRunConfig
from hone.text.tasks.chat_rows import asked_row
from hone.text.tasks.collection import AnswerKind, PairRule, is_collection, read_collection, select_answers
from hone.text.tasks.dataset import DatasetKind, Example, ExampleDataset, build_examples, read_examples
from hone.text.tasks.files import MAX_FAULTS_SHOWN, SUFFIXES
from hone.text.tasks.scored_rows import AnswerTokens, PromptContent, ScoredAnswer, row_answer
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.token_places import text_ends
from hone.text.trained_spans import DataConfig, TurnEncoder

# ------------------------------------------------------------------------------------------------ examples to imitate


class SolutionConfig(Config):
    """Function that makes completions for prompts without one."""

    use: str
    """`path/to/file.py:name`: a function f(prompt, **columns) -> str, called by the names of its parameters."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that it may take for the whole dataset."""


def solved_examples(
    task: TaskConfig, solution: SolutionConfig | None, *, apart_from: Sequence[ExampleDataset] = ()
) -> ExampleDataset:
    """The task's examples, each with a completion. Raises ConfigError, DataError or UserCodeError."""
    if solution is None:
        examples = task.examples(need="prompt-completion", exclude=apart_from)
        if any(example.completion is None for example in examples):
            raise DataError(f"{task.source} has no completions to imitate; give [solution] use = 'file.py:function'")
        return examples
    check_solution(solution.use)
    examples = task.examples(exclude=apart_from)
    rows = [{"prompt": example.prompt, **example.columns} for example in examples]
    completions = run_solutions(solution.use, rows, deadline_s=solution.deadline_s)
    drafts = [
        replace(example, completion=completion) for example, completion in zip(examples, completions, strict=True)
    ]
    solved = build_examples(drafts, source=f"{examples.source}, worked by {solution.use}", warnings=examples.warnings)
    return replace(solved, shape=examples.shape)


# ---------------------------------------------------------------------------------------------------- tokens, episodes


def answer_tokens(
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    *,
    step_ends: Sequence[int] = (),
    step_labels: Sequence[float] = (),
) -> AnswerTokens:
    """`row_answer` of a question and its answer. Steps end at places in `answer`."""
    at = np.arange(len(prompt), len(prompt) + len(answer), dtype=np.int64)
    return row_answer(np.concatenate([prompt, answer]), at, step_ends=step_ends, step_labels=step_labels)


def answer_episodes(
    answers: Sequence[AnswerTokens], *, scores: Sequence[float], groups: Sequence[int], steps: bool = False
) -> Episodes:
    """Episodes of scored answers `[E]`, in their order. `steps`: rewards are the labels of steps, NaN where there is
    none; otherwise each answer is rewarded with its score at its last token."""
    lengths = np.array([len(one.at) for one in answers], np.int64)
    sizes = np.array([len(one.tokens) for one in answers], np.int64)
    offsets, starts = offsets_of(lengths), offsets_of(sizes)
    tokens = np.concatenate([one.tokens for one in answers]).astype(np.int32)
    at = np.concatenate([one.at for one in answers]) + np.repeat(starts[:-1], lengths)
    truncated = np.array([one.truncated for one in answers], np.bool_)
    score = np.array(scores, np.float64)
    if steps:
        reward = np.concatenate([one.labels for one in answers]).astype(np.float32)
    else:
        reward = np.zeros(len(at), np.float32)
        reward[offsets[1:] - 1] = score
    return Episodes(
        offsets=offsets,
        seen=Transcript(tokens=tokens, offsets=starts, at=at),
        chosen=tokens[at],
        logp=np.concatenate([one.logp for one in answers]).astype(np.float32),
        version=np.zeros(len(at), np.int32),
        reward=reward,
        group=np.array(groups, np.int64),
        terminated=~truncated,
        truncated=truncated,
        score=score,
    )


# ----------------------------------------------------------------------------------------------------- scored answers


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
    def _tools_are_told(self) -> "AnswerTaskConfig":
        if self.tools is not None and (self.tools.reward is not None or not self.tools.use):
            raise ValueError("tools: rows are learnt and no tool runs; name tools in tools.use, without tools.reward")
        return self

    @model_validator(mode="after")
    def _answers_fit_the_source(self) -> "AnswerTaskConfig":
        # A stage's folder may not be there yet; a file is known by its name.
        collected = not self.is_generated and Path(self.source).suffix.lower() not in SUFFIXES
        usual = AnswersConfig().model_dump()
        changed = {name for name, value in self.answers.model_dump().items() if value != usual[name]}
        idle = sorted(changed & {"separator"} if collected else changed - {"separator"})
        if collected and self.columns:
            raise ValueError(f"columns names those of a file of rows, but source is {self.source}")
        if idle:
            what = "a file of steps, not for collected answers" if collected else "collected answers, not for a file"
            raise ValueError(f"answers.{', answers.'.join(idle)}: for {what} ({self.source}); leave it out")
        return self


class AnswerRunConfig(LanguageRunConfig):
    """A policy to train on answers of a dataset."""

    task: AnswerTaskConfig  # pyright: ignore[reportIncompatibleVariableOverride] - a config is frozen
    """The data."""
    data: DataConfig = DataConfig()
    """Use of the rows of the data."""


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
    return read_examples(task.source, need=_FILE_KINDS[kind], columns=task.columns, on_bad_row=task.on_bad_row)


def encode_answers(
    examples: ExampleDataset,
    task: AnswerTaskConfig,
    tokenizer: Tokenizer,
    *,
    context: int,
    kind: AnswerKind,
    data: DataConfig | None = None,
) -> tuple[AnswerLog, list[str]]:
    """Answers as episodes, and warnings. The token that ends an answer is part of it. `data`: the turns of an answer
    whose tokens are learnt; None: only its last token counts, which is scored.

    Raises DataError naming the examples that do not fit in the `context`, unless `task.on_long_prompt` says what to do
    with them; an answer is never cut, and a pair is dropped as a whole.
    """
    if examples.vocabulary not in (None, vocabulary_hash(tokenizer)):
        raise DataError(
            f"{examples.source}: the answers were collected as tokens of another vocabulary than the model's; collect "
            "with a policy of this vocabulary, or export them as text (`hone dataset`)"
        )
    encoder = TurnEncoder(tokenizer, "last" if data is None else data.train_on)
    learnt = data is not None and examples.vocabulary is None
    rows = examples.apply(lambda example: _encode(example, task, encoder, learnt=learnt))
    rows, notes = _fit(examples, rows, task, context)
    notes += encoder.remarks(sum(len(row.answers) for row in rows))
    unused = {"tools": task.tools, "system": task.system, "chat_template_kwargs": task.chat_template_kwargs}
    if examples.vocabulary is not None and (names := [f"task.{name}" for name, value in unused.items() if value]):
        notes.append(
            f"{examples.source}: collected answers are learnt as the tokens that were asked and drawn; "
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not used here, but where they are collected"
        )
    groups = [(group, answer, score) for group, row in enumerate(rows) for answer, score in row.answers]
    episodes = answer_episodes(
        [answer for _, answer, _ in groups],
        scores=[score for _, _, score in groups],
        groups=[group for group, _, _ in groups],
        steps=kind == "stepwise",
    )
    return AnswerLog(episodes=episodes, ids=tuple(row.id for row in rows)), notes


def imitation_episodes(
    examples: ExampleDataset, task: AnswerTaskConfig, tokenizer: Tokenizer, *, context: int, data: DataConfig
) -> tuple[Episodes, list[str]]:
    """Examples to imitate as episodes whose every decision was worth 1, and warnings; collected answers as they were
    drawn. Rows of one conversation have one `group`. Raises DataError as `encode_answers`."""
    if examples.vocabulary is not None:
        log, notes = encode_answers(examples, task, tokenizer, context=context, kind="imitation", data=data)
        return replace(log.episodes, reward=np.ones_like(log.episodes.reward)), notes
    encoder = TurnEncoder(tokenizer, data.train_on)

    def encode(example: Example) -> _EncodedExample:
        assert example.completion is not None
        asked = asked_row(task, example.prompt, example.columns, tokenizer)
        answers = replace(encoder, tokenizer=asked.tokenizer).rows(asked.content, example.completion)
        if answers[0].at[0] == 0:  # plain text without a prompt: nothing stands before its first token
            first = answers[0]
            answers[0] = row_answer(first.tokens, first.at[1:])
        return _EncodedExample(id=example.id, answers=tuple((answer, 1.0) for answer in answers))

    rows = examples.apply(encode)
    rows, notes = _fit(examples, rows, task, context, largest_first=False)
    answers = [(group, answer) for group, row in enumerate(rows) for answer, _ in row.answers]
    episodes = answer_episodes(
        [answer for _, answer in answers],
        scores=[float(len(answer.at)) for _, answer in answers],
        groups=[group for group, _ in answers],
    )
    return replace(episodes, reward=np.ones_like(episodes.reward)), [*notes, *encoder.remarks(len(rows))]


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


def _encode(example: Example, task: AnswerTaskConfig, encoder: TurnEncoder, *, learnt: bool) -> _EncodedExample:
    asked = asked_row(task, example.prompt, example.columns, encoder.tokenizer)
    prompt, encoder = asked.content, replace(encoder, tokenizer=asked.tokenizer)
    answers: list[tuple[AnswerTokens, float]] = []
    for answer in example.answers:
        tokens = answer.tokens
        if tokens is None and answer.steps:
            tokens = _encode_steps(prompt, answer, task.answers.separator, encoder)
        elif tokens is None:
            tokens = encoder.answer_row(prompt, answer.content, whole=learnt and encoder.train_on != "last")
        answers.append((tokens, answer.score))
    if learnt and len({answer.tokens[: answer.at[0]].tobytes() for answer, _ in answers}) > 1:
        raise DataError(
            "the answers of a row do not have one prompt: their earlier turns differ, and only the last one is learnt; "
            'set data.train_on = "all"'
        )
    return _EncodedExample(id=example.id, answers=tuple(answers))


def _encode_steps(prompt: PromptContent, answer: ScoredAnswer, separator: str, encoder: TurnEncoder) -> AnswerTokens:
    """Steps, joined and encoded as one text, with their labels; the last label stands at the end of sequence too."""
    last = len(answer.steps) - 1
    pieces = [
        step if step.endswith(separator) or place == last else step + separator
        for place, step in enumerate(answer.steps)
    ]
    row = encoder.answer_row(prompt, "".join(pieces))
    written, decode = row.tokens[row.at], encoder.tokenizer.decode
    ends = text_ends(written, decode, "".join(pieces), np.cumsum([len(piece) for piece in pieces]).tolist())
    ended = [*ends[:last], *(ends[last:] if pieces[last].endswith(separator) else []), len(written) - 1]
    labels = [*answer.labels, answer.labels[last]][: len(ended)]
    return row_answer(row.tokens, row.at, step_ends=ended, step_labels=labels)


def _fit(
    examples: ExampleDataset,
    rows: Sequence[_EncodedExample],
    task: AnswerTaskConfig,
    context: int,
    *,
    largest_first: bool = True,
) -> tuple[list[_EncodedExample], list[str]]:
    """Examples that fit in the context, and a note on the others. Raises DataError as `task.on_long_prompt` says."""
    long = [row for row in rows if row.size > context]
    if not long:
        return list(rows), []
    if largest_first:
        long.sort(key=lambda row: -row.size)
    note = (
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
        raise DataError(f'{note}; shorten them, take a model with more positions, or set task.on_long_prompt = "drop"')
    dropped = len(rows) - len(kept)
    return kept, [f"{note} ({len(long) - dropped} prompts lost their beginnings, {dropped} examples dropped)"]
