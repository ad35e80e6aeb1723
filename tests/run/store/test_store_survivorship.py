"""Counts of answers by length: against a loop over answers, by hand, and what they say of a bias."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.run.store.survivorship import FATES, LEARNT, SURVIVORSHIP, SurvivorshipCounts, length_key

ANSWERS = st.lists(
    st.tuples(st.sampled_from(FATES), st.integers(1, 3000), st.one_of(st.just(math.nan), st.integers(0, 4).map(float))),
    min_size=1,
    max_size=60,
)


def counted(answers):
    counts = SurvivorshipCounts()
    for place in range(0, len(answers), 7):  # as if batch by batch
        for fate in FATES:
            own = [one for one in answers[place : place + 7] if one[0] == fate]
            counts.add(fate, np.array([one[1] for one in own], np.int64), np.array([one[2] for one in own]))
    return counts


@examples(60)
@given(answers=ANSWERS)
def test_counts_are_those_of_a_loop_over_all_answers(answers):
    found = counted(answers).record()
    for fates in [FATES, LEARNT, *([fate] for fate in FATES)]:
        own = [one for one in answers if one[0] in fates]
        total = found.total(fates)
        assert (total.answers, total.tokens) == (len(own), sum(one[1] for one in own))
        assert total.scored == sum(math.isfinite(one[2]) for one in own)
        assert total.score_sum == sum(one[2] for one in own if math.isfinite(one[2]))
    learnt = [one[1] for one in answers if one[0] in LEARNT]
    expected = np.mean(learnt) - np.mean([one[1] for one in answers]) if learnt else 0.0
    assert found.length_bias_tokens == pytest.approx(expected)
    deciles = found.deciles()
    assert sum(sum(one.answers.values()) for one in deciles) == len(answers)
    assert all(before.longest < after.shortest for before, after in pairwise(deciles))


@given(st.integers(1, 1 << 30))
def test_a_length_is_counted_exactly_below_128_and_to_one_percent_above(length):
    key = int(length_key(np.array([length]))[0])
    assert key <= length
    assert key == length if length < 128 else (length - key) / length < 1 / 64


def test_deciles_and_sentences_by_hand():
    """Ten answers of 10 .. 100 tokens; the two longest are stale, one of 80 is cut: 360 / 8 = 45 against 55 tokens."""
    counts = SurvivorshipCounts()
    counts.add("kept", np.arange(10, 80, 10), np.linspace(0.4, 1.0, 7))
    counts.add("truncated", np.array([80]), np.array([0.0]))
    counts.add("stale", np.array([90, 100]), np.array([0.5, np.nan]))
    found = counts.record()
    assert found.length_bias_tokens == pytest.approx(45 - 55)
    deciles = found.deciles()
    assert [(one.shortest, one.answers) for one in deciles[6:]] == [
        (70, {"kept": 1}), (80, {"truncated": 1}), (90, {"stale": 1}), (100, {"stale": 1})
    ]  # fmt: skip
    assert deciles[0].reward_learnt == pytest.approx(0.4)
    assert deciles[8].reward_dropped == 0.5 and math.isnan(deciles[8].reward_learnt)
    assert found.warnings() == [
        "length bias: the answers that were learnt from have 45 tokens on average, all answers 55 (-18%); not learnt "
        "from: 2 stale (95 tokens on average)."
    ]
    counts.add("truncated", np.array([80]), np.array([0.1]))
    assert counts.record().warnings()[-1] == (
        "truncation: 18% of the answers were cut by a limit, mean reward 0.05; of those that ended by themselves 0.7."
    )
    cut = SurvivorshipCounts()
    cut.add("truncated", np.array([80]), np.array([0.1]))
    assert cut.record().warnings()[-1].endswith("mean reward 0.1; none ended by itself.")
    assert SurvivorshipCounts().record().warnings() == []
    assert SurvivorshipCounts().record().deciles() == []


def test_counts_go_through_a_file_and_a_checkpoint(tmp_path):
    counts = counted([("kept", 5, 1.0), ("stale", 1000, math.nan), ("kept", 7, math.nan)])
    SURVIVORSHIP.write(tmp_path, counts.record())
    assert SURVIVORSHIP.read(tmp_path) == counts.record()
    again = SurvivorshipCounts()
    again.restore(counts.state())
    again.add("kept", np.array([5]), np.array([0.5]))
    assert again.record().counts["kept"]["5"].score_sum == 1.5
    path = tmp_path / "survivorship.json"
    path.write_text(json.dumps({"counts": {"kept": {"5": {"answers": "many"}}}}))
    with pytest.raises(DataError, match=r"survivorship\.json: .*answers"):
        SURVIVORSHIP.read(tmp_path)
    path.unlink()
    assert SURVIVORSHIP.read(tmp_path) is None
