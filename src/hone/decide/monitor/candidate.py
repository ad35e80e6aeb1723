"""Judgement of a retrained policy on decisions that it was not trained on, as evidence for the registry."""

import numpy as np

from hone.core.decisions import DecisionPolicy, DecisionTable, Evidence, Verdict
from hone.core.errors import HoneError
from hone.decide.estimators.feedback import LoggedFeedback
from hone.decide.evaluate.off_policy import LOGGED, estimate_policies, logged_feedback, offline_evidence

NAME = "candidate"
SPREAD = 1e-9
"""Largest difference of probabilities over all contexts at which a policy counts as constant."""


def candidate_evidence(
    table: DecisionTable, candidate: DecisionPolicy, *, minimum_gain: float, made_by: str, at_s: float
) -> tuple[Evidence, ...]:
    """Three rows of evidence: `sound`, `offline` and `paired`; a candidate that cannot be estimated has `sound` alone.

    `sound` refuses probabilities that are no distribution, and those that are equal in all of several contexts.
    `paired` compares with the policy that wrote the log, on the same rows: `ok` if the lower end of the difference is
    at least `minimum_gain`, `refuse` if the upper end is below it.
    """
    try:
        logged = logged_feedback(table, candidate, name=NAME)
        report = estimate_policies(table, {NAME: candidate})
    except HoneError as error:
        return (_row("sound", "refuse", f"the candidate cannot be judged: {error}", made_by, at_s),)
    sound = _soundness(logged, made_by, at_s)
    offline = offline_evidence(report.of(NAME), report, made_by=made_by, at_s=at_s)
    difference = next(one for one in report.differences if (one.first, one.second) == (LOGGED, NAME))
    found = difference.estimate
    verdict: Verdict = "weak"
    if found.verdict == "refuse" or found.high < minimum_gain:
        verdict = "refuse"
    elif found.low >= minimum_gain:
        verdict = "ok"
    words = f"{difference.words}; at least {minimum_gain:+.4g} is wanted"
    paired = Evidence(
        kind="paired", verdict=verdict, words=words, value=found.value, low=found.low, high=found.high, count=found.n,
        made_by=made_by, at_s=at_s,
    )  # fmt: skip
    return (sound, offline, paired)


def refusal_words(evidence: tuple[Evidence, ...]) -> str:
    """The reasons why a candidate may not be shipped; empty: none."""
    return "; ".join(f"{row.kind}: {row.words}" for row in evidence if row.verdict != "ok")


def _soundness(logged: LoggedFeedback, made_by: str, at_s: float) -> Evidence:
    probability = np.exp(logged.target_logp)
    several = len(np.unique(logged.contexts, axis=0)) > 1 and probability.shape[1] > 1
    if several and float(np.ptp(probability, axis=0).max()) < SPREAD:
        words = "the candidate has the same distribution in every context: it has learnt nothing from them"
        return _row("sound", "refuse", words, made_by, at_s)
    words = f"a distribution in each of {len(logged)} contexts, different by context"
    return _row("sound", "ok", words, made_by, at_s, count=len(logged))


def _row(kind: str, verdict: Verdict, words: str, made_by: str, at_s: float, count: int = 0) -> Evidence:
    return Evidence(kind=kind, verdict=verdict, words=words, count=count, made_by=made_by, at_s=at_s)
