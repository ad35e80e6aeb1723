"""Searches over a scripted session: what is drawn, what is kept, and that the order of finishing changes nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scripted_session import END, ScriptedSession, decode

from hone.core.errors import ConfigError
from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.text.search.plans import (
    BeamPlan,
    BestOfPlan,
    MajorityPlan,
    SearchPlan,
    TreesPlan,
    WeightedVotePlan,
    needs_scorer,
)
from hone.text.search.searching import Candidate, CandidateScores, Searching, SearchTools

TABLE = np.array([[0.3, 0.2, 0.3, 0.2], [0.4, 0.2, 0.3, 0.1], [0.4, 0.3, 0.0, 0.3], [0, 0, 0, 1], [0.4, 0.4, 0.1, 0.1]])
PROMPT = np.array([9], np.int32)
PLANS = st.one_of(
    st.builds(BestOfPlan, n=st.integers(1, 5)),
    st.builds(MajorityPlan, n=st.integers(1, 5)),
    st.builds(WeightedVotePlan, n=st.integers(1, 5)),
    st.builds(BeamPlan, width=st.integers(1, 3), branch=st.integers(1, 3), steps=st.integers(1, 4)),
    st.builds(TreesPlan, trees=st.integers(1, 3), branch=st.integers(1, 3), steps=st.integers(1, 4)),
)


@dataclass
class LetterScorer:
    """Scores a text by its share of the letter a, and remembers what it was asked."""

    asked: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        found: list[CandidateScores] = []
        for request, candidates in asked:
            texts = tuple(decode(one.tokens) for one in candidates)
            self.asked.append((request.id, *texts))
            values = np.array([text.count("a") / max(len(text), 1) for text in texts])
            read = np.array([len(request.prompt) + len(one.tokens) for one in candidates], np.int64)
            found.append(CandidateScores(values=values, tokens_read=read))
        return found


def requests(count: int = 3, *, samples: int = 1, max_tokens: int = 12, **sampling: object) -> list[Request]:
    params = replace(SamplingParams(max_tokens=max_tokens), **sampling)  # pyright: ignore[reportArgumentType]
    return [Request(id=f"q{n}", prompt=PROMPT, samples=samples, sampling=params) for n in range(count)]


def searched(plan: BeamPlan | TreesPlan | BestOfPlan | MajorityPlan | WeightedVotePlan, asked: list[Request],
             **session: int) -> tuple[dict[tuple[str, int], Completion], Searching, LetterScorer]:  # fmt: skip
    scorer = LetterScorer()
    search = Searching(ScriptedSession(TABLE, **session), plan, SearchTools(decode=decode, scorer=scorer, step=";"))
    found = {(one.request_id, one.sample_index): one for one in generate(search, asked)}
    return found, search, scorer


@given(PLANS, st.integers(0, 5))
def test_the_order_of_finishing_changes_nothing(plan, order: int):
    first, _, scored = searched(plan, requests(samples=2))
    second, _, again = searched(plan, requests(samples=2), order=order + 1)
    assert first.keys() == second.keys() == {(f"q{n}", sample) for n in range(3) for sample in range(2)}
    assert all(np.array_equal(first[key].tokens, second[key].tokens) for key in first)
    assert scored.asked == again.asked


@given(PLANS)
def test_a_problem_is_searched_alike_whatever_else_is(plan):
    alone, _, _ = searched(plan, requests(1, samples=2))
    among, _, _ = searched(plan, requests(4, samples=3))
    assert all(np.array_equal(alone[key].tokens, among[key].tokens) for key in alone)


@pytest.mark.parametrize("plan", ["best_of:1", "majority:1", "weighted_vote:1", "beam:1x1", "trees:1x1"])
def test_one_answer_under_way_is_sampling_bit_for_bit(plan: str):
    found, _, _ = searched(TypeAdapter(SearchPlan).validate_python(plan), requests(samples=3))
    plain = {(one.request_id, one.sample_index): one for one in generate(ScriptedSession(TABLE), requests(samples=3))}
    for key, one in plain.items():
        assert np.array_equal(found[key].tokens, one.tokens)
        assert np.array_equal(found[key].logp, one.logp)
        assert found[key].finish_reason == one.finish_reason


def test_trees_with_one_branch_draw_from_the_policy_itself():
    """Steps that are drawn one after another, with nothing to choose from, have the distribution of whole answers."""
    plan = TreesPlan(trees=2, branch=1)
    constant = SearchTools(decode=decode, scorer=ConstantScorer(), step=";")
    asked = requests(1000, samples=2, max_tokens=3)
    counts = Counter(decode(one.tokens) for one in generate(Searching(ScriptedSession(TABLE), plan, constant), asked))
    plain = Counter(decode(one.tokens) for one in generate(ScriptedSession(TABLE, seed=1), asked))
    shares = np.array([[counts[text], plain[text]] for text in plain | counts]) / 2000
    assert np.abs(shares[:, 0] - shares[:, 1]).max() < 0.03


@given(st.integers(1, 6), st.sampled_from([BestOfPlan, WeightedVotePlan, MajorityPlan]))
def test_pool_plans_select_among_the_plain_samples(n: int, kind):
    found, search, _ = searched(kind(n=n), requests(samples=2))
    pool = {
        (one.request_id, one.sample_index): one for one in generate(ScriptedSession(TABLE), requests(samples=2 * n))
    }
    for (id_, sample), one in found.items():
        texts = [decode(pool[id_, place].tokens) for place in range(sample * n, sample * n + n)]
        assert decode(one.tokens) in texts
        drawn = sum(len(pool[id_, place].tokens) for place in range(sample * n, sample * n + n))
        assert search.costs[id_, sample].drawn_tokens == drawn
        if kind is BestOfPlan:
            scores = [text.count("a") / max(len(text), 1) for text in texts]
            assert decode(one.tokens) == texts[int(np.argmax(scores))]


def test_a_selected_answer_has_no_log_probability():
    for plan in (BestOfPlan(n=2), BeamPlan(width=2, branch=2)):
        found, _, _ = searched(plan, requests())
        assert all(np.isnan(one.logp).all() and np.isnan(one.sampled_logp).all() for one in found.values())


@dataclass
class ConstantScorer:
    """Gives every candidate the same score."""

    value: float = 0.5

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        return [
            CandidateScores(values=np.full(len(some), self.value), tokens_read=np.zeros(len(some), np.int64))
            for _, some in asked
        ]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))
def test_beams_keep_the_best_and_continue_nothing_else(width: int, branch: int, steps: int):
    """An independent replay of every round: what is continued is the best `width` of what was scored before."""
    if width * branch == 1:
        return
    plan = BeamPlan(width=width, branch=branch, steps=steps)
    found, search, scorer = searched(plan, requests(1))
    ended: list[str] = []
    kept = [""]
    for number, (_, *texts) in enumerate(scorer.asked):
        open_ = [text for text in kept if text not in ended]
        samples = 1 if number == steps else branch * (1 if number else width)
        assert len(texts) == len(open_) * samples
        for place, text in enumerate(texts):
            assert text.startswith(open_[place // samples])
            if not text.endswith(";") or len(text) >= 12 or number == steps:
                ended.append(text)
        pool = [text for text in kept if text in ended and text != ""] + texts
        kept = sorted(pool, key=lambda text: -(text.count("a") / max(len(text), 1)))[:width]
    (answer,) = found.values()
    assert decode(answer.tokens) == kept[0]
    assert search.costs["q0", 0].candidates == sum(len(texts) - 1 for texts in scorer.asked)


def test_trees_never_mix():
    _, _, scorer = searched(TreesPlan(trees=3, branch=2), requests(1, max_tokens=30))
    first = scorer.asked[0][1:]
    roots = [max(first[2 * n : 2 * n + 2], key=lambda text: text.count("a") / max(len(text), 1)) for n in range(3)]
    second = scorer.asked[1][1:]
    assert all(text.startswith(tuple(roots)) for text in second)
    assert {root for root in roots if root.endswith(";")} == {
        root for root in roots if any(text.startswith(root) for text in second)
    }


def test_a_perfect_oracle_of_steps_solves_what_it_can():
    """Wanted: `a;a;a;` and the end. A verifier of beginnings finds it far more often than as many whole answers."""
    wanted = "a;a;a;"

    class Oracle:
        def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
            texts = [[(decode(one.tokens), one.finish) for one in some] for _, some in asked]
            return [
                CandidateScores(
                    values=np.array([float(t == wanted if f else wanted.startswith(t)) for t, f in some]),
                    tokens_read=np.zeros(len(some), np.int64),
                )
                for some in texts
            ]

    tools, asked = SearchTools(decode=decode, scorer=Oracle(), step=";"), requests(150, max_tokens=20)

    def solved(plan: BeamPlan | BestOfPlan) -> tuple[float, float]:
        search = Searching(ScriptedSession(TABLE), plan, tools)
        right = [decode(one.tokens) == wanted for one in generate(search, asked)]
        return float(np.mean(right)), float(np.mean([cost.drawn_tokens for cost in search.costs.values()]))

    beam, beam_tokens = solved(BeamPlan(width=2, branch=8))
    whole, whole_tokens = solved(BestOfPlan(n=32))
    assert whole_tokens > beam_tokens
    assert beam > whole + 0.3
    solved_by_any = {
        one.request_id
        for one in generate(ScriptedSession(TABLE), requests(150, samples=32, max_tokens=20))
        if decode(one.tokens) == wanted
    }
    assert whole == pytest.approx(len(solved_by_any) / 150)  # all that pass@32 solves


def test_rooms_and_stops():
    found, _, _ = searched(BeamPlan(width=2, branch=2), requests(max_tokens=3))
    assert all(len(one.tokens) <= 3 for one in found.values())
    assert {one.finish_reason for one in found.values()} <= {"eos", "length"}
    stopped, _, _ = searched(BeamPlan(width=2, branch=2), requests(8, max_tokens=20, stop=("b",)))
    reasons = {one.finish_reason for one in stopped.values()}
    assert "stop" in reasons
    assert all(decode(one.tokens).endswith("b") for one in stopped.values() if one.finish_reason == "stop")
    assert all(END in one.tokens for one in stopped.values() if one.finish_reason == "eos")


def test_unscored_candidates_are_never_preferred():
    class Half(LetterScorer):
        def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
            return [
                replace(one, values=np.where(np.arange(len(one.values)) % 2, one.values, np.nan))
                for one in super().score(asked)
            ]

    scorer = Half()
    search = Searching(ScriptedSession(TABLE), BestOfPlan(n=4), SearchTools(decode=decode, scorer=scorer, step=";"))
    for one in generate(search, requests()):
        texts = next(texts for id_, *texts in scorer.asked if id_ == one.request_id)
        assert decode(one.tokens) in texts[1::2]


def test_waves_and_cancels():
    session = ScriptedSession(TABLE)
    search = Searching(
        session, BeamPlan(width=2, branch=2), SearchTools(decode=decode, scorer=LetterScorer(), step=";")
    )
    search.submit(requests(2))
    search.submit([replace(one, id=f"later {one.id}") for one in requests(2)], round=1)
    later = search.next_completion(["later q1"])
    assert later is not None
    assert later.request_id == "later q1"
    search.cancel(["q0"])
    left = {one.request_id for one in iter(search.next_completion, None)}
    assert left == {"q1", "later q0"}
    search.submit(requests(1))
    search.cancel()
    assert search.next_completion() is None
    assert not session.queue
    search.submit(requests(1))
    session.queue.clear()
    with pytest.raises(RuntimeError, match="the session lost 4 draws of a search"):
        search.next_completion()


def test_votes_need_no_scorer_and_others_do():
    with pytest.raises(ConfigError, match="beam:2x2 selects by scores: name a scorer, or take majority:4"):
        Searching(ScriptedSession(TABLE), BeamPlan(width=2, branch=2), SearchTools(decode=decode))
    assert not needs_scorer(MajorityPlan(n=4))
    tools = SearchTools(decode=decode, answer_of=lambda text: text[-1:])
    for one in generate(Searching(ScriptedSession(TABLE), MajorityPlan(n=9), tools), requests()):
        ends = Counter(
            decode(each.tokens)[-1:]
            for each in generate(ScriptedSession(TABLE), requests(samples=9))
            if each.request_id == one.request_id
        )
        ends.pop("", None)
        assert ends[decode(one.tokens)[-1:]] == max(ends.values())


def test_each_turn_of_a_conversation_has_draws_of_its_own():
    plan, texts = BeamPlan(width=2, branch=2), list[str]()
    for turn in (0, 1):
        found, _, _ = searched(plan, [replace(one, turn=turn) for one in requests(1, max_tokens=20)])
        texts.append(decode(found["q0", 0].tokens))
        assert found["q0", 0].turn == turn
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bestof:4", "'bestof:4' is no search plan; did you mean best_of.*Plans are best_of:N"),
        ("beam:4", "'beam:4' is not of the form beam:WIDTHxBRANCH"),
        ("best_of:x", "'best_of:x' is not of the form best_of:N"),
        ("best_of:0", "greater than or equal to 1"),
        ("trees:0x4", "greater than or equal to 1"),
        ({"kind": "beam", "width": 2}, "branch"),
        ({"kind": "beam", "width": 2, "branch": 2, "brnch": 2}, "brnch"),
    ],
)
def test_plans_that_are_none(text: object, message: str):
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(SearchPlan).validate_python(text)


@given(PLANS)
def test_plans_are_read_from_their_short_form(plan):
    again = TypeAdapter(SearchPlan).validate_python(str(plan))
    assert str(again) == str(plan)
    assert (again.kind, again.answers) == (plan.kind, plan.answers)
