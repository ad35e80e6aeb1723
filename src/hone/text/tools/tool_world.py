"""The world of a task with tools and nothing else: it answers calls, and ends with the first turn that makes none.

TRL's signatures run in it unchanged: a list of functions (`tools=`); a class with `reset`, public methods as tools and
perhaps `get_reward` (`environment_factory=`); and reward functions of such environments (`reward_func(environments,
...)`), which run where the environment is.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, WorldTurn
from hone.core.errors import UserCodeError
from hone.text.tools.toolbox import ToolBox


class ToolWorld:
    """Implements `DialogueWorld`: calls and faults are answered by messages of the role `tool`: what is said to a
    policy as a user may let a chat template drop its thoughts."""

    def __init__(self, box: ToolBox, reward: Callable[..., object] | None = None) -> None:
        """`box`: the tools of this dialogue, closed with the world. `reward`: a function of TRL that scores the
        environments among them."""
        self._box, self._reward_function = box, reward
        self._columns: Mapping[str, Any] = {}
        self._said: list[Message] = []

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Reset the environments with the row's columns; a text that one returns stands after the last message of
        `prompt`."""
        del seed
        self._columns, self._said = columns, []
        texts = [self._box.wait(_with_columns(one.reset, columns)) for one in self._box.environments]
        seen = [one for one in texts if one is not None]
        wrong = next((one for one in seen if not isinstance(one, str)), None)
        if wrong is not None:
            raise UserCodeError(f"reset returned a {type(wrong).__name__}; it returns text or None")
        if not seen:
            return WorldTurn()
        return WorldTurn(messages=_prompt_with(columns.get("prompt", ""), "".join(cast("list[str]", seen))))

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer the calls of a turn, or its fault; a turn without either, or the last one, ends the dialogue."""
        self._said.append({"role": "assistant", "content": said.text})
        if said.fault is None and not said.calls:
            return WorldTurn(done=True, reward=self._reward())
        messages: list[Message] = [{"role": "tool", "content": said.fault}] if said.fault is not None else []
        messages += [self._box.call(one).message() for one in said.calls]
        self._said += messages
        return WorldTurn(messages=messages, reward=self._reward() if said.turns_left == 0 else 0.0)

    def close(self) -> None:
        """Close the tools."""
        self._box.close()

    def _reward(self) -> float | None:
        """Sum of the environments' own rewards and of the reward function; 0 without any, None if one gives none."""
        paid = [self._box.wait(one.get_reward()) for one in self._box.environments if one.get_reward is not None]
        if self._reward_function is not None:
            given = {
                "environments": [one.instance for one in self._box.environments],
                "prompts": [self._columns.get("prompt", "")],
                "completions": [self._said],
                **{name: [value] for name, value in self._columns.items() if name != "prompt"},
            }
            scores = self._box.wait(_with_columns(self._reward_function, given))
            paid += [scores] if not isinstance(scores, Sequence) or len(scores) != 1 else scores
        wrong = next((one for one in paid if one is not None and not isinstance(one, int | float)), None)
        if wrong is not None:
            raise UserCodeError(f"the reward is {wrong!r}, expected a number, or None for no score")
        return None if None in paid else float(sum(cast("list[float]", paid)))


def is_environment(found: object) -> bool:
    """Whether a class is an environment as TRL takes one: it has `reset`, and is no `DialogueWorld`."""
    members = dict(inspect.getmembers_static(found)) if inspect.isclass(found) else {}
    return "reset" in members and "begin" not in members


def _with_columns(function: Callable[..., object], columns: Mapping[str, Any]) -> object:
    """Call a function with all columns if it takes any, or with those that it names."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return function(**columns)
    return function(**{name: value for name, value in columns.items() if name in parameters})


def _prompt_with(prompt: str | Sequence[Message], text: str) -> list[Message]:
    """The messages of a prompt with a text after the last one."""
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    last = messages[-1] if messages else {"role": "user", "content": ""}
    return [*messages[:-1], {**last, "content": f"{last['content']}{text}"}]
