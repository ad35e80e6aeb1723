"""Imitation of a policy's own dialogues: which of their tokens are learnt, and hindsight.

A dialogue that ended badly still tells what the environment does (`learn.world`), and it answers the question that
leads to where it ended: `relabel` rewrites the question, and the dialogue becomes a demonstration of it (hindsight:
Andrychowicz et al., 2017; Ghosh et al., Learning to Reach Goals via Iterated Supervised Learning, 2021).
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.conversation import split_turns
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.models.language.tokenizers import Tokenizer
from hone.process.user_files import check_reference
from hone.rewards.solutions import run_on_rows
from hone.text.answer_data import AnswerTaskConfig, encode_answers
from hone.text.tasks.chat_rows import asked_row
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.files import SUFFIXES
from hone.text.tasks.scored_rows import AnswerTokens, PromptContent, ScoredAnswer
from hone.text.tasks.token_places import environment_positions, with_learned_tokens

_RELABEL: Final = "relabelling function"


class TokenWeights(Config):
    """Weights of the tokens of a dialogue in the loss, by who said them; tokens that weigh 0 are only seen."""

    policy: float = Field(default=1.0, ge=0)
    """Weight of the policy's tokens, in dialogues that were relabelled or have a score of `task.answers.min_score`."""
    world: float = Field(default=0.0, ge=0)
    """Weight of the environment's tokens after the policy's first turn, in all dialogues: the policy becomes a model
    of the world. Prompts are never learnt."""

    @model_validator(mode="after")
    def _one_is_learnt(self) -> "TokenWeights":
        if self.policy == self.world == 0:
            raise ValueError("learn.policy = 0 and learn.world = 0 leave nothing to learn; raise one of them")
        return self


class UserFunction(Config):
    """A function of the user's that writes texts, in a process of its own."""

    use: str
    """`path/to/file.py:name`: a function that is called by the names of its parameters."""
    deadline_s: float = Field(default=60.0, gt=0)
    """Seconds that it may take for all rows."""


def function_table(value: object) -> object:
    """The table of a function that was given by its name alone."""
    return {"use": value} if isinstance(value, str) else value


def check_experience(task: AnswerTaskConfig, learn: TokenWeights, relabel: UserFunction | None) -> None:
    """Raises ValueError for settings that need collected dialogues where the source is none."""
    asked = [f"learn.world = {learn.world:g}"] * (learn.world > 0) + ["relabel"] * (relabel is not None)
    if asked and (task.is_generated or Path(task.source).suffix.lower() in SUFFIXES):
        raise ValueError(
            f"{' and '.join(asked)}: for collected dialogues, whose turns are known; task.source = {task.source!r} "
            'is none. Collect them first (recipe = "collect"), and name that stage: task.source = "stage:NAME"'
        )


def check_relabel(use: str) -> None:
    """Raises ConfigError unless `use` is `path/to/file.py:name` of an existing file, or `package.module:name`."""
    check_reference(use, kind=_RELABEL)


def experience_episodes(
    examples: ExampleDataset,
    task: AnswerTaskConfig,
    tokenizer: Tokenizer,
    *,
    context: int,
    learn: TokenWeights,
    relabel: UserFunction | None,
) -> tuple[Episodes, list[str]]:
    """Collected dialogues as episodes to imitate, each token worth its weight, and warnings.

    Raises DataError as `encode_answers`, and where nothing is left to learn; UserCodeError of the user's function.
    """
    chosen, notes = (examples, list[str]()) if relabel is None else relabelled(examples, relabel, task, tokenizer)
    log, more = encode_answers(chosen, task, tokenizer, context=context, kind="imitation")
    right = log.episodes.score >= task.answers.min_score
    if not right.any() and learn.world == 0:
        raise DataError(
            f"{examples.source}: none of {len(right)} dialogues has a score of at least task.answers.min_score = "
            f"{task.answers.min_score:g}, and learn.world is 0: nothing to learn. Collect with a better policy, "
            "relabel the dialogues, or set learn.world"
        )
    worth = right[log.episodes.owner].astype(np.float32)
    learnt = with_learned_tokens(replace(log.episodes, reward=worth), said=learn.policy, world=learn.world)
    if not learnt.decisions:
        raise DataError(
            f"{examples.source}: the environment says nothing after the policy's first turn in any of {len(right)} "
            "dialogues, so that learn.world has nothing to learn"
        )
    world = len(environment_positions(log.episodes)) if learn.world else 0
    note = f"{examples.source}: {learnt.decisions} tokens are learnt, {world} of them the environment's"
    return learnt, [*notes, *more, f"{note}; {int(right.sum())} of {len(right)} dialogues are imitated"]


def relabelled(
    examples: ExampleDataset, relabel: UserFunction, task: AnswerTaskConfig, tokenizer: Tokenizer
) -> tuple[ExampleDataset, list[str]]:
    """The dialogues with the questions that the user's function gives them, right by definition, each once.

    The function is f(prompt, turns, **columns) -> str | None; `turns` are pairs of speaker (`policy` or `environment`)
    and text, and None leaves a dialogue out.

    The tokens after the question stay as they were drawn; their log-probabilities, which were given another question,
    become NaN. Raises DataError where no dialogue is left.
    """
    check_relabel(relabel.use)
    answered = [(example, answer) for example in examples for answer in example.answers]
    if nameless := [example.id for example in examples.rows if not example.prompt]:
        raise DataError(
            f"{examples.source}: {len(nameless)} dialogues have no prompt of their own, such as {nameless[0]}: their "
            "world began them with messages. Give the rows a prompt (task.rows), and let `begin` return no messages"
        )
    rows = [_row(example, _tokens(answer), tokenizer) for example, answer in answered]
    questions = run_on_rows(
        relabel.use, rows, deadline_s=relabel.deadline_s, kind=_RELABEL,
        deadline_key="relabel.deadline_s", may_be_none=True,
    )  # fmt: skip
    drafts: dict[bytes, Example] = {}
    for (example, answer), question in zip(answered, questions, strict=True):
        if question is not None:
            own = _asked_for(example, answer, question, task, tokenizer)
            drafts.setdefault(_tokens(own.answers[0]).tokens.tobytes(), own)
    left = sum(question is None for question in questions)
    if not drafts:
        raise DataError(f"{relabel.use} gave no question to any of {len(rows)} dialogues of {examples.source}")
    named = [replace(example, id=f"{example.id}#{place}") for place, example in enumerate(drafts.values())]
    note = (
        f"{examples.source}: {len(drafts)} dialogues answer the question that {relabel.use} gave them; {left} of "
        f"{len(rows)} were given none, {len(rows) - left - len(drafts)} repeat another"
    )
    made = build_examples(named, source=examples.source, warnings=examples.warnings)
    return replace(made, vocabulary=examples.vocabulary), [note]


def _row(example: Example, tokens: AnswerTokens, tokenizer: Tokenizer) -> dict[str, object]:
    turns = split_turns(tokens.tokens, tokens.at, tokenizer.decode)
    return {**example.columns, "prompt": example.prompt, "turns": list(turns)}


def _tokens(answer: ScoredAnswer) -> AnswerTokens:
    assert answer.tokens is not None, "collected answers have tokens"
    return answer.tokens


def _asked_for(
    example: Example, answer: ScoredAnswer, question: str, task: AnswerTaskConfig, tokenizer: Tokenizer
) -> Example:
    """A dialogue behind another question. In a conversation the question is the content of its last user message."""
    prompt: PromptContent = question
    if not isinstance(example.prompt, str):
        users = [place for place, message in enumerate(example.prompt) if message.get("role") == "user"]
        last = users[-1] if users else len(example.prompt) - 1
        prompt = [
            {**message, "content": question} if place == last else message
            for place, message in enumerate(example.prompt)
        ]
    begun = asked_row(task, prompt, example.columns, tokenizer).tokens
    old = _tokens(answer)
    rest = old.tokens[old.at[0] :]
    tokens = replace(
        old,
        tokens=np.concatenate([begun, rest]).astype(np.int32),
        at=old.at + len(begun) - old.at[0],
        logp=np.full_like(old.logp, np.nan),
    )
    right = replace(answer, score=max(1.0, task.answers.min_score), tokens=tokens)
    return replace(example, prompt=prompt, answers=(right,))
