"""Episodes of agents that call the policy by its address: one step's sessions, from their requests to columns."""

import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock
from hone.core.conversation import Message, TranscriptBuilder, build_columns
from hone.core.credit import Metrics
from hone.core.dialogue import DialogueOutcome, PlannedSession, SessionDriver, SessionReport, StopReason
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import DataError, LostResourceError
from hone.core.generation import Completion, GenerationSession, Request, SamplingParams
from hone.core.judging import ScoreBatch, Scorer, ScorerInput
from hone.core.ragged import ranges
from hone.core.random import generator, permutation
from hone.core.state import State, integer, substate
from hone.models.language.tokenizers import Tokenizer
from hone.run.http.requests import ApiError
from hone.text.serving.capture.dialogue_tree import DialogueTree, PlannedAnswer, answer_message
from hone.text.serving.completions.asked import chat_tokenizer
from hone.text.serving.completions.served_model import without_stop
from hone.text.tools.formats import ToolFormat
from hone.text.tools.schemas import schema_of

# --------------------------------------------------------------------------------------------------------- capture desk


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentAnswer:
    """The answer to a request of an agent."""

    completion: Completion
    message: Message
    """The answer as the agent sees it."""
    prompt: NDArray[np.int32]
    """`[n]` all tokens before it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AgentRequest:
    """A request for one answer, as an agent made it."""

    session: str
    messages: tuple[Message, ...]
    role: str = ""
    """Which of an agent's parts asks; empty where it has one."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the agent offers, as OpenAI's protocol has them."""
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables of the chat template."""
    top_logprobs: int = 0
    answer: "Future[AgentAnswer]" = field(default_factory=lambda: Future[AgentAnswer]())
    """Cancelled once nobody waits for it any more."""


@dataclass(frozen=True, slots=True, eq=False)
class ReportedSession:
    """A report that waits to be taken."""

    report: SessionReport
    taken: "Future[None]" = field(default_factory=lambda: Future[None]())
    """Done once the report was taken; has a ApiError where its session is not under way."""


DeskEvent: TypeAlias = AgentRequest | ReportedSession


class CaptureDesk:
    """Hands requests and reports to the owner of the engine, in the order in which they came; for any thread."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[DeskEvent] = queue.SimpleQueue()
        self._closed = ""

    def put(self, event: DeskEvent) -> None:
        """Queue an event. After `close` it is refused at once."""
        if self._closed:
            _refuse(event, ApiError(503, self._closed, code="training_ended"))
        else:
            self._events.put(event)

    def has_events(self) -> bool:
        return not self._events.empty()

    def take(self, wait_s: float) -> list[DeskEvent]:
        """All events that wait; waits at most `wait_s` seconds for the first one."""
        events: list[DeskEvent] = []
        try:
            events.append(self._events.get(timeout=wait_s) if wait_s > 0 else self._events.get_nowait())
            while True:
                events.append(self._events.get_nowait())
        except queue.Empty:
            return events

    def close(self, reason: str) -> None:
        """Refuse everything that waits, and all that comes."""
        self._closed = reason
        for event in self.take(0):
            _refuse(event, ApiError(503, reason, code="training_ended"))


def _refuse(event: DeskEvent, error: ApiError) -> None:
    """Tell whoever waits for an event that it is refused."""
    waiting: Future[AgentAnswer] | Future[None] = event.answer if isinstance(event, AgentRequest) else event.taken
    if waiting.set_running_or_notify_cancel():
        waiting.set_exception(error)


# --------------------------------------------------------------------------------------------------------- capture step

Admission = Literal["now", "later", "unknown", "ended"]
"""`later`: the session belongs to a later step."""


@dataclass(slots=True, eq=False, kw_only=True)
class _CapturedSession:
    """One dialogue of an agent."""

    id: str
    planned: PlannedSession | None = None
    tree: DialogueTree = field(default_factory=DialogueTree)
    report: SessionReport | None = None
    timed_out: bool = False
    requests: int = 0
    abandoned: int = 0
    """Answers whose agent had gone."""
    in_flight: int = 0
    """Requests that wait for their answers."""
    heard_s: float
    """Time of the latest request, answer or report."""

    @property
    def ended(self) -> bool:
        """True once it was reported, or is no longer waited for."""
        return self.timed_out or self.report is not None

    @property
    def group(self) -> str:
        """Name of the question that it is about: as planned, as reported, or by its first request."""
        if self.planned is not None:
            return self.planned.group
        return (self.report.group if self.report is not None else "") or self.tree.opening

    @property
    def failure(self) -> str:
        """Why it has no score; empty where nothing failed."""
        if self.timed_out:
            return "the agent neither asked nor reported in time"
        return "" if self.report is None else self.report.error

    @property
    def stop(self) -> StopReason:
        return "deadline" if self.timed_out else "world_died" if self.failure else "done"

    @property
    def without_roles(self) -> frozenset[str]:
        return frozenset() if self.report is None else self.report.without_roles

    @property
    def status(self) -> ScoreStatus:
        if self.timed_out:
            return ScoreStatus.TIMEOUT
        return ScoreStatus.ERROR if self.failure else ScoreStatus.SCORED


@dataclass(slots=True, eq=False, kw_only=True)
class _CaptureStep:
    """The sessions of a step: those that were planned, or the first `count` that come."""

    count: int
    deadline_s: float
    planned: Sequence[PlannedSession] = ()
    sessions: dict[str, _CapturedSession] = field(default_factory=dict[str, _CapturedSession])
    began_s: float

    def __post_init__(self) -> None:
        for one in self.planned:
            self.sessions[one.id] = _CapturedSession(id=one.id, planned=one, heard_s=self.began_s)

    @property
    def complete(self) -> bool:
        """True once every session has begun and ended."""
        return len(self.sessions) == self.count and all(one.ended for one in self.sessions.values())

    @property
    def heard_s(self) -> float:
        """Time at which a session was last heard of."""
        return max((one.heard_s for one in self.sessions.values()), default=self.began_s)

    @property
    def missing(self) -> int:
        """Number of sessions that are yet to begin."""
        return self.count - len(self.sessions)

    def admit(self, session: str, now_s: float, *, asks: bool) -> Admission:
        """Let a session take part, at its first request; `asks`: it is one, and not a report."""
        known = self.sessions.get(session)
        if known is not None and not known.ended:
            known.heard_s = now_s
            return "now"
        if self.planned:
            return "unknown" if known is None else "ended"
        if not asks:
            return "unknown" if known is None else "ended"
        if known is not None or not self.missing:
            return "later"
        self.sessions[session] = _CapturedSession(id=session, heard_s=now_s)
        return "now"

    def expire(self, now_s: float) -> list[_CapturedSession]:
        """End the sessions that neither asked nor reported for `deadline_s` seconds, and return them."""
        late = [
            one
            for one in self.sessions.values()
            if not one.ended and not one.in_flight and now_s - one.heard_s > self.deadline_s
        ]
        for one in late:
            one.timed_out = True
        return late

    def ordered(self) -> list[_CapturedSession]:
        """The sessions in an order that does not depend on time: as planned, else by id."""
        sessions = list(self.sessions.values())
        return sessions if self.planned else sorted(sessions, key=lambda one: one.id)


# --------------------------------------------------------------------------------------------------------- session plan
@dataclass(eq=False, kw_only=True)
class SessionPlan:
    """Plans `per_step` rows, `samples` sessions each, in a fresh order of the dataset every epoch. Its state is the
    number of rows that were asked."""

    rows: Sequence[Mapping[str, Any]]
    ids: Sequence[str]
    per_step: int
    samples: int
    seed: int
    asked: int = 0

    def next_sessions(self) -> list[PlannedSession]:
        sessions: list[PlannedSession] = []
        for number in range(self.asked, self.asked + self.per_step):
            epoch, place = divmod(number, len(self.rows))
            row = int(permutation(self.seed, "prompts", epoch, count=len(self.rows))[place])
            seeds = generator(self.seed, "sessions", self.ids[row], number).integers(2**31, size=self.samples)
            sessions += [
                PlannedSession(id=f"{number}-{sample}", group=str(number), columns=self.rows[row], seed=int(seed))
                for sample, seed in enumerate(seeds)
            ]
        self.asked += self.per_step
        return sessions


# ----------------------------------------------------------------------------------------------------- capture episodes
@dataclass(frozen=True, slots=True, kw_only=True)
class _CapturedEpisodes:
    """Episodes of a step, and what is told about its sessions."""

    episodes: Episodes
    groups: int
    metrics: Metrics
    notes: tuple[str, ...]


def _captured_episodes(step: _CaptureStep, scorer: Scorer, *, first_group: int, first_id: int) -> _CapturedEpisodes:
    """Rows of all sessions with an answer; rows of one session share group, score and status, and differ in `part`.
    Groups are numbered from `first_group` on, sessions from `first_id` on. Raises LostResourceError if no session has
    an answer."""
    sessions = step.ordered()
    rows = {one.id: one.tree.rows(without=one.without_roles) for one in sessions}
    heard = [one for one in sessions if rows[one.id]]
    if not heard:
        reasons = sorted({one.failure or "no request" for one in sessions})[:3]
        raise LostResourceError(f"none of {len(sessions)} sessions asked the policy anything: {'; '.join(reasons)}")
    scores = scorer.gather([scorer.submit([_scorer_input(one, rows[one.id])]) for one in heard])
    names = list(dict.fromkeys(one.group for one in heard))
    numbers = {name: first_group + place for place, name in enumerate(names)}
    episodes = _columns(
        [rows[one.id] for one in heard],
        group=np.array([numbers[one.group] for one in heard], np.int64),
        scores=scores,
        first_id=first_id,
    )
    return _CapturedEpisodes(
        episodes=episodes, groups=len(names), metrics=_metrics(sessions, rows), notes=tuple(_notes(sessions))
    )


def _scorer_input(session: _CapturedSession, rows: Sequence[TranscriptBuilder]) -> ScorerInput:
    """The session as rewards see it: the way to its last answer, with what was reported as its world's reward."""
    answers = session.tree.answers
    last = answers[-1]
    opening = next(place for place, one in enumerate(last.history) if one["role"] == "assistant")
    messages = last.history[opening:]
    turns = sum(one["role"] == "assistant" for one in messages)
    score = None if session.report is None else session.report.score
    return ScorerInput(
        prompt=list(last.history[:opening]),
        text=str(last.history[-1]["content"]),
        columns={} if session.planned is None else session.planned.columns,
        messages=messages,
        transcript=rows[-1],
        id=session.id,
        dialogue=DialogueOutcome(
            stop=session.stop,
            rewards=() if score is None else (*[0.0] * (turns - 1), score),
            status=session.status,
            reason=session.failure,
        ),
    )


def _columns(
    rows: Sequence[Sequence[TranscriptBuilder]], *, group: NDArray[np.int64], scores: ScoreBatch, first_id: int
) -> Episodes:
    """Columns of the rows of each of S sessions; `group` and `scores` are `[S]`."""
    columns = build_columns([row for session in rows for row in session])
    counts = np.array([len(session) for session in rows], np.int64)
    owner, part = np.repeat(np.arange(len(rows)), counts), ranges(np.zeros_like(counts), counts)
    last = part == counts[owner] - 1
    reward = np.zeros(columns.offsets[-1], np.float32)
    paid = last & (scores.status[owner] == ScoreStatus.SCORED)
    reward[columns.offsets[1:][paid] - 1] = scores.score[owner][paid]
    several = bool((counts > 1).any())
    return Episodes(
        offsets=columns.offsets,
        seen=columns.transcript,
        chosen=columns.chosen,
        logp=columns.logp,
        version=columns.version,
        reward=reward,
        group=group[owner],
        terminated=last & ~columns.truncated,
        truncated=last & columns.truncated,
        score=scores.score[owner],
        status=scores.status[owner],
        components=np.stack([values[owner] for values in scores.functions.values()], axis=1),
        id=first_id + owner if several else None,
        part=part if several else None,
    )


def _metrics(sessions: Sequence[_CapturedSession], rows: Mapping[str, Sequence[TranscriptBuilder]]) -> Metrics:
    count = len(sessions)
    facts: dict[str, list[float]] = {}
    for one in sessions:
        for name, value in ({} if one.report is None else one.report.facts).items():
            facts.setdefault(name, []).append(value)
    return {
        "capture/requests": sum(one.requests for one in sessions) / count,
        "capture/rows": sum(map(len, rows.values())) / count,
        "capture/rewritten": sum(one.tree.rewritten for one in sessions) / count,
        "capture/abandoned": sum(one.abandoned for one in sessions) / count,
        "capture/silent": sum(not rows[one.id] for one in sessions) / count,
        **{f"world/{name}": float(np.mean(values)) for name, values in sorted(facts.items())},
    }


def _notes(sessions: Sequence[_CapturedSession]) -> list[str]:
    """One note on sessions that failed, with the reasons; one on sessions that fell silent."""
    failed = [one for one in sessions if one.failure and not one.timed_out]
    silent = [one for one in sessions if one.timed_out]
    notes: list[str] = []
    if failed:
        reasons = "; ".join(sorted({one.failure for one in failed})[:3])
        notes.append(f"{len(failed)} of {len(sessions)} sessions failed and have no score: {reasons}")
    if silent:
        names = ", ".join(repr(one.id) for one in silent[:3])
        notes.append(
            f"{len(silent)} of {len(sessions)} sessions neither asked nor reported in time and have no score: {names}"
        )
    return notes


# -------------------------------------------------------------------------------------------------------- capture world

_TICK_S: Final = 0.05
"""Longest wait between two looks at deadlines and at the driver."""


@dataclass(slots=True, eq=False)
class _RequestInFlight:
    """A request of an agent that the engine answers."""

    asked: AgentRequest
    session: _CapturedSession
    planned: PlannedAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """Limits of a step's sessions."""

    sessions: int
    """Sessions of a step."""
    context: int
    """Most tokens of a dialogue."""
    deadline_s: float
    """A session that neither asks nor reports for so long has no score."""
    patience_s: float
    """Longest wait for sessions that are yet to begin."""


@dataclass(eq=False, kw_only=True)
class CaptureWorld:
    """Answers the requests of agents with what the policy draws, until every session of a step was reported. Implements
    `RolloutEnvironment`. Without a plan, the first sessions that come take part, and others wait for the next step: all
    answers of a step are drawn by one policy."""

    desk: CaptureDesk
    tokenizer: Tokenizer
    sampling: SamplingParams
    """Its temperature and truncation hold for all requests; agents may ask for fewer tokens and further stops."""
    limits: CaptureLimits
    clock: Clock
    address: str
    """Address that agents call, without a path."""
    scorer: Scorer
    """Gives a session its score: what was reported, and reward functions."""
    tool_format: ToolFormat
    """Form in which the policy writes calls of an agent's tools."""
    describes_tools: bool | None = None
    """As `task.tools.describe`."""
    plan: SessionPlan | None = None
    driver: SessionDriver | None = None
    """Holds the planned sessions; None: agents come of themselves."""
    steps: int = 0

    def __post_init__(self) -> None:
        self._waiting: list[DeskEvent] = []
        self._in_flight: dict[str, _RequestInFlight] = {}
        self._groups = 0
        self._metrics: Metrics = {}
        self._notes: list[str] = []

    def rollout(self, session: GenerationSession) -> Episodes:
        """Episodes of one step's sessions. Raises LostResourceError if agents stay away, and as the driver does."""
        session.reset_stats()
        planned = () if self.plan is None else self.plan.next_sessions()
        now = self.clock.monotonic_s()
        step = _CaptureStep(count=self.limits.sessions, planned=planned, deadline_s=self.limits.deadline_s, began_s=now)
        if self.driver is not None:
            self.driver.begin(planned, self.session_address, lambda report: self.desk.put(ReportedSession(report)))
        try:
            self._hold(session, step)
        finally:
            session.cancel(self._in_flight)
            for one in self._in_flight.values():
                _refuse(one.asked, ApiError(503, "the step ended before this answer", code="step_ended"))
            self._in_flight.clear()
        first = self.steps * self.limits.sessions
        self.steps += 1
        captured = _captured_episodes(step, self.scorer, first_group=self._groups, first_id=first)
        self._groups += captured.groups
        self._metrics = captured.metrics
        self._notes += captured.notes
        return captured.episodes

    def session_address(self, session: str) -> str:
        return f"{self.address}/sessions/{session}/v1"

    def metrics(self) -> Metrics:
        return self._metrics

    def notes(self) -> list[str]:
        """Notes for the user since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def state(self) -> State:
        return {
            "steps": self.steps,
            "groups": self._groups,
            "asked": 0 if self.plan is None else self.plan.asked,
            "judge": self.scorer.state(),
        }

    def restore(self, state: State) -> None:
        self.steps, self._groups = integer(state, "steps"), integer(state, "groups")
        if self.plan is not None:
            self.plan.asked = integer(state, "asked")
        self.scorer.restore(substate(state, "judge"))

    # ------------------------------------------------------------------------------------------- one step

    def _hold(self, engine: GenerationSession, step: _CaptureStep) -> None:
        """Answer requests until all sessions of the step ended."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._take(engine, step, event)
        while not step.complete:
            for event in self.desk.take(0.0 if self._in_flight else _TICK_S):
                self._take(engine, step, event)
            if self._in_flight:
                completion = engine.next_completion(self._in_flight, wake=self.desk.has_events)
                if completion is not None:
                    self._deliver(completion)
            self._expire(step)

    def _take(self, engine: GenerationSession, step: _CaptureStep, event: DeskEvent) -> None:
        now, asks = self.clock.monotonic_s(), isinstance(event, AgentRequest)
        if isinstance(event, AgentRequest) and event.answer.cancelled():
            return  # its agent has gone while it waited
        name = event.session if isinstance(event, AgentRequest) else event.report.session
        admission = step.admit(name, now, asks=asks)
        if admission == "later":
            self._waiting.append(event)
        elif admission != "now":
            ended = admission == "ended"
            why, code = (
                ("has ended", "session_ended") if ended else ("is not under way in this step", "unknown_session")
            )
            _refuse(event, ApiError(410 if ended else 404, f"session {name!r} {why}", code=code))
        elif isinstance(event, AgentRequest):
            self._ask(engine, event, step.sessions[name])
        elif event.taken.set_running_or_notify_cancel():
            self._end(engine, step.sessions[name], event.report)
            event.taken.set_result(None)

    def _ask(self, engine: GenerationSession, asked: AgentRequest, session: _CapturedSession) -> None:
        """Hand a request to the engine, or refuse it."""
        try:
            prepared = chat_tokenizer(
                self.tokenizer, [schema_of(one) for one in asked.tools], self.tool_format, asked.variables,
                describe=self.describes_tools,
            )  # fmt: skip
            planned = session.tree.plan(
                asked.messages, prepared, tools=asked.tools, variables=asked.variables, role=asked.role
            )
            room = self.limits.context - len(planned.prompt)
            most = min(self.sampling.max_tokens, asked.max_tokens or self.sampling.max_tokens, room)
            if most < 1:
                message = f"the messages have {len(planned.prompt)} tokens, and rollout.context = {self.limits.context}"
                raise ApiError(400, message, code="context_length_exceeded")
            stop, top = (*self.sampling.stop, *asked.stop), asked.top_logprobs
            sampling = replace(self.sampling, max_tokens=most, stop=stop, top_logprobs=top)
            request = Request(
                id=f"{session.id}:{planned.key}",
                prompt=planned.prompt,
                samples=1,
                sampling=sampling,
                after=None if planned.before is None else planned.before.completion.request_id,
                keep_s=self.limits.deadline_s,
            )
            engine.submit([request], round=self.steps)
        except (DataError, ApiError) as error:
            _refuse(asked, ApiError.of(error))
            return
        session.requests += 1
        session.in_flight += 1
        self._in_flight[request.id] = _RequestInFlight(asked, session, planned)

    def _end(self, engine: GenerationSession, session: _CapturedSession, report: SessionReport) -> None:
        """End a session: its requests are cancelled, and its turns need not be kept."""
        session.report = report
        left = [id_ for id_, one in self._in_flight.items() if one.session is session]
        engine.cancel([*left, *(one.completion.request_id for one in session.tree.answers)])
        for id_ in left:
            message = f"session {session.id!r} was reported before this answer"
            ended = ApiError(410, message, code="session_ended")
            _refuse(self._in_flight.pop(id_).asked, ended)
        session.in_flight = 0

    def _deliver(self, completion: Completion) -> None:
        """Give an answer to its agent, and keep it; one whose agent has gone is dropped."""
        one = self._in_flight.pop(completion.request_id)
        one.session.in_flight -= 1
        one.session.heard_s = self.clock.monotonic_s()
        if not one.asked.answer.set_running_or_notify_cancel():
            one.session.abandoned += 1
            return
        text = completion.text(self.tokenizer.decode)
        if completion.finish_reason == "stop":
            text = without_stop(text, one.asked.stop)
        message = answer_message(text, one.asked.tools, self.tool_format, one.planned.key)
        one.session.tree.add(one.planned, completion, message)
        answer = AgentAnswer(completion=completion, message=message, prompt=one.planned.prompt)
        one.asked.answer.set_result(answer)

    def _expire(self, step: _CaptureStep) -> None:
        now = self.clock.monotonic_s()
        step.expire(now)
        if self.driver is not None:
            self.driver.check()
        elif step.missing and now - step.heard_s > self.limits.patience_s:
            raise LostResourceError(
                f"{len(step.sessions)} of {step.count} sessions began in {self.limits.patience_s:g} s; start agents "
                f"with base_url = {self.session_address('ID')}, a new ID for each dialogue"
            )
