"""A dialogue's world: the user's object, called and checked; what it says, as JSON between its process and the trainer.

A world is user code. Its turns are checked where they arise, next to the traceback, and made again from plain values in
the trainer: nothing that a world returns reaches the trainer as an object.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, TypeAlias, cast, runtime_checkable

from hone.core.conversation import Message
from hone.core.dialogue import DialogueWorld, PolicyTurn, ToolSchema, WorldTurn
from hone.core.episodes import ScoreStatus
from hone.core.errors import UserCodeError, run_all_checks
from hone.process.user_files import load_reference
from hone.text.tools.loading import LoadedTools, ToolUse, load_tools
from hone.text.tools.toolbox import ToolWorld

# ------------------------------------------------------------------------------------------------------------- protocol

MAX_CHARACTERS: Final = 100_000
"""Longest message of a world; a longer one is cut in the middle before anything else looks at it."""
ROLES: Final = ("system", "user", "tool")
OWN_FACTS: Final = ("wait_s", "p95_s", "late")
"""Names of hone's own figures on worlds."""

Json: TypeAlias = dict[str, Any]


class WorldFaultError(Exception):
    """A world that failed: it raised, died, broke its contract (ERROR), or gave no answer in time (TIMEOUT)."""

    def __init__(self, reason: str, *, status: ScoreStatus = ScoreStatus.ERROR, traceback: str = "") -> None:
        super().__init__(reason)
        self.reason, self.status, self.traceback = reason, status, traceback


class WorldContractError(Exception):
    """A value that is no `WorldTurn`; the message says which."""


class WorldHost(Protocol):
    """Runs the worlds of many dialogues at the same time; a dialogue is named by a number."""

    def number(self) -> int:
        """A number for a dialogue, that none had before."""
        ...

    def begin(self, dialogue: int, columns: Mapping[str, object], seed: int) -> "Future[WorldTurn]":
        """Begin a dialogue and return at once. The future may raise WorldFaultError."""
        ...

    def answer(self, dialogue: int, said: PolicyTurn) -> "Future[WorldTurn]":
        """Hand a turn of the policy to the dialogue's world and return at once. The future may raise
        WorldFaultError."""
        ...

    def end(self, dialogue: int) -> None:
        """Close a dialogue, also one that failed; nothing is awaited."""

    def late_answers(self) -> int:
        """Answers that came after their dialogue had ended, since the last call; they were ignored."""
        ...

    def close(self) -> None:
        """End everything that runs. May be called twice."""


def _turn_to_json(turn: object) -> Json:
    """A world's turn as JSON. Raises WorldContractError for anything else."""
    if not isinstance(turn, WorldTurn):
        raise WorldContractError(f"returned {_kind(turn)}, expected a WorldTurn")
    if isinstance(turn.messages, str) or not isinstance(turn.messages, Sequence):
        raise WorldContractError(f"returned messages of {_kind(turn.messages)}, expected a list of messages")
    if not isinstance(turn.done, bool):
        raise WorldContractError(f"returned done = {turn.done!r}, expected true or false")
    return {
        "messages": [_message(message, place) for place, message in enumerate(turn.messages)],
        "reward": None if turn.reward is None else _number(turn.reward, "reward"),
        "done": turn.done,
        "facts": _facts(turn.facts),
    }


def turn_from_json(value: object) -> WorldTurn:
    """The turn that `_turn_to_json` wrote. Raises WorldContractError: what a world's process sends is checked again."""
    table = cast("Json", value) if isinstance(value, dict) else {}
    try:
        turn = WorldTurn(
            messages=tuple(table["messages"]), reward=table["reward"], done=table["done"], facts=table["facts"]
        )
    except (KeyError, TypeError) as error:
        raise WorldContractError(f"sent an answer that is none ({type(error).__name__}: {error})") from None
    _turn_to_json(turn)
    return turn


def _message(message: object, place: int) -> Json:
    if not isinstance(message, Mapping):
        raise WorldContractError(f"returned {_kind(message)} as message {place}, expected role and content")
    table = cast("Message", message)
    role, content = table.get("role"), table.get("content")
    if role not in ROLES:
        raise WorldContractError(f"returned role {role!r} in message {place}, expected one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise WorldContractError(f"returned content of {_kind(content)} in message {place}, expected text")
    further = {str(key): value for key, value in table.items() if isinstance(value, str)}
    if len(content) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        content = f"{content[:half]}\n[... {len(content) - 2 * half} characters left out ...]\n{content[-half:]}"
    clean = content.encode("utf-8", errors="replace").decode("utf-8")  # halves of surrogate pairs have no encoding
    return {**further, "role": role, "content": clean}


def _facts(facts: object) -> dict[str, float]:
    if not isinstance(facts, Mapping):
        raise WorldContractError(f"returned facts of {_kind(facts)}, expected numbers by name")
    named = {str(name): _number(value, f"facts[{name!r}]") for name, value in cast("Json", facts).items()}
    if taken := [name for name in named if name in OWN_FACTS]:
        raise WorldContractError(f"returned a fact of the name {taken[0]!r}, which is a figure of hone's own")
    return named


def _number(value: object, name: str) -> float:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(cast("float", value))
    except (TypeError, ValueError):
        raise WorldContractError(f"returned {name} = {_kind(value)}, expected a number") from None
    if isinstance(value, str) or not math.isfinite(number):
        raise WorldContractError(f"returned {name} = {value!r}, expected a finite number")
    return number


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


# --------------------------------------------------------------------------------------------------------------- hosted

WorldFactory = Callable[[], DialogueWorld]
KIND = "world"
"""Name of worlds in messages."""


@runtime_checkable
class _ClassWithRows(Protocol):
    """A world class that brings its own rows."""

    def rows(self, size: int, seed: int) -> Sequence[Mapping[str, object]]:
        """`size` rows, or as many as there are: the columns of each, and its `prompt` if it has one. A static
        method."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """A world to load: a class or function of the user's, tools, or both."""

    reference: str | None = None
    """`file.py:Class` or `module:Class`; None: tools only."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Passed to the class by name, for each dialogue."""
    tools: tuple[ToolUse, ...] = ()
    reward: str | None = None
    """Reference of a function that scores the environments among the tools."""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, table: Json) -> "WorldSpec":
        """The spec that `to_json` wrote."""
        tools = tuple(ToolUse(use=tool["use"], options=tool["options"]) for tool in table["tools"])
        return cls(reference=table["reference"], options=table["options"], tools=tools, reward=table["reward"])

    @property
    def name(self) -> str:
        return f"world {self.reference!r}" if self.reference is not None else "the tools of task.tools.use"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldDescription:
    """What a loaded world is like."""

    schemas: tuple[ToolSchema, ...] = ()
    """Tools that it answers calls of."""
    begins: bool = True
    """It has to be begun; False for tools that are plain functions."""
    pays: bool = True
    """It gives rewards."""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, table: Json) -> "WorldDescription":
        """The description that `to_json` wrote."""
        schemas = tuple(ToolSchema(**schema) for schema in table["schemas"])
        return cls(schemas=schemas, begins=table["begins"], pays=table["pays"])


@dataclass(frozen=True, slots=True)
class LoadedWorld:
    """A world's class or function with its options, and its tools."""

    make: Callable[..., DialogueWorld] | None
    options: Mapping[str, object]
    tools: LoadedTools
    reward: Callable[..., object] | None = None

    def new(self) -> DialogueWorld:
        """A world for one dialogue. Raises what its class raises."""
        if self.make is None:
            return ToolWorld(self.tools.open(), self.reward)
        world = self.make(**self.options)
        return _WorldWithTools(world, ToolWorld(self.tools.open())) if self.tools.parts else world

    def describe(self) -> WorldDescription:
        methods = self.tools.lifecycle
        own, paid = self.make is not None, self.reward is not None
        return WorldDescription(
            schemas=self.tools.schemas,
            begins=own or paid or "reset" in methods,
            pays=own or paid or "get_reward" in methods,
        )

    def rows(self, size: int, seed: int) -> list[dict[str, object]] | None:
        """The rows that the class brings; None where it has none. Raises UserCodeError for anything else."""
        if not isinstance(self.make, _ClassWithRows):
            return None
        result = cast("Callable[..., object]", self.make.rows)(size=size, seed=seed)
        if isinstance(result, str) or not isinstance(result, Sequence):
            raise UserCodeError(f"rows(size, seed) returned a {type(result).__name__}, expected a list of rows")
        rows = cast("Sequence[object]", result)
        wrong = next((place for place, row in enumerate(rows) if not isinstance(row, Mapping)), None)
        if wrong is not None or not rows:
            what = "no row" if wrong is None else f"a {type(rows[wrong]).__name__} as row {wrong}"
            raise UserCodeError(f"rows(size, seed) returned {what}, expected columns by name")
        return [dict(cast("Mapping[str, object]", row)) for row in rows]


def load_world(spec: WorldSpec) -> LoadedWorld:
    """The class or function and the tools that a spec names; a class with `reset` in place of `begin`, an environment
    as TRL takes one, is tools. Raises UserCodeError with all faults: an import fails, there is no such name, it cannot
    be called with the options, or what it makes is no world."""
    loaded = run_all_checks(
        {
            "world": lambda: None if spec.reference is None else _load_class(spec.reference, spec.options),
            "tools": lambda: load_tools(spec.tools),
            "reward": lambda: None if spec.reward is None else _load_reward(spec.reward),
        }
    )
    make, tools = cast("Callable[..., DialogueWorld] | None", loaded["world"]), cast("LoadedTools", loaded["tools"])
    reward = cast("Callable[..., object] | None", loaded["reward"])
    if spec.reference is not None and ToolWorld.is_environment(make):
        make, tools = None, load_tools((ToolUse(use=spec.reference, options=spec.options), *spec.tools))
    if make is not None and reward is not None:
        raise UserCodeError(
            f"task.tools.reward = {spec.reward!r} scores environments among the tools; {KIND} {spec.reference!r} pays "
            "its own rewards: leave it out"
        )
    return LoadedWorld(make, spec.options, tools, reward)


def _load_reward(reference: str) -> Callable[..., object]:
    function = load_reference(reference, kind="task.tools.reward", prefix="hone_world_")
    if not callable(function):
        raise UserCodeError(f"task.tools.reward = {reference!r} is a {type(function).__name__}, expected a function")
    return function


def _load_class(reference: str, options: Mapping[str, object]) -> Callable[..., object]:
    make = load_reference(reference, kind=KIND, prefix="hone_world_")
    if not callable(make):
        raise UserCodeError(f"{KIND} {reference!r} is a {type(make).__name__}, expected a class or a function")
    if ToolWorld.is_environment(make):
        return make
    faults: list[str] = []
    try:
        inspect.signature(make).bind(**options)
    except (TypeError, ValueError) as error:
        faults.append(f"{KIND} {reference!r} does not take task.options = {dict(options)}: {error}")
    methods = ("begin", "answer", "close") if inspect.isclass(make) else ()
    missing = [name for name in methods if not callable(inspect.getattr_static(make, name, None))]
    if missing:
        faults.append(
            f"{KIND} {reference!r} has no method {' and no '.join(missing)}; a world has begin(columns, seed), "
            "answer(said) and close()"
        )
    if faults:
        raise UserCodeError(*faults)
    return make


class _WorldWithTools:
    """A world beside tools: these answer the calls of a turn and its faults, and the world every other turn."""

    def __init__(self, world: DialogueWorld, tools: ToolWorld) -> None:
        self._world, self._tools = world, tools

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin both; the world gives the messages."""
        self._tools.begin(columns, seed)
        return self._world.begin(columns, seed)

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer calls and faults by the tools, anything else by the world."""
        return self._tools.answer(said) if said.calls or said.fault is not None else self._world.answer(said)

    def close(self) -> None:
        try:
            self._tools.close()
        finally:
            self._world.close()


@dataclass(slots=True)
class HostedDialogue:
    """A world while it has one dialogue; every method returns JSON. Whatever the world raises comes through."""

    make: WorldFactory
    world: DialogueWorld | None = None

    def begin(self, columns: Mapping[str, Any], seed: int) -> "Json | Awaitable[object]":
        self.world = self.make()
        return checked(self.world.begin(columns, seed), "begin")

    def answer(self, said: PolicyTurn) -> "Json | Awaitable[object]":
        """The world's answer, or an awaitable of it that `checked` has still to see. A world that was not begun, as
        tools need not be, is made."""
        if self.world is None:
            self.world = self.make()
        return checked(cast("object", self.world.answer(said)), "answer")

    def close(self) -> None:
        """Close the world, once."""
        world, self.world = self.world, None
        if world is not None:
            world.close()


def checked(turn: object, method: str) -> "Json | Awaitable[object]":
    """A world's turn as JSON; an awaitable as it is. Raises WorldContractError, naming the method."""
    if inspect.isawaitable(turn):
        return turn
    try:
        return _turn_to_json(turn)
    except WorldContractError as error:
        raise WorldContractError(f"{method} {error}") from None
