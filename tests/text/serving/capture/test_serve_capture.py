"""Agents that call the policy by its address: what was drawn becomes the episodes, token by token."""

import asyncio
import itertools
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import openai
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from hone.core.clock import Clock, SystemClock
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import LostResourceError
from hone.core.generation import Completion, SamplingParams, ScoreRequest
from hone.core.judging import ScorerInput
from hone.engine.engine import EmbeddedEngine
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.language.tokenizers import DEFAULT_CHAT_TEMPLATE, ROLE_TOKENS, byte_tokenizer, character_tokenizer
from hone.text.serving.capture.capture_app import CaptureRoutes, CaptureServer
from hone.text.serving.capture.capture_world import CaptureDesk, CaptureLimits, CaptureWorld
from hone.text.serving.capture.dialogue_tree import DialogueTree, answer_message, for_template
from hone.text.serving.completions.served_model import ServedModel
from hone.text.tools.formats import TOOL_FORMATS

TOKENIZER = character_tokenizer(["abc123+= ?"], chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
CONFIG = ModelConfig(
    family="qwen3", vocab_size=TOKENIZER.size, hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1,
    head_dim=8, max_positions=128,
)  # fmt: skip
ANY_TEXT = byte_tokenizer(chat_template=DEFAULT_CHAT_TEMPLATE, chat_tokens=ROLE_TOKENS)
CHAT = "/sessions/s/v1/chat/completions"


@pytest.fixture(scope="module")
def model() -> Decoder:
    return new_model(CONFIG, seed=1)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def engine_of(model: Decoder) -> EmbeddedEngine:
    limits = SchedulerLimits(slots=4, pages=64, page_tokens=16, sequence_tokens=128)
    chosen = RunnerChoice(runner=TorchRunner(model, vocab_used=CONFIG.vocab_size, page_tokens=16), own_weights=False)
    rules = TokenizerRules(eos=TOKENIZER.eos_ids, vocab=CONFIG.vocab_size, decode=TOKENIZER.decode)
    return EmbeddedEngine(chosen, rules, limits=limits, seed=3)


@dataclass
class ReportedScores:
    """Scores as sessions reported them; implements `Scorer` and `ScoreBatch`."""

    score: np.ndarray = field(default_factory=lambda: np.zeros(0))
    status: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    functions: dict[str, np.ndarray] = field(default_factory=dict)
    turn_scores: dict[int, list[float]] = field(default_factory=dict)

    def submit(self, answers: list[ScorerInput]) -> ScorerInput:
        return answers[0]

    def gather(self, tickets: list[ScorerInput]) -> "ReportedScores":
        outcomes = [one.dialogue for one in tickets]
        score = np.array([sum(one.rewards) if one.rewards else np.nan for one in outcomes])
        status = [one.status if one.status or one.rewards else ScoreStatus.UNSCORABLE for one in outcomes]
        assert all(len(one.dialogue.rewards) in (0, one.turns) for one in tickets)
        return ReportedScores(score, np.array(status, np.uint8), {"world": score})

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: object) -> None:
        pass


@dataclass
class Address:
    """A world that answers at an address, and the means to call it."""

    world: CaptureWorld
    url: str

    def client(self, session: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/sessions/{session}/v1", api_key="none", max_retries=0)

    def ask(self, session: str, messages: list[dict[str, str]]) -> str:
        answer = self.client(session).chat.completions.create(model="policy", messages=messages)
        return answer.choices[0].message.content or ""

    def report(self, session: str, **body: object) -> int:
        return self.post(f"/sessions/{session}/reward", body)

    def post(self, path: str, body: object) -> int:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status


@contextmanager
def served(
    sessions: int, *, deadline_s: float = 60.0, patience_s: float = 60.0, clock: Clock | None = None
) -> Iterator[Address]:
    server, desk, clock = CaptureServer("127.0.0.1", 0), CaptureDesk(), clock or SystemClock()
    url = server.bind()
    served = ServedModel(
        name="policy", tokenizer=TOKENIZER, context=128, fingerprint_of=lambda version: f"run@{version}"
    )
    server.start(CaptureRoutes(desk, clock, served).app())
    limits = CaptureLimits(sessions=sessions, context=128, deadline_s=deadline_s, patience_s=patience_s)
    sampling = SamplingParams(max_tokens=6)
    world = CaptureWorld(
        desk=desk,
        tokenizer=TOKENIZER,
        sampling=sampling,
        limits=limits,
        clock=clock,
        address=url,
        scorer=ReportedScores(),
        tool_format=TOOL_FORMATS["bracket"],
    )
    try:
        yield Address(world, url)
    finally:
        desk.close("the run ended")
        server.close()


def collect(at: Address, model: Decoder, *agents: Callable[[], object]) -> Episodes:
    """One step, with each agent in a thread of its own."""
    failed: list[BaseException] = []

    def run(agent: Callable[[], object]) -> None:
        try:
            agent()
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    engine = engine_of(model)
    engine.publish(7)
    episodes = at.world.rollout(engine)
    for thread in threads:
        thread.join(300)
    assert not failed, failed
    assert not engine.has_requests()
    return episodes


def two_turns(at: Address, session: str, question: str, reward: float | None) -> list[str]:
    """An agent of two turns that reports a reward."""
    messages = [user(question)]
    said = [at.ask(session, messages)]
    messages += [{"role": "assistant", "content": said[0]}, user("?")]
    said.append(at.ask(session, messages))
    at.report(session, reward=reward)
    return said


def test_a_dialogue_of_two_turns_is_one_row_of_the_drawn_tokens(model: Decoder) -> None:
    said: list[str] = []
    with served(1) as at:
        episodes = collect(at, model, lambda: said.extend(two_turns(at, "s", "1+1=", 0.5)))
    seen, tokens = episodes.transcript, episodes.transcript.tokens
    assert len(episodes) == 1
    assert episodes.score.tolist() == [0.5]
    assert (episodes.version == 7).all()
    np.testing.assert_array_equal(tokens[seen.at], episodes.chosen)
    prompt = TOKENIZER.apply_chat([user("1+1=")])
    np.testing.assert_array_equal(tokens[: len(prompt)], prompt)
    turns = np.split(episodes.chosen, np.flatnonzero(np.diff(seen.at) > 1) + 1)
    assert [TOKENIZER.decode(turn) for turn in turns] == said
    # A pass over the whole row gives each token the log-probability with which it was drawn.
    first, sampling = int(seen.at[0]), SamplingParams(max_tokens=1)
    text = ScoreRequest(prompt=tokens[:first], tokens=tokens[first:], sampling=sampling)
    (scored,) = engine_of(model).score([text])
    np.testing.assert_allclose(scored.logp[seen.at - first], episodes.logp, atol=1e-5)


def test_equal_first_requests_are_a_group_and_scores_are_their_own(model: Decoder) -> None:
    sessions = [("a", "1+1=", 1.0), ("b", "2+2=", 0.0), ("c", "1+1=", 0.0), ("d", "2+2=", None)]
    with served(4) as at:
        episodes = collect(at, model, *(lambda one=one: two_turns(at, *one) for one in sessions))
    assert episodes.group.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(episodes.score, [1.0, 0.0, 0.0, np.nan])
    assert episodes.status.tolist() == [ScoreStatus.SCORED] * 3 + [ScoreStatus.UNSCORABLE]


def test_the_same_sessions_are_equal_to_the_bit_whatever_comes_first(model: Decoder) -> None:
    steps: list[Episodes] = []
    for order in ("abc", "cab"):
        with served(3) as at:
            steps.append(collect(at, model, *(lambda name=name: two_turns(at, name, "1+1=", 1.0) for name in order)))
    np.testing.assert_array_equal(steps[0].chosen, steps[1].chosen)
    np.testing.assert_array_equal(steps[0].logp, steps[1].logp)


def test_a_history_that_is_no_continuation_is_a_further_row(model: Decoder) -> None:
    def agent() -> None:
        first = at.ask("s", [user("1+1=")])
        told = [user("1+1="), {"role": "assistant", "content": first}]
        at.ask("s", [*told, user("a")])
        at.ask("s", [*told, user("b")])
        at.ask("s", [user("1+1="), {"role": "assistant", "content": f"{first}1"}, user("c")])
        at.report("s", reward=1.0)

    with served(1) as at:
        episodes = collect(at, model, agent)
        metrics = at.world.metrics()
    assert len(episodes) == 3
    assert set(episodes.group.tolist()) == {0}
    assert episodes.part is not None
    assert episodes.part.tolist() == [0, 1, 2]
    assert episodes.terminated[:2].tolist() == [False, False]
    assert episodes.score.tolist() == [1.0] * 3
    assert (metrics["capture/requests"], metrics["capture/rows"]) == (4, 3)


def test_a_silent_session_times_out_and_keeps_its_rows(model: Decoder) -> None:
    clock, asked_once = ManualClock(), threading.Event()

    def silent() -> None:
        at.ask("s", [user("1+1=")])
        asked_once.set()

    def other() -> None:
        assert asked_once.wait(300)
        two_turns(at, "t", "1+1=", 1.0)
        clock.advance(100.0)

    with served(2, deadline_s=50.0, clock=clock) as at:
        episodes = collect(at, model, silent, other)
        notes = at.world.notes()
    assert episodes.status.tolist() == [ScoreStatus.TIMEOUT, ScoreStatus.SCORED]
    assert np.isnan(episodes.score[0])
    assert "1 of 2 sessions neither asked nor reported in time" in notes[0]


def test_agents_that_stay_away_stop_the_run_with_the_address(model: Decoder) -> None:
    words = r"0 of 2 sessions began in 0\.2 s; start agents with base_url = http"
    with served(2, patience_s=0.2) as at, pytest.raises(LostResourceError, match=words):
        at.world.rollout(engine_of(model))


@pytest.fixture(scope="module")
def refusing() -> Iterator[Address]:
    with served(1) as at:
        yield at


def asked(**changes: object) -> dict[str, object]:
    return {"model": "policy", "messages": [user("1")], **changes}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions", asked(), "X-Session-ID"),
        (CHAT, {"messages": [user("1")]}, "model: Field required"),
        (CHAT, asked(messages=[]), "messages: List should have at least 1"),
        (CHAT, asked(messages=[{"role": "assistant", "content": "1"}]), "the last message is the assistant's"),
        (CHAT, asked(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), "content has parts: image_url"),
        (CHAT, asked(n=0), "n: Input should be greater"),
        (CHAT, asked(stop=[1]), "stop"),
        (CHAT, asked(max_tokens=-1), "max_tokens: Input"),
        (CHAT, asked(logit_bias={"1": 2}), "logit_bias is not served"),
        (CHAT, [1], "must be an object"),
        ("/sessions/s/reward", {}, "finite number"),
        ("/sessions/s/reward", {"reward": "much"}, "finite number"),
        ("/sessions/s/reward", {"reward": True}, "finite number"),
        ("/sessions/s/reward", {"reward": 1, "group": 2}, "group must be a text"),
        ("/sessions/s/reward", {"reward": 1, "score": 2}, "unknown: score"),
    ],
)
def test_refused_requests_say_why(refusing: Address, path: str, body: object, words: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        refusing.post(path, body)
    told = json.loads(caught.value.read())["error"]
    assert caught.value.code == 400
    assert words in told["message"]


def test_a_prompt_beyond_the_context_and_a_report_of_nobody_are_refused(model: Decoder) -> None:
    def agent() -> None:
        with pytest.raises(openai.BadRequestError, match=r"the messages have 13\d tokens"):
            at.ask("s", [user("1" * 130)])
        with pytest.raises(urllib.error.HTTPError, match="404"):
            at.report("nobody", reward=1.0)
        two_turns(at, "s", "1+1=", 1.0)

    with served(1) as at:
        assert len(collect(at, model, agent)) == 1


def test_streams_choices_logprobs_and_fewer_tokens(model: Decoder) -> None:
    def agent() -> None:
        completions = at.client("s").chat.completions
        stream = completions.create(model="policy", messages=[user("1+1=")], stream=True)
        texts.append("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
        several = completions.create(model="policy", messages=[user("1+1=")], n=3, logprobs=True, max_tokens=2)
        texts.extend(choice.message.content or "" for choice in several.choices)
        lengths.extend(len(choice.logprobs.content or ()) for choice in several.choices if choice.logprobs)
        at.report("s", reward=1.0)

    texts: list[str] = []
    lengths: list[int] = []
    with served(1) as at:
        episodes = collect(at, model, agent)
    assert len(episodes) == 4
    assert len(lengths) == 3
    assert max(lengths) <= 2
    ends = episodes.offsets.tolist()
    drawn = [TOKENIZER.decode(episodes.chosen[a:b]) for a, b in itertools.pairwise(ends)]
    assert sorted(drawn) == sorted(texts)


def test_an_agent_that_hangs_up_leaves_no_answer_behind(model: Decoder) -> None:
    async def impatient() -> None:
        client = openai.AsyncOpenAI(base_url=f"{at.url}/sessions/s/v1", api_key="none", max_retries=0)
        asked = asyncio.ensure_future(client.chat.completions.create(model="policy", messages=[user("1")]))
        await asyncio.sleep(0.3)
        asked.cancel()
        await asyncio.sleep(0.3)

    with served(1) as at:
        asyncio.run(impatient())  # nobody draws yet: the request waits at the desk
        episodes = collect(at, model, lambda: two_turns(at, "s", "1+1=", 1.0))
        metrics = at.world.metrics()
    assert (metrics["capture/requests"], metrics["capture/abandoned"]) == (2, 0)
    assert len(episodes) == 1


def test_tools_that_an_agent_offers_are_called_and_their_results_go_on_token_by_token() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": schema}}]
    said = "a [1+2]"
    parsed = answer_message(said, tools, TOOL_FORMATS["bracket"], "k")
    assert answer_message(said, [], TOOL_FORMATS["bracket"], "k") == {"role": "assistant", "content": said}
    assert parsed["role"] == "assistant"
    assert parsed["tool_calls"]
    for call in parsed["tool_calls"]:
        assert call["id"] == "call_k_0"
        assert for_template([parsed])[0]["tool_calls"][0]["function"]["arguments"] == {"text": "1+2"}


TEXTS = st.sampled_from(["1", "2+", " a ", "", "<eos>", "<|user|>", "bc?"])


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 5), TEXTS, TEXTS), min_size=1, max_size=8))
def test_each_drawn_token_is_a_decision_of_one_row_behind_what_was_drawn_before(
    requests: list[tuple[int, str, str]],
) -> None:
    """Requests continue any earlier answer, or begin anew; answers hold spaces, names of special tokens, nothing."""
    tree = DialogueTree()
    for number, (place, asked, drawn) in enumerate(requests):
        before = tree.answers[place].history if place < len(tree.answers) else ()
        planned = tree.plan([*before, user(asked)], ANY_TEXT)
        tokens = np.append(ANY_TEXT.encode(drawn), ANY_TEXT.eos_id).astype(np.int32)
        tree.add(planned, completion_of(f"r{number}", tokens), {"role": "assistant", "content": drawn})
    rows = tree.rows()
    drawn_of = {one.completion.request_id: one for one in tree.answers}
    found = [answer.request_id for row in rows for answer in row.answers]
    assert sorted(found) == sorted(drawn_of)
    for row in rows:
        length = len(row.prompt)
        for place, answer in enumerate(row.answers):
            one = drawn_of[answer.request_id]
            np.testing.assert_array_equal(row.tokens[:length], ANY_TEXT.apply_chat(one.history[:-1]))
            length += len(answer.tokens) + (len(row.environment[place]) if place < len(row.environment) else 0)


def completion_of(name: str, tokens: np.ndarray) -> Completion:
    zeros = np.zeros(len(tokens), np.float32)
    return Completion(
        request_id=name, sample_index=0, tokens=tokens, logp=zeros, sampled_logp=zeros,
        version=np.zeros(len(tokens), np.int32), finish_reason="eos",
    )  # fmt: skip
