"""Order statistics of a pool of answers, against brute force over all subsets and all orders."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.text.search import estimates
from hone.text.search.searching import best, majority, weighted_vote

SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan])
pools = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(SCORES, min_size=n, max_size=n),
        st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=n, max_size=n),
        st.lists(st.sampled_from(["1", "2", "3", ""]), min_size=n, max_size=n),
        st.integers(1, n),
    )
)


@given(pools)
def test_best_of_k_against_every_ordered_draw(pool):
    scores, truth, _, k = (np.array(pool[0]), np.array(pool[1]), pool[2], pool[3])
    picks = [truth[list(row)][best(scores[list(row)])] for row in permutations(range(len(scores)), k)]
    assert estimates.best_of(scores[None], truth[None], k)[0] == pytest.approx(np.mean(picks))


@given(pools)
def test_pass_at_k_against_every_subset(pool):
    truth, k = np.array(pool[1]), pool[3]
    expected = np.mean([truth[list(row)].max() for row in combinations(range(len(truth)), k)])
    assert estimates.pass_at(truth[None], k)[0] == pytest.approx(expected)


@given(pools)
def test_votes_among_k_against_every_ordered_draw(pool):
    weights, truth, answers, k = np.array(pool[0]), np.array(pool[1]), pool[2], pool[3]
    rows = [list(row) for row in permutations(range(len(truth)), k)]
    plain = np.mean([truth[row[majority([answers[n] for n in row])]] for row in rows])
    weighed = np.mean([truth[row[weighted_vote([answers[n] for n in row], weights[row])]] for row in rows])
    assert estimates.vote([answers], truth[None], k)[0] == pytest.approx(plain)
    assert estimates.vote([answers], truth[None], k, weights=weights[None])[0] == pytest.approx(weighed)


@given(pools)
def test_no_selection_beats_pass_at_k_and_a_perfect_scorer_reaches_it(pool):
    scores, truth, answers, k = np.array(pool[0])[None], np.array(pool[1])[None], [pool[2]], pool[3]
    most = estimates.pass_at(truth, k)[0] + 1e-9
    assert estimates.best_of(scores, truth, k)[0] <= most
    assert estimates.vote(answers, truth, k)[0] <= most
    assert estimates.vote(answers, truth, k, weights=scores)[0] <= most
    assert estimates.best_of(truth, truth, k)[0] == pytest.approx(most, abs=1e-8)
    assert estimates.best_of(scores, truth, 1)[0] == pytest.approx(truth.mean())


def test_random_subsets_are_close_to_all_of_them():
    random = np.random.default_rng(0)
    answers = [[str(n) for n in random.integers(0, 3, 12)] for _ in range(20)]
    truth = np.array([[float(text == "0") for text in row] for row in answers])
    every = estimates.vote(answers, truth, 4, subsets=495).mean()
    assert estimates.vote(answers, truth, 4, subsets=100).mean() == pytest.approx(every, abs=0.02)
    assert estimates.vote(answers, truth, 4, seed=1).tolist() == estimates.vote(answers, truth, 4, seed=1).tolist()


def test_more_than_the_pool_is_refused():
    for k in (0, 4):
        with pytest.raises(ValueError, match=f"{k} of 3 answers cannot be selected among"):
            estimates.best_of(np.zeros((1, 3)), np.zeros((1, 3)), k)


@pytest.mark.parametrize(
    ("scores", "answers", "by_score", "by_vote", "by_weight"),
    [
        ([0.1, 0.9, 0.2], ["1", "2", "1"], 1, 0, 1),
        ([0.6, 0.9, 0.5], ["1", "2", "1"], 1, 0, 0),  # 1.1 against 0.9
        ([0.5, 0.5, 0.5], ["1", "2", "3"], 0, 0, 0),  # ties go to the first
        ([np.nan, 0.1, 0.1], ["1", "2", "2"], 1, 1, 1),
        ([np.nan, np.nan], ["", "4"], 0, 1, 1),  # a text without an answer has no vote
        ([0.3, 0.4], ["", ""], 1, 0, 1),
        ([-1.0, -2.0], ["1", "2"], 0, 0, 0),
    ],
)
def test_selection_by_hand(scores, answers, by_score, by_vote, by_weight):
    assert best(np.array(scores)) == by_score
    assert majority(answers) == by_vote
    assert weighted_vote(answers, np.array(scores)) == by_weight
