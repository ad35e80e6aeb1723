"""What a text run shows: metrics and samples of its answers, and the questions of its judges."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hone.core.conversation import text_after_prompt
from hone.core.credit import Credits, Metrics
from hone.core.dialogue import STOP_REASONS
from hone.core.episodes import Episodes, ScoreStatus
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.config import RewardsConfig
from hone.rewards.judges.questions import shown_template
from hone.run.store.evaluations import SampleRow
from hone.text.open_text import TextDataConfig


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


def answer_rows(
    step: int, episodes: Episodes, credits: Credits, tokenizer: Tokenizer, *, limit: int = 64
) -> list[SampleRow]:
    """The first `limit` answers of a step as text."""
    shown = episodes.take(np.arange(min(limit, len(episodes))))
    seen = shown.transcript
    prompt_ends = seen.at[shown.offsets[:-1]]
    asked: Counter[int] = Counter()
    texts = text_after_prompt(shown, tokenizer.decode)
    rows: list[SampleRow] = []
    for place in range(len(shown)):
        start, stop = int(shown.offsets[place]), int(shown.offsets[place + 1])
        scored = shown.status[place] == ScoreStatus.SCORED
        group = int(shown.group[place])
        finish = "length" if shown.truncated[place] else "stop"
        if shown.stop is not None:
            finish = STOP_REASONS[int(shown.stop[place])]
        asked[group] += 1
        rows.append(
            SampleRow(
                step=step,
                group=group,
                sample=asked[group] - 1,
                prompt=tokenizer.decode(seen.tokens[seen.offsets[place] : prompt_ends[place]]),
                completion=texts[place][0],
                turns=texts[place][1],
                score=float(shown.score[place]) if scored else None,
                status=ScoreStatus(int(shown.status[place])).name.lower(),
                advantage=float(credits.advantage[start]),
                tokens=stop - start,
                finish=finish,
                version=int(shown.version[start]),
            )
        )
    return rows


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
