"""Answers of an evaluation that are dialogues: one for each row, whatever it has of token rows and turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message, Turn, text_after_prompt
from hone.core.episodes import Episodes
from hone.text.tasks.conversation import Conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueAnswers:
    """E dialogues, in the order of the questions."""

    prompts: Sequence[str]
    answers: Sequence[str]
    """Text after the prompt, of the last token row."""
    turns: Sequence[tuple[Turn, ...]]
    """What was said, the world's last words among it."""
    stops: Sequence[str]
    faults: Sequence[str]
    """Reasons why dialogues have no score; empty where they have one."""
    scores: NDArray[np.float64]
    """`[E]`, NaN where there is none."""
    lengths: NDArray[np.int64]
    """`[E]` sampled tokens."""


def dialogue_answers(
    conversations: Sequence[Conversation],
    episodes: Episodes,
    prompts: Sequence[str],
    decode: Callable[[NDArray[np.int32]], str],
) -> DialogueAnswers:
    """Dialogues and their scores. A dialogue that ended before its first answer has no episode, one whose history was
    rewritten has several."""
    pieces = np.array([len(one.rows) if one.turns else 0 for one in conversations], np.int64)
    ends = np.cumsum(pieces)
    texts = [text for text, _ in text_after_prompt(episodes, decode)]
    scores = np.full(len(conversations), np.nan)
    scores[pieces > 0] = episodes.score[ends[pieces > 0] - 1]
    decisions = np.concatenate([[0], np.cumsum(episodes.lengths)])
    outcomes = [one.outcome for one in conversations]
    return DialogueAnswers(
        prompts=[
            prompt if one.opening is None else prompt_text(one.opening)
            for prompt, one in zip(prompts, conversations, strict=True)
        ],
        answers=[texts[end - 1] if size else "" for end, size in zip(ends.tolist(), pieces.tolist(), strict=True)],
        turns=[said_turns(one.messages) for one in conversations],
        stops=[one.stop or "" for one in conversations],
        faults=["" if one is None else one.reason for one in outcomes],
        scores=scores,
        lengths=decisions[ends] - decisions[ends - pieces],
    )


def said_turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Turns of the messages after a prompt: texts of the policy, and of the environment between and after them."""
    return tuple(("policy" if one["role"] == "assistant" else "environment", str(one["content"])) for one in messages)


def prompt_text(prompt: str | Sequence[Message]) -> str:
    """A prompt for display: its text, or its messages, one below the other."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(one["content"]) if len(prompt) == 1 else f"{one['role']}: {one['content']}" for one in prompt)
