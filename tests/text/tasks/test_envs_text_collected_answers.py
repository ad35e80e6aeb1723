"""Uses of collected answers, each against a slow reading of its rule."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.text.answer_data import answer_tokens
from hone.text.tasks.collection import AnswerKind, select_answers
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.scored_rows import AnswerTokens, ScoredAnswer

NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """A collected answer of one token."""

    prompt: int
    token: int
    score: float
    cut: bool
    label: float


ROWS = st.lists(
    st.builds(
        Row,
        prompt=st.integers(0, 2),
        token=st.integers(0, 2),
        score=st.sampled_from([0.0, 0.4, 0.6, 1.0, NAN]),
        cut=st.booleans(),
        label=st.sampled_from([0.25, 1.0, NAN]),
    ),
    min_size=1,
    max_size=10,
)


def collection(rows: list[Row]) -> ExampleDataset:
    by_prompt: dict[int, list[ScoredAnswer]] = {}
    for row in rows:
        made = answer_tokens(np.array([9], np.int32), np.array([row.token], np.int32))
        tokens = AnswerTokens(
            tokens=made.tokens, at=made.at, logp=made.logp, labels=np.array([row.label]), truncated=row.cut
        )
        by_prompt.setdefault(row.prompt, []).append(
            ScoredAnswer(content=f"{row.token}", score=row.score, tokens=tokens)
        )
    drafts = [
        Example(
            id=f"p{prompt}", prompt=f"p{prompt}", completion=None, columns={}, row=place, source="here",
            answers=tuple(answers),
        )
        for place, (prompt, answers) in enumerate(by_prompt.items(), start=1)
    ]  # fmt: skip
    return build_examples(drafts, source="here")


def read(row: Row) -> tuple[str, float]:
    """Content and score."""
    return f"{row.token}", row.score


def expected(rows: list[Row], kind: AnswerKind, pairs: str, most: int | None) -> list[list[tuple[str, float]]]:
    """Content and score of the answers of each example, by prompts in the order of their first answer."""
    found: list[list[tuple[str, float]]] = []
    for prompt in dict.fromkeys(row.prompt for row in rows):
        own = [row for row in rows if row.prompt == prompt and not np.isnan(row.score)]
        if kind == "preference" and pairs == "all":
            found += [
                [(f"{a.token}", a.score), (f"{b.token}", b.score)] for a, b in product(own, own) if a.score > b.score
            ]
        elif kind == "preference" and own:
            best = next(row for row in own if row.score == max(one.score for one in own))
            worst = next(row for row in own if row.score == min(one.score for one in own))
            found += (
                [[(f"{best.token}", best.score), (f"{worst.token}", worst.score)]] if best.score > worst.score else []
            )
        elif kind == "unpaired":
            found += [[(f"{row.token}", float(row.score >= 0.5))] for row in own]
        elif kind == "outcome":
            found += [[read(row)] for row in own]
        elif kind == "stepwise":
            found += [[read(row)] for row in own if not np.isnan(row.label)]
        elif kind == "imitation":
            right = {row.token: row for row in reversed(own) if row.score >= 0.5 and not row.cut}
            order = [row for row in own if right.get(row.token) is row]
            found += [[read(row)] for row in order[:most]]
    return found


@given(
    rows=ROWS,
    kind=st.sampled_from(["preference", "unpaired", "outcome", "stepwise", "imitation"]),
    pairs=st.sampled_from(["best_worst", "all"]),
    most=st.sampled_from([None, 1]),
)
def test_answers_are_chosen_by_the_rule_of_each_use(
    rows: list[Row], kind: AnswerKind, pairs: str, most: int | None
) -> None:
    collected, wanted = collection(rows), expected(rows, kind, pairs, most)
    if not wanted:
        with pytest.raises(DataError, match=rf"here: no .* in {len(rows)} answers"):
            select_answers(collected, kind, min_score=0.5, pairs=pairs, max_per_prompt=most)
        return
    chosen = select_answers(collected, kind, min_score=0.5, pairs=pairs, max_per_prompt=most)
    assert [[(one.content, one.score) for one in example.answers] for example in chosen] == wanted
    assert len({example.id for example in chosen}) == len(chosen)
    missing = sum(np.isnan(row.score) for row in rows)
    assert any(f"{missing} of {len(rows)} answers have no score" in note for note in chosen.warnings) == bool(missing)


def test_what_became_of_right_answers_is_told() -> None:
    rows = [
        Row(0, 1, 1.0, False, NAN),
        Row(0, 1, 1.0, False, NAN),
        Row(0, 2, 1.0, True, NAN),
        Row(1, 0, 0.0, False, NAN),
    ]
    chosen = select_answers(collection(rows), "imitation", min_score=0.5)
    assert chosen.warnings == (
        "here: 1 of 2 prompts have no right answer: unsolved",
        "here: 1 answers to imitate from 4 answers to 2 prompts (3 are right; 1 of them were cut off, 1 are repeated "
        "or beyond the cap)",
    )
