"""Tools by their references, checked all at once, and opened for each dialogue.

A reference is `hone:calculator`, `hone:python`, `file.py:name`, `package.module:name`, or `mcp:` and a server's command
or address (`hone.text.tools.mcp_tools`). A name is that of a function; of a list of functions; or of a class, of which
every dialogue has an instance and every public method is a tool. A class with a method `reset` is an environment, as
TRL's `environment_factory` takes one (`hone.text.tools.tool_world`).
"""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType, MethodType
from typing import Any

from hone.core.dialogue import ToolSchema
from hone.core.errors import ConfigError, HoneError, UserCodeError, did_you_mean
from hone.process import user_files
from hone.text.tools.builtin import check_sandbox
from hone.text.tools.mcp_tools import PREFIX as MCP
from hone.text.tools.mcp_tools import McpTools, load_server, option_faults
from hone.text.tools.schemas import call_adapter, function_schema
from hone.text.tools.toolbox import EnvironmentInstance, PythonTool, ToolBox

_KIND = "tool"
PYTHON_TOOL = "hone:python"
BUILTIN_TOOLS: Mapping[str, str] = MappingProxyType(
    {
        "hone:calculator": "hone.text.tools.builtin:calculator",
        PYTHON_TOOL: "hone.text.tools.builtin:SandboxedPython",
    }
)
"""Reference of a tool that comes with hone -> its function or class."""
LIFECYCLE = ("reset", "get_reward", "close")
"""Methods of a class that are no tools: they begin, score and end its dialogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """One entry of a list of tools."""

    use: str
    """The reference."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of a class; a function takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTools:
    """A function as a tool; dialogues share it."""

    tool: PythonTool

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """Its schema."""
        return (self.tool.schema,)

    def open(self) -> ToolBox:
        """Make the box of one dialogue."""
        return ToolBox([self.tool])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTools:
    """A class with methods as tools; every dialogue has an instance of its own."""

    schemas: tuple[ToolSchema, ...]
    made: type
    lifecycle: frozenset[str]
    """Names of `LIFECYCLE` that it has."""
    use: ToolUse

    def open(self) -> ToolBox:
        """Make an instance. Raises UserCodeError if that fails."""
        try:
            instance = self.made(**self.use.options)
        except HoneError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"tool {self.use.use!r}: making an instance failed with {user_files.describe_error(error)}",
                user_files.user_traceback(error),
            ) from error
        tools = [PythonTool(schema=one, adapter=call_adapter(attrgetter(one.name)(instance))) for one in self.schemas]
        bound = {name: attrgetter(name)(instance) for name in self.lifecycle}
        environments: list[EnvironmentInstance] = []
        if "reset" in bound:
            environments.append(
                EnvironmentInstance(instance=instance, reset=bound["reset"], get_reward=bound.get("get_reward"))
            )
        return ToolBox(tools, environments, [bound["close"]] if "close" in bound else [])


LoadedTool = FunctionTools | ClassTools | McpTools


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """Tools that were imported and checked."""

    parts: tuple[LoadedTool, ...]

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """Schemas of all tools, in the order of the config."""
        return tuple(schema for one in self.parts for schema in one.schemas)

    def open(self) -> ToolBox:
        """Make the tools of one dialogue. Raises UserCodeError if a class cannot be made."""
        boxes: list[ToolBox] = []
        try:
            boxes += (one.open() for one in self.parts)
        except UserCodeError:
            ToolBox.joined(boxes).close()
            raise
        return ToolBox.joined(boxes)


def check_references(uses: Sequence[ToolUse]) -> None:
    """Check the form of all references, and that their files exist, without an import. Raises ConfigError."""
    faults: list[str] = []
    for one in uses:
        if one.use in BUILTIN_TOOLS:
            continue
        if one.use.startswith(MCP):
            faults += option_faults(one.use, one.options)
            continue
        if one.use.startswith("hone:") or ":" not in one.use:
            near = did_you_mean(one.use, list(BUILTIN_TOOLS))
            faults.append(f"tool {one.use!r} is not built in{near}; one of your own is written path/to/file.py:name")
            continue
        try:
            user_files.check_reference(one.use, kind=_KIND)
        except ConfigError as error:
            faults += error.messages
    times = Counter(one.use for one in uses)
    faults += [f"tool {use!r} stands in the list {count} times" for use, count in times.items() if count > 1]
    if faults:
        raise ConfigError(*faults)


def load_tools(uses: Sequence[ToolUse]) -> LoadedTools:
    """Import tools and check them.

    Raises UserCodeError with all faults together: an import that fails, no such name, a parameter without a type hint,
    two tools of one name, a tool called `reset`, options that a class does not take, an instance that cannot be made
    (one is, and closed). Raises ResourceError for `hone:python` on a machine without a safe sandbox.
    """
    faults: list[str] = []
    parts: list[LoadedTool] = []
    homes: list[tuple[str, str]] = []
    for one in uses:
        try:
            made, wrong = _loaded(one)
        except UserCodeError as error:
            faults += error.messages
            continue
        parts += made
        homes += [(schema.name, one.use) for part in made for schema in part.schemas]
        faults += [f"tool {one.use!r}: {fault}" for fault in wrong]
    for name, times in Counter(name for name, _ in homes).items():
        if times > 1:
            places = ", ".join(use for other, use in homes if other == name)
            faults.append(f"{times} tools are called {name!r} ({places}); rename all but one")
    if faults:
        raise UserCodeError(*faults)
    return LoadedTools(tuple(parts))


def _loaded(one: ToolUse) -> tuple[Sequence[LoadedTool], list[str]]:
    """Tools of an entry, and its faults. Raises UserCodeError: an import fails, or a server cannot be reached."""
    if one.use.startswith(MCP):
        return [load_server(one.use, one.options)], []
    if one.use == PYTHON_TOOL:
        check_sandbox(one.options)
    return _interpreted(one, user_files.load_reference(BUILTIN_TOOLS.get(one.use, one.use), kind=_KIND))


def _interpreted(one: ToolUse, found: object) -> tuple[list[LoadedTool], list[str]]:
    """Tools of an imported object, and its faults."""
    if isinstance(found, list | tuple) and found:
        each = [_interpreted(one, member) for member in found]
        return [part for made, _ in each for part in made], [fault for _, wrong in each for fault in wrong]
    if inspect.isclass(found):
        return _class_tools(one, found)
    if not callable(found):
        return [], [f"it is a {type(found).__name__}, not a function, a class or a list of functions"]
    name = found.__name__ if inspect.isroutine(found) else one.use.rpartition(":")[2]
    faults = [f"{name} is a function and takes no options, got {key!r}; options are for classes" for key in one.options]
    schema, wrong = function_schema(found, name)
    if schema is None:
        return [], faults + wrong
    return [FunctionTools(tool=PythonTool(schema=schema, adapter=call_adapter(found)))], faults + wrong


def _class_tools(one: ToolUse, found: type) -> tuple[list[LoadedTool], list[str]]:
    faults = _option_faults(found, one.options)
    schemas: list[ToolSchema] = []
    methods = {
        # A method as its callers see it, without `self`: nothing is made here.
        name: MethodType(member, found) if inspect.isfunction(member) else attrgetter(name)(found)
        for name, member in inspect.getmembers_static(found)
        if inspect.isfunction(member) or isinstance(member, staticmethod | classmethod)
    }
    public = {name: method for name, method in methods.items() if not name.startswith("_") and name not in LIFECYCLE}
    for name, method in public.items():
        schema, wrong = function_schema(method, name)
        faults += wrong
        schemas += [] if schema is None else [schema]
    if not public:
        faults.append(f"{found.__name__} has no public method to be a tool")
    lifecycle = frozenset(LIFECYCLE) & methods.keys()
    made = ClassTools(schemas=tuple(schemas), made=found, lifecycle=lifecycle, use=one)
    if not faults:
        made.open().close()  # a constructor that fails does so before work starts
    return [made], faults


def _option_faults(found: type, options: Mapping[str, Any]) -> list[str]:
    """Options that a class does not take, and those that it needs."""
    parameters = inspect.signature(found).parameters.values()
    named = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = (
        [] if any(one.kind is one.VAR_KEYWORD for one in parameters) else [key for key in options if key not in named]
    )
    missing = [
        one.name for one in parameters if one.name in named and one.default is one.empty and one.name not in options
    ]
    return [
        *(f"{found.__name__} takes no option {key!r}{did_you_mean(key, named)}" for key in unknown),
        *(f"{found.__name__} needs the option {name!r}" for name in missing),
    ]
