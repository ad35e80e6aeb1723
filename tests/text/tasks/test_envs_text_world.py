"""The text world with a scripted engine and judge: which prompts are asked, and how answers become columns."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.episodes import Episodes, ScoreStatus
from hone.core.generation import Completion, Request, SamplingParams, generate
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.text.tasks.world import Prompt, TextWorld, supervised_episodes


@dataclass
class Verdicts:
    score: np.ndarray
    status: np.ndarray

    turn_scores: dict[int, list[float]] = field(default_factory=dict)

    @property
    def functions(self) -> dict[str, np.ndarray]:
        return {"length": self.score, "half": self.score / 2}


@dataclass
class LengthJudge:
    """An answer is worth its length; one that says 9 cannot be scored. Remembers what it was asked."""

    asked: list[list[str]] = field(default_factory=list)

    def submit(self, answers: Sequence[ScorerInput]) -> list[ScorerInput]:
        self.asked.append([answer.text for answer in answers])
        assert len({answer.columns["answer"] for answer in answers}) == 1, "one call, one prompt"
        return list(answers)

    def state(self) -> State:
        return {"judged": 0}

    def restore(self, state: State) -> None:
        assert state == {"judged": 0}

    def gather(self, tickets: Sequence[list[ScorerInput]]) -> Verdicts:
        texts = [answer.text for ticket in tickets for answer in ticket]
        bad = np.array(["9" in text for text in texts])
        score = np.array([float(len(text)) for text in texts])
        return Verdicts(
            np.where(bad, np.nan, score), np.where(bad, ScoreStatus.ERROR, ScoreStatus.SCORED).astype(np.uint8)
        )


@dataclass
class Scripted:
    """Sample s of a request says `s + 1` tokens: the prompt's first token, again and again. Finishes in any order."""

    seed: int
    version: int = 4
    requests: list[Request] = field(default_factory=list)

    waiting: list[Completion] = field(default_factory=list)

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        self.requests.extend(requests)
        everything = [(request, request.first_sample + k) for request in requests for k in range(request.samples)]
        for place in np.random.default_rng(self.seed).permutation(len(everything)):
            request, sample = everything[place]
            size = sample + 1
            self.waiting.append(
                Completion(
                    request_id=request.id,
                    sample_index=sample,
                    tokens=np.full(size, request.prompt[0], dtype=np.int32),
                    logp=-np.arange(1, size + 1, dtype=np.float32),
                    sampled_logp=np.zeros(size, np.float32),
                    version=np.full(size, self.version, np.int32),
                    finish_reason="length" if sample == 2 else "eos",
                    turn=request.turn,
                )
            )

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        return self.waiting.pop(0) if self.waiting else None

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        self.waiting.clear()

    def reset_stats(self) -> None: ...


def decode(tokens: np.ndarray) -> str:
    return "".join(str(token) for token in tokens)


def world_of(count: int, *, per_step: int, samples: int = 3, seed: int = 0, shuffle: bool = True) -> TextWorld:
    """Prompt k is the tokens k, k + 100 (and once more k + 100 for odd k)."""
    prompts = [
        Prompt(
            id=f"p{k}",
            content=f"prompt {k}",
            tokens=np.array([k, k + 100, k + 100][: 2 + k % 2], dtype=np.int32),
            columns={"answer": k},
        )
        for k in range(count)
    ]
    return TextWorld(
        prompts=prompts,
        scorer=LengthJudge(),
        decode=decode,
        sampling=SamplingParams(max_tokens=5),
        prompts_per_step=per_step,
        samples=samples,
        seed=seed,
        shuffle=shuffle,
    )


def first_tokens(episodes: Episodes) -> list[int]:
    seen = episodes.transcript
    return seen.tokens[seen.offsets[:-1]].tolist()


def test_answers_become_columns() -> None:
    """Two prompts, three answers each, in the order asked; by hand."""
    episodes = world_of(2, per_step=2, shuffle=False).rollout(Scripted(seed=5))
    assert episodes.lengths.tolist() == [1, 2, 3, 1, 2, 3]
    assert episodes.group.tolist() == [0, 0, 0, 1, 1, 1]
    assert episodes.chosen.tolist() == [0] * 6 + [1] * 6
    assert episodes.reward.tolist() == [1, 0, 2, 0, 0, 3] * 2, "paid at the last token"
    assert episodes.score.tolist() == [1, 2, 3] * 2
    assert episodes.logp.tolist() == [-1, -1, -2, -1, -2, -3] * 2
    assert set(episodes.version.tolist()) == {4}
    assert episodes.truncated.tolist() == [False, False, True] * 2
    assert episodes.terminated.tolist() == [True, True, False] * 2
    seen = episodes.transcript
    told = [seen.tokens[a:b].tolist() for a, b in zip(seen.offsets, seen.offsets[1:], strict=False)]
    assert told[:3] == [[0, 100, 0], [0, 100, 0, 0], [0, 100, 0, 0, 0]]
    assert told[3] == [1, 101, 101, 1]
    assert seen.tokens[seen.at].tolist() == episodes.chosen.tolist()
    assert episodes.final is None


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_order_in_which_answers_finish_changes_nothing(one: int, other: int) -> None:
    first = world_of(5, per_step=4).rollout(Scripted(seed=one))
    second = world_of(5, per_step=4).rollout(Scripted(seed=other))
    for column in ("chosen", "logp", "reward", "group", "score", "truncated"):
        ours, theirs = (vars_of(episodes)[column] for episodes in (first, second))
        assert ours == theirs, column
    assert first.transcript.tokens.tolist() == second.transcript.tokens.tolist()


def vars_of(episodes: Episodes) -> dict[str, list[float]]:
    return {
        "chosen": episodes.chosen.tolist(),
        "logp": episodes.logp.tolist(),
        "reward": episodes.reward.tolist(),
        "group": episodes.group.tolist(),
        "score": episodes.score.tolist(),
        "truncated": episodes.truncated.tolist(),
    }


def test_a_group_is_judged_when_it_is_whole_and_in_its_order() -> None:
    world = world_of(3, per_step=3)
    world.rollout(Scripted(seed=1))
    assert isinstance(world.scorer, LengthJudge)
    assert sorted(world.scorer.asked) == [["0", "00", "000"], ["1", "11", "111"], ["2", "22", "222"]]


def test_a_score_that_is_missing_is_no_zero() -> None:
    episodes = world_of(10, per_step=10, shuffle=False, samples=1).rollout(Scripted(seed=0))
    assert episodes.status.tolist() == [0] * 9 + [ScoreStatus.ERROR]
    assert np.isnan(episodes.score[9])
    assert episodes.reward[9] == 0, "nothing is paid, and the status says why"
    assert episodes.scored.tolist() == [True] * 9 + [False]


@given(count=st.integers(1, 9), per_step=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 50))
def test_every_prompt_is_asked_once_an_epoch(count: int, per_step: int, epochs: int, seed: int) -> None:
    world, asked = world_of(count, per_step=per_step, samples=1, seed=seed), []
    while len(asked) < count * epochs:
        episodes = world.rollout(Scripted(seed=0))
        assert len(episodes) == per_step
        asked.extend(first_tokens(episodes))
    for epoch in range(epochs):
        assert sorted(asked[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_every_epoch_has_an_order_of_its_own() -> None:
    world = world_of(20, per_step=20, samples=1)
    first, second = first_tokens(world.rollout(Scripted(seed=0))), first_tokens(world.rollout(Scripted(seed=0)))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(20))


def test_requests_and_groups_are_never_the_same_twice() -> None:
    """A request's id keys its draws: the same prompt asked again must be answered anew."""
    world, engine = world_of(3, per_step=4), Scripted(seed=0)
    groups: list[int] = []
    for _ in range(5):
        groups.extend(world.rollout(engine).group.tolist())
    ids = [request.id for request in engine.requests]
    assert len(set(ids)) == len(ids) == 20
    assert sorted(set(groups)) == list(range(20))


@given(st.integers(0, 6))
def test_a_world_restored_asks_on(stop: int) -> None:
    straight, resumed = world_of(5, per_step=3), world_of(5, per_step=3)
    engines = Scripted(seed=0), Scripted(seed=0)
    for _ in range(stop):
        straight.rollout(Scripted(seed=0))
    resumed.restore(straight.state())
    for _ in range(4):
        straight.rollout(engines[0])
        resumed.rollout(engines[1])
    assert [one.id for one in engines[0].requests] == [one.id for one in engines[1].requests]


def test_without_shuffling_prompts_are_asked_as_they_stand() -> None:
    world = world_of(3, per_step=2, samples=1, shuffle=False)
    asked = [first_tokens(world.rollout(Scripted(seed=0))) for _ in range(3)]
    assert asked == [[0, 1], [2, 0], [1, 2]]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_examples_to_imitate_by_hand() -> None:
    episodes = supervised_episodes([ints(5, 6), ints(7)], [ints(1, 2, 0), ints(3, 0)])
    assert episodes.lengths.tolist() == [3, 2]
    assert episodes.chosen.tolist() == [1, 2, 0, 3, 0]
    assert episodes.transcript.tokens.tolist() == [5, 6, 1, 2, 0, 7, 3, 0]
    assert episodes.transcript.at.tolist() == [2, 3, 4, 6, 7]
    assert episodes.reward.tolist() == [1] * 5
    assert np.isnan(episodes.logp).all()
    assert episodes.terminated.all()
    assert episodes.score.tolist() == [3, 2]


def test_plain_text_is_imitated_from_its_second_token_on() -> None:
    episodes = supervised_episodes([ints(), ints(9)], [ints(4, 5, 0), ints(8, 0)])
    assert episodes.chosen.tolist() == [5, 0, 8, 0]
    assert episodes.transcript.at.tolist() == [1, 2, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6))
def test_only_completions_are_decided(sizes: list[tuple[int, int]]) -> None:
    prompts = [np.full(asked, 1, dtype=np.int32) for asked, _ in sizes]
    completions = [np.full(said, 2, dtype=np.int32) for _, said in sizes]
    episodes = supervised_episodes(prompts, completions)
    assert set(episodes.chosen.tolist()) <= {2}
    assert episodes.lengths.tolist() == [said - (asked == 0) for asked, said in sizes]


def test_a_judge_that_is_asked_for_half_a_group_would_fail() -> None:
    """The script above really finishes out of order: otherwise the tests of order test nothing."""
    requests = [Request(id=str(k), prompt=ints(k), samples=3, sampling=SamplingParams(max_tokens=3)) for k in range(3)]
    done = [(one.request_id, one.sample_index) for one in generate(Scripted(seed=5), requests)]
    assert done != sorted(done)


@pytest.mark.parametrize("samples", [1, 4])
def test_each_prompt_is_one_request(samples: int) -> None:
    engine = Scripted(seed=0)
    world_of(3, per_step=3, samples=samples).rollout(engine)
    assert [request.samples for request in engine.requests] == [samples] * 3


def test_each_function_s_scores_are_kept() -> None:
    episodes = world_of(2, per_step=2, shuffle=False).rollout(Scripted(seed=5))
    assert episodes.components is not None
    assert episodes.components.tolist() == [[1, 0.5], [2, 1], [3, 1.5]] * 2
    assert episodes.baseline is None


def test_a_greedy_answer_to_each_prompt_is_scored_and_left_out() -> None:
    world = world_of(10, per_step=2, shuffle=False)
    world.greedy_baseline, world.prompts_asked = True, 8
    actor = Scripted(seed=5)
    episodes = world.rollout(actor)
    assert len(episodes) == 6
    greedy = [request for request in actor.requests if request.sampling.greedy]
    assert [request.samples for request in greedy] == [1, 1]
    assert [request.prompt.tolist() for request in greedy] == [[8, 108], [9, 109, 109]]
    assert len({request.id for request in actor.requests}) == 4
    assert episodes.baseline is not None
    # the greedy answer to prompt 8 is one token long; that to prompt 9 says 9, and cannot be scored
    np.testing.assert_array_equal(episodes.baseline, [1, 1, 1, np.nan, np.nan, np.nan])
    assert episodes.components is not None
    assert len(episodes.components) == 6
    assert world.prompts_asked == 10
