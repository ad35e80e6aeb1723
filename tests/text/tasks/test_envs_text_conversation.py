"""Conversations through the event loop with the embedded engine: whatever finishes first, the same bits."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from scripted_session import ScriptedSession

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.credit.turns import turn_table
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.text.tasks.conversation import (
    AnswerEffort,
    Conversation,
    ConversationLimits,
    ConversationLoop,
    EnvironmentReply,
    TextEnvironment,
)
from hone.text.tasks.world import Prompt, TextWorld

VOCAB, TURNS = 24, 3
CONFIG = ModelConfig(
    family="qwen3", vocab_size=VOCAB, hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8,
    max_positions=256,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Decoder:
    return new_model(CONFIG, seed=1)


def engine_of(model: Decoder, *, slots: int = 4) -> EmbeddedEngine:
    limits = SchedulerLimits(slots=slots, pages=16 * (slots + 2), page_tokens=16, sequence_tokens=200)
    chosen = RunnerChoice(runner=TorchRunner(model, vocab_used=VOCAB, page_tokens=16), own_weights=False)
    return EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=VOCAB), limits=limits, seed=3)


@dataclass
class Echo:
    """Says the answer's last token twice, and ends after `turns`; replies come late and out of order by `seed`."""

    seed: int = 0
    turns: int = TURNS
    late: list[tuple[Future, EnvironmentReply]] = field(default_factory=list)

    def begin(self, conversation: Conversation) -> None: ...

    def end(self, conversation: Conversation) -> None: ...

    def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
        transcript = conversation.transcript
        last = transcript.answers[-1].tokens[-1:]
        reply = EnvironmentReply(
            messages=[{"role": "tool", "content": str(last[0])}],
            tokens=np.concatenate([last, last]),
            reward=float(last[0]),
            done=transcript.turns >= self.turns,
        )
        future: Future[EnvironmentReply] = Future()
        draw = np.random.default_rng([self.seed, len(self.late)]).integers(3)
        self.late.append((future, reply))
        if draw == 0:
            future.set_result(reply)
        elif draw == 1:
            threading.Timer(0.002, future.set_result, [reply]).start()
        else:
            threading.Timer(0.02, future.set_result, [reply]).start()
        return future


@dataclass
class TurnScorer:
    """Scores an answer by its length; conversations of an even prompt by turn. Checks messages and tokens."""

    by_turn: bool = False

    def submit(self, answers):
        for one in answers:
            said = [message["content"] for message in one.messages if message["role"] == "assistant"]
            assert one.text == said[-1]
            assert all(text in decode(one.tokens) for text in said)
        return answers

    def gather(self, tickets):
        answers = [answer for ticket in tickets for answer in ticket]
        score = np.array([float(len(answer.tokens)) for answer in answers])
        turns = {
            place: [float(number + 1) for number in range(sum(m["role"] == "assistant" for m in answer.messages))]
            for place, answer in enumerate(answers)
            if self.by_turn and answer.columns["answer"] % 2 == 0
        }
        return Scores(score, np.full(len(score), ScoreStatus.SCORED, np.uint8), {"length": score}, turns)

    def state(self):
        return {}

    def restore(self, state): ...


@dataclass
class Scores:
    score: np.ndarray
    status: np.ndarray
    functions: dict[str, np.ndarray]
    turn_scores: dict[int, list[float]]


def decode(tokens) -> str:
    return "".join(f"<{token}>" for token in tokens)


def rollout(session, *, environment=None, prompts: int = 4, scorer: TurnScorer | None = None, context: int = 200):
    world = TextWorld(
        prompts=[
            Prompt(id=f"p{k}", content=f"{k}", tokens=np.array([k + 1, k + 2], np.int32), columns={"answer": k})
            for k in range(prompts)
        ],
        scorer=scorer or TurnScorer(),
        decode=decode,
        sampling=SamplingParams(max_tokens=20),
        prompts_per_step=prompts,
        samples=2,
        seed=0,
        shuffle=False,
        environment=environment,
        limits=ConversationLimits(context=context),
    )
    return world.rollout(session)


def assert_same(one: Episodes, other: Episodes) -> None:
    for name in ("offsets", "chosen", "logp", "reward", "score", "group", "truncated", "terminated"):
        assert np.array_equal(vars_of(one)[name], vars_of(other)[name]), name
    assert np.array_equal(one.transcript.tokens, other.transcript.tokens)
    assert np.array_equal(one.transcript.at, other.transcript.at)


def vars_of(episodes: Episodes) -> dict[str, np.ndarray]:
    return {name: object.__getattribute__(episodes, name) for name in Episodes.__dataclass_fields__}


@examples(3)
@given(seed=st.integers(0, 1000), slots=st.sampled_from([1, 3, 8]))
def test_the_order_in_which_replies_come_changes_no_bit(model: Decoder, seed: int, slots: int) -> None:
    straight = rollout(engine_of(model), environment=Echo(seed=0))
    assert_same(straight, rollout(engine_of(model, slots=slots), environment=Echo(seed=seed)))


def test_environment_tokens_are_no_decisions_and_rewards_stand_at_turns(model: Decoder) -> None:
    episodes = rollout(engine_of(model), environment=Echo(), scorer=TurnScorer(by_turn=True))
    seen = episodes.transcript
    assert seen.tokens[seen.at].tolist() == episodes.chosen.tolist()
    for place in range(len(episodes)):
        own = slice(int(episodes.offsets[place]), int(episodes.offsets[place + 1]))
        at, reward = seen.at[own], episodes.reward[own]
        starts = np.flatnonzero(np.diff(at, prepend=-9) > 1)
        last = np.append(starts[1:], len(at)) - 1
        for turn in starts[1:]:
            assert seen.tokens[at[turn] - 2 : at[turn]].tolist() == [int(seen.tokens[at[turn - 1]])] * 2, "echoed"
            assert at[turn] - at[turn - 1] == 3, "two tokens between turns that nobody chose"
        assert (np.delete(reward, last) == 0).all()
        if place // 2 % 2 == 0 and not episodes.truncated[place]:
            echoed = seen.tokens[at[last]]
            assert reward[last].tolist() == [number + 1 + int(token) for number, token in enumerate(echoed)]
    assert any(np.diff(seen.at).tolist().count(3) for _ in [0])


def test_a_turn_costs_its_new_tokens_and_nothing_is_kept_afterwards(model: Decoder) -> None:
    engine = engine_of(model, slots=8)
    episodes = rollout(engine, environment=Echo())
    turns = 1 + np.array([np.count_nonzero(np.diff(episodes.transcript.at[own]) > 1) for own in rows_of(episodes)])
    heard = 3 * int((turns - 1).sum())  # the echo, and the answer's last token, which was not read before
    assert engine.stats.prefill_tokens == heard + 2 * (len(episodes) // 2), "a prompt is read once for two samples"
    assert turns.max() > 1
    assert len(engine._scheduler.texts.kept) == 0


def test_turns_are_told_apart_where_the_environment_writes_nothing(model: Decoder) -> None:
    """Its rewards are paid at the last token of each turn, and a credit over turns finds them there."""

    class Silent(Echo):
        def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
            future: Future[EnvironmentReply] = Future()
            turns = conversation.transcript.turns
            future.set_result(EnvironmentReply(reward=float(turns), done=turns == 3))
            return future

    episodes = rollout(engine_of(model), environment=Silent(), scorer=TurnScorer(by_turn=True))
    assert episodes.turn is not None
    for own in rows_of(episodes):
        assert (np.diff(episodes.transcript.at[own]) == 1).all(), "no token stands between the turns"
        last = np.flatnonzero(np.diff(episodes.turn[own], append=-1))
        assert (np.delete(episodes.reward[own], last) == 0).all()
    assert turn_table(episodes).per_episode[-1] == np.flatnonzero(episodes.reward).size
    assert rollout(engine_of(model)).turn is None, "answers have one turn"


def rows_of(episodes: Episodes) -> list[slice]:
    return [slice(*ends) for ends in np.stack([episodes.offsets[:-1], episodes.offsets[1:]], axis=1).tolist()]


def test_a_conversation_of_one_turn_is_an_answer(model: Decoder) -> None:
    """An environment that ends at once changes nothing but the rewards that it pays."""

    class Silent(Echo):
        def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
            future: Future[EnvironmentReply] = Future()
            future.set_result(EnvironmentReply(done=True))
            return future

    assert_same(rollout(engine_of(model)), rollout(engine_of(model), environment=Silent()))


def test_a_conversation_without_room_is_truncated(model: Decoder) -> None:
    episodes = rollout(engine_of(model), environment=Echo(turns=99), context=60)
    assert np.diff(episodes.transcript.offsets).max() <= 60
    assert episodes.truncated.all()


def test_an_error_of_the_environment_frees_the_session(model: Decoder) -> None:
    class Broken(Echo):
        def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
            raise ValueError("the environment ended")

    engine = engine_of(model)
    other = Request(id="other", prompt=np.array([5], np.int32), samples=1, sampling=SamplingParams(max_tokens=4))
    engine.submit([other])
    with pytest.raises(ValueError, match="the environment ended"):
        rollout(engine, environment=Broken())
    assert [one.request_id for one in iter(engine.next_completion, None)] == ["other"], "another client's is kept"
    assert_same(rollout(engine_of(model)), rollout(engine))


@examples(8)
@given(st.data())
def test_a_session_gives_the_same_answers_in_any_order_of_work(model: Decoder, data: st.DataObject) -> None:
    """Requests in any order, submitted while others run, with pauses between: each answer once, and the same bits."""
    sampling = SamplingParams(max_tokens=10)
    asked = [
        Request(
            id=f"p{k}", prompt=np.arange(1, 2 + k, dtype=np.int32), samples=1 + k % 2, sampling=sampling, turn=k % 3
        )
        for k in range(5)
    ]
    alone = {name_of(one): one for each in asked for one in generate(engine_of(model, slots=1), [each])}
    session, waiting = engine_of(model, slots=data.draw(st.integers(1, 4))), list(data.draw(st.permutations(asked)))
    found: list[Completion] = []
    while waiting or session.has_requests():
        action = data.draw(st.sampled_from(["submit", "take", "pause"]))
        if action == "submit" and waiting:
            session.submit([waiting.pop()])
        elif action == "pause":
            session.pause()
            session.resume()
        elif (one := session.next_completion()) is not None:
            found.append(one)
    assert len(found) == len(alone)
    for one in found:
        assert np.array_equal(one.tokens, alone[name_of(one)].tokens)
        assert np.array_equal(one.logp, alone[name_of(one)].logp)


def name_of(one: Completion) -> tuple[str, int, int]:
    return one.request_id, one.sample_index, one.turn


def test_each_turn_of_a_sample_has_draws_of_its_own(model: Decoder) -> None:
    sampling = SamplingParams(max_tokens=12)
    first, second = (
        Request(id="p", prompt=np.array([4, 5], np.int32), samples=1, sampling=sampling, turn=turn) for turn in (0, 1)
    )
    (one,), (other,) = generate(engine_of(model), [first]), generate(engine_of(model), [second])
    assert one.tokens.tolist() != other.tokens.tolist()


def test_several_clients_share_a_session(model: Decoder) -> None:
    """Each iterator gives its own requests' completions; closing one leaves the others."""
    sampling = SamplingParams(max_tokens=10)
    requests = [Request(id=f"p{k}", prompt=np.array([k + 1], np.int32), samples=2, sampling=sampling) for k in range(3)]
    session = engine_of(model, slots=2)
    streams = [generate(session, [request]) for request in requests]
    assert {one.request_id for one in streams[2]} == {"p2"}
    streams[1].close()
    assert [one.request_id for one in streams[0]] == ["p0", "p0"]
    assert not session.has_requests()


# --------------------------------------------------------------------------------------------------------------- effort


@dataclass
class TwoSecondsEach(ScriptedSession):
    """Every answer takes two seconds."""

    clock: ManualClock = field(default_factory=ManualClock)

    def next_completion(self, request_ids=None, *, wake=None):
        self.clock.advance(2.0)
        return super().next_completion(request_ids, wake=wake)


@dataclass
class ThreeSecondsEach:
    """Every reply takes three seconds; the second one ends."""

    clock: ManualClock

    def begin(self, conversation: Conversation) -> None: ...

    def end(self, conversation: Conversation) -> None:
        conversation.tool_calls = conversation.turns

    def reply(self, conversation: Conversation) -> Future[EnvironmentReply]:
        self.clock.advance(3.0)
        future: Future[EnvironmentReply] = Future()
        future.set_result(EnvironmentReply(tokens=np.array([1], np.int32), done=conversation.turns == 2))
        return future


def efforts(samples: int, *, replies: bool) -> list[AnswerEffort]:
    clock = ManualClock(100.0)
    environment: TextEnvironment | None = ThreeSecondsEach(clock) if replies else None
    table = np.tile([0.0, 0.0, 0.0, 1.0], (5, 1))  # every answer is its end
    request = Request(id="a", prompt=np.array([1], np.int32), samples=samples, sampling=SamplingParams(max_tokens=4))
    loop = ConversationLoop(TwoSecondsEach(table, clock=clock), [request], decode, environment=environment, clock=clock)
    assert list(loop.finished_groups()) == [0]
    return [one.effort for one in loop.groups[0]]


def test_seconds_of_an_answer_by_hand() -> None:
    """Two answers of two seconds, one after another: the later one's request waited for the first."""
    assert sorted(efforts(2, replies=False)) == [AnswerEffort(2.0, 0.0, None), AnswerEffort(4.0, 0.0, None)]
    assert efforts(1, replies=True) == [AnswerEffort(2 + 3 + 2 + 3, 3 + 3, 2)]
