"""What a text run shows: metrics and samples of its answers, and the questions of its judges."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import text_after_prompt
from hone.core.credit import Metrics
from hone.core.dialogue import STOP_REASONS
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.ragged import row_sums
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.config import RewardsConfig
from hone.rewards.judges.questions import shown_template
from hone.run.job import StepRecord
from hone.run.store.rollouts import AnswerRollouts, AnswerTimes, SampleRow, TokenColumns
from hone.text.open_text import TextDataConfig
from hone.text.tasks.conversation import AnswerEffort

_STATUS = {int(status): status.name.lower() for status in ScoreStatus}


def answer_metrics(episodes: Episodes) -> Metrics:
    """Lengths of the answers, and an estimate of the policy's entropy.

    The mean of -log p over tokens drawn from the policy estimates its entropy per token without bias, for nothing.
    """
    lengths = episodes.lengths
    return {
        "answers/tokens_mean": float(lengths.mean()),
        "answers/tokens_longest": float(lengths.max()),
        "policy/entropy_nats": float(-episodes.logp.mean(dtype=np.float64)),
    }


def reward_metrics(names: Sequence[str], episodes: Episodes) -> Metrics:
    """Mean score of each of several rewards, unweighted, as `rewards/NAME`; a reward without any score is left out."""
    if len(names) < 2 or episodes.components is None:
        return {}
    scored = {name: own[~np.isnan(own)] for name, own in zip(names, episodes.components.T, strict=True)}
    return {f"rewards/{name}": float(own.mean()) for name, own in scored.items() if len(own)}


def answer_table(
    record: StepRecord,
    tokenizer: Tokenizer,
    *,
    rewards: Sequence[str] = (),
    reference: Callable[[int], str | None] | None = None,
    efforts: Callable[[int], Sequence[AnswerEffort]] | None = None,
    compares: bool = False,
) -> AnswerRollouts:
    """The answers of a step with their tokens. `rewards` names the columns of `Episodes.components`; `reference` is
    given the group of an answer and returns the reference answer of its prompt, `efforts` what each answer took. With
    `compares` each row has the log-ratio of its answer."""
    episodes = record.episodes
    log_ratios = _log_ratios(record) if compares else [None] * len(record.episodes)
    seen = episodes.transcript
    starts = episodes.offsets[:-1]
    prompt_ends = seen.at[starts]
    asked: Counter[int] = Counter()
    texts = text_after_prompt(episodes, tokenizer.decode)
    parts = episodes.components if len(rewards) > 1 else None
    prompts: dict[bytes, str] = {}
    references: dict[int, str | None] = {}
    statuses = [_STATUS[status] for status in episodes.status.tolist()]
    finishes = ["length" if cut else "stop" for cut in episodes.truncated.tolist()]
    if episodes.stop is not None:
        finishes = [STOP_REASONS[reason] for reason in episodes.stop.tolist()]
    took, times = _efforts(episodes.group.tolist(), efforts)
    scores, tokens = episodes.score.tolist(), episodes.lengths.tolist()
    advantages, versions = record.credits.advantage[starts].tolist(), episodes.version[starts].tolist()
    rows: list[SampleRow] = []
    for place, group in enumerate(episodes.group.tolist()):
        question = seen.tokens[seen.offsets[place] : prompt_ends[place]]
        if (key := question.tobytes()) not in prompts:
            prompts[key] = tokenizer.decode(question)
        if reference is not None and group not in references:
            references[group] = reference(group)
        rows.append(
            SampleRow(
                step=record.step,
                group=group,
                sample=asked[group],
                prompt=prompts[key],
                completion=texts[place][0],
                turns=texts[place][1],
                score=scores[place] if statuses[place] == "scored" else None,
                status=statuses[place],
                advantage=advantages[place],
                tokens=tokens[place],
                finish=finishes[place],
                version=versions[place],
                reference=references.get(group),
                tool_calls=None if (own := took[place]) is None else own.tool_calls,
                log_ratio=log_ratios[place],
                components={}
                if parts is None
                else {
                    name: None if np.isnan(value) else float(value)
                    for name, value in zip(rewards, parts[place].tolist(), strict=True)
                },
            )
        )
        asked[group] += 1
    return AnswerRollouts(rows=rows, tokens=_token_columns(record), times=times)


def _log_ratios(record: StepRecord) -> list[float | None]:
    """log pi / pi_ref of each whole answer in nats, or log pi without a reference; None where the learner did not look.
    pi is the policy before the step's first update where that is known, otherwise that of the last pass."""
    trace, episodes = record.trace, record.episodes
    if trace is None:
        return [None] * len(episodes)
    logp = np.where(np.isnan(trace.logp_now), trace.logp_last, trace.logp_now).astype(np.float64)
    sums = row_sums(logp if episodes.ref_logp is None else logp - episodes.ref_logp, episodes.offsets)
    return [float(one) if np.isfinite(one) else None for one in sums]


def _efforts(
    groups: Sequence[int], efforts: Callable[[int], Sequence[AnswerEffort]] | None
) -> tuple[list[AnswerEffort | None], AnswerTimes | None]:
    """What each answer took, in their order, and the times of all; None of a group of which not all answers are
    there."""
    counts = Counter(groups if efforts is not None else ())
    rows = {group: iter(own) for group in counts if efforts and len(own := efforts(group)) == counts[group]}
    took = [next(rows[group]) if group in rows else None for group in groups]
    times = AnswerTimes(
        seconds=tuple(None if one is None else round(one.seconds, 4) for one in took),
        world_seconds=tuple(None if one is None else round(one.world_seconds, 4) for one in took),
    )
    return took, times if rows else None


def _token_columns(record: StepRecord) -> TokenColumns:
    """All tokens of a step; what is known of the sampled ones stands at their places."""
    episodes, trace = record.episodes, record.trace
    seen, count = episodes.transcript, len(episodes.transcript.tokens)
    unknown = np.full(count, np.nan, np.float32)

    def floats(column: NDArray[np.floating] | None) -> NDArray[np.float32]:
        if column is None or not len(column):
            return unknown
        whole = unknown.copy()
        whole[seen.at] = column
        return whole

    mask, clipped = np.zeros(count, np.bool_), np.full(count, -1, np.int8)
    versions = np.full(count, -1, np.int32)
    mask[seen.at], versions[seen.at] = True, episodes.version
    if trace is not None:
        clipped[seen.at] = trace.clipped
    advantage = record.credits.advantage
    first = np.repeat(advantage[np.minimum(episodes.offsets[:-1], len(advantage) - 1)], episodes.lengths)
    return TokenColumns(
        offsets=seen.offsets,
        ids=seen.tokens,
        mask=mask,
        logp=floats(episodes.logp),
        logp_now=floats(None if trace is None else trace.logp_now),
        logp_last=floats(None if trace is None else trace.logp_last),
        entropy=floats(None if trace is None else trace.entropy),
        clipped=clipped,
        versions=versions,
        advantages=floats(None if np.array_equal(first, advantage) else advantage),
        values=floats(record.values.value),
    )


# ------------------------------------------------------------------------------------------------------ judge questions


def judge_questions(
    config: TextDataConfig, rewards: RewardsConfig | None = None, *, answers: int = 0
) -> dict[str, str]:
    """The question of each judge of `rewards` and of the evaluation, with names in place of the material; with the
    largest number of requests for `answers` answers in all."""
    evaluation = config.answers_evaluation()
    judges = {} if rewards is None else rewards.judges
    held_out = {} if evaluation is None else evaluation.rewards.judges
    asked = {
        f"judge {name}": f"{judge.describe_cost(answers)}\n{shown_template(judge)}" for name, judge in judges.items()
    }
    same = "the same question as in training"
    return asked | {
        f"evaluation's judge {name}": same if judges.get(name) == judge else shown_template(judge)
        for name, judge in held_out.items()
    }
