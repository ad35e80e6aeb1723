"""The tools of one dialogue: their schemas, and calls that give text back, whatever a tool does."""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, to_jsonable_python

from hone.core.conversation import Message
from hone.core.dialogue import ToolCall, ToolSchema
from hone.core.errors import HoneError
from hone.envs.tools.schemas import argument_faults, unknown_tool

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

    async def run(self, arguments: Mapping[str, Any]) -> object:
        """Run the tool with checked arguments; its value is turned into text. May raise anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTool:
    """A Python function or bound method as a tool; coroutine functions are awaited."""

    schema: ToolSchema
    adapter: TypeAdapter[Any]
    """Of the function (`call_adapter`)."""

    async def run(self, arguments: Mapping[str, Any]) -> object:
        """Call the function with its arguments in the types of its hints (a dataclass from an object, say)."""
        value = self.adapter.validate_python(ArgsKwargs((), dict(arguments)))
        return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentInstance:
    """The instance of a class with a method `reset`, in one dialogue."""

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
        """Call one tool and wait for it; see `call_all`."""
        return self.call_all([call])[0]

    def call_all(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Call tools one after another, in their order, and wait.

        Exceptions of a tool are text for the policy; only errors of hone itself (a server that cannot be reached) and
        signals pass through.
        """
        return asyncio.run(self.call_async(calls))

    async def call_async(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """`call_all` inside a running event loop."""
        return [await self._result(one) for one in calls]

    def close(self) -> None:
        """Close the tools' instances and connections."""
        for one in self.on_close:
            one()

    async def _result(self, call: ToolCall) -> ToolResult:
        tool = self._by_name.get(call.name)
        if tool is None:
            return _failure(call.name, unknown_tool(call.name, self.schemas))
        faults = argument_faults(call, tool.schema)
        if faults:
            return _failure(call.name, "; ".join(faults))
        try:
            value = await tool.run(call.arguments)
            return value if isinstance(value, ToolResult) else ToolResult(name=call.name, text=result_text(value))
        except HoneError:
            raise
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            return _failure(call.name, said)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything: the policy is told
            return _failure(call.name, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def result_text(value: object) -> str:
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
