"""Accuracy of searches at test time by tokens: every plan beside single answers, votes, and the best that there was.

A pool of whole answers is drawn once; what selecting among fewer of them is worth is the mean over all subsets. Plans
that select after each step are searched for real. All plans answer the same problems, so that differences are paired.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import counted
from hone.core.errors import DataError
from hone.core.generation import Completion, GenerationSession, Request, SamplingParams, generate
from hone.core.judging import Scorer
from hone.estimators.means import mean_interval, paired_difference
from hone.models.language.token_policy import TokenPolicy
from hone.rewards.config import Reward, UserCodeConfig
from hone.rewards.functions import extract_answer
from hone.rewards.scorer import RewardScorer
from hone.run.store.records import ORACLE, PlanScore, SearchRecord
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.evaluation_request import (
    SearchConfig,
    SearchModelScorer,
    SearchVerifierScorer,
    SearchWorldModelScorer,
)
from hone.text.evaluate.reward_members import ModelLoader, reward_scorer
from hone.text.evaluate.search_scorers import (
    AGGREGATES,
    Decode,
    ModelCandidateScorer,
    VerifierCandidateScorer,
    WorldModelCandidateScorer,
    open_world_model_scorer,
    score_texts,
    scorer_input,
)
from hone.text.evaluate.text_eval import TextEvaluation
from hone.text.search import estimates
from hone.text.search.plans import BeamPlan, TreesPlan
from hone.text.search.searching import EMPTY, Candidate, CandidateScorer, Searching, SearchTools, extended
from hone.text.tasks.world import Prompt

Floats = NDArray[np.float64]
_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What is compared, and by what means."""

    pool: int
    """Whole answers to each problem."""
    sizes: Sequence[int]
    """Numbers of answers among which the plans on whole answers select, ascending; none above `pool`."""
    step_plans: Sequence[BeamPlan | TreesPlan]
    sampling: SamplingParams
    tools: SearchTools
    scorer_name: str = ""
    scorer_is_truth: bool = False
    """The scorer knows the right answers, so that nothing it does is a fault of a model."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Answers to P problems, N each."""

    candidates: Sequence[Sequence[Candidate]]
    texts: Sequence[Sequence[str]]
    truth: Floats
    """`[P, N]`."""
    scores: Floats | None
    """`[P, N]` of the scorer."""
    drawn_s: float
    scored_s: float
    scorer_reads: bool
    """The scorer is a network, which reads tokens."""
    prompt_tokens: Floats
    """`[P]` tokens of each prompt."""

    @property
    def sequences(self) -> list[list[bytes]]:
        """Answers as keys: equal ones are scored once."""
        return [[one.tokens.tobytes() for one in some] for some in self.candidates]

    @property
    def lengths(self) -> Floats:
        """`[P, N]` tokens of each answer."""
        return np.array([[float(len(one.tokens)) for one in some] for some in self.candidates])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanValues:
    """Accuracy of one plan on each problem, and what it cost in the mean."""

    family: str
    size: str
    values: Floats
    """`[P]`."""
    drawn_tokens: float
    scored_tokens: float
    seconds: float

    @property
    def plan(self) -> str:
        return f"{self.family}:{self.size}"

    def row(self) -> PlanScore:
        """The row of the table, with its interval."""
        estimate = mean_interval(self.values)
        return PlanScore(
            plan=self.plan,
            family=self.family,
            mean=estimate.mean,
            low=estimate.low,
            high=estimate.high,
            drawn_tokens=self.drawn_tokens,
            scored_tokens=self.scored_tokens,
            seconds=self.seconds,
        )


def sizes_up_to(pool: int, wanted: Sequence[int]) -> list[int]:
    """Powers of two up to `pool`, and the `wanted` numbers, ascending."""
    powers = [1 << n for n in range(pool.bit_length())]
    return sorted({size for size in (*powers, *wanted, pool) if size <= pool})


def evaluate_search(
    session: GenerationSession, prompts: Sequence[Prompt], truth: Scorer, settings: SearchSettings
) -> SearchRecord:
    """Search the answers of `prompts` by every plan; `truth` says which are right. Raises DataError if no answer could
    be judged, or if `settings.tools.step` never occurs in the answers while a plan selects after each step."""
    prompts, pool = _draw_pool(session, prompts, truth, settings)
    if settings.step_plans:
        _require_steps(pool, settings.tools.step)
    # Plans on whole answers, by family and size
    answers = [[settings.tools.answer_of(text) for text in some] for some in pool.texts]
    likeliest = np.array([[one.mean_logp for one in some] for some in pool.candidates])
    families: dict[str, tuple[Callable[[int], Floats], bool]] = {
        ORACLE: (lambda k: estimates.pass_at(pool.truth, k), False),
        "majority": (lambda k: estimates.vote(answers, pool.truth, k, seed=settings.seed), False),
        "likeliest": (lambda k: estimates.best_of(likeliest, pool.truth, k), False),
    }
    if pool.scores is not None:
        scores = pool.scores
        families["best_of"] = (lambda k: estimates.best_of(scores, pool.truth, k), True)
        families["weighted_vote"] = (
            lambda k: estimates.vote(answers, pool.truth, k, weights=scores, seed=settings.seed),
            True,
        )
    sizes = [size for size in settings.sizes if size > 1]
    plans = [_pool_plan(pool, ORACLE, 1, pool.truth.mean(axis=1), scored=False)]
    for family, (values, scored) in families.items():
        plans += [_pool_plan(pool, family, size, values(size), scored=scored) for size in sizes]
    for plan in settings.step_plans:
        plans.append(_searched(session, plan, prompts, truth, settings))
    judged = [plan for plan in plans if not np.isnan(plan.values).any()]
    lost = [
        f"{plan.plan}: {int(np.isnan(plan.values).sum())} selected answers could not be judged; it is left out"
        for plan in plans
        if np.isnan(plan.values).any()
    ]
    notes = [] if settings.scorer_is_truth else [*_constant_note(pool), *hurting_notes(judged)]
    return SearchRecord(
        problems=len(prompts),
        scorer=settings.scorer_name,
        auc=math.nan if pool.scores is None else auc(pool.scores, pool.truth),
        plans=tuple(plan.row() for plan in judged),
        notes=(*lost, *notes),
    )


def auc(scores: Floats, truth: Floats) -> float:
    """Chance that a right answer scores higher than a wrong one, ties counted half; NaN without both kinds.

    (R - c (c + 1) / 2) / (c w) for the sum R of the ranks of c right answers among w wrong ones (Mann and Whitney,
    1947). Answers without a score are left out; an answer is right from a truth of 0.5 on.
    """
    known = ~np.isnan(scores)
    values, right = scores[known], truth[known] >= 0.5
    count, wrong = int(right.sum()), int((~right).sum())
    if not count or not wrong:
        return math.nan
    _, of, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[of]
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * wrong))


def hurting_notes(plans: Sequence[PlanValues]) -> list[str]:
    """Sentences about selecting by the scorer that did worse than the majority vote of as many answers, or than a
    smaller plan of its own family; each difference has a paired 95% interval without 0."""
    by_name = {plan.plan: plan for plan in plans}
    notes: list[str] = []
    for family in ("best_of", "weighted_vote"):
        some = [plan for plan in plans if plan.family == family]
        for plan in some[-1:]:
            vote = by_name.get(f"majority:{plan.size}")
            if vote is not None and (difference := _worse(vote, plan)):
                notes.append(
                    f"selecting hurts: {plan.plan} is below the majority vote of the same answers, {difference}"
                )
    for family in dict.fromkeys(plan.family for plan in plans if plan.family not in (ORACLE, "majority", "likeliest")):
        some = [plan for plan in plans if plan.family == family]
        if len(some) < 2:
            continue
        largest = max(some, key=lambda plan: plan.drawn_tokens)
        best = max(some, key=lambda plan: plan.values.mean())
        if best.drawn_tokens < largest.drawn_tokens and (difference := _worse(best, largest)):
            notes.append(f"more search hurts: {largest.plan} is below {best.plan}, {difference}")
    return notes


def _constant_note(pool: _Pool) -> list[str]:
    known = None if pool.scores is None else pool.scores[~np.isnan(pool.scores)]
    if known is None or (len(known) and known.min() < known.max()):
        return []
    if not len(known):
        return [f"the scorer gives none of {pool.truth.size} answers a score: selecting by it is no selection"]
    return [
        f"the scorer gives all {len(known)} answers the same score, {known[0]:.4g}: selecting by it is no selection"
    ]


def _worse(before: PlanValues, after: PlanValues) -> str:
    """The difference in words if `after` is worse on the same problems; empty otherwise."""
    paired = paired_difference(before.values, after.values)
    if paired.high >= 0:
        return ""
    means = f"{after.values.mean():.3f} against {before.values.mean():.3f}"
    return f"{means} (difference {paired.difference:.3f}, 95% interval {paired.low:.3f} to {paired.high:.3f})"


# ---------------------------------------------------------------------------------------------------- whole answers
def _draw_pool(
    session: GenerationSession, prompts: Sequence[Prompt], truth: Scorer, settings: SearchSettings
) -> tuple[list[Prompt], _Pool]:
    """Answers of the pool, judged and scored; problems with an answer that cannot be judged are left out."""
    asked = _requests(prompts, settings, samples=settings.pool)
    began = time.perf_counter()
    drawn: dict[str, list[Completion]] = {request.id: [] for request in asked}
    for completion in counted(generate(session, asked), "answers drawn", settings.pool * len(asked)):
        drawn[completion.request_id].append(completion)
    drawn_s = time.perf_counter() - began
    whole = [[_candidate(one) for one in sorted(some, key=lambda one: one.sample_index)] for some in drawn.values()]
    inputs = [
        [scorer_input(prompt, one, settings.tools.decode) for one in some]
        for prompt, some in zip(prompts, whole, strict=True)
    ]
    right = np.stack(score_texts(truth, inputs))
    kept = np.flatnonzero(~np.isnan(right).any(axis=1)).tolist()
    if not kept:
        raise DataError(f"none of {len(prompts)} problems has only answers that could be scored: there is no accuracy")
    scores, reads, scored_s = None, False, 0.0
    if settings.tools.scorer is not None:
        began = time.perf_counter()
        scored = settings.tools.scorer.score(list(zip(asked, whole, strict=True)))
        scored_s = time.perf_counter() - began
        scores, reads = np.stack([one.values for one in scored]), any(one.tokens_read.any() for one in scored)
    return [prompts[place] for place in kept], _Pool(
        candidates=[whole[place] for place in kept],
        texts=[[one.text for one in inputs[place]] for place in kept],
        truth=right[kept],
        scores=None if scores is None else scores[kept],
        drawn_s=drawn_s / len(prompts),
        scored_s=scored_s / len(prompts),
        scorer_reads=reads,
        prompt_tokens=np.array([float(len(prompts[place].tokens)) for place in kept]),
    )


def _requests(prompts: Sequence[Prompt], settings: SearchSettings, *, samples: int) -> list[Request]:
    return [
        Request(id=prompt.id, prompt=prompt.tokens, samples=samples, sampling=settings.sampling) for prompt in prompts
    ]


def _candidate(one: Completion) -> Candidate:
    return extended(EMPTY, one, finish=one.finish_reason)


def _pool_plan(pool: _Pool, family: str, size: int, values: Floats, *, scored: bool) -> PlanValues:
    share, read = size / pool.truth.shape[1], 0.0
    if scored and pool.scorer_reads:
        read = float(estimates.distinct(pool.sequences, pool.lengths + pool.prompt_tokens[:, None], size).mean())
    return PlanValues(
        family=family,
        size=str(size),
        values=values,
        drawn_tokens=float(pool.lengths.mean()) * size,
        scored_tokens=read,
        seconds=share * (pool.drawn_s + (pool.scored_s if scored else 0.0)),
    )


# ----------------------------------------------------------------------------------------------------- step by step
def _require_steps(pool: _Pool, step: str) -> None:
    texts = [text for some in pool.texts for text in some]
    if not any(step in text for text in texts):
        shown = "; ".join(repr(text[:80]) for text in dict.fromkeys(texts[:: max(1, len(texts) // _EXAMPLES)]))
        raise DataError(
            f"evaluation.search.step = {step!r} never occurs in {len(texts)} answers, so that there are no steps to "
            f"select after; answers are, for example: {shown}; name the text that ends a step, or leave beam and trees "
            "out"
        )


def _searched(
    session: GenerationSession,
    plan: BeamPlan | TreesPlan,
    prompts: Sequence[Prompt],
    truth: Scorer,
    settings: SearchSettings,
) -> PlanValues:
    search = Searching(session, plan, settings.tools)
    began = time.perf_counter()
    completions = {one.request_id: one for one in generate(search, _requests(prompts, settings, samples=1))}
    seconds = time.perf_counter() - began
    inputs = [[scorer_input(prompt, _candidate(completions[prompt.id]), settings.tools.decode)] for prompt in prompts]
    family, _, size = str(plan).partition(":")
    costs = list(search.costs.values())
    return PlanValues(
        family=family,
        size=size,
        values=np.concatenate(score_texts(truth, inputs)),
        drawn_tokens=float(np.mean([cost.drawn_tokens for cost in costs])),
        scored_tokens=float(np.mean([cost.scored_tokens for cost in costs])),
        seconds=seconds / len(prompts),
    )


# ------------------------------------------------------------------------------------------ the search of an evaluation
@dataclass(kw_only=True)
class OpenedSearch:
    """A search whose scorer is opened: the same problems and plans for any policy."""

    config: SearchConfig
    exam: TextEvaluation
    load: ModelLoader
    """Folder and data type of the weights -> reward model."""
    limits: UserCodeConfig
    """Limits of the functions of a verifier."""
    opened: list[RewardScorer] = field(default_factory=list[RewardScorer])

    def run(self, policy: TokenPolicy) -> SearchRecord:
        """Search the answers of the evaluation's problems by every plan. Raises DataError as `evaluate_search`, and for
        a scorer that cannot score these problems."""
        config, evaluation = self.config, self.exam.config
        decode = policy.tokenizer.decode
        scorer = self.scorer(decode)
        if isinstance(scorer, WorldModelCandidateScorer):
            scorer.require_vocabulary(policy.tokenizer)
        settings = SearchSettings(
            pool=config.pool,
            sizes=sizes_up_to(config.pool, [plan.answers for plan in config.plans]),
            step_plans=config.step_plans,
            sampling=SamplingParams(
                max_tokens=evaluation.max_tokens, temperature=config.temperature, stop=tuple(evaluation.stop)
            ),
            tools=SearchTools(
                decode=decode, scorer=scorer, answer_of=partial(extract_answer, pattern=config.answer), step=config.step
            ),
            scorer_name="" if config.scorer is None else config.scorer.name,
            scorer_is_truth=isinstance(config.scorer, SearchVerifierScorer),
            seed=evaluation.seed,
        )
        engine = make_engine(
            policy,
            slots=evaluation.max_concurrent,
            longest_prompt=_longest(self.exam).tokens.size,
            max_tokens=evaluation.max_tokens,
            seed=evaluation.seed,
        )
        return evaluate_search(engine, self.exam.prompts, self.exam.scorer, settings)

    def scorer(self, decode: Decode) -> CandidateScorer | None:
        """The scorer of the config, checked. Raises HoneError."""
        match self.config.scorer:
            case None:
                return None
            case SearchModelScorer() as asked:
                return self._model(asked, decode)
            case SearchWorldModelScorer() as asked:
                return open_world_model_scorer(asked, self.exam.prompts, self.exam.examples)
            case SearchVerifierScorer() as asked:
                whole = self._verifier(asked, asked.functions)
                beginnings = self._verifier(asked, asked.beginnings) if asked.beginnings else whole
                return VerifierCandidateScorer(
                    prompts={prompt.id: prompt for prompt in self.exam.prompts},
                    whole=whole,
                    beginnings=beginnings,
                    decode=decode,
                )

    def close(self) -> None:
        """End the worker processes of the scorer."""
        for scorer in self.opened:
            scorer.close()
        self.opened.clear()

    def _model(self, asked: SearchModelScorer, decode: Decode) -> ModelCandidateScorer:
        model = self.load(asked.path, asked.weights).model
        limit, longest = model.decoder.config.max_positions, _longest(self.exam)
        wanted = len(longest.tokens) + self.exam.config.max_tokens
        if wanted > limit:
            raise DataError(
                f"evaluation.search.scorer.path = {asked.path}: the reward model reads {limit} tokens; prompt "
                f"{longest.id} has {len(longest.tokens)} and an answer up to {self.exam.config.max_tokens}, together "
                f"{wanted}; lower evaluation.max_tokens, or take a scorer with more positions"
            )
        return ModelCandidateScorer(
            model=model,
            decode=decode,
            step=self.config.step if model.reads == "steps" else None,
            aggregate=AGGREGATES[asked.steps],
            context=limit,
            micro_batch_tokens=asked.micro_batch_tokens,
            name=asked.path,
        )

    def _verifier(self, asked: SearchVerifierScorer, functions: list[Reward]) -> RewardScorer:
        scorer = reward_scorer(
            asked.rewards(functions), limits=self.limits.model_copy(update={"missing_allowed": 1.0}), load=self.load
        )
        self.opened.append(scorer)
        scorer.check(self.exam.examples.column_names(), self.exam.examples.rows)
        return scorer


def _longest(exam: TextEvaluation) -> Prompt:
    return max(exam.prompts, key=lambda prompt: len(prompt.tokens))
