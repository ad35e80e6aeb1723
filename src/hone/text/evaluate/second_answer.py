"""A second answer to each prompt after a nudge: the tokens between the two, and the room that they take."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.self_correction import answer_turns, correction_metrics
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.conversation import Conversation, NudgeEnvironment
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.world import Prompt


@dataclass(frozen=True, slots=True)
class SecondAnswer:
    """A nudge: a user's message in a conversation, or plain text after an answer in plain text."""

    nudge: str
    right_from: float = 1.0
    """Least score of a right answer, for the shares of answers that became right and wrong."""

    def environment(self, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> NudgeEnvironment:
        """The environment of conversations that begin with `prompts`. Raises DataError for a nudge that the model
        cannot read, and for a chat template that rewrites earlier messages."""
        self.tokens_between(tokenizer, is_chat=any(not isinstance(prompt.content, str) for prompt in prompts))
        histories = {prompt.id: prompt.content for prompt in prompts}

        def tokens(conversation: Conversation) -> NDArray[np.int32]:
            history = histories[conversation.request.id.rpartition("#")[0]]
            return self._tokens(tokenizer, history, conversation.transcript.answers[-1].tokens)

        return NudgeEnvironment(self.nudge, tokens)

    def further_tokens(self, tokenizer: Tokenizer, max_tokens: int, *, is_chat: bool) -> int:
        """Most tokens of a conversation after its first answer. Raises as `environment`."""
        return self.tokens_between(tokenizer, is_chat=is_chat) + max_tokens

    def tokens_between(self, tokenizer: Tokenizer, *, is_chat: bool) -> int:
        """Number of tokens between the two answers. Raises as `environment`."""
        try:
            plain = tokenizer.encode(self.nudge)
        except DataError as fault:
            raise DataError(f"algorithm.correction.nudge: {fault}") from None
        if not is_chat:
            return len(plain)
        tokenizer.check_chat_continuation()
        return len(self._tokens(tokenizer, [{"role": "user", "content": "a question"}], np.zeros(0, np.int32)))

    def _tokens(
        self, tokenizer: Tokenizer, history: str | Sequence[Message], answer: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        if isinstance(history, str):
            return tokenizer.encode(self.nudge)
        return tokenizer.continue_chat(list(history), [{"role": "user", "content": self.nudge}], answer=answer)


def has_chats(examples: ExampleDataset) -> bool:
    """True if a prompt is a conversation."""
    return any(example.is_conversation for example in examples.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class NudgedEvaluation:
    """What an evaluation needs to have every prompt answered twice."""

    environment: NudgeEnvironment
    further_tokens: int
    """Most tokens after the first answer."""
    right_from: float


def correction_shares(episodes: Episodes, right_from: float) -> Metrics:
    """`eval/first_score`, and shares of the episodes that went from wrong to right and from right to wrong."""
    turns = answer_turns(episodes)
    found = correction_metrics(turns.first_score, turns.second_score, right_from)
    return (
        {
            "eval/first_score": found["correction/first_score"],
            "eval/wrong_to_right": found["correction/wrong_to_right"],
            "eval/right_to_wrong": found["correction/right_to_wrong"],
        }
        if found
        else {}
    )
