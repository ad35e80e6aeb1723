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
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.models.language.tokenizers import Tokenizer, vocabulary_hash
from hone.rewards.solutions import check_solution, run_solutions
from hone.text.tasks.collection import AnswerKind, PairRule, is_collection, read_collection, select_answers
from hone.text.tasks.dataset import DatasetKind, Example, ExampleDataset, build_examples, read_examples
from hone.text.tasks.files import MAX_FAULTS_SHOWN, SUFFIXES
from hone.text.tasks.scored_rows import AnswerTokens, PromptContent, ScoredAnswer
from hone.text.tasks.step_rewards import text_ends
from hone.text.tasks.task import TaskConfig
from hone.text.tasks.world import supervised_episodes

# ------------------------------------------------------------------------------------------------ examples to imitate


_Tokens: TypeAlias = NDArray[np.int32]


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
    return build_examples(drafts, source=f"{examples.source}, worked by {solution.use}", warnings=examples.warnings)


def _encode_answer(prompt: PromptContent, completion: PromptContent, tokenizer: Tokenizer) -> tuple[_Tokens, _Tokens]:
    """Tokens of a question, and of its answer with the end of sequence; messages go through the chat template.

    Raises DataError for a template that writes the question differently once an answer follows.
    """
    if isinstance(prompt, str) and isinstance(completion, str):
        ended = np.append(tokenizer.encode(completion), np.int32(tokenizer.eos_id))
        return tokenizer.encode(prompt), ended.astype(np.int32)
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    asked = tokenizer.apply_chat(turns)
    whole = tokenizer.apply_chat([*turns, *answer], add_generation_prompt=False)
    if not np.array_equal(whole[: len(asked)], asked):
        raise DataError(
            "the chat template writes the prompt differently once an answer follows, so the answer's tokens cannot be "
            "told apart; use a template that only appends"
        )
    return asked, whole[len(asked) :]


# ---------------------------------------------------------------------------------------------------- tokens, episodes


def answer_tokens(
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    *,
    step_ends: Sequence[int] = (),
    step_labels: Sequence[float] = (),
) -> AnswerTokens:
    """Tokens of an encoded answer, whose log-probabilities nobody knows. `step_ends` `[k]` are places in `answer` of
    the last token of each step, and `step_labels` `[k]` the steps' labels."""
    labels = np.full(len(answer), np.nan, np.float32)
    labels[np.asarray(step_ends, np.int64)] = step_labels
    return AnswerTokens(
        tokens=np.concatenate([prompt, answer]).astype(np.int32),
        at=np.arange(len(prompt), len(prompt) + len(answer), dtype=np.int64),
        logp=np.full(len(answer), np.nan, np.float32),
        labels=labels,
    )


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
    return read_examples(task.source, need=_FILE_KINDS[kind], on_bad_row=task.on_bad_row)


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
        rows = examples.apply(lambda example: _encode_completion(example, task, tokenizer))
        rows, notes = _fit(examples, rows, task, context, largest_first=False)
        texts = [answer for row in rows for answer, _ in row.answers]
        asked = [one.tokens[: one.at[0]] for one in texts]
        return supervised_episodes(asked, [one.tokens[one.at[0] :] for one in texts]), notes
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
            tokens = answer_tokens(*_encode_answer(prompt, answer.content, tokenizer))
        answers.append((tokens, answer.score))
    return _EncodedExample(id=example.id, answers=tuple(answers))


def _encode_completion(example: Example, task: TaskConfig, tokenizer: Tokenizer) -> _EncodedExample:
    assert example.completion is not None
    prompt = task.fill_template(example.prompt, example.columns)
    tokens = answer_tokens(*_encode_answer(prompt, example.completion, tokenizer))
    return _EncodedExample(id=example.id, answers=((tokens, 1.0),))


def _encode_steps(prompt: PromptContent, answer: ScoredAnswer, separator: str, tokenizer: Tokenizer) -> AnswerTokens:
    """Steps, joined and encoded as one text, with their labels; the last label stands at the end of sequence too."""
    last = len(answer.steps) - 1
    pieces = [
        step if step.endswith(separator) or place == last else step + separator
        for place, step in enumerate(answer.steps)
    ]
    asked, written = _encode_answer(prompt, "".join(pieces), tokenizer)
    ends = text_ends(written, tokenizer.decode, "".join(pieces), np.cumsum([len(piece) for piece in pieces]).tolist())
    ended = [*ends[:last], *(ends[last:] if pieces[last].endswith(separator) else []), len(written) - 1]
    labels = [*answer.labels, answer.labels[last]][: len(ended)]
    return answer_tokens(asked, written, step_ends=ended, step_labels=labels)


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
