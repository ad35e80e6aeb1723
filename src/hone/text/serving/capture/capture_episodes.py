"""Columns of captured sessions: rows of drawn tokens, with the score and status of their session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import TranscriptBuilder, build_columns
from hone.core.credit import Metrics
from hone.core.dialogue import DialogueOutcome
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import LostResourceError
from hone.core.judging import ScoreBatch, Scorer, ScorerInput
from hone.core.ragged import ranges
from hone.text.serving.capture.capture_step import CapturedSession, CaptureStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedEpisodes:
    """Episodes of a step, and what is told about its sessions."""

    episodes: Episodes
    groups: int
    metrics: Metrics
    notes: tuple[str, ...]


def captured_episodes(step: CaptureStep, scorer: Scorer, *, first_group: int, first_id: int) -> CapturedEpisodes:
    """Rows of all sessions with an answer; rows of one session share group, score and status, and differ in `part`.

    Groups are numbered from `first_group` on, sessions from `first_id` on. Raises LostResourceError if no session has
    an answer.
    """
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
    return CapturedEpisodes(
        episodes=episodes, groups=len(names), metrics=_metrics(sessions, rows), notes=tuple(_notes(sessions))
    )


def _scorer_input(session: CapturedSession, rows: Sequence[TranscriptBuilder]) -> ScorerInput:
    """The session as rewards see it: the way to its last answer, with what was reported as its world's reward."""
    answers = session.tree.answers
    last = answers[-1]
    opening = next(place for place, one in enumerate(last.history) if one["role"] == "assistant")
    said = last.history[opening:]
    turns = sum(one["role"] == "assistant" for one in said)
    score = None if session.report is None else session.report.score
    return ScorerInput(
        prompt=list(last.history[:opening]),
        text=str(last.history[-1]["content"]),
        columns={} if session.planned is None else session.planned.columns,
        messages=said,
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
    rows: Sequence[Sequence[TranscriptBuilder]],
    *,
    group: NDArray[np.int64],
    scores: ScoreBatch,
    first_id: int,
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


def _metrics(sessions: Sequence[CapturedSession], rows: Mapping[str, Sequence[TranscriptBuilder]]) -> Metrics:
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


def _notes(sessions: Sequence[CapturedSession]) -> list[str]:
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
