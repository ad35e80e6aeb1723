"""Dialogues: what a policy says in a turn, what a world answers, and the protocol between them.

A world is user code: it may be a game, a user simulator or a task with tools. It sees text and parsed calls, never
tokens; what a policy drew is never decoded and encoded again (`hone.core.conversation` keeps the tokens).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, Self

from hone.core.conversation import Message
from hone.core.episodes import ScoreStatus
from hone.core.generation import FinishReason

StopReason = Literal["done", "turns", "context", "max_tokens", "invalid_calls", "deadline", "world_died"]
"""Reason why a dialogue ended. `done`: the world ended it, or a turn without a call where there is no world
(terminated). `turns`, `context`, `max_tokens`, `invalid_calls`: a limit (truncated, with the rewards so far).
`deadline`, `world_died`: its world failed (no score)."""
STOP_REASONS: Final[tuple[StopReason, ...]] = (
    "done", "turns", "context", "max_tokens", "invalid_calls", "deadline", "world_died",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, as a policy wrote it."""

    name: str
    arguments: Mapping[str, Any]
    """JSON values by parameter name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as chat templates are told about it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: `{"type": "object", "properties": ..., "required": ...}`."""

    def as_function(self) -> dict[str, Any]:
        """The form in which chat templates and OpenAI's protocol take a tool."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTurn:
    """What a policy said in one turn, as a world sees it."""

    text: str
    """The answer, calls included, up to its stop string."""
    calls: tuple[ToolCall, ...] = ()
    fault: str | None = None
    """Reason why a call in the text could not be parsed; None where all could, or none was made."""
    finish_reason: FinishReason = "eos"
    turn: int = 0
    """0 for the first."""
    turns_left: int = 1
    """Turns of the policy that may follow; 0 in the last one, which only the world's reward follows."""
    tokens_left: int = 0
    """Tokens of the context that are left after this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTurn:
    """What a world says before a turn of the policy, or after its last one."""

    messages: Sequence[Message] = ()
    """Messages of the roles `system`, `user` or `tool`. A world that only begins a dialogue may leave them empty: the
    prompt is then that of the dataset's row."""
    reward: float | None = 0.0
    """Reward of the policy's turn before. None at the end of a dialogue: it has no score."""
    done: bool = False
    """The world ended the dialogue (terminated)."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers that are averaged over dialogues and logged as `world/NAME`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueOutcome:
    """Result of a dialogue that ended, for its score."""

    stop: StopReason
    rewards: tuple[float, ...] = ()
    """The world's reward of each turn, 0 for turns that it did not answer; empty without a world."""
    status: ScoreStatus = ScoreStatus.SCORED
    """SCORED, unless the world failed or gave no score."""
    reason: str = ""
    """Why it has no score."""


class DialogueWorld(Protocol):
    """One dialogue with a policy; a world of several dialogues makes an instance for each.

    Its answers are to be a function of the row, the seed and what the policy said: a run can then be repeated to the
    bit. `answer` may be a coroutine function.
    """

    def begin(self, columns: Mapping[str, Any], seed: int) -> WorldTurn:
        """Begin the dialogue about a row of the dataset. `seed` is derived from the row and the sample."""
        ...

    def answer(self, said: PolicyTurn) -> WorldTurn:
        """Answer a turn of the policy."""
        ...

    def close(self) -> None:
        """End; called once, also for a dialogue that was cut."""


class ForkableWorld(DialogueWorld, Protocol):
    """A world that can be branched in the middle: other actions are tried at one state."""

    def fork(self) -> Self:
        """An independent copy of the dialogue so far."""
        ...


# -------------------------------------------------------------------------------------------------------- agent session


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    """A dialogue that a driver is to hold with the policy."""

    id: str
    """Key of its draws, and part of its address."""
    group: str
    """Sessions of one group answer the same question."""
    columns: Mapping[str, Any]
    """The row of the dataset that it is about."""
    seed: int
    """Derived from the row and the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """The end of a session, as an agent or its environment reports it."""

    session: str
    score: float | None
    """None: it has no score, or reward functions are to give it."""
    group: str = ""
    """Name of the question; empty: sessions with equal first requests answer the same one."""
    error: str = ""
    """What failed; the session has no score then."""
    without_roles: frozenset[str] = frozenset()
    """Roles that do not learn, such as a judge: their answers become no rows."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Numbers that are averaged over sessions and logged as `world/NAME`."""


class SessionDriver(Protocol):
    """Holds sessions with the policy: starts agents, and reports how each ended."""

    def begin(
        self, sessions: Sequence[PlannedSession], address: Callable[[str], str], report: Callable[[SessionReport], None]
    ) -> None:
        """Start the sessions and return at once. `address`: a session's base URL by its id; `report` is called once for
        each, from any thread."""

    def check(self) -> None:
        """Raise HoneError if it cannot go on, such as a process that died."""

    def close(self) -> None:
        """End its processes."""
