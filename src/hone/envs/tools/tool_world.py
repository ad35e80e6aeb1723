"""The world of a task with tools and nothing else: it answers calls, and ends with the first turn that makes none.

TRL's two signatures run in it unchanged: a list of functions (`tools=`), and a class with `reset`, public methods as
tools and perhaps `get_reward` (`environment_factory=`).
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import UserCodeError
from hone.envs.tools.toolbox import ToolBox


class ToolWorld:
    """Implements `DialogueWorld`: calls are answered by messages of the role `tool`, a fault by one of `user`."""

    def __init__(self, box: ToolBox) -> None:
        """`box`: the tools of this dialogue; closed with the world."""
        self._box = box

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Reset the environments with the row's columns; their texts stand after the last message of `prompt`."""
        del seed
        texts = [_awaited(_call_reset(one.reset, columns)) for one in self._box.environments]
        seen = [one for one in texts if one is not None]
        wrong = next((one for one in seen if not isinstance(one, str)), None)
        if wrong is not None:
            raise UserCodeError(f"reset returned a {type(wrong).__name__}; it returns text or None")
        return WorldTurn(
            messages=_prompt_with(columns.get("prompt", ""), "".join(cast("list[str]", seen))) if seen else ()
        )

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer the calls of a turn, or its fault; a turn without either ends the dialogue."""
        if said.fault is not None:
            return WorldTurn(messages=[{"role": "user", "content": said.fault}])
        if said.calls:
            return WorldTurn(messages=[one.message() for one in self._box.call_all(said.calls)])
        return WorldTurn(done=True, reward=self._reward())

    def close(self) -> None:
        """Close the tools."""
        self._box.close()

    def _reward(self) -> float | None:
        """Sum of the environments' rewards; 0 if none of them pays, None if one has no score."""
        paid = [_awaited(one.get_reward()) for one in self._box.environments if one.get_reward is not None]
        wrong = next((one for one in paid if one is not None and not isinstance(one, int | float)), None)
        if wrong is not None:
            raise UserCodeError(
                f"get_reward returned a {type(wrong).__name__}; it returns a number, or None for no score"
            )
        return None if None in paid else sum(float(one) for one in cast("list[float]", paid))


def _call_reset(reset: Callable[..., object], columns: Mapping[str, Any]) -> object:
    """Call `reset` with all columns if it takes any, or with those that it names."""
    parameters = inspect.signature(reset).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return reset(**columns)
    return reset(**{name: value for name, value in columns.items() if name in parameters})


def _awaited(value: object) -> object:
    """The value of a coroutine, or the value itself."""

    async def wait() -> object:
        return await value if inspect.isawaitable(value) else value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value


def _prompt_with(prompt: str | Sequence[Message], text: str) -> list[Message]:
    """The messages of a prompt with a text after the last one."""
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    last = messages[-1] if messages else {"role": "user", "content": ""}
    return [*messages[:-1], {**last, "content": f"{last['content']}{text}"}]
