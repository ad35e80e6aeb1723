"""A nudge: the environment replies to the first answer with a fixed text, and ends a conversation after the second."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import Message
from hone.text.tasks.conversation import Conversation, EnvironmentReply


@dataclass
class NudgeEnvironment:
    """Implements `TextEnvironment`: two answers to each prompt, with a nudge between them."""

    nudge: str
    tokens: Callable[[Conversation], NDArray[np.int32]]
    """Conversation of one answer -> all tokens between it and the next one."""

    def begin(self, conversation: Conversation) -> None:
        """None: the prompts are the requests' own."""
        del conversation

    def end(self, conversation: Conversation) -> None:
        """Nothing was opened for it."""
        del conversation

    def reply(self, conversation: Conversation) -> "Future[EnvironmentReply]":
        ready: Future[EnvironmentReply] = Future()
        if conversation.transcript.turns > 1:
            ready.set_result(EnvironmentReply(done=True))
            return ready
        said: Message = {"role": "user", "content": self.nudge}
        ready.set_result(EnvironmentReply(messages=[said], tokens=self.tokens(conversation)))
        return ready
