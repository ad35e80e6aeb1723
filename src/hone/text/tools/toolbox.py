"""The tools of one dialogue: their schemas, and calls that give text back, whatever a tool does."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, to_jsonable_python

from hone.core.conversation import Message
from hone.core.dialogue import PolicyTurn, ToolCall, ToolSchema, WorldTurn
from hone.core.errors import HoneError, UserCodeError
from hone.text.tools.schemas import argument_faults, unknown_tool

_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer of a tool."""

    name: str
    """The tool that was called."""
    text: str
    """For the policy; begins with `Error:` where the call failed."""
    failed: bool = False
    """The tool raised an exception, or was called with arguments that it does not take."""

    def message(self) -> Message:
        """The message of the role `tool` that tells the policy."""
        return {"role": "tool", "name": self.name, "content": self.text}


class ToolFunction(Protocol):
    """A tool that can be called."""

    @property
    def schema(self) -> ToolSchema:
        """Name, description and parameters."""
        ...

    def start(self, arguments: Mapping[str, Any]) -> object:
        """Run the tool with checked arguments: its value, of any type, or an awaitable of it. May raise anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTool:
    """A Python function or bound method as a tool, plain or a coroutine function."""

    schema: ToolSchema
    adapter: TypeAdapter[Any]
    """Checks and converts the arguments of the function by its type hints."""

    def start(self, arguments: Mapping[str, Any]) -> object:
        """Call the function with its arguments in the types of its hints (a dataclass from an object, say)."""
        return self.adapter.validate_python(ArgsKwargs((), dict(arguments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentInstance:
    """The instance of a class with a method `reset`, in one dialogue."""

    instance: object
    reset: Callable[..., object]
    """Called with the row's columns by name before the dialogue; a text that it returns stands after the question."""
    get_reward: Callable[[], object] | None
    """Reward of the whole dialogue; None if the class has no such method."""


class ToolBox:
    """Tools of one dialogue: made by `LoadedTools.open`, closed when the dialogue ends."""

    def __init__(
        self,
        tools: Sequence[ToolFunction],
        environments: Sequence[EnvironmentInstance] = (),
        on_close: Sequence[Callable[[], object]] = (),
    ) -> None:
        """`environments`: instances that are reset at the beginning; `on_close`: called once at the end."""
        self.tools, self.environments, self.on_close = tuple(tools), tuple(environments), tuple(on_close)
        self._by_name = {one.schema.name: one for one in tools}
        self._runner: asyncio.Runner | None = None

    @classmethod
    def joined(cls, boxes: Sequence["ToolBox"]) -> "ToolBox":
        """One box with the tools of several, in their order."""
        return cls(
            [tool for box in boxes for tool in box.tools],
            [one for box in boxes for one in box.environments],
            [one for box in boxes for one in box.on_close],
        )

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """Schemas of all tools, in the order of the config."""
        return tuple(one.schema for one in self.tools)

    def call(self, call: ToolCall) -> ToolResult:
        """Call a tool and wait for it. Exceptions of a tool are text for the policy; only errors of hone itself (a
        server that was lost) and signals pass through."""
        tool = self._by_name.get(call.name)
        faults = [unknown_tool(call.name, self.schemas)] if tool is None else argument_faults(call, tool.schema)
        if tool is None or faults:
            return _failure(call.name, "; ".join(faults))
        try:
            value = self.wait(tool.start(call.arguments))
            return value if isinstance(value, ToolResult) else ToolResult(name=call.name, text=_result_text(value))
        except HoneError:
            raise
        except ValidationError as error:
            message = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            return _failure(call.name, message)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything: the policy is told
            return _failure(call.name, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)

    def wait(self, value: object) -> object:
        """The value of an awaitable, which runs in the event loop of this box; any other value as it is."""
        if not inspect.isawaitable(value):
            return value

        async def awaited() -> object:
            return await value

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(awaited())

    def close(self) -> None:
        """Close the tools' instances, and the event loop."""
        try:
            for one in self.on_close:
                self.wait(one())
        finally:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()


def _result_text(value: object) -> str:
    """A tool's value as text: text as it is, None as nothing, any other as JSON where it can be, else by `str`."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return json.dumps(to_jsonable_python(value), ensure_ascii=False)
    except ValueError:
        return str(value)


def _failure(name: str, reason: str) -> ToolResult:
    short = reason if len(reason) <= _ERROR_CHARACTERS else reason[:_ERROR_CHARACTERS] + "..."
    return ToolResult(name=name, text=f"Error: {short}", failed=True)


# ----------------------------------------------------------------------------------------------------------- tool world
# The world of a task with tools and nothing else: it answers calls, and ends with the first turn that makes none.
#
# TRL's signatures run in it unchanged: a list of functions (`tools=`); a class with `reset`, public methods as tools
# and perhaps `get_reward` (`environment_factory=`); and reward functions of such environments
# (`reward_func(environments, ...)`), which run where the environment is.
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
        prompt: str | Sequence[Message] = columns.get("prompt", "")
        messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        last = messages[-1] if messages else {"role": "user", "content": ""}
        text = "".join(cast("list[str]", seen))
        return WorldTurn(messages=[*messages[:-1], {**last, "content": f"{last['content']}{text}"}])

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
        self._box.close()

    def _reward(self) -> float | None:
        """Sum of the environments' own rewards and of the reward function; 0 without any, None if one gives none."""
        paid = [self._box.wait(one.get_reward()) for one in self._box.environments if one.get_reward is not None]
        if self._reward_function is not None:
            columns = {
                "environments": [one.instance for one in self._box.environments],
                "prompts": [self._columns.get("prompt", "")],
                "completions": [self._said],
                **{name: [value] for name, value in self._columns.items() if name != "prompt"},
            }
            scores = self._box.wait(_with_columns(self._reward_function, columns))
            paid += [scores] if not isinstance(scores, Sequence) or len(scores) != 1 else scores
        wrong = next((one for one in paid if one is not None and not isinstance(one, int | float)), None)
        if wrong is not None:
            raise UserCodeError(f"the reward is {wrong!r}, expected a number, or None for no score")
        return None if None in paid else float(sum(cast("list[float]", paid)))

    @staticmethod
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
