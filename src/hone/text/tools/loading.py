"""Tools by their references, checked all at once, and opened for each dialogue.

A reference is `hone:calculator`, `hone:python`, `file.py:name`, `package.module:name`, or `mcp:` and a server's command
or address (`hone.text.tools.mcp_tools`). A name is that of a function; of a list of functions; or of a class, of which
every dialogue has an instance and every public method is a tool. A class with a method `reset` is an environment, as
TRL's `environment_factory` takes one (`hone.text.tools.toolbox`).
"""

import ast
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType, MethodType
from typing import Any, Literal, cast

from pydantic import JsonValue, TypeAdapter, ValidationError, model_validator

from hone.core.config import Config
from hone.core.dialogue import ToolSchema
from hone.core.errors import ConfigError, HoneError, ResourceError, UserCodeError, did_you_mean
from hone.process import user_files
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import close_shared, no_rung_message, run_python, shared_sandbox
from hone.text.tools.mcp_tools import PREFIX as MCP
from hone.text.tools.mcp_tools import McpTools
from hone.text.tools.schemas import function_schema
from hone.text.tools.toolbox import EnvironmentInstance, PythonTool, ToolBox, ToolResult

# -------------------------------------------------------------------------------------------------------------- builtin

_MAX_CHARACTERS = 200
_MAX_DIGITS = 1000
_BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
    }
)
_UNARY: Mapping[type[ast.unaryop], Callable[[float], float]] = MappingProxyType(
    {ast.USub: operator.neg, ast.UAdd: operator.pos}
)


def calculator(expression: str) -> str:
    """Compute a sum, difference, product, quotient or power of numbers.

    Args:
        expression: Numbers, parentheses and + - * / // % **, such as (3 + 4) * 2
    """
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(expression)} characters, at most {_MAX_CHARACTERS} are read")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{expression!r} is no expression of numbers") from None
    value = _value(tree.body)
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


class _SandboxedPython:
    """A Python interpreter for programs of the policy: each call is a new program in the sandbox."""

    def __init__(
        self,
        *,
        cpu_s: float = 5.0,
        wall_s: float = 10.0,
        memory_bytes: int = 2**29,
        readable: list[str] | None = None,
        if_no_rung: str = "refuse",
    ) -> None:
        """Set the limits of a program, as in `SandboxPolicy`. Raises UserCodeError with all that are none."""
        limits: dict[str, Any] = {"cpu_s": cpu_s, "wall_s": wall_s, "memory_bytes": memory_bytes}
        limits |= {"readable": readable or [], "if_no_rung": if_no_rung}
        try:
            self._policy = SandboxPolicy(**limits)
        except ValidationError as error:
            faults = [
                f"tool 'hone:python': option {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
            ]
            raise UserCodeError(*faults) from None

    def python(self, code: str) -> ToolResult:
        """Run a Python program. The result is what it printed, and the value of its last line.

        Args:
            code: The program; nothing is kept from one call to the next.
        """
        result = run_python(code, self._policy)
        if result.verdict == "refused":
            raise ResourceError(f"hone:python: {result.error}")
        parts = [result.stdout, result.shown, result.stderr]
        if result.verdict != "ok":
            parts.append(f"Error ({result.verdict}): {result.error}")
        text = "\n".join(part.rstrip("\n") for part in parts if part.strip())
        return ToolResult(name="python", text=text, failed=result.verdict != "ok")


def _value(node: ast.expr) -> float:
    """The value of an expression; a whole number stays one. Raises ValueError for any other kind of node."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not a number or one of + - * / // % **")


def _power(base: float, exponent: float) -> float:
    digits = abs(exponent) * len(str(abs(base)))
    if digits > _MAX_DIGITS:
        raise ValueError(f"{base}**{exponent} is too large")
    if base < 0 and not float(exponent).is_integer():
        raise ValueError(f"{base}**{exponent} is no real number")
    return base**exponent


# -------------------------------------------------------------------------------------------------------------- loading

_KIND = "tool"
PYTHON_TOOL = "hone:python"
BUILTIN_TOOLS: Mapping[str, str] = MappingProxyType(
    {"hone:calculator": "hone.text.tools.loading:calculator", PYTHON_TOOL: "hone.text.tools.loading:_SandboxedPython"}
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
class _FunctionTools:
    """A function as a tool; dialogues share it."""

    tool: PythonTool

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        return (self.tool.schema,)

    def open(self) -> ToolBox:
        return ToolBox([self.tool])


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassTools:
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
        tools = [PythonTool(schema=one, adapter=TypeAdapter(attrgetter(one.name)(instance))) for one in self.schemas]
        bound = {name: attrgetter(name)(instance) for name in self.lifecycle}
        environments: list[EnvironmentInstance] = []
        if "reset" in bound:
            environments.append(
                EnvironmentInstance(instance=instance, reset=bound["reset"], get_reward=bound.get("get_reward"))
            )
        return ToolBox(tools, environments, [bound["close"]] if "close" in bound else [])


LoadedTool = _FunctionTools | _ClassTools | McpTools


@dataclass(frozen=True, slots=True)
class LoadedTools:
    """Tools that were imported and checked."""

    parts: tuple[LoadedTool, ...]

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """Schemas of all tools, in the order of the config."""
        return tuple(schema for one in self.parts for schema in one.schemas)

    @property
    def lifecycle(self) -> frozenset[str]:
        """Names of `LIFECYCLE` that a class among them has."""
        return frozenset(name for one in self.parts if isinstance(one, _ClassTools) for name in one.lifecycle)

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
            faults += McpTools.option_faults(one.use, one.options)
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
    """Import tools and check them. Raises UserCodeError with all faults together: an import that fails, no such name, a
    parameter without a type hint, two tools of one name, a tool called `reset`, options that a class does not take, an
    instance that cannot be made (one is, and closed). Raises ResourceError for `hone:python` on a machine without a
    safe sandbox."""
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
        return [McpTools.load(one.use, one.options)], []
    if one.use == PYTHON_TOOL and one.options.get("if_no_rung", "refuse") == "refuse":
        report = shared_sandbox(SandboxPolicy()).probe()
        close_shared()  # dialogues start their own
        if not report.rung:
            raise ResourceError(f"tool 'hone:python': {no_rung_message(report)}")
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
    return [_FunctionTools(tool=PythonTool(schema=schema, adapter=TypeAdapter(cast("Any", found))))], faults + wrong


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
    made = _ClassTools(schemas=tuple(schemas), made=found, lifecycle=lifecycle, use=one)
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


# --------------------------------------------------------------------------------------------------------------- config


class ToolsConfig(Config):
    """Tools that a policy may call."""

    use: list[str] = []
    """`hone:calculator`, `file.py:name` or `module:name`: a function, a list of functions, or a class whose public
    methods are tools. Empty: calls are parsed and handed to the world."""
    options: dict[str, dict[str, JsonValue]] = {}
    """Arguments of classes among them, by the name in `use`."""
    format: Literal["hermes", "llama3_json", "qwen_xml", "bracket"] = "hermes"
    """Form in which the policy writes calls. Three turns in a row with a call that cannot be read end a dialogue."""
    describe: bool | None = None
    """Describe tools in the system message where the chat template does not; unset: but to models that hone made."""
    reward: str | None = None
    """Function that scores environments among the tools at the end of a dialogue, as TRL calls it:
    `f(environments, prompts, completions, **columns)`. It runs in the dialogue's process."""

    @model_validator(mode="after")
    def _references_are_some(self) -> "ToolsConfig":
        if unknown := [name for name in self.options if name not in self.use]:
            raise ValueError(f"options: {', '.join(unknown)} is not in use = {self.use}")
        try:
            check_references(self.uses)
            if self.reward is not None:
                user_files.check_reference(self.reward, kind="task.tools.reward")
        except ConfigError as error:
            raise ValueError("; ".join(error.messages)) from None
        return self

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        return tuple(ToolUse(use=name, options=self.options.get(name, {})) for name in self.use)
