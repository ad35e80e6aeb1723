"""A generation session whose answers are selected by a search over another generator's draws.

All searches of one submission go through their rounds together: a round is drawn, scored as one batch, and only then
followed by the next. So nothing depends on which draw finished first. The draws of a round continue the same prompts
and beginnings, whose keys and values an engine finds in its prefix cache.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import ConfigError
from hone.core.generation import Completion, FinishReason, GenerationSession, Request
from hone.core.ragged import Ints
from hone.text.search.plans import BeamPlan, BestOfPlan, MajorityPlan, PoolPlan, StepPlan, TreesPlan, needs_scorer

# ----------------------------------------------------------------------------------------------------------- candidates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A beginning of an answer, written in one or more steps, or a whole answer."""

    tokens: NDArray[np.int32]
    """`[n]` tokens after the prompt."""
    logp: NDArray[np.float32]
    """`[n]` nats, of each token when it was drawn."""
    version: NDArray[np.int32]
    """`[n]` version of the policy that drew each token."""
    step_ends: tuple[int, ...]
    """Number of tokens up to the end of each step that was drawn by itself; the last one is `n`."""
    finish: FinishReason | None
    """Reason for which it ended; None for a beginning that goes on."""
    trailing_characters: int = 0
    """Characters of the last token behind the stop string that ended the answer."""

    @property
    def mean_logp(self) -> float:
        """Mean log-probability of its tokens, nats."""
        return float(self.logp.mean()) if len(self.logp) else 0.0


EMPTY: Candidate = Candidate(
    tokens=np.zeros(0, np.int32),
    logp=np.zeros(0, np.float32),
    version=np.zeros(0, np.int32),
    step_ends=(),
    finish=None,
)
"""The beginning before the first token."""


def extended(beginning: Candidate, drawn: Completion, *, finish: FinishReason | None) -> Candidate:
    """`beginning` with the tokens of one more step."""
    tokens = np.concatenate([beginning.tokens, drawn.tokens]).astype(np.int32)
    return Candidate(
        tokens=tokens,
        logp=np.concatenate([beginning.logp, drawn.logp]),
        version=np.concatenate([beginning.version, drawn.version]),
        step_ends=(*beginning.step_ends, len(tokens)),
        finish=finish,
        trailing_characters=0 if finish is None else drawn.trailing_characters,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScores:
    """Scores of n candidates."""

    values: NDArray[np.float64]
    """`[n]`, higher is better; NaN for a candidate that could not be scored, which is never preferred."""
    tokens_read: Ints
    """`[n]` tokens that a network read to score each; 0 for functions."""


class CandidateScorer(Protocol):
    """Scores the candidates of searches: a verifier, a reward model, or a model of steps."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> Sequence[CandidateScores]:
        """Scores of the candidates for each request, in their order."""
        ...


# ------------------------------------------------------------------------------------------- selection of one candidate


Floats = NDArray[np.float64]
NO_ANSWER = ""
"""Final answer of a text that has none; it gets no vote unless nothing else does."""


def best(scores: Floats) -> int:
    """Index of the highest of `scores` `[n]`, the first of equal ones; NaN is lower than any number."""
    return int(np.where(np.isnan(scores), -np.inf, scores).argmax()) if not np.isnan(scores).all() else 0


def majority(answers: Sequence[str]) -> int:
    """Index of the first answer of the most frequent kind; of equally frequent kinds, the one that came first."""
    return weighted_vote(answers, np.ones(len(answers)))


def weighted_vote(answers: Sequence[str], scores: Floats) -> int:
    """Index of the best-scored answer of the kind with the largest sum of scores (Li et al., "Making language models
    better reasoners with step-aware verifier", 2022).

    NaN adds nothing. Negative scores count against their answer, so scores should be probabilities. Ties go to the
    kind, and within it to the answer, that came first.
    """
    weights = np.where(np.isnan(scores), 0.0, scores)
    kinds = list(dict.fromkeys(answers))
    voted = [kind for kind in kinds if kind != NO_ANSWER] or kinds
    number = {kind: place for place, kind in enumerate(kinds)}
    of = np.array([number[answer] for answer in answers])
    sums = np.bincount(of, weights=weights, minlength=len(kinds))
    winner = max(voted, key=lambda kind: sums[number[kind]])  # the first of equal ones
    members = np.flatnonzero(of == number[winner])
    return int(members[best(scores[members])])


# ----------------------------------------------------------------------------------------------------------- procedures


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Continuations to be drawn at the same time."""

    beginnings: Sequence[Candidate]
    """What is continued; `EMPTY` continues the prompt."""
    samples: int
    """Continuations of each beginning."""
    number: int
    """Number of the round, from 0: draws are keyed by it and by the place of the continuation."""
    whole: bool
    """Draw to the end of the answer, and not to the end of the next step."""
    scored: bool
    """The continuations are to be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoundResult:
    """The continuations of a round: all of the first beginning, then all of the second ..."""

    candidates: Sequence[Candidate]
    scores: NDArray[np.float64]
    """`[n]`; NaN where a candidate could not be scored, and everywhere if no scores were asked for."""


Procedure: TypeAlias = Generator[Round, _RoundResult, Candidate]
"""Yields rounds, receives their results, returns the selected answer."""


def _procedure(plan: PoolPlan | StepPlan, answer_of: Callable[[Candidate], str]) -> Procedure:
    """The _procedure of a plan; `answer_of` gives the final answer that is voted on.

    Where one answer is under way at a time, there is nothing to select: it is drawn whole, as without a search.
    """
    if plan.answers == 1:
        return _pool_search(1, lambda _: 0, scored=False)
    match plan:
        case BestOfPlan():
            return _pool_search(plan.n, lambda result: best(result.scores))
        case MajorityPlan():
            return _pool_search(plan.n, lambda result: majority(_answers(result, answer_of)), scored=False)
        case BeamPlan():
            return _step_search(trees=1, width=plan.width, branch=plan.branch, steps=plan.steps)
        case TreesPlan():
            return _step_search(trees=plan.trees, width=1, branch=plan.branch, steps=plan.steps)
        case _:
            return _pool_search(plan.n, lambda result: weighted_vote(_answers(result, answer_of), result.scores))


def _pool_search(n: int, select: Callable[[_RoundResult], int], *, scored: bool = True) -> Procedure:
    """Draw `n` whole answers and return the one that `select` picks."""
    result = yield Round(beginnings=[EMPTY], samples=n, number=0, whole=True, scored=scored)
    return result.candidates[select(result)]


def _step_search(*, trees: int, width: int, branch: int, steps: int) -> Procedure:
    """Beam search in `trees` independent trees, each of `width` beginnings with `branch` continuations of one step.

    Answers that have ended keep their place in the beam as long as their score does. A search ends when every kept
    answer has ended, and returns the best of them; after `steps` steps, open ones are first written to their ends.
    """
    kept: list[list[tuple[Candidate, float]]] = [[(EMPTY, np.nan)] for _ in range(trees)]
    for number in range(steps + 1):
        open_ = [[one for one, _ in tree if one.finish is None] for tree in kept]
        if not any(open_):
            break
        whole = number == steps
        samples = 1 if whole else branch * (1 if number else width)
        result = yield Round(
            beginnings=[one for tree in open_ for one in tree],
            samples=samples,
            number=number,
            whole=whole,
            scored=True,
        )
        drawn = iter(zip(result.candidates, result.scores.tolist(), strict=True))
        for place, tree in enumerate(kept):
            grown = [next(drawn) for _ in range(samples * len(open_[place]))]
            kept[place] = _best_first([*(pair for pair in tree if pair[0].finish is not None), *grown])[:width]
    return _best_first([pair for tree in kept for pair in tree])[0][0]


def _best_first(pairs: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Candidates with scores, the highest first, NaN last, equal ones in their order."""
    scores = np.array([score for _, score in pairs])
    order = np.argsort(-np.where(np.isnan(scores), -np.inf, scores), kind="stable")
    return [pairs[place] for place in order.tolist()]


def _answers(result: _RoundResult, answer_of: Callable[[Candidate], str]) -> list[str]:
    return [answer_of(one) for one in result.candidates]


# ------------------------------------------------------------------------------------------------------------- sessions


_ROUNDS: Final = 1 << 16
"""Rounds that a search may have: draws of turn t of a conversation are keyed by t times this, plus the round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTools:
    """What a search needs besides a generator."""

    decode: Callable[[NDArray[np.int32]], str]
    scorer: CandidateScorer | None = None
    """None for plans that select by votes alone."""
    answer_of: Callable[[str], str] = str.strip
    """Text -> final answer that is voted on; the empty text for none."""
    step: str = "\n"
    """Text that ends a step."""


@dataclass(slots=True, kw_only=True)
class _SearchCost:
    """Work of one search, with what was thrown away."""

    drawn_tokens: int = 0
    scored_tokens: int = 0
    """Tokens that a scorer's network read."""
    candidates: int = 0
    """Answers and beginnings that were drawn."""
    steps_found: int = 0
    """Draws that ended with the text that ends a step."""


@dataclass(slots=True, eq=False)
class _Search:
    """One search of a submission while it runs."""

    request: Request
    sample: int
    run: Procedure
    waiting: Round
    """The round that it waits for."""
    cost: _SearchCost = field(default_factory=_SearchCost)
    drawn: dict[int, Completion] = field(default_factory=dict[int, Completion])
    """Completions of the round by place, as far as they are there."""


@dataclass(slots=True, eq=False)
class _Wave:
    """The searches of one submission, in their order."""

    searches: list[_Search]
    round: int


class Searching:
    """Implements `core.generation.GenerationSession`: every sample of a request is the result of a search.

    A selected answer is not a draw of the policy: its log-probabilities are NaN, and losses with an importance ratio
    refuse it. Draws are those of the inner session, keyed by (seed, round, request id, turn, place in the search).
    """

    def __init__(self, session: GenerationSession, plan: PoolPlan | StepPlan, tools: SearchTools) -> None:
        """Raises ConfigError for a plan that needs a scorer where there is none."""
        if tools.scorer is None and needs_scorer(plan) and plan.answers > 1:
            raise ConfigError(f"the search {plan} selects by scores: name a scorer, or take majority:{plan.answers}")
        self.plan = plan
        self.costs: dict[tuple[str, int], _SearchCost] = {}
        """Work of each search that ended since `reset_stats`, by request id and sample."""
        self._session, self._tools = session, tools
        self._waves: list[_Wave] = []
        self._done: deque[Completion] = deque()

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        """Begin the searches of `requests`, one for each sample. Raises as the inner session does."""
        searches = [self._begin(request, sample) for request in requests for sample in range(request.samples)]
        self._ask(searches, round)
        self._waves.append(_Wave(searches, round))

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        """Search until one of these requests (None: any) has an answer; None when none of them is left, or once `wake`
        is true."""

        def concerns(wave: _Wave) -> bool:
            return request_ids is None or any(search.request.id in request_ids for search in wave.searches)

        while (completion := self._take(request_ids)) is None:
            if wake is not None and wake():
                return None
            wave = next(filter(concerns, self._waves), None)
            if wave is None:
                return None
            self._play_round(wave)
        return completion

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        """Drop the searches of these requests (None: all), with answers that were not taken."""
        self._session.cancel(request_ids)
        kept = [] if request_ids is None else self._waves
        for wave in kept:
            wave.searches = [one for one in wave.searches if one.request.id not in (request_ids or ())]
        self._waves = [wave for wave in kept if wave.searches]
        self._done = deque(one for one in self._done if request_ids is not None and one.request_id not in request_ids)

    def reset_stats(self) -> None:
        """Reset the statistics of the inner session, and the costs of searches."""
        self._session.reset_stats()
        self.costs = {}

    # ------------------------------------------------------------------------------------------ rounds

    def _begin(self, request: Request, sample: int) -> _Search:
        run = _procedure(self.plan, lambda one: self._tools.answer_of(self._text(one)))
        return _Search(request, request.first_sample + sample, run, next(run))

    def _text(self, one: Candidate) -> str:
        whole = self._tools.decode(one.tokens)
        return whole[: len(whole) - one.trailing_characters]

    def _ask(self, searches: Sequence[_Search], number: int) -> None:
        """Submit the draws of a round. One submission holds an id once, so that beginnings take turns."""
        requests = [self._requests(search) for search in searches]
        calls: list[list[Request]] = []
        seen = Counter[str]()
        for request in (one for some in requests for one in some):
            seen[request.id] += 1
            if seen[request.id] > len(calls):
                calls.append([])
            calls[seen[request.id] - 1].append(request)
        for call in calls:
            self._session.submit(call, round=number)

    def _requests(self, search: _Search) -> list[Request]:
        """The draws of a search's round."""
        wanted, request = search.waiting, search.request
        base = search.sample * self.plan.answers
        stop = request.sampling.stop if wanted.whole else (*request.sampling.stop, self._tools.step)
        return [
            replace(
                request,
                prompt=np.concatenate([request.prompt, beginning.tokens]).astype(np.int32),
                samples=wanted.samples,
                first_sample=base + place * wanted.samples,
                turn=request.turn * _ROUNDS + wanted.number,
                sampling=replace(
                    request.sampling, max_tokens=request.sampling.max_tokens - len(beginning.tokens), stop=stop
                ),
            )
            for place, beginning in enumerate(wanted.beginnings)
        ]

    def _play_round(self, wave: _Wave) -> None:
        """Take all draws of the wave's round, score them, and ask for the next one; ended searches go to `_done`."""
        self._collect(wave)
        results = [self._candidates(search) for search in wave.searches]
        scores = self._scores(wave, results)
        going: list[_Search] = []
        for search, candidates, values in zip(wave.searches, results, scores, strict=True):
            search.drawn = {}
            try:
                search.waiting = search.run.send(_RoundResult(candidates=candidates, scores=values))
                going.append(search)
            except StopIteration as end:
                self._done.append(self._completion(search, end.value))
        wave.searches = going
        self._waves = [one for one in self._waves if one.searches]
        if going:
            self._ask(going, wave.round)

    def _collect(self, wave: _Wave) -> None:
        of = {(search.request.id, search.sample): search for search in wave.searches}
        ids = {search.request.id for search in wave.searches}
        missing = sum(len(search.waiting.beginnings) * search.waiting.samples for search in wave.searches)
        while missing:
            completion = self._session.next_completion(ids)
            if completion is None:
                raise RuntimeError(f"the session lost {missing} draws of a search: were they cancelled?")
            sample, place = divmod(completion.sample_index, self.plan.answers)
            of[completion.request_id, sample].drawn[place] = completion
            missing -= 1

    def _candidates(self, search: _Search) -> list[Candidate]:
        samples, most = search.waiting.samples, search.request.sampling.max_tokens
        candidates: list[Candidate] = []
        for place, completion in sorted(search.drawn.items()):
            beginning = search.waiting.beginnings[place // samples]
            finish = self._finish(search, completion, room=most - len(beginning.tokens) - len(completion.tokens))
            candidates.append(extended(beginning, completion, finish=finish))
            search.cost.drawn_tokens += len(completion.tokens)
            search.cost.candidates += 1
            search.cost.steps_found += finish is None
        return candidates

    def _finish(self, search: _Search, drawn: Completion, *, room: int) -> FinishReason | None:
        """Why the answer ended; None for a step after which it goes on."""
        if drawn.finish_reason != "stop" or search.waiting.whole:
            return drawn.finish_reason
        text = drawn.text(self._tools.decode)
        if any(text.endswith(stop) for stop in search.request.sampling.stop):
            return "stop"
        return None if room > 0 else "length"

    def _scores(self, wave: _Wave, results: Sequence[Sequence[Candidate]]) -> list[NDArray[np.float64]]:
        """Scores of every search's candidates; NaN where no scores were asked for."""
        values = [np.full(len(one), np.nan) for one in results]
        asked = [place for place, search in enumerate(wave.searches) if search.waiting.scored]
        if not asked or self._tools.scorer is None:
            return values
        scored = self._tools.scorer.score([(wave.searches[place].request, results[place]) for place in asked])
        for place, one in zip(asked, scored, strict=True):
            values[place] = one.values
            wave.searches[place].cost.scored_tokens += int(one.tokens_read.sum())
        return values

    def _completion(self, search: _Search, chosen: Candidate) -> Completion:
        self.costs[search.request.id, search.sample] = search.cost
        unknown = np.full(len(chosen.tokens), np.nan, np.float32)
        logp = chosen.logp if self.plan.answers == 1 else unknown
        assert chosen.finish is not None, "a search returns whole answers"
        return Completion(
            request_id=search.request.id,
            sample_index=search.sample,
            tokens=chosen.tokens,
            logp=logp,
            sampled_logp=logp,
            version=chosen.version,
            finish_reason=chosen.finish,
            trailing_characters=chosen.trailing_characters,
            turn=search.request.turn,
        )

    def _take(self, request_ids: Collection[str] | None) -> Completion | None:
        for place, one in enumerate(self._done):
            if request_ids is None or one.request_id in request_ids:
                del self._done[place]
                return one
        return None
